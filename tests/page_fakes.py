"""A backend without models for tests of the page: it emits the events of a synthetic run."""

from __future__ import annotations

import json
import threading
from dataclasses import asdict, replace
from typing import Any

from decoding.backends.base import Backend, JobEvents
from decoding.records.pairs import PairDescription
from decoding.records.request import CompareRequest
from decoding.records.run_file import to_plain
from decoding.records.trace import Iteration, Run, Trace

from .runs import make_run


def fake_pair() -> PairDescription:
    return PairDescription(
        name="toy",
        title="Toy pair",
        kind="embedded",
        target="target",
        drafts={"shallow": "shallow"},
        default_draft="shallow",
        fitted={"shallow": ["disco"]},
    )


class ScriptedBackend(Backend):
    """One comparison at a time, in order of arrival; an iteration every ``pause_s``. ``options``: of make_run."""

    name = "scripted"

    def __init__(self, pause_s: float = 0.0, **options: Any) -> None:
        super().__init__()
        self.pause_s, self.options = pause_s, options
        self.requests: list[CompareRequest] = []
        self.go_on = threading.Event()  # after the first repeat
        self.go_on.set()
        self._turn = threading.Lock()
        self._waiting = 0

    def _run(self, kind: str, options: dict[str, Any], cancel: threading.Event, run: str) -> JobEvents:
        if kind != "compare":
            yield from self._long_job(kind, cancel)
            return
        request = CompareRequest(**options)
        self._waiting += 1
        self.requests.append(request)
        yield "queued", {"place": self._waiting - 1}
        try:
            while not self._turn.acquire(timeout=0.02):
                if cancel.is_set():
                    yield "cancelled", {}
                    return
            try:
                yield from self._stream(request, cancel, run)
            finally:
                self._turn.release()
        finally:
            self._waiting -= 1

    def _stream(self, request: CompareRequest, cancel: threading.Event, identifier: str) -> JobEvents:
        run = self.make(request, identifier)
        yield "started", {"settings": asdict(request), "pair": asdict(run.pair), "lanes": list(request.lanes)}
        yield "progress", {"stage": "loading", "message": "Loading the pair", "fraction": 0.5}
        plain: dict[str, Any] = {}  # the run so far
        for repeat in range(request.repeats):
            for lane, trace in enumerate(run.lanes):
                yield "lane_started", {"lane": lane, "repeat": repeat}
                for first, iteration in enumerate(trace.iterations):
                    held = "endless" in request.prompt and (lane, first) == (1, 2)  # in mid-lane until it is stopped
                    if cancel.wait(None if held else self.pause_s):
                        yield ("finished", {"run": plain}) if repeat else ("cancelled", {})
                        return
                    yield "iterations", _live(run, trace, lane, repeat, first, iteration)
                yield "lane_finished", {"lane": lane, "repeat": repeat, "decode_s": trace.repeats[repeat].decode_s}
            so_far = replace(run, chains={}, lanes=[replace(t, repeats=t.repeats[: repeat + 1]) for t in run.lanes])
            plain = json.loads(json.dumps(to_plain(so_far)))
            yield "replay", {"run": plain, "timings": repeat + 1, "of": request.repeats}
            while repeat == 0 and not self.go_on.wait(0.02) and not cancel.is_set():
                pass
        yield "finished", {"run": json.loads(json.dumps(to_plain(run)))}

    def _long_job(self, kind: str, cancel: threading.Event) -> JobEvents:
        yield "queued", {"place": 0}
        for step in range(50):
            if cancel.wait(self.pause_s):
                yield "cancelled", {}
                return
            yield "progress", {"stage": kind, "message": f"Prompt {step + 1} of 50", "fraction": step / 50}
        yield "failed", {"message": "This scripted backend has no evaluation."}

    def make(self, request: CompareRequest, run_id: str) -> Run:
        run = make_run(
            lanes=tuple("disco:0.6" if lane == "disco" else lane for lane in request.lanes),
            n_tokens=request.max_new_tokens,
            repeats=request.repeats,
            prompt=request.prompt,
            identifier=run_id,
            **self.options,
        )
        return replace(run, settings=request)

    def pairs(self) -> list[PairDescription]:
        return [fake_pair()]

    def status(self) -> str:
        return "Scripted."


def _live(run: Run, trace: Trace, lane: int, repeat: int, first: int, iteration: Iteration) -> dict[str, Any]:
    tokens = [*iteration.drafted, *([iteration.emitted] if iteration.emitted else [])]
    times = trace.repeats[repeat]
    item = {
        "d": [[token.id, token.fate] for token in iteration.drafted],
        "e": [iteration.emitted.id, iteration.emitted.fate] if iteration.emitted else None,
        "start": iteration.start,
        "t": [times.draft_s[first], times.verify_s[first], times.policy_s[first], times.rest_s[first]],
    }
    texts = {str(t.id): [run.vocab[t.id].text, run.vocab[t.id].bytes] for t in tokens}
    return {"lane": lane, "repeat": repeat, "first": first, "items": [item], "texts": texts}
