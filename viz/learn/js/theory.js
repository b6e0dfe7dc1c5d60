/* Closed forms for guesses that each hold with the same probability alpha: ports of decoding/analysis/theory.py. */

import { iterationCost, plainCost } from "../../core/js/replay.js";

/** Tokens per iteration, (1 - alpha^(n+1)) / (1 - alpha) (Leviathan et al. 2023, eq. 1). */
export function expectedTokens(alpha, n) {
  return alpha === 1 ? n + 1 : (1 - alpha ** (n + 1)) / (1 - alpha);
}

/** Speedup E (v(1) + o) / (first + n c + v(n+1) + o) under these costs. */
export function modelSpeedup(alpha, n, costs, draft) {
  return expectedTokens(alpha, n) * plainCost(costs) / iterationCost(costs, n, draft);
}

/** The c at which the speedup falls to 1, found by bisection; null if it is still above 1 at `high`. */
export function breakEven(speedupAt, low = 0, high = 20) {
  if (speedupAt(low) <= 1) return low;
  if (speedupAt(high) > 1) return null;
  for (let round = 0; round < 60; round++) {
    const middle = 0.5 * (low + high);
    if (speedupAt(middle) > 1) low = middle; else high = middle;
  }
  return 0.5 * (low + high);
}
