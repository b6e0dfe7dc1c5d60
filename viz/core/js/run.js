/* A run as the page has it: the payload of viz/player/payload.py, its measured lanes, and whatever is simulated on it. */

import { percent, times } from "./format.js";
import { measuredLane, replayedLane } from "./lanes.js";
import { pieces } from "./pieces.js";
import { Static, Watched, makePolicy, parseLane } from "./policies.js";
import { Replay, SL_CAP, checkCost, iterationCost, plainCost, simulate } from "./replay.js";

/** The one of the highest speedup; of several, the first. */
export const bestOf = (some) => some.reduce((best, one) => (one.speedup > best.speedup ? one : best));

export class RunModel {
  constructor(payload) {
    Object.assign(this, payload);
    this.replays = new Map();
    this.sweeps = new Map();
    this.lanes = payload.lanes.map((data, index) => Object.assign(measuredLane(data, this.costs, this.vocab), { index }));
    for (const lane of this.lanes) if (lane.details) this.addDetails(lane);
    this.plain = this.lanes.find((lane) => lane.policy === "autoregressive") || null;
    this.nTokens = (this.chains[this.draft]?.target || (this.plain || this.lanes[0])?.output || []).length;
  }

  /** Adds to the tokens and iterations of a lane what is recorded of them besides fates and texts. */
  addDetails(lane) {
    lane.details.forEach(({ stop, tokens }, i) => {
      const it = Object.assign(lane.iterations[i], { stop });
      it.tokens.forEach((token, k) => Object.assign(token, tokens[k], { // the fate is known as a letter
        fate: token.fate, p: tokens[k].p_draft, other: this.word(tokens[k].target_choice),
        tops: [this.alternatives(tokens[k].draft_top), this.alternatives(tokens[k].target_top)],
      }));
    });
  }

  word(id) { return id == null ? null : pieces([id], this.vocab, true)[0]; }
  alternatives(top) { return (top || []).slice(0, 5).map(([id, p]) => [this.word(id), p]); }

  /** The drafts whose guesses are recorded. */
  get drafts() { return Object.keys(this.chains).filter((name) => this.chains[name].target.length && this.costs.c[name] != null); }

  /** The draft of simulated lanes: that of the first static lane, else the pair's own, else any; null if there is none. */
  get draft() {
    const wanted = [...this.lanes.filter((lane) => lane.policy === "static").map((lane) => lane.draft), this.default_draft];
    return wanted.find((draft) => this.drafts.includes(draft)) || this.drafts[0] || null;
  }

  /** Another draft than this one whose guesses are recorded; null if there is none. */
  otherDraft(draft = this.draft) { return this.drafts.find((name) => name !== draft) || null; }

  replay(draft = this.draft) {
    if (!this.drafts.includes(draft)) return null;
    if (!this.replays.has(draft)) this.replays.set(draft, new Replay(this.chains[draft]));
    return this.replays.get(draft);
  }

  get ending() { return { finish: this.finish, maxNewTokens: this.token_limit }; }

  /** Seconds per unit of cost, such that simulated plain decoding takes as long as the measured one. */
  get unit() {
    return (this.plain && this.plain.output.length && this.plain.end / (this.plain.output.length * plainCost(this.costs))) || this.costs.target_s;
  }

  // -------------------------------------------------------------- simulated lanes

  /** What a policy would have done on this text, by the curves it weighed then; null if no guesses of the draft are recorded. */
  simulated(name, policy, { draft = this.draft, costs = this.costs, replay = this.replay(draft), lane = null } = {}) {
    if (!replay || !policy) return null;
    const { iterations, speedup } = simulate(replay, costs, policy, this.ending, costs === this.costs ? this.weighed : costs);
    return this.fromIterations(name, policy.name, iterations, { costs, replay, speedup, lane });
  }

  /** The lane of iterations [start, SL, accepted]. */
  fromIterations(name, policy, iterations, { costs = this.costs, replay = this.replay(), speedup, lane = null } = {}) {
    return replayedLane({ name, policy, costs, lane, speedup: { median: speedup } }, replay, iterations, this.unit, this.vocab);
  }

  /** A lane by its text, simulated; null where no guesses for it are recorded, or its policy is not written for the browser. */
  simulatedLane(text) {
    const lane = parseLane(text), own = this.drafts.includes(this.default_draft) ? this.default_draft : this.draft;
    const draft = lane && (lane.draft || own);
    return lane && this.simulated(this.nameOf(text), makePolicy(lane, this.tuned[draft]), { draft, lane: text });
  }

  staticLane(sl, draft = this.draft) {
    return this.simulatedLane(`${draft === this.default_draft ? "" : `${draft}/`}static:${sl}`);
  }

  /** A lane's display name. */
  nameOf(text) {
    const { policy, argument, draft } = parseLane(text);
    return `${this.titles[policy] || policy}${argument ? ` ${argument}` : ""}${draft ? ` · ${draft}` : ""}`;
  }

  /** Static SLs from 1 on, simulated, also under other costs: [{sl, speedup}]. */
  sweep(costs = this.costs, draft = this.draft) {
    const replay = this.replay(draft), key = costs === this.costs ? draft : null;
    if (!replay) return [];
    if (this.sweeps.has(key)) return this.sweeps.get(key);
    const found = Array.from({ length: SL_CAP }, (_, i) => ({ sl: i + 1, speedup: simulate(replay, costs, new Static(i + 1), this.ending).speedup }));
    if (key) this.sweeps.set(key, found);
    return found;
  }

  /** What the static lanes of `draft` gained on the clock: [SL, speedup]. */
  timedStatics(draft) {
    const ran = this.lanes.filter((lane) => lane.policy === "static" && lane.draft === draft && lane.speedup);
    return ran.map((lane) => [Number(parseLane(lane.lane).argument), lane.speedup.median]);
  }

  bestStatic(costs = this.costs, draft = this.draft) { return bestOf(this.sweep(costs, draft)); }

  /** The lane replayed with a threshold that is `value` (or, where its policy computes it, `value` times its own), with
   * `scores`: [score, threshold] of each of its guesses, null where the policy was not asked. */
  atThreshold({ lane: text, draft, threshold: { fixed, longest } }, value) {
    const lane = parseLane(text), lent = Object.fromEntries(Object.keys(this.chains[draft].along.scores).map((head) => [head, { sl_max: longest }]));
    const policy = fixed ? makePolicy({ ...lane, argument: value }, lent) : makePolicy(lane, this.tuned[draft]);
    if (!policy) return null;
    const watched = new Watched(policy, fixed ? 1 : value), found = this.simulated(this.nameOf(text), watched, { draft });
    found.scores = watched.seen.map((seen, i) => Array.from({ length: found.iterations[i].drafted }, (_, k) => seen[k] || null));
    return found;
  }

  /** Share of the positions of the text at which the draft's guess is the target's token. */
  matchRate(draft = this.draft) {
    const chain = this.chains[draft];
    if (!chain || !chain.target.length) return null;
    return chain.target.filter((token, at) => chain.along.choice[at] === token).length / chain.target.length;
  }

  /** The speed of a lane of the run at other costs, with its recorded decisions, relative to plain decoding. */
  atCosts(lane, costs) {
    const spent = lane.iterations.reduce((sum, it) => sum + iterationCost(costs, it.drafted, lane.draft, lane.policy, it.steps), 0);
    return lane.output.length * plainCost(costs) / spent;
  }

  /** A sentence where the lanes of `draft`, simulated at the run's own costs, have another fastest usable one than on the clock; else "". */
  rankedOtherwise(draft = this.draft) {
    const both = this.lanes.filter((lane) => lane.draft === draft && lane.speedup && lane.policy !== "oracle");
    const best = (of) => both.reduce((a, b) => (of(b) > of(a) ? b : a), both[0]), clock = (lane) => lane.speedup.median;
    const simulated = best((lane) => this.atCosts(lane, this.costs)), timed = best(clock);
    if (simulated === timed) return "";
    return `At these costs ${simulated.name} comes first of the lanes that ran; on the clock it was ${timed.name} (${times(clock(timed))} against `
      + `${times(clock(simulated))}, ${this.timings === 1 ? "timed once" : `medians of ${this.timings} timings`}). Trust the clock.`;
  }

  /** A warning beside simulated speedups where the run's timings contradict each other; else "". */
  get warning() { return this.doubtful ? "This run's timings were unsteady, and these speedups rest on them." : ""; }

  /** Why this run gains less than `other`, in one sentence from both; "" where it does not, or nothing measured says why. */
  whySlower(other) {
    const [here, there] = [this, other].map((model) => model.lanes[model.lead]?.speedup?.median);
    if (this.doubtful || other.doubtful || !here || !there || here > 0.95 * there) return "";
    const share = (model, of) => of(model, model.draft), why = [
      ["checking six tokens takes", (model) => checkCost(model.costs, 6), times, 0.03, "as long as writing one"],
      ["a guess costs", (model, draft) => model.costs.c[draft], percent, 0.01, "of writing a token"],
      ["the draft matches", (model, draft) => -(model.matchRate(draft) ?? NaN), (x) => percent(-x), 0.03, "of the text"],
    ].map(([what, of, shown, enough, unit]) => [what, share(this, of), share(other, of), shown, enough, unit])
      .filter(([, mine, its, , enough]) => mine - its > enough)
      .map(([what, mine, its, shown, , unit]) => `${what} ${shown(mine)} ${unit}, there ${shown(its)}`);
    const [mine, its] = [this, other].map(({ badge }) => badge.place.split(" · ").slice(0, 2).join());  // machine and number format
    const timed = times(there) + (mine === its ? "" : ", on another machine or in another number format");
    return why.length ? ` The gain is smaller than in the example before it (${timed}): here ${why.join("; ")}.` : "";
  }

  /** The same text and costs with an invented draft that is wrong at every place; its name says so. */
  alwaysWrong(sl) {
    if (!this.replay()) return null;
    const { target, draft } = this.replay().chain, ids = Object.keys(this.vocab).map(Number);
    const other = (at, k) => {
      const id = target[(at * 7 + k * 3 + 1) % target.length];
      return id !== target[at + k] ? id : ids.find((one) => one !== id && one !== target[at + k]) ?? id;
    };
    const guesses = (choice) => ({ choice, p: choice.map(() => 0.05), entropy: choice.map(() => 3), scores: {} });
    const tail = (at) => guesses(Array.from({ length: SL_CAP }, (_, k) => other(at, k + 1)));
    const along = guesses(target.map((_, at) => other(at, 0))), tails = Object.fromEntries(target.map((_, at) => [at, tail(at)]));
    return this.simulated(`Static ${sl}, every guess wrong`, new Static(sl), { replay: new Replay({ draft, target, along, tails }) });
  }
}
