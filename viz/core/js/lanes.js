/* Lanes with their texts and times: of the run's record, of a replay, or of a run under way. */

import { count, fixed, nearest } from "./format.js";
import { Joiner, NEAR, piecesAfter } from "./pieces.js";
import { guessesAtOnce, iterationParts, plainCost } from "./replay.js";
import { FATES } from "./words.js";

const TICK = 1e-7; // times of the payload are whole multiples of this many seconds

/** Last index whose key is <= x in an ascending list; -1 if none. */
export function lastAtMost(list, x, key) {
  let low = 0, high = list.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (key(list[middle]) <= x) low = middle + 1; else high = middle;
  }
  return low - 1;
}

/** A token of a lane: {text, fate (a letter), iteration, index in it, depth (tokens of it above), position in the text, node on the page}, and what
 * is recorded of it, where the payload has that. */
class Token {
  constructor(fields) { Object.assign(this, fields); }
  get outcome() { return FATES[this.fate]; }
  get thrown() { return this.fate === "r" || this.fate === "d"; }
}
Token.prototype.tops = [[], []]; // the draft's and the target's most probable tokens here: [text, probability]

/** An iteration: {lane, number (from 1), start, fates, drafted, accepted, emitted (0 or 1), tokens}, and on the decode clock, in seconds,
 * {t0, draftEnd, checkEnd, end}; draftShare: the part of the time until draftEnd that is not the policy's. Where its guesses
 * branch, parents: the index of the guess that each follows, -1 for the text; the accepted ones come first. Else null.
 * steps: passes of the draft, one for each guess of a chain, and for each place of a tree that it read. */
class Iteration {
  constructor(fields) { Object.assign(this, fields); }
  get guesses() { return this.tokens.slice(0, this.drafted); }
  get own() { return this.emitted ? this.tokens[this.drafted] : null; }
  get gives() { return this.accepted + this.emitted; }
  /** The most guesses after one another. */
  get deepest() { return this.parents ? 1 + Math.max(...this.guesses.map((guess) => guess.depth)) : this.drafted; }

  /** Its cost by the lane's cost curves, in target passes, and that of plain decoding for the same tokens. */
  get cost() {
    const { costs, draft, policy } = this.lane, parts = iterationParts(costs, this.drafted, draft, policy, this.steps);
    const guessing = parts.guess + parts.decide, total = guessing + parts.check + parts.rest, plain = this.gives * plainCost(costs);
    return { guessing, check: parts.check, rest: parts.rest, total, plain, gained: plain - total };
  }

  /** "Iteration 2: guessed 5, 1 held, 1 rejected, 3 dropped, 1 correction: 2 tokens." */
  get sentence() {
    const rejected = this.guesses.filter((guess) => guess.outcome === "rejected").length, dropped = this.drafted - this.accepted - rejected;
    const guessed = this.parents ? `guessed ${this.drafted} as a tree of depth ${this.deepest}` : `guessed ${this.drafted}`;
    if (!this.drafted && this.own) return `Iteration ${this.number}: nothing was guessed: 1 token by the target alone.`;
    const parts = this.drafted ? [guessed, `${this.accepted} held`] : ["nothing was guessed"];
    if (rejected) parts.push(`${rejected} rejected`);
    if (dropped) parts.push(`${dropped} dropped`);
    if (this.own) parts.push(`1 ${this.own.outcome}`);
    return `Iteration ${this.number}: ${parts.join(", ")}: ${count(this.gives, "token")}.`;
  }

  /** Its cost, compared with plain decoding of the same tokens. */
  get costSentence() {
    const { cost, drafted: n, steps, parents, gives } = this;
    const what = parents ? count(steps, "draft pass", "draft passes") : count(n, "guess", "guesses");
    const guessing = n ? `${what} ${fixed(cost.guessing)} + ` : "";
    const addsUp = fixed([cost.guessing, cost.check, cost.rest].reduce((sum, part) => sum + Number(fixed(part)), 0)) === fixed(cost.total);
    const sum = `${guessing}one check ${fixed(cost.check)} + the rest ${fixed(cost.rest)} ${addsUp ? "=" : "≈"} ${fixed(cost.total)} passes of the target`;
    const verdict = Math.abs(cost.gained) < 0.005 ? "no difference"
      : cost.gained > 0 ? `${fixed(cost.gained)} saved` : `${fixed(-cost.gained)} lost`;
    return `Cost: ${sum}. Plain decoding would have taken ${fixed(cost.plain)} for ${count(gives, "token")}: ${verdict}.`;
  }
}

export class Lane {
  #joiner; #vocab; #near = []; // of its text so far, the last ids

  constructor(about, vocab) {
    Object.assign(this, { name: "", caption: "", figures: [], simulated: false }, about);
    this.iterations = [];
    this.end = 0;
    this.tokens = [];
    this.keptAt = []; // output position -> index into tokens
    this.#vocab = vocab;
    this.#joiner = new Joiner(vocab);
  }

  /** One more iteration: a letter and an id for each token (guesses that held, other guesses, the target's own), and its times in
   * seconds: draft, check, policy, rest. */
  add({ start, fates, ids, parents, reads, times: [draft, check, policy, rest] }) {
    const t0 = this.end, draftEnd = t0 + draft + policy, depths = depthsOf(parents ?? []);
    const emitted = "cbp".includes(fates[fates.length - 1] || "-") ? 1 : 0, accepted = fates.split("a").length - 1;
    const branches = depths.some((depth, k) => depth !== k), drafted = fates.length - emitted;
    const iteration = new Iteration({
      lane: this, number: this.iterations.length + 1, start, fates, emitted, accepted, t0, draftEnd, drafted,
      parents: branches ? parents : null,
      steps: reads ?? (branches ? new Set(parents).size : drafted),
      draftShare: draft + policy > 0 ? draft / (draft + policy) : 1,
      checkEnd: draftEnd + check,
      end: draftEnd + check + rest,
      first: this.tokens.length, // of its tokens
      nodes: null,
    });
    iteration.tokens = this.#textsOf(ids, drafted, accepted, parents).map((text, index) => {
      const fate = fates[index], depth = "cbp".includes(fate) ? accepted : depths[index] ?? index;
      return new Token({ text, fate, depth, iteration: this.iterations.length, index, position: start + depth, node: null });
    });
    for (const token of iteration.tokens) {
      if (!token.thrown) this.keptAt[token.position] = this.tokens.length;
      this.tokens.push(token);
    }
    this.iterations.push(iteration);
    this.end = iteration.end;
    return iteration;
  }

  /** Texts of an iteration's tokens; guesses that did not hold do not affect later texts. */
  #textsOf(ids, drafted, accepted, parents) {
    const thrown = thrownTexts(this.#near, ids.slice(0, drafted), accepted, parents, this.#vocab);
    const held = ids.slice(0, accepted), own = ids.slice(drafted), next = (id) => this.#joiner.next(id);
    this.#near = [...this.#near, ...held, ...own].slice(-NEAR);
    return [...held.map(next), ...thrown, ...own.map(next)];
  }

  /** The text is complete: its last token shows what remains of a character that is not. Returns that token. */
  close() {
    const last = this.tokens[this.keptAt[this.keptAt.length - 1]];
    if (last) last.text += this.#joiner.end();
    return last;
  }

  /** The iteration at time t (the last one that has begun). */
  at(t) {
    return lastAtMost(this.iterations, t, (it) => it.t0);
  }

  /** Number of iterations checked by time t. */
  doneAt(t) {
    const at = this.at(t);
    return at >= 0 && this.iterations[at].checkEnd <= t ? at + 1 : Math.max(at, 0);
  }

  /** The lane's counts after `upTo` iterations, by default all. */
  counts(upTo = this.iterations.length) {
    const past = this.iterations.slice(0, upTo), sum = (of) => past.reduce((total, it) => total + of(it), 0);
    const drafted = sum((it) => it.drafted), accepted = sum((it) => it.accepted);
    return { passes: upTo, drafted, accepted, thrown: drafted - accepted, steps: sum((it) => it.steps), kept: sum((it) => it.gives) };
  }

  /** Accepted guesses over all guesses; null if there were none. */
  get acceptance() { const { accepted, drafted } = this.counts(); return drafted ? accepted / drafted : null; }

  /** The counts after `upTo` iterations, as the figures of these keys show them. */
  counted(upTo) {
    const { passes, drafted, steps, thrown, kept } = this.counts(upTo);
    const reads = this.costs && guessesAtOnce(this.costs, this.draft) ? this.iterations.slice(0, upTo).filter((it) => it.drafted).length : steps;
    const share = drafted ? ` (${nearest(100 * thrown / drafted)}%)` : "";
    return { target_passes: String(passes), draft_passes: String(reads), thrown_away: `${thrown}${share}`,
      tokens_per_target_pass: passes ? (kept / passes).toFixed(2) : "…" };
  }
}

const COUNTED = {
  tokens_per_target_pass: ["tokens per target pass", "tokens / target passes"],
  target_passes: ["target passes", "passes of the big model, one per iteration"],
  draft_passes: ["draft passes", "passes of the small model"],
  thrown_away: ["thrown away", "rejected and dropped guesses"],
};

/** The figures that follow from a lane's iterations alone; `note` ends their formulas. */
export function countedFigures(lane, note) {
  const texts = lane.counted(), shown = lane.policy === "autoregressive" ? ["target_passes"] : Object.keys(COUNTED);
  return shown.map((key) => ({ key, label: COUNTED[key][0], text: texts[key], formula: `${COUNTED[key][1]}${note}` }));
}

/** The number of guesses above each guess of a tree. */
function depthsOf(parents) {
  const depths = [];
  for (const parent of parents) depths.push(parent < 0 ? 0 : depths[parent] + 1);
  return depths;
}

/** Texts of the guesses that did not hold, each after those above it; `near`: ids before the iteration, ids: of its guesses. */
function thrownTexts(near, ids, accepted, parents, vocab) {
  if (!parents) return piecesAfter([...near, ...ids.slice(0, accepted)], ids.slice(accepted), vocab);
  const until = (node) => (node < 0 ? near : [...until(parents[node]), ids[node]]);
  return ids.slice(accepted).map((id, k) => piecesAfter(until(parents[accepted + k]), [id], vocab)[0]);
}

/** A lane of the payload, with the times of the repeat that is replayed. */
export function measuredLane(data, costs, vocab) {
  const lane = new Lane({ ...data, costs }, vocab);
  data.fates.forEach((fates, i) => {
    const start = data.starts[i], wrong = data.wrong[i], accepted = fates.split("a").length - 1;
    const kept = data.output.slice(start, start + fates.length - wrong.length);
    const ids = [...kept.slice(0, accepted), ...wrong, ...kept.slice(accepted)];
    const times = data.times.slice(4 * i, 4 * i + 4).map((ticks) => ticks * TICK);
    lane.add({ start, fates, ids, parents: data.parents?.[i], reads: data.reads?.[i], times });
  });
  const last = lane.close();
  if (data.ends && last) last.ends = true; // a token without a text
  return lane;
}

/** Iterations [start, SL, accepted] of a replay as a lane; `unit`: seconds per unit of cost. */
export function replayedLane(about, replay, iterations, unit, vocab) {
  const { target, draft } = replay.chain, lane = new Lane({ simulated: true, draft, output: target, ...about }, vocab);
  const fatesOf = (n, accepted, over) => { // over: the text ended before the other guesses
    const rest = n === accepted ? "" : over ? "d".repeat(n - accepted) : `r${"d".repeat(n - accepted - 1)}`;
    return "a".repeat(accepted) + rest + (over ? "" : n === 0 ? "p" : n > accepted ? "c" : "b");
  };
  for (const [start, n, accepted] of iterations) {
    const guesses = Array.from({ length: n }, (_, k) => replay.guess(start, k));
    const own = target.slice(start + accepted, start + accepted + 1); // [] where the text has ended
    const { guess, check, decide, rest } = iterationParts(lane.costs, n, draft, lane.policy);
    const times = [guess, check, decide, rest].map((cost) => cost * unit), ids = [...guesses.map(({ id }) => id), ...own];
    const it = lane.add({ start, fates: fatesOf(n, accepted, !own.length), ids, times });
    it.guesses.forEach((token, k) => {
      const other = k <= accepted ? lane.tokens[lane.keptAt[start + k]]?.text : null; // the target's choice
      Object.assign(token, { p: guesses[k].p, other });
    });
  }
  lane.close();
  return lane;
}
