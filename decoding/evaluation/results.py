"""The results of an evaluation as plain data: the files that the page's tabs and the reports read.

Latencies are seconds per token of text; speedups are over the autoregressive lane; intervals are 95%
bootstrap intervals over prompts. ``cut`` is the share by which a policy's latency lies below static-opt's.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Final, Literal, TypeVar

from pydantic import AliasChoices, ConfigDict, Field, TypeAdapter, ValidationError

from ..errors import UserError
from ..files import write_whole
from ..records.trace import Costs, Machine

SCHEMA: Final = "speculoscope.evaluation/1"
MAX_FILE_BYTES = 8 * 2**20
ALL = "all"  # the row over all suites

_STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)
Text = Annotated[str, Field(max_length=2000)]


@dataclass(slots=True)
class Interval:
    """A figure with its 95% bootstrap interval over prompts."""

    __pydantic_config__ = _STRICT
    value: float
    low: float
    high: float


@dataclass(slots=True)
class Timing:
    """One policy's time on one suite, simulated from chains and cost curves, or read off the clock.

    ``p95_token_s``: the 95th percentile over prompts of the time per token. ``cut``: see the module;
    None for static-opt itself and where static-opt was not timed. ``cut_noise``: half of the 95% interval that the
    clock's noise alone leaves to ``cut``, given these prompts. ``over_simulated``: for the clock, the speedup over that
    simulated on the same prompts, minus one.
    """

    __pydantic_config__ = _STRICT
    prompts: int
    tokens: int
    latency_s: float
    p95_token_s: float
    speedup: Interval
    cut: Interval | None = None
    cut_noise: float | None = None
    over_simulated: Interval | None = None


@dataclass(slots=True)
class Prediction:
    """How well a policy predicts acceptance; see ``evaluation/classify.py`` for the definitions."""

    __pydantic_config__ = _STRICT
    f1: float
    precision: float
    recall: float
    auc: float | None  # None: the policy has no score


@dataclass(slots=True)
class Losses:
    """Where a policy's simulated time goes, in seconds per token of text; see ``evaluation/losses.py``.

    ``too_long_s`` is the part spent on drafts that were thrown away; ``too_soon`` counts, per token, iterations
    that the policy ended although the next guess would have held.
    """

    __pydantic_config__ = _STRICT
    draft_s: float
    check_s: float
    decision_s: float
    loop_s: float
    too_long_s: float
    too_soon: float


@dataclass(slots=True)
class Corrections:
    """Simulated seconds per token of a policy as it is, and with one thing undone that holds it back; see
    ``evaluation/corrections.py``.
    """

    __pydantic_config__ = _STRICT
    as_it_is_s: float
    free_decisions_s: float  # features and decisions cost nothing
    free_checks_s: float  # checking many tokens costs what checking one does
    never_too_soon_s: float  # it never stops while all that it drafted holds
    never_too_late_s: float  # it never drafts on after a guess that fails
    no_errors_s: float  # neither: a perfect classifier of the drafted token, at the policy's decision cost


@dataclass(slots=True)
class Row:
    """One policy on one suite: passes and simulated time over all its prompts, the clock over some."""

    __pydantic_config__ = _STRICT
    target_passes: int
    draft_passes: int
    tokens_per_target_pass: float
    discard_rate: float
    verification_rate: float
    simulated: Timing
    clock: Timing | None = None
    prediction: Prediction | None = None
    losses: Losses | None = None


@dataclass(slots=True)
class PolicyResult:
    """One policy. ``label`` is its name in the tables ("static-opt"), ``lane`` the lane string that ran."""

    __pydantic_config__ = _STRICT
    label: Text
    lane: Text
    rows: dict[Text, Row]  # by suite, and ALL


@dataclass(slots=True)
class ParetoPoint:
    """A lane's discard and verification rate (SpecDec++'s, per token of text) and its simulated speedup."""

    __pydantic_config__ = _STRICT
    lane: Text
    discard_rate: float
    verification_rate: float
    speedup: float


@dataclass(slots=True)
class OracleLengths:
    """The oracle's SL: consecutive guesses that hold, per iteration (DISCO, section 3).

    ``histogram``: (SL, iterations); ``by_place``: mean SL over 20 buckets of the iteration's place j/(n-1) in its text,
    None for an empty bucket.
    """

    __pydantic_config__ = _STRICT
    mean: float
    sd: float
    iterations: int
    histogram: list[tuple[int, int]]
    by_place: list[float | None]


@dataclass(slots=True)
class Setting:
    """The setting in which the figures were measured."""

    __pydantic_config__ = _STRICT
    pair: Text
    draft: Text
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
    notes: list[Text] = field(default_factory=list)


def suites_of(setting: Setting) -> list[str]:
    """The suites of the tables: ALL, and each of several."""
    return [ALL, *(setting.prompts if len(setting.prompts) > 1 else ())]


@dataclass(slots=True)
class EvaluationResult:
    """The papers' tables for one pair and draft: what ``results/<pair>.json`` holds."""

    __pydantic_config__ = _STRICT
    setting: Setting
    static_opt: int  # chosen on the validation split
    match_rate: dict[Text, float]  # by suite, and ALL
    always_accept: dict[Text, Prediction]  # the figures of predicting that every guess holds
    policies: Annotated[list[PolicyResult], Field(validation_alias=AliasChoices("policies", "rules"))]  # once "rules"
    pareto: dict[Text, list[ParetoPoint]]  # policy -> its thresholds, over all suites
    oracle: dict[Text, OracleLengths]  # by suite, and ALL
    texts_equal: tuple[int, int]  # clocked lanes whose text was the autoregressive one, of how many
    perfect_judge: dict[Text, Timing] = field(default_factory=dict)  # by suite: a perfect classifier of drafts
    corrections: dict[Text, Corrections] = field(default_factory=dict)  # by label; policies that can err
    best_f1: dict[Text, float] = field(default_factory=dict)  # policy -> F1 at its score's best threshold, for show
    schema: Literal["speculoscope.evaluation/1"] = SCHEMA

    def entry(self, label: str) -> PolicyResult:
        """The policy of that label; KeyError if there is none."""
        for entry in self.policies:
            if entry.label == label:
                return entry
        raise KeyError(label)


@dataclass(slots=True)
class Clocked:
    """A lane on the clock: its speedup over ``prompts`` prompts, and what the replay says of the same prompts."""

    __pydantic_config__ = _STRICT
    prompts: int
    speedup: Interval
    simulated: float


@dataclass(slots=True)
class SlPoint:
    """One draft under one static SL, over all suites."""

    __pydantic_config__ = _STRICT
    sl: int
    simulated: float  # speedup
    predicted: float  # the throughput model's, from match rate and costs
    clock: float | None = None
    clocked: Clocked | None = None  # the same with its interval; None in results recorded without it


@dataclass(slots=True)
class DraftResult:
    """One draft of the ladder. ``best_*`` were chosen on validation; speedups are of the test split."""

    __pydantic_config__ = _STRICT
    name: Text
    source: Text  # folder name or Hub id
    parameters: int
    layers: int
    hidden_size: int
    dtype: Text
    c: float
    match_rate: dict[Text, float]  # by suite, and ALL
    best_sl: int
    best_lane: Text
    static_speedup: dict[Text, Interval]  # of the best SL, by suite and ALL
    speedup: dict[Text, Interval]  # of the best lane
    p95_token_s: float
    break_even_c: float  # from this cost on no static SL gains anything
    by_sl: list[SlPoint]
    by_suite: dict[Text, list[float]] = field(default_factory=dict)  # simulated speedup of SL 1, 2, ...
    fingerprint: Text = ""  # of its weights; empty for a source without weights


@dataclass(slots=True)
class Recommendation:
    """The recommended draft and policy, and the matching settings elsewhere."""

    __pydantic_config__ = _STRICT
    draft: Text
    lane: Text
    sentences: list[Text]
    transformers: Text
    vllm: Text


@dataclass(slots=True)
class DraftsResult:
    """The drafts report: the content of ``results/<pair>-drafts.json``."""

    __pydantic_config__ = _STRICT
    setting: Setting
    drafts: list[DraftResult]  # cheapest first
    recommendation: Recommendation
    plain_clock: float | None = None  # plain decoding on the clock over what its cost curve says
    schema: Literal["speculoscope.evaluation-drafts/1"] = "speculoscope.evaluation-drafts/1"


Result = EvaluationResult | DraftsResult
_EVALUATION, _DRAFTS = TypeAdapter(EvaluationResult), TypeAdapter(DraftsResult)
Either = TypeVar("Either", EvaluationResult, DraftsResult)


def result_to_json(result: EvaluationResult | DraftsResult) -> str:
    return json.dumps(asdict(result), ensure_ascii=True, allow_nan=False, separators=(",", ":"))


def save_result(result: EvaluationResult | DraftsResult, path: Path) -> None:
    """Writes the file atomically. Raises UserError."""
    try:
        write_whole(path, result_to_json(result))
    except OSError as error:
        raise UserError(f"Cannot write {path}: {error.strerror or error}.") from error


def load_evaluation(path: Path) -> EvaluationResult:
    """Reads and checks ``results/<pair>.json``. Raises UserError."""
    return _load(path, _EVALUATION)


def load_drafts(path: Path) -> DraftsResult:
    """Reads and checks ``results/<pair>-drafts.json``. Raises UserError."""
    return _load(path, _DRAFTS)


def _load(path: Path, adapter: TypeAdapter[Either]) -> Either:
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise UserError(f"{path.name} is too large to be an evaluation.")
        return adapter.validate_json(path.read_bytes())
    except OSError as error:
        raise UserError(f"Cannot read the evaluation {path.name}: {error.strerror or error}.") from error
    except (ValidationError, RecursionError) as error:
        raise UserError(f"{path.name} is not an evaluation of this program's version: run it again.") from error


def evaluation_from_dict(data: dict) -> EvaluationResult:
    """A result from a queue or another machine. Raises UserError."""
    return _from_dict(data, _EVALUATION)


def drafts_from_dict(data: dict) -> DraftsResult:
    """A result from a queue or another machine. Raises UserError."""
    return _from_dict(data, _DRAFTS)


def _from_dict(data: dict, adapter: TypeAdapter[Either]) -> Either:
    try:
        return adapter.validate_json(json.dumps(data))
    except (ValidationError, RecursionError, TypeError, ValueError) as error:
        raise UserError("These figures are not an evaluation of this program's version.") from error
