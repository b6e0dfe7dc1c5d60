/* The policies that learn from each check: ports of those in decoding/lookahead. */

/** The SL with the most tokens per second, from the acceptance of recent guesses by place (SGLang's throughput_aware). */
class Throughput extends Policy {
  constructor() { super("throughput"); }
  reset({ costs, draft }) {
    this.cost = Array.from({ length: SL_CAP + 1 }, (_, n) => iterationCost(costs, n, draft, this.name));
    this.seen = [];
  }
  planned() {
    let held = 1, expected = 1, best = 1, most = 0;
    this.rates().forEach((rate, i) => {
      held *= rate;
      expected += held;
      if (expected / this.cost[i + 1] > most) { best = i + 1; most = expected / this.cost[i + 1]; }
    });
    return best;
  }
  observe(n, accepted) {
    if (n) this.seen = [...this.seen, [n, accepted]].slice(-20);
  }
  /** The share of guesses that held at each place in an iteration, smoothed towards the share over all places. */
  rates() {
    const tried = new Array(SL_CAP).fill(0), held = new Array(SL_CAP).fill(0), total = (list) => list.reduce((a, b) => a + b, 0);
    for (const [n, accepted] of this.seen) {
      for (let place = 0; place < Math.min(accepted + 1, n, SL_CAP); place++) { tried[place] += 1; held[place] += place < accepted ? 1 : 0; }
    }
    const share = (total(held) + 4 * 0.8) / (total(tried) + 4);
    return held.map((h, place) => (h + 4 * share) / (tried[place] + 4));
  }
}

/** Exponential weights over SLs (AdaHedge), updated with the loss that each of them would have had. */
class Bandit extends Policy {
  constructor() { super("bandit"); }
  reset({ costs, draft }) {
    this.cost = ARMS.map((k) => iterationCost(costs, k, draft, this.name));
    Object.assign(this, { spent: iterationCost(costs, 0, null), tokens: 1, held: 1, judged: 2, losses: ARMS.map(() => 0), gap: 0, sl: 5, outcome: null });
  }
  planned() {
    if (this.outcome) {
      this.learn(...this.outcome);
      this.sl = Math.trunc(dot(this.weights(), ARMS) + 0.5);
      this.outcome = null;
    }
    return this.sl;
  }
  observe(n, accepted) { if (n) this.outcome = [Math.min(n, SL_CAP), Math.min(accepted, SL_CAP)]; }
  learn(n, accepted) {
    this.spent += this.cost[n - 1];
    this.tokens += 1 + accepted;
    this.held += accepted;
    this.judged += Math.min(accepted + 1, n);
    const worth = this.spent / this.tokens;
    this.hedge(this.accepted(n, accepted).map((a, i) => this.cost[i] - worth * (1 + a)));
  }
  /** How many guesses each SL would have had accepted: known, or expected if all drafted guesses held. */
  accepted(n, accepted) {
    const q = this.held / this.judged;
    let more = 0;
    return ARMS.map((k) => {
      if (accepted < n || k <= n) return Math.min(accepted, k);
      more += q ** (k - n);
      return accepted + more;
    });
  }
  hedge(loss) {
    const expected = dot(this.weights(), loss), eta = this.eta(), before = softMinimum(this.losses, eta);
    this.losses = this.losses.map((one, i) => one + loss[i]);
    this.gap += Math.max(0, expected - (softMinimum(this.losses, eta) - before));
  }
  weights() {
    const least = Math.min(...this.losses), eta = this.eta();
    const weights = this.losses.map((loss) => (this.gap === 0 ? Number(loss - least <= 0) : Math.exp(-eta * (loss - least))));
    const total = weights.reduce((a, b) => a + b, 0);
    return weights.map((weight) => weight / total);
  }
  eta() { return this.gap ? Math.log(SL_CAP) / this.gap : Infinity; }
}

const ARMS = Array.from({ length: SL_CAP }, (_, i) => i + 1);
const dot = (a, b) => a.reduce((sum, x, i) => sum + x * b[i], 0);

function softMinimum(losses, eta) {
  const least = Math.min(...losses);
  return eta === Infinity ? least : least - Math.log(losses.reduce((sum, loss) => sum + Math.exp(-eta * (loss - least)), 0)) / eta;
}

/** A threshold on the entropy bound, adjusted after each check towards a target acceptance rate. */
class AdaEdl extends Policy {
  constructor(wanted = 0.9) { super("adaedl"); this.wanted = wanted; }
  reset() {
    this.score = this.threshold = null;
    this.limit = 0.4;
    this.rate = this.wanted;
  }
  wantsMore({ guesses }) {
    if (!guesses.length) { this.score = this.threshold = null; return true; }
    this.score = 1 - Math.sqrt(0.2 * Math.max(guesses[guesses.length - 1].entropy, 0));
    this.threshold = this.limit;
    return this.score >= this.limit;
  }
  observe(n, accepted) {
    if (!n) return;
    this.rate = 0.5 * this.rate + 0.5 * accepted / n;
    if (this.rate < this.wanted) this.limit += 0.02;
    else if (n < SL_CAP) this.limit -= 0.02;
    this.limit = clamp(this.limit, 0, 1);
  }
}

Object.assign(POLICIES, {
  throughput: () => new Throughput(), bandit: () => new Bandit(), adaedl: (argument) => new AdaEdl(numberOf(argument)),
});
