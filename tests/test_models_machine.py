"""What engines ask of the machine: the number of CPU threads, by trial for each model."""

import json
import re
from pathlib import Path

import pytest
import torch

from decoding.engines import kept_trials
from decoding.engines import threads as threads_module
from decoding.engines.kept_trials import try_again, usual_threads
from decoding.engines.pair import load_pair
from decoding.engines.threads import choose_threads, fixed_threads, thread_choices
from tests.lean_models import CONFIGS, general, lean, random_model
from tests.toy import ToyModel


@pytest.fixture(autouse=True)
def own_threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def timed_by(monkeypatch, choices, seconds_of) -> list[int]:
    """Passes take ``seconds_of(threads)``; returns the numbers in the order in which they were tried."""
    now, tried = [0.0], []
    monkeypatch.setattr(threads_module, "perf_counter", lambda: now[0])
    monkeypatch.setattr(threads_module, "thread_choices", lambda: choices)

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
    tried = timed_by(monkeypatch, (1, 2, 4), lambda n: seconds[n] / 100)
    model = ToyModel()
    assert choose_threads(model, (1, 6)) == best
    assert tried[:12] == [1, 1, 2, 2, 4, 4] * 2  # in turns
    assert model.length == 0 and model.info.threads == 1


def test_a_slow_model_is_not_tried_for_long(monkeypatch):
    tried = timed_by(monkeypatch, (1, 2), lambda n: 10.0 / n)
    assert choose_threads(ToyModel(), (1,)) == 2 and len(tried) == 4


def test_a_number_that_was_asked_for_stays(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert fixed_threads(None) is None and fixed_threads(3) == 3
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    torch.set_num_threads(1)
    assert fixed_threads(None) == 1
    assert thread_choices()[0] == 1 and list(thread_choices()) == sorted(set(thread_choices()))


def test_each_model_of_a_pair_has_its_own_number(folders, own_costs, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    found = {64: 2, 32: 1}
    monkeypatch.setattr(kept_trials, "choose_threads", lambda model, rows: found[model.hidden_size])
    pair = load_pair(target=str(folders["big"]), draft=str(folders["small"]), dtype="float32", device="cpu")
    assert (pair.target.info.threads, pair.draft().info.threads) == (2, 1)
    pair.target.prefill([1, 2, 3])
    assert torch.get_num_threads() == 2
    pair.draft().prefill([1, 2, 3])
    assert torch.get_num_threads() == 1


@pytest.fixture
def trials(own_costs, monkeypatch):
    """Numbers that trials find, the next one first; what they find is kept in a folder of the test's own."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)  # the number would be fixed
    monkeypatch.setattr(kept_trials, "thread_choices", lambda: (1, 2, 4))
    numbers: list[int] = []
    monkeypatch.setattr(kept_trials, "choose_threads", lambda model, rows: numbers.pop(0))
    return numbers


def test_what_a_trial_found_is_kept_for_the_next_start(trials, own_costs):
    trials += [4, 2]
    target, draft = lean(random_model(CONFIGS["llama"])), lean(random_model(CONFIGS["qwen2"]))
    draft.info.name = "draft"
    assert (usual_threads(target, (1, 6)), usual_threads(draft, (1, 2))) == (4, 2)
    again = lean(random_model(CONFIGS["llama"]))
    again.info.threads = 3  # whatever it runs on now
    assert usual_threads(again, (1, 6)) == 4 and usual_threads(draft, (1, 2)) == 2 and trials == []
    assert len(list(own_costs.glob("threads-*.json"))) == 2


def test_other_rows_formats_and_machines_are_tried_for_themselves(trials, monkeypatch):
    trials += [4, 2, 1, 4]
    model = lean(random_model(CONFIGS["llama"]))
    assert usual_threads(model, (1, 6)) == 4 and usual_threads(model, (1, 2)) == 2
    model.info.dtype = "int4"
    assert usual_threads(model, (1, 2)) == 1
    monkeypatch.setattr(kept_trials, "thread_choices", lambda: (1, 4))
    assert usual_threads(model, (1, 2)) == 4


@pytest.mark.parametrize("change", [{"found": "2020-01-01T00:00:00+00:00"}, {"found": "once"}, {"chosen": 64}, None])
def test_what_is_old_or_broken_is_tried_again(trials, own_costs, change):
    trials += [4, 2]
    model = lean(random_model(CONFIGS["llama"]))
    usual_threads(model, (1, 6))
    (path,) = own_costs.glob("threads-*.json")
    path.write_text("{" if change is None else json.dumps(json.loads(path.read_text()) | change))
    assert usual_threads(model, (1, 6)) == 2


def test_only_a_number_that_a_trial_found_is_tried_again(trials):
    model = lean(random_model(CONFIGS["llama"]))
    try_again(model)  # its number was asked for
    trials += [1, 2]
    model.set_threads(usual_threads(model, (1, 6)))
    model.prefill([1, 2])
    try_again(model)
    assert model.info.threads == 2 and trials == [] and model.note is None


def test_a_fixed_number_outlives_the_trial_of_another_process(trials, monkeypatch):
    model = lean(random_model(CONFIGS["llama"]))
    trials += [4, 2]
    assert usual_threads(model, (1, 6)) == 4  # another process's, kept where this one finds it
    model.set_threads(1)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # as Ray does, for its replicas not to slow each other
    try_again(model)
    assert model.info.threads == 1 and trials == [2]


def test_a_disk_that_takes_nothing_costs_the_next_start_a_trial(trials, tmp_path, monkeypatch):
    trials += [4, 2]
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SPECULOSCOPE_COSTS", str(tmp_path / "file"))
    model = lean(random_model(CONFIGS["llama"]))
    assert usual_threads(model, (1, 6)) == 4 and usual_threads(model, (1, 6)) == 2


@pytest.mark.parametrize("engine", [lean, general])
def test_a_pass_takes_the_models_threads_in_whatever_thread_it_runs(engine):
    model = engine(random_model(CONFIGS["llama"]))
    model.info.threads = 2
    torch.set_num_threads(1)
    model.prefill([1, 2])
    assert torch.get_num_threads() == 2


HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def huge_kilobytes() -> int:
    return int(re.search(r"AnonHugePages: *(\d+) kB", Path("/proc/self/smaps_rollup").read_text())[1])


@pytest.mark.skipif("[madvise]" not in (HUGE_PAGES.read_text() if HUGE_PAGES.exists() else ""), reason="not on request")
def test_large_tensors_are_in_huge_pages():
    before = huge_kilobytes()
    weights = torch.ones(1 << 24)
    assert huge_kilobytes() - before >= weights.nbytes // 1024 // 2
