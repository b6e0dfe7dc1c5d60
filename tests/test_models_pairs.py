"""pair.json and the pairs command; chat prompts, the real Hub's errors, devices, pairs too large for one GPU."""

import json
import shutil
from dataclasses import astuple, replace
from pathlib import Path
from types import SimpleNamespace

import httpx
import huggingface_hub
import pytest
import torch
from huggingface_hub import errors
from huggingface_hub.utils._xet_progress_reporting import XetDownloadProgressReporter

from decoding.backends import base
from decoding.engines import loading, sources
from decoding.engines import pair as pair_module
from decoding.engines.checks import estimate_memory
from decoding.engines.formats import find_format
from decoding.engines.hub import HuggingFaceHub, Repository, is_hub_id
from decoding.engines.loading import LocalModel
from decoding.engines.pair import check_fit, load_pair, size_of
from decoding.engines.slim import SCREEN_FILE
from decoding.errors import UserError
from decoding.records import pairs
from decoding.records.pairs import DraftKind, read_pair
from decoding.records.weights import fingerprint
from tests.commands import command


def test_the_pairs_command_lists_presets_and_why_some_do_not_load(monkeypatch):
    monkeypatch.setattr(base, "has_gpu", lambda: False)
    monkeypatch.setattr(base, "memory_bytes", lambda: 23 * 10**9)
    listed = {pair["name"]: pair for pair in json.loads(command("pairs", "--json").out)}
    assert listed["smollm2"]["loadable"] and "Gated" in listed["llama-3.1-8b"]["reason"]
    assert not listed["vicuna-13b"]["loadable"] and not listed["llama-2-70b"]["loadable"]
    assert listed["llama-2-70b"]["reason"].startswith("Its target's weights take 138 GB, and this machine has 23 GB")
    assert not any(str(pairs.MODELS) in json.dumps(pair) for pair in listed.values())
    assert "smollm2" in command("pairs").out


def test_a_slim_draft_is_made_whole_for_each_target_and_screen_apart(folders, monkeypatch, tmp_path):
    monkeypatch.setattr(sources, "materialise", lambda draft, target, folder: folder)
    models = (LocalModel(folders["big"], "big", "big", mark) for mark in ("one", "other"))
    targets = [SimpleNamespace(fetch=lambda report, model=model: model) for model in models]
    small = tmp_path / "small"
    shutil.copytree(folders["small"], small)

    def made() -> set[Path]:
        return {sources.SlimSource(small, "small", target).fetch(print).folder for target in targets}

    before = made()
    (small / SCREEN_FILE).parent.mkdir()
    (small / SCREEN_FILE).write_bytes(b"a new screen, for the same weights")
    assert len(before) == len(made()) == 2 and not before & made()


def answer(status: int) -> httpx.Response:
    return httpx.Response(status, request=httpx.Request("GET", "https://hub.invalid/api"))


@pytest.mark.parametrize(
    "error, words",
    [
        (errors.GatedRepoError("no", response=answer(403)), "is gated: accept its licence"),
        (errors.RepositoryNotFoundError("no", response=answer(404)), "There is no model a/b"),
        (errors.LocalEntryNotFoundError("no"), "the Hub cannot be reached"),
        (errors.HfHubHTTPError("no", response=answer(500)), "a/b could not be loaded from the Hub: HfHubHTTPError"),
        (errors.HTTPError("no"), "a/b could not be loaded from the Hub: HTTPError"),
        (RuntimeError("Data processing error"), "a/b could not be loaded from the Hub: RuntimeError"),  # of Xet
    ],
)
def test_errors_of_the_hub_become_sentences(monkeypatch, error, words):
    def fail(*args, **kwargs):
        raise error

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", fail)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", fail)
    with pytest.raises(UserError, match=words):
        HuggingFaceHub().look("a/b")
    with pytest.raises(UserError, match=words):
        HuggingFaceHub().fetch(Repository("a/b", "main", {}), "config.json", lambda n: None)


def plain_download(file, tqdm_class):
    with tqdm_class(total=30, initial=0, unit="B", desc=file, name="huggingface_hub.x") as bar:
        bar.update(10)
        bar.update(20)


def xet_download(file, tqdm_class):
    """It reports those that come over the network, and then the same ones, as they are written."""
    about = {"reconstruction_desc": file, "total": 30, "log_level": 20, "name": "huggingface_hub.xet_get"}
    with XetDownloadProgressReporter(**about, tqdm_class=tqdm_class) as reporter:
        for come, written in ((20, 0), (30, 10), (30, 30)):
            done = {"total_bytes_completed": written, "total_transfer_bytes_completed": come}
            rates = dict.fromkeys(("total_bytes_completion_rate", "total_transfer_bytes_completion_rate"))
            reporter.update_progress(SimpleNamespace(total_bytes=30, **done, **rates))


@pytest.mark.parametrize("download", [plain_download, xet_download])
def test_bytes_of_a_download_are_counted_once(monkeypatch, tmp_path, download):
    def fetch(name, file, *, revision, tqdm_class):
        download(file, tqdm_class)
        return str(tmp_path / file)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", fetch)
    counted: list[int] = []
    path = HuggingFaceHub().fetch(Repository("a/b", "main", {}), "x.safetensors", counted.append)
    assert path == tmp_path / "x.safetensors" and counted == [10, 20]


@pytest.mark.parametrize("name", ["a/b--c", "a/b..c", "a/b.git", "a/b."])
def test_a_name_that_the_hub_does_not_allow_is_none_of_its_models(name):
    """The library refuses it before it asks."""
    assert is_hub_id(name)
    with pytest.raises(UserError, match=f"There is no model {name} on the Hub"):
        HuggingFaceHub().look(name)


@pytest.mark.parametrize(
    "gpus, free, spreads", [(1, 1.1, False), (2, 1.1, False), (2, 0.6, True), (1, 0.01, None), (2, 0.01, None)]
)
def test_a_target_too_large_for_one_gpu_goes_over_several_or_is_refused(folders, monkeypatch, gpus, free, spreads):
    """``free`` memory on each GPU, as a share of what the pair needs."""
    sizes = list(map(size_of, folders.values()))
    need = sum(estimate_memory(*astuple(size), find_format("bfloat16"), "cuda", 8192) for size in sizes)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(pair_module, "free_memory", lambda device: int(free * need))
    if spreads is None:
        with pytest.raises(UserError, match="of memory on the GPU"):
            check_fit("big + small", sizes, "bfloat16", "cuda")
    else:
        assert check_fit("big + small", sizes, "bfloat16", "cuda") is spreads


def test_spreading_needs_accelerate(folders, monkeypatch):
    monkeypatch.setattr(loading.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="install accelerate"):
        loading.load_hf_model(folders["big"], torch.float32, spread=True)


@pytest.mark.parametrize(
    "options, words",
    [
        ({"device": "cuda"}, "There is no CUDA device here"),
        *(({"device": device}, "must be auto, cpu, cuda") for device in ("tpu", "cuda:01", "cuda:1,2", "cuda:\u0661")),
        ({"device": "cpu", "dtype": "float64"}, "number format must be auto or one of .*, not float64"),
    ],
)
def test_devices_and_number_formats_that_are_not_there(folders, options, words):
    with pytest.raises(UserError, match=words):
        load_pair(target=str(folders["big"]), draft=str(folders["small"]), **options)


def test_a_draft_that_is_not_there(folders):
    pair = load_pair(target=str(folders["big"]), draft=str(folders["small"]), device="cpu", dtype="bfloat16")
    assert pair.target.info.dtype == "bfloat16" and list(pair.loaded_drafts) == ["small"]
    with pytest.raises(UserError, match="has no draft tiny. It has: small, ngram"):
        pair.draft("tiny")


def test_folders_may_be_named_from_the_home_folder(folders, monkeypatch):
    """Those of the policies, too."""
    monkeypatch.setenv("HOME", str(folders["big"].parent))
    pair = load_pair(target="~/big", draft="~/small", device="cpu", dtype="float32")
    assert pair.target_folder == folders["big"] and pair.draft_folders == {"small": folders["small"]}


def test_embedded_drafts_run_as_their_pair_says_unless_a_dtype_is_asked_for(folders, monkeypatch):
    target, drafts = str(folders["big"]), dict.fromkeys("ab", str(folders["small"]))
    described = pairs.PairDescription("mini", "Mini", "embedded", target, drafts, "a", draft_weights={"a": "int8"})
    monkeypatch.setattr(pair_module, "find_pair", lambda name: described)
    monkeypatch.setattr(loading, "fastest", lambda formats, *rest: formats[0])
    pair = load_pair("mini", device="cpu")
    assert (pair.draft("a").info.dtype, pair.draft("b").info.dtype) == ("int8", "float32")
    assert pair.draft("a").info.source == "mini/small"
    assert load_pair("mini", device="cpu", dtype="bfloat16").draft("a").info.dtype == "bfloat16"
    for kind, layers, why in (
        ("eagle-9", (), "is of the kind eagle-9, which"),
        ("feature", (99,), "reads layer 99"),
    ):
        described.draft_kinds = {"b": pairs.DraftKind(kind, layers)}
        with pytest.raises(UserError, match=f"The draft b {why}"):
            load_pair("mini", device="cpu").draft("b")
    described.chat = True
    with pytest.raises(UserError, match='The pair.json of mini says "chat": true, and its target has no chat template'):
        load_pair("mini", device="cpu")


def test_the_small_pairs_cards_belong_to_the_shipped_weights():
    pair = next(pair for pair in pairs.embedded_pairs() if pair.name == "codepair-15M")
    for folder in (pair.target, *pair.drafts.values()):
        assert fingerprint(Path(folder)) in Path(folder, "README.md").read_text()


def test_shipped_shards_keep_their_limits():
    """The Hub and its Spaces take files of at most 10 MB without git-lfs."""
    sizes = [file.stat().st_size for file in pairs.MODELS.rglob("*.safetensors")]
    assert sizes and max(sizes) < 10_000_000


# -- pair.json


def describe(folder: Path, **fields) -> Path:
    """``folder`` with the description of a pair that has one draft; ``fields`` are added or replaced."""
    folder.mkdir(parents=True, exist_ok=True)
    title, drafts = f"The {folder.name} pair", {"a": "drafts/a"}
    about = {"title": title, "target": "target", "drafts": drafts, "default_draft": "a", "chat": True}
    (folder / "pair.json").write_text(json.dumps(about | fields))
    return folder


@pytest.fixture
def models(tmp_path, monkeypatch) -> Path:
    """A folder in place of models/."""
    monkeypatch.setattr(pairs, "MODELS", tmp_path)
    monkeypatch.setattr(pairs, "_described", pairs._described.__wrapped__)  # remembers no earlier folder
    return tmp_path


def test_drafts_have_kinds_and_number_formats_and_a_target_may_read_pictures(tmp_path):
    feature = {"folder": "drafts/b", "kind": "feature", "layers": [2, 15, -1]}
    drafts = {"a": "drafts/a", "b": feature, "c": {"folder": "drafts/c", "sees": True}, "d": {"folder": "drafts/d"}}
    pair = read_pair(describe(tmp_path, drafts=drafts, draft_weights={"a": "int4"}, pictures="pictures"))
    assert pair.drafts == {name: str(tmp_path / "drafts" / name) for name in "abcd"}
    assert pair.draft_kinds == {"b": DraftKind("feature", (2, 15, -1)), "c": DraftKind(sees=True)}
    assert replace(pair, default_draft="b").text_draft == "a", "which other engines know"
    assert pair.kind_of("a") == DraftKind() and [pair.weights_of(name) for name in "ab"] == ["int4", "auto"]
    assert pair.pictures == str(tmp_path / "pictures") and read_pair(describe(tmp_path)).pictures == ""


def test_a_pair_has_the_name_in_its_description(models):
    describe(models / "folder", name="chatty", about="Talks.")
    assert pairs.embedded_pairs()[0].name == pairs.find_pair().name == "chatty"
    assert pairs.is_asked(None, "chatty") and pairs.about_pair("chatty") == "Talks."
    assert not pairs.is_asked(None, "folder")


NO_PAIR = "mine/pair.json does not describe a pair"


@pytest.mark.parametrize(
    "broken, words",
    [
        ("{", "Cannot read mine/pair.json"),
        ("[]", "mine/pair.json does not contain a JSON object"),
        ('{"target": "t"}', f"{NO_PAIR}: at drafts: Field required"),
        ({"drafts": []}, NO_PAIR),
        ({"drafts": {"a": {"kind": "feature"}}}, f"{NO_PAIR}: at drafts, a, folder: Field required"),
        ({"drafts": {"a": {"folder": "a", "layers": ["2"]}}}, f"{NO_PAIR}: at drafts, a, layers, no. 1: Input"),
        ({"drafts": {"a": {"folder": "a", "kind": 3}}}, f"{NO_PAIR}: at drafts, a, kind: Input"),
        ({"default_draft": "two"}, "two is not among its drafts"),
        ({"draft_weights": {"two": "int8"}}, f"{NO_PAIR}: two is not among"),
        ({"draft_weights": {"a": "int2"}}, f"{NO_PAIR}: at draft_weights"),
        ({"draft_weights": "int2"}, f"{NO_PAIR}: at draft_weights"),
        ({"draft_weights": ["a"]}, f"{NO_PAIR}: at draft_weights"),
        ({"draft_weights": True}, f"{NO_PAIR}: at draft_weights"),
        ({"name": "../x"}, f"{NO_PAIR}: at name"),
        ({"chatt": True}, f"{NO_PAIR}: at chatt: Extra"),
        ({"drafts": {"a": {"folder": "a", "sess": True}}}, f"{NO_PAIR}: at drafts, a, sess: Extra"),
        ({"drafts": {"a": {"folder": "a", "layers": [2]}}}, "a has layers of the target to read, and no kind"),
        ({"drafts": {"a": "a", "x,y": "b"}}, "'x,y' cannot be the name of a draft"),
        ({"drafts": {"a": "a", "ngram": "b"}}, "ngram is the name of a draft that every pair has"),
    ],
)
def test_a_broken_description_is_a_sentence(tmp_path, broken, words):
    folder = describe(tmp_path / "mine", **(broken if isinstance(broken, dict) else {}))
    if isinstance(broken, str):
        (folder / "pair.json").write_text(broken)
    with pytest.raises(UserError, match=words):
        read_pair(folder)


def test_of_two_pairs_of_one_name_the_one_in_the_folder_of_that_name_serves(models):
    describe(models / "copied", name="small", chat=False)
    describe(models / "small")
    assert pairs.is_asked(None, "small")
    serving, other = pairs.embedded_pairs()
    assert (serving.name, serving.target) == ("small", str(models / "small" / "target"))
    assert (other.name, other.loadable) == ("copied", False)
    assert other.reason == "copied/pair.json has the name of the pair in small: give it another one."


def test_a_broken_description_costs_its_own_pair_alone(models):
    describe(models / "small")
    (describe(models / "broken") / "pair.json").write_text("{")
    (models / "index.json").write_text('{"default": "broken"}')
    serving, broken = pairs.embedded_pairs()
    assert serving.name == "small" and serving.note.startswith("Cannot read broken/pair.json")
    assert not broken.loadable and pairs.find_pair().name == "small"
    with pytest.raises(UserError, match="The pair broken cannot be loaded: Cannot read"):
        pairs.find_pair("broken")
    assert pairs.is_asked(None, "small") and not pairs.is_asked(None, "broken")


def test_a_draft_s_folder_of_any_name_makes_one_that_lanes_can_name(tmp_path, monkeypatch):
    (tmp_path / "my pair").mkdir()
    monkeypatch.chdir(tmp_path / "my pair")
    assert [pairs.name_pair("t", draft).default_draft for draft in ("a/b", "../my draft", ".", "..", "é")] == [
        "b",
        "my_draft",
        "my_pair",
        "draft",
        "draft",
    ]
    assert pairs.name_pair(".", "a").name == "my pair + a"


def test_where_no_pair_is_installed(models):
    with pytest.raises(UserError, match="No pair is installed: name a target and a draft"):
        pairs.find_pair()


@pytest.mark.parametrize("place", ["./nowhere", "~nobody-of-this-name/x", "x" * 300, "a\x00b"])
def test_a_folder_that_is_not_there(place):
    with pytest.raises(UserError, match="There is no folder"):
        sources.local_folder(place)
    with pytest.raises(UserError, match="There is no folder"):
        sources.make_source(f"{place}.gguf", "", None)
