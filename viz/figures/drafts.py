"""Plotly figures of the drafts report: speedup by draft and SL, and by cost and match rate."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go

from decoding.evaluation.report import counted
from decoding.evaluation.results import ALL, DraftResult, DraftsResult, SlPoint

from ..player.names import lane_name
from .evaluation import BASE
from .race import INK, MUTED, Drawing, plain

# One colour and one symbol per draft, cheapest first.
COLOURS = ("#7a869a", "#5b8fd6", "#3aa0a0", "#5a9e4b", "#b08a2e", "#c2703d", "#9a6fc0", "#b5577b")
SHARED = 0.02  # a difference of plain decoding from its cost curve that is named
ENOUGH = 5  # timed prompts, under which an interval over them says nothing
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "triangle-down", "cross", "star", "hexagon")


def draw_drafts(result: DraftsResult) -> list[Drawing]:
    """All figures of ``result``."""
    drawings = [draw_by_sl(result), draw_by_cost(result)]
    if len(result.setting.prompts) > 1:
        drawings.append(draw_by_suite(result))
    return drawings


def look(index: int) -> tuple[str, str]:
    """Colour and symbol of the draft at ``index``."""
    return COLOURS[index % len(COLOURS)], SYMBOLS[index % len(SYMBOLS)]


def draw_by_sl(result: DraftsResult) -> Drawing:
    """Speedup over SL, one curve per draft: simulated (line), predicted (dotted), timed (symbols)."""
    figure = go.Figure()
    for index, draft in enumerate(result.drafts):
        colour, symbol = look(index)
        sls = [point.sl for point in draft.by_sl]
        name = plain(draft.name)
        figure.add_scatter(
            x=sls,
            y=[point.simulated for point in draft.by_sl],
            mode="lines",
            name=name,
            legendgroup=name,
            line={"color": colour, "width": 2},
            hovertemplate=f"{name}, SL %{{x}}: %{{y:.2f}} times, simulated<extra></extra>",
        )
        figure.add_scatter(
            x=sls,
            y=[point.predicted for point in draft.by_sl],
            mode="lines",
            name=name,
            legendgroup=name,
            showlegend=False,
            line={"color": colour, "width": 1.2, "dash": "dot"},
            hovertemplate=f"{name}, SL %{{x}}: %{{y:.2f}} times, predicted<extra></extra>",
        )
        clocked = [point for point in draft.by_sl if point.clock is not None]
        figure.add_scatter(
            x=[point.sl for point in clocked],
            y=[point.clock for point in clocked],
            mode="markers",
            legendgroup=name,
            showlegend=False,
            name=name,
            marker={"color": colour, "symbol": symbol, "size": 9},
            error_y=_clock_error(clocked, colour),
            customdata=[[_clock_facts(point)] for point in clocked],
            hovertemplate=f"{name}, SL %{{x}}: %{{y:.2f}} times on the clock%{{customdata[0]}}<extra></extra>",
        )
    figure.add_hline(y=1, line={"color": MUTED, "width": 1, "dash": "dot"})
    figure.update_xaxes(title_text="SL (tokens guessed per iteration)")
    figure.update_yaxes(title_text="speedup over plain decoding (times)", rangemode="tozero")
    figure.update_layout(height=430, **BASE)
    title = "Draft, SL, speedup: simulated (line), predicted by the throughput model (dotted), on the clock (symbols)"
    sentence = f"{too_long_sentence(result.drafts)} {clock_sentence(result)}".strip()
    return Drawing("drafts-sl", title, sentence, figure)


def _clock_error(points: list[SlPoint], colour: str) -> dict[str, Any]:
    """95% intervals over prompts; none if there are too few prompts."""
    known = [point.clocked.speedup if point.clocked and point.clocked.prompts >= ENOUGH else None for point in points]
    return {
        "type": "data",
        "symmetric": False,
        "array": [one.high - one.value if one else 0.0 for one in known],
        "arrayminus": [one.value - one.low if one else 0.0 for one in known],
        "color": colour,
        "thickness": 1.1,
        "width": 3,
    }


def _clock_facts(point: SlPoint) -> str:
    if point.clocked is None:
        return ""
    n, interval, simulated = point.clocked.prompts, point.clocked.speedup, f"{point.clocked.simulated:.2f}"
    if n < ENOUGH:
        return f" over {counted(n, 'prompt')}, too few for an interval; simulated on the same: {simulated}"
    return f" ({interval.low:.2f} to {interval.high:.2f} over {n} prompts; simulated on the same ones {simulated})"


def clock_sentence(result: DraftsResult) -> str:
    """How far the clock and the simulation are apart; on the timed prompts, if the result contains them."""
    points = [(draft, point) for draft in result.drafts for point in draft.by_sl if point.clock is not None]
    if not points:
        return "Nothing was timed here: all points are simulated."
    draft, worst = max(points, key=lambda one: abs(one[1].clock / _beside_clock(one[1]) - 1))
    farthest = f"{draft.name} at SL {worst.sl}: {worst.clock:.2f} on the clock, {_beside_clock(worst):.2f} simulated"
    clocked = [point.clocked for _, point in points if point.clocked]
    if len(clocked) < len(points):
        return f"Clock and simulation differ most for {farthest}; on how many prompts is not recorded here."
    n = clocked[0].prompts
    if n < ENOUGH:
        return (
            f"Timed: only {counted(n, 'prompt')}, too few to compare clock and simulation. The symbols are of "
            f"{'that one' if n == 1 else 'these'} alone, the lines of all {_prompts(result)} test prompts."
        )
    agreeing = sum(one.speedup.low <= one.simulated <= one.speedup.high for one in clocked)
    return (
        f"{_of_plain(result)}On the {n} prompts that were timed, {agreeing} of {len(clocked)} points agree with the "
        f"simulation within their 95% intervals; they differ most for {farthest}."
    )


def _of_plain(result: DraftsResult) -> str:
    """The part of the difference that all points share: plain decoding's own."""
    factor = result.plain_clock
    if factor is None or abs(factor - 1) < SHARED:
        return ""
    return (
        f"Plain decoding took {factor:.2f} times what its cost curve says, so all points on the clock stand that much "
        f"{'higher' if factor > 1 else 'lower'} than the lines. "
    )


def _prompts(result: DraftsResult) -> int:
    return sum(result.setting.prompts.values())


def _beside_clock(point: SlPoint) -> float:
    """The simulated speedup to compare with the clock's."""
    return point.clocked.simulated if point.clocked else point.simulated


def too_long_sentence(drafts: list[DraftResult]) -> str:
    """The best SL, and the difference between the model with independent guesses and the simulation."""
    best = max(drafts, key=lambda draft: max(point.simulated for point in draft.by_sl))
    peak = max(best.by_sl, key=lambda point: point.simulated)
    foreseen = max(best.by_sl, key=lambda point: point.predicted)
    last = best.by_sl[-1]
    if peak.sl == last.sl:
        turning = f"The draft {best.name} still gains at SL {last.sl}"
    else:
        turning = f"The draft {best.name} is fastest at SL {peak.sl} ({peak.simulated:.2f} times)"
        turning += f" and reaches only {last.simulated:.2f} at SL {last.sl}: one can guess too far ahead"
    return (
        f"{turning}. The throughput model, for which all guesses are equally likely to hold, "
        f"predicts {foreseen.predicted:.2f} times at SL {foreseen.sl}."
    )


def draw_by_cost(result: DraftsResult) -> Drawing:
    """Best static speedup over the cost of a draft step; the match rate in the legend."""
    figure = go.Figure()
    for index, draft in enumerate(result.drafts):
        colour, symbol = look(index)
        gain = draft.static_speedup[ALL]
        figure.add_scatter(
            x=[draft.c],
            y=[gain.value],
            mode="markers",
            name=f"{plain(draft.name)}, {draft.match_rate[ALL]:.0%} right",
            marker={"color": colour, "symbol": symbol, "size": 12},
            error_y={
                "type": "data",
                "symmetric": False,
                "array": [gain.high - gain.value],
                "arrayminus": [gain.value - gain.low],
                "color": colour,
                "thickness": 1.2,
                "width": 3,
            },
            customdata=[[draft.best_sl, _shape(draft)]],
            hovertemplate=f"{plain(draft.name)}, {draft.match_rate[ALL]:.0%} right<br>"
            "c %{x:.3f}, best SL %{customdata[0]}: %{y:.2f} times<br>%{customdata[1]}"
            "<extra></extra>",
        )
    figure.add_hline(y=1, line={"color": MUTED, "width": 1, "dash": "dot"})
    highest = max(draft.c for draft in result.drafts)
    figure.update_xaxes(title_text="c: cost of a draft step (target passes)", range=[-0.02 * highest, 1.2 * highest])
    figure.update_yaxes(title_text="speedup at the best static SL (times)", rangemode="tozero")
    figure.update_layout(height=380, **BASE)
    title = "Cost and benefit of each draft"
    return Drawing("drafts-cost", title, shape_sentence(result.drafts), figure)


def _shape(draft: DraftResult) -> str:
    layers = "layer" if draft.layers == 1 else "layers"
    return (
        f"{draft.layers} {layers} x {draft.hidden_size}, {draft.parameters / 1e6:.1f}M" if draft.layers else "no model"
    )


def shape_sentence(drafts: list[DraftResult]) -> str:
    """The best draft by cost, and the pair of about equal parameters and opposite shapes, if there is one."""
    best = max(drafts, key=lambda draft: draft.static_speedup[ALL].value)
    closest = max(drafts, key=lambda draft: draft.match_rate[ALL])
    if closest.name == best.name:
        text = f"{best.name}, the one that guesses best ({best.match_rate[ALL]:.0%}), is also the fastest"
    else:
        text = (
            f"{closest.name} guesses best ({closest.match_rate[ALL]:.0%}) but at c = {closest.c:.2f} reaches "
            f"{closest.static_speedup[ALL].value:.2f} times; {best.name} ({best.match_rate[ALL]:.0%}, "
            f"c = {best.c:.2f}) {best.static_speedup[ALL].value:.2f}"
        )
    pair = opposite_shapes(drafts)
    if not pair:
        return f"{text}."
    wide, deep = pair
    return (
        f"{text}. At about equal parameters, {wide.name} ({_shape(wide)}) costs {wide.c:.3f} and guesses "
        f"{wide.match_rate[ALL]:.0%}, {deep.name} ({_shape(deep)}) {deep.c:.3f} and {deep.match_rate[ALL]:.0%}: "
        f"{wide.static_speedup[ALL].value:.2f} against {deep.static_speedup[ALL].value:.2f} times."
    )


def opposite_shapes(drafts: list[DraftResult]) -> tuple[DraftResult, DraftResult] | None:
    """(shallow and wide, deep and narrow): the two models nearest in parameters, within 15%, of different shape."""
    models = [draft for draft in drafts if draft.layers]
    pairs = [
        (one, other)
        for one in models
        for other in models
        if one.layers < other.layers
        and one.hidden_size > other.hidden_size
        and abs(one.parameters - other.parameters) <= 0.15 * max(one.parameters, other.parameters)
    ]
    return min(pairs, key=lambda pair: abs(pair[0].parameters - pair[1].parameters)) if pairs else None


def draw_by_suite(result: DraftsResult) -> Drawing:
    """Speedup of each draft's best policy, by suite."""
    suites = [ALL, *result.setting.prompts]
    figure = go.Figure()
    for index, draft in enumerate(result.drafts):
        figure.add_bar(
            x=[plain(suite) for suite in suites],
            y=[draft.speedup[suite].value for suite in suites],
            name=plain(draft.name),
            marker={"color": look(index)[0], "opacity": 0.75},
            hovertemplate=f"{plain(draft.name)}, best policy {plain(lane_name(draft.best_lane))}, "
            "%{x}: %{y:.2f} times<extra></extra>",
        )
    figure.add_hline(y=1, line={"color": INK, "width": 1, "dash": "dot"})
    figure.update_yaxes(title_text="speedup over plain decoding (times)", rangemode="tozero")
    figure.update_layout(height=340, barmode="group", **BASE)
    title = "Each draft with its best policy, by suite"
    return Drawing("drafts-suite", title, suite_sentence(result, suites[1:]), figure)


def suite_sentence(result: DraftsResult, suites: list[str]) -> str:
    """The best draft of every suite."""
    best = {suite: max(result.drafts, key=lambda draft, s=suite: draft.speedup[s].value) for suite in suites}
    if len({draft.name for draft in best.values()}) == 1:
        name = next(iter(best.values())).name
        return f"{name} is the fastest draft on every suite."
    fastest = ", ".join(f"{draft.name} on {suite} ({draft.speedup[suite].value:.2f})" for suite, draft in best.items())
    return f"The fastest draft depends on the text: {fastest}."
