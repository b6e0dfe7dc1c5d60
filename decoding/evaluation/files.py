"""The files of an evaluation: Markdown, CSV and JSON in its folder, and the shipped JSON in ``results/``."""

from __future__ import annotations

from pathlib import Path

from ..errors import UserError
from ..files import safe_name, write_whole
from ..records.suites import PAPERS
from .options import EvaluationOptions
from .places import advise
from .report import Table, advice_markdown, drafts_tables, evaluation_tables, setting_lines, to_csv, to_markdown
from .results import DraftsResult, EvaluationResult, save_result

WORK = Path("build") / "evaluation"  # what evaluations collect
SHIPPED = Path(__file__).resolve().parents[2] / "results"


def result_name(pair: str, drafts: bool = False, papers: bool = False) -> str:
    """File name of a pair's shipped results: ``<pair>.json``, ``<pair>-drafts.json`` or, on the papers' data sets,
    ``<pair>-papers.json`` and ``<pair>-drafts-papers.json``.
    """
    return safe_name(pair) + "-drafts" * drafts + "-papers" * papers + ".json"


def shipped_name(result: EvaluationResult | DraftsResult) -> str:
    """File name under which ``result`` ships."""
    papers = set(result.setting.prompts) <= set(PAPERS)
    return result_name(result.setting.pair, isinstance(result, DraftsResult), papers)


def spread_name(options: EvaluationOptions) -> str:
    """Name of the working folder of an evaluation over several devices, before it is known what they run."""
    pair = options.pair or options.target or "default"
    return f"{safe_name(pair)}-{safe_name(options.dtype)}-{options.max_new_tokens}-spread"


def write_report(result: EvaluationResult | DraftsResult, folder: Path) -> list[Path]:
    """Writes report.md, tables.csv and result.json (prefixed with ``drafts-`` for the drafts). Raises UserError."""
    stem = "drafts-" if isinstance(result, DraftsResult) else ""
    report, tables, data = (folder / f"{stem}{name}" for name in ("report.md", "tables.csv", "result.json"))
    _write(report, markdown(result))
    _write(tables, to_csv(tables_of(result)))
    save_result(result, data)
    return [report, tables, data]


def ship(result: EvaluationResult | DraftsResult, folder: Path | None = None) -> list[Path]:
    """Writes the shipped result, which the page shows first, and its Markdown report. Raises UserError."""
    path = (folder or SHIPPED) / shipped_name(result)
    save_result(result, path)
    _write(path.with_suffix(".md"), markdown(result))
    return [path, path.with_suffix(".md")]


def markdown(result: EvaluationResult | DraftsResult) -> str:
    """The whole report."""
    title, more = "Lookahead policies", ""
    if isinstance(result, DraftsResult):
        title, more = "Drafts", advice_markdown(advise(result, anywhere=True))
    return to_markdown(f"{title} on {result.setting.pair}", setting_lines(result.setting), tables_of(result), more)


def tables_of(result: EvaluationResult | DraftsResult) -> list[Table]:
    return drafts_tables(result) if isinstance(result, DraftsResult) else evaluation_tables(result)


def _write(path: Path, text: str) -> None:
    try:
        write_whole(path, text)
    except OSError as error:
        raise UserError(f"Cannot write {path}: {error.strerror or error}.") from error
