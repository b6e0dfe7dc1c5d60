"""Plotly figures of an evaluation of lookahead policies: pure functions of its long table.

Each has a title and one sentence on what to look for, computed from the result.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import cycle, groupby
from typing import Any

import plotly.graph_objects as go

from decoding.evaluation.figures import PLACES
from decoding.evaluation.results import ALL, ALWAYS_ACCEPT, PLAIN, STATIC_OPT, EvaluationResult, Figure
from decoding.lookahead.lanes import is_usable, spec_of
from decoding.records.text import counted

from ..player.names import lane_name, lane_style, policy_title
from .drawing import DOTTED, INK, MUTED, Drawing, error_bars, plain

SUITE_COLOURS = (INK, "#5b8fd6", "#3aa0a0", "#b08a2e", "#b5577b")  # all suites together, then one per suite
ENOUGH_TO_DECIDE = 20  # prompts, under which no policy is called faster than another


def draw_evaluation(result: EvaluationResult) -> list[Drawing]:
    """All figures of ``result``."""
    return [
        draw_speedups(result),
        draw_cuts(result),
        draw_prediction(result),
        draw_pareto(result),
        draw_histogram(result),
        draw_course(result),
    ]


def _known(result: EvaluationResult, metric: str, labels: Iterable[str], suite: str = ALL) -> list[Figure]:
    """The figures of that name that the policies have."""
    return [one for label in labels if (one := result.find(metric, label, suite))]


def _names(figures: Iterable[Figure]) -> list[str]:
    return [plain(lane_name(one.policy)) for one in figures]


def _values(figures: Iterable[Figure]) -> list[float]:
    return [one.value for one in figures]


def _bars(result: EvaluationResult, figures: Sequence[Figure], **more: Any) -> go.Figure:
    """A bar for each policy, in its colour, with its name beside it."""
    marker = {"color": [lane_style(result.lanes[one.policy]).ink for one in figures], "opacity": 0.55}
    bars = go.Bar(y=_names(figures), x=_values(figures), orientation="h", marker=marker, **more)
    return go.Figure(bars).update_yaxes(automargin=True)


# -- speedups ------------------------------------------------------------------------------------------


def draw_speedups(result: EvaluationResult) -> Drawing:
    """Speedup of every policy over all suites: simulated as bars, timed as points."""
    simulated = _known(result, "speedup", _by_speedup(result))
    clocked = _known(result, "clock_speedup", _by_speedup(result))
    figure = _bars(
        result,
        simulated,
        error_x=error_bars(simulated),
        name="simulated, all test prompts",
        hovertemplate="%{y}: %{x:.2f} times, simulated<extra></extra>",
    )
    if clocked:
        figure.add_scatter(
            y=_names(clocked),
            x=_values(clocked),
            error_x=error_bars(clocked),
            mode="markers",
            marker={"color": INK, "size": 8, "symbol": "diamond"},
            name=f"on the clock, {counted(clocked[0].n or 0, 'prompt')}",
            hovertemplate="%{y}: %{x:.2f} times, on the clock<extra></extra>",
        )
    figure.add_vline(x=1, line=DOTTED)
    figure.update_xaxes(title_text="speedup over plain decoding (times)", rangemode="tozero")
    height = 110 + 30 * len(simulated)
    return Drawing("eval-speedup", "Speedup of every policy", speedups_sentence(result), figure, height)


def _by_speedup(result: EvaluationResult) -> list[str]:
    return sorted(result.lanes, key=lambda label: result.value("speedup", label))


def usable_policies(result: EvaluationResult) -> list[str]:
    """The labels of the policies that can be used in practice."""
    return [label for label, lane in result.lanes.items() if is_usable(lane)]


def fastest(result: EvaluationResult, having: str = "speedup") -> str | None:
    """The label of the usable policy with the largest simulated speedup, of those with the figure ``having``."""
    able = [label for label in usable_policies(result) if result.find(having, label)]
    return max(able, key=lambda label: result.value("speedup", label), default=None)


def speedups_sentence(result: EvaluationResult) -> str:
    """The two usable policies with the largest speedups, beside the oracle."""
    speedups = {label: result.value("speedup", label) for label in usable_policies(result)}
    if not speedups:
        return "No policy that can be used was evaluated."
    best, *others = sorted(speedups, key=speedups.__getitem__, reverse=True)
    text = f"Of the policies that can be used, {lane_name(best)} has the largest simulated speedup"
    text += f": {speedups[best]:.2f} times"
    if others:
        text += f", before {lane_name(others[0])} with {speedups[others[0]]:.2f}"
    if oracle := result.find("speedup", "oracle"):
        text += f"; the oracle, which knows where guesses fail, reaches {oracle.value:.2f} times"
    return f"{text}."


# -- against static-opt --------------------------------------------------------------------------------


def draw_cuts(result: EvaluationResult) -> Drawing:
    """Latency below static-opt's, paired over prompts, by suite."""
    labels = [label for label in _by_speedup(result) if _is_compared(result, label)]
    figure = go.Figure()
    symbols = ("circle", "square-open", "diamond-open", "triangle-up-open", "cross-open")
    for suite, symbol in zip(result.suites, cycle(symbols)):
        cuts = _known(result, "cut", labels, suite)
        figure.add_scatter(
            y=_names(cuts),
            x=[100 * one.value for one in cuts],
            error_x=error_bars(cuts, factor=100) if suite == ALL else None,
            mode="markers",
            name=plain(suite),
            marker={"color": INK if suite == ALL else MUTED, "symbol": symbol, "size": 11 if suite == ALL else 8},
            hovertemplate=f"{plain(suite)}, %{{y}}: %{{x:+.1f}}%<extra></extra>",
        )
    figure.add_vline(x=0, line=DOTTED)
    figure.update_xaxes(title_text="time per token below static-opt's (%), simulated")
    figure.update_yaxes(automargin=True)
    title, height = f"Against static-opt, SL {result.static_opt}", 140 + 30 * len(labels)
    return Drawing("eval-cut", title, cuts_sentence(result), figure, height)


def _is_compared(result: EvaluationResult, label: str) -> bool:
    return result.lanes[label] != PLAIN and result.find("cut", label) is not None


def cuts_sentence(result: EvaluationResult) -> str:
    """Which usable policies are faster or slower than static-opt according to both simulation and clock."""
    compared = [label for label in usable_policies(result) if _is_compared(result, label)]
    right = "Every point right of the dotted line saves time."
    simulated, clocked = prompts_of(result)
    if min(simulated, clocked) < ENOUGH_TO_DECIDE:
        return (
            f"Too few prompts to decide which policy is faster: {simulated} simulated and {clocked} on the clock; "
            f"at least {ENOUGH_TO_DECIDE} of each are needed. {right}"
        )
    sides = {label: sure_side(result, label) for label in compared}
    parts = [
        f"{what}: {', '.join(lane_name(label) for label in compared if sides[label] == side) or 'none'}"
        for what, side in (("faster than static-opt", 1), ("slower", -1), ("neither", 0))
    ]
    return (
        f"Where the 95% intervals over {simulated} simulated prompts and over {clocked} on the clock both exclude 0: "
        f"{'; '.join(parts)}. {right}"
    )


def prompts_of(result: EvaluationResult) -> tuple[int, int]:
    """(simulated, clocked) prompts behind the figures: the fewest that any compared usable policy has."""
    compared = [label for label in usable_policies(result) if _is_compared(result, label)]
    found = [[result.find(name, label) for label in compared] for name in ("speedup", "clock_speedup")]
    simulated, clocked = (min((one.n or 0 if one else 0 for one in some), default=0) for some in found)
    return simulated, clocked


def sure_side(result: EvaluationResult, label: str) -> int:
    """1 if the whole intervals of both simulation and clock are ahead of static-opt, -1 if both are behind, else 0."""
    cuts = [result.find(name, label) for name in ("cut", "clock_cut")]
    if all(cut and cut.low is not None and cut.low > 0 for cut in cuts):
        return 1
    return -1 if all(cut and cut.high is not None and cut.high < 0 for cut in cuts) else 0


# -- prediction ----------------------------------------------------------------------------------------


def draw_prediction(result: EvaluationResult) -> Drawing:
    """F1 of accept prediction, with always-accept as a line."""
    usable = usable_policies(result)
    found = _known(result, "f1", [label for label in _by_speedup(result) if label in usable])
    always = result.value("f1", ALWAYS_ACCEPT)
    figure = _bars(
        result,
        found,
        name="F1",
        customdata=[[_auc(result, one.policy)] for one in found],
        hovertemplate="%{y}: F1 %{x:.3f}; AUC %{customdata[0]}<extra></extra>",
        showlegend=False,
    )
    figure.add_vline(
        x=always,
        line={"color": INK, "width": 1.5, "dash": "dash"},
        annotation_text=f"always accept: {always:.2f}",
        annotation={"y": 1.0, "yref": "paper", "yanchor": "bottom", "xanchor": "right" if always > 0.5 else "left"},
    )
    figure.update_xaxes(title_text="F1 of predicting which guesses hold", range=[0, 1])
    title, height = "Which policy predicts best which guesses hold?", 120 + 30 * len(found)
    return Drawing("eval-f1", title, prediction_sentence(result), figure, height)


def _auc(result: EvaluationResult, label: str) -> str:
    auc = result.find("auc", label)
    return f"{auc.value:.3f}" if auc else "none (no score)"


def prediction_sentence(result: EvaluationResult) -> str:
    """How much the best policy's F1 is above that of accepting everything."""
    always = result.value("f1", ALWAYS_ACCEPT)
    held = f"{result.value('match_rate'):.0%} of the guesses hold"
    text = f"Accepting everything reaches an F1 of {always:.2f}, because {held}"
    scored = [one.policy for one in _known(result, "auc", result.lanes)]
    if not scored:
        return f"{text}: only the part beyond the line is a gain."
    best = max(scored, key=lambda label: result.value("f1", label))
    f1, auc = result.value("f1", best), result.value("auc", best)
    return f"{text}; {lane_name(best)} reaches {f1:.2f}, with an AUC of {auc:.2f}."


# -- discard against verification ----------------------------------------------------------------------


def sweeps(result: EvaluationResult) -> dict[str, list[str]]:
    """Policy -> its lanes at all arguments that were tried."""
    lanes = [one.policy for one in result.figures if one.metric == "sweep_discard_rate"]
    return {policy: list(some) for policy, some in groupby(lanes, lambda lane: lane.partition(":")[0])}


def draw_pareto(result: EvaluationResult) -> Drawing:
    """SpecDec++'s plane: drafts thrown away per token against target passes per token, over thresholds."""
    figure = go.Figure()
    for policy, lanes in sweeps(result).items():
        look = lane_style("static:5" if policy == "static" else policy)
        figure.add_scatter(
            x=[result.value("sweep_discard_rate", lane) for lane in lanes],
            y=[result.value("sweep_verification_rate", lane) for lane in lanes],
            mode="lines+markers",
            name=plain(policy_title(policy)),
            line={"color": look.ink, "width": 1.4},
            marker={"symbol": look.symbol, "size": 7, "color": look.ink},
            customdata=[[plain(lane_name(lane)), f"{result.value('sweep_speedup', lane):.2f}"] for lane in lanes],
            hovertemplate="%{customdata[0]}<br>thrown away %{x:.2f}, target passes %{y:.2f} per token<br>"
            "%{customdata[1]} times<extra></extra>",
        )
    for label, lane in result.lanes.items():
        if _has_no_sweep(result, label):
            name, look = plain(lane_name(label)), lane_style(lane)
            figure.add_scatter(
                x=[result.value("discard_rate", label)],
                y=[result.value("verification_rate", label)],
                mode="markers",
                cliponaxis=False,  # the oracle throws nothing away
                name=name,
                marker={"symbol": look.symbol, "size": 12, "color": look.ink},
                hovertemplate=f"{name}: %{{x:.2f}}, %{{y:.2f}} per token<extra></extra>",
            )
    figure.update_xaxes(title_text="discard rate: drafts thrown away per token", rangemode="tozero")
    figure.update_yaxes(title_text="verification rate: target passes per token", rangemode="tozero")
    return Drawing("eval-pareto", "The trade-off of each threshold", pareto_sentence(result), figure, 420)


def _has_no_sweep(result: EvaluationResult, label: str) -> bool:
    """Whether the policy drafts and has no parameter to sweep: it is a point instead of a line."""
    spec = spec_of(result.lanes[label])
    return result.value("draft_passes", label) > 0 and spec is not None and spec.name not in sweeps(result)


def pareto_sentence(result: EvaluationResult) -> str:
    """At the discard rate of static-opt, which policy needs the fewest target passes?"""
    text = "Lower left is better: fewer drafts thrown away and fewer target passes."
    thrown_away, passes = (result.find(f"{name}_rate", STATIC_OPT) for name in ("discard", "verification"))
    if thrown_away is None or passes is None:
        return text
    rates = {
        policy: [
            result.value("sweep_verification_rate", lane)
            for lane in lanes
            if result.value("sweep_discard_rate", lane) <= thrown_away.value
        ]
        for policy, lanes in sweeps(result).items()
    }
    known = {policy: min(some) for policy, some in rates.items() if some and policy != "static"}
    if not known:
        return text
    best = min(known, key=known.__getitem__)
    return (
        f"{text} Throwing away at most as many guesses as static-opt ({thrown_away.value:.2f} per token), "
        f"{policy_title(best)} needs {known[best]:.2f} target passes per token; static-opt {passes.value:.2f}."
    )


# -- the oracle's SL -----------------------------------------------------------------------------------

COURSE = 1.15  # the ratio from which two parts of a text are called different
BINS = ((0, 0), (1, 1), (2, 2), (3, 3), (4, 5), (6, 8), (9, 12), (13, 20), (21, 40), (41, 80), (81, 8192))


def draw_histogram(result: EvaluationResult) -> Drawing:
    """Distribution of the number of consecutive guesses that hold (DISCO, figure 4)."""
    found = result.curve("oracle_iterations")
    mean, sd, iterations = result.value("oracle_sl"), result.value("oracle_sl_sd"), sum(found.values())
    shares = [sum(n for sl, n in found.items() if low <= sl <= high) / iterations for low, high in BINS]
    figure = go.Figure(
        go.Bar(
            x=[f"{low}" if low == high else f"{low}+" if high > 4000 else f"{low}–{high}" for low, high in BINS],
            y=[100 * share for share in shares],
            marker={"color": lane_style("oracle").ink, "opacity": 0.7},
            hovertemplate="%{x} in a row: %{y:.1f}% of the iterations<extra></extra>",
        )
    )
    figure.update_xaxes(title_text="guesses in a row that hold (the oracle's SL)", type="category")
    figure.update_yaxes(title_text="iterations (%)")
    sentence = (
        f"The number of guesses that hold is {mean:.1f} on average but varies by {sd:.1f} (standard "
        f"deviation): in {shares[0]:.0%} of the iterations no guess holds. No static SL fits all of them."
    )
    return Drawing("eval-histogram", "How many guesses in a row hold", sentence, figure, 300)


def draw_course(result: EvaluationResult) -> Drawing:
    """Mean oracle SL over the iteration's position in its text (DISCO, figures 3 and 5)."""
    figure = go.Figure()
    dashes = ("solid", "dash", "dot", "dashdot", "longdash")
    places = [(index + 0.5) / PLACES for index in range(PLACES)]
    shown = [(suite, course) for suite in result.suites if (course := result.curve("oracle_sl", suite=suite))]
    for (suite, course), dash, colour in zip(shown, cycle(dashes), cycle(SUITE_COLOURS)):
        figure.add_scatter(
            x=places,
            y=[course.get(place) for place in places],
            mode="lines",
            name=plain(suite),
            line={"color": colour, "width": 2.2 if suite == ALL else 1.5, "dash": dash},
            hovertemplate=f"{plain(suite)}: %{{y:.1f}}<extra></extra>",
        )
    figure.update_xaxes(title_text="position of the iteration in its text (0: first, 1: last)", range=[0, 1])
    figure.update_yaxes(title_text="mean oracle SL (tokens)", rangemode="tozero")
    return Drawing("eval-course", "The oracle's SL along the text", course_sentence(result), figure, 320)


def course_sentence(result: EvaluationResult) -> str:
    """Where in a text guesses hold longest: the shape of the curve, by its thirds and its extremes."""
    known = list(result.curve("oracle_sl").values())
    third = max(1, len(known) // 3)
    first, middle, last = (
        sum(part) / len(part) for part in (known[:third], known[third:-third] or known, known[-third:])
    )
    thirds = f"{first:.1f} in a row in the first third, {middle:.1f} in the middle, {last:.1f} in the last"
    if (n := sum(result.setting.prompts.values())) < ENOUGH_TO_DECIDE:
        return f"{counted(n, 'prompt')}: too few to say where in a text guesses hold longer ({thirds})."
    if last > COURSE * first and first <= COURSE * middle <= COURSE**2 * last:
        return f"Guesses hold longer towards the end of a text: {thirds}."
    if first > COURSE * last and last <= COURSE * middle <= COURSE**2 * first:
        return f"Guesses hold longer at the beginning of a text: {thirds}."
    if middle > COURSE * max(first, last):
        return f"Guesses hold longest in the middle of a text: {thirds}."
    if COURSE * middle < min(first, last):
        return f"Guesses fail sooner in the middle of a text: {thirds}."
    if max(known) > COURSE * min(known):
        return (
            f"The oracle's SL goes up and down along the text, between {min(known):.1f} and {max(known):.1f}: {thirds}."
        )
    return f"Along the text the oracle's SL hardly changes: {thirds}."
