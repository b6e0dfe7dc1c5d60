"""Models from the Hub: what is refused before any weights are fetched, and the messages."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from decoding.engines.checks import check_index, check_memory, estimate_memory
from decoding.engines.formats import find_format
from decoding.engines.hub import Repository, is_hub_id
from decoding.engines.pair import load_pair
from decoding.engines.tokenizer import load_tokenizer
from decoding.errors import UserError
from decoding.records import pairs
from tests.tiny_models import make_model


class FakeHub:
    """Serves folders as repositories; remembers what was fetched."""

    def __init__(self, cache: Path, **folders: Path) -> None:
        self.folders = {name.replace("__", "/"): folder for name, folder in folders.items()}
        self.cache, self.fetched = cache, []

    def look(self, name: str) -> Repository:
        if name not in self.folders:
            raise UserError(f"There is no model {name} on the Hub")
        files = {path.name: path.stat().st_size for path in self.folders[name].iterdir()}
        return Repository(name, "0123456789abcdef0123", files)

    def fetch(self, repository: Repository, file: str, on_bytes) -> Path:
        self.fetched.append((repository.name, file))
        place = self.cache / repository.name / file
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(self.folders[repository.name] / file, place)
        on_bytes(place.stat().st_size)
        return place

    def fetched_weights(self) -> list[str]:
        return [name for name, file in self.fetched if file.endswith(".safetensors")]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    base = tmp_path_factory.mktemp("models")
    return {
        "big": make_model(base / "big", hidden=64),
        "small": make_model(base / "small"),
        "other": make_model(base / "other", words="aa bb"),
    }


@pytest.fixture
def hub(folders, tmp_path):
    return FakeHub(tmp_path, org__big=folders["big"], org__small=folders["small"])


def test_a_pair_is_downloaded_with_progress_and_runs(hub):
    reports = []
    pair = load_pair(
        target="org/big",
        draft="org/small",
        dtype="float32",
        device="cpu",
        hub=hub,
        progress=lambda message, fraction: reports.append((message, fraction)),
    )
    assert pair.target.info.source == "org/big" and pair.target.info.fingerprint == "hub-0123456789abcdef"
    assert pair.draft_names == ["small"] and pair.draft().hidden_size == 32
    shares = [fraction for message, fraction in reports if message.startswith("Downloading org/big")]
    assert shares == sorted(shares) and shares[-1] == 1.0
    logits = pair.target.prefill(pair.tokenizer.encode("def f"))
    assert logits.shape == (1, 257)


def test_folders_work_as_well(folders):
    pair = load_pair(target=str(folders["big"]), draft=str(folders["small"]), dtype="float32", device="cpu")
    assert pair.target.info.source == "big" and len(pair.target.info.fingerprint) == 16


def test_other_tokens_are_refused_before_the_weights(folders, hub):
    hub.folders["org/other"] = make_reordered(folders["small"], hub.cache / "reordered")
    with pytest.raises(UserError, match="different tokenizers"):
        load_pair(target="org/big", draft="org/other", device="cpu", hub=hub)
    assert hub.fetched_weights() == []


def make_reordered(folder: Path, place: Path) -> Path:
    """The same model with two tokens swapped."""
    shutil.copytree(folder, place)
    text = json.loads((place / "tokenizer.json").read_text())
    vocab = text["model"]["vocab"]
    vocab["a"], vocab["b"] = vocab["b"], vocab["a"]
    (place / "tokenizer.json").write_text(json.dumps(text))
    return place


def test_a_longer_vocabulary_of_the_same_tokens_is_no_other_tokenizer(folders):
    pair = load_pair(target=str(folders["big"]), draft=str(folders["other"]), dtype="float32", device="cpu")
    assert pair.draft().vocab_size == pair.target.vocab_size + 2


@pytest.mark.parametrize(
    "change, words",
    [
        (
            {"auto_map": {"AutoModelForCausalLM": "evil.Model"}},
            "code from its own repository, which is never run",
        ),
        ({"model_type": None}, "has no model_type"),
        ({"num_attention_heads": 0}, "its config.json has num_attention_heads = 0"),
        ({"hidden_size": -32}, "its config.json has hidden_size = -32"),
        ({"num_hidden_layers": 10**30}, "its config.json has num_hidden_layers = 10000"),
        ({"num_key_value_heads": "many"}, "its config.json has num_key_value_heads = many"),
        ({"vocab_size": True}, "its config.json has vocab_size = True"),
    ],
)
def test_bad_configs_are_refused_before_the_weights(folders, hub, tmp_path, change, words):
    place = tmp_path / "changed"
    shutil.copytree(folders["small"], place)
    config = json.loads((place / "config.json").read_text()) | change
    (place / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v is not None}))
    hub.folders["org/changed"] = place
    with pytest.raises(UserError, match=words):
        load_pair(target="org/big", draft="org/changed", device="cpu", hub=hub)
    with pytest.raises(UserError, match=words):
        load_pair(target=str(folders["big"]), draft=str(place), device="cpu", hub=hub)
    assert hub.fetched_weights() == []


def test_pickles_are_refused(folders, hub, tmp_path):
    place = tmp_path / "pickled"
    shutil.copytree(folders["small"], place)
    (place / "model.safetensors").rename(place / "pytorch_model.bin")
    hub.folders["org/pickled"] = place
    for draft in ("org/pickled", str(place)):
        with pytest.raises(UserError, match="no safetensors weights"):
            load_pair(target="org/big", draft=draft, device="cpu", hub=hub)


@pytest.mark.parametrize(
    "place, value, words",
    [
        ("decoding.engines.sources.MAX_DOWNLOAD_BYTES", 1000, "GB of weights; at most"),
        ("shutil.disk_usage", lambda path: shutil._ntuple_diskusage(100, 90, 10), "on the disk"),
        ("decoding.engines.pair.free_memory", lambda device: 1000, "GB of memory; 0.0 GB are free"),
    ],
)
def test_what_is_too_large_is_refused_before_it_is_downloaded(hub, monkeypatch, place, value, words):
    monkeypatch.setattr(place, value)
    with pytest.raises(UserError, match=words):
        load_pair(target="org/big", draft="org/small", device="cpu", hub=hub)
    assert hub.fetched_weights() == []


@pytest.mark.parametrize(
    "index, words",
    [
        ({"weight_map": {"a": "../elsewhere/model.safetensors"}}, "only safetensors files in the same folder"),
        ({"weight_map": {"a": "/etc/model.safetensors"}}, "only safetensors files in the same folder"),
        ({"weight_map": {"a": "pytorch_model.bin"}}, "only safetensors files in the same folder"),
        ({"weight_map": {"a": ".safetensors"}}, "only safetensors files in the same folder"),
        ({"weight_map": {"a": 5}}, "only safetensors files in the same folder"),
        ({"weight_map": {"a": "model-2.safetensors"}}, "model-2.safetensors, .* is missing"),
        ({"weight_map": ["model.safetensors"]}, "is not a list of weights"),
        ([], "is not a list of weights"),
    ],
)
def test_an_index_that_points_elsewhere_is_refused(folders, tmp_path, index, words):
    place = tmp_path / "indexed"
    shutil.copytree(folders["small"], place)
    (place / "pytorch_model.bin").write_bytes(b"a pickle, which must never be read")
    (place / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(UserError, match=words):
        load_pair(target=str(folders["big"]), draft=str(place), device="cpu")


def test_an_index_of_files_in_the_folder_is_followed(folders, tmp_path):
    place = tmp_path / "indexed"
    shutil.copytree(folders["small"], place)
    check_index(place)
    (place / "model.safetensors.index.json").write_text('{"weight_map": {"a": "model.safetensors"}}')
    check_index(place)


@pytest.mark.parametrize(
    "address, offline, question",
    [
        ("http://127.0.0.1:1", "0", 'hub.look("org/model")'),
        ("", "1", 'hub.fetch(Repository("org/model", "0" * 40, {}), "config.json", print)'),
    ],
)
def test_the_real_library_without_a_hub_is_a_sentence(address, offline, question):
    """In a separate process, because the library reads its settings when it is imported."""
    script = f"""
from decoding.engines.hub import HuggingFaceHub, Repository
from decoding.errors import UserError
hub = HuggingFaceHub()
try:
    {question}
except UserError as error:
    print("SENTENCE", error)
"""
    settings = {
        "HF_ENDPOINT": address,
        "HF_HUB_OFFLINE": offline,
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HOME": "/nowhere",
    }
    ended = subprocess.run([sys.executable, "-c", script], env=os.environ | settings, capture_output=True, text=True)
    assert ended.stdout.startswith("SENTENCE") and "Traceback" not in ended.stderr, ended.stdout + ended.stderr
    assert "network" in ended.stdout


def test_unknown_models_and_folders(hub):
    with pytest.raises(UserError, match="no model org/none"):
        load_pair(target="org/none", draft="org/small", device="cpu", hub=hub)
    with pytest.raises(UserError, match="no folder"):
        load_pair(target="./nowhere", draft="org/small", device="cpu", hub=hub)
    with pytest.raises(UserError, match="both a target and a draft"):
        load_pair(target="org/big", hub=hub)


def test_a_public_deployment_loads_known_pairs_only(folders, hub, monkeypatch):
    monkeypatch.setenv("SPECULOSCOPE_PUBLIC", "1")
    for target, draft in (("org/big", "org/small"), (str(folders["big"]), str(folders["small"]))):
        with pytest.raises(UserError, match="loads known pairs only"):
            load_pair(target=target, draft=draft, hub=hub)
    assert hub.fetched == []
    monkeypatch.delenv("SPECULOSCOPE_PUBLIC")
    monkeypatch.setenv("SPACE_ID", "someone/space")
    assert pairs.is_public()


def test_memory_of_an_8b_model():
    config = dict(
        dtype="bfloat16",
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
        hidden_size=4096,
        max_position_embeddings=131072,
    )
    on_gpu = estimate_memory(config, 16_060_000_000, find_format("bfloat16"), "cuda", 8192)
    assert on_gpu.weights == 16_060_000_000
    assert on_gpu.cache == 2 * 32 * 8 * 128 * 8192 * 2
    assert on_gpu.peak == pytest.approx(1.1 * (16.06e9 + 1.0737e9), rel=0.01)
    on_cpu = estimate_memory(config, 16_060_000_000, find_format("float32"), "cpu", 8192)
    assert on_cpu.weights == 2 * on_gpu.weights
    assert on_cpu.peak == pytest.approx(1.1 * (16.06e9 + 32.12e9 + 2.147e9), rel=0.01)  # as stored, and as it runs
    check_memory("x", 10, None, "cpu")  # unknown: let it try
    check_memory("x", 10, 11, "cpu")


def test_presets_are_named_and_sound():
    presets = {pair.name: pair for pair in pairs.PRESETS}
    assert len(presets) == len(pairs.PRESETS) >= 7
    for preset in pairs.PRESETS:
        assert is_hub_id(preset.target) and all(map(is_hub_id, preset.drafts.values()))
        assert preset.default_draft in preset.drafts
        assert preset.billions if preset.loadable else preset.reason
    with pytest.raises(UserError, match="cannot be loaded: .*safetensors"):
        pairs.find_pair("vicuna-13b")
    with pytest.raises(UserError, match="There is no pair nonsense. There are: .*smollm2"):
        pairs.find_pair("nonsense")


@pytest.mark.parametrize(
    "place, expected",
    [
        ("Qwen/Qwen2.5-7B", True),
        ("models/x/y", False),
        ("./a/b", False),
        ("name", False),
        ("../a", False),
        ("a/..", False),
        ("https://x/y", False),
        ("a/b c", False),
    ],
)
def test_hub_ids(place, expected):
    assert is_hub_id(place) is expected


def test_embedded_pairs_are_read_from_disk(folders, tmp_path):
    place = tmp_path / "pairs" / "mini"
    shutil.copytree(folders["big"], place / "target")
    shutil.copytree(folders["small"], place / "drafts" / "one")
    described = {
        "name": "mini",
        "title": "Mini",
        "target": "target",
        "drafts": {"one": "drafts/one"},
        "default_draft": "one",
        "draft_weights": {"one": "int4"},
    }
    (place / "pair.json").write_text(json.dumps(described))
    (tmp_path / "pairs" / "index.json").write_text('{"default": "mini"}')
    found = pairs.embedded_pairs(tmp_path / "pairs")
    assert [pair.name for pair in found] == ["mini"]
    assert [found[0].weights_of(name) for name in ("one", "two")] == ["int4", "auto"]
    assert pairs.find_pair("", tmp_path / "pairs").name == "mini"
    (place / "pair.json").write_text(json.dumps(described | {"default_draft": "two"}))
    with pytest.raises(UserError, match="two is not among its drafts"):
        pairs.read_pair(place)
    for wrong in ({"two": "int8"}, {"one": "int2"}, "int2", ["one"], True):
        (place / "pair.json").write_text(json.dumps(described | {"draft_weights": wrong}))
        with pytest.raises(UserError, match="does not describe a pair: (at draft_weights|two is not among)"):
            pairs.read_pair(place)
    (place / "pair.json").write_text("{")
    with pytest.raises(UserError, match="Cannot read mini/pair.json"):
        pairs.read_pair(place)


def test_tokens_that_are_not_whole_characters_show_their_bytes(folders):
    tokenizer = load_tokenizer(folders["small"])
    ids = tokenizer.encode("é a")
    assert tokenizer.decode(ids) == "é a" and tokenizer.eos_ids == {0}
    first, second, space, letter = map(tokenizer.token_text, ids)
    assert (first.bytes, second.bytes) == ("c3", "a9") and bytes.fromhex(first.bytes + second.bytes).decode() == "é"
    assert (space.text, letter.text, letter.bytes) == (" ", "a", None)
    assert tokenizer.token_text(0).text == "<s>"
