/* Be the policy: guess on or check now, on the recorded guesses and the measured costs; then write a policy. */

import { aria, button, el, keyed, select } from "../../core/js/dom.js";
import { memory } from "../../core/js/files.js";
import { count, fixed, small, times } from "../../core/js/format.js";
import { pieces, piecesAfter } from "../../core/js/pieces.js";
import { Confidence, Oracle, Static, makePolicy } from "../../core/js/policies.js";
import { Replay, SL_CAP, bestSplit, checkCost, cutChain, guessesAtOnce, iterationCost, plainCost, simulate } from "../../core/js/replay.js";
import { bestOf } from "../../core/js/run.js";
import { speedBars } from "./charts.js";
import { ExpressionError, MAX_SOURCE, WRITTEN_NAMES, Written } from "./expression.js";
import { guessCell, ownCell, promptBefore } from "./steps.js";

const LENGTHS = [24, 48, 96];

export class Play {
  constructor(learn) {
    this.learn = learn;
    this.node = aria(el("section", "sl-play"), { label: "Be the policy" });
    this.wanted = LENGTHS[0];
    this.writer = new Writer(learn);
  }

  open(model) {
    this.model = model;
    this.game = null;
    this.writer.open(model);
    this.build();
  }

  get link() { return { tokens: this.wanted, ...this.writer.link }; }

  follow(query) {
    const tokens = parseInt(query.get("tokens"), 10);
    if (tokens >= 8 && tokens <= 8192) Object.assign(this, { wanted: tokens, game: null });
    const source = query.get("policy");
    if (source) this.writer.write(source.slice(0, MAX_SOURCE));
    this.build();
  }

  start() {
    this.game = new Game(this.model, this.wanted);
    this.build();
    this.node.querySelector("[data-key=on]")?.focus({ preventScroll: true });
  }

  key(event) {
    if (!this.game || this.game.over) {
      if (event.key !== "Enter" || !this.model || !this.model.replay()) return false;
      this.start();
      return true;
    }
    if (["ArrowRight", "g"].includes(event.key)) this.guessOn();
    else if (["ArrowDown", "Enter", "c"].includes(event.key)) this.check();
    else return false;
    return true;
  }

  guessOn() { this.game.guessOn(); this.build("on"); }
  check() { this.game.check(); if (this.game.over) this.keepBest(); this.build("check"); }

  get bestKey() { return `learn-best/${this.model.id}/${this.game.replay.n}`; }
  keepBest() {
    const best = memory.read(this.bestKey, 0);
    this.game.isBest = this.game.speedup > best;
    if (this.game.isBest) memory.write(this.bestKey, this.game.speedup);
  }

  // -------------------------------------------------------------- drawing

  build(focus) {
    if (!this.model.replay()) {
      this.node.replaceChildren(el("p", "sl-empty", this.model.no_chain));
      return;
    }
    const { game } = this;
    this.node.replaceChildren(!game ? this.intro() : game.over ? this.results() : this.table(), this.writer.node);
    if (focus) (this.node.querySelector(`[data-key=${focus}]:not(:disabled)`) || this.node.querySelector("[data-key=on]:not(:disabled), [data-key=check], [data-key=again]"))?.focus({ preventScroll: true });
  }

  lengths() {
    const all = this.model.replay().n, lengths = [...LENGTHS.filter((n) => n < all), all];
    if (!lengths.includes(this.wanted)) this.wanted = this.wanted > all ? all : lengths.find((n) => n >= this.wanted);
    return select("Length of the text", lengths.map((n) => [n, `the first ${n} tokens`]), this.wanted, (n) => { this.wanted = Number(n); this.game = null; this.build(); });
  }

  intro() {
    const cost = this.model.costs, draft = this.model.draft, lengths = this.lengths();
    const best = memory.read(`learn-best/${this.model.id}/${Math.min(this.wanted, this.model.replay().n)}`, 0);
    return el("div", "sl-card", el("h2", "", "You decide: guess again, or check now?"),
      el("p", "", `You see one guess at a time and how sure the draft, ${draft}, is of it. ${priceOf(cost, draft)}; a check of 2 tokens ${fixed(checkCost(cost, 2))}, of 6 tokens ${fixed(checkCost(cost, 6))}. Guess too little, and the target is called too often; guess too much, and the guesses after the first wrong one are wasted.`),
      el("p", "", "Keys: → or g to guess again, ↓ or c to check now."),
      el("p", "sl-bar", lengths, Object.assign(button("Start", () => this.start(), { cls: "sd-button sl-main" }), { id: "sl-start" }), best ? el("span", "sd-mute", `Your best here: ${times(best)}`) : null));
  }

  /** The game: the text, what the last check said, the guesses of this iteration, the time spent, two buttons. */
  table() {
    const { game } = this, seen = game.guesses, last = game.past[game.past.length - 1], { whyNot } = game;
    const board = aria(el("ol", "sl-board", ...seen.map((guess, k) => guessCell(k, game.wordOf(k), "waiting", guess.p))), { label: "Guesses of this iteration" });
    const on = keyed("on", button("Guess again (→)", () => this.guessOn(), { cls: "sd-button sl-main" }));
    const check = keyed("check", button(seen.length ? "Check now (↓)" : "Check now: take one token (↓)", () => this.check(), { cls: "sd-button sl-main" }));
    on.disabled = Boolean(whyNot);
    const text = el("div", "sl-text", promptBefore(this.model, 160), el("span", "", game.shown.slice(0, game.start).join("")), el("span", "sl-present", seen.map((_, k) => game.wordOf(k)).join("")));
    const said = aria(el("p", "sl-sentence", last ? last.it.sentence : `${seen.length ? "" : "There is no guess yet. "}Guess again, or check now?`), { role: "status" });
    requestAnimationFrame(() => { text.scrollTop = text.scrollHeight; });
    return el("div", "sl-card", said, last ? checkedBoard(last) : null, text, board, el("p", "sl-bar sl-choices", on, check),
      whyNot ? aria(el("p", "sl-note", whyNot), { role: "status" }) : null,
      el("p", "sd-mute", `${game.start} of ${game.replay.n} tokens · your time: ${fixed(game.spent + game.open)} passes · plain decoding's time for these tokens: ${fixed(game.start * game.plain)}`));
  }

  results() {
    const { game, model } = this, regrets = game.worst(3), speed = times(game.speedup);
    const rows = [{ name: "You", speedup: game.speedup, cls: "sl-you", note: `${game.past.length} passes` }, ...game.others(model)].sort((a, b) => b.speedup - a.speedup);
    const again = keyed("again", button("Again", () => this.start(), { cls: "sd-button sl-main" }));
    const list = el("ol", "sl-regrets", ...regrets.map(({ i, at, cost, sentence, better }) => el("li", "", `${sentence} Better: ${better}. That would have saved ${fixed(cost)} passes. `,
      button("Show it", () => this.stepThrough(i, at)))));
    return el("div", "sl-card", el("h2", "", `You: ${speed}${game.isBest ? ", your best here" : ""}`),
      el("p", "", `${game.replay.n} tokens in ${fixed(game.spent)} passes of the target's time; plain decoding takes ${fixed(game.replay.n * game.plain)}. All lanes below are simulated on the same tokens, with ${model.draft}, at the same costs.`),
      speedBars("Speed relative to plain decoding", rows),
      regrets.length ? el("div", "", el("h3", "", "Your most expensive decisions, with hindsight"), list) : el("p", "", "No decision could have been better."),
      el("p", "sl-bar", again, button("Step through my lane", () => this.stepThrough(0)), this.lengths()));
  }

  stepThrough(iteration, step = 0) {
    const { game } = this, lane = this.model.fromIterations("You", "you", game.past.map((one) => one.tuple), { replay: game.replay, speedup: game.speedup });
    this.learn.goTo({ place: "steps", lane, iteration, step });
  }
}

/** What guessing costs, in passes of the target. */
function priceOf(costs, draft) {
  const c = costs.c[draft], first = c + (costs.first?.[draft] || 0);
  if (guessesAtOnce(costs, draft)) return `The guesses of an iteration together cost ${small(first)} passes of the target`;
  return first - c < 0.0005 ? `A guess costs ${small(c)} passes of the target` : `The first guess of an iteration costs ${small(first)} passes of the target, each further one ${small(c)}`;
}

/** What came of the guesses of the last check: they stay until the next one. */
function checkedBoard({ guesses, it: { tokens, own } }) {
  const cells = guesses.map(({ p }, k) => guessCell(k, tokens[k].text, tokens[k].outcome, p));
  return aria(el("ol", "sl-board sl-checked", ...cells, own ? ownCell(own) : null), { label: "The last check" });
}

/** One game: the state of the player's lane over the first n tokens. */
class Game {
  constructor(model, n) {
    this.replay = new Replay(cutChain(model.chains[model.draft], n));
    this.model = model;
    this.shown = pieces(this.replay.chain.target, model.vocab);
    this.plain = plainCost(model.costs);
    Object.assign(this, { start: 0, guesses: [], past: [], spent: 0, over: false });
  }

  get most() { return Math.min(this.replay.n - this.start - 1, this.replay.reach[this.start]); }
  /** Why no further guess is possible; "" where one is. */
  get whyNot() {
    if (this.guesses.length < this.most) return "";
    return this.most < this.replay.n - this.start - 1 ? "No further guess was recorded at this place: check now."
      : "The last token is always the target's own, given by the check: nothing is left to guess.";
  }
  /** Cost of this iteration's guesses so far. */
  get open() { return this.guesses.length ? this.cost(this.guesses.length) - checkCost(this.model.costs, this.guesses.length + 1) - this.model.costs.o : 0; }
  get speedup() { return this.replay.n * this.plain / this.spent; }

  cost(n) { return iterationCost(this.model.costs, n, this.replay.chain.draft); }

  wordOf(k) {
    const context = [...this.replay.chain.target.slice(0, this.start), ...this.guesses.slice(0, k).map((guess) => guess.id)];
    return piecesAfter(context, [this.guesses[k].id], this.model.vocab)[0];
  }

  guessOn() {
    if (!this.over && !this.whyNot) this.guesses.push(this.replay.guess(this.start, this.guesses.length));
  }

  check() {
    if (this.over) return;
    const n = this.guesses.length, accepted = Math.min(n, this.replay.holds[this.start]);
    const tuple = [this.start, n, accepted], cost = this.cost(n);
    const lane = this.model.fromIterations("You", "you", [...this.past.map((one) => one.tuple), tuple], { replay: this.replay });
    this.past.push({ tuple, cost, guesses: this.guesses, it: lane.iterations.at(-1) });
    this.spent += cost;
    this.start += accepted + 1;
    this.guesses = [];
    this.over = this.start >= this.replay.n;
  }

  /** The n decisions that cost most, compared with the best one at the same place; both continue in the cheapest way. `at`:
   * the guess at which the best one parts from them. */
  worst(n) {
    const { plan, rest } = bestSplit((start) => this.replay.holds[start], this.replay.n, (k) => this.cost(k));
    const regrets = this.past.map(({ tuple: [start, guessed, accepted], cost, it }, i) => ({ i, sentence: it.sentence,
      at: Math.max(0, Math.min(plan[start], guessed - 1)), better: betterThan(guessed, plan[start], accepted), cost: cost + rest[Math.min(start + accepted + 1, this.replay.n)] - rest[start] }));
    return regrets.filter((one) => one.cost > 0.01).sort((a, b) => b.cost - a.cost).slice(0, n);
  }

  others(model) {
    const run = (name, policy, note) => policy && { name, speedup: simulate(this.replay, model.costs, policy).speedup, note, cls: "sl-simulated" };
    const statics = Array.from({ length: SL_CAP }, (_, i) => run(`Static ${i + 1}`, new Static(i + 1), "the best static SL, with hindsight"));
    const tuned = model.tuned[this.replay.chain.draft] || {};
    const learned = Object.keys(tuned).map((name) => run(model.titles[name] || name, makePolicy({ policy: name, argument: null }, tuned), "the best learned policy")).filter(Boolean);
    return [{ name: "Plain", speedup: 1, note: "the target alone", cls: "sl-simulated" }, run("Confidence 0.4", new Confidence(), "stops under 40%"), bestOf(statics),
      ...(learned.length ? [bestOf(learned)] : []), run("Oracle", new Oracle(), "knows the text in advance; not usable")];
  }
}

/** What would have been better than `guessed` guesses. */
function betterThan(guessed, best, accepted) {
  if (best > guessed) return best === 1 ? "guess once: it holds" : `keep guessing, up to ${best}: all of them hold`;
  const failed = best === accepted ? `: guess ${best + 1} fails` : "";
  return best ? `check after ${count(best, "guess", "guesses")}${failed}` : `check without guessing${failed}`;
}

/** The editor for a policy in a few lines, which is replayed while one types. */
class Writer {
  constructor(learn) {
    this.learn = learn;
    this.source = "p > 0.4 and guessed < 12";
  }

  open(model) {
    this.model = model;
    this.field = aria(el("textarea", "sl-source"), { label: "Keep guessing while" });
    Object.assign(this.field, { value: this.source, rows: 4, maxLength: MAX_SOURCE, spellcheck: false });
    this.field.addEventListener("input", () => this.write(this.field.value));
    this.out = aria(el("div", ""), { role: "status" });
    this.node = el("div", "sl-card", el("h2", "", "Write the policy"), el("p", "", "Keep guessing while this is true; it is evaluated before every guess:"), this.field,
      el("p", "sl-note", `Variables: ${WRITTEN_NAMES.join(", ")}. p is the draft's probability of its last guess (1 before the first) and entropy that of its distribution there; product multiplies all p of this iteration; guessed counts its guesses; position counts the tokens of the text so far; held_last and guessed_last are the accepted guesses and all guesses of the last iteration; c is the cost of a guess, check that of checking one more token, plain that of a pass. Functions: min, max, abs, sqrt, log, exp. A line name = … defines a variable; # starts a comment.`), this.out);
    this.run();
  }

  get link() { return { policy: this.source }; }

  write(source) {
    this.source = source;
    if (this.field && this.field.value !== source) this.field.value = source;
    if (this.model) this.run();
  }

  run() {
    if (!this.model.replay()) { this.out.replaceChildren(); return; }
    try {
      const lane = this.model.simulated("Your policy", new Written(this.source));
      const best = this.model.bestStatic(), confidence = this.model.simulated("", new Confidence());
      aria(this.field, { invalid: false });
      this.out.replaceChildren(speedBars(`Simulated on all ${this.model.replay().n} tokens of this run`, [{ name: "Your policy", speedup: lane.speedup.median, cls: "sl-you", note: `${lane.iterations.length} passes` },
        { name: `Static ${best.sl}`, speedup: best.speedup, note: "the best static SL, with hindsight", cls: "sl-simulated" },
        { name: "Confidence 0.4", speedup: confidence.speedup.median, cls: "sl-simulated" }]),
      button("Step through it", () => this.learn.goTo({ place: "steps", lane, iteration: 0, step: 0 })));
    } catch (error) {
      if (!(error instanceof ExpressionError)) throw error;
      aria(this.field, { invalid: true });
      this.out.replaceChildren(el("p", "sl-fault", error.message));
    }
  }
}
