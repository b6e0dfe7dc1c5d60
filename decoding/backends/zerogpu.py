"""Comparisons on a Hugging Face Space with ZeroGPU: a GPU is lent for the length of one decorated call."""

from __future__ import annotations

import spaces  # isort: skip  (it patches torch, so it must come before torch is first imported)

import json
import logging
import re
import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

from ..errors import UserError, sentence_of
from ..records.events import LAST_KINDS, Kind, RawEvents, guarded
from ..records.pairs import PairDescription, find_pair
from ..records.request import ASK_FOR_LESS, PUBLIC, CompareRequest, number_formats
from .base import Backend
from .jobs import Jobs

log = logging.getLogger(__name__)

START_S = 10.0  # moving the weights, measuring the costs, the warm-up
SECONDS_PER_TOKEN = 0.012  # of the slowest lane, generously: less is returned, more is cut off
EXTRA_PASSES = 2  # the reference text and the chains, on top of the repeats
LONGEST_S = 120.0
RECORDED = "You can still play the recorded runs."


class ZeroGPUBackend(Backend):
    """The decorated function replaces the worker process; Spaces queues, lends the GPU and forks.

    Create it while the program starts: the models must be on the device before a call. Only the default pair is
    offered, since a fork cannot keep what it loads.
    """

    only_comparisons = "This takes longer than a GPU is lent to one visitor: run it on a machine of your own."
    _grant = PUBLIC

    def __init__(self, runner: Jobs | None = None) -> None:
        self._pair = find_pair()
        if runner is None:
            runner = Jobs(device="cuda")
            runner.preload()

        def work(kind: str, options: dict[str, Any], run_id: str) -> Iterator[tuple[Kind, str]]:
            """Runs in the fork, whose stream ends when it is closed. It yields JSON, as the worker process does:
            pickles would keep numeric keys, which cannot be sent to pages and programs.
            """
            for event_kind, data in guarded(runner.run(kind, options, run_id, lambda: False)):
                yield event_kind, json.dumps(data, allow_nan=False)

        self._work = spaces.GPU(duration=estimate_seconds)(work)

    def pairs(self) -> list[PairDescription]:
        return [self._pair]

    def status(self) -> str:
        return "Runs on a GPU that Hugging Face lends for each run, out of the visitor's own quota."

    def _check(self, request: CompareRequest) -> None:
        if request.target or request.pair not in ("", self._pair.name):
            raise UserError(f"Only the pair {self._pair.name} runs here: choose it, or run others on your own machine.")
        if number_formats(request) != ("auto", "auto"):
            raise UserError("Here the models are loaded before a run: leave the number formats at auto.")
        super()._check(request)

    def _run(self, kind: str, options: dict[str, Any], cancel: threading.Event, run: str) -> RawEvents:
        """The events of the GPU's process; a refusal by Spaces becomes a sentence."""
        yield "queued", {"place": 0}
        try:
            with closing(self._work(kind, options, run)) as events:
                for one, text in events:
                    if cancel.is_set() and one not in LAST_KINDS:
                        yield "cancelled", {}
                        return
                    yield one, json.loads(text)
            yield "failed", {"message": f"The GPU was withdrawn before the run was done. {ASK_FOR_LESS} {RECORDED}"}
        except Exception as error:  # the boundary to people: Spaces raises gradio errors, which are not known here
            yield "failed", {"message": refusal(error)}


def estimate_seconds(kind: str, options: dict[str, Any], run_id: str) -> float:
    """The GPU time to request for these settings: short requests are served sooner."""
    lanes = len(options.get("lanes", ())) or 1
    passes = options.get("repeats", 1) * lanes + EXTRA_PASSES
    return min(LONGEST_S, START_S + passes * options.get("max_new_tokens", 0) * SECONDS_PER_TOKEN)


def refusal(error: Exception) -> str:
    """A sentence for what Spaces raised: quota, queue, an aborted process."""
    title = str(getattr(error, "title", ""))
    message = re.sub(r"<[^>]*>", "", str(getattr(error, "message", "") or error)).strip().rstrip(".")
    if re.search("quota|credits|queue|duration", title, re.IGNORECASE):
        return f"No GPU is free for this run ({title}): {message}. {RECORDED}"
    log.error("a run on ZeroGPU failed", exc_info=error)
    if title:
        return f"The GPU run ended early: {message}. {ASK_FOR_LESS} {RECORDED}"
    return f"{sentence_of(error)} {RECORDED}"
