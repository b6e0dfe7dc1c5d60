"""An evaluation spread over several devices: what one machine finds, each prompt's lanes on one device."""

import json
import sys
import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import pytest

from decoding import backends
from decoding.backends import spread
from decoding.backends.spread import evaluate_spread
from decoding.errors import Cancelled, UserError
from decoding.evaluation.options import options_from_dict
from decoding.evaluation.parts import Part, run_part
from decoding.evaluation.results import EvaluationResult, Progress
from decoding.records.events import guarded, new_id, numbered
from decoding.records.run_file import to_plain
from tests.commands import command
from tests.test_evaluate_run import OPTIONS, _timeless, run, toys, whole  # noqa: F401
from tests.toy import ToyPair


class Devices:
    """A backend of ``n`` devices with toy models, each of which runs one part at a time."""

    def __init__(self, n: int = 2, fail=lambda part: None, **machines) -> None:
        self.n, self._fail, self._machines = n, fail, machines
        self._pairs = [ToyPair(agree=0.85) for _ in range(n)]
        self._free = list(range(n))
        self._lock = threading.Semaphore(n)
        self.ran: list[tuple[int, Part]] = []

    def run_job(self, kind, options, cancel, run_id=None):
        assert kind == "part"
        with self._lock:
            device = self._free.pop(0)  # an index that is in use twice would fail here
            try:
                work = self._work(device, json.loads(json.dumps(options)), cancel)
                yield from numbered(run_id or new_id(), guarded(work))
            finally:
                self._free.append(device)

    def _work(self, device, options, cancel):
        part = Part(**options["part"])
        self.ran.append((device, part))
        self._fail(part)
        with TemporaryDirectory() as folder:
            asked = options_from_dict(options["evaluation"])
            for step in run_part(asked, part, self._pairs[device], Path(folder), cancel.is_set):
                if not isinstance(step, Progress):
                    step.device, step.host = f"device {device}", f"host {device}"
                    step.machine = step.machine | self._machines.get(f"machine_{device}", {})
                    yield "finished", {"result": to_plain(step)}
                    return
        raise Cancelled


def spread_over(devices: Devices, folder, options=OPTIONS):
    steps = list(evaluate_spread(devices, lambda: devices.n, options, folder, threading.Event()))
    return steps[:-1], steps[-1]


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr(spread, "MOST_PROMPTS", 1)


def test_it_finds_what_one_machine_finds_and_names_the_machines(whole, tmp_path):  # noqa: F811
    """And all lanes and repeats of a prompt run on one device."""
    alone, devices = whole.result, Devices(2)
    steps, result = spread_over(devices, tmp_path)
    assert isinstance(result, EvaluationResult) and all(0 <= step.fraction <= 1 for step in steps)
    assert _timeless(result) == _timeless(alone) and result.find("clock_texts_equal") == alone.find("clock_texts_equal")
    assert result.find("clock_speedup", "static:5").n == 2
    assert any("host 0 (1), host 1 (1)" in note for note in result.setting.notes)
    assert {device for device, part in devices.ran if part.stage == "chains"} == {0, 1}
    clocked = [(device, prompt) for device, part in devices.ran if part.stage == "clock" for prompt in part.prompts]
    assert max(Counter(prompt for _, prompt in clocked).values()) == 1 and len(clocked) == 2
    (clock,) = tmp_path.glob("clock-*.jsonl")
    readings = [json.loads(line) for line in clock.read_text().splitlines()[1:]]
    assert len(readings) == 4 and all("oracle" in one["lanes"] and len(one["lanes"]) > 4 for one in readings)
    assert [part.stage for _, part in devices.ran].count("costs") == 1


def test_drafts_can_be_spread_too(tmp_path):
    _, result = spread_over(Devices(2), tmp_path, replace(OPTIONS, drafts="all", clock_prompts=1, repeats=1))
    assert {one.name for one in result.drafts} == {"small", "weak", "ngram"}


@pytest.mark.parametrize("other", [{"gpu": "Another GPU"}, {"cores": 999}, {"torch": "1.0"}])
def test_different_machines_are_refused(tmp_path, other):
    with pytest.raises(UserError, match="run on different machines .*cannot be compared"):
        spread_over(Devices(2, machine_1=other), tmp_path)


def test_replicas_with_other_models_are_refused_but_a_little_less_memory_is_no_other_machine(tmp_path):
    devices = Devices(2, machine_1={"memory_gb": 0.5})
    spread_over(devices, tmp_path / "one")
    devices._pairs[1].target.info = replace(devices._pairs[1].target.info, fingerprint="other")
    with pytest.raises(UserError, match="different models"):
        spread_over(devices, tmp_path / "other")


def test_what_was_collected_before_a_replica_was_lost_is_kept(whole, tmp_path):  # noqa: F811
    lost = []

    def lose(part: Part) -> None:
        lost.append(part)
        if len(lost) == 5:
            raise UserError("The replica that ran this was lost.")

    with pytest.raises(UserError, match="was lost"):
        spread_over(Devices(2, fail=lose), tmp_path)
    again = Devices(2)
    _, result = spread_over(again, tmp_path)
    assert _timeless(result) == _timeless(whole.result)
    assert 0 < [part.stage for _, part in again.ran].count("chains") < 7


def test_a_finished_evaluation_is_not_collected_again_by_one_device_or_one_machine(tmp_path):
    first = spread_over(Devices(2), tmp_path)[1]
    again = Devices(1)
    assert _timeless(spread_over(again, tmp_path)[1]) == _timeless(first)
    assert [part.stage for _, part in again.ran] == ["costs", "plan", "tables"]
    pair = ToyPair(agree=0.85)
    assert _timeless(run(tmp_path, pair=pair)[1]) == _timeless(first) and not pair.target.passes
    texts = tmp_path / "texts.jsonl"
    texts.write_text(texts.read_text()[:-20])  # the last one was cut
    assert _timeless(spread_over(again, tmp_path)[1]) == _timeless(first)
    assert [part.stage for _, part in again.ran[3:]] == ["costs", "chains", "plan", "tables"]


def test_cancel_ends_it_without_a_result(tmp_path):
    cancel = threading.Event()
    devices = Devices(2, fail=lambda part: cancel.set() if part.stage == "chains" else None)
    steps = list(evaluate_spread(devices, lambda: 2, OPTIONS, tmp_path, cancel))
    assert steps and all(isinstance(step, Progress) for step in steps)


def test_no_time_leaves_the_simulation(tmp_path):
    _, result = spread_over(Devices(2), tmp_path, replace(OPTIONS, minutes=0.0, chain_minutes=0.0))
    assert not result.clocked() and result.setting.validation_prompts >= 1


def test_the_command_spreads_and_writes_its_reports(tmp_path, monkeypatch):
    from decoding.cli import evaluate as command_module

    devices, left = Devices(2), []
    replicas = SimpleNamespace(backend=devices, running=lambda: 2, close=lambda: left.append(True))
    cluster = SimpleNamespace(Replicas=lambda address: replicas if address == "head:6379" else None)
    monkeypatch.setattr(command_module, "need_ray", lambda: cluster)
    asked = "--limit 2 --max-new-tokens 12 --lanes static:5 --clock-prompts 1 --repeats 1"
    status, out, err = command("evaluate", "--ray", "head:6379", *asked.split(), "--out", str(tmp_path))
    assert status == 0 and "Spread over replicas on these machines" in " ".join(out.split()) and "Wrote" in err
    assert left == [True] and (tmp_path / "result.json").exists()


def test_without_ray_the_commands_say_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "decoding.backends.ray_serve", raising=False)
    monkeypatch.delattr(backends, "ray_serve", raising=False)
    for arguments in (["evaluate", "--ray", "auto"], ["serve", "--ray"]):
        status, _, err = command(*arguments)
        assert status == 2 and "pip install -r requirements-ray.txt" in err


def test_what_is_about_a_cluster_is_refused_without_one():
    for arguments in ("--replicas 2", "--address h:1", "--gpus-per-replica 0.5", "--most-replicas 2"):
        status, _, err = command("serve", *arguments.split())
        assert status == 2 and "add --ray" in " ".join(err.split())
