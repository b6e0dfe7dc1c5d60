"""The content of the Evaluation tab."""

from __future__ import annotations

from decoding.evaluation.report import evaluation_tables, percent_interval, times
from decoding.evaluation.results import ALL, EvaluationResult, PolicyResult
from decoding.lookahead.lanes import is_usable

from ..figures.evaluation import ENOUGH, draw_evaluation, prompts_of
from ..player.names import lane_name
from .report import Report, Section, make_report


def evaluation_report(result: EvaluationResult) -> Report:
    """The tab's content for ``result``."""
    first = Section("Which policy is fastest?", summary(result))
    return make_report(result.setting, first, evaluation_tables(result), draw_evaluation(result))


def summary(result: EvaluationResult) -> list[str]:
    """Sentences on the static choice, the best usable policy and the upper bound."""
    by_label = {entry.label: entry for entry in result.policies}
    usable = [entry for entry in result.policies if is_usable(entry.lane)]
    sentences = []
    if "static-opt" in by_label:
        sentences.append(_static_sentence(result, by_label["static-opt"]))
    if usable:
        sentences.append(_best_sentence(max(usable, key=_speedup)))
    if "oracle" in by_label:
        reached = f"{_speedup(by_label['oracle']):.2f}"
        sentences.append(
            f"The oracle, which knows in advance where guesses fail, reaches {reached}: a bound, not a choice."
        )
    simulated, clocked = prompts_of(result)
    if min(simulated, clocked) < ENOUGH:
        sentences.append(
            f"{simulated} simulated prompts and {clocked} on the clock are too few to decide which policy is faster."
        )
    return sentences


def _static_sentence(result: EvaluationResult, entry: PolicyResult) -> str:
    timing = entry.rows[ALL].simulated
    return (
        f"The best static SL, chosen on {result.setting.validation_prompts} validation prompts, is "
        f"{result.static_opt}: {timing.speedup.value:.2f} times as fast as plain decoding over {timing.prompts} test "
        "prompts (simulated)."
    )


def _best_sentence(best: PolicyResult) -> str:
    row = best.rows[ALL]
    text = f"The fastest policy that can be used is {lane_name(best.label)}: {times(row.simulated.speedup)}"
    if row.simulated.cut:
        text += f", {percent_interval(row.simulated.cut)} less time per token than static-opt (simulated"
        on_clock = row.clock.cut if row.clock else None
        text += f"; on the clock {percent_interval(on_clock)})" if on_clock else ")"
    return f"{text}. In brackets: 95% intervals over prompts."


def _speedup(entry: PolicyResult) -> float:
    return entry.rows[ALL].simulated.speedup.value
