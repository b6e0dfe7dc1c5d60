"""The idle work of a process with a loaded pair: it measures the costs that later runs will need, and chooses what
follows from them for the policies.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ..errors import UserError
from ..records.request import DEFAULT_LANES, CompareRequest
from ..records.trace import Costs
from .costs import Timer, measure_decision, warm_up
from .kept_costs import KnownCosts, Task
from .prepare import load_heads_of, prepare

Busy = Callable[[], bool]

TEXT = "The quick brown fox jumps over the lazy dog, and the dog does not mind. "
USUAL = CompareRequest(TEXT, lanes=list(DEFAULT_LANES))


def prepare_usual(known: KnownCosts, busy: Busy) -> None:
    """Prepare for the page's default run: measure cost curves and warm up its lanes."""
    draft = known.pair.default_draft
    context = len(known.pair.encode_prompt(USUAL.prompt)) + USUAL.max_new_tokens // 2
    if known.find([draft], context) is None:
        known.ask_for(draft, context)
        measure_asked(known, busy)
    set_policies(known, busy)
    costs = known.find([draft], context)
    for text in USUAL.lanes:
        if costs is not None and not busy():
            _warm_up(known, text, context, costs)


def measure_asked(known: KnownCosts, busy: Busy) -> None:
    """Measure the requested curves and keep them; stops when ``busy()``, leaving the rest for later."""
    if not busy():
        known.try_threads_again()
    while known.tasks and (measured := _measure(known, known.tasks[0], busy)) is not None:
        task = known.tasks[0]
        known.keep([task.draft] if task.draft else [], task.context, measured)


def set_policies(known: KnownCosts, busy: Busy) -> None:
    """Choose thresholds and the best fixed SL for every loaded draft whose curves have not; stops when ``busy()``."""
    for draft in filter(known.is_unset, list(known.pair.loaded_drafts)):
        for policy in load_heads_of(known.pair, draft):
            kept = known.typical(draft)
            if kept is not None and policy not in kept.costs.decision and not busy():
                lane = policy if draft == known.pair.default_draft else f"{draft}/{policy}"
                _warm_up(known, lane, kept.setting.context, kept.costs)
        if not busy():
            known.choose(draft, busy)


def _measure(known: KnownCosts, task: Task, busy: Busy) -> Costs | None:
    drafts = [task.draft] if task.draft else []
    prompt = known.pair.encode_prompt(TEXT).ids
    timer = Timer(known.pair, drafts, prompt, task.context)
    for _ in timer.rounds():
        if busy():
            return None
    return timer.costs()


def _warm_up(known: KnownCosts, text: str, context: int, costs: Costs) -> None:
    """Let a lane decode a few tokens, and keep the cost of its decisions. Lanes that this pair lacks are skipped."""
    try:
        prepared = prepare(replace(USUAL, lanes=[text]), known.pair, known.chosen)
    except UserError:
        return
    lane = prepared.lanes[0]
    if lane.is_plain:
        warm_up(prepared, lane, costs)
    decision = measure_decision(prepared, lane, costs)
    known.add_decisions(prepared.drafts or [known.pair.default_draft], context, {lane.policy: decision})
    known.warm.add(lane.text)
