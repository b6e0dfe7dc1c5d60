"""One whole comparison of the embedded pairs in the class of CPU that this process is (``make test-cpus``)."""

import json
from dataclasses import asdict

import pytest
import torch

from decoding import cpu
from decoding.backends.jobs import Jobs
from decoding.comparison import costs
from decoding.engines import choosing, pair, threads
from decoding.records.pairs import BLOCK, HEADS, find_pair
from decoding.records.request import CompareRequest
from decoding.records.run_file import run_from_json

pytestmark = pytest.mark.usefixtures("all_cores")


def test_this_process_uses_no_more_than_its_class_has():
    usable = {"avx2": "AVX2", "avx512": "AVX512", "plain": "DEFAULT"}
    if cpu.imitated():
        assert torch.backends.cpu.get_cpu_capability() in (usable[cpu.imitated()], "AVX2", "DEFAULT")
        assert not choosing.multiplies_bfloat16()


@pytest.mark.parametrize("name", ["smollm2-135m", "codepair-15M"])
def test_a_whole_comparison_writes_one_text_in_the_format_that_this_cpu_chose(name, monkeypatch):
    """Chosen in short trials: which of them is the fastest does not matter here."""
    monkeypatch.setattr(choosing, "TRIAL_WEIGHTS", 1)
    monkeypatch.setattr(threads, "BUDGET_S", 0.0)
    monkeypatch.setattr(costs, "ROUNDS", (1, 1))
    monkeypatch.setattr(pair, "use_huge_pages", lambda: None)  # seconds for weights that are read for a moment
    lanes = ["autoregressive", "static:4", "disco", "costaware"]
    kinds = find_pair(name).draft_kinds
    lanes += [f"{draft}/static:2" for draft, kind in kinds.items() if kind.kind in (HEADS, BLOCK)]
    request = CompareRequest("Why is the sky blue?", pair=name, max_new_tokens=10, repeats=1, lanes=lanes)
    *_, (kind, data) = Jobs("cpu").run("compare", asdict(request), "r", lambda: False)
    run = run_from_json(json.dumps(data["run"]))
    assert kind == "finished" and all(trace.verdict.same for trace in run.lanes)
    assert not [note for trace in run.lanes for note in trace.notes if "depend" in note]
    expected = {"avx2": "float16", "avx512": "float16", "plain": "float32"}
    if cpu.imitated():
        assert run.pair.target.dtype in (expected[cpu.imitated()], "float32")
        assert run.machine.processor.endswith(f", as {cpu.imitated()}")
