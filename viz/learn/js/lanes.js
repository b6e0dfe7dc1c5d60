/* Lanes as the Learn tab shows them: iterations with every guess, its fate, the reason for it, and its cost.
 *
 * A lane is either measured (from the run's record) or simulated (from the chain); both have the same form:
 *   {lane, name, draft, policy, simulated, iterations: [{start, guesses, own, accepted, n, gives, cost}]}
 * guesses: {text, fate, p, entropy, other, ...}; `other` is the target's choice at that place, if known.
 */

/** One display string per token; a character split over several tokens is shown at the token that completes it. */
function pieces(ids, vocab) {
  let decoder = new TextDecoder("utf-8");
  const shown = ids.map((id) => {
    const [text, hex] = vocab[id] || ["\ufffd", null];
    if (hex != null) return decoder.decode(bytesOf(hex), { stream: true });
    const open = decoder.decode();
    decoder = new TextDecoder("utf-8");
    return open + text;
  });
  if (shown.length) shown[shown.length - 1] += decoder.decode();
  return shown;
}

function bytesOf(hex) {
  const pairs = hex.match(/[0-9a-f]{2}/gi) || [];
  return pairs.length * 2 === hex.length ? new Uint8Array(pairs.map((pair) => parseInt(pair, 16))) : new Uint8Array([255]);
}

/** Display strings of ids after a context whose last tokens may end within a character. */
function piecesAfter(context, ids, vocab) {
  const near = context.slice(-3);
  return pieces([...near, ...ids], vocab).slice(near.length);
}

const visible = (text) => (text === "" ? "∅" : text.replace(/\n/g, "↵").replace(/\t/g, "⇥").replace(/ /g, "·"));
const quoted = (text) => `“${visible(text)}”`;

class RunModel {
  /** payload: the result of learn_payload (viz/learn/payload.py). */
  constructor(payload) {
    Object.assign(this, payload);
    this.replays = new Map();
    this.measured = this.lanes.map((lane, index) => this.measuredLane(lane, index));
    this.plain = this.measured.find((lane) => lane.policy === "autoregressive") || null;
    const target = this.firstChain?.target || (this.plain || this.measured[0] || { output: [] }).output;
    this.text = { ids: target, shown: pieces(target, this.vocab) };
  }

  get firstChain() { return Object.values(this.chains)[0] || null; }

  /** The draft of simulated lanes: that of the first static lane, else the default draft, else any. */
  get draft() {
    const wanted = [...this.lanes.filter((lane) => lane.policy === "static").map((lane) => lane.draft), this.default_draft];
    return wanted.find((draft) => this.chains[draft]) || Object.keys(this.chains)[0] || null;
  }

  replay(draft = this.draft) {
    if (!this.chains[draft] || !this.chains[draft].target.length) return null;
    if (!this.replays.has(draft)) this.replays.set(draft, new Replay(this.chains[draft]));
    return this.replays.get(draft);
  }

  get ending() { return { finish: this.finish, maxNewTokens: this.token_limit }; }

  /** Seconds per unit of cost, such that simulated plain decoding takes as long as the measured one. */
  get unit() {
    const lane = this.lanes.find((one) => one.policy === "autoregressive");
    const measured = lane ? lane.times.flat().reduce((sum, s) => sum + s, 0) : 0;
    return (lane && measured / (lane.output.length * iterationCost(this.costs, 0, null))) || this.costs.target_s;
  }

  // -------------------------------------------------------------- measured lanes

  measuredLane(lane, index) {
    const shown = pieces(lane.output, this.vocab);
    return { ...lane, index, simulated: false, iterations: lane.iterations.map((it, i) => this.measuredIteration(lane, it, i, shown)) };
  }

  measuredIteration(lane, it, i, shown) {
    const accepted = it.drafted.filter((token) => token.fate === "accepted").length, end = it.start + accepted;
    const wrong = piecesAfter(lane.output.slice(0, end), it.drafted.slice(accepted).map((token) => token.id), this.vocab);
    const guesses = it.drafted.map((token, k) => ({
      ...token, text: k < accepted ? shown[it.start + k] : wrong[k - accepted],
      p: token.p_draft, own: this.word(token.draft_choice), other: this.word(token.target_choice),
      tops: [this.alternatives(token.draft_top), this.alternatives(token.target_top)],
    }));
    const own = it.emitted ? { ...it.emitted, text: shown[end], tops: [[], this.alternatives(it.emitted.target_top)] } : null;
    const seconds = lane.times[i] || null;
    return { start: it.start, stop: it.stop, score: it.score, guesses, own, accepted, n: guesses.length, seconds,
      gives: accepted + (own ? 1 : 0), cost: this.costOf(lane.draft, lane.policy, guesses.length, accepted + (own ? 1 : 0)) };
  }

  word(id) { return id == null ? null : pieces([id], this.vocab)[0]; }
  alternatives(top) { return (top || []).slice(0, 5).map(([id, p]) => [this.word(id), p]); }

  /** Cost of an iteration by the measured curves, in target passes, and that of plain decoding for the same tokens. */
  costOf(draft, policy, n, gives, costs = this.costs) {
    const check = checkCost(costs, n + 1), total = iterationCost(costs, n, draft, policy), plain = gives * iterationCost(costs, 0, null);
    return { guessing: total - check - costs.o, check, rest: costs.o, total, plain, gained: plain - total };
  }

  // -------------------------------------------------------------- simulated lanes

  /** What a policy would have done on this text; null if the run has no chain for its draft. */
  simulated(name, policy, { draft = this.draft, costs = this.costs, replay = this.replay(draft) } = {}) {
    if (!replay || !policy) return null;
    const done = simulate(replay, costs, policy, this.ending);
    return this.fromIterations(name, policy.name, done.iterations, { draft, costs, replay, speedup: done.speedup });
  }

  fromIterations(name, policy, iterations, { draft = this.draft, costs = this.costs, replay = this.replay(draft), speedup } = {}) {
    return { lane: null, name, policy, draft, simulated: true, index: -1, speedup: { shown: speedup },
      output: replay.chain.target, iterations: iterations.map((one) => this.simulatedIteration(replay, policy, one, costs)) };
  }

  simulatedIteration(replay, policy, [start, n, accepted], costs) {
    const { target, draft } = replay.chain, shown = this.shownOf(replay);
    const raw = Array.from({ length: n }, (_, k) => replay.guess(start, k));
    const wrong = piecesAfter(target.slice(0, start + accepted), raw.slice(accepted).map((guess) => guess.id), this.vocab);
    const guesses = raw.map((guess, k) => ({
      p: guess.p, entropy: guess.entropy, score: null, id: guess.id, tops: [[], []],
      text: k < accepted ? shown[start + k] : wrong[k - accepted],
      own: this.word(guess.id), other: k <= accepted && start + k < target.length ? this.word(target[start + k]) : null,
      fate: k < accepted ? "accepted" : start + accepted >= target.length ? "dropped" : k === accepted ? "rejected" : "dropped",
    }));
    const at = start + accepted, own = at < target.length
      ? { text: shown[at], fate: n === 0 ? "plain" : accepted === n ? "bonus" : "correction", tops: [[], []] } : null;
    const gives = accepted + (own ? 1 : 0);
    return { start, stop: null, score: null, guesses, own, accepted, n, gives, seconds: null, cost: this.costOf(draft, policy, n, gives, costs) };
  }

  shownOf(replay) {
    replay.shown ??= pieces(replay.chain.target, this.vocab);
    return replay.shown;
  }

  /** The same text and costs with an invented draft that is wrong at every place; its name says so. */
  alwaysWrong(sl) {
    const replay = this.replay();
    if (!replay) return null;
    const { target, along, draft } = replay.chain, ids = Object.keys(this.vocab).map(Number);
    const other = (at, k) => {
      const id = target[(at * 7 + k * 3 + 1) % target.length];
      return id !== target[at + k] ? id : ids.find((one) => one !== id && one !== target[at + k]) ?? id;
    };
    const low = (k) => ({ p: 0.05, entropy: 3, k });
    const chain = { draft, target, along: { choice: target.map((_, at) => other(at, 0)), p: target.map(() => low(0).p),
      entropy: target.map(() => low(0).entropy), scores: {} }, tails: {} };
    target.forEach((_, at) => {
      chain.tails[at] = { choice: Array.from({ length: SL_CAP }, (_, k) => other(at, k + 1)), p: new Array(SL_CAP).fill(0.05),
        entropy: new Array(SL_CAP).fill(3), scores: {} };
    });
    if (along.choice.length !== target.length) return null;
    return this.simulated(`Static ${sl}, every guess wrong`, makePolicy(parseLane(`static:${sl}`)), { draft, replay: new Replay(chain) });
  }

  /** A lane's display name. */
  nameOf(text) {
    const { policy, argument, draft } = parseLane(text);
    return `${this.titles[policy] || policy}${argument ? ` ${argument}` : ""}${draft ? ` · ${draft}` : ""}`;
  }

  /** A lane by its text, simulated; null where the run has no chain for it, or its policy is not written for the browser. */
  simulatedLane(text) {
    const lane = parseLane(text), draft = lane && (lane.draft || this.draft);
    return lane && this.simulated(this.nameOf(text), makePolicy(lane, this.tuned[draft]), { draft });
  }

  /** Static SLs from 1 on, simulated, also under other costs: [{sl, speedup}]. */
  sweep(costs = this.costs, draft = this.draft, longest = SL_CAP) {
    const replay = this.replay(draft);
    if (!replay) return [];
    return Array.from({ length: longest }, (_, i) => ({ sl: i + 1, speedup: simulate(replay, costs, new Static(i + 1), this.ending).speedup }));
  }

  bestStatic(costs = this.costs, draft = this.draft) {
    return this.sweep(costs, draft).reduce((best, one) => (!best || one.speedup > best.speedup ? one : best), null);
  }

  /** Share of the positions of the text at which the draft's guess is the target's token. */
  matchRate(draft = this.draft) {
    const chain = this.chains[draft];
    if (!chain || !chain.target.length) return null;
    return chain.target.filter((token, at) => chain.along.choice[at] === token).length / chain.target.length;
  }
}

const KINDS = {
  rejection: { label: "a rejection", title: "the next iteration in which a guess failed", fits: (it) => it.n > it.accepted && it.own,
    clear: (it) => it.accepted > 0 && it.n - it.accepted > 1 },
  burst: { label: "a burst", title: "the next iteration in which four or more guesses held", fits: (it) => it.accepted >= 4 },
  full: { label: "all held", title: "the next iteration in which all of two or more guesses held", fits: (it) => it.n > 1 && it.accepted === it.n && it.own },
  short: { label: "a stop too early", title: "the next iteration that checked although more guesses would have held",
    fits: (it, holds) => it.n > 0 && it.accepted === it.n && holds(it.start) > it.n },
  wasted: { label: "a waste", title: "the next iteration in which three or more guesses were thrown away", fits: (it) => it.n - it.accepted >= 3,
    clear: (it) => it.cost.gained < 0 },
};

/** The iteration that shows the kind best: the first clear one, else the first one; -1 if there is none. */
function exampleOf(model, lane, kind) {
  const { fits, clear } = KINDS[kind], found = clear ? lane.iterations.findIndex((it) => fits(it) && clear(it)) : -1;
  return found >= 0 ? found : findIteration(model, lane, kind);
}

/** The first iteration of that kind after `from` in this direction; -1 if there is none. */
function findIteration(model, lane, kind, from = -1, direction = 1) {
  const replay = model.replay(lane.draft || undefined), holds = (start) => (replay ? Math.min(replay.holds[start], replay.n - start - 1) : 0); // the last token is the target's own
  for (let i = from + direction; i >= 0 && i < lane.iterations.length; i += direction) {
    if (KINDS[kind].fits(lane.iterations[i], holds)) return i;
  }
  return -1;
}
