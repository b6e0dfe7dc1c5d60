"""Measures the time to first paint: ``python -m viz.tools.first_paint``, one new visitor at a time, without cache.

Prints the times from the click on a link until the document has arrived, the recorded run is painted (and starts to
play), and the form can be used. Needs playwright and a Chromium, and a quiet machine.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys

from decoding.backends.recorded import RecordedBackend

from ..page import build_page, serve

ALLOWED_MS = 1000
WAIT_MS = 60_000
# An element has been painted two frames after it was added to the document.
WATCH = """(() => {
  const seen = window.seen = {};
  const look = () => {
    for (const [name, place] of [["run", ".sd-strip"], ["form", "#run"]]) {
      if (!(name in seen) && document.querySelector(place)) {
        seen[name] = null;
        requestAnimationFrame(() => requestAnimationFrame(() => { seen[name] = performance.now(); }));
      }
    }
    requestAnimationFrame(look);
  };
  look();
})()"""
READ = "({document: performance.getEntriesByType('navigation')[0].responseEnd, ...window.seen})"


def visit(browser, url: str) -> dict[str, float]:
    """One new visitor's milliseconds until {document, run, form}."""
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    page = context.new_page()
    page.add_init_script(WATCH)
    page.goto(url)
    page.wait_for_function("window.seen.run && window.seen.form", timeout=WAIT_MS)
    times = page.evaluate(READ)
    context.close()
    return times


def measure(rounds: int) -> list[dict[str, float]]:
    """``rounds`` visits to a page with the shipped recordings, after one visit that warms up the server."""
    from playwright.sync_api import sync_playwright

    page = build_page(RecordedBackend())
    _, url, _ = serve(page, prevent_thread_lock=True, quiet=True)
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(args=["--no-sandbox"], **({"executable_path": path} if path else {}))
        found = [visit(browser, url) for _ in range(rounds + 1)][1:]
        browser.close()
    page.close(verbose=False)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m viz.tools.first_paint", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    found = measure(max(1, parser.parse_args().rounds))
    for name, text in (("document", "the document is here"), ("run", "the run plays"), ("form", "the form is there")):
        times = [one[name] for one in found]
        print(f"{text:22} {statistics.median(times):6.0f} ms  ({min(times):.0f} to {max(times):.0f})")
    return int(statistics.median(one["run"] for one in found) > ALLOWED_MS)


if __name__ == "__main__":
    sys.exit(main())
