"""The papers' figures for the data sets that an evaluation can run on, next to the measured ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from .results import STATIC_OPT, EvaluationResult, Figure
from .table import Cell, Table, counted

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


_STARCODER = "StarCoder 15B with a 168M draft, one A100, greedy"
_VICUNA = "Vicuna 13B with a 68M draft, one A100, greedy"


def _disco(suite: str, setting: str, *speedups: float) -> Published:
    policies = ("heuristic", "static", STATIC_OPT, "disco", "oracle")
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
    return [_speedup_table(result), _ahead_table(result)] if published_for(result) else []


def published_for(result: EvaluationResult) -> list[Published]:
    """The papers' rows for the data sets of ``result``, and then those ELSEWHERE; none if it has none of them."""
    shared = [row for suite in result.setting.prompts for row in PUBLISHED if row.suite == suite]
    return [*shared, *(row for row in PUBLISHED if row.suite in ELSEWHERE)] if shared else []


def published_figures(result: EvaluationResult) -> Iterator[tuple[str, Figure]]:
    """(source, figure) of :func:`published_for`, as rows of the long table."""
    for row in published_for(result):
        for policy, value in row.speedups.items():
            yield f"{row.source}: {row.setting}", Figure("", policy, row.suite, "speedup", value)


def _speedup_table(result: EvaluationResult) -> Table:
    note = (
        "Speedup over plain decoding. The rows differ in models, hardware and sampling, and our prompts are a sample "
        "of each data set: compare how much a policy adds to the best static SL, not the speedups themselves. "
        f"The best static SL is {result.static_opt} here, chosen on {result.setting.validation_prompts} validation "
        "prompts; DISCO's, which is not published, was chosen on validation prompts too, SpecDec++'s on the test data. "
        "In square brackets: 95% intervals over prompts. CNN-DM and Alpaca were not run here."
    )
    machine = result.setting.machine
    where = machine.gpu or f"{machine.processor}, {machine.cores} cores"
    here = f"{result.setting.pair} with {result.setting.draft}, {where}, greedy"

    def theirs(row: Published) -> list[Cell]:
        shown = {name: Cell(f"{value:.2f}×", value) for name, value in row.speedups.items()}
        return [Cell(row.setting), *(shown.get(name, Cell()) for name in COLUMNS)]

    rows = _beside(result, theirs, lambda cells: [Cell(here), *cells], COLUMNS, "speedup", lambda x: f"{x:.2f}", "×")
    return Table(TITLE, note, ["data set", "source", "setting", *COLUMNS.values()], rows)


def _ahead_table(result: EvaluationResult) -> Table:
    note = (
        "How far the time per token is below that of the best static SL on the same prompts; for the papers, computed "
        "from the published speedups. In square brackets: 95% intervals over prompts."
    )

    def theirs(row: Published) -> list[Cell]:
        static = row.speedups[STATIC_OPT]
        cuts = {name: 1 - static / value for name, value in row.speedups.items()}
        return [Cell(f"{cuts[name]:+.1%}", cuts[name]) if name in cuts else Cell() for name in _COMPARED]

    rows = _beside(result, theirs, lambda cells: cells, _COMPARED, "cut", lambda x: f"{x:+.1%}")
    return Table(AHEAD_TITLE, note, ["data set", "source", *(COLUMNS[name] for name in _COMPARED)], rows)


def _beside(
    result: EvaluationResult,
    theirs: Callable[[Published], list[Cell]],
    ours: Callable[[list[Cell]], list[Cell]],
    columns: Iterable[str],
    metric: str,
    show: Callable[[float], str],
    unit: str = "",
) -> list[list[Cell]]:
    """The papers' rows for each data set, then ours on the clock, if any of ``columns`` was timed, and simulated."""
    published = published_for(result)
    by_column = _by_column(result)
    rows = []
    for suite in dict.fromkeys(row.suite for row in published):
        rows += [[Cell(suite), Cell(row.source), *theirs(row)] for row in published if row.suite == suite]
        for how, name in (("here, on the clock", f"clock_{metric}"), ("here, simulated", metric)):
            kind = "clock_speedup" if name.startswith("clock_") else "speedup"
            labels = [by_column.get(column, "") for column in columns]
            if any(result.find(kind, label, suite) for label in labels):
                found = [result.find(name, label, suite) for label in labels]
                n = max((one.n or 0 for one in found if one), default=0)
                source = Cell(f"{how}, {counted(n, 'prompt')}")
                rows.append([Cell(suite), source, *ours([_own(one, show, unit) for one in found])])
    return rows


def _by_column(result: EvaluationResult) -> Mapping[str, str]:
    """Column -> the label of the policy in it: the first of a name, so oracle and not oracle:best; of static SLs 5."""
    found: dict[str, str] = {}
    for label, lane in result.lanes.items():
        policy = lane.partition(":")[0]
        if label == STATIC_OPT or policy != "static" or lane == "static:5":
            found.setdefault(STATIC_OPT if label == STATIC_OPT else policy, label)
    return found


def _own(figure: Figure | None, show: Callable[[float], str], unit: str) -> Cell:
    if figure is None:
        return Cell()
    n, between = figure.n or 0, ""
    if n > 1 and figure.low is not None and figure.high is not None:  # one prompt has no interval
        between = f" [{show(figure.low)}, {show(figure.high)}]"
    return Cell(f"{show(figure.value)}{unit}{between}", figure.value)
