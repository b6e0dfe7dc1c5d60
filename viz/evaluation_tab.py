"""What the Evaluation tab says of an evaluation's result."""

from __future__ import annotations

from decoding.evaluation.results import ALL, EvaluationResult, RuleResult
from decoding.lanes import parse_lane
from decoding.trace import Machine

from .report import Report, Section, Table, interval_text, percent_text, suites_of

CEILINGS = ("oracle",)  # rules that know the future: a bound, not a choice
RULE_COLUMNS = [
    ("rule", ""),
    ("speedup", "simulated from the recorded chains and the measured cost curves, over all test prompts; 95% interval"),
    ("less time than static-opt", "1 - latency / static-opt's latency, simulated; paired over prompts, 95% interval"),
    ("speedup, clock", "decode time of plain decoding / of the rule, on the clock, over some of the prompts"),
    ("less time, clock", "1 - latency / static-opt's latency, on the clock"),
    ("ms per token", "simulated decode time / tokens of text"),
    ("tokens per pass", "1 + accepted / target passes"),
    ("discard rate", "drafted tokens thrown away / tokens of text"),
    ("verification rate", "target passes / tokens of text"),
    ("F1", "of predicting that a drafted token is accepted"),
    ("AUC", "of the rule's score as a predictor of acceptance"),
]


def evaluation_report(result: EvaluationResult, drawings: list[dict] | None = None) -> Report:
    """The tab's content for ``result``; ``drawings`` are figures as :class:`viz.figures.race.Drawing` gives them."""
    sections = [
        Section("Which rule is fastest?", summary(result), [rules_table(result), suites_table(result)]),
        Section("How hard are the texts?", oracle_sentences(result), [oracle_table(result)]),
        Section("Plots", drawings=drawings or []),
        Section("How this was measured", method(result)),
    ]
    return Report(stamp(result.setting), [one for one in sections if one.sentences or one.tables or one.drawings])


def stamp(setting) -> str:
    """Where the figures come from, in one line."""
    where = [machine_text(setting.machine), setting.target_dtype, setting.created[:10]]
    return " · ".join([f"{setting.pair} with draft {setting.draft}", *where])


def machine_text(machine: Machine) -> str:
    return machine.gpu or f"{machine.processor}, {machine.cores} cores"


def summary(result: EvaluationResult) -> list[str]:
    """What the figures say, best usable rule first."""
    static = result.rule("static-opt") if any(rule.label == "static-opt" for rule in result.rules) else None
    usable = [rule for rule in result.rules if _is_usable(rule)]
    sentences = []
    if static:
        sentences.append(
            f"The best static SL, chosen on {result.setting.validation_prompts} validation prompts, is "
            f"{result.static_opt}: {_speedup(static)} times as fast as plain decoding over "
            f"{static.rows[ALL].simulated.prompts} test prompts (simulated)."
        )
    if usable:
        best = max(usable, key=lambda rule: rule.rows[ALL].simulated.speedup.value)
        sentences.append(_best_sentence(best))
    oracle = next((rule for rule in result.rules if rule.lane == "oracle"), None)
    if oracle:
        sentences.append(
            f"The oracle, told beforehand where guesses fail, reaches {_speedup(oracle)} times: a bound for rules with "
            "this draft."
        )
    return sentences


def _best_sentence(best: RuleResult) -> str:
    row = best.rows[ALL]
    reached = interval_text(row.simulated.speedup)
    text = f"The fastest rule that can be used is {best.label}: {reached} times as fast as plain"
    if row.simulated.cut:
        text += f", {percent_text(row.simulated.cut)} less time per token than static-opt (simulated"
        on_clock = row.clock.cut if row.clock else None
        text += f"; on the clock {percent_text(on_clock)})" if on_clock else ")"
    return f"{text}. In brackets: 95% intervals over prompts."


def _is_usable(rule: RuleResult) -> bool:
    return parse_lane(rule.lane).policy not in (*CEILINGS, "autoregressive")


def _speedup(rule: RuleResult) -> str:
    return f"{rule.rows[ALL].simulated.speedup.value:.2f}"


def rules_table(result: EvaluationResult) -> Table:
    """All rules over all suites."""
    rows = [_rule_row(rule) for rule in result.rules]
    always = result.always_accept.get(ALL)
    if always:
        auc = f"{always.auc:.3f}" if always.auc is not None else ""
        rows.append(["always accept (as a predictor)", *[""] * 8, f"{always.f1:.3f}", auc])
    return Table("All rules, over all suites of the test split", RULE_COLUMNS, rows)


def _rule_row(rule: RuleResult) -> list[str]:
    row = rule.rows[ALL]
    name = rule.label if rule.label == rule.lane else f"{rule.label} ({rule.lane})"
    predicted = row.prediction
    return [
        name, interval_text(row.simulated.speedup), percent_text(row.simulated.cut),
        interval_text(row.clock.speedup) if row.clock else "", percent_text(row.clock.cut) if row.clock else "",
        f"{row.simulated.latency_s * 1e3:.2f}", f"{row.tokens_per_target_pass:.2f}", f"{row.discard_rate:.2f}",
        f"{row.verification_rate:.2f}", f"{predicted.f1:.3f}" if predicted else "",
        f"{predicted.auc:.3f}" if predicted and predicted.auc is not None else "",
    ]  # fmt: skip


def suites_table(result: EvaluationResult) -> Table:
    """Simulated speedup by suite."""
    suites = suites_of([name for rule in result.rules for name in rule.rows][: 1 + len(result.setting.prompts)])
    rows = [
        [
            rule.label,
            *(f"{rule.rows[suite].simulated.speedup.value:.2f}" if suite in rule.rows else "" for suite in suites),
        ]
        for rule in result.rules
    ]
    return Table("Speedup by suite (simulated)", [("rule", ""), *((suite, "") for suite in suites)], rows)


def oracle_sentences(result: EvaluationResult) -> list[str]:
    lengths = result.oracle.get(ALL)
    if lengths is None:
        return []
    rate = result.match_rate.get(ALL)
    matched = (
        f" The draft's first choice is the target's token at {rate:.0%} of the positions." if rate is not None else ""
    )
    return [
        f"In one round {lengths.mean:.1f} guesses in a row would hold on average, with a standard deviation of "
        f"{lengths.sd:.1f}: the wider the spread, the more a rule can gain that adapts.{matched}"
    ]


def oracle_table(result: EvaluationResult) -> Table:
    columns = [
        ("suite", ""),
        ("oracle SL, mean", "guesses that hold in a row, per iteration"),
        ("sd", "its standard deviation"),
        ("iterations", ""),
        ("match rate", "positions at which the draft's first choice is the target's token"),
    ]
    rows = [
        [suite, f"{one.mean:.1f}", f"{one.sd:.1f}", f"{one.iterations:,}",
         f"{result.match_rate[suite]:.1%}" if suite in result.match_rate else ""]
        for suite, one in ((suite, result.oracle[suite]) for suite in suites_of(list(result.oracle)))
    ]  # fmt: skip
    return Table("Guesses that hold in a row, and how often the first choices agree", columns, rows)


def method(result: EvaluationResult) -> list[str]:
    """How the figures came about, and what was checked."""
    setting, (same, clocked) = result.setting, result.texts_equal
    prompts = ", ".join(f"{suite} {count}" for suite, count in setting.prompts.items())
    sentences = [
        f"Prompts of the {setting.split} split: {prompts}; {setting.max_new_tokens} new tokens each. Validation "
        "picks, test reports: no figure of the test split chose anything.",
        f"Cost curves measured on that machine with {setting.threads} threads: a draft step costs {_costs(setting)} of "
        "a target pass.",
    ]
    if clocked:
        sentences.append(f"On the clock, {same} of {clocked} texts were the same as plain decoding's, token for token.")
    return sentences + list(setting.notes)


def _costs(setting) -> str:
    c = setting.costs.c.get(setting.draft)
    return f"{c:.3f}" if c is not None else "an unknown share"
