"""Models from the Hub: what is refused before any weights are fetched, and the messages."""

import json
import shutil
from contextlib import suppress
from errno import EACCES, ENOSPC, EROFS
from pathlib import Path
from types import SimpleNamespace

import pytest
from huggingface_hub import constants

from decoding.engines.checks import check_index, check_memory, estimate_memory, weight_files
from decoding.engines.formats import find_format
from decoding.engines.hub import HuggingFaceHub, Repository, is_hub_id
from decoding.engines.pair import load_pair, size_of
from decoding.engines.sources import HubSource
from decoding.engines.tokenizer import load_tokenizer, token_bytes
from decoding.errors import Cancelled, UserError
from decoding.records import pairs
from tests.tiny_models import make_model


class FakeHub:
    """Serves folders as repositories; ``fetched`` has (name, revision, file) of all that was fetched."""

    def __init__(self, cache: Path, folders: dict[str, Path]) -> None:
        self.cache, self.folders, self.fetched = cache, folders, []

    def look(self, name: str) -> Repository:
        if name not in self.folders:
            raise UserError(f"There is no model {name} on the Hub")
        files = {path.name: path.stat().st_size for path in self.folders[name].iterdir()}
        return Repository(name, "0123456789abcdef0123", files)

    def fetch(self, repository: Repository, file: str, on_bytes) -> Path:
        if repository.name not in self.folders:
            raise UserError("The Hub did not give it: no network.")
        self.fetched.append((repository.name, repository.revision, file))
        place = self.cache / repository.name / file
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(self.folders[repository.name] / file, place)
        on_bytes(place.stat().st_size)
        return place

    def fetched_weights(self) -> list[str]:
        return [name for name, _, file in self.fetched if file.endswith(".safetensors")]


@pytest.fixture
def hub(folders, tmp_path):
    return FakeHub(tmp_path / "hub", {f"org/{name}": folder for name, folder in folders.items()})


@pytest.fixture
def place(folders, tmp_path) -> Path:
    """A copy of the small model to change."""
    return Path(shutil.copytree(folders["small"], tmp_path / "changed"))


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


@pytest.mark.parametrize("swapped", ["ab", "~^"], ids=["in what is tried", "not in it"])
def test_other_tokens_are_refused_before_the_weights(hub, place, swapped):
    text = json.loads((place / "tokenizer.json").read_text())
    vocab = text["model"]["vocab"]
    one, other = swapped
    vocab[one], vocab[other] = vocab[other], vocab[one]
    (place / "tokenizer.json").write_text(json.dumps(text))
    hub.folders["org/other"] = place
    with pytest.raises(UserError, match="different tokenizers"):
        load_pair(target="org/big", draft="org/other", device="cpu", hub=hub)
    assert hub.fetched_weights() == []


def test_folders_work_as_well_also_where_the_draft_has_further_tokens(folders, tmp_path):
    draft = make_model(tmp_path / "other", words="aa bb")
    pair = load_pair(target=str(folders["big"]), draft=str(draft), dtype="float32", device="cpu")
    assert pair.draft().vocab_size == pair.target.vocab_size + 2
    assert pair.target.info.source == "big" and len(pair.target.info.fingerprint) == 16


@pytest.mark.parametrize(
    "change, words",
    [
        ({"auto_map": {"AutoModelForCausalLM": "evil.Model"}}, "code from its own repository, which is never run"),
        ({"model_type": None}, "has no model_type"),
        ({"is_encoder_decoder": True}, "is an encoder-decoder: choose a decoder-only model"),
        ({"model_type": "bert"}, "reads a text in both directions and continues none: choose a decoder-only model"),
        ({"num_attention_heads": 0}, "its config.json has num_attention_heads = 0"),
        ({"hidden_size": -32}, "its config.json has hidden_size = -32"),
        ({"num_hidden_layers": 10**30}, "its config.json has num_hidden_layers = 10000"),
        ({"num_key_value_heads": "many"}, "its config.json has num_key_value_heads = many"),
        ({"vocab_size": True}, "its config.json has vocab_size = True"),
        ({"text_config": "nothing"}, "its config.json has text_config = nothing"),
    ],
)
def test_bad_configs_are_refused_before_the_weights(hub, place, change, words):
    config = json.loads((place / "config.json").read_text()) | change
    (place / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v is not None}))
    assert_refused(hub, place, words)


def test_weights_that_a_repository_holds_twice_are_counted_and_fetched_once(hub, place):
    """As Mistral's repositories do."""
    shutil.copy(place / "model.safetensors", place / "consolidated.safetensors")
    size = (place / "model.safetensors").stat().st_size
    hub.folders["org/twice"] = place
    source = HubSource("org/twice", hub)
    assert source.size(lambda *_: None).weight_bytes == size_of(place).weight_bytes == size
    source.fetch(lambda *_: None)
    assert [file for *_, file in hub.fetched if "safetensors" in file] == ["model.safetensors"]
    parts = [f"model-0000{n}-of-00002.safetensors" for n in (1, 2)]
    assert weight_files(["consolidated.safetensors", *parts, "sub/model.safetensors"]) == parts
    assert weight_files(["other.safetensors", "config.json"]) == ["other.safetensors"]


def test_pickles_are_refused(hub, place):
    (place / "model.safetensors").rename(place / "pytorch_model.bin")
    assert_refused(hub, place, "no safetensors weights")


def assert_refused(hub: FakeHub, place: Path, words: str) -> None:
    """As a draft from the Hub and from its folder, before any weights were fetched."""
    hub.folders["org/changed"] = place
    for draft in ("org/changed", str(place)):
        with pytest.raises(UserError, match=words):
            load_pair(target="org/big", draft=draft, device="cpu", hub=hub)
    assert hub.fetched_weights() == []


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


class DeafHub(FakeHub):
    """Goes on whatever a report raises, as a library does that reports from a thread of its own."""

    def fetch(self, repository: Repository, file: str, on_bytes) -> Path:
        def report(n: int) -> None:
            with suppress(Cancelled):
                on_bytes(n)

        return super().fetch(repository, file, report)


def test_a_stop_that_the_library_does_not_hear_ends_the_download_after_the_file(hub, place):
    (place / "model.safetensors").rename(place / "model-00001-of-00002.safetensors")
    (place / "model-00002-of-00002.safetensors").write_bytes(b"...")
    deaf = DeafHub(hub.cache, {"org/changed": place})

    def stop(message: str, share: float | None) -> None:
        if share:
            raise Cancelled

    with pytest.raises(Cancelled):
        HubSource("org/changed", deaf).fetch(stop)
    assert len(deaf.fetched_weights()) == 1


ELSEWHERE = ("../elsewhere/model.safetensors", "/etc/model.safetensors", "pytorch_model.bin", ".safetensors", 5)


@pytest.mark.parametrize(
    "index, words",
    [
        *(({"weight_map": {"a": file}}, "only safetensors files in the same folder") for file in ELSEWHERE),
        ({"weight_map": {"a": "model-2.safetensors"}}, "model-2.safetensors, .* is missing"),
        ({"weight_map": ["model.safetensors"]}, "is not a list of weights"),
        ([], "is not a list of weights"),
    ],
)
def test_an_index_that_points_elsewhere_is_refused(folders, place, index, words):
    (place / "pytorch_model.bin").write_bytes(b"a pickle, which must never be read")
    (place / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(UserError, match=words):
        load_pair(target=str(folders["big"]), draft=str(place), device="cpu")


def test_an_index_of_files_in_the_folder_is_followed(place):
    check_index(place)
    (place / "model.safetensors.index.json").write_text('{"weight_map": {"a": "model.safetensors"}}')
    check_index(place)


@pytest.mark.parametrize("offline", [False, True])
def test_the_real_library_without_a_hub_is_a_sentence(monkeypatch, offline):
    """Nothing listens at the Hub's address, or the library was told to ask nobody."""
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)
    with pytest.raises(UserError, match="network"):
        if offline:
            HuggingFaceHub().fetch(Repository("org/model", "0" * 40, {}), "config.json", print)
        else:
            HuggingFaceHub().look("org/model")


@pytest.mark.parametrize("number", [EACCES, ENOSPC, EROFS])
def test_a_cache_that_cannot_be_written_is_not_blamed_on_the_network(monkeypatch, number):
    def fail(*arguments, **options):
        raise OSError(number, "as the system says")

    monkeypatch.setattr("huggingface_hub.hf_hub_download", fail)
    with pytest.raises(UserError, match=r"kept on this machine \(as the system says\): free .* HF_HOME"):
        HuggingFaceHub().fetch(Repository("org/model", "0" * 40, {}), "config.json", print)


@pytest.mark.parametrize(
    "models, words",
    [
        ({"target": "org/none", "draft": "org/small"}, "no model org/none"),
        ({"target": "org/big"}, "both a target and a draft"),
    ],
)
def test_unknown_models_and_folders(hub, models, words):
    with pytest.raises(UserError, match=words):
        load_pair(**models, device="cpu", hub=hub)


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
    weights, cache = 16_060_000_000, 2 * 32 * 8 * 128 * 8192 * 2
    on_gpu = estimate_memory(config, weights, find_format("bfloat16"), "cuda", 8192)
    assert on_gpu == int(1.1 * (weights + cache))
    on_cpu = estimate_memory(config, weights, find_format("float32"), "cpu", 8192)
    assert on_cpu == int(1.1 * (weights + 2 * weights + 2 * cache))  # as stored, and as it runs
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
    with pytest.raises(UserError, match="There is no pair nonsense. Choose one of these: .*smollm2"):
        pairs.find_pair("nonsense")


def test_hub_ids(tmp_path, monkeypatch):
    assert is_hub_id("Qwen/Qwen2.5-7B")
    others = ("models/x/y", "./a/b", "name", "../a", "a/..", "https://x/y", "a/b c", "a/b\n", "a/ü")
    assert not any(map(is_hub_id, others))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "owner" / "name").mkdir(parents=True)
    assert not is_hub_id("owner/name")  # it is here: nothing is downloaded


def test_tokens_that_are_not_whole_characters_show_their_bytes(folders):
    tokenizer = load_tokenizer(folders["small"])
    ids = tokenizer.encode("é a")
    assert tokenizer.decode(ids) == "é a" and tokenizer.eos_ids == {0}
    first, second, space, letter = map(tokenizer.token_text, ids)
    assert (first.bytes, second.bytes) == ("c3", "a9") and bytes.fromhex(first.bytes + second.bytes).decode() == "é"
    assert (space.text, letter.text, letter.bytes) == (" ", "a", None)
    assert tokenizer.token_text(0).text == "<s>"


@pytest.mark.parametrize("decoder, raw", [("ByteFallback", b"\xe9"), ("ByteLevel", b"<0xE9>")])
def test_a_byte_of_sentencepiece_is_letters_elsewhere(decoder, raw):
    backend = SimpleNamespace(decoder=decoder)
    written = SimpleNamespace(convert_ids_to_tokens={1: "<0xE9>", 2: "<0xZZ>"}.get, backend_tokenizer=backend)
    assert (token_bytes(written, 1), token_bytes(written, 2)) == (raw, b"<0xZZ>")
