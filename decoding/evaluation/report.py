"""The reports of an evaluation: tables selected from its figures, Markdown, and the files in its folder."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from ..analysis.whatif import guesses_at_once
from ..files import safe_name
from ..lookahead.spec import all_specs
from ..records.text import counted, markdown_table
from .advice import Recommendation, recommend
from .figures import CORRECTIONS, LOSSES, METRICS, PASSES, PREDICTION, Metric
from .options import EvaluationOptions
from .published import papers_tables, published_figures
from .results import (
    ALL,
    ALWAYS_ACCEPT,
    PERFECT_JUDGE,
    SHIPPED,
    STATIC_OPT,
    Draft,
    EvaluationResult,
    Figure,
    Setting,
    save_result,
    shipped_name,
    write_text,
)
from .table import (
    Cell,
    Column,
    Table,
    make_table,
    milliseconds,
    percent_interval,
    signed,
    times,
)
from .trees import trees_table

WORK = Path("build") / "evaluation"  # what evaluations collect


def tables_of(result: EvaluationResult) -> list[Table]:
    """All tables of ``result``, of either kind."""
    if result.drafts:
        return [_drafts_table(result), *([_drafts_by_suite(result)] if len(result.suites) > 1 else [])]
    return [
        *speedup_tables(result),
        *papers_tables(result),
        *(table for title in _NOTES if (table := _metric_table(result, title)).rows),
        _oracle_table(result),
        *filter(None, [trees_table(result)]),
    ]


# -- the policies --------------------------------------------------------------------------------------


def speedup_tables(result: EvaluationResult) -> list[Table]:
    """Latency and speedup, over all suites and by suite, simulated and where there are readings on the clock."""
    prefixes = ["", "clock_"] if result.clocked() else [""]
    return [
        *(_latency_table(result, prefix) for prefix in prefixes),
        *(_suite_table(result, prefix) for prefix in prefixes if len(result.suites) > 1),
    ]


_OF_TIMING = (
    "Timing: half the width of the 95% interval of ahead that is due to timing noise alone, for these prompts. "
    "All figures are ratios of sums over prompts."
)
_OF_SIMULATION = "Over simulated: how far the speedup is above that simulated on the same prompts."


def _latency_table(result: EvaluationResult, prefix: str) -> Table:
    tokens, oracle = result.find(f"{prefix}tokens"), result.find(f"{prefix}latency_s", "oracle")
    counts = f"{counted(tokens.n or 0, 'prompt')}, {tokens.value:,.0f} tokens" if tokens else ""
    title, how = "Latency and speedup", f"Simulated from chains and cost curves: {counts}"
    if prefix:
        title, how = "Latency and speedup on the clock", _clock_note(result)

    def of(name: str) -> Callable[[str], Figure | None]:
        return partial(result.find, f"{prefix}{name}")

    def behind(label: str) -> Figure | None:
        return oracle and oracle._replace(value=result.value(f"{prefix}latency_s", label) / oracle.value - 1)

    columns = [
        Column("ms/token", of("latency_s"), milliseconds),
        Column("speedup", of("speedup"), times),
        Column("ahead of static-opt", of("cut"), percent_interval),
        Column("behind oracle", behind, lambda one: signed(one.value)),
        Column("timing", of("noise"), lambda one: f"\u00b1 {one.value:.1%}", _OF_TIMING),
        Column("over simulated", of("over_simulated"), percent_interval, _OF_SIMULATION),
    ]
    note = f"{how}. Ahead: how far the latency is below static-opt's; behind: how far it is above the oracle's."
    return make_table(title, note, "policy", _named(result, [f"{prefix}latency_s"]), columns)


def _named(result: EvaluationResult, metrics: Iterable[str], suites: Iterable[str] = (ALL,)) -> list[tuple[str, str]]:
    """(name, label) of the policies that have any of the figures; the name has the lane behind a label that is none."""
    return [
        (label if label == lane else f"{label} ({lane})", label)
        for label, lane in {ALWAYS_ACCEPT: ALWAYS_ACCEPT, **result.lanes}.items()
        if any(result.find(metric, label, suite) for metric in metrics for suite in suites)
    ]


def _clock_note(result: EvaluationResult) -> str:
    same = result.find("clock_texts_equal")
    equal = f"; text equal to plain decoding's in {same.value:.0f} of {same.n} lanes" if same else ""
    repeats = result.setting.clock_repeats
    how = "once each" if repeats == 1 else f"at most {repeats} repeats round robin, medians"
    return (
        f"On the clock: {counted(result.clocked(), 'prompt')}, {how}; the lanes of a prompt take turns every tenth of "
        f"a second{equal}"
    )


def _suite_table(result: EvaluationResult, prefix: str) -> Table:
    def speedup(one: Figure) -> str:
        cut = result.find(f"{prefix}cut", one.policy, one.suite)
        return f"{one.value:.2f}×" + (f" ({signed(cut.value)})" if cut else "")

    columns = [Column(one, partial(result.find, f"{prefix}speedup", suite=one), speedup) for one in result.suites]
    how = "On the clock" if prefix else "Simulated"
    note = "Speedup over plain decoding; in brackets: how far the latency is below static-opt's."
    return make_table(f"{how}, by suite", note, "policy", _named(result, [f"{prefix}speedup"], result.suites), columns)


def _metric_table(result: EvaluationResult, title: str) -> Table:
    """The columns of METRICS that belong to the table ``title``."""
    sentence = _SENTENCES[title](result) if title in _SENTENCES else ""
    metrics = [metric for metric in METRICS if metric.table == title]
    names = _named(result, [metric.name for metric in metrics])
    columns = [
        Column(one.title, partial(result.find, one.name), partial(_shown, result, one), one.note) for one in metrics
    ]
    return make_table(title, _NOTES[title] + sentence, "policy", names, columns)


def _shown(result: EvaluationResult, metric: Metric, figure: Figure) -> str:
    beside = result.find(metric.beside, figure.policy) if metric.beside else None
    change = f" ({signed(figure.value / beside.value - 1)})" if beside else ""
    return f"{metric.factor * figure.value:{metric.show}}{change}"


def _f1_sentence(result: EvaluationResult) -> str:
    """The possible gain in F1: the distance of static-opt from 1, and the best that the scores could reach."""
    opt, always = result.find("f1", STATIC_OPT), result.find("f1", ALWAYS_ACCEPT)
    titles = {name: spec.title for name, spec in all_specs().items()}
    scores = [one for one in result.figures if one.metric == "best_f1"]
    best = ", ".join(f"{titles.get(one.policy, one.policy)} {one.value:.1%}" for one in scores)
    if opt is None or always is None or not best:
        return ""
    return (
        f" Static-opt's F1 is {100 * (1 - opt.value):.1f} points below 100%. The highest F1 that any threshold of a "
        f"score would reach on these texts: {best}; always-accept: {always.value:.1%}."
    )


def _judge_sentence(result: EvaluationResult) -> str:
    speedup, cut = result.find("speedup", PERFECT_JUDGE), result.find("cut", PERFECT_JUDGE)
    if speedup is None:
        return ""
    ahead = f", {cut.value:+.1%} against static-opt" if cut else ""
    latency, oracle = result.value("latency_s", PERFECT_JUDGE), result.find("latency_s", "oracle")
    behind = f", {latency / oracle.value - 1:.1%} more time than the oracle" if oracle else ""
    return (
        f" A perfect classifier of the drafted token, with free decisions, would reach {speedup.value:.2f}×{ahead}"
        f"{behind}: it still drafts the token that fails."
    )


_SENTENCES = {PREDICTION: _f1_sentence, LOSSES: _judge_sentence}  # what the note of a table says of the result
_NOTES = {
    PREDICTION: (
        "Does the policy predict which guesses hold? A drafted token is predicted to hold. Where the policy stops, it "
        "predicts a failure: of the last drafted token if it scores that one (Confidence, Entropy, AdaEDL, DISCO) or "
        "those before it (SpecDec++), else of the guess after it. With a high match rate F1 is high for any policy, so "
        "compare it with always-accept's."
    ),
    PASSES: "Over all test prompts. Discard rate: guesses thrown away / tokens; verification: target passes / tokens.",
    LOSSES: (
        "Simulated milliseconds per token; thrown away: the part of them spent on guesses that did not hold. Stopped "
        "too soon: iterations per 100 tokens that ended although the next guess would have held."
    ),
    CORRECTIONS: (
        "Simulated milliseconds per token, and in brackets the change, if one loss were removed: decisions and "
        "features free; checking many tokens as cheap as checking one; no guess after one that fails (no false "
        "positives); no stop while all guesses hold (no false negatives); neither kind of error."
    ),
}


def _oracle_table(result: EvaluationResult) -> Table:
    def of(metric: str) -> Callable[[str], Figure | None]:
        return lambda suite: result.find(metric, suite=suite)

    def iterations(suite: str) -> Figure:
        figure = result.need("oracle_sl", suite=suite)
        return figure._replace(value=figure.n or 0)

    columns = [
        Column("match rate", of("match_rate"), ".1%"),
        Column("oracle SL, mean", of("oracle_sl"), ".1f"),
        Column("standard deviation", of("oracle_sl_sd"), ".1f"),
        Column("iterations", iterations, ",.0f"),
    ]
    suites = [(suite, suite) for suite in result.suites if result.find("oracle_sl", suite=suite)]
    note = "How many guesses in a row hold before one fails."
    return make_table("The draft along the text", note, "suite", suites, columns)


# -- the drafts ----------------------------------------------------------------------------------------


def _drafts_table(result: EvaluationResult) -> Table:
    costs = result.setting.costs

    def of(metric: str, draft: Draft, policy: str = "") -> Figure | None:
        return result.find(metric, policy, draft=draft.name)

    def c(draft: Draft) -> Figure | Cell | None:
        if not guesses_at_once(costs, draft.name):
            return of("c", draft)
        first = costs.first_step[draft.name]
        return Cell(f"{first:.3f} at once", first)

    def with_model(draft: Draft, text: str, value: int) -> Cell:
        return Cell(text, value) if draft.parameters else Cell()

    columns = [
        Column("parameters", lambda one: with_model(one, f"{one.parameters / 1e6:.1f}M", one.parameters)),
        Column("layers x width", lambda one: with_model(one, f"{one.layers} x {one.hidden_size}", one.layers)),
        Column("c", c, ".3f"),
        Column("match rate", partial(of, "match_rate"), ".1%"),
        Column("best SL", lambda one: Cell(str(one.best_sl), one.best_sl)),
        Column("speedup at it", lambda one: of("speedup", one, f"static:{one.best_sl}"), times),
        Column("best policy", lambda one: Cell(one.best_lane)),
        Column("its speedup", lambda one: of("speedup", one, one.best_policy), times),
        Column("p95 ms per token", lambda one: of("p95_token_s", one, one.best_policy), milliseconds),
        Column(
            "break-even c", lambda one: None if guesses_at_once(costs, one.name) else of("break_even_c", one), ".2f"
        ),
    ]
    note = (
        "c: time of a draft step / time of a target pass; at once: of all guesses of an iteration. Best SL and best "
        "policy were chosen on validation prompts; their speedups are simulated on the test prompts. p95: over "
        "prompts. Break-even c: above it no static SL gains, if what the first guess of an iteration costs beyond c "
        "grows with it."
    )
    return make_table("The drafts", note, "draft", ((one.name, one) for one in result.drafts), columns)


def _drafts_by_suite(result: EvaluationResult) -> Table:
    def speedup(suite: str, draft: Draft) -> Figure | None:
        return result.find("speedup", draft.best_policy, suite, draft.name)

    columns = [Column(suite, partial(speedup, suite), ".2f") for suite in result.suites]
    note = "Each draft with its best policy."
    return make_table("Speedup by suite", note, "draft", ((one.name, one) for one in result.drafts), columns)


# -- the whole report ----------------------------------------------------------------------------------


def setting_lines(setting: Setting) -> list[str]:
    """The setting of the evaluation, in sentences."""
    costs = setting.costs
    drafts = ", ".join(f"{name} {c:.3f}" for name, c in costs.draft_step.items())
    first = ", ".join(f"{name} {value:.3f}" for name, value in costs.first_step.items() if value >= 0.0005)
    first = f"; additional cost of the first draft step of an iteration: {first}" if first else ""
    in_dtype = f" in {setting.draft_dtype}" if setting.draft_dtype else ""
    engine = f", engine {setting.engine}" if setting.engine else ""
    return [
        f"Pair {setting.pair}, target in {setting.target_dtype}, draft {setting.draft}{in_dtype}, "
        f"{counted(setting.threads, 'thread')}{engine}, on {setting.machine.where}; {setting.created}.",
        f"Greedy, {setting.max_new_tokens} new tokens at most; {setting.split} prompts: "
        f"{', '.join(f'{suite} {n}' for suite, n in setting.prompts.items())}; all choices were made on "
        f"{counted(setting.validation_prompts, 'validation prompt')}.",
        f"A target pass takes {costs.target_s * 1e3:.2f} ms, over 6 tokens {costs.verify(6):.2f} and over 21 "
        f"{costs.verify(21):.2f} times that; c: {drafts}{first}; loop {costs.overhead:.3f}.",
        *_decision_lines(setting),
        *setting.notes,
    ]


def _decision_lines(setting: Setting) -> list[str]:
    """The costs of features and decisions relative to a draft step; on a GPU, the wait for each guess is among them."""
    c = setting.costs.draft_step.get(setting.draft, 0.0)
    found = {policy: cost / c for policy, cost in setting.costs.decision.items() if c and cost >= 0.005 * c}
    shares = ", ".join(f"{policy} {share:.0%}" for policy, share in found.items())
    what = "features, a decision and the wait for each guess" if setting.machine.gpu else "features and a decision"
    return [f"Cost of {what}, as a share of a draft step: {shares}."] if shares else []


def title_of(result: EvaluationResult) -> str:
    return f"{'Drafts' if result.drafts else 'Lookahead policies'} on {result.setting.pair}"


def markdown(result: EvaluationResult) -> str:
    """The whole report as one Markdown document."""
    parts = [f"# {title_of(result)}", "\n".join(f"- {line}" for line in setting_lines(result.setting))]
    for table in tables_of(result):
        body = markdown_table(table.columns, ([one.text for one in row] for row in table.rows))
        parts.append(f"## {table.title}\n\n{table.note}\n\n{body}")
    if result.drafts:
        parts.append(advice_markdown(recommend(result, anywhere=True)))
    return "\n\n".join(parts) + "\n"


def advice_markdown(advice: Recommendation) -> str:
    """The recommendation as the end of a Markdown report."""
    sentences = "\n".join(f"- {sentence}" for sentence in advice.sentences)
    return (
        f"## Recommended: {advice.draft} with {advice.lane}\n\n{sentences}\n\n"
        f"In transformers:\n\n```python\n{advice.transformers}\n```\n\nIn vLLM:\n\n```sh\n{advice.vllm}\n```"
    )


def to_csv(results: Iterable[EvaluationResult]) -> str:
    """The long table: all figures of ``results``, and the papers' for their data sets (as pairs of their names)."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["pair", *Figure._fields[:3], "split", *Figure._fields[3:]])
    for result in results:
        own = ((result.setting.pair, result.setting.split, one) for one in result.figures)
        theirs = ((source, "", one) for source, one in published_figures(result))
        table.writerows([pair, *one[:3], split, *one[3:]] for pair, split, one in (*own, *theirs))
    return text.getvalue()


def write_report(result: EvaluationResult, folder: Path) -> list[Path]:
    """Writes report.md, tables.csv (the long table) and result.json, prefixed with ``drafts-`` for the drafts.

    Raises UserError.
    """
    stem = "drafts-" if result.drafts else ""
    report, tables, data = (folder / f"{stem}{name}" for name in ("report.md", "tables.csv", "result.json"))
    write_text(report, markdown(result))
    write_text(tables, to_csv([result]))
    save_result(result, data)
    return [report, tables, data]


def ship(result: EvaluationResult, folder: Path | None = None) -> list[Path]:
    """Writes the shipped result, which the page shows first, and its Markdown report. Raises UserError."""
    path = (folder or SHIPPED) / shipped_name(result)
    save_result(result, path)
    write_text(path.with_suffix(".md"), markdown(result))
    return [path, path.with_suffix(".md")]


def spread_name(options: EvaluationOptions) -> str:
    """Name of the working folder of an evaluation over several devices, before it is known what they run."""
    pair = options.pair or options.target or "default"
    return f"{safe_name(pair)}-{safe_name(options.dtype)}-{options.max_new_tokens}-spread"
