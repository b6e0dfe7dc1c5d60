"""Plotly figures of the drafts of a pair: speedup by draft and SL, and by cost and match rate."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import plotly.graph_objects as go

from decoding.evaluation.results import ALL, ENOUGH_FOR_INTERVAL, PLAIN, Draft, EvaluationResult, Figure
from decoding.lookahead.base import SL_CAP
from decoding.lookahead.static import expected_tokens
from decoding.records.text import counted

from ..player.names import lane_name
from .drawing import DOTTED, MUTED, Drawing, error_bars, plain

# One colour and one symbol per draft, cheapest first.
COLOURS = ("#7a869a", "#5b8fd6", "#3aa0a0", "#5a9e4b", "#b08a2e", "#c2703d", "#9a6fc0", "#b5577b", "#86715c")
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "triangle-down", "cross", "star", "hexagon", "pentagon")
SHARED = 0.02  # a difference of plain decoding from its cost curve that is named
MATCHES = np.linspace(0.0, 1.0, 201)
EQUAL = (1.0, 1.25, 1.5, 2.0, 3.0)  # speedups with a curve


def draw_drafts(result: EvaluationResult) -> list[Drawing]:
    """All figures of ``result``."""
    drawings = [draw_by_sl(result), draw_by_cost(result)]
    if len(result.setting.prompts) > 1:
        drawings.append(draw_by_suite(result))
    return drawings


def look(index: int) -> tuple[str, str]:
    """Colour and symbol of the draft at ``index``."""
    return COLOURS[index % len(COLOURS)], SYMBOLS[index % len(SYMBOLS)]


# -- by SL ---------------------------------------------------------------------------------------------


def draw_by_sl(result: EvaluationResult) -> Drawing:
    """Speedup over SL, one curve per draft: simulated (line), predicted (dotted), timed (symbols)."""
    figure = go.Figure()
    for index, draft in enumerate(result.drafts):
        colour, symbol = look(index)
        name = plain(draft.name)
        clocked = list(result.by_sl(draft.name, "clock_speedup").values())
        of_clock = {
            "marker": {"color": colour, "symbol": symbol, "size": 9},
            "error_y": error_bars(clocked, colour),
            "customdata": [[_clock_facts(one, _beside_clock(result, one))] for one in clocked],
        }
        for metric, how, mode, style in (
            ("speedup", ", simulated", "lines", {"line": {"color": colour, "width": 2}}),
            ("predicted_speedup", ", predicted", "lines", {"line": {"color": colour, "width": 1.2, "dash": "dot"}}),
            ("clock_speedup", " on the clock%{customdata[0]}", "markers", of_clock),
        ):
            points = result.by_sl(draft.name, metric)
            figure.add_scatter(
                x=list(points),
                y=[one.value for one in points.values()],
                mode=mode,
                name=name,
                legendgroup=name,
                showlegend=metric == "speedup",
                hovertemplate=f"{name}, SL %{{x}}: %{{y:.2f}} times{how}<extra></extra>",
                **style,
            )
    figure.add_hline(y=1, line=DOTTED)
    figure.update_xaxes(title_text="SL (tokens guessed per iteration)")
    figure.update_yaxes(title_text="speedup over plain decoding (times)", rangemode="tozero")
    title = "Draft, SL, speedup: simulated (line), predicted by the throughput model (dotted), on the clock (symbols)"
    return Drawing("drafts-sl", title, f"{too_long_sentence(result)} {clock_sentence(result)}", figure, 430)


def _beside_clock(result: EvaluationResult, timed: Figure) -> float:
    """The simulated speedup on the prompts of ``timed``."""
    return result.value("clock_simulated", timed.policy, draft=timed.draft)


def _clock_facts(timed: Figure, simulated: float) -> str:
    if timed.low is None:
        n = counted(timed.n or 0, "prompt")
        return f" over {n}, too few for an interval; simulated on the same: {simulated:.2f}"
    between = f"{timed.low:.2f} to {timed.high:.2f} over {timed.n} prompts"
    return f" ({between}; simulated on the same ones {simulated:.2f})"


def clock_sentence(result: EvaluationResult) -> str:
    """How far the clock and the simulation are apart on the timed prompts."""
    timed = [one for one in result.figures if one.metric == "clock_speedup"]
    if not timed:
        return "Nothing was timed: all points are simulated."
    beside = {one: _beside_clock(result, one) for one in timed}
    worst = max(timed, key=lambda one: abs(one.value / beside[one] - 1))
    n = timed[0].n or 0
    if n < ENOUGH_FOR_INTERVAL:
        return (
            f"Timed: only {counted(n, 'prompt')}, too few to compare clock and simulation. The symbols show only "
            f"{'that one' if n == 1 else 'these'}; the lines show all {sum(result.setting.prompts.values())} test "
            "prompts."
        )
    agreeing = sum((one.low or 0) <= beside[one] <= (one.high or 0) for one in timed)
    return (
        f"{_of_plain(result)}On the {n} prompts that were timed, {agreeing} of {len(timed)} points agree with the "
        f"simulation within their 95% intervals; they differ most for {worst.draft} at SL "
        f"{worst.policy.partition(':')[2]}: {worst.value:.2f} on the clock, {beside[worst]:.2f} simulated."
    )


def _of_plain(result: EvaluationResult) -> str:
    """The part of the difference that all points share: plain decoding's own."""
    factor = result.find("clock_over_costs", PLAIN, draft="")
    if factor is None or abs(factor.value - 1) < SHARED:
        return ""
    return (
        f"Plain decoding took {factor.value:.2f} times what its cost curve says, so all points on the clock are that "
        f"much {'higher' if factor.value > 1 else 'lower'} than the lines. "
    )


def too_long_sentence(result: EvaluationResult) -> str:
    """The best SL, and the difference between the model with independent guesses and the simulation."""
    curves = {draft.name: result.by_sl(draft.name) for draft in result.drafts}
    points = [(name, sl) for name, curve in curves.items() for sl in curve]
    best, peak = max(points, key=lambda point: curves[point[0]][point[1]].value)
    last = max(curves[best])
    predicted = result.by_sl(best, "predicted_speedup")
    foreseen = max(predicted, key=lambda sl: predicted[sl].value)
    if peak == last:
        turning = f"The draft {best} still gains at SL {last}"
    else:
        turning = f"In hindsight the draft {best} is fastest at SL {peak} ({curves[best][peak].value:.2f} times)"
        turning += f" and reaches only {curves[best][last].value:.2f} at SL {last}: guessing too far ahead costs time"
    return (
        f"{turning}. The throughput model, for which all guesses are equally likely to hold, "
        f"predicts {predicted[foreseen].value:.2f} times at SL {foreseen}."
    )


# -- by cost -------------------------------------------------------------------------------------------


def draw_by_cost(result: EvaluationResult) -> Drawing:
    """Match rate over the cost of a guess, with curves of equal speedup."""
    figure = go.Figure()
    highest = 1.15 * max(result.guess_cost(draft) for draft in result.drafts)
    steps = np.linspace(0.0, highest, 25)
    curves = [modelled_gains(result, c) for c in steps]
    for level in EQUAL:
        needed = [float(np.interp(level, gains, MATCHES)) for gains in curves]
        points = [(c, match) for c, match in zip(steps.tolist(), needed) if match < 1]
        if not points:
            break
        figure.add_scatter(
            x=[c for c, _ in points],
            y=[match for _, match in points],
            mode="lines+text",
            text=[""] * (len(points) - 1) + [f"{level:g}×"],
            textposition="top left",
            textfont={"color": MUTED, "size": 11},
            line=DOTTED,
            showlegend=False,
            hoverinfo="skip",
        )
    for index, draft in enumerate(result.drafts):
        colour, symbol = look(index)
        name = f"{plain(draft.name)}, {_static_gain(result, draft).value:.2f}×"
        figure.add_scatter(
            x=[result.guess_cost(draft)],
            y=[_match(result, draft)],
            mode="markers",
            name=name,
            marker={"color": colour, "symbol": symbol, "size": 12},
            customdata=[[draft.best_sl, _shape(draft)]],
            hovertemplate=f"{name} at SL %{{customdata[0]}}, chosen on validation<br>"
            "%{x:.3f} passes a guess, %{y:.1%} right<br>%{customdata[1]}<extra></extra>",
        )
    figure.update_xaxes(title_text="cost of a guess at the best SL (target passes)", range=[-0.02 * highest, highest])
    figure.update_yaxes(title_text="match rate", range=[0, 1.05], tickformat=".0%")
    sentence = f"{shape_sentence(result)} {equal_sentence(result)}"
    return Drawing("drafts-cost", "What a draft costs, and how often it is right", sentence, figure, 420)


def modelled_gains(result: EvaluationResult, c: float) -> np.ndarray:
    """The speedup at the best static SL of a draft whose guesses cost ``c`` each, for each of MATCHES.

    All guesses are equally likely to hold (:mod:`decoding.lookahead.static`), and checks cost what they cost here.
    """
    draft = fastest(result).name
    costs = replace(result.setting.costs, draft_step={draft: c}, first_step={})
    lengths = range(1, SL_CAP + 1)
    tokens = np.array([[expected_tokens(match, n) for match in MATCHES.tolist()] for n in lengths])
    spent = np.array([[costs.iteration(n, draft)] for n in lengths])
    return (tokens / spent).max(0) * costs.iteration(0, None)


def fastest(result: EvaluationResult) -> Draft:
    """The draft that gains most at a static SL."""
    return max(result.drafts, key=lambda draft: _static_gain(result, draft).value)


def equal_sentence(result: EvaluationResult) -> str:
    """What the curves say, with the draft that gains most as the example."""
    best = fastest(result)
    c = result.guess_cost(best)
    gain = float(np.interp(_match(result, best), MATCHES, modelled_gains(result, c)))
    match = float(np.interp(gain, modelled_gains(result, c / 2), MATCHES))
    example = f": a draft of half the cost of {best.name} would be as fast with {match:.0%} right" if c else ""
    return (
        "Each curve connects equal speedups at the best static SL, computed as if all guesses were equally likely to "
        f"hold (the legend has what each draft gains on its texts){example}."
    )


def _match(result: EvaluationResult, draft: Draft) -> float:
    return result.value("match_rate", draft=draft.name)


def _static_gain(result: EvaluationResult, draft: Draft) -> Figure:
    """The speedup at the draft's static SL, chosen on validation."""
    return result.by_sl(draft.name)[draft.best_sl]


def _shape(draft: Draft) -> str:
    if not draft.parameters:
        return "no model"
    layers = "1 layer" if draft.layers == 1 else f"{draft.layers or 'no'} layers"
    return f"{layers} × {draft.hidden_size}, {draft.parameters / 1e6:.1f}M"


def shape_sentence(result: EvaluationResult) -> str:
    """The best draft by cost, and the pair of about equal parameters and opposite shapes, if there is one."""
    c = {draft.name: result.guess_cost(draft) for draft in result.drafts}
    match = {draft.name: _match(result, draft) for draft in result.drafts}
    gain = {draft.name: _static_gain(result, draft).value for draft in result.drafts}
    best, closest = max(gain, key=gain.__getitem__), max(match, key=match.__getitem__)
    if f"{match[closest]:.0%}" == f"{match[best]:.0%}":
        clearly = "clearly " if match[closest] > match[best] else ""
        text = f"{best}, which no other guesses {clearly}better than ({match[best]:.0%}), is also the fastest"
    else:
        text = (
            f"{closest} guesses best ({match[closest]:.0%}) but at a guess's cost of {c[closest]:.2f} passes reaches "
            f"{gain[closest]:.2f} times; {best} ({match[best]:.0%}, {c[best]:.2f} passes) {gain[best]:.2f}"
        )
    pair = opposite_shapes(result.drafts)
    if not pair:
        return f"{text}."
    (wide, deep), (shallow, tall) = (one.name for one in pair), (_shape(one) for one in pair)
    return (
        f"{text}. At about equal parameters, {wide} ({shallow}) costs {c[wide]:.3f} and guesses {match[wide]:.0%}, "
        f"{deep} ({tall}) {c[deep]:.3f} and {match[deep]:.0%}: {gain[wide]:.2f} against {gain[deep]:.2f} times."
    )


def opposite_shapes(drafts: list[Draft]) -> tuple[Draft, Draft] | None:
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


# -- by suite ------------------------------------------------------------------------------------------


def draw_by_suite(result: EvaluationResult) -> Drawing:
    """Speedup of each draft's best policy, by suite."""
    suites = [ALL, *result.setting.prompts]
    figure = go.Figure()
    for index, draft in enumerate(result.drafts):
        figure.add_bar(
            x=[plain(suite) for suite in suites],
            y=[result.value("speedup", draft.best_policy, suite, draft.name) for suite in suites],
            name=plain(draft.name),
            marker={"color": look(index)[0], "opacity": 0.75},
            hovertemplate=f"{plain(draft.name)}, best policy {plain(lane_name(draft.best_lane))}, "
            "%{x}: %{y:.2f} times<extra></extra>",
        )
    figure.add_hline(y=1, line=DOTTED)
    figure.update_yaxes(title_text="speedup over plain decoding (times)", rangemode="tozero")
    figure.update_layout(barmode="group")
    title = "Each draft with its best policy, by suite"
    return Drawing("drafts-suite", title, suite_sentence(result), figure, 340)


def suite_sentence(result: EvaluationResult) -> str:
    """The best draft of every suite."""

    def gain(draft: Draft, suite: str) -> float:
        return result.value("speedup", draft.best_policy, suite, draft.name)

    best = {suite: max(result.drafts, key=lambda draft, s=suite: gain(draft, s)) for suite in result.setting.prompts}
    if len({draft.name for draft in best.values()}) == 1:
        return f"{next(iter(best.values())).name} is the fastest draft on every suite."
    fastest = ", ".join(f"{draft.name} on {suite} ({gain(draft, suite):.2f})" for suite, draft in best.items())
    return f"The fastest draft depends on the text: {fastest}."
