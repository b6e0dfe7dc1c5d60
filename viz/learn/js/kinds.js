/* Kinds of iterations that lessons and jumps look for. */

export const KINDS = {
  rejection: { label: "a rejection", title: "the next iteration in which a guess failed", fits: (it) => it.drafted > it.accepted && it.own,
    clear: (it) => it.accepted > 0 && it.drafted - it.accepted > 1 },
  burst: { label: "a burst", title: "the next iteration in which four or more guesses held", fits: (it) => it.accepted >= 4 },
  full: { label: "all held", title: "the next iteration in which all of two or more guesses held", fits: (it) => it.drafted > 1 && it.accepted === it.drafted && it.own },
  short: { label: "a stop too early", title: "the next iteration that checked although more guesses would have held",
    fits: (it, holds) => it.drafted > 0 && it.accepted === it.drafted && holds(it.start) > it.drafted },
  wasted: { label: "a waste", title: "the next iteration in which three or more guesses were thrown away", fits: (it) => it.drafted - it.accepted >= 3,
    clear: (it) => it.cost.gained < 0 },
  second: { label: "a second guess", title: "the next iteration in which a guess held that was not the likeliest one for its place", fits: secondHeld,
    clear: (it) => it.deepest > 1 },
  gained: { label: "held only here", title: "the next iteration whose first guess held where the run's other draft guesses otherwise",
    fits: (it, holds, others) => it.accepted > 0 && others(it.start) === 0 },
};

function secondHeld({ parents, guesses, accepted }) {
  const likelier = (k) => guesses.some((other, i) => parents[i] === parents[k] && other.p > guesses[k].p);
  return Boolean(parents) && guesses.slice(0, accepted).some((_, k) => likelier(k));
}

/** The iteration that shows the kind best: the first clear one, else the first one; -1 if there is none. */
export function exampleOf(model, lane, kind) {
  const { clear } = KINDS[kind], is = fits(model, lane, kind), found = clear ? lane.iterations.findIndex((it) => is(it) && clear(it)) : -1;
  return found >= 0 ? found : findIteration(model, lane, kind);
}

/** The first iteration of that kind after `from`; -1 if there is none. */
export function findIteration(model, lane, kind, from = -1) {
  const is = fits(model, lane, kind);
  return lane.iterations.findIndex((it, i) => i > from && is(it));
}

/** Whether an iteration of `lane` is of the kind. */
function fits(model, lane, kind) {
  const holdsWith = (replay, none) => (start) => (replay ? Math.min(replay.holds[start], replay.n - start - 1) : none); // the last token is the target's own
  const holds = holdsWith(model.replay(lane.draft || undefined), 0), others = holdsWith(model.replay(model.otherDraft(lane.draft)), null);
  return (it) => KINDS[kind].fits(it, holds, others);
}
