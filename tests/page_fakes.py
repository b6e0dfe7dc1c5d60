"""A backend without models for tests of the page: it emits the events of a synthetic run."""

import json
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

from decoding.records.events import RawEvents
from decoding.records.pairs import PairDescription
from decoding.records.request import CompareRequest
from decoding.records.run_file import to_plain

from .fakes import FakeBackend, scripted_events, scripted_run


def pair_in(folder: Path) -> PairDescription:
    """The toy pair with files in ``folder`` that stand for its weights."""
    for name in ("target", "shallow"):
        (folder / name).mkdir()
        (folder / name / "config.json").write_text("{}")
        (folder / name / "model.safetensors").write_bytes(name.encode())
    drafts = {"shallow": str(folder / "shallow")}
    return PairDescription("toy", "Toy pair", "embedded", str(folder / "target"), drafts, "shallow")


class ScriptedBackend(FakeBackend):
    """One comparison at a time, in order of arrival; an iteration every ``pause_s``. ``options``: of make_run."""

    def __init__(self, pause_s: float = 0.0, **options: Any) -> None:
        self.pause_s, self.options = pause_s, options
        self.requests: list[CompareRequest] = []
        self.go_on = threading.Event()  # after the first repeat
        self.go_on.set()
        self._turn = threading.Lock()
        self._waiting = 0

    def _run(self, kind: str, options: dict[str, Any], cancel: threading.Event, run: str) -> RawEvents:
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

    def _stream(self, request: CompareRequest, cancel: threading.Event, identifier: str) -> RawEvents:
        run, plain = scripted_run(request, identifier, **self.options), {}
        for kind, data in scripted_events(run):
            if kind == "iterations":
                held = "endless" in request.prompt and (data["lane"], data["first"]) == (1, 2)
                if cancel.wait(None if held else self.pause_s):  # held: in mid-lane until it is stopped
                    yield ("finished", {"run": plain}) if plain else ("cancelled", {})
                    return
            yield kind, json.loads(json.dumps(data))
            if kind == "lane_finished" and data["lane"] == len(run.lanes) - 1:
                timings = data["repeat"] + 1
                lanes = [replace(trace, repeats=trace.repeats[:timings]) for trace in run.lanes]
                plain = json.loads(json.dumps(to_plain(replace(run, chains={}, lanes=lanes))))  # the run so far
                yield "replay", {"run": plain, "timings": timings, "of": request.repeats}
                while timings == 1 and not self.go_on.wait(0.02) and not cancel.is_set():
                    pass

    def _long_job(self, kind: str, cancel: threading.Event) -> RawEvents:
        yield "queued", {"place": 0}
        for step in range(50):
            if cancel.wait(self.pause_s):
                yield "cancelled", {}
                return
            yield "progress", {"stage": kind, "message": f"Prompt {step + 1} of 50", "fraction": step / 50}
        yield "failed", {"message": "This scripted backend has no evaluation."}
