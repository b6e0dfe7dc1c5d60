"""The training loop, its optimisers and its checkpoints, on a tiny model."""

import platform
import resource
import subprocess
import sys

import pytest
import torch
from torch import Tensor, nn
from transformers import LlamaForCausalLM

from decoding.errors import UserError
from training import __main__ as command
from training import loop
from training.drafts import save_slim
from training.loop import Plan, Rates, TimedRun

from .tiny_models import tiny_config

VOCABULARY = 300


@pytest.fixture(autouse=True)
def places(tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "CHECKPOINTS", tmp_path / "checkpoints")
    monkeypatch.setattr(loop, "LOGS", tmp_path / "logs")


def tiny(seed=0):
    torch.manual_seed(seed)
    return LlamaForCausalLM(tiny_config(VOCABULARY, max_position_embeddings=64))


def next_token_loss(model: LlamaForCausalLM, windows: Tensor) -> Tensor:
    return model(windows, labels=windows).loss


def make_run(tokens=None, seconds=1e9, shape="tiny"):
    return TimedRun("run", tiny(), seconds, {"shape": shape}, Plan(Rates(), batch_tokens=8, rounded_from=1.0), tokens)


def take_steps(run, count):
    def loss_of(number):
        ids = torch.randint(0, VOCABULARY, (2, 17), generator=torch.Generator().manual_seed(number))
        return next_token_loss(run.model, ids)

    return [run.step(loss_of) for _ in range(count)]


def test_a_killed_run_goes_on_as_if_nothing_had_been():
    whole = take_steps(make_run(), 6)
    first = make_run()
    begun = take_steps(first, 3)
    first.checkpoint()
    again = make_run()
    assert (again.steps, again.tokens) == (3, 24)
    assert begun + take_steps(again, 3) == pytest.approx(whole, rel=1e-5)


def test_a_checkpoint_of_another_configuration_is_refused():
    make_run().checkpoint()
    with pytest.raises(UserError, match="another configuration"):
        make_run(shape="wide")


@pytest.fixture
def on_a_full_disk(monkeypatch, capsys):
    """Runs an action as a command where no file may grow beyond 2,000 bytes; gives what the user reads."""
    monkeypatch.setattr(command, "keep_freed_memory", lambda: True)

    def said(action):
        monkeypatch.setattr(command, "app", action)
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2_000, hard))
        try:
            with pytest.raises(SystemExit):
                command.main()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        return capsys.readouterr().err

    return said


def test_a_full_disk_leaves_the_good_checkpoint(on_a_full_disk):
    run = make_run()
    run.checkpoint()
    before = run.path.read_bytes()
    take_steps(run, 1)
    said = on_a_full_disk(run.checkpoint)
    assert "could not be read or written" in said and "File too large" in said and "Free some space" in said
    assert run.path.read_bytes() == before
    assert [path.name for path in run.path.parent.iterdir()] == ["run.pt"]


def test_a_full_disk_leaves_the_good_model(tmp_path, on_a_full_disk):
    folder, head = tmp_path / "model", torch.arange(9)
    save_slim(tiny(), folder, head)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert "could not be read or written" in on_a_full_disk(lambda: save_slim(tiny(1), folder, head))
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize("content", [b"garbage", b"PK", b""])
def test_a_damaged_checkpoint_is_reported(content):
    run = make_run()
    run.checkpoint()
    run.path.write_bytes(content)
    with pytest.raises(UserError, match="run.pt cannot be read. Remove it"):
        make_run()


def train(run, saved):
    def loss_of(number):
        return next_token_loss(run.model, torch.full((1, 9), number % VOCABULARY))

    run.train(loss_of, lambda: 1.0, lambda: saved.append(run.tokens))


def test_a_run_ends_on_its_tokens_and_a_longer_one_goes_on():
    saved = []
    for wanted in (24, 24, 80):
        run = make_run(wanted)
        train(run, saved)
    assert saved == [24, 80], "a finished run is neither trained nor saved again"
    assert run.steps == 10
    assert loop.last_of_log("run")["tokens"] == 80


def test_training_ends_by_the_clock_with_weights_saved():
    saved, run = [], make_run(seconds=0.3)
    train(run, saved)
    assert run.elapsed >= 0.3 and saved == [run.tokens]
    assert '"held_out": 1.0' in (loop.LOGS / "run.jsonl").read_text()


def test_what_a_checkpoint_calls_done_is_saved():
    run = make_run(16)

    def killed():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run.train(lambda number: run.model.model.norm.weight.sum(), lambda: 1.0, killed)
    assert make_run(16).share == 0


def test_a_loss_that_explodes_stops_the_run():
    run = make_run(seconds=10)
    with pytest.raises(UserError, match="no longer finite"):
        run.train(lambda number: run.model.model.norm.weight.sum() * float("nan"), lambda: 1.0, lambda: None)


def test_the_rate_warms_up_stays_and_decays():
    schedule = Rates(warmup=0.1, flat_until=0.5)
    rates = [schedule.factor(share) for share in (0.0, 0.05, 0.1, 0.5, 0.75, 1.0, 1.1)]
    assert rates == pytest.approx([0.05, 0.5, 1.0, 1.0, 0.5, 0.0, 0.0])


def test_matrices_learn_by_muon_at_the_rates_of_their_place():
    model = nn.ModuleDict({"layers": nn.ModuleList([nn.Linear(8, 8)]), "own": nn.Linear(8, 8)})
    model["trunk"] = nn.ModuleDict({"layers": nn.ModuleList([nn.Linear(8, 8)])})
    muon, adam = Rates(muon=0.01, projections=0.003).optimisers(model)
    assert [(len(group["params"]), group["lr"]) for group in muon.param_groups] == [(1, 0.01), (2, 0.003)]
    assert all(parameter.ndim == 1 for group in adam.param_groups for parameter in group["params"])


def test_a_torch_without_muon_is_refused_in_a_sentence(monkeypatch):
    monkeypatch.delattr(torch.optim, "Muon")
    with pytest.raises(UserError, match="needs torch 2.9"):
        make_run()


FAULTS = """
import resource, torch
from training.__main__ import keep_freed_memory
def faults():
    for _ in range(4):  # until the heap has grown
        step()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(4):
        step()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
def step():
    return torch.zeros(9_000_000).add_(1.0).sum()  # 36 MB, more than glibc keeps by itself
print(faults(), int(keep_freed_memory()), faults())
"""


def test_glibc_keeps_freed_memory_and_others_say_that_they_do_not():
    """In a process of its own: the setting cannot be undone."""
    out = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True).stdout
    without, kept, with_it = map(int, out.split())
    assert kept == (platform.libc_ver()[0] == "glibc") and (with_it < without / 5 or not kept)
