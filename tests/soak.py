"""A served backend whose connections are cut at random: no event may be lost or mixed up."""

from __future__ import annotations

import asyncio
import random
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from decoding.backends.base import Backend
from decoding.backends.remote import RemoteBackend
from decoding.backends.server import Limits, create_app
from decoding.records.events import Event, RawEvents, event_to_json
from decoding.records.pairs import PairDescription
from decoding.records.request import CompareRequest

# Patience of both sides: the test is about lost events, not about timeouts on a busy machine.
PATIENCE_S = 300.0


@dataclass
class SoakResult:
    """The counts of runs and faults, while ``cuts`` connections were cut."""

    runs: int = 0
    events: int = 0
    cuts: int = 0
    ends: Counter[str] = field(default_factory=Counter)  # last event -> runs
    lost: int = 0  # events that never arrived
    mixed: int = 0  # runs whose events differ from those that the backend sent, or are of another run's text
    sentences: Counter[str] = field(default_factory=Counter)  # of runs that failed

    @property
    def is_clean(self) -> bool:
        return self.lost == 0 and self.mixed == 0 and self.ends["finished"] == self.runs

    def judge(self, events: list[Event], sent: list[str] | None, request: CompareRequest) -> None:
        """Adds one run: the ``events`` that arrived and ``sent``, those that the backend sent (JSON), if known."""
        last = events[-1]
        self.runs += 1
        self.events += len(events)
        self.ends[last.kind] += 1
        arrived = [event_to_json(event) for event in events]
        sent = arrived if sent is None else sent
        self.lost += len(set(sent) - set(arrived))
        self.mixed += (last.kind == "finished" and arrived != sent) or not _is_own(events, request)
        if last.kind == "failed":
            self.sentences[last.data["message"]] += 1


@dataclass(frozen=True, slots=True)
class SoakOptions:
    """``clients`` run at a time; each connection lives a random time within ``cut_after_s``, longer on a machine so
    busy that shorter ones carry nothing (:class:`_Lifetimes`).
    """

    clients: int = 4
    cut_after_s: tuple[float, float] = (0.01, 0.4)
    seed: int = 0
    token: str = ""  # of a backend that is already served


def soak(backend: Backend, requests: list[CompareRequest], options: SoakOptions) -> SoakResult:
    """Run ``requests`` through ``backend`` served on loopback behind a proxy that cuts connections.

    The prompts must differ from each other.
    """
    limits = Limits(max_runs=options.clients + 1, any_model=True, grace_s=PATIENCE_S)
    witness = Witness(backend)
    with served(witness, limits) as port:
        return soak_served(port, requests, options, witness)


def soak_served(
    port: int, requests: list[CompareRequest], options: SoakOptions, witness: Witness | None = None
) -> SoakResult:
    """As :func:`soak`, for a backend that is already served, at ``port`` of this machine.

    Without a ``witness`` of what the backend sent, a run counts as whole if its events have all numbers and its live
    tokens are the texts of all lanes and repeats.
    """
    result, adding = SoakResult(), threading.Lock()

    def add(answer: tuple[CompareRequest, list[Event]]) -> None:
        request, events = answer
        with adding:
            result.judge(events, None if witness is None else witness.sent.pop(events[0].run, []), request)

    with _cutting_proxy(port, options.cut_after_s, options.seed, result) as cut:
        _visit(f"http://127.0.0.1:{cut}", requests, options.clients, add, options.token)
    return result


def _visit(
    url: str,
    requests: Sequence[CompareRequest],
    clients: int,
    add: Callable[[tuple[CompareRequest, list[Event]]], None],
    token: str,
) -> None:
    """Sends ``requests``, ``clients`` at a time, and gives ``add`` each run."""

    def follow(request: CompareRequest) -> None:
        add((request, list(remote.compare(request, threading.Event()))))

    remote = RemoteBackend(url, token, patience_s=PATIENCE_S)
    with ThreadPoolExecutor(clients) as pool:
        list(pool.map(follow, requests))
    remote.close()


class Witness(Backend):
    """Passes on to another backend, and records each run's events as lines of JSON, on the server's side."""

    name = "witness"

    def __init__(self, backend: Backend) -> None:
        super().__init__()
        self._backend = backend
        self.sent: dict[str, list[str]] = {}  # run -> its events

    def _run(self, kind: str, options: dict[str, Any], cancel: threading.Event, run: str) -> RawEvents:
        for event in self._backend.run_job(kind, options, cancel, run):
            self.sent.setdefault(run, []).append(event_to_json(event))
            yield event.kind, event.data

    def pairs(self) -> list[PairDescription]:
        return self._backend.pairs()

    def status(self) -> str:
        return self._backend.status()

    def close(self) -> None:
        self._backend.close()


def _is_own(events: list[Event], request: CompareRequest) -> bool:
    """Whether the finished run answers ``request`` and the live tokens are the texts of all its lanes and repeats."""
    last = events[-1]
    if last.kind != "finished":
        return True
    run = last.data["run"]
    expected = {
        (number, repeat): lane["output"]
        for number, lane in enumerate(run["lanes"])
        for repeat in range(request.repeats)
        if lane["output"]
    }
    numbered = [event.seq for event in events] == list(range(len(events)))
    return numbered and run["settings"]["prompt"] == request.prompt and live_texts(events) == expected


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


@contextmanager
def served(backend: Backend, limits: Limits, token: str = "", port: int = 0) -> Iterator[int]:
    """``backend`` on a loopback port (0: a free one, which it gives), in a thread."""
    import uvicorn

    listener = socket.create_server(("127.0.0.1", port))
    config = uvicorn.Config(create_app(backend, token, limits), log_level="error", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(timeout=10)
        listener.close()


@contextmanager
def _cutting_proxy(port: int, cut_after_s: tuple[float, float], seed: int, result: SoakResult) -> Iterator[int]:
    """A TCP proxy before ``port`` that cuts each connection after a random time, possibly within a line."""
    lifetimes, listener = _Lifetimes(*cut_after_s, seed), socket.create_server(("127.0.0.1", 0))
    ending: list[Callable[[], Any]] = []
    ready = threading.Event()

    async def join(client_reader: asyncio.StreamReader, client_writer: asyncio.StreamWriter) -> None:
        writers, ways = [client_writer], []
        try:
            server_reader, server_writer = await asyncio.open_connection("127.0.0.1", port)
            writers.append(server_writer)
            answered = asyncio.Event()
            ways += [
                asyncio.create_task(_copy(client_reader, server_writer)),
                asyncio.create_task(_copy(server_reader, client_writer, answered)),
            ]
            _, cut = await asyncio.wait(ways, timeout=lifetimes.draw())
            result.cuts += bool(cut)
            lifetimes.observe(answered.is_set())
        except (asyncio.CancelledError, OSError):
            pass  # the test is over
        finally:
            for way in ways:
                way.cancel()
            for writer in writers:
                writer.transport.abort()

    async def run() -> None:
        loop, end = asyncio.get_running_loop(), asyncio.Event()
        ending.append(lambda: loop.call_soon_threadsafe(end.set))
        await asyncio.start_server(join, sock=listener)
        ready.set()
        await end.wait()  # asyncio.run then cancels the connections

    thread = threading.Thread(target=lambda: asyncio.run(run()), daemon=True)
    thread.start()
    ready.wait(10)
    try:
        yield listener.getsockname()[1]
    finally:
        ending[0]()
        thread.join(timeout=5)
        listener.close()


class _Lifetimes:
    """Lifetimes of connections in seconds: uniform between ``shortest`` and ``longest``.

    On a machine so busy that even the longest lifetime ends before the first answer, no client could make progress. So
    the range doubles with each connection cut unanswered, and halves with each answer, down to its start.
    """

    def __init__(self, shortest: float, longest: float, seed: int) -> None:
        self._random = random.Random(seed)
        self._span = shortest, longest
        self._longer = 1.0

    def draw(self) -> float:
        return self._longer * self._random.uniform(*self._span)

    def observe(self, answered: bool) -> None:
        self._longer = max(1.0, self._longer / 2) if answered else 2 * self._longer


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, begun: asyncio.Event | None = None) -> None:
    try:
        while data := await reader.read(65536):
            if begun is not None:
                begun.set()
            writer.write(data)
            await writer.drain()
        writer.write_eof()
    except OSError:
        pass  # either side closed the connection, as intended


def free_port() -> int:
    """A port of this machine on which nothing listens, below those that Ray's own processes take while they start."""
    for port in random.sample(range(20_000, 30_000), 50):
        try:
            with socket.create_server(("127.0.0.1", port)):
                return port
        except OSError:
            continue
    raise OSError("No port of this machine is free.")
