"""The shipped evaluations belong to the shipped weights: whoever changes one must make the other anew."""

from pathlib import Path

from decoding.evaluation.files import SHIPPED, result_name
from decoding.evaluation.results import DraftsResult, EvaluationResult, load_drafts, load_evaluation
from decoding.fingerprint import fingerprint
from decoding.pairs import PairDescription, embedded_pairs
from tests.evaluations import make_evaluation

STALE = "make it anew with python -m decoding evaluate --ship (and --drafts all)"


def shipped() -> list[tuple[PairDescription, EvaluationResult | DraftsResult]]:
    found = []
    for pair in embedded_pairs():
        for drafts, load in ((False, load_evaluation), (True, load_drafts)):
            path = SHIPPED / result_name(pair.name, drafts)
            if path.exists():
                found.append((pair, load(path)))
    return found


def is_stale(pair: PairDescription, result: EvaluationResult | DraftsResult) -> bool:
    weights = (fingerprint(Path(pair.target)), fingerprint(Path(pair.drafts[result.setting.draft])))
    return weights != (result.setting.target_fingerprint, result.setting.draft_fingerprint)


def test_shipped_results_were_made_with_the_shipped_weights():
    for pair, result in shipped():
        assert not is_stale(pair, result), f"{result.schema} of {pair.name} is stale: {STALE}"


def test_every_shipped_file_belongs_to_a_pair():
    names = {result_name(pair.name, drafts) for pair in embedded_pairs() for drafts in (False, True)}
    assert {path.name for path in SHIPPED.glob("*.json")} <= names


def test_a_result_of_other_weights_is_noticed(tmp_path):
    target, draft = tmp_path / "target", tmp_path / "draft"
    for folder in (target, draft):
        folder.mkdir()
        (folder / "config.json").write_text(folder.name)
    pair = PairDescription("tiny", "", "embedded", str(target), {"shallow": str(draft)}, "shallow")
    result = make_evaluation()
    assert is_stale(pair, result)
    result.setting.target_fingerprint = fingerprint(target)
    result.setting.draft_fingerprint = fingerprint(draft)
    assert not is_stale(pair, result)
    (target / "model.safetensors").write_bytes(b"new")
    assert is_stale(pair, result)
