"""The page's tools for language models, over MCP: typed questions, compact answers, a link to the whole run."""

# No "from __future__ import annotations" here: Gradio reads the real types of these signatures.

import asyncio
import importlib.util
import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import gradio as gr

from decoding.analysis.counts import counts
from decoding.analysis.metrics import speedup, static_speedups
from decoding.backends.base import Backend
from decoding.errors import UserError
from decoding.lookahead.lanes import expand_lanes
from decoding.records.events import new_id
from decoding.records.request import DEFAULT_LANES, SETTINGS, read_request
from decoding.records.run_file import run_of_events
from decoding.records.settings import Setting, with_parameters
from decoding.records.text import whole_text
from decoding.records.trace import Run, Trace

from .api import argument
from .player.details import token_details
from .session import Visits, address_of, stream_of
from .store import RunStore

OF_TOOLS: dict[str, dict[str, Any]] = {  # in place of what a form's settings have
    "max_new_tokens": {"default": 64, "high": 256},  # of one call: a model waits for the answer
    "repeats": {"default": 2},
    "lanes": {"kind": "text", "default": ",".join(DEFAULT_LANES)},  # one line, with ranges
}
OFFERED = {name: replace(setting, **OF_TOOLS.get(name, {})) for name, setting in SETTINGS.items() if setting.tools}


def check_installed() -> None:
    """Raises UserError if the package for MCP is missing."""
    if importlib.util.find_spec("mcp") is None:
        raise UserError("The package mcp is missing: pip install -r requirements-mcp.txt, or start without --mcp.")


def make_tools(backend: Backend, store: RunStore, visits: Visits) -> list[Callable]:
    """The tools, bound to ``backend``; runs that they make are kept in ``store``. They raise UserError."""
    made = partial(make_run, backend, store, visits)
    of_text = {name: setting for name, setting in OFFERED.items() if name not in ("lanes", "repeats")}

    async def compare_policies(visitor: gr.Request, *values: Any) -> str:
        """Decode a prompt with several lookahead policies of speculative decoding and compare their speed."""
        run = await made(visitor, dict(zip(OFFERED, values)))
        text = whole_text(run.lanes[0].output, run.vocab)
        figures = [lane_summary(run, lane) for lane in run.lanes]
        return _written({**_about(run, visitor), "text": text, "lanes": figures})

    async def best_speculation_length(visitor: gr.Request, *values: Any) -> str:
        """Which static speculation length (SL) decodes this prompt fastest? Simulated for SL 1 to 20 from one run."""
        fixed = {"lanes": "autoregressive,static:5,oracle", "repeats": 1}
        run = await made(visitor, {**dict(zip(of_text, values)), **fixed})
        return _written({**_about(run, visitor), **best_length(run)})

    async def explain_token(run: str, lane: str, position: int) -> str:
        """Why is a token there: which model proposed it, what decided its fate, and which tokens were also likely?

        Parameters:
            run: the id of a run from compare_policies.
            lane: one of its lanes, such as static:5.
            position: the token's position in the new text, from 0.
        """
        return _written(explain(await asyncio.to_thread(store.get, run), lane, position))

    async def list_pairs() -> str:
        """The pairs of models (a target and its drafts) that can be named here; a run says if one is too large."""
        pairs = [pair for pair in await asyncio.to_thread(backend.pairs) if pair.loadable]
        names = ("name", "title", "description", "default_draft", "reason")
        return _written([{name: getattr(pair, name) for name in names} | {"drafts": [*pair.drafts]} for pair in pairs])

    for tool, settings in ((compare_policies, OFFERED), (best_speculation_length, of_text)):
        with_parameters(tool, map(argument, settings.values()))
        described = (f"    {name}: {setting.help}{_range(setting)}" for name, setting in settings.items())
        tool.__doc__ = "\n".join([tool.__doc__ or "", "", "Parameters:", *described])
    return [compare_policies, best_speculation_length, explain_token, list_pairs]


def _range(setting: Setting) -> str:
    return f" {setting.bounds.capitalize()}." if setting.kind in ("whole", "number") else ""


async def make_run(
    backend: Backend, store: RunStore, visits: Visits, visitor: gr.Request | None, values: dict[str, Any]
) -> Run:
    """The run of a request with these ``values``, kept in ``store``. Raises UserError."""
    tokens = OFFERED["max_new_tokens"]
    tokens.check(tokens.parse(values["max_new_tokens"]))
    request = read_request({**values, "lanes": [lane.text for lane in expand_lanes(values["lanes"])]})
    job = partial(stream_of, partial(backend.compare, request))
    with visits.present(job, new_id(), "mcp", address_of(visitor)) as stream:
        async for events in stream.follow():
            last = events[-1]
    run = await asyncio.to_thread(run_of_events, [last])
    if run is None:
        raise UserError("The run was stopped.")
    await asyncio.to_thread(store.add, run)
    return run


def lane_summary(run: Run, trace: Trace) -> dict[str, Any]:
    """The main figures of a lane; None for figures that do not apply."""
    measured, found = speedup(run, trace), counts(trace)
    return {
        "lane": trace.lane,
        "speedup": round(measured.median, 3) if measured else None,
        "speedup_range": [round(measured.low, 3), round(measured.high, 3)] if measured else None,
        "tokens_per_target_pass": _rounded(found.tokens_per_target_pass),
        "acceptance_rate": _rounded(found.acceptance_rate),
        "mean_speculation_length": _rounded(found.mean_sl) if trace.draft else None,
        "same_text_as_plain_decoding": trace.verdict.same,
    }


def best_length(run: Run) -> dict[str, Any]:
    """Every static SL's simulated speedup on the text of ``run``, and the best. Raises UserError without a chain."""
    found = static_speedups(run, run.pair.default_draft)
    if not found:
        raise UserError("Nothing was decoded, so there is no speculation length to choose: try a longer prompt.")
    speedups = {sl: round(speedup, 3) for sl, speedup in found.items()}
    best = max(speedups, key=lambda sl: (speedups[sl], -sl))
    return {
        "best_speculation_length": best,
        "simulated_speedup_at_best": speedups[best],
        "chosen": "in hindsight, on this text alone",
        "simulated_speedups": {str(sl): value for sl, value in speedups.items()},
        "measured": [lane_summary(run, lane) for lane in run.lanes],
    }


def explain(run: Run, lane: str, position: int) -> dict[str, Any]:
    """The token at output ``position`` of ``lane``. Raises UserError if there is none."""
    numbers = {trace.lane: number for number, trace in enumerate(run.lanes)}
    if lane not in numbers:
        raise UserError(f"This run has no lane {lane[:60]}: it has {', '.join(numbers)}.")
    trace = run.lanes[numbers[lane]]
    if position not in range(len(trace.output)):
        last = len(trace.output) - 1
        raise UserError(f"The text has {last + 1} new tokens: give a position from 0 to {last}.")
    position = int(position)  # a program may have written 3.0
    at = next(k for k, it in enumerate(trace.iterations) if it.start <= position < it.start + len(it.tokens))
    iteration = trace.iterations[at]
    offset = position - iteration.start
    index = offset if offset < iteration.n_accepted else iteration.n_drafted
    return token_details(run, numbers[lane], at, index)


def _about(run: Run, visitor: gr.Request | None) -> dict[str, Any]:
    """The origin of the figures, and a link to the whole run while it is kept."""
    url = getattr(visitor, "url", None)
    base = f"{url.scheme}://{url.netloc}" if url is not None else ""
    return {"run": run.id, "link": f"{base}/?run={run.id}", "pair": run.pair.name, "machine": run.machine.where}


def _written(answer: Any) -> str:
    """As JSON: Gradio would write a dict as Python does."""
    return json.dumps(answer, ensure_ascii=False, separators=(",", ":"))


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
