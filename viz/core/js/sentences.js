/* What an iteration came to, in a sentence each: its guesses, and its cost. */

import { count, fixed } from "./format.js";

/** "Iteration 2: guessed 5, 1 held, 1 rejected, 3 dropped, 1 correction: 2 tokens." */
export function iterationSentence(lane, i) {
  const it = lane.iterations[i], rejected = it.guesses.filter((guess) => guess.outcome === "rejected").length;
  const dropped = it.drafted - it.accepted - rejected;
  const guessed = it.parents ? `guessed ${it.drafted} as a tree of depth ${it.deepest}` : `guessed ${it.drafted}`;
  if (!it.drafted && it.own) return `Iteration ${i + 1}: nothing was guessed: 1 token by the target alone.`;
  const parts = it.drafted ? [guessed, `${it.accepted} held`] : ["nothing was guessed"];
  if (rejected) parts.push(`${rejected} rejected`);
  if (dropped) parts.push(`${dropped} dropped`);
  if (it.own) parts.push(`1 ${it.own.outcome}`);
  return `Iteration ${i + 1}: ${parts.join(", ")}: ${count(it.gives, "token")}.`;
}

/** The iteration's cost, compared with plain decoding of the same tokens. */
export function costSentence({ cost, drafted: n, steps, parents, gives }) {
  const what = parents ? count(steps, "draft pass", "draft passes") : count(n, "guess", "guesses");
  const guessing = n ? `${what} ${fixed(cost.guessing)} + ` : "";
  const sum = `${guessing}one check ${fixed(cost.check)} + the rest ${fixed(cost.rest)} = ${fixed(cost.total)} passes of the target`;
  const verdict = Math.abs(cost.gained) < 0.005 ? "no difference"
    : cost.gained > 0 ? `${fixed(cost.gained)} saved` : `${fixed(-cost.gained)} lost`;
  return `Cost: ${sum}. Plain decoding would have taken ${fixed(cost.plain)} for ${count(gives, "token")}: ${verdict}.`;
}
