"""A served backend, a client of answers that a test makes up, and clients whose connections are cut."""

import random
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx

from decoding.backends.base import Backend
from decoding.backends.remote import RemoteBackend
from decoding.records.request import CompareRequest

from .fakes import FakeBackend, check_stream

BODY = {"kind": "compare", "options": {"prompt": "x", "lanes": ["autoregressive"], "max_new_tokens": 8}}


@contextmanager
def served_at(backend: Backend | None = None, token: str = "", port: int = 0, **limits: Any) -> Iterator[str]:
    """The address of ``backend`` (by default a FakeBackend), served on a loopback port (0: a free one), in a thread."""
    import uvicorn

    from decoding.backends.server import Limits, create_app

    listener = socket.create_server(("127.0.0.1", port))
    app = create_app(backend or FakeBackend(), token, Limits(**limits))
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(timeout=10)
        listener.close()


def answered(answer: Callable[[httpx.Request], httpx.Response]) -> RemoteBackend:
    """A client of a server that gives each request this answer."""
    return RemoteBackend("http://elsewhere:1", transport=httpx.MockTransport(answer))


def free_port() -> int:
    """A port of this machine on which nothing listens, below those that Ray's own processes take while they start."""
    for port in random.sample(range(20_000, 30_000), 50):
        try:
            with socket.create_server(("127.0.0.1", port)):
                return port
        except OSError:
            continue
    raise OSError("No port of this machine is free.")


class Cut(httpx.SyncByteStream):
    """An answer that breaks off after ``left`` bytes, possibly within a line."""

    def __init__(self, stream: Any, left: int, transport: "Cutting") -> None:
        self.stream, self.left, self.transport = stream, left, transport

    def __iter__(self) -> Iterator[bytes]:
        for chunk in self.stream:
            if len(chunk) > self.left:
                yield chunk[: self.left]
                self.transport.cuts += 1
                raise httpx.ReadError("the connection was cut")
            self.left -= len(chunk)
            yield chunk

    def close(self) -> None:
        self.stream.close()


class Cutting(httpx.HTTPTransport):
    """Cuts each answer with events after a random number of bytes, of 16 to more than any line has."""

    def __init__(self) -> None:
        super().__init__()
        self.cuts, self._random = 0, random.Random(0)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        answer = super().handle_request(request)
        if request.method == "GET":
            answer.stream = Cut(answer.stream, 2 ** self._random.randrange(4, 20), self)
        return answer


def compare_through_cuts(url: str, requests: Sequence[CompareRequest], token: str = "") -> int:
    """Runs ``requests``, four at a time, over connections that are cut, and checks that each run arrives whole; returns
    the number of cuts.
    """
    transport = Cutting()
    remote = RemoteBackend(url, token, patience_s=300.0, transport=transport)

    def follow(request: CompareRequest) -> None:
        events = list(remote.compare(request, threading.Event()))
        check_stream(events)
        assert events[-1].kind == "finished", events[-1].data
        assert events[-1].data["run"]["settings"]["prompt"] == request.prompt

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(follow, requests))
    remote.close()
    return transport.cuts
