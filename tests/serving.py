"""A served backend, and a client of answers that a test makes up."""

import random
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from decoding.backends.base import Backend
from decoding.backends.remote import RemoteBackend

from .fakes import FakeBackend

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
