"""Measures whether streaming to a browser slows the lanes: ``python -m viz.tools.overhead``, one request by page and
CLI.

Both sides decode in a worker process of the same kind. One is read as by the command line (events are drained), the
other is streamed through Gradio to a real browser that draws it. The comparison uses the lanes' own clocks: decode time
per lane, medians over interleaved rounds. Needs playwright and a Chromium, and a quiet machine.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import threading

from decoding.backends import choose_backend
from decoding.records.request import CompareRequest
from decoding.records.run_file import run_from_json
from decoding.records.trace import Run

from ..page import build_page, serve
from ..settings import link_query

ALLOWED = 0.02
WAIT_MS = 600_000


def by_command_line(backend, request: CompareRequest) -> Run:
    """A run as in the command line: events are read and dropped."""
    last = None
    for event in backend.compare(request, threading.Event()):
        last = event
    if last is None or last.kind != "finished":
        raise SystemExit(f"The run ended as {last.kind if last else 'nothing'}: {last.data if last else ''}")
    return run_from_json(json.dumps(last.data["run"]))


def by_page(browser_page) -> Run:
    """A run as a visitor's: Run is pressed, the browser draws, the file is downloaded."""
    browser_page.locator("#run").click()
    browser_page.locator("#stop").wait_for(timeout=WAIT_MS)
    browser_page.locator("#run").wait_for(timeout=WAIT_MS)
    with browser_page.expect_download() as waiting:
        browser_page.get_by_role("button", name="Run file (JSON)").click(timeout=WAIT_MS)
    with open(waiting.value.path(), "rb") as file:
        return run_from_json(file.read())


def decode_ms(run: Run) -> dict[str, float]:
    """Lane -> median decode time over the repeats, in ms."""
    return {trace.lane: 1e3 * statistics.median(one.decode_s for one in trace.repeats) for trace in run.lanes}


def measure(rounds: int, request: CompareRequest) -> dict[str, list[tuple[float, float]]]:
    """Lane -> [(command line, page) in ms] per round; the two take turns at going first."""
    from playwright.sync_api import sync_playwright

    backend = choose_backend()
    recordings = tempfile.mkdtemp()
    _, url, _ = serve(build_page(backend, recordings), prevent_thread_lock=True, quiet=True)
    found: dict[str, list[tuple[float, float]]] = {lane: [] for lane in request.lanes}
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(args=["--no-sandbox"], **({"executable_path": path} if path else {}))
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        page.goto(f"{url}?{link_query(request)}")
        page.locator("#run").wait_for(timeout=WAIT_MS)
        page.wait_for_timeout(3000)
        by_command_line(backend, request)  # loads and warms up
        for number in range(rounds):
            ways = [lambda: by_command_line(backend, request), lambda: by_page(page)]
            first, second = ways if number % 2 == 0 else reversed(ways)
            results = [decode_ms(first()), decode_ms(second())]
            alone, paged = results if number % 2 == 0 else reversed(results)
            for lane in request.lanes:
                found[lane].append((alone[lane], paged[lane]))
            print(f"round {number + 1} of {rounds}", flush=True)
        browser.close()
    backend.close()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m viz.tools.overhead", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--lanes", default="autoregressive,static:5,oracle")
    parser.add_argument("--target", default="")
    parser.add_argument("--draft", default="")
    options = parser.parse_args()
    request = CompareRequest(
        prompt="def fibonacci(n):\n",
        lanes=options.lanes.split(","),
        max_new_tokens=options.max_new_tokens,
        target=options.target,
        draft=options.draft,
    )
    found = measure(options.rounds, request)
    for lane, pairs in found.items():
        alone, paged = (statistics.median(column) for column in zip(*pairs))
        print(f"{lane:24} command line {alone:8.1f} ms   page {paged:8.1f} ms")
    slower = statistics.median(paged / alone - 1 for pairs in found.values() for alone, paged in pairs)
    print(f"The page slows a lane by {slower:+.1%} (median over lanes and rounds; allowed: {ALLOWED:+.0%}).")
    return int(slower > ALLOWED)


if __name__ == "__main__":
    sys.exit(main())
