"""From recorded calls of transformers' ``generate`` to the run file."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import PurePath
from statistics import median
from typing import Any

import torch
import transformers

from ..analysis.run_costs import MIN_ITERATIONS
from ..engines.loading import describe_model, machine_of
from ..engines.tokenizer import Tokenizer
from ..errors import UserError
from ..loop.speculative import RawIteration
from ..records.events import new_id
from ..records.generate import ENGINE, PLAIN, TITLES, WAYS, Call
from ..records.pairs import PROMPT_LOOKUP
from ..records.request import MAX_NEW_TOKENS, MAX_PROMPT_CHARS, CompareRequest
from ..records.run_file import run_from_json, run_to_json
from ..records.trace import MAX_LANES, Costs, Finish, ModelInfo, PairInfo, Repeat, Run, Trace, Verdict
from .annotate import Views, to_iteration
from .assemble import difference, vocabulary
from .costs import contradiction, fit_costs
from .prepare import without_model

PROMPT_NOTE = (
    "generate does not report the time of reading the prompt. It is estimated as what the first check and the first "
    "drafting took beyond the median of the later ones."
)
LONGEST_NAME = 60  # characters of a model's name in lanes
MAX_VERIFIED = 256  # tokens in one pass, of which a run file holds the cost


@dataclass(slots=True)
class Recorded:
    """One call, which the recorder fills in.

    ``settings``: what drafts, and how, when the call begins (transformers moves some of it). ``seconds``: draft,
    verify, policy and rest of each iteration; ``before_s``: from the call to its first iteration.
    """

    model: Any
    config: Any
    prompt: list[int]
    generator: Any = None  # what drafts; None in plain decoding
    raw: list[RawIteration] = field(default_factory=list)
    target: Views = field(default_factory=dict)
    seen: Views = field(default_factory=dict)
    seconds: list[list[float]] = field(default_factory=list)
    before_s: float = 0.0
    settings: str = ""

    @property
    def output(self) -> list[int]:
        """The new tokens so far."""
        return [token for one in self.raw for token in one.tokens]

    @property
    def limit(self) -> int:
        """The most new tokens."""
        return self.config.max_length - len(self.prompt)

    @property
    def ends(self) -> list[int]:
        """The tokens that end a text."""
        ends = getattr(self.config, "_eos_token_tensor", None)
        return [] if ends is None else ends.tolist()

    @property
    def choosing(self) -> dict[str, Any]:
        """How the target's tokens are chosen, in the terms of a comparison."""
        if not self.config.do_sample:
            return {"rule": "greedy"}
        temperature = float(self.config.temperature or 1.0)
        top = {"top_k": self.config.top_k or 0, "top_p": self.config.top_p or 1.0}
        return {"rule": "sampling", "temperature": temperature, **top}

    @property
    def finish(self) -> Finish:
        if self.output and self.output[-1] in self.ends:
            return "eos"
        return "length" if len(self.output) >= self.limit else "stop"

    @property
    def way(self) -> str:
        """The name of the way to draft: that of the nearest class of the generator that is known."""
        if self.generator is None:
            return PLAIN
        return next(WAYS[one.__name__].name for one in type(self.generator).__mro__ if one.__name__ in WAYS)

    @property
    def assistant(self) -> Any:
        """The separate model that drafts, if there is one."""
        return None if self.way == "early-exit" else getattr(self.generator, "assistant_model", None)

    @property
    def draft(self) -> str | None:
        """The name of what drafts; None in plain decoding."""
        if self.way == PLAIN:
            return None
        if self.assistant is not None:
            return _name(self.assistant)
        return PROMPT_LOOKUP.name if self.way == "lookup" else self.way


def assemble_calls(calls: list[Recorded], tokenizer: Tokenizer) -> Run:
    """The run of ``calls`` with one prompt, as its file would be read. Raises UserError if no run file can hold it."""
    if len(calls) > MAX_LANES:
        raise UserError(
            f"A run holds at most {MAX_LANES} calls with one prompt, not {len(calls)}: record fewer in one block."
        )
    first, lanes = calls[0], _lanes(calls)
    drafts = {call.draft: _draft_info(call) for call in calls if call.draft}
    target = replace(_model_info(first.model), engine=ENGINE)
    run = Run(
        id=new_id(),
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        machine=machine_of(target.device),
        pair=PairInfo(target.name, target, drafts, next(iter(drafts), "")),
        settings=_settings(calls, [trace.lane for trace in lanes], target.name, tokenizer),
        prompt_ids=first.prompt,
        costs=_costs(lanes),
        chains={},
        lanes=lanes,
        vocab=vocabulary(first.prompt, lanes, {}, tokenizer.token_text),
        token_limit=max(call.limit for call in calls),
    )
    return run_from_json(run_to_json(run))


def _settings(calls: list[Recorded], lanes: list[str], pair: str, tokenizer: Tokenizer) -> CompareRequest:
    """What the calls asked for, in the terms of a comparison."""
    return CompareRequest(
        prompt=tokenizer.decode(calls[0].prompt)[-MAX_PROMPT_CHARS:],
        lanes=lanes,
        max_new_tokens=min(MAX_NEW_TOKENS, max(call.limit for call in calls)),
        pair=pair,
        repeats=1,
        chat=False,
        **calls[0].choosing,
    )


# -- lanes


def _lanes(calls: list[Recorded]) -> list[Trace]:
    default = next((call.draft for call in calls if call.draft), None)
    reference = next((call for call in calls if call.way == PLAIN), calls[0])
    lanes: dict[str, Trace] = {}
    for call in calls:
        draft = call.draft if call.assistant is not None and call.draft != default else None
        numbers = range(1, len(calls) + 1)
        lane = next(one.lane for number in numbers if (one := Call(draft, call.way, number)).lane not in lanes)
        lanes[lane] = _trace(call, lane, reference)
    return list(lanes.values())


def _trace(call: Recorded, lane: str, reference: Recorded) -> Trace:
    return Trace(
        lane=lane,
        policy=call.way,
        draft=call.draft,
        output=call.output,
        iterations=[to_iteration(one, call.target, call.seen or None, call.draft, None) for one in call.raw],
        repeats=[_repeat(call)],
        finish=call.finish,
        verdict=_verdict(call, reference),
        notes=[*filter(None, [call.settings]), PROMPT_NOTE],
    )


def _repeat(call: Recorded) -> Repeat:
    draft, verify, policy, rest = map(list, zip(*call.seconds))
    drafting = [index for index, one in enumerate(call.raw) if one.drafted]
    prefill = call.before_s + _without_prompt(verify, range(len(verify))) + _without_prompt(draft, drafting)
    columns = [[round(seconds, 9) for seconds in column] for column in (draft, verify, policy, rest)]
    return Repeat(round(prefill, 9), *columns)


def _without_prompt(seconds: list[float], places: Iterable[int]) -> float:
    """Cuts the first of ``places`` to the median of the others; returns what was cut."""
    first, *others = [*places] or [0]
    if not others:
        return 0.0
    usual = min(seconds[first], median(seconds[index] for index in others))
    cut = seconds[first] - usual
    seconds[first] = usual
    return cut


def _verdict(call: Recorded, reference: Recorded) -> Verdict:
    if call.config.do_sample:
        return Verdict(same=None)
    shared = min(len(call.output), len(reference.output))  # a call may end sooner, by its own limit or criteria
    at = difference(call.output[:shared], reference.output[:shared])
    return Verdict(same=at is None, first_difference=at)


def settings_of(call: Recorded) -> str:
    """What drafts, and with which settings, in transformers' own words."""
    config = getattr(call.generator, "assistant_generation_config", call.config)
    names = {
        "assisted": ("num_assistant_tokens", "num_assistant_tokens_schedule", "assistant_confidence_threshold"),
        "lookup": ("prompt_lookup_num_tokens", "max_matching_ngram_size"),
        "early-exit": ("assistant_early_exit",),
    }.get("assisted" if call.way == "universal" else call.way, ())
    values = "".join(f", {name} {value}" for name in names if (value := getattr(config, name, None)) is not None)
    return f"transformers {transformers.__version__}, {type(call.generator).__name__}{values}."[:400]


# -- models


def _model_info(model: Any) -> ModelInfo:
    name, weight = _name(model), next(model.parameters())
    info = describe_model(model, name, str(model.config._name_or_path or name)[-400:], "")
    return replace(
        info,
        dtype=str(weight.dtype).removeprefix("torch."),
        device=str(weight.device),
        threads=torch.get_num_threads() if weight.device.type == "cpu" else 1,
    )


def _draft_info(call: Recorded) -> ModelInfo:
    if call.assistant is not None:
        return _model_info(call.assistant)
    assert call.draft is not None, "only what drafts is described"
    return without_model(call.draft, TITLES[call.way], call.model.config.get_text_config().vocab_size)


def _name(model: Any) -> str:
    """The last part of the folder or Hub id that the model was loaded from, as lanes may name it; else its type."""
    path = PurePath(str(model.config._name_or_path or "")).name or model.config.model_type
    return re.sub(r"[^A-Za-z0-9._-]+", "-", path).strip("-.")[:LONGEST_NAME] or "model"


# -- costs


def _costs(lanes: list[Trace]) -> Costs:
    """Curves through the iterations of the lanes themselves; nothing else was measured."""
    verifying: dict[int, list[float]] = defaultdict(list)
    drafting: dict[str, dict[int, list[float]]] = {trace.draft: defaultdict(list) for trace in lanes if trace.draft}
    rest: list[float] = []
    for trace in lanes:
        timed = trace.repeats[0]
        for iteration, draft_s, verify_s, rest_s in zip(trace.iterations, timed.draft_s, timed.verify_s, timed.rest_s):
            verifying[iteration.n_drafted + 1].append(verify_s)
            rest.append(rest_s)
            if trace.draft and iteration.drafted:
                drafting[trace.draft][iteration.n_drafted].append(draft_s)
    smallest = min(verifying)
    found = fit_costs(median(verifying[smallest]), verifying, drafting, rest)
    often = {n: seconds for n, seconds in verifying.items() if len(seconds) >= MIN_ITERATIONS}
    curve = [1.0] * (smallest - 1) + found.verify_curve
    return replace(found, verify_curve=curve[:MAX_VERIFIED], contradiction=contradiction(often))
