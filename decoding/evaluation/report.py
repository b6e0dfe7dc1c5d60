"""The tables of an evaluation for readers: plain cells, Markdown, CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence

from ..records.trace import Costs
from .published import ahead_table, papers_table
from .results import (
    ALL,
    DraftsResult,
    EvaluationResult,
    Interval,
    PolicyResult,
    Recommendation,
    Setting,
    Timing,
    suites_of,
)
from .table import Table
from .tables import STATIC_OPT

# -- the policies -----------------------------------------------------------------------------------------


def evaluation_tables(result: EvaluationResult) -> list[Table]:
    """The papers' tables for one pair and draft."""
    return [
        *speedup_tables(result),
        *papers_tables(result),
        _prediction_table(result),
        _pass_table(result),
        *([_losses_table(result)] if all(entry.rows[ALL].losses for entry in result.policies) else []),
        *([_corrections_table(result)] if result.corrections else []),
        _oracle_table(result, suites_of(result.setting)),
    ]


def speedup_tables(result: EvaluationResult) -> list[Table]:
    """Latency and speedup, over all suites and by suite, simulated and where there are readings on the clock."""
    suites = suites_of(result.setting)
    clocks = [False, True] if _clocked(result) else [False]
    return [
        *(_latency_table(result, clock) for clock in clocks),
        *(_suite_table(result, suites, clock) for clock in clocks if len(suites) > 1),
    ]


def papers_tables(result: EvaluationResult) -> list[Table]:
    """The papers' figures for the data sets of ``result`` next to the measured ones; none if it has none of them."""
    return [table for table in (papers_table(result), ahead_table(result)) if table]


def _latency_table(result: EvaluationResult, clock: bool) -> Table:
    oracle = next((_timing(entry, ALL, clock) for entry in result.policies if entry.lane == "oracle"), None)
    timings = [(entry, _timing(entry, ALL, clock)) for entry in result.policies]
    rows = [[_name(entry), *_timing_cells(timing, oracle)] for entry, timing in timings if timing]
    first = next(timing for _, timing in timings if timing)
    if clock:
        title, how = "Latency and speedup on the clock", _clock_note(result)
    else:
        title = "Latency and speedup"
        how = f"Simulated from chains and cost curves: {first.prompts} prompts, {first.tokens:,} tokens"
    note = (
        f"{how}. Ahead: how far the latency is below static-opt's; behind: how far it is above the oracle's. Square "
        "brackets: 95% bootstrap intervals over prompts."
    )
    columns = ["policy", "ms/token", "speedup", "ahead of static-opt", "behind oracle"]
    if any(timing.cut_noise is not None for _, timing in timings if timing):
        note += (
            " Timing: half the width of the 95% interval of ahead that is due to timing noise alone, for these "
            "prompts. All figures are ratios of sums over prompts."
        )
        columns.append("timing")
        rows = [[*row, _noise_cell(timing)] for row, timing in zip(rows, (one for _, one in timings if one))]
    if any(timing.over_simulated for _, timing in timings if timing):
        note += " Over simulated: the speedup over that simulated on the same prompts."
        columns.append("over simulated")
        rows = [[*row, _excess_cell(timing)] for row, timing in zip(rows, (one for _, one in timings if one))]
    return Table(title, note, columns, rows)


def _timing_cells(timing: Timing, oracle: Timing | None) -> list[str]:
    cut = percent_interval(timing.cut) if timing.cut else ""
    behind = signed(timing.latency_s / oracle.latency_s - 1) if oracle else ""
    return [f"{timing.latency_s * 1e3:.2f}", times(timing.speedup), cut, behind]


def _noise_cell(timing: Timing) -> str:
    return "" if timing.cut_noise is None else f"\u00b1 {timing.cut_noise:.1%}"


def _excess_cell(timing: Timing) -> str:
    return "" if timing.over_simulated is None else percent_interval(timing.over_simulated)


def _suite_table(result: EvaluationResult, suites: Sequence[str], clock: bool) -> Table:
    rows = []
    for entry in result.policies:
        timings = [_timing(entry, suite, clock) for suite in suites]
        if any(timings):
            rows.append([_name(entry), *map(_speedup_and_cut, timings)])
    columns = ["policy", *suites]
    how = "On the clock" if clock else "Simulated"
    return Table(
        f"{how}, by suite",
        "Speedup over plain decoding; in brackets: how far the latency is below static-opt's.",
        columns,
        rows,
    )


def _speedup_and_cut(timing: Timing | None) -> str:
    if timing is None:
        return ""
    return f"{timing.speedup.value:.2f}x" + (f" ({signed(timing.cut.value)})" if timing.cut else "")


def _timing(entry: PolicyResult, suite: str, clock: bool) -> Timing | None:
    row = entry.rows.get(suite)
    return None if row is None else row.clock if clock else row.simulated


def _prediction_table(result: EvaluationResult) -> Table:
    always = result.always_accept[ALL]
    rows = [["always-accept", _percent(always.f1), _percent(always.precision), _percent(always.recall), "0.50"]]
    for entry in result.policies:
        found = entry.rows[ALL].prediction
        if found:
            auc = f"{found.auc:.2f}" if found.auc is not None else ""
            rows.append([_name(entry), *map(_percent, (found.f1, found.precision, found.recall)), auc])
    note = (
        "Does the policy predict which guesses hold? One prediction per output position: a drafted token is predicted "
        "to hold, the token after the last guess of an iteration to fail. With a high match rate F1 is high for any "
        "policy: compare always-accept."
        f"{_f1_sentence(result)}"
    )
    return Table("Accept prediction", note, ["policy", "F1", "precision", "recall", "AUC of the score"], rows)


def _f1_sentence(result: EvaluationResult) -> str:
    """The possible gain in F1: the distance of static-opt from 1, and the best that the scores could reach."""
    opt = next((entry.rows[ALL].prediction for entry in result.policies if entry.label == STATIC_OPT), None)
    if opt is None or not result.best_f1:
        return ""
    best = ", ".join(f"{policy} {_percent(value)}" for policy, value in result.best_f1.items())
    return (
        f" Static-opt's F1 is {100 * (1 - opt.f1):.1f} points below 100%. The highest F1 that any threshold of a "
        f"score would reach on these texts: {best}; always-accept: {_percent(result.always_accept[ALL].f1)}."
    )


def _pass_table(result: EvaluationResult) -> Table:
    rows = []
    for entry in result.policies:
        row = entry.rows[ALL]
        rows.append(
            [
                _name(entry),
                f"{row.target_passes:,}",
                f"{row.draft_passes:,}",
                f"{row.tokens_per_target_pass:.2f}",
                f"{row.discard_rate:.3f}",
                f"{row.verification_rate:.3f}",
            ]
        )
    columns = ["policy", "target passes", "draft passes", "tokens per pass", "discard rate", "verification rate"]
    note = "Over all test prompts. Discard rate: drafts thrown away / tokens; verification: target passes / tokens."
    return Table("Passes", note, columns, rows)


def _losses_table(result: EvaluationResult) -> Table:
    rows = []
    for entry in result.policies:
        parts = entry.rows[ALL].losses
        assert parts is not None, f"the policy {entry.label} has no losses over all suites"
        seconds = (parts.draft_s, parts.check_s, parts.decision_s, parts.loop_s, parts.too_long_s)
        rows.append([_name(entry), *(f"{1e3 * part:.3f}" for part in seconds), f"{100 * parts.too_soon:.1f}"])
    columns = ["policy", "drafting", "checking", "deciding", "loop", "thrown away", "stopped too soon"]
    note = (
        "Simulated milliseconds per token; thrown away: the part of them spent on guesses that did not hold. Stopped "
        "too soon: iterations per 100 tokens that ended although the next guess would have held. "
        f"{_judge_sentence(result)}"
    )
    return Table("Where the time goes", note, columns, rows)


def _judge_sentence(result: EvaluationResult) -> str:
    judge = result.perfect_judge.get(ALL)
    if judge is None:
        return ""
    cut = f", {judge.cut.value:+.1%} against static-opt" if judge.cut else ""
    return (
        f"A perfect classifier of the drafted token, with free decisions, would reach {judge.speedup.value:.2f}x{cut}"
        f"{_behind_oracle(result, judge)}: it still drafts the token that fails."
    )


def _corrections_table(result: EvaluationResult) -> Table:
    rows = []
    for entry in result.policies:
        one = result.corrections.get(entry.label)
        if one is None:
            continue
        undone = (one.free_decisions_s, one.free_checks_s, one.never_too_late_s, one.never_too_soon_s, one.no_errors_s)
        cells = [f"{1e3 * seconds:.2f} ({signed(seconds / one.as_it_is_s - 1)})" for seconds in undone]
        rows.append([_name(entry), f"{1e3 * one.as_it_is_s:.2f}", *cells])
    note = (
        "Simulated milliseconds per token, and in brackets the change, if one loss were removed: decisions and "
        "features free; checking many tokens as cheap as checking one; no guess after one that fails (no false "
        "positives); no stop while all guesses hold (no false negatives); neither kind of error."
    )
    columns = ["policy", "as it is", "free decisions", "free checks", "never too late", "never too soon", "no errors"]
    return Table("What holds a policy back", note, columns, rows)


def _behind_oracle(result: EvaluationResult, judge: Timing) -> str:
    oracle = next((entry.rows[ALL].simulated for entry in result.policies if entry.lane == "oracle"), None)
    return f", {judge.latency_s / oracle.latency_s - 1:.1%} behind the oracle" if oracle else ""


def _oracle_table(result: EvaluationResult, suites: Sequence[str]) -> Table:
    rows = [
        [suite, _percent(result.match_rate[suite]), f"{one.mean:.1f}", f"{one.sd:.1f}", f"{one.iterations:,}"]
        for suite, one in result.oracle.items()
        if suite in suites
    ]
    columns = ["suite", "match rate", "oracle SL, mean", "standard deviation", "iterations"]
    return Table("The draft along the text", "How many guesses in a row hold before one fails.", columns, rows)


def _clocked(result: EvaluationResult) -> bool:
    return any(entry.rows[ALL].clock for entry in result.policies)


def _clock_note(result: EvaluationResult) -> str:
    timing = next(timing for entry in result.policies if (timing := entry.rows[ALL].clock) is not None)
    same, total = result.texts_equal
    return (
        f"On the clock: {counted(timing.prompts, 'prompt')}, at most {counted(result.setting.clock_repeats, 'repeat')} "
        "round robin, medians; "
        "the lanes of a prompt take turns every tenth of a second; "
        f"text equal to plain decoding's in {same} of {total} lanes"
    )


# -- the drafts ----------------------------------------------------------------------------------------


def drafts_tables(result: DraftsResult) -> list[Table]:
    """Every draft's cost, match rate and speedup."""
    suites = suites_of(result.setting)
    return [_drafts_table(result), *([_drafts_by_suite(result, suites)] if len(suites) > 1 else [])]


def _drafts_table(result: DraftsResult) -> Table:
    rows = [
        [
            draft.name,
            f"{draft.parameters / 1e6:.1f}M" if draft.parameters else "",
            f"{draft.layers} x {draft.hidden_size}" if draft.layers else "",
            f"{draft.c:.3f}",
            _percent(draft.match_rate[ALL]),
            str(draft.best_sl),
            times(draft.static_speedup[ALL]),
            draft.best_lane,
            times(draft.speedup[ALL]),
            f"{draft.p95_token_s * 1e3:.2f}",
            f"{draft.break_even_c:.2f}",
        ]
        for draft in result.drafts
    ]
    columns = [
        "draft",
        "parameters",
        "layers x width",
        "c",
        "match rate",
        "best SL",
        "speedup at it",
        "best policy",
        "its speedup",
        "p95 ms per token",
        "break-even c",
    ]
    note = (
        "c: a draft step over a target pass. Best SL and best policy were chosen on validation prompts, their speedups "
        "are simulated on the test prompts. p95: over prompts. Break-even c: the cost from which on no fixed SL gains."
    )
    return Table("The drafts", note, columns, rows)


def _drafts_by_suite(result: DraftsResult, suites: Sequence[str]) -> Table:
    rows = [[draft.name, *(f"{draft.speedup[suite].value:.2f}" for suite in suites)] for draft in result.drafts]
    return Table("Speedup by suite", "Each draft with its best policy.", ["draft", *suites], rows)


# -- shared --------------------------------------------------------------------------------------------


def setting_lines(setting: Setting) -> list[str]:
    """The setting of the evaluation, in sentences."""
    machine, costs = setting.machine, setting.costs
    drafts = ", ".join(f"{name} {c:.3f}" for name, c in costs.c.items())
    where = machine.gpu or f"{machine.processor}, {machine.cores} cores"
    return [
        f"Pair {setting.pair}, target in {setting.target_dtype}, draft {setting.draft} in {setting.draft_dtype}, "
        f"{counted(setting.threads, 'thread')}, on {where}; {setting.created}.",
        f"Greedy, {setting.max_new_tokens} new tokens at most; {setting.split} prompts: "
        f"{', '.join(f'{suite} {n}' for suite, n in setting.prompts.items())}; all choices were made on "
        f"{setting.validation_prompts} validation prompts.",
        f"A target pass takes {costs.target_s * 1e3:.2f} ms, over 6 tokens {costs.check(6):.2f} and over 21 "
        f"{costs.check(21):.2f} times that; c: {drafts}{_first_steps(costs)}; loop {costs.o:.3f}.",
        *_decision_lines(setting),
        *setting.notes,
    ]


def _first_steps(costs: Costs) -> str:
    first = ", ".join(f"{name} {value:.3f}" for name, value in costs.first.items() if value >= 0.0005)
    return f"; additional cost of the first draft step of an iteration: {first}" if first else ""


def _decision_lines(setting: Setting) -> list[str]:
    """The costs of features and decisions relative to a draft step."""
    c = setting.costs.c.get(setting.draft, 0.0)
    found = {policy: cost / c for policy, cost in setting.costs.decision.items() if c and cost >= 0.005 * c}
    shares = ", ".join(f"{policy} {share:.0%}" for policy, share in found.items())
    return [f"Cost of features and a decision, as a share of a draft step: {shares}."] if shares else []


def counted(n: int, what: str) -> str:
    """ "1 thread", "2 threads"."""
    return f"{n} {what}" if n == 1 else f"{n} {what}s"


def times(interval: Interval) -> str:
    return f"{interval.value:.2f}x [{interval.low:.2f}, {interval.high:.2f}]"


def percent_interval(interval: Interval) -> str:
    return f"{signed(interval.value)} [{signed(interval.low)}, {signed(interval.high)}]"


def signed(change: float) -> str:
    """A change in percent, with its sign, or "0.0%" without one if it rounds to that."""
    text = f"{change:+.1%}"
    return "0.0%" if text in ("+0.0%", "-0.0%") else text


def _percent(value: float) -> str:
    return f"{value:.1%}"


def _name(entry: PolicyResult) -> str:
    return entry.label if entry.label == entry.lane else f"{entry.label} ({entry.lane})"


def to_markdown(title: str, lines: Iterable[str], tables: Iterable[Table], more: str = "") -> str:
    """One Markdown document."""
    parts = [f"# {title}", "\n".join(f"- {line}" for line in lines)]
    for table in tables:
        rows = [table.columns, ["---"] * len(table.columns), *table.rows]
        body = "\n".join("| " + " | ".join(_cell(cell) for cell in row) + " |" for row in rows)
        parts.append(f"## {table.title}\n\n{table.note}\n\n{body}")
    return "\n\n".join([*parts, *([more] if more else [])]) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def to_csv(tables: Iterable[Table]) -> str:
    """All tables, each preceded by a line with its title."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    for table in tables:
        writer.writerow([f"# {table.title}"])
        writer.writerow(table.columns)
        writer.writerows(table.rows)
    return file.getvalue()


def advice_markdown(advice: Recommendation) -> str:
    """The recommendation as the end of a Markdown report."""
    sentences = "\n".join(f"- {sentence}" for sentence in advice.sentences)
    return (
        f"## Recommended here: {advice.draft} with {advice.lane}\n\n{sentences}\n\n"
        f"In transformers:\n\n```python\n{advice.transformers}\n```\n\nIn vLLM:\n\n```sh\n{advice.vllm}\n```"
    )
