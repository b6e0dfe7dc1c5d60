"""Stand-ins for processes with models: they emit realistic events of a synthetic run, without torch.

The prompt steers :class:`ScriptedRunner`: ``#crash`` kills its process in the midst of the first lane, ``#fail``
raises there, ``#refuse`` raises a UserError, ``#slow`` takes 20 ms an iteration, ``#deaf`` ignores cancel,
``#gpufault`` raises and says that the device is lost. Its ``started`` contains the number of the run in its process
(``served``).
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from typing import Any

from decoding.backends.base import Backend
from decoding.errors import UserError
from decoding.records.events import LAST_KINDS, Event
from decoding.records.pairs import PairDescription
from decoding.records.request import CompareRequest, request_from_dict
from decoding.records.run_file import to_plain
from decoding.records.trace import Run, Token
from tests.runs import make_run

LANES = ["autoregressive", "static:5"]
LONG = {"max_new_tokens": 2000}


def small_request(prompt: str = "def f(x):\n", **changes: Any) -> CompareRequest:
    """A request that a ScriptedRunner and a real pair answer quickly."""
    settings = {"lanes": list(LANES), "max_new_tokens": 24, "repeats": 2, **changes}
    return CompareRequest(prompt=prompt, **settings)


def scripted_run(request: CompareRequest, identifier: str, **options: Any) -> Run:
    """What the stand-ins answer to ``request``. ``options``: of make_run."""
    run = make_run(
        lanes=tuple("disco:0.6" if lane == "disco" else lane for lane in request.lanes),
        n_tokens=request.max_new_tokens,
        repeats=request.repeats,
        seed=request.seed,
        prompt=request.prompt,
        identifier=identifier,
        **options,
    )
    return replace(run, settings=request)


def scripted_events(run: Run) -> Iterator[tuple[str, dict[str, Any]]]:
    """The events that ``compare`` would have emitted for ``run``, one per iteration."""
    lanes = [trace.lane for trace in run.lanes]
    yield "started", {"settings": asdict(run.settings), "pair": asdict(run.pair), "lanes": lanes}
    yield "progress", {"stage": "measuring", "message": "Measuring the costs", "fraction": 0.5}
    known: set[int] = set()
    for repeat in range(run.settings.repeats):
        for lane, trace in enumerate(run.lanes):
            yield "lane_started", {"lane": lane, "repeat": repeat}
            times = trace.repeats[repeat]
            columns = zip(times.draft_s, times.verify_s, times.policy_s, times.rest_s)
            for first, (iteration, clock) in enumerate(zip(trace.iterations, columns)):
                texts = {token.id: _text(run, token) for token in iteration.all_tokens if token.id not in known}
                known.update(texts)
                item = {
                    "d": [[token.id, token.fate] for token in iteration.drafted],
                    "e": [iteration.emitted.id, iteration.emitted.fate] if iteration.emitted else None,
                    "start": iteration.start,
                    "t": list(clock),
                    **({} if iteration.parents is None else {"parents": iteration.parents, "reads": iteration.reads}),
                }
                yield "iterations", {"lane": lane, "repeat": repeat, "first": first, "items": [item], "texts": texts}
            yield "lane_finished", {"lane": lane, "repeat": repeat, "decode_s": times.decode_s}
    yield "finished", {"run": to_plain(run)}


def _text(run: Run, token: Token) -> list[str | None]:
    text = run.vocab[token.id]
    return [text.text, text.bytes]


class ScriptedRunner:
    """Like Jobs: runs in the worker process of a LocalBackend, or in this process."""

    lost, served = False, 0

    def prepare(self) -> None:
        pass

    def idle(self, busy: Callable[[], bool]) -> None:
        pass

    def has_lost_device(self) -> bool:
        return self.lost

    def run(
        self, kind: str, options: dict[str, Any], run_id: str, cancel: Callable[[], bool]
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        if kind == "compare":
            yield from self._compare(options, run_id, cancel)
        else:
            yield from self._count(options, cancel)

    def _compare(self, options, run_id, cancel) -> Iterator[tuple[str, dict[str, Any]]]:
        request = request_from_dict(options)
        if "#refuse" in request.prompt:
            raise UserError("This pair cannot do that: choose another.")
        self.served += 1
        for kind, data in scripted_events(scripted_run(request, run_id, alternatives=1)):
            if cancel() and "#deaf" not in request.prompt:
                yield "cancelled", {}
                return
            yield kind, data | ({"served": self.served} if kind == "started" else {})
            if kind == "iterations":
                self._misbehave(request.prompt)
                if "#nan" in request.prompt:
                    yield "iterations", data | {"start": float("nan")}

    def _misbehave(self, prompt: str) -> None:
        if "#crash" in prompt:
            os.kill(os.getpid(), signal.SIGKILL)
        if "#fail" in prompt:
            raise RuntimeError("something broke")
        if "#gpufault" in prompt:
            self.lost = True
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        if "#slow" in prompt:
            time.sleep(0.02)

    def _count(self, options, cancel) -> Iterator[tuple[str, dict[str, Any]]]:
        """A long job of a different kind, which counts to ``n``."""
        for i in range(options["n"]):
            if cancel():
                yield "cancelled", {}
                return
            yield "progress", {"stage": "counting", "message": f"{i} of {options['n']}", "fraction": i / options["n"]}
            time.sleep(options.get("pause", 0.0))
        yield "finished", {"result": {"counted": options["n"]}}


def fake_pair() -> PairDescription:
    drafts = {"shallow": "shallow"}
    return PairDescription("toy", "Toy pair", "embedded", "target", drafts, "shallow", fitted={"shallow": ["disco"]})


class NeverStarts:
    """A runner whose process ends while it starts, as with models that crash the interpreter."""

    def __init__(self) -> None:
        raise SystemExit(3)


class FakeBackend(Backend):
    """A Backend without a process: every stream runs where it is read."""

    def _run(self, kind: str, options: dict[str, Any], cancel: threading.Event, run: str):
        yield "queued", {"place": 0}
        try:
            yield from ScriptedRunner().run(kind, options, run, cancel.is_set)
        except RuntimeError as error:
            yield "failed", {"message": str(error)}

    def pairs(self) -> list[PairDescription]:
        return [fake_pair()]

    def status(self) -> str:
        return "A stand-in for tests."


def live_texts(events: list[Event]) -> dict[tuple[int, int], list[int]]:
    """The text of every (lane, repeat) according to the ``iterations`` events."""
    texts: dict[tuple[int, int], list[int]] = {}
    for event in events:
        if event.kind == "iterations":
            text = texts.setdefault((event.data["lane"], event.data["repeat"]), [])
            for item in event.data["items"]:
                text += [token for token, fate in item["d"] if fate == "accepted"]
                text += [item["e"][0]] if item["e"] else []
    return texts


def check_stream(events: list[Event]) -> None:
    """The invariants of every whole stream: one run, no gap, one last event, and texts as in the run."""
    assert len({event.run for event in events}) == 1
    assert [event.seq for event in events] == list(range(len(events)))
    assert [event.kind in LAST_KINDS for event in events] == [False] * (len(events) - 1) + [True]
    assert {event.data["run"]["id"] for event in events if event.kind == "replay"} <= {events[0].run}
    if events[-1].kind == "finished" and "run" in events[-1].data:
        run = events[-1].data["run"]
        assert run["id"] == events[0].run
        for (lane, _), text in live_texts(events).items():
            assert text == run["lanes"][lane]["output"]


def compare(backend: Any, prompt: str = "def f(x):\n", cancel: threading.Event | None = None, **changes) -> list[Event]:
    """All events of a small run."""
    return list(backend.compare(small_request(prompt, **changes), cancel or threading.Event()))


def until(stream: Iterator[Event], kind: str = "iterations") -> list[Event]:
    """The next events of ``stream``, up to the first of this kind."""
    events = [next(stream)]
    while events[-1].kind != kind:
        events.append(next(stream))
    return events


def begin(backend: Any, prompt: str = "#slow", **changes) -> tuple[Iterator[Event], list[Event]]:
    """A run that is far from its end: its stream, and its events up to the first iteration."""
    stream = backend.compare(small_request(prompt, **LONG | changes), threading.Event())
    return stream, until(stream)


def stopped(backend: Any, prompt: str = "#slow", **changes) -> list[Event]:
    """All events of a run that is cancelled after its first iteration."""
    cancel = threading.Event()
    stream = backend.compare(small_request(prompt, **LONG | changes), cancel)
    events = until(stream)
    cancel.set()
    return [*events, *stream]


def last_sentence(events: list[Event]) -> str:
    """What a whole stream that failed says at its end."""
    check_stream(events)
    assert events[-1].kind == "failed"
    return events[-1].data["message"]
