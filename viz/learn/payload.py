"""The Learn tab's data for a run: its record, with the display names and fitted parameters that a replay needs."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from decoding.analysis import metrics
from decoding.analysis.whatif import ending
from decoding.errors import UserError
from decoding.lookahead.fitted import heads_of
from decoding.lookahead.specs import all_specs
from decoding.records.pairs import describe_pairs
from decoding.records.trace import Run, Trace

from ..player import sentences
from ..player.appendix import settings_table
from ..player.names import lane_caption, lane_name

PROMPT_CHARS = 600  # the end of the prompt, shown before the text
TUNED = ("threshold", "sl_max", "sure", "ledger", "this", "next", "recent", "first", "caution")  # for a replay


def learn_payload(run: Run, *, title: str = "", origin: str = "live") -> dict[str, Any]:
    """Everything that the Learn tab shows of ``run``, JSON-ready: recorded chains and costs, lanes with their times."""
    how = ending(run)
    return {
        "id": run.id,
        "title": title or _first_line(run),
        "origin": origin,
        "sentence": sentences.opening(run),
        "doubt": sentences.doubt(run),
        "badge": sentences.badge_text(run),
        "prompt": run.settings.prompt[-PROMPT_CHARS:],
        "chat": _is_chat(run),
        "rule": run.settings.rule,
        "temperature": run.settings.temperature,
        "seed": run.settings.seed,
        "settings": settings_table(run),
        "default_draft": run.pair.default_draft,
        "token_limit": how["max_new_tokens"],
        "finish": how["finish"],
        "costs": asdict(run.costs),
        "chains": {draft: asdict(chain) for draft, chain in run.chains.items()},
        "lanes": [_lane(run, trace) for trace in run.lanes],
        "titles": {name: spec.title for name, spec in all_specs().items()},
        "vocab": {str(token): [entry.text, entry.bytes] for token, entry in run.vocab.items()},
        "tuned": {draft: _tuned(run, draft) for draft in run.chains},
    }


def _is_chat(run: Run) -> bool:
    """Whether the text answers the prompt; otherwise it continues it."""
    named = next((pair.chat for pair in describe_pairs() if pair.name == run.pair.name), False)
    return named if run.settings.chat is None else run.settings.chat


def _first_line(run: Run) -> str:
    line = next((one.strip() for one in run.settings.prompt.splitlines() if one.strip()), run.id)
    return line[:80]


def _lane(run: Run, trace: Trace) -> dict[str, Any]:
    spread, shown = metrics.speedup(run, trace), metrics.replayed_speedup(run, trace)
    return {
        "lane": trace.lane,
        "name": lane_name(trace.lane),
        "caption": lane_caption(trace.lane),
        "policy": trace.policy,
        "draft": trace.draft,
        "output": trace.output,
        "same": trace.verdict.same,
        "iterations": [asdict(iteration) for iteration in trace.iterations],
        "times": _times(run, trace),
        "speedup": {"shown": shown, "median": spread.median} if spread and shown else None,
    }


def _times(run: Run, trace: Trace) -> list[list[float]]:
    """Per iteration of the repeat that the page replays: seconds of draft, check, policy and the rest."""
    index = metrics.replayed_repeat(run)
    if index is None or index >= len(trace.repeats):
        return []
    repeat = trace.repeats[index]
    return [list(row) for row in zip(repeat.draft_s, repeat.check_s, repeat.policy_s, repeat.rest_s, strict=True)]


def _tuned(run: Run, draft: str) -> dict[str, dict[str, Any]]:
    """The fitted parameters of each learned policy whose scores the chain contains; {} if its files are missing."""
    try:
        heads = heads_of(run, draft)
    except UserError:
        return {}
    scored = run.chains[draft].along.scores
    return {
        name: {key: head.tuned[key] for key in TUNED if key in head.tuned}
        for name, head in heads.items()
        if name in scored
    }
