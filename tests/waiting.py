"""Waiting for what happens elsewhere: in another thread, another process, another loop."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any


def in_own_loop(coroutine: Coroutine) -> Any:
    """Run ``coroutine`` to its end in a thread of its own: the tests' browser keeps a loop running in this one."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, coroutine).result()


def wait_until(there: Callable[[], Any], limit_s: float = 60.0) -> Any:
    """What ``there()`` gives as soon as that is true; fails after ``limit_s``."""
    deadline = time.monotonic() + limit_s
    while not (found := there()):
        assert time.monotonic() < deadline, "it did not come about in time"
        time.sleep(0.02)
    return found
