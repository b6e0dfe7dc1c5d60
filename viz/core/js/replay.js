/* Replays a recorded chain with another policy: a port of decoding/analysis/whatif.py, the only one in the browser.
 *
 * Tests over all policies compare the results with those of the Python code. Costs are in units of a target pass over one
 * token; output positions count new tokens from 0.
 */

export const SL_CAP = 20; // of static policies and of those whose source has this cap

// ---------------------------------------------------------------- costs

/** v(n): cost of a target pass over n tokens, extrapolated beyond the measured range with the mean slope. */
export function checkCost({ v }, n) {
  const last = v[v.length - 1];
  if (n <= v.length) return v[n - 1];
  return last + Math.max(0, last - v[0]) / Math.max(1, v.length - 1) * (n - v.length);
}

/** What an iteration of n drafted tokens costs: {guess, decide, check, rest}; `steps`: passes of the draft, if they are fewer.
 * All simulated costs and times come from here. */
export function iterationParts(costs, n, draft, policy, steps = n) {
  const c = draft == null ? 0 : costs.c[draft], first = draft != null && n ? costs.first?.[draft] || 0 : 0;
  return { guess: first + steps * c, decide: n * (costs.decision?.[policy] || 0), check: checkCost(costs, n + 1), rest: costs.o };
}

export function iterationCost(costs, n, draft, policy, steps) {
  const { guess, decide, check, rest } = iterationParts(costs, n, draft, policy, steps);
  return guess + decide + check + rest;
}

/** Cost of a token of plain decoding. */
export const plainCost = (costs) => iterationCost(costs, 0, null);

const AT_ONCE = 10; // a first step that costs more than so many of the others makes their guesses as well

/** Whether a draft makes all guesses of an iteration in its first step. */
export const guessesAtOnce = (costs, draft) => (costs.first?.[draft] || 0) > AT_ONCE * costs.c[draft];

/** What guessing costs: a guess or, of a draft that makes them at once, all guesses of an iteration. */
export const guessCost = (costs, draft) => (guessesAtOnce(costs, draft) ? costs.first[draft] : costs.c[draft]);

/** The costs, as measured, with another cost of guessing, of checks, or of both. */
export function withCosts(costs, draft, { c, v } = {}) {
  const changed = { ...costs, v: v || costs.v };
  if (c == null) return changed;
  const known = costs.c[draft], first = costs.first?.[draft] || 0, atOnce = guessesAtOnce(costs, draft);
  changed.c = { ...costs.c, [draft]: atOnce ? known : c };
  changed.first = { ...costs.first, [draft]: atOnce ? c : known ? first * c / known : 0 };
  return changed;
}

// ---------------------------------------------------------------- the chain, prepared

export class Replay {
  constructor(chain) {
    this.chain = chain;
    this.n = chain.target.length;
    this.holds = new Array(this.n + 1).fill(0); // how many guesses in a row are right from here on
    for (let at = this.n - 1; at >= 0; at--) {
      if (chain.starts?.length) this.holds[at] = heldFrom(chain, at);
      else this.holds[at] = chain.along.choice[at] === chain.target[at] ? this.holds[at + 1] + 1 : 0;
    }
    this.reach = chain.target.map((_, start) => this.reachFrom(start)); // how many guesses exist from here on
  }

  reachFrom(start) {
    const { along, tails, starts } = this.chain, held = this.holds[start], end = start + held;
    if (starts?.length) return lengthOf(starts[start]);
    if (end === this.n) return held + lengthOf(tails[end - 1]);
    return along.choice[end] == null ? held : held + 1 + lengthOf(tails[end]);
  }

  /** The index-th guess of an iteration at start: {id, p, entropy, score(head)}. */
  guess(start, index) {
    let held = this.holds[start];
    if (start + held === this.n) held -= 1;
    const { starts } = this.chain, along = index <= held;
    const list = starts?.length ? starts[start] : along ? this.chain.along : this.chain.tails[start + held];
    const at = starts?.length ? index : along ? start + index : index - held - 1;
    return { id: list.choice[at], p: list.p[at], entropy: list.entropy[at], score: (head) => list.scores?.[head]?.[at] };
  }
}

/** How many guesses of an iteration at start are right, where what is guessed depends on where it began. */
function heldFrom({ starts, target }, start) {
  const { choice } = starts[start];
  let held = 0;
  while (held < choice.length && start + held < target.length && choice[held] === target[start + held]) held++;
  return held;
}

/** How many guesses were recorded there. */
function lengthOf(tail) {
  if (!tail) return 0;
  const end = tail.choice.findIndex((choice) => choice == null);
  return end < 0 ? tail.choice.length : end;
}

/** The chain cut after n tokens, as a run with that token limit would have recorded it. */
export function cutChain(chain, n) {
  if (n >= chain.target.length) return chain;
  const along = { ...chain.along, choice: chain.along.choice.slice(0, n) };
  const tails = {};
  for (const [at, tail] of Object.entries(chain.tails)) if (Number(at) < n) tails[at] = tail;
  return { ...chain, target: chain.target.slice(0, n), along, tails, starts: (chain.starts || []).slice(0, n) };
}

// ---------------------------------------------------------------- replaying

/** The iterations [start, SL, accepted] in which a policy decodes the text by the costs that it weighs, and what they cost. */
export function simulate(replay, costs, policy, ending = {}, weighed = costs) {
  const { draft } = replay.chain;
  let wanted = replay.n;
  if (ending.finish === "eos" || ending.finish === "stop") wanted = Math.max(wanted, ending.maxNewTokens || 0);
  policy.reset({ draft, costs: weighed, wanted, holds: (start) => replay.holds[start], nTokens: replay.n });
  const iterations = [], known = new Map();
  let cost = 0;
  for (let start = 0; start < replay.n;) {
    const most = Math.min(wanted - start - 1, replay.reach[start], policy.cap ?? Infinity);
    const planned = policy.planned(start);
    const n = planned == null ? draftStepwise(replay, policy, start, most) : Math.max(0, Math.min(planned, most));
    const accepted = Math.min(n, replay.holds[start]);
    policy.observe(n, accepted);
    iterations.push([start, n, accepted]);
    if (!known.has(n)) known.set(n, iterationCost(costs, n, draft, policy.name));
    cost += known.get(n);
    start += accepted + 1;
  }
  const plain = replay.n * plainCost(costs);
  return { iterations, nTokens: replay.n, cost, speedup: cost ? plain / cost : 1 };
}

/** Ask the policy guess by guess, as the loop does; returns the SL. */
function draftStepwise(replay, policy, start, most) {
  const state = { start, guesses: [] };
  while (state.guesses.length < most && policy.wantsMore(state)) {
    state.guesses.push(replay.guess(start, state.guesses.length));
  }
  return state.guesses.length;
}

/** The SL at every position that makes the rest of the text cheapest, and that cost (dynamic programming). */
export function bestSplit(holds, nTokens, cost, wanted = nTokens) {
  const limit = Math.max(wanted, nTokens);
  const rest = new Array(nTokens + 2).fill(0), plan = new Array(nTokens).fill(0), costs = [];
  for (let start = nTokens - 1; start >= 0; start--) {
    const most = Math.max(0, Math.min(holds(start), limit - start - 1));
    let best = Infinity;
    for (let n = 0; n <= most; n++) {
      costs[n] ??= cost(n);
      const total = costs[n] + rest[start + n + 1];
      if (total < best) { best = total; plan[start] = n; }
    }
    rest[start] = best;
  }
  return { plan, rest };
}

// ---------------------------------------------------------------- closed forms
// For guesses that each hold with the same probability alpha: ports of decoding/lookahead/static.py.

/** Tokens per iteration, (1 - alpha^(n+1)) / (1 - alpha) (Leviathan et al. 2023, eq. 1). */
export function expectedTokens(alpha, n) {
  return alpha === 1 ? n + 1 : (1 - alpha ** (n + 1)) / (1 - alpha);
}

/** Speedup E (v(1) + o) / (first + n c + v(n+1) + o) under these costs. */
export function modelSpeedup(alpha, n, costs, draft) {
  return expectedTokens(alpha, n) * plainCost(costs) / iterationCost(costs, n, draft);
}

/** The c at which the speedup falls to 1, found by bisection; null if it is still above 1 at 20. */
export function breakEven(speedupAt) {
  let low = 0, high = 20;
  if (speedupAt(low) <= 1) return low;
  if (speedupAt(high) > 1) return null;
  for (let round = 0; round < 60; round++) {
    const middle = 0.5 * (low + high);
    if (speedupAt(middle) > 1) low = middle; else high = middle;
  }
  return 0.5 * (low + high);
}
