"""The papers' data sets in the Evaluation tab: this pair's figures beside the papers' own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from decoding.errors import UserError
from decoding.evaluation.files import result_name
from decoding.evaluation.report import counted, papers_tables, speedup_tables
from decoding.evaluation.results import EvaluationResult, load_evaluation
from decoding.records.pairs import PairDescription

from .report import Section
from .stale import STALE, is_stale

TITLE = "The papers' data sets"


def papers_file(pair: str, folder: Path) -> Path | None:
    """The shipped result of ``pair`` on the papers' data sets; None if there is none."""
    path = folder / result_name(pair, papers=True)
    return path if path.is_file() else None


def papers_section(pair: PairDescription, folder: Path) -> Section:
    """The shipped figures on the papers' data sets, or what to do about them."""
    path = papers_file(pair.name, folder)
    if path is None:
        return Section(TITLE, [_missing(pair.name)])
    try:
        result = load_evaluation(path)
    except UserError as error:  # the other figures are sound
        return Section(TITLE, [str(error)])
    own = [
        replace(table, title=f"{TITLE}: {table.title[0].lower()}{table.title[1:]}") for table in speedup_tables(result)
    ]
    stale = [f"{STALE[0].upper()}{STALE[1:]}."] if is_stale(result.setting, pair) else []
    return Section(TITLE, [_origin(result), *stale], tables=[*papers_tables(result), *own])


def _missing(pair: str) -> str:
    return (
        "This pair has not been measured on HumanEval, GSM8K, MBPP and MT-Bench yet. In a terminal: python -m decoding "
        f"suites fetch && python -m decoding evaluate --suite papers --pair {pair} --ship"
    )


def _origin(result: EvaluationResult) -> str:
    """What was measured, and when."""
    setting = result.setting
    counts = ", ".join(f"{suite} {n}" for suite, n in setting.prompts.items())
    clock = max((row.clock.prompts for one in result.policies for row in one.rows.values() if row.clock), default=0)
    return (
        f"{counted(sum(setting.prompts.values()), 'test prompt')} of the data sets on which the papers measured "
        f"({counts}), {clock} of them on the clock; draft {setting.draft}, greedy, at most {setting.max_new_tokens} "
        f"new tokens; measured {setting.created[:10]}."
    )
