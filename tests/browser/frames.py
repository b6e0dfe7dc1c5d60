"""Frame times of the player on a run of 4 lanes x 2,000 tokens: ``python -m tests.browser.frames [frames]``.

A measurement, not a test: it wants a quiet machine. Replay at the default speed, dragging the rail from end to end,
seeking at random, moving the SL slider. The processor times are those of the page's main thread: they say what a frame
costs whatever else the machine does, roughly.
"""

import gzip
import json
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

from tests.browser.opening import open_export
from tests.runs import make_run
from viz.player.payload import run_payload
from viz.tools.chromium import open_chromium

MODES = {
    "replay": "",
    "drag": "player.seek((n % 150) / 150 * player.total)",
    "random seek": "player.seek(((n * 0.618) % 1) * player.total)",
    "SL slider": "player.simulate(n % 20)",
}
MEASURE = """async ([act, frames]) => {
  const step = new Function("n", act), times = [];
  player.pause(); player.seek(0);
  if (!act) player.play();
  await new Promise((done) => {
    let last = null, n = 0;
    const frame = (now) => {
      if (last !== null) times.push(now - last);
      last = now;
      step(n);
      if (++n < frames) requestAnimationFrame(frame); else done();
    };
    requestAnimationFrame(frame);
  });
  player.pause();
  return times.sort((a, b) => a - b);
}"""


def main(frames: int = 300) -> None:
    run = make_run(n_tokens=2000, alternatives=2)
    wire = json.dumps(run_payload(run), separators=(",", ":")).encode()
    print(f"payload {len(wire) / 1e6:.2f} MB, {len(gzip.compress(wire)) / 1e6:.2f} MB compressed")
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as folder:
        browser = open_chromium(playwright)
        page = open_export(browser, Path(folder), run, bypass_csp=True)
        session = page.context.new_cdp_session(page)
        session.send("Performance.enable", {"timeDomain": "threadTicks"})
        page.evaluate(MEASURE, ["", 60])  # warms up
        for name, act in MODES.items():
            before = _busy(session)
            times = page.evaluate(MEASURE, [act, frames])
            busy = (_busy(session) - before) / frames * 1000
            p50, p99 = times[len(times) // 2], times[int(len(times) * 0.99)]
            print(f"{name:12} p50 {p50:5.1f} ms  p99 {p99:5.1f} ms  max {times[-1]:5.1f} ms  cpu {busy:4.1f} ms")
        browser.close()


def _busy(session) -> float:
    """Processor seconds of the page's main thread."""
    metrics = {one["name"]: one["value"] for one in session.send("Performance.getMetrics")["metrics"]}
    return metrics["TaskDuration"]


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
