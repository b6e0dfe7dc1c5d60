"""The shipped evaluations belong to the shipped weights: after a change of the weights they must be repeated.

And how results are named, written and read.
"""

from pathlib import Path

import pytest

from decoding.errors import UserError
from decoding.evaluation import results
from decoding.evaluation.report import markdown, ship
from decoding.evaluation.results import SHIPPED, EvaluationResult, load_result, result_name, shipped_name
from decoding.records.fingerprint import fingerprint
from decoding.records.pairs import PairDescription, embedded_pairs
from tests.evaluations import make_drafts, make_evaluation

STALE = "repeat it with python -m decoding evaluate --ship (and --drafts all)"


def names_of(pair: PairDescription) -> list[str]:
    return [result_name(pair.name, drafts, papers) for drafts in (False, True) for papers in (False, True)]


def shipped() -> list[tuple[PairDescription, EvaluationResult]]:
    found = []
    for pair in embedded_pairs():
        for name in names_of(pair):
            path = SHIPPED / name
            if path.exists():
                found.append((pair, load_result(path)))
    return found


def is_stale(pair: PairDescription, result: EvaluationResult) -> bool:
    setting = result.setting
    made_with = {setting.draft: setting.draft_fingerprint}
    if result.drafts:
        made_with |= {draft.name: draft.fingerprint for draft in result.drafts if draft.name in pair.drafts}
        named = [name for name in pair.drafts if not pair.kind_of(name).purpose]
        made_with |= {name: "" for name in named if name not in made_with}  # a draft that it lacks
    now = {name: fingerprint(Path(pair.drafts[name])) for name in made_with if name in pair.drafts}
    return fingerprint(Path(pair.target)) != setting.target_fingerprint or now != made_with


def test_shipped_results_were_made_with_the_shipped_weights():
    for pair, result in shipped():
        assert not is_stale(pair, result), f"{shipped_name(result)} is stale: {STALE}"


def test_shipped_reports_are_those_of_the_shipped_results():
    for _, result in shipped():
        written = (SHIPPED / shipped_name(result)).with_suffix(".md").read_text(encoding="utf-8")
        assert written == markdown(result), f"{shipped_name(result)}: write its report with evaluate --result --ship"


def test_every_shipped_file_belongs_to_a_pair():
    names = {name for pair in embedded_pairs() for name in names_of(pair)}
    assert {path.name for path in SHIPPED.glob("*.json")} <= names


def test_a_table_of_drafts_is_stale_when_any_draft_changes(tmp_path):
    result = make_drafts()
    names = [draft.name for draft in result.drafts]
    for name in ("target", *names):
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / "config.json").write_text(name)
    drafts = {name: str(tmp_path / name) for name in names}
    pair = PairDescription("tiny", "", "embedded", str(tmp_path / "target"), drafts, names[0])
    result.setting.draft = names[0]
    result.setting.target_fingerprint = fingerprint(tmp_path / "target")
    for draft in result.drafts:
        draft.fingerprint = fingerprint(tmp_path / draft.name)
    result.setting.draft_fingerprint = result.drafts[0].fingerprint
    assert not is_stale(pair, result)
    (tmp_path / names[-1] / "model.safetensors").write_bytes(b"new")
    assert is_stale(pair, result)


# -- their files ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make, suites, name",
    [
        (make_evaluation, {"code": 2}, "synthetic"),
        (make_drafts, {"code": 2}, "synthetic-drafts"),
        (make_evaluation, {"humaneval": 2, "gsm8k": 1}, "synthetic-papers"),
    ],
)
def test_shipped_results_are_named_after_their_pair_and_data_sets(tmp_path, make, suites, name):
    result = make()
    result.setting.prompts = suites
    path, written = ship(result, tmp_path)
    assert (path.name, written.name) == (f"{name}.json", f"{name}.md")
    assert load_result(path) == result


@pytest.mark.parametrize("text", ["", "null", "[1]", "[" * 100_000, '{"schema": "speculoscope.evaluation/2"}', "NaN"])
def test_damaged_results_are_refused_in_a_sentence(tmp_path, text):
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(UserError, match="not an evaluation"):
        load_result(path)


def test_plain_data_that_is_no_result_is_refused():
    with pytest.raises(UserError):
        results.result_from_dict({"figures": float("nan")})


def test_an_unwritable_place_is_a_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="Cannot write"):
        results.save_result(make_evaluation(), tmp_path / "file" / "x.json")
