/* The policies that the page replays: ports of those in decoding/lookahead, which has their sources and formulas.
 *
 * These are the ones that a lesson or a panel simulates: static SLs, oracles, and all that compare a score with a threshold.
 */

import { clamp } from "./format.js";
import { SL_CAP, bestSplit, iterationCost } from "./replay.js";

export class Policy {
  /** cap: most guesses in an iteration. After a guess, `score` and `threshold` are those of the decision about the next one. */
  constructor(name, cap = SL_CAP) { this.name = name; this.cap = cap; this.score = this.threshold = null; }
  get stopsAbove() { return false; } // whether it stops where the score is above the threshold
  begin() { this.score = this.threshold = null; return true; }
  reset() {}
  planned() { return null; }
  wantsMore() { return false; }
  observe() {}
}

export class Static extends Policy {
  constructor(sl, name = "static") { super(name); this.sl = sl; }
  planned() { return this.sl; }
}

/** Begins with a guess, and stops after one whose `scoreOf` is on the wrong side of `limit`. */
class Thresholded extends Policy {
  wantsMore({ guesses }) {
    const last = guesses[guesses.length - 1];
    if (!last) return this.begin();
    this.score = this.scoreOf(last);
    this.threshold = this.limit;
    return this.stopsAbove ? this.score <= this.limit : this.score >= this.limit;
  }
}

/** Stops after a guess whose probability is under the threshold. */
export class Confidence extends Thresholded {
  constructor(threshold = 0.4) { super("confidence"); this.limit = threshold; }
  scoreOf({ p }) { return p; }
}

/** SVIP: stops where sqrt(0.15 H) exceeds h. */
class Entropy extends Thresholded {
  constructor(h = 0.3) { super("entropy"); this.limit = h; }
  get stopsAbove() { return true; }
  scoreOf({ entropy }) { return Math.sqrt(0.15 * Math.max(entropy, 0)); }
}

export class Oracle extends Policy {
  constructor(cap = null) { super("oracle", cap); }
  reset({ holds }) { this.holds = holds; }
  planned(start) { return this.holds(start); }
}

/** The cheapest split of the known text under the run's cost curves. */
class BestOracle extends Oracle {
  reset(context) {
    super.reset(context);
    const cost = (n) => iterationCost(context.costs, n, context.draft, this.name);
    this.plan = bestSplit(context.holds, context.nTokens, cost, context.wanted).plan;
  }
  planned(start) { return this.plan[start] ?? 0; }
}

/** A threshold on the entropy bound, adjusted after each check towards a target acceptance rate. */
class AdaEdl extends Thresholded {
  constructor(wanted = 0.9) { super("adaedl"); this.wanted = wanted; }
  reset() {
    this.limit = 0.4;
    this.rate = this.wanted;
  }
  scoreOf({ entropy }) { return 1 - Math.sqrt(0.2 * Math.max(entropy, 0)); }
  observe(n, accepted) {
    if (!n) return;
    this.rate = 0.5 * this.rate + 0.5 * accepted / n;
    if (this.rate < this.wanted) this.limit += 0.02;
    else if (n < SL_CAP) this.limit -= 0.02;
    this.limit = clamp(this.limit, 0, 1);
  }
}

class Disco extends Thresholded {
  constructor(tuned, threshold) {
    super("disco", tuned.sl_max);
    this.limit = threshold ?? tuned.threshold;
    const known = (tuned.sure_at ?? []).filter(([from]) => from >= this.limit).map(([, sure]) => sure);
    this.sure = Math.min(Infinity, ...known);
  }
  scoreOf(guess) { return guess.score("disco"); }
  wantsMore(state) {
    const wanted = super.wantsMore(state);
    return wanted || state.guesses[state.guesses.length - 1].p >= this.sure;
  }
}

class SpecDecPlusPlus extends Policy {
  constructor(tuned, threshold = tuned.threshold) {
    super("specdecpp", tuned.sl_max ?? SL_CAP);
    this.limit = threshold;
  }
  get stopsAbove() { return true; }
  reset() { this.product = 1; }
  wantsMore({ guesses }) {
    if (guesses.length < 2) { this.product = 1; return this.begin(); }
    this.product *= guesses[guesses.length - 2].score("specdecpp");
    this.score = 1 - this.product;
    this.threshold = this.limit;
    return this.score <= this.limit;
  }
}

/** Guesses on while the chance that all n guesses and the next one hold exceeds caution m(n) / lam. */
class CostAware extends Policy {
  constructor(tuned, caution = tuned.caution ?? 1) {
    super("costaware", tuned.sl_max);
    this.tuned = tuned;
    this.lines = tuned.lines.map((line) => Math.min(1, caution * line));
  }
  reset() {
    this.last = "start";
    this.held = 1;
    this.recent = this.assumed = this.tuned.recent;
  }
  wantsMore({ guesses }) {
    this.threshold = this.lines[Math.min(guesses.length, 64)];
    if (!guesses.length) {
      this.held = 1;
      this.assumed = this.recent;
      this.score = this.tuned.first[this.last];
      return this.score > this.threshold;
    }
    const h = guesses[guesses.length - 1].score("costaware");
    this.held *= chance(this.tuned.this, h, this.assumed);
    this.assumed = updated(this.assumed, 1);
    this.score = this.held * chance(this.tuned.next, h, this.assumed);
    return this.score > this.threshold;
  }
  observe(n, accepted) {
    this.last = accepted === n ? "held" : "missed";
    for (let one = 0; one < accepted; one++) this.recent = updated(this.recent, 1);
    if (accepted < n) this.recent = updated(this.recent, 0);
  }
}

/** The chance with log-odds alpha + beta logit h + gamma recent. */
function chance([alpha, beta, gamma], h, recent) {
  return h <= 0 || h >= 1 ? h : sigmoid(alpha + beta * Math.log(h / (1 - h)) + gamma * recent);
}

/** The recent match rate after one more guess. */
const updated = (recent, held) => recent + 0.1 * (held - recent);

const sigmoid = (logit) => (logit > -700 ? 1 / (1 + Math.exp(-logit)) : 0);

const numberOf = (argument) => (argument == null ? undefined : Number(argument));
export const POLICIES = {
  autoregressive: () => new Static(0, "autoregressive"),
  static: (argument) => new Static(Number(argument)),
  confidence: (argument) => new Confidence(numberOf(argument)),
  entropy: (argument) => new Entropy(numberOf(argument)),
  adaedl: (argument) => new AdaEdl(numberOf(argument)),
  oracle: (argument) => (argument === "best" ? new BestOracle() : new Oracle(numberOf(argument) ?? null)),
  disco: (argument, tuned) => (tuned ? new Disco(tuned, numberOf(argument)) : null),
  specdecpp: (argument, tuned) => (tuned ? new SpecDecPlusPlus(tuned, argument === "auto" ? undefined : numberOf(argument)) : null),
  costaware: (argument, tuned) => (tuned ? new CostAware(tuned, numberOf(argument)) : null),
};

/** "wide/static:5" -> {draft, policy, argument}; null if it is not a lane. */
export function parseLane(text) {
  const match = /^(?:([A-Za-z0-9][A-Za-z0-9._/-]*)\/)?([a-z_+-]+)(?::(.+))?$/.exec(String(text).trim());
  return match ? { draft: match[1] || null, policy: match[2], argument: match[3] ?? null } : null;
}

/** A new policy for a lane; null if it is not ported or not fitted. tuned: fitted parameters by policy name. */
export function makePolicy({ policy, argument }, tuned = {}) {
  return Object.hasOwn(POLICIES, policy) ? POLICIES[policy](argument, tuned[policy]) : null;
}

/** A policy that compares its score with `factor` times its threshold, and notes both of each decision: `seen` has, per
 * iteration, [score, threshold] of each guess after which it was asked. */
export class Watched extends Policy {
  constructor(policy, factor = 1) {
    super(policy.name, policy.cap);
    Object.assign(this, { policy, factor, seen: [], open: [] });
  }
  reset(context) { this.policy.reset(context); }
  planned(start) { return this.policy.planned(start); }
  wantsMore(state) {
    const wanted = this.policy.wantsMore(state), { score, threshold, stopsAbove } = this.policy;
    const line = threshold == null ? null : threshold * this.factor;
    if (state.guesses.length) this.open.push([score, line]);
    if (this.factor === 1 || score == null || line == null) return wanted;
    return stopsAbove ? score < line : score > line;
  }
  observe(n, accepted) {
    this.seen.push(this.open);
    this.open = [];
    this.policy.observe(n, accepted);
  }
}
