// Lanes with their times: measured lanes from the payload, simulated lanes from a what-if.

/** Last index whose key is <= x in an ascending list; -1 if none. */
function lastAtMost(list, x, key) {
  let low = 0, high = list.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (key(list[middle]) <= x) low = middle + 1; else high = middle;
  }
  return low - 1;
}

/** A lane: iterations {start, fates, texts, t0, draftEnd, checkEnd, end, kept} in seconds on the decode clock. */
class Lane {
  constructor(about) {
    Object.assign(this, { name: "", caption: "", figures: [], simulated: false }, about);
    this.iterations = [];
    this.end = 0;
    this.tokens = []; // {text, fate, iteration, index, position, node}
    this.keptAt = []; // output position -> index into tokens
  }

  add(fates, texts, start, draft, check, policy, rest) {
    const t0 = this.end;
    const emitted = "cbp".includes(fates[fates.length - 1] || "-") ? 1 : 0;
    const drafted = fates.length - emitted;
    const draftEnd = t0 + draft + policy;
    const iteration = {
      start, fates, drafted, emitted, texts, t0, draftEnd,
      draftShare: draft + policy > 0 ? draft / (draft + policy) : 1,
      checkEnd: draftEnd + check,
      end: draftEnd + check + rest,
      accepted: fates.split("a").length - 1,
      first: this.tokens.length, // of its tokens
      nodes: null,
    };
    texts.forEach((text, index) => {
      const fate = fates[index];
      const position = fate === "c" || fate === "b" || fate === "p" ? start + iteration.accepted : start + index;
      if (fate !== "r" && fate !== "d") this.keptAt[position] = this.tokens.length;
      this.tokens.push({ text, fate, iteration: this.iterations.length, index, position, node: null });
    });
    this.iterations.push(iteration);
    this.end = iteration.end;
    return iteration;
  }

  /** The iteration at time t (the last one that has begun). */
  at(t) {
    return lastAtMost(this.iterations, t, (it) => it.t0);
  }

  /** Number of iterations checked by time t. */
  doneAt(t) {
    const at = this.at(t);
    return at >= 0 && this.iterations[at].checkEnd <= t ? at + 1 : Math.max(at, 0);
  }

  /** The lane's counts up to time t. */
  counts(upTo) {
    if (!this.sums) {
      let drafted = 0, accepted = 0, hits = 0, tries = 0, kept = 0;
      this.sums = this.iterations.map((it) => {
        drafted += it.drafted; accepted += it.accepted; kept += it.accepted + it.emitted;
        if (it.drafted) { tries += 1; if (it.fates[0] === "a") hits += 1; }
        return { drafted, accepted, hits, tries, kept };
      });
    }
    const sums = upTo > 0 ? this.sums[upTo - 1] : { drafted: 0, accepted: 0, hits: 0, tries: 0, kept: 0 };
    return { passes: upTo, thrown: sums.drafted - sums.accepted, ...sums };
  }
}

function laneFromPayload(data, strings) {
  const lane = new Lane(data);
  data.fates.forEach((fates, i) => {
    const [draft, check, policy, rest] = data.times.slice(4 * i, 4 * i + 4).map((x) => x * TICK);
    lane.add(fates, data.texts[i].map((k) => strings[k]), data.starts[i], draft, check, policy, rest);
  });
  const last = lane.tokens[lane.keptAt[lane.keptAt.length - 1]];
  if (data.ends && last) last.ends = true; // a token without a text
  return lane;
}

/** A what-if result as a lane: texts from the target's text and the draft's recorded wrong guesses. */
function laneFromSimulation(source, option, strings) {
  const { costs, target, tails } = source;
  const lane = new Lane({ name: option.name, simulated: true, speedup: option.speedup, lane: option.lane });
  const v = (n) => costs.v[n - 1] ?? costs.v[costs.v.length - 1]
    + (n - costs.v.length) * (costs.v[costs.v.length - 1] - costs.v[0]) / Math.max(1, costs.v.length - 1);
  let start = 0;
  option.sl.forEach((sl, i) => {
    const accepted = option.accepted[i];
    const texts = target.slice(start, start + accepted);
    const wrong = tails[start + accepted] || [];
    for (let j = 0; j < sl - accepted; j++) texts.push(wrong[j] ?? 0);
    let fates = "a".repeat(accepted) + (sl > accepted ? "r" + "d".repeat(sl - accepted - 1) : "");
    if (start + accepted < target.length) {
      texts.push(target[start + accepted]);
      fates += sl === 0 ? "p" : sl > accepted ? "c" : "b";
    }
    const unit = costs.unit_s;
    lane.add(fates, texts.map((k) => strings[k]), start, (sl * costs.c + (sl ? costs.first : 0)) * unit, v(sl + 1) * unit,
      sl * (option.decision || 0) * unit, costs.o * unit);
    start += accepted + 1;
  });
  return lane;
}
