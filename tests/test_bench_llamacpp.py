"""The benchmark beside llama.cpp, with a stand-in for its package."""

from __future__ import annotations

import itertools
import json
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import pytest

from decoding.bench import runs
from decoding.bench.contenders import LlamaCppContender
from decoding.errors import UserError
from tests.commands import Ended, command
from tests.tiny_gguf import write_gguf
from tests.tiny_models import make_model


class FakeLlama:
    """llama-cpp-python's model, as far as it is used: it counts upwards."""

    made: list[FakeLlama] = []

    def __init__(self, path: str, **options) -> None:
        if not path.endswith(".gguf"):
            raise ValueError("Failed to load model from file")
        self.path, self.options, self.resets = path, options, 0
        self.made.append(self)

    def reset(self) -> None:
        self.resets += 1

    def generate(self, tokens: list[int], **options):
        assert options == {"temp": 0.0, "repeat_penalty": 1.0} and tokens
        for token in itertools.count():
            yield token % 7


@pytest.fixture
def llama_cpp(monkeypatch):
    """llama-cpp-python's stand-in."""
    module = ModuleType("llama_cpp")
    module.Llama = FakeLlama
    module.__spec__ = ModuleSpec("llama_cpp", None)
    monkeypatch.setitem(sys.modules, "llama_cpp", module)
    monkeypatch.setattr(FakeLlama, "made", [])
    return module


def llamacpp_command(*words: str) -> Ended:
    small = ["--limit", "1", "--repeats", "2", "--max-new-tokens", "8"]
    return command("bench", "--against", "llamacpp", *small, *words)


def test_llama_cpp_takes_turns_with_our_lanes_on_the_same_file(llama_cpp, tmp_path, monkeypatch):
    monkeypatch.setenv("SPECULOSCOPE_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "tiny.Q4_1.gguf"
    write_gguf(file, "Q4_1")
    result = llamacpp_command("--target", str(file), "--draft", str(file), "--json")
    assert result.status == 0, result.err
    (report,) = json.loads(result.out)
    names = ["autoregressive", "static:5", "autoregressive int4", "static:5 int4", "llama.cpp"]
    assert [figure["name"] for figure in report["figures"]] == names
    assert {figure["threads"] for figure in report["figures"]} == {1}
    ratios = [(one["ours"], one["theirs"]) for one in report["ratios"]]
    assert ("autoregressive", "llama.cpp") in ratios and ("autoregressive int4", "autoregressive") in ratios
    (model,) = FakeLlama.made
    assert model.path == str(file) and model.resets == 3  # one to warm up, then one a repeat
    assert model.options["n_threads"] == model.options["n_threads_batch"] == 1
    assert "eight bits" in report["notes"][-1]


def test_llama_cpp_is_refused_in_a_sentence_where_it_cannot_run(llama_cpp, monkeypatch, tmp_path):
    words = ["--target", str(tmp_path), "--draft", str(tmp_path)]
    with monkeypatch.context() as patch:
        patch.setattr(runs, "choose_device", lambda device: "cuda")
        assert "one thread each: use --device cpu" in llamacpp_command(*words).err
    folder = str(make_model(tmp_path / "plain"))
    assert "is not from a GGUF file" in llamacpp_command("--target", folder, "--draft", folder).err
    with pytest.raises(UserError, match="llama.cpp cannot load model.bin"):
        LlamaCppContender(tmp_path / "model.bin", 8)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "pip install -r requirements-llamacpp.txt" in llamacpp_command(*words).err


def test_llama_cpp_is_imported_by_its_contender_only():
    root = Path(__file__).resolve().parents[1]
    sources = [path for top in ("decoding", "viz", "training") for path in (root / top).rglob("*.py")]
    naming = [path.name for path in sources if "llama_cpp" in path.read_text(encoding="utf-8")]
    assert naming == ["contenders.py"]
    for name in ("requirements.txt", "requirements-dev.txt"):
        assert "llama-cpp" not in (root / name).read_text()
