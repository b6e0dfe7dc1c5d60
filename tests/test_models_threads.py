"""The number of CPU threads is found by trying, for each model, and every pass takes the model's own."""

from __future__ import annotations

import pytest
import torch

from decoding.engines import loading
from decoding.engines import threads as threads_module
from decoding.engines.pair import load_pair
from decoding.engines.threads import choose_threads, fixed_threads, thread_choices
from tests.test_models_lean import CONFIGS, general, lean, random_model
from tests.tiny_models import make_model
from tests.toy import ToyModel


@pytest.fixture(autouse=True)
def own_threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def timed_by(monkeypatch, seconds_of) -> list[int]:
    """Passes take ``seconds_of(threads)`` by the clock; returns the numbers as they were tried."""
    now, tried = [0.0], []
    monkeypatch.setattr(threads_module, "perf_counter", lambda: now[0])

    def extend(self, ids):
        tried.append(self.info.threads)
        now[0] += seconds_of(self.info.threads)
        return self._read(ids)

    monkeypatch.setattr(ToyModel, "extend", extend)
    return tried


@pytest.mark.parametrize(
    "seconds, best",
    [
        ({1: 1.0, 2: 2.0, 4: 3.0}, 1),
        ({1: 1.0, 2: 0.5, 4: 0.3}, 4),
        ({1: 1.0, 2: 0.6, 4: 0.59}, 2),  # hardly faster with twice as many
        ({1: 1.0, 2: 0.99, 4: 0.4}, 4),
    ],
)
def test_the_fastest_number_is_taken_and_of_equals_the_least(monkeypatch, seconds, best):
    tried = timed_by(monkeypatch, lambda n: seconds[n] / 100)
    model = ToyModel()
    assert choose_threads(model, (1, 6), (1, 2, 4)) == best
    assert tried[:12] == [1, 1, 2, 2, 4, 4] * 2  # in turns
    assert model.length == 0 and model.info.threads == 1


def test_a_slow_model_is_not_tried_for_long(monkeypatch):
    tried = timed_by(monkeypatch, lambda n: 10.0 / n)
    assert choose_threads(ToyModel(), (1,), (1, 2)) == 2 and len(tried) == 4


def test_a_number_that_was_asked_for_stays(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert fixed_threads(None) is None and fixed_threads(3) == 3
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    torch.set_num_threads(1)
    assert fixed_threads(None) == 1
    assert thread_choices()[0] == 1 and list(thread_choices()) == sorted(set(thread_choices()))


def test_each_model_of_a_pair_has_its_own_number(tmp_path, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    found = {64: 2, 32: 1}
    monkeypatch.setattr(loading, "choose_threads", lambda model, rows: found[model.hidden_size])
    folders = make_model(tmp_path / "big", hidden=64), make_model(tmp_path / "small")
    pair = load_pair(target=str(folders[0]), draft=str(folders[1]), dtype="float32", device="cpu")
    assert (pair.target.info.threads, pair.draft().info.threads) == (2, 1)
    pair.target.prefill([1, 2, 3])
    assert torch.get_num_threads() == 2
    pair.draft().prefill([1, 2, 3])
    assert torch.get_num_threads() == 1


@pytest.mark.parametrize("engine", [lean, general])
def test_a_pass_takes_the_models_threads_in_whatever_thread_it_runs(engine):
    model = engine(random_model(CONFIGS["llama"]))
    model.info.threads = 2
    torch.set_num_threads(1)
    model.prefill([1, 2])
    assert torch.get_num_threads() == 2
