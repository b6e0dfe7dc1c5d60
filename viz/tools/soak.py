"""Tests whether the page's memory use stays constant: ``python -m viz.tools.soak``, many visitors' runs in sequence.

The front end's own memory is measured (resident set, after a collection) after 10 runs and after the last; the models
are in a separate process and do not count. Each run is a whole visit: a stream of deltas, details and figures, and all
three file downloads.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import logging
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from decoding.backends import choose_backend
from decoding.backends.recorded import RecordedBackend
from decoding.records.request import CompareRequest

from ..desk import answers
from ..session import Visits, race_stream
from ..store import RunStore

FIRST = 10  # the run after which the memory counts as settled


def resident_mb() -> float:
    """Resident set of this process in MB, after a collection."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 2**20


async def visit(backend, store: RunStore, visits: Visits, request: CompareRequest, name: str) -> str:
    """One visitor's run with details and downloads; returns the kind of its last event."""
    last: dict = {}
    async for delta in visits.deltas(partial(race_stream, backend, store, request), name, "race"):
        last = json.loads(delta)["events"][-1]
    if last["kind"] == "finished":
        desk = {function.__name__: function for function in answers(store, visits)}
        run = last["data"]["payload"]["id"]
        desk["details"]({"run": run, "lane": 1, "iteration": 0, "index": 0})
        desk["figures"]({"run": run})
        for kind in ("json", "csv", "html"):
            desk["take"]({"run": run, "kind": kind})
    return last["kind"]


async def soak(runs: int, request: CompareRequest, backend) -> int:
    """Prints the memory use; returns 0 if it grew by at most 5% from run 10 to the last."""
    store, visits, settled = RunStore(RecordedBackend(tempfile.mkdtemp())), Visits(), 0.0
    began = time.monotonic()
    for number in range(1, runs + 1):
        kind = await visit(backend, store, visits, request, f"visitor {number}")
        if kind != "finished":
            print(f"Run {number} ended as {kind}.")
            return 1
        if number == FIRST:
            settled = resident_mb()
        if number % FIRST == 0:
            print(f"{number:4} runs  {resident_mb():7.1f} MB  {time.monotonic() - began:6.0f} s", flush=True)
    grown = resident_mb() / settled - 1
    print(f"Memory after {runs} runs is {grown:+.1%} against that after {FIRST} (allowed: +5%).")
    return int(grown > 0.05)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m viz.tools.soak", description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--lanes", default="autoregressive,static:5,confidence:0.4,oracle")
    parser.add_argument("--target", default="")
    parser.add_argument("--draft", default="")
    options = parser.parse_args()
    if options.runs <= FIRST:
        parser.error(f"--runs must be above {FIRST}")
    logging.basicConfig(level=logging.WARNING)
    request = CompareRequest(
        prompt="def fibonacci(n):\n",
        lanes=options.lanes.split(","),
        max_new_tokens=options.max_new_tokens,
        repeats=1,
        target=options.target,
        draft=options.draft,
    )
    backend = choose_backend()
    try:
        return asyncio.run(soak(options.runs, request, backend))
    finally:
        backend.close()


if __name__ == "__main__":
    sys.exit(main())
