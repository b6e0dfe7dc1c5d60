/* The policies: ports of those in decoding/lookahead, which gives their sources and formulas. */

class Policy {
  constructor(name, cap = SL_CAP) { this.name = name; this.cap = cap; this.score = this.threshold = null; }
  reset() {}
  planned() { return null; }
  wantsMore() { return false; }
  observe() {}
}

class Static extends Policy {
  constructor(sl, name = "static") { super(name); this.sl = sl; }
  planned() { return this.sl; }
}

class Heuristic extends Policy {
  constructor() { super("heuristic"); }
  reset() { this.sl = 5; }
  planned() { return this.sl; }
  observe(n, accepted) {
    if (n) this.sl = accepted === n ? Math.min(this.sl + 2, SL_CAP) : Math.max(1, this.sl - 1);
  }
}

/** Stops after a guess whose probability is under the threshold. */
class Confidence extends Policy {
  constructor(threshold = 0.4) { super("confidence"); this.limit = threshold; }
  wantsMore({ guesses }) {
    if (!guesses.length) { this.score = this.threshold = null; return true; }
    this.score = guesses[guesses.length - 1].p;
    this.threshold = this.limit;
    return this.score >= this.limit;
  }
}

/** SVIP: stops where sqrt(0.15 H) exceeds h. */
class Entropy extends Policy {
  constructor(h = 0.3) { super("entropy"); this.limit = h; }
  wantsMore({ guesses }) {
    if (!guesses.length) { this.score = this.threshold = null; return true; }
    this.score = Math.sqrt(0.15 * Math.max(guesses[guesses.length - 1].entropy, 0));
    this.threshold = this.limit;
    return this.score <= this.limit;
  }
}

class Oracle extends Policy {
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

class Disco extends Policy {
  constructor(tuned, threshold) {
    super("disco", tuned.sl_max);
    this.limit = threshold ?? tuned.threshold;
    this.sure = threshold == null ? tuned.sure ?? Infinity : Infinity;
  }
  wantsMore({ guesses }) {
    const last = guesses[guesses.length - 1];
    if (!last) { this.score = this.threshold = null; return true; }
    this.score = last.score("disco");
    this.threshold = this.limit;
    return last.p >= this.sure || this.score >= this.limit;
  }
}

class SpecDecPlusPlus extends Policy {
  constructor(tuned, argument) {
    super("specdecpp", tuned.sl_max ?? SL_CAP);
    this.rows = argument === "auto" ? tuned.ledger : null;
    this.limit = argument == null || this.rows ? tuned.threshold : Number(argument);
  }
  reset({ costs, draft }) {
    this.product = 1;
    if (this.rows) this.limit = cheapestRow(this.rows, costs, draft, this.name)[0];
  }
  wantsMore({ guesses }) {
    if (guesses.length < 2) { this.product = 1; this.score = this.threshold = null; return true; }
    this.product *= guesses[guesses.length - 2].score("specdecpp");
    this.score = 1 - this.product;
    this.threshold = this.limit;
    return this.score <= this.limit;
  }
}

/** Guesses on while the chance that all guesses and the next one hold exceeds m / lam. */
class CostAware extends Policy {
  constructor(tuned) { super("costaware", tuned.sl_max); this.tuned = tuned; }
  reset({ costs, draft }) {
    this.last = "start";
    this.held = 1;
    this.threshold = costAwareThreshold(this.tuned.ledger, costs, draft);
  }
  wantsMore({ guesses }) {
    if (!guesses.length) { this.held = 1; this.score = this.tuned.first[this.last]; return this.score > this.threshold; }
    const a = guesses[guesses.length - 1].score("costaware");
    this.held *= a;
    this.score = this.held * this.following(a);
    return this.score > this.threshold;
  }
  following(a) {
    if (a <= 0 || a >= 1) return a;
    const [alpha, beta] = this.tuned.next;
    return sigmoid(alpha + beta * Math.log(a / (1 - a)));
  }
  observe(n, accepted) { this.last = accepted === n ? "held" : "missed"; }
}

const sigmoid = (logit) => (logit > -700 ? 1 / (1 + Math.exp(-logit)) : 0);

// ---------------------------------------------------------------- ledgers: [threshold, tokens, histogram of SLs]

function rowLatency([, nTokens, histogram], costs, draft, policy) {
  let total = 0;
  histogram.forEach((count, n) => { if (count) total += count * iterationCost(costs, n, draft, policy); });
  return total / nTokens;
}

function cheapestRow(rows, costs, draft, policy) {
  const latency = rows.map((row) => rowLatency(row, costs, draft, policy));
  return rows[latency.indexOf(Math.min(...latency))];
}

function costAwareThreshold(rows, costs, draft) {
  const order = [...rows].sort((a, b) => a[0] - b[0]);
  const at = order.map((row) => row[0]), latencies = order.map((row) => rowLatency(row, costs, draft, "costaware"));
  const marginal = costs.c[draft] + ((costs.decision || {}).costaware || 0) + checkSlope(costs);
  let lam = Math.min(...latencies);
  for (let round = 0; round < 50; round++) lam = 0.5 * (lam + interpolate(marginal / lam, at, latencies));
  return lam < iterationCost(costs, 0, null) ? Math.min(1, marginal / lam) : 1;
}

/** Slope of v(n) over n = 2 .. SL_CAP + 1, by least squares. */
function checkSlope(costs) {
  const middle = (SL_CAP + 3) / 2;
  let above = 0, below = 0;
  for (let n = 2; n <= SL_CAP + 1; n++) { above += (n - middle) * checkCost(costs, n); below += (n - middle) ** 2; }
  return above / below;
}

/** Linear interpolation between the points, constant outside them. */
function interpolate(x, at, values) {
  if (x <= at[0]) return values[0];
  const right = at.findIndex((one) => one > x);
  if (right < 0) return values[values.length - 1];
  const left = right - 1;
  return values[left] + (values[right] - values[left]) / (at[right] - at[left]) * (x - at[left]);
}

const numberOf = (argument) => (argument == null ? undefined : Number(argument));
const POLICIES = {
  autoregressive: () => new Static(0, "autoregressive"),
  static: (argument) => new Static(Number(argument)),
  heuristic: () => new Heuristic(),
  confidence: (argument) => new Confidence(numberOf(argument)),
  entropy: (argument) => new Entropy(numberOf(argument)),
  oracle: (argument) => (argument === "best" ? new BestOracle() : new Oracle(numberOf(argument) ?? null)),
  disco: (argument, tuned) => (tuned ? new Disco(tuned, numberOf(argument)) : null),
  specdecpp: (argument, tuned) => (tuned ? new SpecDecPlusPlus(tuned, argument) : null),
  costaware: (argument, tuned) => (tuned ? new CostAware(tuned) : null),
};
