"""The content of the Evaluation and Drafts tabs as plain data: sentences, tables, figures and code."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from decoding.errors import UserError
from decoding.evaluation.advice import recommend
from decoding.evaluation.published import papers_tables
from decoding.evaluation.report import setting_lines, speedup_tables, tables_of, title_of
from decoding.evaluation.results import (
    STATIC_OPT,
    TREE_OPT,
    EvaluationResult,
    Figure,
    Setting,
    load_result,
    result_name,
)
from decoding.evaluation.table import Cell, Table
from decoding.records.pairs import PairDescription
from decoding.records.text import counted
from decoding.records.weights import SOURCE_FILE, fingerprint

from ..figures.answers import draw_losses, draw_static_sls
from ..figures.drafts import draw_drafts
from ..figures.drawing import Drawing
from ..figures.evaluation import ENOUGH_TO_DECIDE, draw_evaluation, fastest, prompts_of
from ..player.names import lane_name

PAPERS = "The papers' data sets"
QUESTIONS = (  # what is folded below the answers: question, tables, figures
    ("All policies, all figures of speed", ("Latency and speedup", "Latency and speedup on the clock"), ("eval-cut",)),
    ("Which policy predicts best which guesses hold?", ("Accept prediction",), ("eval-f1",)),
    ("What does each threshold trade?", ("Passes",), ("eval-pareto",)),
    ("Where does the time go?", ("Where the time goes", "What holds a policy back"), ()),
    ("How do guesses hold along a text?", ("The draft along the text",), ("eval-histogram", "eval-course")),
)
STALE = "measured with weights other than the installed ones: measure again"


@dataclass(slots=True)
class Section:
    """``drawings`` are dicts from :meth:`viz.figures.drawing.Drawing.to_dict`.

    ``kind``: "answer" for one of the answers with which the tab begins, which stand side by side where there is room;
    "folded" for what is shown when it is asked for.
    """

    title: str
    sentences: list[str] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    drawings: list[dict[str, Any]] = field(default_factory=list)
    code: list[tuple[str, str]] = field(default_factory=list)  # (title, text to copy)
    kind: str = ""


class Report(ABC):
    """What one of the two tabs shows of a result; the class says how such a result is measured and found."""

    job: ClassVar[str]  # its name on the page
    intro: ClassVar[str]
    command: ClassVar[str]  # that measures and ships it
    options: ClassVar[dict[str, Any]] = {}  # of the evaluation
    of_drafts: ClassVar[bool] = False
    questions: ClassVar[Sequence[tuple[str, Sequence[str], Sequence[str]]]] = ()
    second: EvaluationResult | None = None  # a further shipped result that the tab offers

    def __init__(self, result: EvaluationResult) -> None:
        self.result = result

    @classmethod
    def shipped_file(cls, pair: str, folder: Path) -> Path:
        """The file with which the tab opens."""
        return folder / result_name(pair, cls.of_drafts)

    @property
    def title(self) -> str:
        return title_of(self.result)

    @abstractmethod
    def drawings(self) -> list[Drawing]:
        """The figures."""

    @abstractmethod
    def answers(self, tables: list[Table], drawings: dict[str, dict[str, Any]]) -> list[Section]:
        """The sections with which the tab begins. What they show of the tables and of the drawings, by name, is taken
        from there.
        """

    def more(self, pair: PairDescription, folder: Path) -> list[Section]:
        """Sections from further shipped files in ``folder``."""
        return []

    def beside(self, folder: Path) -> list[str]:
        """Sentences that compare a shipped result with the other tab's."""
        return []

    def sections(self) -> list[Section]:
        """The answers, and then all else, folded: by question, what none asks for, and how it was measured."""
        tables, drawings = with_names(tables_of(self.result)), {one.name: one.to_dict() for one in self.drawings()}
        answers, folded = self.answers(tables, drawings), []
        for title, wanted, names in self.questions:
            drawn = [drawings.pop(name) for name in names if name in drawings]
            folded.append(Section(title, [], [one for one in tables if one.title in wanted], drawn, kind="folded"))
            tables = [one for one in tables if one.title not in wanted]
        folded.append(Section("More tables", [], tables, list(drawings.values()), kind="folded"))
        measured = Section("How this was measured", setting_lines(self.result.setting), kind="folded")
        return [*answers, *(one for one in folded if one.tables or one.drawings), measured]

    def content(self, origin: str, **more: Any) -> dict[str, Any]:
        """The tab's content as plain JSON; ``origin`` begins the line on where the figures come from."""
        content = {"stamp": f"{origin} · {stamp(self.result.setting)}", "sections": list(map(asdict, self.sections()))}
        return json.loads(json.dumps({**content, **more}))

    def shipped_content(self, pair: PairDescription, folder: Path) -> dict[str, Any]:
        """The content for a shipped result, with what the other shipped files in ``folder`` add."""
        more = self.more(pair, folder)
        content = self.content("Shipped results", papers=self.second is not None)
        if is_stale(self.result, pair):
            content["stamp"] += f" · {STALE}"
        content["sections"][0]["sentences"] += self.beside(folder)
        content["sections"][-1:-1] = [asdict(one) for one in more]
        return content


class EvaluationReport(Report):
    """The policies with one draft."""

    job = "evaluate"
    intro = "Which policy is fastest on unseen prompts, and how certain is that?"
    command = "python -m decoding evaluate --suite all --split test --ship"
    questions = QUESTIONS

    def drawings(self) -> list[Drawing]:
        return draw_evaluation(self.result)

    def answers(self, tables: list[Table], drawings: dict[str, dict[str, Any]]) -> list[Section]:
        """The three answers, each with its figure."""
        title, speedups = "Which policy is fastest, by how much, and how certain is that?", drawings.pop("eval-speedup")
        answers = [Section(title, self.sentences(), drawings=[speedups], kind="answer")]
        answers.append(_answer("How far should a static SL guess?", draw_static_sls(self.result)))
        best = fastest(self.result, "as_it_is_s")  # losses are those of chains
        if best and (losses := draw_losses(self.result, best)):
            answers.append(_answer(f"What holds {lane_name(best)} back?", losses))
        return answers

    def sentences(self) -> list[str]:
        """Sentences on the best usable policy and on foresight."""
        result, sentences = self.result, []
        simulated, clocked = prompts_of(result)
        if min(simulated, clocked) < ENOUGH_TO_DECIDE:
            sentences.append(
                f"{counted(simulated, 'simulated prompt')} and {clocked} on the clock are too few to decide which "
                "policy is faster."
            )
        if best := fastest(result):
            sentences.append(_best_sentence(result, best))
        if oracle := result.find("speedup", "oracle"):
            best_one = result.find("speedup", "oracle:best")
            weighing = f", and one that also knows the costs {best_one.value:.2f}" if best_one else ""
            sentences.append(
                f"An oracle, which knows in advance where guesses fail, reaches {oracle.value:.2f}{weighing}, "
                "simulated; it cannot be used in practice."
            )
        return sentences

    def more(self, pair: PairDescription, folder: Path) -> list[Section]:
        """The shipped figures on the papers' data sets, or what to do about them."""
        path = folder / result_name(pair.name, papers=True)
        if not path.is_file():
            missing = (
                "This pair has not been measured on HumanEval, GSM8K, MBPP and MT-Bench yet. In a terminal: python -m "
                f"decoding suites fetch && python -m decoding evaluate --suite papers --pair {pair.name} --ship"
            )
            return [Section(PAPERS, [missing], kind="folded")]
        try:
            self.second = load_result(path)
        except UserError as error:  # the other figures are sound
            return [Section(PAPERS, [str(error)], kind="folded")]
        stale = [f"{STALE[0].upper()}{STALE[1:]}."] if is_stale(self.second, pair) else []
        own = [
            replace(table, title=f"{PAPERS}: {table.title[0].lower()}{table.title[1:]}")
            for table in speedup_tables(self.second)
        ]
        tables = with_names([*papers_tables(self.second), *own])
        return [Section(PAPERS, [*stale, *setting_lines(self.second.setting)], tables, kind="folded")]


def _answer(question: str, drawing: Drawing) -> Section:
    """The sentence of ``drawing`` as the answer to ``question``, above it."""
    return Section(question, [drawing.sentence], drawings=[{**drawing.to_dict(), "sentence": ""}], kind="answer")


def _best_sentence(result: EvaluationResult, best: str) -> str:
    speed, cut, timed = result.need("speedup", best), result.find("cut", best), result.find("clock_cut", best)
    text = f"{lane_name(best)}: {speed.value:.2f} times as fast as plain decoding"
    if speed.low is not None:
        text += f" (95% interval over prompts: {speed.low:.2f} to {speed.high:.2f})"
    text += ", simulated"
    if clocked := result.find("clock_speedup", best):
        text += f", and {clocked.value:.2f} times on the clock"
    if cut:
        text += f". It takes {_less(cut)} time per token than SL {result.static_opt}, the best static SL on validation "
        text += "prompts, simulated"
        text += f", and {_less(timed)} on the clock" if timed else ""
    return f"{text}."


def _less(cut: Figure) -> str:
    """ "5.8% (4.7 to 6.9%) less"; for a policy that takes more time "1.5% (-0.4 to 3.4%) more"."""
    sign, word = (100, "less") if cut.value >= 0 else (-100, "more")
    share = f"{sign * cut.value:.1f}%"
    if cut.low is None or cut.high is None:
        return f"{share} {word}"
    low, high = sorted((sign * cut.low, sign * cut.high))
    return f"{share} ({low:.1f} to {high:.1f}%) {word}"


class DraftsReport(Report):
    """All drafts of a pair."""

    job = "drafts"
    intro = "Every draft of the pair, every SL: which draft is best, and how far should it guess?"
    command = "python -m decoding evaluate --suite all --split test --drafts all --ship"
    options = {"drafts": "all"}
    of_drafts = True

    def drawings(self) -> list[Drawing]:
        return draw_drafts(self.result)

    def answers(self, tables: list[Table], drawings: dict[str, dict[str, Any]]) -> list[Section]:
        """One, with the main table and all figures."""
        advice = recommend(self.result)
        title = f"Which draft and which SL are best on {self.result.setting.machine.where}?"
        code = list(zip(advice.titles, (advice.transformers, advice.vllm)))
        drawn = [drawings.pop(name) for name in list(drawings)]
        return [Section(title, advice.sentences, [tables.pop(0)], drawn, code)]

    def beside(self, folder: Path) -> list[str]:
        try:
            evaluation = load_result(EvaluationReport.shipped_file(self.result.setting.pair, folder))
        except UserError:  # there is none, or the other tab says what is wrong with it
            return []
        return [say for say in (beside_policy(self.result, evaluation), beside_sl(self.result, evaluation)) if say]


def beside_policy(drafts: EvaluationResult, evaluation: EvaluationResult) -> str:
    """That the two tabs have different policies first with the same draft; "" if they do not."""
    chosen = next((one.best_policy for one in drafts.drafts if one.name == evaluation.setting.draft), None)
    first = fastest(evaluation)
    label = next((label for label, lane in evaluation.lanes.items() if chosen in (label, lane)), "")
    here = evaluation.find("speedup", label)
    if chosen is None or first is None or here is None or first == label:
        return ""
    there = evaluation.need("speedup", first)
    overlap = here.high is not None and there.low is not None and here.high >= there.low
    return (
        f"The Evaluation tab has {lane_name(first)} first with {evaluation.setting.draft}: {there.value:.2f}× over its "
        f"{prompts_of(evaluation)[0]} test prompts, where {lane_name(chosen)} gives {here.value:.2f}×"
        f"{'; their intervals overlap' if overlap else ''}."
    )


def beside_sl(drafts: EvaluationResult, evaluation: EvaluationResult) -> str:
    """Why the two tabs recommend different static SLs for the same draft, and which one to use; "" if they agree."""
    same = next((one for one in drafts.drafts if one.name == evaluation.setting.draft), None)
    if same is None or same.best_sl == evaluation.static_opt:
        return ""
    here, there = drafts.setting.target_dtype, evaluation.setting.target_dtype
    if here != there:
        return (
            f"The Evaluation tab gives SL {evaluation.static_opt} as the best static SL of {same.name}, with the "
            f"target in {there}; here, in {here}, it is SL {same.best_sl}: use the one of the format that you run."
        )
    few, many = drafts.setting.validation_prompts, evaluation.setting.validation_prompts
    text = (
        f"The Evaluation tab gives SL {evaluation.static_opt} as the best static SL of {same.name}, chosen on {many} "
        f"validation prompts; here it is SL {same.best_sl}, chosen on {few}: "
        f"use {evaluation.static_opt if many >= few else same.best_sl}"
    )
    speedups = drafts.by_sl(same.name)
    sls = (evaluation.static_opt, same.best_sl)
    if any(sl not in speedups for sl in sls):
        return f"{text}."
    one, other = (f"{speedups[sl].value:.2f}×" for sl in sls)
    return f"{text}. On the test prompts here, SL {sls[0]} reaches {one} and SL {sls[1]} {other}."


def report_of(result: EvaluationResult) -> Report:
    return DraftsReport(result) if result.drafts else EvaluationReport(result)


def with_names(tables: Sequence[Table]) -> list[Table]:
    """``tables`` with lanes by the names that they have in the race; a draft's name may be a lane's text, too."""
    return [
        replace(
            table,
            columns=[lane_name(title) for title in table.columns],
            rows=[
                [one if title == "draft" else _named(one) for title, one in zip(table.columns, row)]
                for row in table.rows
            ],
        )
        for table in tables
    ]


def _named(cell: Cell) -> Cell:
    """ "static-opt (static:3)" -> "static-opt (Static 3)", "disco (disco:0.6)" -> "DISCO 0.6"; others stay."""
    label, _, bracket = cell.text.partition(" (")
    lane = bracket.removesuffix(")")
    if lane and label in (STATIC_OPT, TREE_OPT):
        return cell._replace(text=f"{label} ({lane_name(lane)})")
    return cell._replace(text=lane_name(lane if lane.startswith(f"{label}:") else cell.text))


def stamp(setting: Setting) -> str:
    """Pair, draft, machine, engine, number format and date of a result, in one line."""
    pair = f"{setting.pair} with draft {setting.draft}"
    engine = [f"engine {setting.engine}"] if setting.engine else []
    return " · ".join([pair, f"on {setting.machine.where}", *engine, setting.target_dtype, setting.created[:10]])


def is_stale(result: EvaluationResult, pair: PairDescription) -> bool:
    """Whether the figures were measured with other weights than those installed; False if none are."""
    setting, drafts = result.setting, {draft.name: draft.fingerprint for draft in result.drafts}
    drafts[setting.draft] = setting.draft_fingerprint
    places = [(pair.drafts[name], made_with) for name, made_with in drafts.items() if name in pair.drafts]
    places.append((pair.target, setting.target_fingerprint))
    return any(fingerprint(place) != made_with for place, made_with in places if _is_installed(Path(place)))


def _is_installed(folder: Path) -> bool:
    return any((folder / name).is_file() for name in ("config.json", SOURCE_FILE))
