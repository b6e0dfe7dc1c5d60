"""The part of an exported file below the player: how the run was made, and how fast every static SL would be.

Plain HTML and SVG that need no script; everything from the run file is escaped.
"""

from __future__ import annotations

from html import escape

from decoding.analysis import metrics
from decoding.analysis.whatif import ending, static_sweep
from decoding.errors import UserError
from decoding.lookahead.lanes import parse_lane
from decoding.records.trace import Run, Trace

from .names import lane_name

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 640, 240, 44, 34, 14


def appendix(run: Run) -> str:
    """HTML of the plots and the settings of ``run``."""
    plots = "".join(_plot(run, draft) for draft, chain in run.chains.items() if chain.target and draft in run.costs.c)
    rows = "".join(
        f"<tr><th scope='row'>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in settings_table(run)
    )
    return f"{plots}<h2>How the run was made</h2><table class='sd-table'>{rows}</table>"


def settings_table(run: Run) -> list[list[str]]:
    """How the run was made, as [what, value] rows for handouts and exported files."""
    asked = run.settings
    rows = [
        ["models", f"{run.pair.name}: {run.pair.target.name} with {', '.join(run.pair.drafts) or 'no draft'}"],
        ["machine", f"{run.machine.gpu or run.machine.processor}, {run.pair.target.dtype}, {run.created[:10]}"],
        ["rule", asked.rule + (f", temperature {asked.temperature:g}, seed {asked.seed}" if asked.temperature else "")],
        ["lanes", ", ".join(lane_name(trace.lane) for trace in run.lanes)],
        ["new tokens", f"at most {asked.max_new_tokens}"],
        ["timing repeats", str(asked.repeats)],
    ]
    if asked.top_k:
        rows.append(["top-k", str(asked.top_k)])
    if asked.top_p < 1:
        rows.append(["top-p", f"{asked.top_p:g}"])
    return rows


def _plot(run: Run, draft: str) -> str:
    """Speedup over the static SL: simulated as a line, measured lanes of that draft as diamonds."""
    speeds = [one.speedup for one in static_sweep(run.chains[draft], run.costs, **ending(run))]
    lanes = [(_static_sl(trace), trace) for trace in run.lanes if trace.draft == draft]
    measured = {sl: metrics.replayed_speedup(run, trace) for sl, trace in lanes if sl}
    dots = {sl: speed for sl, speed in measured.items() if speed}
    top = 1.08 * max([1.2, *speeds, *dots.values()])

    def x(sl: float) -> float:
        return LEFT + (sl - 1) / (len(speeds) - 1) * (WIDTH - LEFT - 12)

    def y(speed: float) -> float:
        return HEIGHT - BOTTOM - speed / top * (HEIGHT - BOTTOM - TOP)

    line = " ".join(f"{x(i + 1):.1f},{y(speed):.1f}" for i, speed in enumerate(speeds))
    best = max(range(len(speeds)), key=lambda i: (speeds[i], -i))
    ticks = "".join(
        f"<text x='{x(sl):.0f}' y='{HEIGHT - 18}' text-anchor='middle'>{sl}</text>"
        for sl in range(1, len(speeds) + 1, 3)
    )
    marks = "".join(
        f"<path d='M{x(sl):.1f} {y(speed) - 6:.1f}l6 6l-6 6l-6 -6z'><title>SL {sl}: {speed:.2f}</title></path>"
        for sl, speed in dots.items()
    )
    said = (
        f"Speed relative to plain decoding by static SL, draft {draft}: simulated as a line, measured as diamonds. "
        f"Best: SL {best + 1}, {speeds[best]:.2f}×."
    )
    levels = "".join(
        f"<line x1='{LEFT}' x2='{WIDTH - 12}' y1='{y(level):.1f}' y2='{y(level):.1f}' stroke='currentColor' "
        f"stroke-opacity='{0.7 if level == 1 else 0.15}'/>"
        f"<text x='{LEFT - 6}' y='{y(level) + 4:.1f}' text-anchor='end'>{level}×</text>"
        for level in range(0, int(top) + 1)
    )
    return (
        f"<figure><figcaption>{escape(said)}</figcaption>"
        f"<svg viewBox='0 0 {WIDTH} {HEIGHT}' role='img' aria-label='{escape(said, quote=True)}' font-size='12' "
        f"fill='currentColor'>{levels}{ticks}"
        f"<text x='{WIDTH / 2:.0f}' y='{HEIGHT - 2}' text-anchor='middle'>SL: guesses per check</text>"
        f"<polyline points='{line}' fill='none' stroke='currentColor' stroke-width='2'/>"
        f"<circle cx='{x(best + 1):.1f}' cy='{y(speeds[best]):.1f}' r='7' fill='none' stroke='currentColor'/>"
        f"{marks}</svg></figure>"
    )


def _static_sl(trace: Trace) -> int | None:
    """The SL of a static lane; None for other lanes, and for names that this version cannot read."""
    try:
        lane = parse_lane(trace.lane)
    except UserError:
        return None
    return int(lane.number) if lane.policy == "static" and lane.number else None
