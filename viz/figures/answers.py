"""The figures of an evaluation's second and third answer: which static SL, and what holds the best policy back."""

from __future__ import annotations

import plotly.graph_objects as go

from decoding.evaluation.results import STATIC_OPT, EvaluationResult
from decoding.records.text import counted

from ..player.names import lane_name, lane_style
from .drawing import DOTTED, INK, Drawing

CAUSES = {
    "free_decisions_s": "if deciding cost nothing",
    "free_checks_s": "if checking many tokens took as long as one",
    "never_too_late_s": "if it never guessed on after a miss",
    "never_too_soon_s": "if it never stopped before a miss",
    "no_errors_s": "if it stopped exactly at a miss",
}


def draw_static_sls(result: EvaluationResult) -> Drawing:
    """Speedup of every static SL that was tried, with the one chosen on validation prompts marked."""
    found = {sl: one.value for sl, one in result.by_sl(result.setting.draft, "sweep_speedup").items()}
    chosen = result.static_opt
    figure = go.Figure(
        go.Bar(
            x=list(found),
            y=list(found.values()),
            marker={"color": lane_style("static:5").ink, "opacity": [0.95 if sl == chosen else 0.4 for sl in found]},
            hovertemplate="SL %{x}: %{y:.2f} times<extra></extra>",
        )
    )
    figure.add_hline(y=1, line=DOTTED)
    figure.update_xaxes(title_text="static SL: guesses before each check", dtick=5)
    figure.update_yaxes(title_text="speedup (times)", rangemode="tozero")
    return Drawing("eval-static", "Speedup of every static SL", static_sentence(result, found), figure, 320)


def static_sentence(result: EvaluationResult, found: dict[int, float]) -> str:
    """The static SL that validation chose, its speedup on the test prompts, and what the longest one would give."""
    count, static = result.setting.validation_prompts, result.find("speedup", STATIC_OPT)
    text = f"SL {result.static_opt}, chosen on {counted(count, 'validation prompt')}"
    if static is not None:
        text += f", makes decoding {static.value:.2f} times as fast over {counted(static.n, 'test prompt')} (simulated)"
    longest = max(found, default=result.static_opt)
    if longest == result.static_opt:
        return f"{text}."
    return f"{text}; SL {longest} would make it {found[longest]:.2f} times as fast."


def _two_lines(name: str) -> str:
    """A long name broken near its middle, so that a phone has room for its bar."""
    spaces = [at for at, sign in enumerate(name) if sign == " "] if len(name) > 20 else []
    at = min(spaces, key=lambda at: abs(2 * at - len(name)), default=len(name))
    return "<br>".join(filter(None, (name[:at], name[at + 1 :])))


def draw_losses(result: EvaluationResult, best: str) -> Drawing | None:
    """What ``best`` would reach without each of its losses; None if they were not computed."""
    as_it_is, speedup = result.find("as_it_is_s", best), result.find("speedup", best)
    without = {words: one for metric, words in CAUSES.items() if (one := result.find(metric, best))}
    if as_it_is is None or speedup is None or not without:
        return None
    reached = {words: speedup.value * as_it_is.value / one.value for words, one in without.items()}
    bars = {"as it is": speedup.value, **reached}
    names = list(bars)[::-1]
    figure = go.Figure(
        go.Bar(
            y=[_two_lines(name) for name in names],
            x=[bars[name] for name in names],
            orientation="h",
            marker={"color": lane_style(result.lanes[best]).ink, "opacity": [*[0.35] * len(reached), 0.6]},
            text=[f"{bars[name]:.2f}" for name in names],
            textfont={"color": INK},
            hovertemplate="%{y}: %{x:.2f} times<extra></extra>",
        )
    )
    figure.update_xaxes(title_text="speedup (times)", dtick=1, rangemode="tozero")
    figure.update_yaxes(automargin=True)
    cause, name = max(reached, key=reached.__getitem__), lane_name(best)
    sentence = (
        f"Simulated, {name} is {speedup.value:.2f} times as fast as plain decoding. It would be {reached[cause]:.2f} "
        f"times as fast {cause}: its largest loss."
    )
    return Drawing("eval-losses", f"{name} without each of its losses", sentence, figure, 320)
