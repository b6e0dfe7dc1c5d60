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

/** Guesses on while the chance that all n guesses and the next one hold exceeds m(n) / lam. */
class CostAware extends Policy {
  constructor(tuned) { super("costaware", tuned.sl_max); this.tuned = tuned; }
  reset({ costs, draft }) {
    this.last = "start";
    this.held = 1;
    this.recent = this.assumed = this.tuned.recent;
    this.lines = costAwareThresholds(this.tuned, costs, draft);
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

/** caution * m(n) / lam after n guesses, n = 0 .. 64; 1 throughout if plain decoding is cheaper. */
function costAwareThresholds({ ledger: rows, caution = 1 }, costs, draft) {
  const lam = Math.min(...rows.map((row) => rowLatency(row, costs, draft, "costaware")));
  const step = costs.c[draft] + ((costs.decision || {}).costaware || 0);
  const rises = checkRises(costs);
  const drafts = lam < iterationCost(costs, 0, null);
  const cost = (n) => step + Math.max(0, rises[Math.min(Math.max(n, 1), rises.length) - 1]);
  return Array.from({ length: 65 }, (_, n) => (drafts ? Math.min(1, caution * cost(n) / lam) : 1));
}

/** The rises from v(2) on along the greatest convex curve under v: the largest of the least slopes of the chords. */
function checkRises(costs) {
  const slope = (j, k) => (checkCost(costs, k) - checkCost(costs, j)) / (k - j);
  const least = (i, j) => Math.min(...Array.from({ length: SL_CAP + 1 - i }, (_, k) => slope(j, i + 1 + k)));
  return Array.from({ length: SL_CAP - 1 }, (_, n) => {
    const i = n + 2;
    return Math.max(...Array.from({ length: i - 1 }, (_, j) => least(i, j + 2)));
  });
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
