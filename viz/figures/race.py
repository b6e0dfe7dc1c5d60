"""Plotly figures of one run: how far each lane looked ahead, and what every static SL would have given.

Pure functions of a :class:`~decoding.records.trace.Run`. Each figure has a title and one sentence on what to look for,
computed from this run. Colours are names of CSS variables, resolved in the browser so that both themes work;
``customdata`` of every point begins with (lane index, output position), to which the player jumps.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import cycle
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from decoding.analysis.counts import counts
from decoding.analysis.metrics import speedup, static_speedups
from decoding.analysis.steadiness import contradictions
from decoding.lookahead.lanes import is_usable
from decoding.records.trace import Iteration, Run, Trace

from ..player.names import lane_name, lane_style
from .drawing import DOTTED, INK, MUTED, Drawing, plain

DEEPEST = "deepest guess of a tree (dots)"
HELD = "would have held (tick; arrow: beyond)"
MOST_OUTLINES = 150  # bars of a lane; the outlines of more of them would merge into a fill
ROW_PX = 104  # height of one lane's row


def draw_run(run: Run) -> list[Drawing]:
    """All figures for which ``run`` has data."""
    drafting = [(index, trace) for index, trace in enumerate(run.lanes) if trace.draft and trace.iterations]
    if not drafting:
        return []
    drawings = [draw_lookahead(drafting), draw_iterations(drafting)]
    if run.chains:
        drawings.append(draw_static_speedups(run))
    return drawings


# -- how far each lane looked ahead ----------------------------------------------------------------------


def draw_lookahead(drafting: list[tuple[int, Trace]]) -> Drawing:
    """SL per iteration over output position: guessed as outline, accepted as fill, oracle's SL as a tick."""
    names = [f"<b>{_label(trace)}</b>" for _, trace in drafting]
    spacing = 0.22 / len(drafting)
    figure = make_subplots(rows=len(drafting), shared_xaxes=True, vertical_spacing=spacing, subplot_titles=names)
    figure.update_annotations(x=0, xanchor="left")
    for row, (index, trace) in enumerate(drafting, start=1):
        figure.layout.annotations[row - 1].font = {"color": lane_style(trace.lane).ink, "size": 12}
        for part in _lookahead_parts(index, trace):
            figure.add_trace(part, row=row, col=1)
        figure.update_yaxes(range=[0, _top(trace) * 1.08], title_text="tokens", row=row, col=1)
    first = {part.name: part for part in reversed(figure.data)}  # of each name: what the legend shows
    for part in figure.data:
        part.showlegend = part.name is not None and first[part.name] is part
    figure.update_xaxes(rangemode="nonnegative")
    figure.update_xaxes(title_text="position in the text (tokens)", row=len(drafting), col=1)
    figure.update_layout(barmode="overlay", bargap=0)
    title, height = "How far each policy looked ahead, along the text", ROW_PX * len(drafting) + 92
    sentence = lookahead_sentence([trace for _, trace in drafting])
    return Drawing("lookahead", title, sentence, figure, height, follow=True, choice="along the text")


def _lookahead_parts(index: int, trace: Trace) -> Iterable[go.Bar | go.Scatter]:
    iterations = trace.iterations
    colour, many = lane_style(trace.lane).ink, len(iterations) > MOST_OUTLINES
    guessed = {
        "color": colour if many else "rgba(0,0,0,0)",
        "opacity": 0.25 if many else 1.0,
        "line": {"color": colour, "width": 0 if many else 1.2},
    }
    accepted = {"color": colour, "opacity": 0.6, "line": {"width": 0}}
    for group, shape, marker, heights in (
        ("guessed", " (outline or pale)", guessed, [it.n_drafted for it in iterations]),
        ("accepted", " (fill)", accepted, [it.n_accepted for it in iterations]),
    ):
        yield go.Bar(
            x=[it.start for it in iterations],
            y=heights,
            width=[_width(it) for it in iterations],
            offset=0,
            marker=marker,
            name=group + shape,
            legendgroup=group,
            customdata=[_facts(index, trace, k) for k in range(len(iterations))],
            hovertemplate=_HOVER,
        )
    if any(it.parents for it in iterations):
        deepest = [(it, it.deepest) for it in iterations if it.drafted]
        yield _ticks(deepest, DEEPEST, {"color": colour, "width": 2.2, "dash": "dot"})
    if any(it.holds is not None for it in iterations):
        top = _top(trace)
        held = [(it, it.holds) for it in iterations if it.holds is not None and it.holds <= top]
        yield _ticks(held, HELD, {"color": INK, "width": 1.8})
        beyond = [it for it in iterations if (it.holds or 0) > top]
        if beyond:
            yield _holds_beyond(beyond, top)


def _ticks(heights: list[tuple[Iteration, int]], name: str, line: dict[str, Any]) -> go.Scatter:
    """A line over each of these iterations."""
    x: list[float | None] = []
    y: list[float | None] = []
    for it, height in heights:
        x += [it.start, it.start + _width(it), None]
        y += [height] * 2 + [None]
    return go.Scatter(x=x, y=y, mode="lines", line=line, hoverinfo="skip", name=name, legendgroup=name)


def _holds_beyond(iterations: list[Iteration], top: float) -> go.Scatter:
    """Arrows for ticks that would be above the row."""
    return go.Scatter(
        x=[it.start + _width(it) / 2 for it in iterations],
        y=[top] * len(iterations),
        mode="markers",
        marker={"color": INK, "symbol": "arrow-up", "size": 8},
        legendgroup=HELD,
        text=[f"would have held: {it.holds}" for it in iterations],
        hovertemplate="%{text}<extra></extra>",
    )


def _width(it: Iteration) -> float:
    return max(1, len(it.tokens)) - 0.15


def _top(trace: Trace) -> float:
    """Height of a row: the longest guess plus some room for the ticks."""
    most, held = (max(of) for of in zip(*((it.n_drafted, it.holds or 0) for it in trace.iterations)))
    return max(4, min(max(most, held), most * 1.6 + 2))


_HOVER = (
    "iteration %{customdata[2]}, from position %{customdata[1]}<br>guessed %{customdata[3]}, "
    "accepted %{customdata[4]}<br>would have held: %{customdata[5]}<extra></extra>"
)


def _facts(index: int, trace: Trace, k: int) -> list[Any]:
    it = trace.iterations[k]
    holds = "not known" if it.holds is None else it.holds
    return [index, it.start, k + 1, it.n_drafted, it.n_accepted, holds]


def lookahead_sentence(traces: list[Trace]) -> str:
    """What to look for in the lookahead figure: wasted guesses and missed chances."""
    chosen = [next((t for t in traces if t.policy == "static"), None)]
    chosen.append(next((t for t in traces if t.policy != "static" and is_usable(t.lane)), None))
    parts = [_wasted(trace) for trace in chosen if trace] or [_wasted(traces[0])]
    return f"In this run {'; '.join(parts)}."


def _wasted(trace: Trace) -> str:
    found = counts(trace)
    text = f"{lane_name(trace.lane)} threw away {found.thrown_away:,} of {found.drafted:,} guesses"
    if any(it.holds is None for it in trace.iterations):
        return text
    short = sum(it.holds > it.n_drafted for it in trace.iterations[:-1])
    if not short:
        return f"{text} and never stopped too soon"
    return f"{text} and stopped {short:,} {'time' if short == 1 else 'times'} although the next guess would have held"


# -- over iteration number (DISCO, figure 2) ---------------------------------------------------------------


def draw_iterations(drafting: list[tuple[int, Trace]]) -> Drawing:
    """SL over iteration number, one line per lane, as in figure 2 of the DISCO paper."""
    figure = go.Figure()
    for index, trace in drafting:
        its, look = trace.iterations, lane_style(trace.lane)
        figure.add_scatter(
            x=list(range(1, len(its) + 1)),
            y=[it.n_drafted for it in its],
            mode="lines+markers",
            line={"color": look.ink, "width": 1.6, "shape": "hvh"},
            marker={"size": 6, "symbol": look.symbol},
            name=_label(trace),
            customdata=[_facts(index, trace, k) for k in range(len(its))],
            hovertemplate=_HOVER,
        )
    figure.update_xaxes(title_text="iteration", rangemode="tozero")
    figure.update_yaxes(title_text="SL (tokens guessed)", rangemode="tozero")
    title = "How far each policy looked ahead, over iterations (as figure 2 of the DISCO paper)"
    sentence = iterations_sentence([trace for _, trace in drafting])
    return Drawing("iterations", title, sentence, figure, 320, choice="over iterations")


def iterations_sentence(traces: list[Trace]) -> str:
    """The number of iterations and the mean SL of each lane."""
    shown = [
        f"{lane_name(trace.lane)} took {len(trace.iterations):,} (SL {counts(trace).mean_sl:.1f} on average)"
        for trace in traces
    ]
    return f"A line that ends sooner needed fewer passes of the target: {', '.join(shown)}."


# -- what every static SL would have given --------------------------------------------------------------------


def draw_static_speedups(run: Run) -> Drawing:
    """Simulated speedup per static SL for each draft, and the lanes as measured."""
    curves = {draft: static_speedups(run, draft) for draft in run.chains}
    figure = go.Figure()
    for dash, (draft, curve) in zip(cycle(("solid", "dash", "dot", "dashdot", "longdash")), curves.items()):
        figure.add_scatter(
            x=list(curve),
            y=list(curve.values()),
            mode="lines",
            line={"color": INK if dash != "solid" else MUTED, "width": 1.8, "dash": dash},
            name=f"every static SL, simulated ({plain(draft)})",
            hovertemplate="Static %{x}: %{y:.2f} times (simulated)<extra></extra>",
        )
    for index, trace in enumerate(run.lanes):
        measured = speedup(run, trace)
        if trace.draft and measured and trace.iterations:
            figure.add_trace(_lane_point(index, trace, measured))
    figure.add_hline(y=1, line=DOTTED)
    widest = max([20.0, *(counts(trace).mean_sl or 0 for trace in run.lanes if trace.draft)])
    figure.update_xaxes(title_text="SL, or mean SL (tokens)", range=[0, widest + 1])
    figure.update_yaxes(title_text="speedup (times plain)", rangemode="tozero")
    return Drawing("speedup", "What every static SL would have given", speedup_sentence(run, curves), figure, 340)


def _lane_point(index: int, trace: Trace, measured) -> go.Scatter:
    is_static, look = trace.policy == "static", lane_style(trace.lane)
    return go.Scatter(
        x=[max(it.n_drafted for it in trace.iterations) if is_static else counts(trace).mean_sl],
        y=[measured.median],
        mode="markers",
        name=f"{_label(trace)}, measured",
        marker={"color": look.ink, "size": 11, "symbol": look.symbol},
        error_y={
            "type": "data",
            "symmetric": False,
            "array": [measured.high - measured.median],
            "arrayminus": [measured.median - measured.low],
            "color": look.ink,
            "width": 4,
        },
        customdata=[[index, 0, f"{measured.low:.2f}", f"{measured.high:.2f}"]],
        hovertemplate="%{y:.2f} times (%{customdata[2]} to %{customdata[3]}), SL %{x:.1f}<extra></extra>",
    )


def speedup_sentence(run: Run, curves: dict[str, dict[int, float]]) -> str:
    """The best static SL of this run, compared with the chosen one and the fastest other policy."""
    if contradictions(run):
        return "Timings vary too much in this run to say which SL is best; the curves show what these costs give."
    draft, curve = max(curves.items(), key=lambda item: max(item[1].values()))
    best = max(curve, key=curve.__getitem__)
    of = f" with the draft {draft}" if len(curves) > 1 else ""
    gain = f"{curve[best]:.2f} times as fast as plain"
    text = f"With hindsight, on this text, the best static SL{of} is {best}: {gain}"
    if curve[best] < 1:
        text = f"On this text no static SL{of} pays: the best, with hindsight, is {best}, {gain}"
    measured = [(trace, speedup(run, trace)) for trace in run.lanes if trace.draft]
    speedups = [f"{lane_name(trace.lane)} measured {found.median:.2f}" for trace, found in measured if found]
    return f"{text}; {', '.join(speedups)}." if speedups else f"{text}."


# -- shared ----------------------------------------------------------------------------------------------------


def _label(trace: Trace) -> str:
    return plain(lane_name(trace.lane))
