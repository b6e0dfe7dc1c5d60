"""Measures the latency of the What-if room: ``python -m viz.tools.whatif``, moving sliders in Chromium.

Prints the time from the move of a slider to the frame in which sentence, chart and both maps show the result: the
median, the slowest of a hundred moves, and the share of the replay and drawing before the browser painted. Needs
playwright and a Chromium, and a quiet machine. Fails above ALLOWED_MS.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from decoding.backends.recorded import RecordedBackend

from ..learn.export import export_lesson
from ..learn.lessons import shipped_lessons
from ..player.payload import run_payload

ALLOWED_MS = 100
MOVE = """async ([name, value]) => {
  const room = learn.places.whatif, { input } = room[name];
  const painted = () => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
  await painted();
  const start = performance.now();
  input.value = value;
  input.dispatchEvent(new Event("input", { bubbles: true }));
  const worked = performance.now() - start;
  await painted(); // the maps are drawn in the first of the two frames
  return [performance.now() - start, worked];
}"""


def measure(moves: int, identifier: str | None = None) -> list[tuple[float, float]]:
    """(ms until painted, ms of script before the first frame) of each move, on a recorded run."""
    from playwright.sync_api import sync_playwright

    recorded = RecordedBackend()
    run = recorded.load(identifier or recorded.recordings()[0].id)
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    with sync_playwright() as playwright, TemporaryDirectory() as folder:
        browser = playwright.chromium.launch(args=["--no-sandbox"], **({"executable_path": path} if path else {}))
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        file = Path(folder, "lesson.html")
        file.write_text(export_lesson(shipped_lessons()[0], run_payload(run, details=True)), encoding="utf-8")
        page.goto(file.as_uri())
        page.evaluate("learn.goTo({ place: 'whatif' })")
        found = [tuple(page.evaluate(MOVE, _move(k))) for k in range(moves)]
        browser.close()
    return found


def _move(k: int) -> list:
    """Each slider in turn, each time to another value."""
    names = (("c", 0.02 + 0.011 * (k % 90)), ("sl", 1 + k % 20), ("threshold", 0.01 * (k % 100)))
    return list(names[k % 3])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m viz.tools.whatif", description=__doc__.splitlines()[0])
    parser.add_argument("--moves", type=int, default=100)
    parser.add_argument("--run", help="id of the recorded run; the first one if not given")
    arguments = parser.parse_args()
    found = measure(max(3, arguments.moves), arguments.run)
    painted, worked = [one[0] for one in found], [one[1] for one in found]
    print(f"answer painted  {statistics.median(painted):6.1f} ms (slowest {max(painted):.1f})")
    print(f"script alone    {statistics.median(worked):6.1f} ms (slowest {max(worked):.1f})")
    return int(statistics.median(painted) > ALLOWED_MS)


if __name__ == "__main__":
    sys.exit(main())
