"""Plotly figures of an evaluation of lookahead policies: pure functions of its result.

Each has a title and one sentence on what to look for, computed from the result.
"""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go

from decoding.evaluation.results import ALL, EvaluationResult, Interval, PolicyResult, suites_of
from decoding.lookahead.lanes import is_usable, spec_of

from ..player.looks import lane_look
from ..player.names import lane_name, policy_title
from .race import INK, MUTED, Drawing, plain

BASE = {
    "paper_bgcolor": "rgba(0,0,0,0)",
    "plot_bgcolor": "rgba(0,0,0,0)",
    "font": {"color": MUTED, "family": "system-ui, sans-serif", "size": 12},
    "margin": {"l": 52, "r": 12, "t": 34, "b": 44},
    "legend": {"orientation": "h", "x": 1, "xanchor": "right", "y": 1.0, "yanchor": "bottom"},
    "hoverlabel": {"align": "left"},
}


SUITE_COLOURS = (INK, "#5b8fd6", "#3aa0a0", "#b08a2e", "#b5577b")  # all suites together, then one per suite


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


def family(lane: str) -> tuple[str, str]:
    """Colour and symbol of the lane, as on every other tab; a policy's name is enough."""
    look = lane_look("static:5" if lane == "static" else lane)
    return look.ink, look.symbol


# -- speedups ------------------------------------------------------------------------------------------


def draw_speedups(result: EvaluationResult) -> Drawing:
    """Speedup of every policy over all suites: simulated as bars, timed as points."""
    entries = _by_speedup(result)
    names = [plain(lane_name(entry.label)) for entry in entries]
    figure = go.Figure()
    simulated = [entry.rows[ALL].simulated.speedup for entry in entries]
    figure.add_bar(
        y=names,
        x=[one.value for one in simulated],
        error_x=_error(simulated),
        orientation="h",
        marker={"color": [family(entry.lane)[0] for entry in entries], "opacity": 0.55},
        name="simulated, all test prompts",
        hovertemplate="%{y}: %{x:.2f} times, simulated<extra></extra>",
    )
    clocked = [(entry, entry.rows[ALL].clock) for entry in entries if entry.rows[ALL].clock]
    if clocked:
        intervals = [timing.speedup for _, timing in clocked]
        figure.add_scatter(
            y=[plain(lane_name(entry.label)) for entry, _ in clocked],
            x=[one.value for one in intervals],
            error_x=_error(intervals),
            mode="markers",
            marker={"color": INK, "size": 8, "symbol": "diamond"},
            name=f"on the clock, {clocked[0][1].prompts} prompts",
            hovertemplate="%{y}: %{x:.2f} times, on the clock<extra></extra>",
        )
    figure.add_vline(x=1, line={"color": MUTED, "width": 1, "dash": "dot"})
    figure.update_xaxes(title_text="speedup over plain decoding (times)", rangemode="tozero")
    figure.update_yaxes(automargin=True)
    figure.update_layout(height=60 + 30 * len(entries) + 50, **BASE)
    return Drawing("eval-speedup", "Speedup of every policy", speedups_sentence(result), figure)


def _by_speedup(result: EvaluationResult) -> list[PolicyResult]:
    return sorted(result.policies, key=lambda entry: entry.rows[ALL].simulated.speedup.value)


def _error(intervals: list[Interval]) -> dict[str, Any]:
    return {
        "type": "data",
        "symmetric": False,
        "color": MUTED,
        "thickness": 1.2,
        "width": 3,
        "array": [one.high - one.value for one in intervals],
        "arrayminus": [one.value - one.low for one in intervals],
    }


def speedups_sentence(result: EvaluationResult) -> str:
    """The fastest usable policy and how far it is from the oracle."""
    usable = [entry for entry in result.policies if is_usable(entry.lane)]
    best = max(usable, key=lambda entry: entry.rows[ALL].simulated.speedup.value)
    speedup = best.rows[ALL].simulated.speedup.value
    text = f"{lane_name(best.label)} is the fastest policy that can be used: {speedup:.2f} times"
    oracle = next((entry for entry in result.policies if entry.lane == "oracle"), None)
    if oracle:
        behind = best.rows[ALL].simulated.latency_s / oracle.rows[ALL].simulated.latency_s - 1
        side = "behind" if behind >= 0 else "ahead of"
        text += f", {abs(behind):.0%} {side} the oracle, which knows where guesses fail"
    return f"{text}."


# -- against static-opt --------------------------------------------------------------------------------


def draw_cuts(result: EvaluationResult) -> Drawing:
    """Latency below static-opt's, paired over prompts, by suite."""
    entries = [entry for entry in _by_speedup(result) if _is_compared(entry)]
    suites = suites_of(result.setting)
    figure = go.Figure()
    for suite, symbol in zip(suites, ("circle", "square-open", "diamond-open", "triangle-up-open", "cross-open")):
        shown = [(entry, entry.rows[suite].simulated.cut) for entry in entries if suite in entry.rows]
        intervals = [cut for _, cut in shown if cut]
        figure.add_scatter(
            y=[plain(lane_name(entry.label)) for entry, cut in shown if cut],
            x=[100 * one.value for one in intervals],
            error_x=_scaled_error(intervals) if suite == ALL else None,
            mode="markers",
            name=suite,
            marker={"color": INK if suite == ALL else MUTED, "symbol": symbol, "size": 11 if suite == ALL else 8},
            hovertemplate=f"{plain(suite)}, %{{y}}: %{{x:+.1f}}%<extra></extra>",
        )
    figure.add_vline(x=0, line={"color": MUTED, "width": 1, "dash": "dot"})
    figure.update_xaxes(title_text="time per token below static-opt's (%), simulated")
    figure.update_yaxes(automargin=True)
    figure.update_layout(height=90 + 30 * len(entries) + 50, **BASE)
    return Drawing("eval-cut", f"Against the best static SL ({result.static_opt})", cuts_sentence(result), figure)


def _is_compared(entry: PolicyResult) -> bool:
    return entry.lane != "autoregressive" and entry.rows[ALL].simulated.cut is not None


def _scaled_error(intervals: list[Interval]) -> dict[str, Any]:
    return _error([Interval(100 * one.value, 100 * one.low, 100 * one.high) for one in intervals])


ENOUGH = 20  # prompts, under which an interval over them says nothing


def cuts_sentence(result: EvaluationResult) -> str:
    """Which usable policies are faster or slower than static-opt according to both simulation and clock."""
    compared = [entry for entry in result.policies if _is_compared(entry) and is_usable(entry.lane)]
    right = "Every point right of the dotted line saves time."
    simulated, clocked = prompts_of(result)
    if min(simulated, clocked) < ENOUGH:
        return (
            f"Too few prompts to decide which policy is faster: {simulated} simulated and {clocked} on the clock; "
            f"at least {ENOUGH} of each are needed. {right}"
        )
    parts = [f"faster than static-opt: {_named(compared, 1)}", f"slower: {_named(compared, -1)}"]
    parts.append(f"not distinguishable from it: {_named(compared, 0)}")
    return (
        f"Where the 95% intervals over {simulated} simulated prompts and over {clocked} on the clock agree: "
        f"{'; '.join(parts)}. {right}"
    )


def prompts_of(result: EvaluationResult) -> tuple[int, int]:
    """(simulated, clocked) prompts behind the figures: the fewest that any compared usable policy has."""
    rows = [entry.rows[ALL] for entry in result.policies if _is_compared(entry) and is_usable(entry.lane)]
    simulated = min((row.simulated.prompts for row in rows), default=0)
    return simulated, min((row.clock.prompts if row.clock else 0 for row in rows), default=0)


def sure_side(entry: PolicyResult) -> int:
    """1 if the whole intervals of both simulation and clock are ahead of static-opt, -1 if both are behind, else 0."""
    row = entry.rows[ALL]
    cuts = [row.simulated.cut, row.clock.cut if row.clock else None]
    if all(cut and cut.low > 0 for cut in cuts):
        return 1
    return -1 if all(cut and cut.high < 0 for cut in cuts) else 0


def _named(entries: list[PolicyResult], side: int) -> str:
    return ", ".join(lane_name(entry.label) for entry in entries if sure_side(entry) == side) or "none"


# -- prediction ----------------------------------------------------------------------------------------


def draw_prediction(result: EvaluationResult) -> Drawing:
    """F1 of accept prediction, with always-accept as a line."""
    entries = [entry for entry in _by_speedup(result) if entry.rows[ALL].prediction and is_usable(entry.lane)]
    always = result.always_accept[ALL].f1
    figure = go.Figure()
    figure.add_bar(
        y=[plain(lane_name(entry.label)) for entry in entries],
        x=[entry.rows[ALL].prediction.f1 for entry in entries],
        orientation="h",
        marker={"color": [family(entry.lane)[0] for entry in entries], "opacity": 0.55},
        name="F1",
        customdata=[[_auc(entry)] for entry in entries],
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
    figure.update_yaxes(automargin=True)
    figure.update_layout(height=60 + 30 * len(entries) + 60, **BASE)
    return Drawing("eval-f1", "Which policy predicts best which guesses hold?", prediction_sentence(result), figure)


def _auc(entry: PolicyResult) -> str:
    auc = entry.rows[ALL].prediction.auc
    return "none (no score)" if auc is None else f"{auc:.3f}"


def prediction_sentence(result: EvaluationResult) -> str:
    """How much the best policy's F1 is above that of accepting everything."""
    always = result.always_accept[ALL].f1
    scored = [
        entry for entry in result.policies if entry.rows[ALL].prediction and entry.rows[ALL].prediction.auc is not None
    ]
    held = f"{result.match_rate[ALL]:.0%} of the guesses hold"
    text = f"Accepting everything reaches an F1 of {always:.2f} here, because {held}"
    if not scored:
        return f"{text}: only the part beyond the line is a gain."
    best = max(scored, key=lambda entry: entry.rows[ALL].prediction.f1)
    found = best.rows[ALL].prediction
    return f"{text}; {lane_name(best.label)} reaches {found.f1:.2f}, with an AUC of {found.auc:.2f}."


# -- discard against verification ----------------------------------------------------------------------


def draw_pareto(result: EvaluationResult) -> Drawing:
    """SpecDec++'s plane: drafts thrown away per token against target passes per token, over thresholds."""
    figure = go.Figure()
    for policy, points in result.pareto.items():
        colour, symbol = family(policy)
        figure.add_scatter(
            x=[point.discard_rate for point in points],
            y=[point.verification_rate for point in points],
            mode="lines+markers",
            name=plain(policy_title(policy)),
            line={"color": colour, "width": 1.4},
            marker={"symbol": symbol, "size": 7, "color": colour},
            customdata=[[plain(lane_name(point.lane)), f"{point.speedup:.2f}"] for point in points],
            hovertemplate="%{customdata[0]}<br>thrown away %{x:.2f}, target passes %{y:.2f} per token<br>"
            "%{customdata[1]} times<extra></extra>",
        )
    for entry in result.policies:
        if _has_no_sweep(entry, result):
            row, (colour, symbol) = entry.rows[ALL], family(entry.lane)
            figure.add_scatter(
                x=[row.discard_rate],
                y=[row.verification_rate],
                mode="markers",
                name=plain(lane_name(entry.label)),
                marker={"symbol": symbol, "size": 12, "color": colour},
                hovertemplate=f"{plain(lane_name(entry.label))}: %{{x:.2f}}, %{{y:.2f}} per token<extra></extra>",
            )
    figure.update_xaxes(title_text="discard rate: drafts thrown away per token", rangemode="tozero")
    figure.update_yaxes(title_text="verification rate: target passes per token", rangemode="tozero")
    figure.update_layout(height=420, **BASE)
    return Drawing("eval-pareto", "The trade-off of each threshold", pareto_sentence(result), figure)


def _has_no_sweep(entry: PolicyResult, result: EvaluationResult) -> bool:
    """Whether the policy drafts and has no parameter to sweep: it is a point instead of a line."""
    spec = spec_of(entry.lane)
    return entry.rows[ALL].draft_passes > 0 and spec is not None and spec.name not in result.pareto


def pareto_sentence(result: EvaluationResult) -> str:
    """At the discard rate of static-opt, which policy needs the fewest target passes?"""
    static = next((entry for entry in result.policies if entry.label == "static-opt"), None)
    if static is None:
        return "Lower left is better: fewer drafts thrown away and fewer target passes."
    row = static.rows[ALL]
    found = {
        policy: min((p.verification_rate for p in points if p.discard_rate <= row.discard_rate), default=None)
        for policy, points in result.pareto.items()
    }
    known = {policy: rate for policy, rate in found.items() if rate is not None and policy != "static"}
    text = "Lower left is better: fewer drafts thrown away and fewer target passes."
    if not known:
        return text
    best = min(known, key=known.__getitem__)
    return (
        f"{text} Throwing away at most as many guesses as static-opt ({row.discard_rate:.2f} per token), "
        f"{policy_title(best)} needs {known[best]:.2f} target passes per token; static-opt {row.verification_rate:.2f}."
    )


# -- the oracle's SL -----------------------------------------------------------------------------------

BINS = ((0, 0), (1, 1), (2, 2), (3, 3), (4, 5), (6, 8), (9, 12), (13, 20), (21, 40), (41, 80), (81, 8192))


def draw_histogram(result: EvaluationResult) -> Drawing:
    """Distribution of the number of consecutive guesses that hold (DISCO, figure 4)."""
    lengths = result.oracle[ALL]
    names = [_bin_name(low, high) for low, high in BINS]
    shares = [sum(n for sl, n in lengths.histogram if low <= sl <= high) / lengths.iterations for low, high in BINS]
    figure = go.Figure(
        go.Bar(
            x=names,
            y=[100 * share for share in shares],
            marker={"color": family("oracle")[0], "opacity": 0.7},
            hovertemplate="%{x} in a row: %{y:.1f}% of the iterations<extra></extra>",
        )
    )
    figure.update_xaxes(title_text="guesses in a row that hold (the oracle's SL)", type="category")
    figure.update_yaxes(title_text="iterations (%)")
    figure.update_layout(height=300, **BASE)
    sentence = (
        f"The number of guesses that hold is {lengths.mean:.1f} on average but varies by {lengths.sd:.1f} (standard "
        f"deviation): in {shares[0]:.0%} of the iterations no guess holds. No fixed SL fits all of them."
    )
    return Drawing("eval-histogram", "How many guesses in a row hold", sentence, figure)


def _bin_name(low: int, high: int) -> str:
    return f"{low}" if low == high else f"{low}+" if high > 4000 else f"{low}–{high}"


def draw_course(result: EvaluationResult) -> Drawing:
    """Mean oracle SL over the iteration's position in its text (DISCO, figures 3 and 5)."""
    figure = go.Figure()
    dashes = ("solid", "dash", "dot", "dashdot", "longdash")
    suites = suites_of(result.setting)
    shown = [(suite, lengths) for suite, lengths in result.oracle.items() if suite in suites]
    for (suite, lengths), dash, colour in zip(shown, dashes, SUITE_COLOURS):
        places = len(lengths.by_place)
        figure.add_scatter(
            x=[(index + 0.5) / places for index in range(places)],
            y=lengths.by_place,
            mode="lines",
            name=plain(suite),
            line={"color": colour, "width": 2.2 if suite == ALL else 1.5, "dash": dash},
            hovertemplate=f"{plain(suite)}: %{{y:.1f}}<extra></extra>",
        )
    figure.update_xaxes(title_text="position of the iteration in its text (0: first, 1: last)", range=[0, 1])
    figure.update_yaxes(title_text="mean oracle SL (tokens)", rangemode="tozero")
    figure.update_layout(height=320, **BASE)
    return Drawing("eval-course", "The oracle's SL along the text", course_sentence(result), figure)


def course_sentence(result: EvaluationResult) -> str:
    """Whether guesses hold longer in the first or in the last third of a text."""
    known = [value for value in result.oracle[ALL].by_place if value is not None]
    third = max(1, len(known) // 3)
    first, last = sum(known[:third]) / third, sum(known[-third:]) / third
    thirds = f"{first:.1f} in a row in the first third, {last:.1f} in the last"
    if last > 1.15 * first:
        return f"Guesses hold longer towards the end of a text: {thirds}."
    if first > 1.15 * last:
        return f"Guesses hold longer at the beginning of a text: {thirds}."
    return f"Along the text the oracle's SL hardly changes: {thirds}."
