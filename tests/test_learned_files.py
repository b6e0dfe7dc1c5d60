"""Fitted policies on disk: round trip, and a sentence for each reason why they cannot be used."""

import json

import numpy as np
import pytest

from decoding.errors import UserError
from decoding.lookahead import policy_files
from decoding.lookahead.fitted import load_heads, need_head
from decoding.lookahead.ngrams import Ngrams, write_ngrams
from decoding.lookahead.policy_files import read_policy, write_policy

from .learned_heads import TUNED, make_features, make_file, make_head, make_weights

TARGET, DRAFT = "t" * 16, "d" * 16


def write_all(folder, seed=0):
    for policy in TUNED:
        write_policy(folder, make_file(policy, seed))
    return folder


@pytest.fixture
def folder(tmp_path):
    return write_all(tmp_path)


@pytest.mark.parametrize("seed", [0, 2, 3])
def test_heads_come_back_as_they_were_written(tmp_path, seed):
    heads = load_heads(write_all(tmp_path, seed), TARGET, DRAFT)
    assert set(heads) == set(TUNED) and not heads.faults
    features = make_features(5, seed=1)
    for policy, head in heads.items():
        np.testing.assert_allclose(head.score_chain(features), make_head(policy, seed).score_chain(features))
        assert head.tuned == TUNED[policy]


def test_counts_that_stand_beside_the_draft_are_not_stored_twice(tmp_path):
    policy, folder = make_file("costaware", 3), tmp_path / "policies"
    counts = Ngrams(policy.weights["ngrams"])
    write_ngrams(tmp_path, counts)
    write_policy(folder, policy)
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
        ("disco", lambda fields: fields["tuned"].update(threshold=7)),
        ("disco", lambda fields: fields["tuned"].update(sl_max="many")),
        ("specdecpp", lambda fields: fields["tuned"].update(ledger=[[0.5, 0, []]])),
        ("specdecpp", lambda fields: fields["tuned"].update(ledger="none")),
        ("specdecpp", lambda fields: fields["architecture"].update(depth=-1)),
        ("costaware", lambda fields: fields["tuned"].update(next=[0.1, 0.2])),
        ("costaware", lambda fields: fields["tuned"].update(this="none")),
        ("costaware", lambda fields: fields["tuned"].pop("recent")),
        ("costaware", lambda fields: fields.update(features=["p", "margin"])),
        ("costaware", lambda fields: fields["tuned"]["first"].pop("missed")),
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


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff\xfe", b"[" * 100_000])
def test_a_file_that_is_no_json_object_is_reported(folder, content):
    (folder / "disco.json").write_bytes(content)
    with pytest.raises(UserError, match="disco is damaged"):
        need_head("disco", load_heads(folder, TARGET, DRAFT))


def test_files_that_are_too_large_are_not_read(folder, monkeypatch):
    monkeypatch.setattr(policy_files, "MAX_BYTES", 100)
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


NETWORK = ("costaware", 3)


@pytest.mark.parametrize(
    "made, damage, words",
    [
        (["specdecpp"], lambda one: one.weights.update(block=np.zeros((3, 4), np.float32)), "fitting weights 'block'"),
        (NETWORK, lambda one: one.weights.update(last=one.weights["last"][:-1]), "fit again"),
        (NETWORK, lambda one: one.weights.update(alone=np.zeros(500, dtype=np.float32)), "fit again"),
        (NETWORK, lambda one: one.weights.update(ngrams=one.weights["ngrams"][:-1]), "fit again"),
        (NETWORK, lambda one: one.weights.update(ngrams=one.weights["ngrams"].astype(np.float32)), "fit again"),
        (NETWORK, lambda one: one.features.append("entropy"), "fit again"),
    ],
)
def test_weights_of_a_wrong_shape_are_reported(tmp_path, made, damage, words):
    policy = make_file(*made)
    damage(policy)
    write_policy(tmp_path, policy)
    with pytest.raises(UserError, match=words):
        need_head(policy.policy, load_heads(tmp_path, TARGET, DRAFT))


def test_weights_that_are_not_finite_are_never_written(tmp_path):
    policy = make_file("disco")
    policy.weights["second"][2] = np.nan
    with pytest.raises(UserError, match="not finite; nothing was written"):
        write_policy(tmp_path, policy)
    assert not list(tmp_path.iterdir())


def test_a_failed_write_leaves_the_old_policy(folder, monkeypatch):
    before = read_policy(folder, "disco")
    monkeypatch.setattr("os.replace", lambda *paths: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(OSError):
        write_policy(folder, make_file("disco", seed=1))
    monkeypatch.undo()
    after = read_policy(folder, "disco")
    np.testing.assert_array_equal(before.weights["first"], after.weights["first"])
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]
