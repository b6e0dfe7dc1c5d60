"""The papers' figures for the data sets that an evaluation can run on, next to the measured ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter

from ..records.text import counted
from .results import STATIC_OPT, EvaluationResult, Figure
from .table import Cell, Column, Table, make_table, percent_interval, times

COLUMNS = {
    "heuristic": "heuristic",
    "static:5": "SL 5",
    STATIC_OPT: "best static SL",
    "disco": "DISCO",
    "specdecpp": "SpecDec++",
    "oracle": "oracle",
}
TITLE = "Compared with the papers"
AHEAD_TITLE = "Ahead of the best static SL, compared with the papers"
_COMPARED = ("disco", "specdecpp", "oracle")  # columns of the table of that title


@dataclass(frozen=True)
class Published:
    """A paper's speedups over plain decoding on a suite or one of ELSEWHERE, by policy, named as in our tables."""

    suite: str
    source: str
    setting: str
    speedups: dict[str, float]

    def find(self, metric: str, policy: str) -> Figure | None:
        """Its ``speedup`` of ``policy``, or the ``cut`` that follows from it; None if none was published."""
        value = self.speedups.get(policy)
        if value is not None and metric == "cut":
            value = 1 - self.speedups[STATIC_OPT] / value
        return None if value is None else Figure("", policy, self.suite, metric, value)


_STARCODER = "StarCoder 15B with a 168M draft, one A100, greedy"
_VICUNA = "Vicuna 13B with a 68M draft, one A100, greedy"


def _disco(suite: str, setting: str, *speedups: float) -> Published:
    policies = ("heuristic", "static:5", STATIC_OPT, "disco", "oracle")
    return Published(suite, "DISCO, Table 1 (arXiv 2405.04304)", setting, dict(zip(policies, speedups, strict=True)))


def _specdecpp(suite: str, best_static: float, specdecpp: float) -> Published:
    speedups = {STATIC_OPT: best_static, "specdecpp": specdecpp}
    return Published(suite, "SpecDec++ (arXiv 2405.19715)", "Llama-2-chat 70B with 7B, two A100, sampling", speedups)


PUBLISHED = (
    _disco("mbpp", _STARCODER, 1.16, 1.46, 1.64, 1.84, 2.28),
    _disco("humaneval", _STARCODER, 1.04, 1.63, 1.63, 1.84, 2.22),
    _specdecpp("humaneval", 2.00, 2.23),
    _specdecpp("gsm8k", 2.07, 2.26),
    _disco("CNN-DM", _VICUNA, 1.81, 1.94, 1.85, 2.15, 2.48),
    _disco("Alpaca", _VICUNA, 1.50, 2.00, 2.02, 2.12, 2.38),
    _specdecpp("Alpaca", 1.90, 2.04),
)
ELSEWHERE = ("CNN-DM", "Alpaca")  # data sets that `suites fetch` does not offer


def papers_tables(result: EvaluationResult) -> list[Table]:
    """Published and measured speedups for each data set that both have, and how far each policy is ahead of the best
    static SL; none if they have no data set in common.
    """
    if not published_for(result):
        return []
    speedups = (
        "Speedup over plain decoding. The rows differ in models, hardware and sampling, and our prompts are a sample "
        "of each data set: compare how much a policy adds to the best static SL, not the speedups themselves. "
        f"Our best static SL is {result.static_opt}, chosen on {result.setting.validation_prompts} validation "
        "prompts; DISCO's, which is not published, was chosen on validation prompts too, SpecDec++'s on the test data. "
        "We did not run CNN-DM and Alpaca."
    )
    cuts = (
        "How far the time per token is below that of the best static SL on the same prompts; for the papers, computed "
        "from the published speedups."
    )
    return [
        _table(result, TITLE, speedups, ("source", "setting"), COLUMNS, "speedup", times),
        _table(result, AHEAD_TITLE, cuts, ("source",), _COMPARED, "cut", percent_interval),
    ]


def published_for(result: EvaluationResult) -> list[Published]:
    """The papers' rows for the data sets of ``result``, and then those ELSEWHERE; none if it has none of them."""
    shared = [row for suite in result.setting.prompts for row in PUBLISHED if row.suite == suite]
    return [*shared, *(row for row in PUBLISHED if row.suite in ELSEWHERE)] if shared else []


def published_figures(result: EvaluationResult) -> Iterator[tuple[str, Figure]]:
    """(source, figure) of :func:`published_for`, as rows of the long table."""
    for row in published_for(result):
        for policy, speedup in row.speedups.items():
            yield f"{row.source}: {row.setting}", Figure("", policy, row.suite, "speedup", speedup)


def _table(
    result: EvaluationResult,
    title: str,
    note: str,
    words: Sequence[str],
    policies: Iterable[str],
    metric: str,
    show: Callable[[Figure], str],
) -> Table:
    """For each data set the papers' rows, and then ours on the clock, if any of the policies was timed, and simulated;
    ``words``: what precedes the ``policies``, of "source" and "setting".
    """
    rows: list[tuple[str, dict[str, Figure | Cell | None]]] = []
    setting = f"{result.setting.pair} with {result.setting.draft}, {result.setting.machine.where}, greedy"
    own = {name: _label(result, name) for name in policies}

    def add(suite: str, source: str, setting: str, figures: dict[str, Figure | None]) -> None:
        rows.append((suite, {"source": Cell(source), "setting": Cell(setting), **figures}))

    published = published_for(result)
    for suite in dict.fromkeys(row.suite for row in published):
        for row in (row for row in published if row.suite == suite):
            add(suite, row.source, row.setting, {name: row.find(metric, name) for name in own})
        for how, prefix in (("ours, on the clock", "clock_"), ("ours, simulated", "")):
            if any(result.find(f"{prefix}speedup", label, suite) for label in own.values()):
                found = {name: result.find(f"{prefix}{metric}", label, suite) for name, label in own.items()}
                n = max((one.n or 0 for one in found.values() if one), default=0)
                add(suite, f"{how}, {counted(n, 'prompt')}", setting, found)
    columns = [Column(COLUMNS.get(name, name), itemgetter(name), show) for name in (*words, *own)]
    return make_table(title, note, "data set", rows, columns)


def _label(result: EvaluationResult, column: str) -> str:
    """The label of the policy in a column, with whatever number it ran; "" if it did not."""
    ran = (label for label in result.lanes if label.partition(":")[0] == column)
    return column if column in result.lanes else next(ran, "")
