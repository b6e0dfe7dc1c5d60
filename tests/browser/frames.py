"""Frame times of the player on a run of 4 lanes x 2,000 tokens: ``python -m tests.browser.frames``.

A measurement, not a test: it wants a quiet machine. Replay at the default speed, dragging the rail from end to end,
seeking at random, moving the SL slider; besides the frame times, the main thread's processor time per frame.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

from tests.browser.player_pages import open_export
from tests.runs import make_run

FRAMES = 300
MODES = {
    "replay": "",
    "drag": "player.seek((n % 150) / 150 * player.total)",
    "random seek": "player.seek(((n * 0.618) % 1) * player.total)",
    "SL slider": "player.simulate(n % 20)",
}
MEASURE = """async (act) => {
  const step = new Function("n", act), times = [];
  player.pause(); player.seek(0);
  if (!act) player.play();
  await new Promise((done) => {
    let last = null, n = 0;
    const frame = (now) => {
      if (last !== null) times.push(now - last);
      last = now;
      step(n);
      if (++n < FRAMES) requestAnimationFrame(frame); else done();
    };
    requestAnimationFrame(frame);
  });
  player.pause();
  return times.sort((a, b) => a - b);
}""".replace("FRAMES", str(FRAMES))


def main() -> None:
    path = os.environ.get("SPECULOSCOPE_CHROMIUM") or shutil.which("chromium")
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as folder:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        page = open_export(browser, Path(folder), make_run(size="large"), bypass_csp=True)
        session = page.context.new_cdp_session(page)
        session.send("Performance.enable", {"timeDomain": "threadTicks"})
        page.evaluate(MEASURE, "")  # warms up
        for name, act in MODES.items():
            before = _busy(session)
            times = page.evaluate(MEASURE, act)
            busy = (_busy(session) - before) / FRAMES * 1000
            p50, p99 = times[len(times) // 2], times[int(len(times) * 0.99)]
            print(f"{name:12} p50 {p50:5.1f} ms  p99 {p99:5.1f} ms  max {times[-1]:5.1f} ms  cpu {busy:4.1f} ms")
        browser.close()


def _busy(session) -> float:
    metrics = {one["name"]: one["value"] for one in session.send("Performance.getMetrics")["metrics"]}
    return metrics["TaskDuration"]


if __name__ == "__main__":
    main()
