"""Finds the recording for a lesson by the features of the runs, so that lessons stay valid with other recordings."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from statistics import median

from decoding.analysis.metrics import speedup
from decoding.analysis.whatif import Replay, simulate_lane
from decoding.backends.recorded import RecordedBackend
from decoding.errors import UserError
from decoding.lookahead.lanes import is_usable, parse_lane
from decoding.records.trace import Iteration, Run

from .lessons import LANE_WORDS

log = logging.getLogger(__name__)

Sight = tuple[str, str]  # what a lesson looks for in a run: an iteration of this kind, in this lane

# Kinds of iteration as in KINDS of js/kinds.js, by how many guesses were drafted, were accepted and would have held.
KINDS: dict[str, Callable[[int, int, int], bool]] = {
    "rejection": lambda n, accepted, holds: n > accepted,
    "burst": lambda n, accepted, holds: accepted >= 4,
    "full": lambda n, accepted, holds: n > 1 and accepted == n,
    "short": lambda n, accepted, holds: 0 < n == accepted < holds,
    "wasted": lambda n, accepted, holds: n - accepted >= 3,
}

SECOND = "second"  # a further kind, of trees: a guess held that was not the likeliest one for its place
GAINED = "gained"  # and of two drafts: the first guess held where another draft of the run guesses otherwise


def usable_speedups(run: Run) -> list[float]:
    """Each deployable lane's speedup, as the median over the repeats."""
    lanes = [trace for trace in run.lanes if is_usable(trace.lane)]
    return [spread.median for spread in (speedup(run, trace) for trace in lanes) if spread]


def readable_runs(backend: RecordedBackend) -> list[Run]:
    """The recorded runs in display order; one broken file must not disable all lessons."""
    runs = []
    for info in backend.recordings():
        try:
            runs.append(backend.load(info.id))
        except UserError as error:
            log.warning("%s", error)
    return runs


# What a run of each kind is.
ROLES: dict[str, Callable[[Run], bool]] = {
    "everyday": lambda run: run.settings.rule == "greedy" and bool(run.chains) and bool(usable_speedups(run)),
    "burst": lambda run: run.settings.rule == "greedy" and bool(run.chains) and bool(usable_speedups(run)),
    "loses": lambda run: min(usable_speedups(run), default=1.0) < 0.97,
    "drafts": lambda run: sum(bool(chain.target) for chain in run.chains.values()) > 1,
    "sampling": lambda run: run.settings.rule == "sampling" and _keeps_by_chance(run),
    "coupling": lambda run: run.settings.rule == "coupling",
    "picture": lambda run: run.picture is not None and run.settings.rule == "greedy",
    "states": lambda run: {bool(chain.starts) for chain in run.chains.values() if chain.target} == {True, False},
    "tree": lambda run: any(it.parents for trace in run.lanes for it in trace.iterations),
}


def _keeps_by_chance(run: Run) -> bool:
    """Whether some guess was kept or rejected with a probability below 1."""
    tokens = (token for trace in run.lanes for iteration in trace.iterations for token in iteration.drafted)
    return any(token.accept_probability is not None and token.accept_probability < 1 for token in tokens)


def find_roles(runs: list[Run], wanted: Mapping[str, Iterable[Sight]] | None = None) -> dict[str, str]:
    """Kind of run -> id of the run that shows it best; a kind that none shows is left out.

    ``runs`` in display order. Of those of a kind, the ones that show most of what is ``wanted`` of it come first, then
    those of the first run's pair, so that all lessons speak of one pair where they can. Of what remains: everyday takes
    the middle one by speedup, burst the largest speedup, all others the first one.
    """
    found = {}
    for role, fits in ROLES.items():
        candidates = [run for run in runs if fits(run) and (role == "picture" or run.picture is None)]
        if not candidates:
            continue
        ranks = {run.id: _rank(run, runs[0].pair.name, (wanted or {}).get(role, ())) for run in candidates}
        best = max(ranks.values())
        found[role] = _choose(role, [run for run in candidates if ranks[run.id] == best]).id
    return found


def _rank(run: Run, pair: str, wanted: Iterable[Sight]) -> tuple[int, bool]:
    return sum(shows(run, *sight) for sight in wanted), run.pair.name == pair


def _choose(role: str, runs: list[Run]) -> Run:
    if role not in ("everyday", "burst"):
        return runs[0]
    speeds = {run.id: max(usable_speedups(run)) for run in runs}
    if role == "burst":
        return max(runs, key=lambda run: speeds[run.id])
    middle = median(speeds.values())
    return min(runs, key=lambda run: abs(speeds[run.id] - middle))


def shows(run: Run, lane: str, kind: str) -> bool:
    """Whether ``lane``, as it ran or simulated, has an iteration of this kind. A learned policy must have run."""
    trace = next((trace for trace in run.lanes if trace.lane == lane), None)
    draft = parse_lane(lane).draft or run.pair.default_draft
    replay = Replay(run.chains[draft]) if draft in run.chains else None
    if kind == SECOND:
        return trace is not None and any(second_held(iteration) for iteration in trace.iterations)
    try:
        iterations = (
            [(it.start, it.n_drafted, it.n_accepted) for it in trace.iterations]
            if trace
            else simulate_lane(run, lane).iterations
        )
    except UserError:  # no chain of this draft, or a policy that needs its fitted head
        return False
    if kind == GAINED:
        others = [Replay(chain) for name, chain in run.chains.items() if name != draft and chain.target]
        return any(held and _could_hold(other, start) == 0 for start, _, held in iterations for other in others[:1])
    return any(KINDS[kind](n, held, _could_hold(replay, start)) for start, n, held in iterations)


def second_held(it: Iteration) -> bool:
    """Whether a guess held that was not the likeliest one for its place."""
    p = [token.p_draft or 0.0 for token in it.drafted]
    places = list(zip(it.parents or [], p))
    return any(
        parent == place and other > p[k]
        for k, (place, _) in enumerate(places[: it.n_accepted])
        for parent, other in places
    )


def _could_hold(replay: Replay | None, start: int) -> int:
    """How many guesses at ``start`` would hold; the text's last token is the target's own in any case."""
    return min(replay.holds[start], replay.n_tokens - start - 1) if replay else 0


def wanted_by(lessons: Iterable[dict]) -> dict[str, set[Sight]]:
    """What the lessons look for in each kind of run."""
    wanted: dict[str, set[Sight]] = {}
    for lesson in lessons:
        for step in lesson["steps"]:
            show = step.get("show", {})
            if "find" in show and show["lane"] not in LANE_WORDS:
                wanted.setdefault(step.get("recording", lesson["recording"]), set()).add((show["lane"], show["find"]))
    return wanted


def missing_sights(runs: list[Run], lessons: Iterable[dict]) -> list[str]:
    """A sentence for each thing that a lesson speaks of and that no run of its kind shows."""
    wanted = wanted_by(lessons)
    roles, by_id = find_roles(runs, wanted), {run.id: run for run in runs}
    kinds = {step.get("recording", lesson["recording"]) for lesson in lessons for step in lesson["steps"]}
    absent = sorted(kinds - set(roles) - set(by_id))
    said = [f"No recording is of the kind {kind}." for kind in absent]
    for kind in sorted(kinds - set(absent)):
        run = by_id[roles.get(kind, kind)]
        said += [
            f"{run.id} ({kind}) has no iteration of the kind {sight} in its lane {lane}."
            for lane, sight in sorted(wanted.get(kind, ()))
            if not shows(run, lane, sight)
        ]
    return said
