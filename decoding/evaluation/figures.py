"""The figures of the policies as rows of the long table: the papers' and our own, from replays and clock readings.

Each entry of :data:`METRICS` is a figure over all suites and a column of one of the tables, in the reports, on the
terminal and on the page. Latency and speedup are by suite too, and once more for the clock (``clock_...``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..analysis.bootstrap import Bootstrap, clock_noise
from ..analysis.metrics import match_rate, oracle_sls
from ..lookahead.heads import Head
from ..records.pairs import MODEL_FREE
from ..records.trace import Costs
from .prediction import always_accept, best_f1, correct, losses, predict, replay_judge
from .results import ALL, ALWAYS_ACCEPT, PERFECT_JUDGE, PLAIN, STATIC_OPT, Figure
from .samples import Replayed, Sample, groups, replay_lane

if TYPE_CHECKING:
    import pandas as pd

PLACES = 20  # of an iteration in its text: buckets of the course of the oracle's SL
PREDICTION, PASSES = "Accept prediction", "Passes"
LOSSES, CORRECTIONS = "Where the time goes", "What holds a policy back"


@dataclass(frozen=True, slots=True)
class Metric:
    """A figure of a policy over all suites, and how its column shows it: ``factor`` times its value, in the format
    ``show``.

    ``of``: its value, None if the policy has no such figure; by default it is among those of :func:`predict`,
    :func:`losses` and :func:`correct`, or the lane's counts and their rates. ``beside``: another metric; the change
    from it follows in brackets, in percent. ``note``: explains the column, which is left out where no policy has the
    figure.
    """

    name: str
    title: str  # of its column
    table: str
    show: str
    factor: float = 1.0
    of: Callable[[Replayed], float | None] | None = None
    beside: str = ""
    note: str = ""


METRICS = [
    Metric("f1", "F1", PREDICTION, ".1%"),
    Metric("precision", "precision", PREDICTION, ".1%"),
    Metric("recall", "recall", PREDICTION, ".1%"),
    Metric("auc", "AUC of the score", PREDICTION, ".2f"),
    Metric("target_passes", "target passes", PASSES, ",.0f"),
    Metric("draft_passes", "draft passes", PASSES, ",.0f"),
    Metric("tokens_per_target_pass", "tokens per pass", PASSES, ".2f"),
    Metric(
        "guesses_per_tree",
        "guesses per tree",
        PASSES,
        ".1f",
        of=lambda one: one.counts.mean_sl if one.branches else None,
        note="Guesses per tree: of one target pass; tokens per pass minus one of them are accepted.",
    ),
    Metric("discard_rate", "discard rate", PASSES, ".3f"),
    Metric("verification_rate", "verification rate", PASSES, ".3f"),
    Metric("draft_s", "drafting", LOSSES, ".3f", 1e3),
    Metric("check_s", "checking", LOSSES, ".3f", 1e3),
    Metric("decision_s", "deciding", LOSSES, ".3f", 1e3),
    Metric("loop_s", "loop", LOSSES, ".3f", 1e3),
    Metric("too_long_s", "thrown away", LOSSES, ".3f", 1e3),
    Metric("too_soon", "stopped too soon", LOSSES, ".1f", 100),
    Metric("as_it_is_s", "as it is", CORRECTIONS, ".2f", 1e3),
    *(
        Metric(name, title, CORRECTIONS, ".2f", 1e3, beside="as_it_is_s")
        for name, title in (
            ("free_decisions_s", "free decisions"),
            ("free_checks_s", "free checks"),
            ("never_too_late_s", "not past a miss"),
            ("never_too_soon_s", "not before a miss"),
            ("no_errors_s", "at the miss"),
        )
    ),
]


def clock_table(readings: Sequence[dict[str, Any]], samples: Sequence[Sample]) -> pd.DataFrame:
    """What the clock read on the prompts of ``samples``: a row for the place of each timed one among them; columns for
    the ``tokens`` of its text and for the seconds of each lane, medians over repeats.
    """
    import pandas as pd

    place = {sample.prompt: index for index, sample in enumerate(samples)}
    known = [one for one in readings if one["prompt"] in place]
    rows = [
        {"tokens": one["lanes"][PLAIN]["tokens"], **{lane: run["decode_s"] for lane, run in one["lanes"].items()}}
        for one in known
    ]
    return pd.DataFrame(rows, index=[place[one["prompt"]] for one in known]).groupby(level=0, sort=False).median()


def policy_figures(
    lanes: Mapping[str, str],
    samples: Sequence[Sample],
    costs: Costs,
    heads: Mapping[str, Head] | None = None,
    clock: pd.DataFrame | None = None,
) -> list[Figure]:
    """All figures of the policies: ``lanes`` by their labels.

    ``clock``: from :func:`clock_table`. The intervals of all policies rest on the same resampled prompts.
    """
    found = []
    by_lane = {lane: replay_lane(lane, samples, costs, heads) for lane in dict.fromkeys(lanes.values())}
    values = {lane: metric_values(one) for lane, one in by_lane.items()}
    for label, lane in lanes.items():
        draft = by_lane[lane].draft
        found += [Figure(draft, label, ALL, name, value, n=len(samples)) for name, value in values[lane].items()]
    replayed = {label: by_lane[lane] for label, lane in lanes.items()}
    found += _simulated(replayed | {PERFECT_JUDGE: replay_judge(samples, costs)})
    if clock is not None and len(clock):
        found += _clocked(replayed, clock)
    return found


def metric_values(replayed: Replayed) -> dict[str, float]:
    """Name -> value of those of METRICS that the lane has."""
    parts = predict(replayed) | losses(replayed) | correct(replayed)
    values = {
        one.name: one.of(replayed) if one.of else parts.get(one.name, getattr(replayed.counts, one.name, None))
        for one in METRICS
    }
    return {name: float(value) for name, value in values.items() if value is not None}


def _simulated(replayed: Mapping[str, Replayed]) -> Iterator[Figure]:
    first = next(iter(replayed.values()))
    unit, lanes = first.costs.target_s, {label: one.lane for label, one in replayed.items()}
    for suite, chosen in groups(first.samples).items():
        seconds = {label: one.cost[chosen] * unit for label, one in replayed.items()}
        yield from _timings(first.draft, suite, lanes, seconds, first.plain[chosen] * unit, first.tokens[chosen])


def _clocked(replayed: Mapping[str, Replayed], clock: pd.DataFrame) -> Iterator[Figure]:
    """Latency and speedup on the clock; ``clock_over_simulated``: the speedup over that simulated on the same prompts,
    minus one; ``clock_noise``: half of the 95% interval that timing noise alone leaves to ``clock_cut``.
    """
    timed = {label: one.pick(clock.index) for label, one in replayed.items() if one.lane in clock}
    first, lanes = next(iter(timed.values())), {label: one.lane for label, one in timed.items()}
    read = {column: values.to_numpy() for column, values in clock.items()}
    for suite, chosen in groups(first.samples).items():
        seconds = {label: read[lane][chosen] for label, lane in lanes.items()}
        expected = {label: one.cost[chosen] for label, one in timed.items()}
        plain, expected_plain = read[PLAIN][chosen], first.plain[chosen]
        yield from _timings(first.draft, suite, lanes, seconds, plain, read["tokens"][chosen], "clock_")
        bootstrap = Bootstrap(len(chosen))
        for label, ours in seconds.items():
            excess = bootstrap.excess((plain, ours), (expected_plain, expected[label]))
            yield Figure(first.draft, label, suite, "clock_over_simulated", *excess, len(chosen))
            if STATIC_OPT in seconds and lanes[label] != lanes[STATIC_OPT]:
                noise = clock_noise(ours, seconds[STATIC_OPT], expected[label], expected[STATIC_OPT])
                yield Figure(first.draft, label, suite, "clock_noise", noise, n=len(chosen))


def _timings(
    draft: str,
    suite: str,
    lanes: Mapping[str, str],
    seconds: Mapping[str, np.ndarray],
    plain: np.ndarray,
    tokens: np.ndarray,
    prefix: str = "",
) -> Iterator[Figure]:
    """Latency, speedup and cut of every policy; ``seconds``, ``plain`` and ``tokens`` are per prompt."""
    n, bootstrap = len(tokens), Bootstrap(len(tokens))
    yield Figure(draft, "", suite, f"{prefix}tokens", float(tokens.sum()), n=n)
    for label, spent in seconds.items():
        yield Figure(draft, label, suite, f"{prefix}latency_s", float(spent.sum() / tokens.sum()), n=n)
        yield Figure(draft, label, suite, f"{prefix}speedup", *bootstrap.ratio(plain, spent), n)
        if STATIC_OPT in seconds and lanes[label] != lanes[STATIC_OPT]:
            yield Figure(draft, label, suite, f"{prefix}cut", *bootstrap.cut(spent, seconds[STATIC_OPT]), n)


def draft_figures(samples: Sequence[Sample]) -> list[Figure]:
    """What the draft is like, whatever the policy: match rates, the oracle's SL, and the prediction of acceptance by
    accepting everything, or by the best threshold of each score.
    """
    draft, always = samples[0].chain.draft, always_accept(samples)
    reached = {} if draft in MODEL_FREE else best_f1(samples)  # a draft without probabilities has no scores
    return [
        *match_rates(samples),
        *oracle_lengths(samples),
        *(Figure(draft, ALWAYS_ACCEPT, ALL, name, value, n=len(samples)) for name, value in always.items()),
        *(Figure(draft, name, ALL, "best_f1", value, n=len(samples)) for name, value in reached.items()),
    ]


def match_rates(samples: Sequence[Sample]) -> Iterator[Figure]:
    """Match rate along the texts, by suite and over all; all positions weigh the same."""
    rates = np.array([match_rate(sample.chain) or 0.0 for sample in samples])
    tokens = np.array([sample.n_tokens for sample in samples])
    for suite, chosen in groups(samples).items():
        rate = float(np.average(rates[chosen], weights=tokens[chosen]))
        yield Figure(samples[0].chain.draft, "", suite, "match_rate", rate, n=len(chosen))


def oracle_lengths(samples: Sequence[Sample]) -> Iterator[Figure]:
    """The oracle's SL: consecutive guesses that hold, per iteration (DISCO, section 3), by suite and over all.

    ``oracle_sl``, ``oracle_sl_sd``: mean and standard deviation; ``oracle_sl@x``: mean over the iterations at place x =
    j/(n-1) in their text, in PLACES buckets; ``oracle_iterations@k``: iterations in which k guesses hold.
    """
    draft, texts = samples[0].chain.draft, [oracle_sls(sample.chain) for sample in samples]
    for suite, chosen in groups(samples).items():
        lengths = np.concatenate([texts[index] for index in chosen])
        places = np.concatenate([_places(len(texts[index])) for index in chosen])
        n = len(lengths)
        yield Figure(draft, "", suite, "oracle_sl", float(lengths.mean()), n=n)
        yield Figure(draft, "", suite, "oracle_sl_sd", float(lengths.std()), n=n)
        for place in np.unique(places):
            bucket = lengths[places == place]
            at = (place + 0.5) / PLACES
            yield Figure(draft, "", suite, f"oracle_sl@{at:g}", float(bucket.mean()), n=len(bucket))
        if suite == ALL:
            for length, found in zip(*np.unique(lengths, return_counts=True)):
                yield Figure(draft, "", suite, f"oracle_iterations@{length}", float(found), n=n)


def _places(n: int) -> np.ndarray:
    """The buckets of a text's ``n`` iterations."""
    return np.minimum(PLACES * np.arange(n) // max(1, n - 1), PLACES - 1)


def sweep_figures(
    lanes: Iterable[str], samples: Sequence[Sample], costs: Costs, heads: Mapping[str, Head] | None
) -> Iterator[Figure]:
    """Discard against verification rate (SpecDec++'s plane) and speedup over ``lanes``: the thresholds or SLs of a
    policy, all suites together.
    """
    for lane in lanes:
        replayed = replay_lane(lane, samples, costs, heads)
        for name in ("discard_rate", "verification_rate"):
            yield Figure(replayed.draft, lane, ALL, f"sweep_{name}", getattr(replayed.counts, name), n=len(samples))
        yield Figure(replayed.draft, lane, ALL, "sweep_speedup", replayed.speedup, n=len(samples))
