"""A served backend, and a client of answers that a test makes up."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from decoding.backends.base import Backend
from decoding.backends.remote import RemoteBackend
from decoding.backends.server import Limits

from .fakes import FakeBackend
from .soak import served

BODY = {"kind": "compare", "options": {"prompt": "x", "lanes": ["autoregressive"], "max_new_tokens": 8}}


@contextmanager
def served_at(backend: Backend | None = None, token: str = "", port: int = 0, **limits: Any) -> Iterator[str]:
    """The address of ``backend`` (by default a FakeBackend), served on loopback."""
    with served(backend or FakeBackend(), Limits(**limits), token, port) as port:
        yield f"http://127.0.0.1:{port}"


def answered(answer: Callable[[httpx.Request], httpx.Response]) -> RemoteBackend:
    """A client of a server that gives each request this answer."""
    return RemoteBackend("http://elsewhere:1", transport=httpx.MockTransport(answer))
