"""What the Drafts tab says: which draft, which SL, here?"""

from __future__ import annotations

from decoding.evaluation.results import ALL, DraftResult, DraftsResult

from .evaluation_tab import stamp
from .report import Report, Section, Table, interval_text, suites_of

COLUMNS = [
    ("draft", ""),
    ("parameters", ""),
    ("layers x width", ""),
    ("number format", ""),
    ("cost c", "time of a draft step / time of a target pass over one token"),
    ("match rate", "positions at which the draft's first choice is the target's token"),
    ("best SL", "chosen on the validation split"),
    ("speedup with it", "simulated on the test split; 95% interval over prompts"),
    ("best rule", "chosen on the validation split"),
    ("speedup with it", "simulated on the test split; 95% interval over prompts"),
    ("p95 ms per token", "95th percentile over prompts of the time per token"),
    ("break-even c", "at this cost no static SL gains any more"),
]


def drafts_report(result: DraftsResult, drawings: list[dict] | None = None) -> Report:
    """The tab's content for ``result``; ``drawings`` as in :func:`viz.evaluation_tab.evaluation_report`."""
    advice = result.recommendation
    code = [
        (f"The same in {name}", text)
        for name, text in (("transformers", advice.transformers), ("vLLM", advice.vllm))
        if text
    ]
    sections = [
        Section("Which draft, which SL, here?", advice.sentences, code=code),
        Section("All drafts", [turning_point(result)], [drafts_table(result), suites_table(result)]),
        Section("Plots", drawings=drawings or []),
        Section("How this was measured", method(result)),
    ]
    return Report(stamp(result.setting), [one for one in sections if one.sentences or one.tables or one.drawings])


def turning_point(result: DraftsResult) -> str:
    """Where a better draft stops paying: quality rises with size, and so does its cost."""
    best = max(result.drafts, key=lambda draft: draft.speedup[ALL].value)
    closest = max(result.drafts, key=lambda draft: draft.match_rate[ALL])
    if closest.name == best.name:
        return (
            f"{best.name} guesses best ({best.match_rate[ALL]:.0%} of its first choices hold) and is also the fastest "
            f"({best.speedup[ALL].value:.2f} times plain decoding) at a cost of {best.c:.2f} target passes a guess."
        )
    return (
        f"{closest.name} guesses best ({closest.match_rate[ALL]:.0%} of its first choices hold) but costs "
        f"{closest.c:.2f} target passes a guess; {best.name} ({best.match_rate[ALL]:.0%}, {best.c:.2f}) is the "
        f"fastest, {best.speedup[ALL].value:.2f} times plain decoding."
    )


def drafts_table(result: DraftsResult) -> Table:
    return Table("The ladder of drafts, cheapest first", COLUMNS, [_row(draft) for draft in result.drafts])


def _row(draft: DraftResult) -> list[str]:
    shape = f"{draft.layers} x {draft.hidden_size}" if draft.layers else ""
    return [
        draft.name, f"{draft.parameters / 1e6:.1f} M" if draft.parameters else "none", shape, draft.dtype,
        f"{draft.c:.3f}", f"{draft.match_rate[ALL]:.1%}", str(draft.best_sl), interval_text(draft.static_speedup[ALL]),
        draft.best_lane, interval_text(draft.speedup[ALL]), f"{draft.p95_token_s * 1e3:.2f}",
        f"{draft.break_even_c:.2f}",
    ]  # fmt: skip


def suites_table(result: DraftsResult) -> Table:
    """Speedup of each draft's best rule, by suite."""
    suites = suites_of(list(result.drafts[0].speedup)) if result.drafts else [ALL]
    rows = [
        [draft.name, *(f"{draft.speedup[suite].value:.2f}" if suite in draft.speedup else "" for suite in suites)]
        for draft in result.drafts
    ]
    columns = [("draft", ""), *((suite, "") for suite in suites)]
    return Table("Speedup of each draft's best rule, by suite (simulated)", columns, rows)


def method(result: DraftsResult) -> list[str]:
    setting = result.setting
    prompts = ", ".join(f"{suite} {count}" for suite, count in setting.prompts.items())
    return [
        f"Prompts of the {setting.split} split: {prompts}; {setting.max_new_tokens} new tokens each. SLs and "
        f"rules were chosen on {setting.validation_prompts} validation prompts.",
        *setting.notes,
    ]
