"""Measures how soon a run answers: ``python -m viz.tools.latency``, by Run on the page with real models in a worker.

Prints the times from the click on Run until the first token is on the page, the first repeat is replayed (with the
time of the lanes' own decoding), and the run has ended. The first run after a start is reported separately. Needs
playwright, a Chromium and a quiet machine; ``--pair`` names the pair (default: the page's).
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import time
from contextlib import closing, contextmanager
from urllib.parse import urlencode

from decoding.backends.local import LocalBackend
from decoding.records.request import DEFAULT_LANES

from ..page import build_page, serve

WAIT_MS = 300_000
FIRST_TOKEN_S = 0.5  # the goal for warm runs
AFTER_DECODING_S = 1.0  # from the end of the lanes' own decoding to the replay
RACE = "[...document.querySelectorAll('#race, #race *')].map((node) => node.speculoscope).find(Boolean)"
# Times of what is visible of a run, since the click. An element is painted two frames after it was added.
WATCH = """(race) => {
  const seen = window.runSeen = { clicked: performance.now() };
  const note = (name) => { seen[name] ??= requestAnimationFrame(() => requestAnimationFrame(() => {
    seen[name] = performance.now() - seen.clicked; })); };
  const { player } = race, { take } = player;
  player.take = function (event) {
    take.call(this, event);
    const { kind, data } = event;
    if (kind === "iterations") note("token");
    if (kind === "lane_finished" && data.repeat === 0) seen.decoding = (seen.decoding || 0) + 1000 * data.decode_s;
    if (kind === "replay" || kind === "finished") note("replay");
    if (kind === "finished") { note("whole"); player.take = take; }
  };
  document.querySelector("#run").click();
}"""
DONE = "window.runSeen && window.runSeen.whole > 0 && Number.isFinite(window.runSeen.whole)"


@contextmanager
def served(warm_s: float):
    """The address of a page over a worker process that has had ``warm_s`` seconds to prepare."""
    with closing(LocalBackend()) as backend:
        page = build_page(backend)
        _, url, _ = serve(page, prevent_thread_lock=True, quiet=True)
        backend.prepare()
        time.sleep(warm_s)
        try:
            yield url
        finally:
            page.close(verbose=False)


def open_page(browser, url: str, pair: str, tokens: int):
    """A page whose form is set to the run to be measured."""
    query = {"max_new_tokens": tokens, "lanes": ",".join(DEFAULT_LANES), "repeats": 3}
    if pair:
        query["pair"] = pair
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    page.goto(f"{url}?{urlencode(query)}")
    page.wait_for_function(RACE, timeout=WAIT_MS)
    page.wait_for_function(f"document.querySelector('#max-new-tokens input')?.value == {tokens}", timeout=WAIT_MS)
    page.wait_for_timeout(1000)  # fields in the closed settings are filled in last, and nothing shows it
    return page


def measure_run(page) -> dict[str, float]:
    """Seconds from the click to {token, replay, whole}; ``decoding``: of all lanes' first repeats together."""
    page.evaluate(f"({WATCH})({RACE})")
    page.wait_for_function(DONE, timeout=WAIT_MS)
    page.wait_for_function("document.querySelector('#run')?.disabled === false", timeout=WAIT_MS)  # absent in a run
    seen = page.evaluate("window.runSeen")
    return {name: seen[name] / 1000 for name in ("token", "replay", "whole", "decoding")}


def measure(pair: str, rounds: int, tokens: int, warm_s: float) -> list[dict[str, float]]:
    """``rounds`` runs one after another on one page; the first one comes ``warm_s`` seconds after the start."""
    from playwright.sync_api import sync_playwright

    path = shutil.which("chromium") or shutil.which("chromium-browser")
    with served(warm_s) as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(args=["--no-sandbox"], **({"executable_path": path} if path else {}))
        page = open_page(browser, url, pair, tokens)
        found = [measure_run(page) for _ in range(rounds)]
        browser.close()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m viz.tools.latency", description=__doc__.splitlines()[0])
    parser.add_argument("--pair", default="", help="name of a pair (default: the default pair)")
    parser.add_argument("--rounds", type=int, default=5, help="warm runs, after the first one")
    parser.add_argument("--tokens", type=int, default=96, help="new tokens of each lane")
    parser.add_argument("--warm", type=float, default=20.0, help="seconds between the start and the first run")
    options = parser.parse_args()
    first, *rest = measure(options.pair, 1 + max(1, options.rounds), options.tokens, options.warm)
    for title, runs in (("first run", [first]), ("warm", rest)):
        token, replay, after, whole = (
            statistics.median(values)
            for values in (
                [run["token"] for run in runs],
                [run["replay"] for run in runs],
                [run["replay"] - run["decoding"] for run in runs],
                [run["whole"] for run in runs],
            )
        )
        times = f"first token {token:.2f} s, replay {replay:.2f} s (lanes' own decoding + {after:.2f} s)"
        print(f"{title:10} {times}, all timings {whole:.2f} s")
    slow = statistics.median(run["token"] for run in rest) > FIRST_TOKEN_S
    late = statistics.median(run["replay"] - run["decoding"] for run in rest) > AFTER_DECODING_S
    return int(slow or late)


if __name__ == "__main__":
    sys.exit(main())
