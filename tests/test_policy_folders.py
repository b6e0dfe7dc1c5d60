"""Fitted policies in a draft's folder: round trip, and a sentence for each reason why they cannot be used."""

import json
import math
import os
from collections.abc import Iterator
from itertools import product

import numpy as np
import pytest
from safetensors.numpy import save

from decoding.analysis.whatif import Replay
from decoding.errors import UserError
from decoding.files import sha256_of, whole_folder
from decoding.lookahead import fitted
from decoding.lookahead.fitted import COUNTS, PolicyFile, load_heads, make_policy, need_head, read_policy, write_policy
from decoding.lookahead.lanes import parse_lane
from decoding.lookahead.ngrams import Ngrams, write_ngrams

from .learned_heads import TUNED, make_features, make_file, make_head, make_weights
from .runs import make_run

TARGET, DRAFT = "t" * 16, "d" * 16


def write(folder, policy, seed=0) -> PolicyFile:
    """Writes a fitted policy, and beside the draft the counts of n-grams that it reads."""
    file = make_file(policy, seed)
    write_policy(folder, file)
    if COUNTS in file.weights:
        write_ngrams(folder.parent, Ngrams(file.weights[COUNTS]))
    return file


def write_all(folder, seed=0):
    for policy in TUNED:
        write(folder, policy, seed)
    return folder


@pytest.fixture
def folder(tmp_path):
    return write_all(tmp_path / "policies")


@pytest.mark.parametrize("seed", [0, 2, 3])
def test_heads_come_back_as_they_were_written(tmp_path, seed):
    heads = load_heads(write_all(tmp_path / "policies", seed), TARGET, DRAFT)
    assert set(heads) == set(TUNED) and not heads.faults
    features = make_features(5, seed=1)
    for policy, head in heads.items():
        np.testing.assert_allclose(head.score_chain(features), make_head(policy, seed).score_chain(features))
        assert head.tuned == TUNED[policy]


def test_counts_stand_beside_the_draft(tmp_path):
    folder = tmp_path / "policies"
    counts = Ngrams(write(folder, "costaware", 3).weights[COUNTS])
    assert (folder / "costaware.safetensors").stat().st_size < counts.packed.nbytes
    assert load_heads(folder, TARGET, DRAFT)["costaware"].ngrams.packed.tobytes() == counts.packed.tobytes()
    write_ngrams(tmp_path, Ngrams(counts.packed[::-1].copy()))
    with pytest.raises(UserError, match="counts of n-grams that the policy costaware reads are missing or others"):
        need_head("costaware", load_heads(folder, TARGET, DRAFT))


def test_large_matrices_are_stored_in_half_precision(tmp_path):
    policy = make_file("specdecpp")
    policy.weights = make_weights("specdecpp", hidden_size=200)
    write_policy(tmp_path, policy)
    found, block = read_policy(tmp_path, "specdecpp").weights["block"], policy.weights["block"]
    assert (tmp_path / "specdecpp.safetensors").stat().st_size < block.nbytes
    np.testing.assert_allclose(found, block, rtol=1e-3, atol=1e-6)
    assert found.dtype == np.float32


def test_a_specdecpp_head_of_depth_zero_needs_no_block(tmp_path):
    policy = make_file("specdecpp")
    del policy.weights["block"]
    policy.architecture["depth"] = 0
    write_policy(tmp_path, policy)
    linear = load_heads(tmp_path, TARGET, DRAFT)["specdecpp"].score_chain(features := make_features(5, seed=1))
    policy.weights |= {"block": np.zeros((4, 4), dtype=np.float32), "bias": np.zeros(4, dtype=np.float32)}
    policy.architecture["depth"] = 2  # residual blocks that add nothing
    write_policy(tmp_path, policy)
    np.testing.assert_allclose(linear, load_heads(tmp_path, TARGET, DRAFT)["specdecpp"].score_chain(features))


def test_a_folder_whose_place_cannot_be_taken_leaves_the_old_one(tmp_path, monkeypatch):
    def write(text: str) -> None:
        with whole_folder(tmp_path / "draft", is_whole=lambda: False) as new:
            (new / "config.json").write_text(text)

    write("old")
    write("newer")

    def failing(source, target):
        raise OSError("the disk is gone")

    real = os.replace  # the folder is taken; the old one moves aside; the new one does not move
    turns = iter((real, real, failing, real))
    monkeypatch.setattr(os, "replace", lambda source, target: next(turns)(source, target))
    with pytest.raises(OSError, match="gone"):
        write("newest")
    assert (tmp_path / "draft" / "config.json").read_text() == "newer"
    assert [path.name for path in tmp_path.iterdir()] == ["draft"]


@pytest.mark.parametrize(
    "place, target, draft, words",
    [
        ("none", TARGET, DRAFT, "leave this lane out, or fit it first with python -m decoding fit"),
        (".", "x" * 16, DRAFT, "another target"),
        (".", TARGET, "x" * 16, "another draft"),
    ],
)
def test_no_policies_and_those_of_other_weights_are_refused_where_a_lane_needs_them(
    folder, place, target, draft, words
):
    heads = load_heads(folder / place, target, draft)
    assert heads == {}
    with pytest.raises(UserError, match=words):
        need_head("costaware", heads)


@pytest.mark.parametrize(
    "policy, change",
    [
        ("disco", lambda fields: fields.update(schema="other/9")),
        ("disco", lambda fields: fields.pop("tuned")),
        ("disco", lambda fields: fields.update(extra=1)),
        ("disco", lambda fields: fields.update(architecture=None)),
        ("disco", lambda fields: fields["tuned"].update(threshold=7)),
        ("disco", lambda fields: fields["tuned"].update(sl_max=1000)),
        ("disco", lambda fields: fields["tuned"].pop("threshold")),
        ("disco", lambda fields: fields["tuned"].update(sure_at=[[0.5]])),
        ("specdecpp", lambda fields: fields["tuned"].update(threshold=math.nan)),
        ("specdecpp", lambda fields: fields["tuned"].update(sl_max=1)),
        ("specdecpp", lambda fields: fields["architecture"].update(feature="warp")),
        ("specdecpp", lambda fields: fields["architecture"].update(depth=-1)),
        ("specdecpp", lambda fields: fields["architecture"].update(depth=10**9)),
        ("costaware", lambda fields: fields["tuned"].update(ledger=[[0.5, 0, []]])),
        ("costaware", lambda fields: fields["tuned"].update(next=[0.1, 0.2])),
        ("costaware", lambda fields: fields["tuned"]["first"].pop("missed")),
        ("costaware", lambda fields: fields["tuned"].pop("recent")),
        ("costaware", lambda fields: fields["tuned"].update(caution=0)),
        ("costaware", lambda fields: fields.update(policy="disco")),
    ],
)
def test_a_damaged_description_is_reported(folder, policy, change):
    path = folder / f"{policy}.json"
    fields = json.loads(path.read_text())
    change(fields)
    path.write_text(json.dumps(fields))
    heads = load_heads(folder, TARGET, DRAFT)
    assert policy not in heads and len(heads) == 2
    with pytest.raises(UserError, match="fit again"):
        need_head(policy, heads)


JUNK = (None, "none", [], {}, [[]], -1)


@pytest.mark.parametrize("policy", TUNED)
def test_whatever_stands_in_a_description_it_is_reported_or_runs(folder, policy):
    run, path, features, unused = make_run(), folder / f"{policy}.json", make_features(5, seed=1), 0
    for guesses in run.chains["shallow"].lists():
        guesses.scores[policy] = guesses.p
    whole = json.loads(path.read_text())
    places = [(part, name) for part in ("tuned", "architecture") for name in whole[part]]
    for (part, name), junk in [
        *product(places, JUNK),
        (("tuned", "sl_max"), 10**400),
        (("tuned", "threshold"), 10**400),
    ]:
        path.write_text(json.dumps(whole | {part: whole[part] | {name: junk}}))
        heads = load_heads(folder, TARGET, DRAFT)
        if policy in heads:
            heads[policy].score_chain(features)
            Replay(run.chains["shallow"]).simulate(run.costs, make_policy(parse_lane(policy), heads))
        else:
            unused += 1
            assert "fit again" in heads.faults[policy]
    assert unused > len(JUNK), "this damages what is read"


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff\xfe", b"[" * 100_000])
def test_a_file_that_is_no_json_object_is_reported(folder, content):
    (folder / "disco.json").write_bytes(content)
    with pytest.raises(UserError, match="disco is damaged"):
        need_head("disco", load_heads(folder, TARGET, DRAFT))


def test_files_that_are_too_large_are_not_read(folder, monkeypatch):
    monkeypatch.setattr(fitted, "MAX_BYTES", 100)
    with pytest.raises(UserError, match="The file of the policy specdecpp is too large"):
        read_policy(folder, "specdecpp")


def test_damaged_or_missing_weights_are_reported(folder):
    path = folder / "disco.safetensors"
    path.write_bytes(path.read_bytes()[:-4] + b"zzzz")
    (folder / "costaware.safetensors").unlink()
    heads = load_heads(folder, TARGET, DRAFT)
    with pytest.raises(UserError, match="damaged or of another fit"):
        need_head("disco", heads)
    with pytest.raises(UserError, match="Cannot read the weights of the policy costaware"):
        need_head("costaware", heads)


def damaged(weights: dict) -> Iterator[dict]:
    """With one of them missing, of another size, or not finite."""
    for name, array in weights.items():
        yield {other: value for other, value in weights.items() if other != name}
        yield weights | {name: array.repeat(70, axis=0)}
        yield weights | {name: np.full_like(array, np.nan, dtype=np.float32)}


@pytest.mark.parametrize("policy, seed", [("disco", 0), ("specdecpp", 0), ("costaware", 0), ("costaware", 3)])
def test_damaged_weights_are_reported(tmp_path, policy, seed):
    folder = tmp_path / "policies"
    own = write(folder, policy, seed).weights
    own.pop(COUNTS, None)
    description = folder / f"{policy}.json"
    fields = json.loads(description.read_text())
    for weights in damaged(own):
        content = save(weights)
        (folder / f"{policy}.safetensors").write_bytes(content)
        description.write_text(json.dumps(fields | {"weights": sha256_of(content)}))
        with pytest.raises(UserError, match="fit again"):
            need_head(policy, load_heads(folder, TARGET, DRAFT))


def test_weights_that_are_not_finite_are_never_written(tmp_path):
    policy = make_file("disco")
    policy.weights["second"][2] = np.nan
    with pytest.raises(UserError, match="not finite; nothing was written"):
        write_policy(tmp_path, policy)
    assert not list(tmp_path.iterdir())


def test_a_failed_write_leaves_the_old_policy(folder, monkeypatch):
    def full(*paths):
        raise OSError(28, "No space left on device")

    before = read_policy(folder, "disco")
    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space left"):
        patch.setattr("os.replace", full)
        write_policy(folder, make_file("disco", seed=1))
    after = read_policy(folder, "disco")
    np.testing.assert_array_equal(before.weights["first"], after.weights["first"])
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]
