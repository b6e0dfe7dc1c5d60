"""The papers' figures for the data sets that an evaluation can run on, next to the measured ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from .results import EvaluationResult, PolicyResult, Timing
from .table import Table
from .tables import STATIC_OPT

COLUMNS = {
    "heuristic": "heuristic",
    "static": "SL 5",
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
    """A paper's speedups over plain decoding, by policy: the suites' names, or those of ELSEWHERE."""

    suite: str
    source: str
    setting: str
    speedups: dict[str, float]


_DISCO = "DISCO, Table 1 (arXiv 2405.04304)"
_SPECDECPP = "SpecDec++ (arXiv 2405.19715)"
_STARCODER = "StarCoder 15B with a 168M draft, one A100, greedy"
_LLAMA = "Llama-2-chat 70B with 7B, two A100, sampling"
_VICUNA = "Vicuna 13B with a 68M draft, one A100, greedy"
PUBLISHED = (
    Published(
        "mbpp",
        _DISCO,
        _STARCODER,
        {"heuristic": 1.16, "static": 1.46, STATIC_OPT: 1.64, "disco": 1.84, "oracle": 2.28},
    ),
    Published(
        "humaneval",
        _DISCO,
        _STARCODER,
        {"heuristic": 1.04, "static": 1.63, STATIC_OPT: 1.63, "disco": 1.84, "oracle": 2.22},
    ),
    Published("humaneval", _SPECDECPP, _LLAMA, {STATIC_OPT: 2.00, "specdecpp": 2.23}),
    Published("gsm8k", _SPECDECPP, _LLAMA, {STATIC_OPT: 2.07, "specdecpp": 2.26}),
    Published(
        "CNN-DM",
        _DISCO,
        _VICUNA,
        {"heuristic": 1.81, "static": 1.94, STATIC_OPT: 1.85, "disco": 2.15, "oracle": 2.48},
    ),
    Published(
        "Alpaca",
        _DISCO,
        _VICUNA,
        {"heuristic": 1.50, "static": 2.00, STATIC_OPT: 2.02, "disco": 2.12, "oracle": 2.38},
    ),
    Published("Alpaca", _SPECDECPP, _LLAMA, {STATIC_OPT: 1.90, "specdecpp": 2.04}),
)
ELSEWHERE = ("CNN-DM", "Alpaca")  # data sets that `suites fetch` does not offer


def papers_table(result: EvaluationResult) -> Table | None:
    """Published and measured rows for each data set that both have; None if there is none."""
    suites = _shared_suites(result)
    if not suites:
        return None
    rows = []
    for suite in suites:
        rows += [[suite, row.source, row.setting, *_cells(row.speedups)] for row in PUBLISHED if row.suite == suite]
        rows += [
            [suite, how, _own_setting(result), *cells] for how, cells in _own_rows(result, suite, COLUMNS, _speedup)
        ]
    rows += [[row.suite, row.source, row.setting, *_cells(row.speedups)] for row in PUBLISHED if row.suite in ELSEWHERE]
    note = (
        "Speedup over plain decoding. The rows differ in models, hardware and sampling, and our prompts are a sample "
        "of each data set: compare how much a policy adds to the best static SL, not the speedups themselves. "
        f"The best static SL is {result.static_opt} here, chosen on {result.setting.validation_prompts} validation "
        "prompts; DISCO's, which is not published, was chosen on validation prompts too, SpecDec++'s on the test data. "
        "In square brackets: 95% intervals over prompts. CNN-DM and Alpaca were not run here."
    )
    return Table(TITLE, note, ["data set", "source", "setting", *COLUMNS.values()], rows)


def ahead_table(result: EvaluationResult) -> Table | None:
    """How far each paper's policy is ahead of its best static SL, there and here; None as :func:`papers_table`."""
    suites = _shared_suites(result)
    if not suites:
        return None
    rows = []
    for suite in suites:
        rows += [[suite, row.source, *_cuts(row.speedups)] for row in PUBLISHED if row.suite == suite]
        rows += [[suite, how, *cells] for how, cells in _own_rows(result, suite, _COMPARED, _cut)]
    rows += [[row.suite, row.source, *_cuts(row.speedups)] for row in PUBLISHED if row.suite in ELSEWHERE]
    note = (
        "How far the time per token is below that of the best static SL on the same prompts; for the papers, computed "
        "from the published speedups. In square brackets: 95% intervals over prompts."
    )
    return Table(AHEAD_TITLE, note, ["data set", "source", *(COLUMNS[name] for name in _COMPARED)], rows)


def _shared_suites(result: EvaluationResult) -> list[str]:
    """The suites of ``result`` that a paper has a row for."""
    return [suite for suite in result.setting.prompts if any(row.suite == suite for row in PUBLISHED)]


def _cuts(speedups: dict[str, float]) -> list[str]:
    return [f"{1 - speedups[STATIC_OPT] / speedups[name]:+.1%}" if name in speedups else "" for name in _COMPARED]


def _cells(speedups: dict[str, float]) -> list[str]:
    return [f"{speedups[name]:.2f}x" if name in speedups else "" for name in COLUMNS]


def _own_setting(result: EvaluationResult) -> str:
    machine = result.setting.machine
    where = machine.gpu or f"{machine.processor}, {machine.cores} cores"
    return f"{result.setting.pair} with {result.setting.draft}, {where}, greedy"


def _own_rows(
    result: EvaluationResult, suite: str, columns: Iterable[str], cell: Callable[[Timing], str]
) -> Iterator[tuple[str, list[str]]]:
    """(how it was measured, cells by column): on the clock, if any of ``columns`` was, and simulated."""
    by_name = _by_column(result)
    entries = [by_name[name].rows.get(suite) if name in by_name else None for name in columns]
    clock = [row.clock if row else None for row in entries]
    simulated = [row.simulated if row else None for row in entries]
    for how, timings in (("here, on the clock", clock), ("here, simulated", simulated)):
        if any(timings):
            yield how, [cell(timing) if timing else "" for timing in timings]


def _by_column(result: EvaluationResult) -> dict[str, PolicyResult]:
    found: dict[str, PolicyResult] = {}
    for one in result.policies:  # the first of a name: oracle, not oracle:best
        found.setdefault(STATIC_OPT if one.label == STATIC_OPT else one.lane.partition(":")[0], one)
    return found


def _speedup(timing: Timing) -> str:
    value = timing.speedup
    between = f" [{value.low:.2f}, {value.high:.2f}]" if timing.prompts > 1 else ""  # one prompt has no interval
    return f"{value.value:.2f}x{between} ({_counted(timing)})"


def _cut(timing: Timing) -> str:
    cut = timing.cut
    if cut is None:
        return ""
    between = f" [{cut.low:+.1%}, {cut.high:+.1%}]" if timing.prompts > 1 else ""
    return f"{cut.value:+.1%}{between} ({_counted(timing)})"


def _counted(timing: Timing) -> str:
    return f"{timing.prompts} prompt{'' if timing.prompts == 1 else 's'}"
