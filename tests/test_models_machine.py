"""What engines ask of the machine: the number of CPU threads, by trial for each model, and huge pages."""

import json

import pytest
import torch

from decoding.engines import huge_pages, kept_trials
from decoding.engines import threads as threads_module
from decoding.engines.huge_pages import Region, is_worth_moving, read_regions, use_huge_pages
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

    def extend(self, ids, branches=None):
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
    try_again(model, (1, 6))  # its number was asked for
    trials += [1, 2]
    model.set_threads(usual_threads(model, (1, 6)))
    model.prefill([1, 2])
    try_again(model, (1, 6))
    assert model.info.threads == 2 and trials == [] and model.note is None


def test_a_fixed_number_outlives_the_trial_of_another_process(trials, monkeypatch):
    model = lean(random_model(CONFIGS["llama"]))
    trials += [4, 2]
    assert usual_threads(model, (1, 6)) == 4  # another process's, kept where this one finds it
    model.set_threads(1)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # as Ray does, for its replicas not to slow each other
    try_again(model, (1, 6))
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


# -- huge pages

MB = 1 << 20
SMAPS = """\
7f0000000000-7f0002000000 rw-p 00000000 00:00 0
Size:              32768 kB
Rss:               30000 kB
AnonHugePages:         0 kB
VmFlags: rd wr mr mw me ac
7f1000000000-7f1002000000 r--p 00000000 fe:00 1234                       /weights.safetensors
Rss:               32768 kB
AnonHugePages:         0 kB
7f2000000000-7f2002000000 rw-s 00000000 00:01 77                         /dev/zero (deleted)
Rss:               32768 kB
AnonHugePages:         0 kB
55a000000000-55a004000000 rw-p 00000000 00:00 0                          [heap]
Rss:               65000 kB
AnonHugePages:     40960 kB
"""


def test_only_private_writable_memory_without_a_file_is_read():
    assert read_regions(SMAPS) == [
        Region(0x7F0000000000, 0x7F0002000000, 30000 << 10, 0),
        Region(0x55A000000000, 0x55A004000000, 65000 << 10, 40960 << 10),
    ]


@pytest.mark.parametrize(
    ("size", "used", "huge", "worth"),
    [
        (64 * MB, 64 * MB, 0, True),
        (64 * MB, 64 * MB, 32 * MB, True),
        (64 * MB, 64 * MB, 62 * MB, False),  # it has them
        (64 * MB, 8 * MB, 0, False),  # a cache that is hardly filled would take all its memory
        (2 * MB, 2 * MB, 0, False),
    ],
)
def test_large_regions_in_use_are_moved(size, used, huge, worth):
    assert is_worth_moving(Region(0, size, used, huge)) is worth


def test_weights_move_and_keep_their_bytes_or_the_log_says_why_not(caplog):
    weights = torch.arange(8 * MB, dtype=torch.int32)
    with caplog.at_level("INFO", logger=huge_pages.__name__):
        use_huge_pages()
    assert torch.equal(weights, torch.arange(8 * MB, dtype=torch.int32))
    regions, middle = read_regions(huge_pages._MAPS.read_text()), weights.data_ptr() + 16 * MB
    moved = any(region.huge for region in regions if region.start <= middle < region.end)
    assert moved or "no huge pages" in caplog.text


def test_a_system_without_such_a_list_of_regions_goes_on(monkeypatch, tmp_path, caplog):
    monkeypatch.setattr(huge_pages, "_MAPS", tmp_path / "missing")
    with caplog.at_level("INFO", logger=huge_pages.__name__):
        use_huge_pages()
    assert "no huge pages" in caplog.text and "missing" in caplog.text
