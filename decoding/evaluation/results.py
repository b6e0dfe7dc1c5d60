"""The results of an evaluation: the files in ``results/``, which the page's tabs and the reports read.

All figures are rows of one long table (:class:`Figure`). Latencies are seconds per token of text; speedups are over
plain decoding; ``low`` and ``high`` are 95% bootstrap intervals over prompts. ``cut`` is the share by which a policy's
latency lies below static-opt's. Names that begin with ``clock_`` are read off the clock, all others are simulated from
chains and cost curves. :mod:`.figures` and :mod:`.drafts` name all.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Final, Literal, NamedTuple

from pydantic import ConfigDict, Field, FiniteFloat, TypeAdapter, ValidationError

from ..errors import UserError, explained
from ..files import safe_name, write_whole
from ..records.run_file import to_plain
from ..records.suites import PAPERS
from ..records.trace import Costs, Machine

SCHEMA: Final = "speculoscope.evaluation/2"
MAX_FILE_BYTES = 8 * 2**20
SHIPPED = Path(__file__).resolve().parents[2] / "results"
ALL = "all"  # the suite of figures over all suites
STATIC_OPT = "static-opt"  # the best static SL, chosen on the validation split
TREE_OPT = "tree-opt"  # the best budget of a tree, likewise
PLAIN = "autoregressive"
ENOUGH_FOR_INTERVAL = 5  # prompts; resampled from fewer, an interval says nothing
ALWAYS_ACCEPT = "always-accept"  # predicts that every guess holds
PERFECT_JUDGE = "perfect-judge"  # a perfect classifier of the drafted token

_STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)
Text = Annotated[str, Field(max_length=2000)]


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of an evaluation; ``fraction`` is of the ``stage``: costs, chains, clock or tables."""

    stage: str
    message: str
    fraction: float


class Figure(NamedTuple):
    """One row of the long table. ``policy``: a policy's label or a lane without its draft; "" for a figure of the
    draft itself. ``metric`` may end with a place on a curve: ``oracle_sl@0.025``. ``n``: the prompts (of the oracle's
    SL: iterations) behind the figure.
    """

    draft: Text
    policy: Text
    suite: Text
    metric: Text
    value: FiniteFloat
    low: FiniteFloat | None = None
    high: FiniteFloat | None = None
    n: int | None = None


@dataclass(slots=True)
class Setting:
    """The setting in which the figures were measured."""

    __pydantic_config__ = _STRICT
    pair: Text
    draft: Text
    target: Text  # where the target was loaded from: a folder or a Hub id
    target_fingerprint: Text
    draft_fingerprint: Text
    created: Text
    machine: Machine
    target_dtype: Text
    draft_dtype: Text
    threads: int
    split: Text
    max_new_tokens: int
    prompts: dict[Text, int]  # suite -> test prompts
    validation_prompts: int
    clock_repeats: int
    costs: Costs
    engine: Text = ""  # the target's; "" in files that do not say
    notes: list[Text] = field(default_factory=list)


@dataclass(slots=True)
class Draft:
    """A draft that was evaluated. ``best_*`` were chosen on the validation split."""

    __pydantic_config__ = _STRICT
    name: Text
    source: Text  # folder name or Hub id
    parameters: int
    layers: int
    hidden_size: int
    dtype: Text
    fingerprint: Text  # of its weights; empty for a source without weights
    best_sl: int
    best_lane: Text

    @property
    def best_policy(self) -> str:
        """The best lane without the draft's name, as in the long table."""
        return self.best_lane.rpartition("/")[2]


@dataclass
class EvaluationResult:
    """An evaluation of policies with one draft (``lanes``) or of all drafts of a pair (``drafts``)."""

    __pydantic_config__ = _STRICT
    setting: Setting
    figures: list[Figure]
    lanes: dict[Text, Text] = field(default_factory=dict)  # a policy's label, in the tables' order -> the lane that ran
    drafts: list[Draft] = field(default_factory=list)  # cheapest first
    schema: Literal["speculoscope.evaluation/2"] = SCHEMA

    def __post_init__(self) -> None:
        """Figures of fewer prompts than ENOUGH_FOR_INTERVAL have no interval, also in files of earlier versions. Raises
        ValueError for lanes or drafts that no report could show.
        """
        if self.static_opt < 0 or not all(draft.name for draft in self.drafts):
            raise ValueError("an SL or the name of a draft is missing")
        few = [one.n is not None and one.n < ENOUGH_FOR_INTERVAL for one in self.figures]
        self.figures = [
            one._replace(low=None, high=None) if lacks else one
            for one, lacks in zip(self.figures, few)
            if not (lacks and one.metric == "clock_noise")  # which is such an interval's half
        ]

    @cached_property
    def _by_key(self) -> dict[tuple[str, str, str, str], Figure]:
        return {one[:4]: one for one in self.figures}

    def find(self, metric: str, policy: str = "", suite: str = ALL, draft: str | None = None) -> Figure | None:
        """The figure of that name, of the setting's draft if none is named; None if there is none."""
        return self._by_key.get((self.setting.draft if draft is None else draft, policy, suite, metric))

    def value(self, metric: str, policy: str = "", suite: str = ALL, draft: str | None = None) -> float:
        """The value of :meth:`find`. Raises UserError if there is none."""
        return self.need(metric, policy, suite, draft).value

    def need(self, metric: str, policy: str = "", suite: str = ALL, draft: str | None = None) -> Figure:
        """As :meth:`find`. Raises UserError if there is no such figure."""
        found = self.find(metric, policy, suite, draft)
        if found is None:
            of = " ".join(filter(None, (draft, policy)))
            raise UserError(f"This evaluation lacks the {metric} of {of or 'the draft'}: run it again.")
        return found

    def guess_cost(self, draft: Draft) -> float:
        """c, with the first step's extra cost spread over the guesses of the draft's best static SL."""
        first = self.setting.costs.first_step.get(draft.name, 0.0)
        return self.value("c", draft=draft.name) + first / max(1, draft.best_sl)

    def curve(self, metric: str, suite: str = ALL) -> dict[float, float]:
        """Place -> value of the draft's ``metric@place``."""
        begin = f"{metric}@"
        return {
            float(one.metric.removeprefix(begin)): one.value
            for one in self.figures
            if one.metric.startswith(begin) and (one.policy, one.suite) == ("", suite)
        }

    def by_sl(self, draft: str, metric: str = "speedup") -> dict[int, Figure]:
        """SL -> the figure of ``draft`` over all suites with each static SL that has it."""
        chosen = [one for one in self.figures if (one.draft, one.suite, one.metric) == (draft, ALL, metric)]
        static = (one for one in chosen if one.policy.startswith("static:"))
        return {int(one.policy.partition(":")[2]): one for one in static}

    @property
    def suites(self) -> list[str]:
        """The suites of the tables: ALL, and each of several."""
        return [ALL, *(self.setting.prompts if len(self.setting.prompts) > 1 else ())]

    @property
    def static_opt(self) -> int:
        """The best static SL; 0 for drafts."""
        return int(self.lanes.get(STATIC_OPT, ":0").partition(":")[2])

    def clocked(self) -> int:
        """The most prompts on which any policy ran on the clock."""
        found = (one.n or 0 for one in self.figures if (one.metric, one.suite) == ("clock_speedup", ALL))
        return max(found, default=0)


_RESULT = TypeAdapter(EvaluationResult)


def save_result(result: EvaluationResult, path: Path) -> None:
    """Writes the file atomically. Raises UserError."""
    write_text(path, json.dumps(to_plain(result), ensure_ascii=True, allow_nan=False, separators=(",", ":")))


def load_result(path: Path) -> EvaluationResult:
    """Reads and checks a result. Raises UserError."""
    try:
        with path.open("rb") as file:  # its size is not known in advance, of a pipe
            data = file.read(MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise UserError(f"{path.name} is too large to be an evaluation.")
        return _RESULT.validate_json(data)
    except OSError as error:
        raise UserError(f"Cannot read the evaluation {path.name}: {error.strerror or error}.") from error
    except (ValidationError, RecursionError) as error:
        raise UserError(f"{path.name} is not an evaluation of this program's version: run it again.") from error


def result_from_dict(data: dict) -> EvaluationResult:
    """A result from a queue or another machine. Raises UserError."""
    try:
        return _RESULT.validate_json(json.dumps(data))
    except (ValidationError, RecursionError, TypeError, ValueError) as error:
        raise UserError("These figures are not an evaluation of this program's version.") from error


def result_name(pair: str, drafts: bool = False, papers: bool = False) -> str:
    """File name of a pair's shipped results: ``<pair>.json``, ``<pair>-drafts.json`` or, on the papers' data sets,
    ``<pair>-papers.json`` and ``<pair>-drafts-papers.json``.
    """
    return safe_name(pair) + "-drafts" * drafts + "-papers" * papers + ".json"


def shipped_name(result: EvaluationResult) -> str:
    """File name under which ``result`` ships."""
    papers = set(result.setting.prompts) <= set(PAPERS)
    return result_name(result.setting.pair, bool(result.drafts), papers)


def write_text(path: Path, text: str) -> None:
    """Writes the file atomically. Raises UserError."""
    with explained(f"Cannot write {path}"):
        write_whole(path, text)
