/* One sentence per step, computed from the iteration on screen. */

import { count, fixed, percent, quoted } from "../../core/js/format.js";
import { checkCost } from "../../core/js/replay.js";

const STOPPED = {
  policy: "check now", cap: "check now: this is the limit for one iteration", limit: "check now: no more tokens are wanted",
  context: "check now: the context is full", eos: "check now: the draft has ended its text",
  exhausted: "check now: the draft has nothing more to propose",
};

/** The steps of one iteration: [{kind, place, at, sentence, more}]. All guesses for one place (how many tokens are above them)
 * appear, and are judged, together; in a chain there is one. `at`: the index of the first token that the step is about, -1 for none. */
export function stepsOf(model, lane, i) {
  const it = lane.iterations[i], step = (kind, said, about) => ({ kind, place: about?.depth ?? it.deepest, at: about?.index ?? -1, ...said });
  const places = Array.from({ length: it.deepest }, (_, place) => it.guesses.filter((guess) => guess.depth === place));
  const judged = places.map((guesses) => guesses.filter((guess) => guess.outcome !== "dropped")).filter((guesses) => guesses.length);
  const steps = [
    ...places.map((guesses) => step("guess", it.parents ? treeGuess(it, guesses) : guessOf(model, lane, it, guesses[0]), guesses[0])),
    step("check", checkOf(model, it)),
    ...judged.map((guesses) => step("verdict", it.parents ? treeVerdict(it, guesses) : verdictOf(model, it, guesses[0]), guesses[0])),
  ];
  if (it.own) steps.push(step("own", ownOf(model, it), it.own));
  if (it.drafted > it.accepted) steps.push(step("rewind", it.parents ? treeRewind(it) : rewindOf(it)));
  return [...steps, step("cost", { sentence: it.sentence, more: it.costSentence })];
}

function treeGuess(it, guesses) {
  const above = new Set(guesses.map((guess) => it.parents[guess.index])).size, place = guesses[0].depth;
  const likeliest = [...guesses].sort((a, b) => (b.p ?? 0) - (a.p ?? 0)); // the file has the accepted one first
  const named = likeliest.slice(0, 3).map((guess) => quoted(guess.text) + (guess.p == null ? "" : ` (${percent(guess.p)})`)).join(", ");
  const after = place === 0 ? "the text" : above === 1 ? "one of these guesses" : `${above} of these guesses`;
  return { sentence: `Place ${place + 1}: the draft reads ${after} and proposes ${count(guesses.length, "token")}: ${named}${guesses.length > 3 ? ", …" : ""}.`,
    more: `That takes ${count(above, "draft pass", "draft passes")}, however many tokens each proposes. The percentages are the draft's probabilities, given the guesses above.` };
}

function treeVerdict(it, asked) {
  const held = asked.find((guess) => guess.outcome === "accepted"), others = asked.length - (held ? 1 : 0), place = asked[0].depth;
  const rejected = others === 0 ? "" : `${others === 1 ? " The other guess" : ` The ${others} other guesses`} for this place, and all that follow ${others === 1 ? "it" : "them"}, no longer count.`;
  if (!held) {
    const own = it.own ? `: it is ${quoted(it.own.text)}` : "";
    return { sentence: `Place ${place + 1}: ${asked.length === 1 ? "the guess is not" : `none of the ${asked.length} guesses is`} the target's token${own}. Rejected.`, more: "" };
  }
  const better = asked.filter((guess) => guess.p != null && held.p != null && guess.p > held.p).length;
  const rank = better ? `, though the draft found ${better === 1 ? "another token" : `${better} other tokens`} likelier` : "";
  return { sentence: `Place ${place + 1}: the target's token is among the guesses: ${quoted(held.text)}${rank}. Accepted.`, more: `${rejected}${better ? " A chain would have ended here." : ""}`.trim() };
}

function treeRewind(it) {
  return { sentence: `${count(it.drafted - it.accepted, "guess is", "guesses are")} thrown away; both models' caches keep only the accepted path.`,
    more: "Each guess was read after the guesses above it only, so the others have no effect on what follows." };
}

function guessOf(model, lane, it, guess) {
  const reads = draftReads(model.chains[lane.draft], guess.index), sure = guess.p == null ? "" : ` It is ${percent(guess.p)} sure.`;
  return { sentence: `Guess ${guess.index + 1}: the draft ${reads}proposes ${quoted(guess.text)}.${sure}`, more: decisionOf(lane, it, guess) };
}

/** What the draft reads; "" without a chain. One with a list for each start is of a draft that begins with the
 *  target's states; further guesses of parallel heads read neither text nor guesses, so nothing is said of them. */
function draftReads(chain, at) {
  if (!chain) return "";
  if (chain.starts?.length) return at ? "" : "reads states of the target and ";
  return at ? `reads the text and its own ${count(at, "guess", "guesses")} and ` : "reads the text so far and ";
}

/** What the policy decided after this guess. */
function decisionOf(lane, it, guess) {
  const last = guess.index === it.drafted - 1, outcome = last ? STOPPED[it.stop] || "check now" : "guess again";
  if (guess.score != null && guess.threshold != null) {
    return `${policyOf(lane)} compares its score ${fixed(guess.score, 3)} with the threshold ${fixed(guess.threshold, 3)}: ${outcome}.`;
  }
  return `${lane.policy === "you" ? "You decide" : `${policyOf(lane)} decides`}: ${outcome}.`;
}

const policyOf = ({ name, policy }) => (policy === "written" ? name : `The policy ${name}`); // "Your policy"

function checkOf(model, it) {
  const cost = fixed(checkCost(model.costs, it.drafted + 1));
  if (!it.drafted) {
    return { sentence: "Nothing was guessed: the target takes one pass for one token.", more: "That is plain decoding: every token needs a whole pass." };
  }
  const untaken = it.parents ? it.steps - new Set(it.parents).size : 0;
  return {
    sentence: `Check: the target reads ${it.drafted === 1 ? "the guess" : `all ${it.drafted} guesses`} in one pass. The pass gives the target's own choice at each place and after the last one.`,
    more: `A pass over ${count(it.drafted + 1, "token")} takes ${cost} times as long as one over a single token, measured on the machine of this run`
      + (cost < 1 + 0.5 * it.drafted ? ": most of a pass goes into reading the model's weights, which are read once for all tokens." : ".")
      + (untaken > 0 ? ` ${count(untaken, "draft pass", "draft passes")} proposed nothing that was taken.` : ""),
  };
}

function verdictOf(model, it, guess) {
  const at = guess.index, name = `Guess ${at + 1}, ${quoted(guess.text)}`, held = guess.outcome === "accepted";
  const after = held || at === it.drafted - 1 ? "" : " The guesses after it no longer count.";
  if (model.rule === "sampling" && guess.accept_probability != null) return samplingVerdict(guess, name, held);
  const noise = model.rule === "coupling" ? `, each with the same noise added (seed ${model.seed}, place ${it.start + at}),` : "";
  const choices = held ? `both models' first choice${noise} is ${quoted(guess.other ?? guess.text)}`
    : `the target's first choice${noise} is ${guess.other == null ? "another token" : quoted(guess.other)}`;
  return { sentence: `${name}: ${choices}. ${held ? "Accepted." : "Rejected."}${after}`,
    more: model.rule === "coupling" ? "The noise depends only on the seed and the place, so every lane writes the same text." : "" };
}

function samplingVerdict(guess, name, held) {
  const p = guess.p_target, q = guess.p_draft, keep = guess.accept_probability;
  const numbers = p == null || q == null ? "" : ` The target gives it p = ${fixed(p, 3)}, the draft gave it q = ${fixed(q, 3)}.`;
  const draw = guess.draw == null ? "" : ` The draw is ${fixed(guess.draw, 3)}, ${held ? "below" : "not below"} it.`;
  return { sentence: `${name}: kept with probability min(1, p/q) = ${fixed(keep, 3)}.${draw} ${held ? "Accepted." : "Rejected."}`,
    more: `${numbers} This rule keeps the target's distribution exactly.`.trim() };
}

function ownOf(model, it) {
  const token = quoted(it.own.text);
  if (it.own.outcome === "plain") return { sentence: `The target writes ${token}.`, more: "" };
  if (it.own.outcome === "bonus") {
    const held = it.parents ? "No guess followed the last one that" : it.drafted === 1 ? "The guess" : `All ${it.drafted} guesses`;
    return { sentence: `${held} held, and the same pass also gives the next token: ${token}, the bonus.`,
      more: "It costs nothing extra: the check computed it anyway." };
  }
  const rejected = it.parents ? "rejected guesses" : "rejected guess";
  return model.rule === "sampling"
    ? { sentence: `The ${rejected} ${it.parents ? "are" : "is"} replaced by a token drawn from the residual, the part of p above q: ${token}, the correction.`,
      more: "The residual is max(0, p − q), scaled to sum to 1: what the draft proposes too rarely." }
    : { sentence: `The check has also given the target's own token at the place of the ${rejected}: ${token}, the correction.`,
      more: "So even an iteration in which no guess holds gives one token, the one that plain decoding would have written." };
}

function rewindOf(it) {
  const dropped = it.guesses.filter((guess) => guess.outcome === "dropped").length;
  const end = it.start + it.accepted;
  const lost = dropped && it.guesses.some((guess) => guess.outcome === "rejected")
    ? `${dropped === 1 ? "The guess" : `The ${dropped} guesses`} after the rejected one followed a wrong token: dropped.`
    : dropped ? "The text ended before the last guesses: dropped." : "Nothing was guessed after the rejected token.";
  return { sentence: `${lost} Both models' caches are cut back to ${end ? `the first ${count(end, "token")} of the new text` : "the prompt"}.`,
    more: `The models' memory of the thrown-away tokens is discarded${it.own ? "; the next iteration continues after the correction" : ""}.` };
}
