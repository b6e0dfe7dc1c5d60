"""What drafts learn from and how: the batch decoder, the losses, the start of a draft, on tiny random
models.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from decoding.errors import UserError
from training import generate
from training.architecture import Shape
from training.batch_decoder import BatchDecoder
from training.distillation import LOSSES, cross_entropy, forward_kl, sharp_kl, total_variation
from training.draft import (
    DEFAULT,
    KEPT_BACK,
    RECIPES,
    Batches,
    earlier_stages,
    fit_width,
    set_aside,
    start_draft,
    train_draft,
)
from training.generate import TOP, Texts, choose, write_batch
from training.loop import CHECKPOINT_KEYS

VOCABULARY = 320


def tiny(layers=2, hidden=64, key_value_heads=None, scale=6.0):
    """A random model whose next tokens are clear enough for bf16: embeddings larger than usual."""
    torch.manual_seed(3)
    model = Shape(layers, hidden, 96, key_value_heads).build(VOCABULARY, 64).eval()
    with torch.no_grad():
        model.get_input_embeddings().weight.mul_(scale)
    return model


@pytest.mark.parametrize(("hidden", "key_value_heads"), [(64, None), (128, 1)])
def test_the_batch_decoder_computes_what_transformers_does(hidden, key_value_heads):
    model = tiny(hidden=hidden, key_value_heads=key_value_heads).bfloat16().float()
    ids = torch.randint(0, VOCABULARY, (3, 20))
    decoder = BatchDecoder(model, 3, 20)
    hidden_states = [
        decoder.extend(ids[:, :15], 0),
        *(decoder.extend(ids[:, i : i + 1], i) for i in range(15, 20)),
    ]
    logits = decoder.logits(torch.cat(hidden_states, dim=1)).float()
    expected = model(ids).logits
    assert (logits - expected).abs().max() < 0.03 * expected.abs().max()


def test_written_text_is_greedy_and_comes_with_the_targets_thoughts(monkeypatch):
    monkeypatch.setattr(generate, "LENGTH", 24)
    model = tiny().bfloat16().float()
    ids, top_ids, top_logp = write_batch(BatchDecoder(model, 2, 24), torch.randint(0, VOCABULARY, (2, 9)), 0.0, None)
    expected = model(ids).logits.log_softmax(-1)
    assert (top_ids[:, 8:-1, 0] == ids[:, 9:]).all()
    assert (expected.gather(-1, top_ids.long()) - top_logp.float()).abs().mean() < 0.05
    assert (top_logp.diff(dim=-1) <= 0).all() and top_logp.isfinite().all()


def test_draws_follow_the_tempered_distribution():
    logits = torch.tensor([[1.0, 0.0, -1.0]]).repeat(20_000, 1)
    draws = torch.bincount(choose(logits, 0.5, torch.Generator().manual_seed(0)), minlength=3) / 20_000
    assert torch.allclose(draws, torch.tensor([2.0, 0.0, -2.0]).softmax(0), atol=0.02)
    assert (choose(logits, 0.0, None) == 0).all()


def full_and_top(n=50):
    torch.manual_seed(0)
    target, draft = 3 * torch.randn(n, TOP), 3 * torch.randn(n, TOP)
    values, ids = target.log_softmax(-1).topk(TOP)
    return target.softmax(-1), draft, ids, values


def test_losses_are_exact_where_the_top_is_everything():
    p, draft, ids, values = full_and_top()
    q = draft.softmax(-1)
    assert forward_kl(draft, ids, values, ids[:, 0]) == pytest.approx(
        float((p * (p / q).log()).sum(-1).mean()), abs=1e-3
    )
    assert total_variation(draft, ids, values, ids[:, 0]) == pytest.approx(
        float(1 - torch.minimum(p, q).sum(-1).mean()), abs=1e-3
    )
    cold_p, cold_q = ((4.0 * one.log()).softmax(-1) for one in (p, q))
    assert sharp_kl(draft, ids, values, ids[:, 0]) == pytest.approx(
        float(((p * (p / q).log()) + cold_p * (cold_p / cold_q).log() / 4.0).sum(-1).mean()), abs=2e-3
    )
    assert cross_entropy(draft, ids, values, ids[:, 0]) == pytest.approx(
        float(-q.gather(-1, ids[:, :1]).log().mean()), abs=1e-4
    )


@pytest.mark.parametrize("loss, left", [("kl", 1e-5), ("tv", 1e-5), ("sharp", 2e-3)])
def test_the_rest_counts_as_one_class_and_equal_models_lose_nothing(loss, left):
    logits = torch.randn(20, 3 * TOP)
    values, ids = logits.log_softmax(-1).topk(TOP)
    assert float(LOSSES[loss](logits, ids, values, ids[:, 0])) == pytest.approx(0.0, abs=left)
    assert float(LOSSES[loss](-logits, ids, values, ids[:, 0])) > 0.1


def texts(count):
    rng = np.random.default_rng(0)
    ids = rng.integers(0, VOCABULARY, (count, 12), dtype=np.uint16)
    top = rng.integers(0, VOCABULARY, (count, 12, TOP), dtype=np.uint16)
    return Texts(ids, top, np.zeros((count, 12, TOP), dtype=np.float16))


def test_batches_never_hold_what_is_kept_back():
    batches = Batches(texts(KEPT_BACK + 20))
    assert set(batches.order) | set(batches.kept_back) == set(range(KEPT_BACK + 20))
    assert not set(batches.order) & set(batches.kept_back)
    ids, top_ids, _, following = batches.batch(0, 4)
    assert following.view(4, 12)[:, :-1].tolist() == ids[:, 1:].tolist()
    assert following.view(4, 12)[:, -1].tolist() == top_ids.view(4, 12, TOP)[:, -1, 0].tolist()


def test_too_little_text_and_unknown_names_are_reported():
    with pytest.raises(UserError, match="Too little"):
        Batches(texts(10))
    with pytest.raises(UserError, match="no draft"):
        train_draft("huge", 1)
    with pytest.raises(UserError, match="no loss"):
        train_draft(DEFAULT, 1, "l2")


def test_a_draft_starts_from_the_targets_layers_and_embeddings():
    target = tiny(layers=3, hidden=128)
    recipe = type(RECIPES[DEFAULT])(Shape(2, 128, 96), (0, 2))
    draft = start_draft(recipe, target)
    assert torch.equal(draft.model.layers[1].mlp.up_proj.weight, target.model.layers[2].mlp.up_proj.weight)
    assert torch.equal(draft.get_input_embeddings().weight, target.get_input_embeddings().weight)
    assert draft.lm_head.weight is draft.get_input_embeddings().weight


def test_narrower_embeddings_keep_what_varies_most():
    embeddings = torch.randn(200, 4) @ torch.randn(4, 32)
    narrow = fit_width(embeddings, 4)
    assert torch.allclose(narrow @ narrow.T, embeddings @ embeddings.T, atol=1e-2)
    assert fit_width(embeddings, 40).shape == (200, 40)


def test_what_was_learned_in_another_way_is_an_earlier_stage(tmp_path, monkeypatch):
    for place in ("CHECKPOINTS", "LOGS"):
        monkeypatch.setattr(f"training.draft.{place}", tmp_path)
    monkeypatch.setattr("training.loop.LOGS", tmp_path)
    checkpoint, log = tmp_path / "draft-x.pt", tmp_path / "draft-x.jsonl"
    first, second = {"target": "a", "loss": "kl"}, {"target": "a", "loss": "sharp"}
    state = dict.fromkeys(CHECKPOINT_KEYS, 0) | {"settings": first}
    for settings, kept in ((first, True), (second, False)):
        torch.save(state, checkpoint)
        log.write_text('{"step": 7, "elapsed": 90.0, "tokens": 640, "held_out": 0.5}\n')
        set_aside("x", settings)
        assert checkpoint.is_file() == log.is_file() == kept
    stage = {"steps": 7, "minutes": 1.5, "tokens": 640, "kept_back": 0.5}
    assert earlier_stages("x") == [stage | first] and earlier_stages("y") == []
