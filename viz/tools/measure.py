"""Measures the page with real models, in Chromium: ``python -m viz.tools.measure latency`` (or ``overhead``).

``latency``: the times from the click on Run until the first token is on the page, the first repeat is replayed (with
the time of the lanes' own decoding), and the run has ended; the first run after a start is reported separately.
``overhead``: whether streaming to a browser slows the lanes. The same request is drained as by the command line and
drawn by a browser in turn; decode times by the lanes' own clocks are compared. Both need a quiet machine.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from statistics import median

from decoding.backends.base import Backend
from decoding.backends.local import LocalBackend
from decoding.records.request import DEFAULT_LANES, CompareRequest
from decoding.records.run_file import run_from_json, run_of_events
from decoding.records.trace import Run

from ..page import build_page, serve
from ..settings import link_query
from .chromium import open_chromium

WAIT_MS = 600_000
FIRST_TOKEN_S = 0.5  # the aim for warm runs
AFTER_DECODING_S = 1.0  # from the end of the lanes' own decoding to the replay
SLOWER = 0.02  # the aim: the page slows a lane by no more than this share
RACE = "[...document.querySelectorAll('#race, #race *')].map((node) => node.speculoscope).find(Boolean)"
# Times of what is visible of a run, since the click. An element is painted two frames after it was added.
WATCH = """(race) => {
  const seen = window.runSeen = { clicked: performance.now() };
  const note = (name) => { seen[name] ??= requestAnimationFrame(() => requestAnimationFrame(() => {
    seen[name] = performance.now() - seen.clicked; })); };
  const { hear } = race;
  race.hear = function (event) {
    hear.call(this, event);
    const { kind, data } = event;
    if (kind === "iterations") note("token");
    if (kind === "lane_finished" && data.repeat === 0) seen.decoding = (seen.decoding || 0) + 1000 * data.decode_s;
    if (kind === "replay" || kind === "finished") note("replay");
    if (kind === "finished") { note("whole"); race.hear = hear; }
  };
  document.querySelector("#run").click();
}"""
DONE = "window.runSeen && window.runSeen.whole > 0 && Number.isFinite(window.runSeen.whole)"


@contextmanager
def visited(backend: Backend, request: CompareRequest, warm_s: float) -> Iterator:
    """A page in Chromium, its form set to ``request``, over ``backend``, which had ``warm_s`` seconds to prepare."""
    from playwright.sync_api import sync_playwright

    page = build_page(backend, tempfile.mkdtemp())
    _, url, _ = serve(page, prevent_thread_lock=True, quiet=True)
    backend.prepare()
    time.sleep(warm_s)
    with sync_playwright() as playwright:
        browser = open_chromium(playwright)
        visitor = browser.new_page(viewport={"width": 1280, "height": 800})
        visitor.goto(f"{url}?{link_query(request)}")
        visitor.wait_for_function(RACE, timeout=WAIT_MS)
        filled = f"document.querySelector('#max-new-tokens input')?.value == {request.max_new_tokens}"
        visitor.wait_for_function(filled, timeout=WAIT_MS)
        visitor.wait_for_timeout(1000)  # fields in the closed settings are filled in last, and nothing shows it
        yield visitor
        browser.close()
    page.close(verbose=False)


def watched_run(visitor) -> dict[str, float]:
    """Seconds from the click to {token, replay, whole}; ``decoding``: of all lanes' first repeats together."""
    visitor.evaluate(f"({WATCH})({RACE})")
    visitor.wait_for_function(DONE, timeout=WAIT_MS)
    visitor.wait_for_function("document.querySelector('#run')?.disabled === false", timeout=WAIT_MS)  # absent in a run
    seen = visitor.evaluate("window.runSeen")
    return {name: seen[name] / 1000 for name in ("token", "replay", "whole", "decoding")}


def latency(request: CompareRequest, rounds: int, warm_s: float) -> bool:
    """Prints the latencies of a first run and of ``rounds`` warm ones; whether the aims were reached."""
    with closing(LocalBackend()) as backend, visited(backend, request, warm_s) as visitor:
        runs = [watched_run(visitor) for _ in range(1 + rounds)]
    for title, chosen in (("first run", runs[:1]), ("warm", runs[1:])):
        token, replay, whole = (median(run[name] for run in chosen) for name in ("token", "replay", "whole"))
        after = median(run["replay"] - run["decoding"] for run in chosen)
        times = f"first token {token:.2f} s, replay {replay:.2f} s (lanes' own decoding + {after:.2f} s)"
        print(f"{title:10} {times}, all timings {whole:.2f} s")
    return token <= FIRST_TOKEN_S and after <= AFTER_DECODING_S


def by_command_line(backend: Backend, request: CompareRequest) -> Run:
    """A run as in the command line: events are read and dropped."""
    run = run_of_events(backend.compare(request, threading.Event()))
    assert run is not None, "nobody stops it"
    return run


def by_page(visitor) -> Run:
    """A run as a visitor's: Run is pressed, the browser draws, the file is downloaded."""
    visitor.locator("#run").click()
    visitor.locator("#stop").wait_for(timeout=WAIT_MS)
    visitor.locator("#run").wait_for(timeout=WAIT_MS)
    with visitor.expect_download() as waiting:
        visitor.get_by_role("button", name="Run file (JSON)").click(timeout=WAIT_MS)
    with open(waiting.value.path(), "rb") as file:
        return run_from_json(file.read())


def decode_ms(run: Run) -> dict[str, float]:
    """Lane -> median decode time over the repeats, in ms."""
    return {trace.lane: 1e3 * median(one.decode_s for one in trace.repeats) for trace in run.lanes}


def overhead(request: CompareRequest, rounds: int, warm_s: float) -> bool:
    """Prints each lane's decode time both ways, medians over ``rounds``; whether the aim was reached."""
    found: dict[str, list[tuple[float, float]]] = {lane: [] for lane in request.lanes}
    with closing(LocalBackend()) as backend, visited(backend, request, warm_s) as visitor:
        by_command_line(backend, request)  # warms up
        for number in range(rounds):
            ways = [lambda: by_command_line(backend, request), lambda: by_page(visitor)]
            order = (0, 1) if number % 2 == 0 else (1, 0)  # the two take turns at going first
            times = {way: decode_ms(ways[way]()) for way in order}
            for lane in request.lanes:
                found[lane].append((times[0][lane], times[1][lane]))
            print(f"round {number + 1} of {rounds}", flush=True)
    for lane, pairs in found.items():
        alone, paged = (median(column) for column in zip(*pairs))
        print(f"{lane:24} command line {alone:8.1f} ms   page {paged:8.1f} ms")
    slower = median(paged / alone - 1 for pairs in found.values() for alone, paged in pairs)
    print(f"The page slows a lane by {slower:+.1%} (median over lanes and rounds; the aim: at most {SLOWER:+.0%}).")
    return slower <= SLOWER


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m viz.tools.measure", description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("latency", "overhead"))
    parser.add_argument("--pair", default="", help="name of a pair (default: the default pair)")
    parser.add_argument("--prompt", default="def fibonacci(n):\n")
    parser.add_argument("--picture", default="", help='a scene beside the prompt, such as "🐱 🐶 #7"')
    parser.add_argument("--lanes", default=",".join(DEFAULT_LANES))
    parser.add_argument("--rounds", type=int, default=5, help="rounds, after the first run")
    parser.add_argument("--tokens", type=int, default=96, help="new tokens of each lane")
    parser.add_argument("--warm", type=float, default=20.0, help="seconds between the start and the first run")
    options = parser.parse_args()
    request = CompareRequest(
        prompt=options.prompt,
        picture=options.picture,
        pair=options.pair,
        lanes=options.lanes.split(","),
        max_new_tokens=options.tokens,
    )
    measure = {"latency": latency, "overhead": overhead}[options.what]
    return int(not measure(request, max(1, options.rounds), options.warm))


if __name__ == "__main__":
    sys.exit(main())
