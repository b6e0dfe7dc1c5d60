/* One sentence per step, computed from the iteration on screen. */

import { count, fixed, percent, quoted } from "../../core/js/format.js";
import { checkCost } from "../../core/js/replay.js";

const STOPPED = {
  policy: "check now", cap: "check now: this is the limit for one iteration", limit: "check now: no more tokens are wanted",
  context: "check now: the context is full", eos: "check now: the draft has ended its text",
  exhausted: "check now: the draft has nothing more to propose",
};

/** "Iteration 2: guessed 5, 1 held, 1 rejected, 3 dropped, 1 correction: 2 tokens." */
export function iterationSentence(lane, i) {
  const it = lane.iterations[i], rejected = it.guesses.filter((guess) => guess.outcome === "rejected").length;
  const dropped = it.drafted - it.accepted - rejected;
  const parts = it.drafted ? [`guessed ${it.drafted}`, `${it.accepted} held`] : ["nothing was guessed"];
  if (rejected) parts.push(`${rejected} rejected`);
  if (dropped) parts.push(`${dropped} dropped`);
  if (it.own) parts.push(`1 ${{ plain: "token by the target alone" }[it.own.outcome] || it.own.outcome}`);
  return `Iteration ${i + 1}: ${parts.join(", ")}: ${count(it.gives, "token")}.`;
}

/** The iteration's cost, compared with plain decoding of the same tokens. */
export function costSentence({ cost, drafted: n, gives }) {
  const guessing = n ? `${count(n, "guess", "guesses")} ${fixed(cost.guessing)} + ` : "";
  const sum = `${guessing}one check ${fixed(cost.check)} + the rest ${fixed(cost.rest)} = ${fixed(cost.total)} passes of the target`;
  const verdict = Math.abs(cost.gained) < 0.005 ? "no difference"
    : cost.gained > 0 ? `${fixed(cost.gained)} saved` : `${fixed(-cost.gained)} lost`;
  return `Cost: ${sum}. Plain decoding would have taken ${fixed(cost.plain)} for ${count(gives, "token")}: ${verdict}.`;
}

/** The steps of one iteration: [{kind, at, sentence, more}]; `at` is the index of the step's guess. */
export function stepsOf(model, lane, i) {
  const it = lane.iterations[i], steps = it.guesses.map((guess, at) => guessStep(lane, it, guess, at));
  steps.push(checkStep(model, it, lane));
  it.guesses.forEach((guess, at) => {
    if (guess.outcome === "accepted" || guess.outcome === "rejected") steps.push({ kind: "verdict", at, ...verdictOf(model, it, guess, at) });
  });
  if (it.own) steps.push({ kind: "own", at: it.accepted, ...ownStep(model, it) });
  if (it.drafted > it.accepted) steps.push({ kind: "rewind", at: it.accepted, ...rewindStep(it) });
  steps.push({ kind: "cost", at: -1, sentence: iterationSentence(lane, i), more: costSentence(it) });
  return steps;
}

function guessStep(lane, it, guess, at) {
  const reads = at ? `reads the text and its own ${count(at, "guess", "guesses")}` : "reads the text so far";
  const sure = guess.p == null ? "" : ` It is ${percent(guess.p)} sure.`;
  return { kind: "guess", at, sentence: `Guess ${at + 1}: the draft ${reads} and proposes ${quoted(guess.text)}.${sure}`,
    more: decisionOf(lane, it, guess, at) };
}

/** What the policy decided after this guess. */
function decisionOf(lane, it, guess, at) {
  const last = at === it.drafted - 1, outcome = last ? STOPPED[it.stop] || "check now" : "guess on";
  if (guess.score != null && guess.threshold != null) {
    return `The policy ${lane.name} compares its score ${fixed(guess.score, 3)} with the threshold ${fixed(guess.threshold, 3)}: ${outcome}.`;
  }
  return `${lane.policy === "you" ? "You decide" : `The policy ${lane.name} decides`}: ${outcome}.`;
}

function checkStep(model, it, lane) {
  const cost = fixed(checkCost(model.costs, it.drafted + 1));
  if (!it.drafted) {
    return { kind: "check", at: -1, sentence: "Nothing was guessed: the target takes one pass for one token.",
      more: "That is plain decoding: every token needs a whole pass." };
  }
  return {
    kind: "check", at: -1,
    sentence: `Check: the target reads ${it.drafted === 1 ? "the guess" : `all ${it.drafted} guesses`} in one pass, which gives its own choice at each place, and after the last.`,
    more: `A pass over ${count(it.drafted + 1, "token")} takes ${cost} times as long as one over a single token, measured on the machine of this run`
      + (cost < 1 + 0.5 * it.drafted ? ": most of a pass goes into reading the model's weights, which are read once for all tokens." : "."),
  };
}

function verdictOf(model, it, guess, at) {
  const name = `Guess ${at + 1}, ${quoted(guess.text)}`, held = guess.outcome === "accepted";
  const first = at === 0 || held ? "" : " The guesses after it no longer count.";
  if (model.rule === "sampling" && guess.accept_probability != null) return samplingVerdict(guess, name, held);
  const noise = model.rule === "coupling" ? `, each with the same noise added (seed ${model.seed}, place ${it.start + at}),` : "";
  const choices = held ? `both models' first choice${noise} is ${quoted(guess.other ?? guess.text)}`
    : `the target's first choice${noise} is ${guess.other == null ? "another token" : quoted(guess.other)}`;
  return { sentence: `${name}: ${choices}. ${held ? "Accepted." : "Rejected."}${first}`,
    more: model.rule === "coupling" ? "The noise depends only on the seed and the place, so every lane writes the same text." : "" };
}

function samplingVerdict(guess, name, held) {
  const p = guess.p_target, q = guess.p_draft, keep = guess.accept_probability;
  const numbers = p == null || q == null ? "" : ` The target gives it p = ${fixed(p, 3)}, the draft gave it q = ${fixed(q, 3)}.`;
  const draw = guess.draw == null ? "" : ` The draw is ${fixed(guess.draw, 3)}, ${held ? "below" : "not below"} it.`;
  return { sentence: `${name}: kept with probability min(1, p/q) = ${fixed(keep, 3)}.${draw} ${held ? "Accepted." : "Rejected."}`,
    more: `${numbers} This rule keeps the target's distribution exactly.`.trim() };
}

function ownStep(model, it) {
  const token = quoted(it.own.text);
  if (it.own.outcome === "plain") return { sentence: `The target writes ${token}.`, more: "" };
  if (it.own.outcome === "bonus") {
    return { sentence: `${it.drafted === 1 ? "The guess" : `All ${it.drafted} guesses`} held, and the same pass also gives the next token: ${token}, the bonus.`,
      more: "It costs nothing extra: the check computed it anyway." };
  }
  return model.rule === "sampling"
    ? { sentence: `The rejected guess is replaced by a token drawn from the residual, the part of p above q: ${token}, the correction.`,
      more: "The residual is max(0, p − q), scaled to sum to 1: what the draft proposes too rarely." }
    : { sentence: `The check has also given the target's own token at the place of the rejected guess: ${token}, the correction.`,
      more: "So even an iteration in which no guess holds gives one token, the one that plain decoding would have written." };
}

function rewindStep(it) {
  const dropped = it.guesses.filter((guess) => guess.outcome === "dropped").length;
  const end = it.start + it.accepted;
  const lost = dropped && it.guesses.some((guess) => guess.outcome === "rejected")
    ? `${dropped === 1 ? "The guess" : `The ${dropped} guesses`} after the rejected one followed a wrong token: dropped.`
    : dropped ? "The text ended before the last guesses: dropped." : "Nothing was guessed after the rejected token.";
  return { sentence: `${lost} Both models' caches are cut back to ${end ? `the first ${count(end, "token")} of the new text` : "the prompt"}.`,
    more: "The models' memory of the thrown-away tokens is discarded; the next iteration continues after the correction." };
}
