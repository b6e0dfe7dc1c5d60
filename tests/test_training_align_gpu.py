"""Aligning drafts on a GPU: the code is the same on any device, and runs on the CPU here."""

from dataclasses import replace

import pytest
import torch

from decoding.engines.slim import own_weights
from decoding.errors import UserError
from training import distil, feature_drafts
from training import teacher as teachers
from training.measure import facts_of_texts
from training.teacher import Teacher
from training.texts import TEMPERATURES

from .test_training_align import (  # noqa: F401  # fixtures
    align,
    chat,
    good_texts,
    reading_recipes,
    tiny_places,
    write_texts,
)

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def written(chat, tmp_path_factory):  # noqa: F811
    """Fewer texts than there, to save time."""
    write_texts(chat, folder := tmp_path_factory.mktemp("texts"), 4000)
    return folder


def test_texts_written_at_once_are_good_prompts_and_their_answers(chat, tmp_path):  # noqa: F811
    write_texts(chat, tmp_path, 3000, CPU)
    found = good_texts(chat, tmp_path)
    assert sorted({text.temperature for text in found}) == pytest.approx(TEMPERATURES)
    assert not any(len(text.top_ids[0]) or text.states is not None for text in found)


def test_texts_read_anew_have_the_states_and_probabilities_that_were_kept(chat, written, monkeypatch):  # noqa: F811
    monkeypatch.setattr(teachers, "STATE_LAYERS", (1, 2))
    kept, anew = Teacher(chat, written), Teacher(chat, written, CPU)
    one, other = (each.texts(each.splits["train"], with_states=True).batch(range(5)) for each in (kept, anew))
    assert torch.equal(one.ids, other.ids) and torch.equal(one.places, other.places)
    assert torch.equal(one.weight, other.weight)
    assert one.states is not None and other.states is not None
    states = (each.states.flatten(0, 1)[each.places].float() for each in (one, other))
    torch.testing.assert_close(*states, atol=0.05, rtol=0.05)
    torch.testing.assert_close(one.top_logp, other.top_logp, atol=0.05, rtol=0.02)
    one, other = (each.texts(each.splits["train"]).batch(range(5, 10)) for each in (kept, anew))
    assert torch.equal(one.ids, other.ids)  # as many texts, but others


@pytest.fixture
def shipped(tiny_places, monkeypatch):  # noqa: F811
    """A shipped draft of text, from which drafts that read states start, in a house with a GPU."""
    reading_recipes(monkeypatch)
    monkeypatch.setattr(feature_drafts, "gpu", lambda: CPU)
    for plan in ("ON_GPU", "ON_TOP"):
        monkeypatch.setattr(feature_drafts, plan, replace(getattr(feature_drafts, plan), batch_tokens=1024))
    distil.distil("one-layer", tokens=3000)
    (tiny_places / "drafts").mkdir(parents=True)
    return (distil.DRAFTS / "one-layer").rename(tiny_places / "drafts" / "one-layer")


def test_drafts_that_are_trained_together_learn_as_each_alone(shipped, written):
    align("together", "one-layer", "--tokens", "5000")
    alone = own_weights(distil.DRAFTS / "one-layer")
    assert any(not torch.equal(weight, alone[name]) for name, weight in own_weights(shipped).items())
    align("together", "feature", "one-layer", "--tokens", "5000")
    beside = own_weights(distil.DRAFTS / "one-layer")
    for name, weight in alone.items():
        torch.testing.assert_close(weight, beside[name], atol=0.01, rtol=0.02)
    log = feature_drafts.last_of_log(feature_drafts.log_of("feature"))
    assert (
        log["tokens"] >= 5000 and log["device"] == "cpu" and log["written"] == facts_of_texts(written)["tokens"] > 4000
    )


@pytest.mark.parametrize(
    ("names", "why"),
    [(["feature", "nothing"], "no draft 'nothing'"), (["feature", "heads"], "train them apart")],
)
def test_drafts_that_cannot_be_trained_together_are_refused(shipped, names, why):
    with pytest.raises(UserError, match=why):
        align("together", *names, "--tokens", "1000")


def test_without_a_gpu_and_without_an_end_nothing_is_trained(tiny_places, monkeypatch):  # noqa: F811
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match="needs a GPU"):
        align("together", "feature", "--tokens", "1000")
    for words in ([], ["--minutes", "1", "--tokens", "1000"]):
        with pytest.raises(UserError, match="either --minutes or --tokens"):
            align("feature", "feature", *words)
    with pytest.raises(SystemExit):
        align("together", "feature", "--minutes", "-1")
