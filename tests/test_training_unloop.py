"""The target's training against loops: what counts as repeated, the loss, and a short run."""

from __future__ import annotations

import pytest
import torch

from training import loop, unloop
from training.architecture import Shape
from training.generate import write_batch
from training.unloop import LENGTH, N_GRAM, repeats, unlikelihood, write

VOCABULARY = 64


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Shape(2, 64, 96).build(VOCABULARY, 256)


def test_fresh_text_is_not_repeated():
    assert not any(repeats(list(range(60))))


def test_a_loop_is_repeated_after_its_first_period():
    text = [1, 2, 3, 4] + [7, 8] * 12
    assert repeats(text) == [False] * 6 + [True] * 22


def test_a_stretch_counts_from_its_third_time_on():
    stretch = list(range(20, 20 + N_GRAM))
    text = [*stretch, 1, *stretch, 2, 3, *stretch, 4]
    assert [i for i, bad in enumerate(repeats(text)) if bad] == [len(text) - 2]


def test_unlikelihood_is_the_formula(model):
    ids = torch.randint(VOCABULARY, (2, 12))
    repeated = torch.zeros(2, 12, dtype=torch.bool)
    assert unlikelihood(model, ids, repeated).item() == 0.0
    repeated[0, 5] = repeated[1, 11] = True
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        p = model(ids).logits.float().softmax(-1)
    expected = -(torch.log1p(-p[0, 4, ids[0, 5]]) + torch.log1p(-p[1, 10, ids[1, 11]])) / (2 * 11)
    assert unlikelihood(model, ids, repeated).item() == pytest.approx(expected.item(), rel=2e-2)


def test_a_step_makes_what_was_repeated_less_likely(model):
    ids = torch.tensor([[0, 5, 9] + [7, 8] * 10])
    repeated = torch.tensor([[False] * 7 + [True] * 16])
    before = unlikelihood(model, ids, repeated)
    before.backward()
    with torch.no_grad():
        for weight in model.parameters():
            weight -= 0.5 * weight.grad
    assert unlikelihood(model, ids, repeated) < before


def test_it_writes_the_models_own_first_choices(model):
    prompts = torch.randint(VOCABULARY, (3, 20))
    text = write(model, prompts)
    assert text.shape == (3, LENGTH) and torch.equal(text[:, :20], prompts)
    from training.batch_decoder import BatchDecoder

    other, _, _ = write_batch(BatchDecoder(model, 3, 320), prompts, 0.0, torch.Generator())
    assert torch.equal(text, other[:, :LENGTH])


def test_a_run_leaves_its_weights_and_goes_on(tmp_path, monkeypatch, model):
    monkeypatch.setenv("TRAINING_EAGER", "1")
    monkeypatch.setattr(loop, "CHECKPOINTS", tmp_path / "checkpoints")
    monkeypatch.setattr(loop, "LOGS", tmp_path / "logs")
    saved = []

    class Tiny:
        """Stands in for the corpus: random windows."""

        def __init__(self, minutes):
            self.short, self.long, self.held_out = Random(31), Random(63), torch.randint(VOCABULARY, (2, 32))
            self.plan, self.tokenizer = type("Plan", (), {"tokens_per_step": 64}), None

    class Random:
        def __init__(self, length):
            self.length = length

        def batch(self, start, size):
            return torch.randint(VOCABULARY, (size, max(self.length, unloop.PREFIXES[-1]) + 1))

    monkeypatch.setattr(unloop, "TargetTraining", Tiny)
    monkeypatch.setattr(unloop, "load_model", lambda folder: model)
    monkeypatch.setattr(unloop, "save_model", lambda trained, folder, tokenizer: saved.append(folder))
    monkeypatch.setattr(unloop, "TEXTS", 2)
    unloop.train_unlooped(0.02)
    assert saved == [unloop.TARGET] * len(saved) and saved
    steps = loop.last_of_log(unloop.NAME)["steps"]
    unloop.train_unlooped(0.02)  # done: only saved again
    assert steps > 1 and loop.last_of_log(unloop.NAME)["steps"] == steps
