/* Step by step: one iteration at a time, divided into guesses, check, verdicts, own token, rewind and cost. */

import { aria, button, el, keepingFocus, keyed, part, select } from "../../core/js/dom.js";
import { numberIn } from "../../core/js/files.js";
import { clamp, count, fixed, percent, quoted, times, visible } from "../../core/js/format.js";
import { meter, tokenBox, tops } from "../../core/js/tokens.js";
import { KINDS, findIteration } from "./kinds.js";
import { guessesAtOnce } from "../../core/js/replay.js";
import { treeOf } from "../../core/js/tree.js";
import { stepsOf } from "./sentences.js";

const TEXT_BEFORE = 60; // tokens of text shown before the iteration

export class Steps {
  constructor(learn) {
    this.learn = learn;
    this.node = aria(el("section", "sl-steps"), { label: "Step by step" });
    this.hides = false;
    this.extra = []; // lanes made on this tab: simulated or played
    this.bets = new Map();
  }

  open(model) {
    this.model = model;
    this.extra = [];
    this.bets.clear();
    const first = model.lanes.findIndex((lane) => lane.policy === "static");
    this.lane = model.lanes[first >= 0 ? first : Math.min(1, model.lanes.length - 1)] || null;
    this.at = { iteration: 0, step: 0 };
    const wrong = model.alwaysWrong(5);
    if (wrong) this.extra.push(wrong);
    this.build();
  }

  /** Outside a lesson nothing is pointed at. */
  refresh() { delete this.node.dataset.highlight; }

  get lanes() { return [...this.model.lanes, ...this.extra]; }

  /** Show a lane (object, lane text or number) at an iteration and a step (number, kind, or { verdictOn }: which of its guesses). */
  goTo({ lane, iteration = 0, step = 0 } = {}) {
    if (lane != null) this.lane = typeof lane === "object" ? this.adopt(lane) : this.lanes.find((one, i) => one.lane === lane || i === lane) || this.lane;
    if (!this.lane || !this.lane.iterations.length) { this.build(); return; }
    const i = clamp(iteration, 0, this.lane.iterations.length - 1), steps = stepsOf(this.model, this.lane, i);
    const found = typeof step === "number" ? step : steps.findIndex((one) => (step.verdictOn
      ? one.kind === "verdict" && one.at === step.verdictOn(this.lane.iterations[i]) : one.kind === step));
    this.at = { iteration: i, step: clamp(found < 0 ? 0 : found, 0, steps.length - 1) };
    this.build();
  }

  adopt(lane) {
    if (this.model.lanes.includes(lane)) return lane;
    const at = this.extra.findIndex((one) => one.name === lane.name);
    if (at >= 0) this.extra[at] = lane; else this.extra.push(lane);
    return lane;
  }

  /** Where it is, for a link: on a lane of the run, or the invented one after them. Other lanes were made here, and no link names them. */
  get link() {
    const lane = this.lane ? this.lanes.indexOf(this.lane) : Infinity;
    return lane <= this.model?.lanes.length ? { lane, ...this.at } : {};
  }

  follow(query) {
    this.goTo({ lane: query.has("lane") ? numberIn(query, "lane") : null, iteration: numberIn(query, "iteration"), step: numberIn(query, "step") });
  }

  get steps() { return stepsOf(this.model, this.lane, this.at.iteration); }
  get asks() { return this.hides && this.steps[this.at.step].kind === "check" && this.it.drafted > 0; }
  get blocked() { return this.asks && !this.bets.has(this.it); }
  get it() { return this.lane.iterations[this.at.iteration]; }

  move(direction) {
    if (!this.lane || (direction > 0 && this.blocked)) return;
    const { iteration, step } = this.at, last = this.steps.length - 1;
    if (direction > 0 && step < last) this.goTo({ iteration, step: step + 1 });
    else if (direction > 0 && iteration < this.lane.iterations.length - 1) this.goTo({ iteration: iteration + 1 });
    else if (direction < 0 && step > 0) this.goTo({ iteration, step: step - 1 });
    else if (direction < 0 && iteration > 0) this.goTo({ iteration: iteration - 1, step: Infinity });
  }

  jump(kind) {
    const found = findIteration(this.model, this.lane, kind, this.at.iteration);
    this.said = found < 0 ? "Starting again from the beginning." : "";
    this.goTo({ iteration: found < 0 ? findIteration(this.model, this.lane, kind) : found, step: kind === "rejection" ? "check" : 0 });
  }

  /** Go from the current step to the one that decides about token `at`: the verdict on its place, that it is thrown away, or the target's own. */
  towards(at) {
    const { outcome, depth } = this.it.tokens[at], wanted = at >= this.it.drafted ? "own" : outcome === "dropped" ? "rewind" : "verdict";
    this.goTo({ iteration: this.at.iteration, step: this.steps.findIndex(({ kind, place }) => kind === wanted && (kind !== "verdict" || place === depth)) });
  }

  key(event) {
    const key = event.key === " " && this.learn.presenting ? "ArrowRight" : event.key;
    const act = { ArrowRight: () => this.move(1), ArrowLeft: () => this.move(-1), n: () => this.goTo({ iteration: this.at.iteration + 1 }),
      b: () => this.goTo({ iteration: this.at.iteration - 1 }) }[key]
      ?? (/^\d$/.test(key) && this.asks && key <= this.it.deepest && (() => this.say(Number(key))));
    if (act) act();
    return Boolean(act);
  }

  // -------------------------------------------------------------- drawing

  build() {
    if (!this.lane || !this.lane.iterations.length) {
      this.node.replaceChildren(el("p", "sl-empty", "This run has no iteration to step through."));
      return;
    }
    const step = this.steps[this.at.step];
    keepingFocus(this.node, () => this.node.replaceChildren(this.controls(), this.caption(step), this.text(step), this.board(step), this.costs(step), this.numbers(step)));
    this.said = "";
    this.learn.moved(this);
  }

  controls() {
    const lanes = keyed("lane", select("Lane", this.lanes.map((lane, i) => [i, lane.name + speedOf(lane)]), this.lanes.indexOf(this.lane),
      (i) => this.goTo({ lane: Number(i) })));
    const moves = el("span", "sl-group",
      keyed("back", button("◀ Back", () => this.move(-1), { title: "One step back (left arrow)" })),
      keyed("next", button("Next ▶", () => this.move(1), { title: "Next step (right arrow)", cls: "sd-button sl-main" })),
      keyed("skip", button("»", () => this.goTo({ iteration: this.at.iteration + 1 }), { title: "Next iteration (n)" })));
    const jumps = el("span", "sl-group sl-jumps", el("span", "sd-mute", "Jump to"),
      ...Object.entries(KINDS).filter(([kind]) => findIteration(this.model, this.lane, kind) >= 0).map(([kind, { label, title }]) => keyed(kind, button(label, () => this.jump(kind), { title: `Jump to ${title}` }))));
    const hide = keyed("hide", button("Hide the verdict", () => { this.hides = !this.hides; this.build(); }, { pressed: this.hides,
      title: "Hide the verdict and predict how many guesses will hold" }));
    return el("div", "sl-bar", lanes, moves, jumps, hide);
  }

  caption(step) {
    const { iteration } = this.at, total = this.lane.iterations.length, steps = this.steps.length;
    const where = el("p", "sl-where", `Iteration ${iteration + 1} of ${total} · step ${this.at.step + 1} of ${this.hides ? "…" : steps}`
      + (this.said ? ` · ${this.said}` : ""));
    const sentence = el("p", "sl-sentence", step.sentence);
    const box = el("div", "sl-caption", where, sentence, step.more ? el("p", "sl-more", step.more) : null);
    aria(box, { live: "polite" });
    if (this.asks) box.append(this.bet());
    if (step.kind === "cost" && this.bets.has(this.it)) box.append(el("p", "sl-more", this.betResult()));
    return box;
  }

  bet() {
    const made = this.bets.get(this.it), row = el("p", "sl-bet", "How many of them will hold? ");
    for (let k = 0; k <= Math.min(this.it.deepest, 24); k++) {
      row.append(button(String(k), () => this.say(k), { pressed: made === k }), " ");
    }
    row.append(el("span", "sd-mute", made == null ? "Next waits for your choice (a number key, too)." : "Now choose Next."));
    return row;
  }

  /** The bet: how many guesses of this iteration will hold. */
  say(k) {
    this.bets.set(this.it, k);
    this.build();
  }

  betResult() {
    const made = this.bets.get(this.it), { accepted } = this.it;
    return made === accepted ? `You said ${made}: right.` : `You said ${made}; ${accepted} held.`;
  }

  /** What is known at this step: how many places have their guesses and how many are judged, passes of the draft, whether the target's
   * token is known. */
  revealed({ kind, place }) {
    const { it } = this, own = ["own", "rewind", "cost"].includes(kind), places = kind === "guess" ? place + 1 : it.deepest;
    const read = it.parents ? new Set(it.parents.filter((_, k) => it.guesses[k].depth < places)).size : places;
    return { places, judged: own ? Infinity : kind === "verdict" ? place + 1 : 0, reads: kind === "guess" ? read : it.steps, own };
  }

  /** What is known of the fate of token k; a guess after a rejected one falls with it. */
  fateOf(k, { judged }) {
    const { depth, outcome } = this.it.tokens[k];
    return Math.min(depth, this.it.accepted) < judged ? outcome : "waiting";
  }

  text(step) {
    const open = this.revealed(step), it = this.it, box = aria(el("div", "sl-text"), { label: "The text so far" });
    if (it.start < TEXT_BEFORE && this.model.prompt) box.append(promptBefore(this.model, 240));
    this.lane.iterations.slice(0, this.at.iteration).forEach((past, i) => {
      if (past.start + past.gives < it.start - TEXT_BEFORE) return;
      const group = el("span", "", el("sup", "", String(i + 1)));
      past.guesses.slice(0, past.accepted).forEach((guess) => group.append(el("span", "sl-kept sd-is-accepted", guess.text)));
      if (past.own) group.append(el("span", `sl-kept sd-is-${past.own.outcome}`, past.own.text));
      box.append(group);
    });
    const now = el("span", "sl-present", el("sup", "", String(this.at.iteration + 1)));
    const kept = it.parents || open.own; // until then a chain is a text, too
    for (const guess of it.guesses.filter(({ depth }) => depth < open.places)) {
      const fate = this.fateOf(guess.index, open);
      if (!kept || fate === "accepted") now.append(el("span", `sl-kept sd-is-${fate}`, guess.text));
    }
    if (it.own && open.own) now.append(el("span", `sl-kept sd-is-${it.own.outcome}`, it.own.text));
    box.append(now);
    requestAnimationFrame(() => { box.scrollTop = box.scrollHeight; });
    return box;
  }

  /** The guesses of an iteration that branch. */
  tree(step) {
    const { it } = this, open = this.revealed(step);
    const tree = treeOf(it, { byChance: true, chosen: Math.max(0, step.at), choose: (k) => this.point(k),
      shown: (k) => (k < it.drafted ? it.tokens[k].depth < open.places : open.own), fate: (k) => this.fateOf(k, open) });
    tree.classList.add("sl-board");
    return tree;
  }

  board(step) {
    if (this.it.parents) return this.tree(step);
    const open = this.revealed(step), it = this.it, board = aria(el("ol", "sl-board"), { label: "Guesses of this iteration" });
    it.guesses.slice(0, open.places).forEach((guess, k) => {
      const fate = this.fateOf(k, open), cell = guessCell(k, guess.text, fate, guess.p);
      cell.classList.toggle("sl-current", step.at === k);
      if (["accepted", "rejected"].includes(fate)) cell.append(el("span", "sl-cell-own", this.verdictOf(guess)));
      board.append(cell);
    });
    if (open.own && it.own) {
      const cell = ownCell(it.own);
      cell.classList.toggle("sl-current", step.kind === "own");
      board.append(cell);
    }
    const current = board.querySelector(".sl-current");
    if (current) requestAnimationFrame(() => { board.scrollLeft = current.offsetLeft - board.clientWidth / 2; });
    return board;
  }

  /** The verdict on a guess in a word: under sampling it is kept by chance, and the target's first choice decides nothing. */
  verdictOf({ outcome, other }) {
    if (this.model.rule === "sampling") return outcome === "accepted" ? "kept" : "not kept";
    return outcome === "accepted" ? "agrees" : `target: ${other == null ? "another token" : visible(other)}`;
  }

  /** Two bars on one scale: the time spent so far, and plain decoding's time for the tokens that the iteration gives. */
  costs(step) {
    const { cost, gives } = this.it, most = guessesAtOnce(this.lane.costs, this.lane.draft) ? 1 : Infinity;
    const steps = Math.min(this.it.steps, most), reads = Math.min(this.revealed(step).reads, most), checked = step.kind !== "guess", isOver = ["rewind", "cost"].includes(step.kind);
    const scale = Math.max(cost.total, cost.plain, 1), bar = el("div", "sl-cost"), plain = el("div", "sl-cost");
    for (let k = 0; k < reads; k++) bar.append(part(cost.guessing / steps / scale, "sl-part-guess"));
    if (checked) bar.append(part(cost.check / scale, "sl-part-check"));
    if (checked && cost.rest) bar.append(part(cost.rest / scale, "sl-part-rest"));
    for (let k = 0; isOver && k < gives; k++) plain.append(part(cost.plain / gives / scale, "sl-part-check"));
    const spent = (steps ? cost.guessing * reads / steps : 0) + (checked ? cost.check + cost.rest : 0);
    const average = steps > 1 && this.lane.costs.first?.[this.lane.draft] >= 0.005 ? " on average" : ""; // the first one takes more
    const parts = [reads && `${count(reads, "draft pass", "draft passes")} at ${fixed(cost.guessing / steps)}${average}`, checked && `a check at ${fixed(cost.check)}`,
      checked && cost.rest >= 0.005 && `the rest at ${fixed(cost.rest)}`].filter(Boolean).join(", ");
    const row = (name, holder, value) => el("div", "sl-cost-row", el("span", "sd-mute", name), holder, el("span", "sl-value", value));
    const box = el("div", "sl-costs", row("this iteration", bar, fixed(spent)), row("plain decoding", plain, isOver ? fixed(cost.plain) : "…"),
      el("p", "sl-note", `${parts}, in passes of the target over one token, at this run's own costs.${this.clock()}`));
    return box;
  }

  clock() {
    const seconds = this.lane.simulated ? 0 : this.it.end - this.it.t0;
    return seconds ? ` On the clock this iteration took ${fixed(1000 * seconds, 1)} ms.` : "";
  }

  /** Both models' most probable tokens at the place of the step. */
  numbers(step) {
    const guess = step.at >= 0 && ["guess", "verdict"].includes(step.kind) ? this.it.guesses[step.at] : step.kind === "own" ? this.it.own : null;
    const [draft, target] = guess ? guess.tops : [];
    const after = guess && this.it.parents?.[guess.index] >= 0 ? this.it.guesses[this.it.parents[guess.index]].text : null;
    return el("div", "sl-numbers", after == null ? null : el("p", "", `After ${quoted(after)}:`), tops(step.kind === "own" ? [] : draft, step.kind === "guess" ? [] : target));
  }

  /** What is known of a guess of the tree that was chosen. */
  point(k) {
    const { tops: [draft, target], p, text, depth } = this.it.tokens[k], step = this.steps[this.at.step];
    const said = el("p", "", `${quoted(text)}, place ${depth + 1}${p == null ? "" : `: the draft gave it ${percent(p)} after the guesses above`}.`);
    this.node.querySelector(".sl-numbers").replaceChildren(said, tops(draft, ["guess", "check"].includes(step.kind) ? [] : target));
  }
}

const speedOf = ({ simulated, speedup }) => {
  const said = [simulated && "simulated", speedup?.median && times(speedup.median)].filter(Boolean).join(", ");
  return said && ` (${said})`;
};

/** A guess on a board: its number, the token with its fate, how sure the draft was of it. */
export function guessCell(k, text, fate, p) {
  return el("li", "sl-cell", el("span", "sl-cell-no", `guess ${k + 1}`), tokenBox(text, fate), p == null ? null : meter(p), fate === "waiting" ? null : el("span", "sl-cell-fate", fate));
}

/** The target's own token on a board. */
export function ownCell({ text, outcome }) {
  return el("li", "sl-cell sl-cell-big", el("span", "sl-cell-no", "target"), tokenBox(text, outcome), el("span", "sl-cell-fate", outcome));
}

/** The end of the prompt: above the text where that answers it, else joined to it. */
export function promptBefore(model, letters) {
  const { chat } = model, prompt = chat ? model.prompt.trimEnd() : model.prompt, shown = prompt.length > letters ? `…${prompt.slice(-letters)}` : prompt;
  return el("span", `sl-prompt${chat ? " sl-asked" : ""}`, chat ? `Prompt: ${shown}` : shown);
}
