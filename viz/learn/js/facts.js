/* Facts of the run on screen, {name: value}: for {name} in the texts of lessons and for the conditions of their answers.
 *
 * Values come from the run's record, from the replay of its chain, or from its cost curves. A fact that this run does not
 * have is null, and a text that uses it says so.
 */

import { fixed, nearest, small, times, visible } from "../../core/js/format.js";
import { breakEven, checkCost, guessCost, withCosts } from "../../core/js/replay.js";

const whole = (x) => String(nearest(x)), share = (x) => `${nearest(x)}%`;

/** What each fact is, and how a number is written: with two digits where nothing is said. */
export const FACTS = {
  tokens: ["tokens of the text", whole], plain_passes: ["passes of plain decoding", whole], rule: ["acceptance rule"], draft: ["name of the draft"],
  fast_name: ["fastest lane (the oracle excluded)"], fast_speedup: ["its speedup", times], fast_passes: ["its passes of the target", whole],
  slow_name: ["slowest lane"], slow_speedup: ["its speedup", times], oracle_speedup: ["speedup of the oracle", times],
  c: ["cost of a guess, or of all guesses of an iteration where they are made at once", small], check2: ["cost of checking 2 tokens"], check6: ["cost of checking 6 tokens"], check9: ["cost of checking 9 tokens"],
  match: ["match rate: share of positions at which the draft's guess is the target's token, percent", share],
  best_sl: ["best static SL, simulated", whole], best_speedup: ["its speedup", times],
  one_speedup: ["speedup of SL 1, simulated", times], long_speedup: ["speedup of SL 20, simulated", times],
  break_even: ["cost of a guess above which no static SL gains", small],
  wrong_speedup: ["speedup of SL 5 with every guess wrong", times], wrong_passes: ["its passes of the target", whole],
  sl: ["SL of the iteration on screen", whole], held: ["its guesses that held", whole], gives: ["tokens that it gives", whole],
  thrown: ["guesses that it threw away", whole], cost: ["its cost in passes"], guess: ["mean cost of its guesses"], guesses: ["cost of all of them"], check: ["cost of its check"],
  first_guess: ["its first guess"], other_guess: ["first guess of the run's other draft at its place"],
  fast_acceptance: ["acceptance rate of the fastest lane, percent", share],
  slow_acceptance: ["that of the slowest lane, if it has the same draft, percent", share],
  p_first: ["p of the first guess that was not certain to be kept, of the iteration on screen if it has one", small],
  q_first: ["q of the same guess", small], keep_first: ["probability that it is kept", small], temperature: ["temperature"],
  draft2: ["name of the other draft"], match_draft2: ["its match rate, percent", share], c_draft2: ["its cost of a guess", small],
  best_speedup_draft2: ["its best static speedup", times],
  picture_tokens: ["tokens of the picture", whole], by_picture: ["tokens of the text that the picture decides", whole],
  rejected: ["rejected guesses of the fastest lane", whole], rejected_by_picture: ["those at words that the picture decides", whole],
  rejected_share: ["their share, percent", share],
  tree_name: ["fastest lane whose guesses branch"], tree_speedup: ["its speedup", times],
  tree_passes: ["its passes of the target", whole], tree_draft_passes: ["its passes of the draft", whole],
  chain_name: ["fastest lane with chains of guesses (the oracle excluded)"], chain_speedup: ["its speedup", times],
  chain_passes: ["its passes of the target", whole], chain_draft_passes: ["its passes of the draft", whole],
};

/** The acceptance rule of a run in words. */
export const ruleOf = ({ rule }) => (rule === "sampling" ? "speculative sampling" : rule);

export function factsOf(model) {
  const facts = Object.fromEntries(Object.keys(FACTS).map((name) => [name, null]));
  if (!model) return facts;
  const draft = model.draft, replay = model.replay();
  Object.assign(facts, { tokens: model.nTokens, plain_passes: model.nTokens, rule: ruleOf(model), draft, temperature: model.temperature,
    c: draft ? guessCost(model.costs, draft) : null, check2: checkCost(model.costs, 2), check6: checkCost(model.costs, 6), check9: checkCost(model.costs, 9) });
  laneFacts(model, facts);
  if (replay) chainFacts(model, facts, draft);
  Object.assign(facts, model.lanes.flatMap((lane) => lane.iterations).map(keptByChance).find(Boolean));
  if (model.counts) pictureFacts(model.counts, model.picture.tokens, facts);
  return facts;
}

function laneFacts(model, facts) {
  const timed = model.lanes.filter((lane) => lane.speedup && lane.policy !== "autoregressive");
  const usable = timed.filter((lane) => lane.policy !== "oracle").sort((a, b) => b.speedup.median - a.speedup.median);
  const oracle = timed.find((lane) => lane.policy === "oracle"), fast = usable[0], slow = usable[usable.length - 1];
  if (fast) Object.assign(facts, { fast_name: fast.name, fast_speedup: fast.speedup.median, fast_passes: fast.iterations.length });
  if (slow) Object.assign(facts, { slow_name: slow.name, slow_speedup: slow.speedup.median });
  if (slow !== fast && slow.draft === fast.draft) Object.assign(facts, { fast_acceptance: 100 * fast.acceptance, slow_acceptance: 100 * slow.acceptance });
  for (const [kind, lane] of [["tree", usable.find(branches)], ["chain", usable.find((one) => !branches(one))]]) {
    if (!lane) continue;
    const { passes, steps } = lane.counts();
    Object.assign(facts, { [`${kind}_name`]: lane.name, [`${kind}_speedup`]: lane.speedup.median, [`${kind}_passes`]: passes, [`${kind}_draft_passes`]: steps });
  }
  if (oracle) facts.oracle_speedup = oracle.speedup.median;
}

const branches = (lane) => lane.iterations.some((it) => it.parents);

function chainFacts(model, facts, draft) {
  const sweep = model.sweep(), best = model.bestStatic();
  const wrong = model.alwaysWrong(5);
  const atCost = (c) => Math.max(...model.sweep(withCosts(model.costs, draft, { c })).map((one) => one.speedup));
  Object.assign(facts, { match: 100 * model.matchRate(), best_sl: best.sl, best_speedup: best.speedup, one_speedup: sweep[0].speedup,
    long_speedup: sweep[sweep.length - 1].speedup, break_even: breakEven(atCost),
    wrong_speedup: wrong.speedup.median, wrong_passes: wrong.iterations.length });
  const other = model.otherDraft();
  if (other) {
    Object.assign(facts, { draft2: other, match_draft2: 100 * model.matchRate(other), c_draft2: guessCost(model.costs, other),
      best_speedup_draft2: model.bestStatic(model.costs, other).speedup });
  }
}

function pictureFacts({ by_picture, rejected, rejected_by_picture }, picture_tokens, facts) {
  Object.assign(facts, { picture_tokens, by_picture, rejected, rejected_by_picture,
    rejected_share: rejected ? 100 * rejected_by_picture / rejected : null });
}

/** p, q and min(1, p/q) of the first guess of an iteration that is not sure to be kept; null where there is none. */
function keptByChance(it) {
  const guess = it.guesses[chanceAt(it)];
  return guess ? { p_first: guess.p_target, q_first: guess.p_draft, keep_first: guess.accept_probability } : null;
}

/** The index of that guess; -1 if there is none. */
export const chanceAt = (it) => it.guesses.findIndex((one) => one.accept_probability != null && one.accept_probability < 1);

/** The facts of the iteration on screen. */
export function iterationFacts(model, lane, i) {
  const it = lane && lane.iterations[i];
  if (!it) return {};
  const other = model.chains[model.otherDraft(lane.draft)];
  return { first_guess: it.drafted ? visible(it.guesses[0].text) : null, other_guess: visible(model.word(other?.along.choice[it.start]) ?? "") || null, sl: it.drafted, held: it.accepted, gives: it.gives, thrown: it.drafted - it.accepted, cost: it.cost.total, guess: it.drafted ? it.cost.guessing / it.drafted : null, guesses: it.cost.guessing, check: it.cost.check, ...keptByChance(it) };
}

function factText(name, value) {
  const [, shown = fixed] = FACTS[name];
  return value == null ? "(not recorded in this run)" : typeof value === "string" ? value : shown(value);
}

/** A lesson's text with the values of its {facts}. */
export function fill(text, facts) {
  return text.replace(/\{([a-z_0-9]+)\}/g, (whole, name) => (name in FACTS ? factText(name, facts[name]) : whole));
}

const CONDITION = /^([a-z_0-9]+) (<|<=|>|>=|==) ([a-z_0-9]+|-?\d+(?:\.\d+)?)$/;

/** Whether an answer is right for these facts: as written, or by a comparison; null if a fact is missing. */
export function isRight(right, facts) {
  if (typeof right === "boolean") return right;
  const [, left, sign, other] = CONDITION.exec(right) || [];
  const a = facts[left], b = other in FACTS ? facts[other] : Number(other);
  if (a == null || b == null) return null;
  return { "<": a < b, "<=": a <= b, ">": a > b, ">=": a >= b, "==": a === b }[sign];
}
