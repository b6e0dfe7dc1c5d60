"""Models that are broken, do not fit or cannot be rewound; GPUs that run out of memory or fault: the messages."""

from __future__ import annotations

import json
import shutil
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedConfig

from decoding.backends.jobs import Jobs
from decoding.engines import checks, loading, sources
from decoding.engines.base import check_prompt
from decoding.engines.checks import free_memory
from decoding.engines.cuda_graphs import GraphRunner
from decoding.engines.formats import find_format
from decoding.engines.hub import Repository
from decoding.engines.loading import choose_device, describe_model, load_hf_model, read_config
from decoding.engines.tokenizer import load_tokenizer
from decoding.engines.transformers_engine import TransformersModel, refusal
from decoding.errors import UserError
from decoding.records import pairs
from decoding.records.events import guarded
from tests.fake_cuda import fake_cuda
from tests.fakes import small_request
from tests.tiny_models import make_model


@pytest.fixture(scope="module")
def shipped(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("models") / "small")


@pytest.fixture
def folder(shipped, tmp_path):
    """A copy of a model, for tests that break it."""
    return shutil.copytree(shipped, tmp_path / "small")


@pytest.mark.parametrize("kept", [0, 5000])
def test_weights_that_are_cut_short(folder, kept):
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:kept])
    with pytest.raises(UserError, match="weights of small are damaged or cut short .*: delete and download"):
        load_hf_model(folder, torch.float32)


def rewritten(folder, change):
    """The folder with ``change(weights)`` made to its weights by name."""
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder


QUERY = "model.layers.0.self_attn.q_proj.weight"


@pytest.mark.parametrize(
    "change, words",
    [
        (lambda weights: weights.pop(QUERY), f"are missing from its files .{QUERY}."),
        (lambda weights: weights.update({QUERY: weights[QUERY][:8].clone()}), "have other sizes than its config.json"),
        (lambda weights: weights.update({QUERY: weights[QUERY].int()}), "are stored as whole numbers"),
    ],
)
def test_no_weight_is_made_up(folder, change, words):
    with pytest.raises(UserError, match=f"small is an incomplete model: weights {words}"):
        load_hf_model(rewritten(folder, change), torch.float32)


def test_weights_that_give_no_numbers(folder):
    rewritten(folder, lambda weights: weights[QUERY].fill_(float("nan")))
    with pytest.raises(UserError, match="small gives results that are not numbers .NaN or infinite"):
        loading.load_model(folder, name="small", source="test", formats=[find_format("float32")], threads=1)


def test_a_chat_template_that_fails(shipped):
    tokenizer = load_tokenizer(shipped)
    tokenizer._hf.chat_template = "{{ messages[0].nothing.at.all }}"
    with pytest.raises(UserError, match="chat template (is broken|does not accept)"):
        tokenizer.chat("hello")
    for template, why in (
        ("{{ 10 ** 'x' }}", "TypeError"),
        (f"{{{{ {'(' * 20_000}1{')' * 20_000} }}}}", "RecursionError"),
        (5, "TypeError"),
        ("{% for _ in range(99999) %}{{ messages[0]['content'] }}{% endfor %}", "it writes 499,995 characters"),
    ):
        tokenizer._hf.chat_template = template
        with pytest.raises(UserError, match=f"chat template is broken .{why}.*: let it continue"):
            tokenizer.chat("hello")


def test_files_that_are_broken_or_missing(folder):
    (folder / "generation_config.json").write_text("{")
    with pytest.raises(UserError, match="broken model: its generation_config.json is not JSON"):
        load_tokenizer(folder)
    (folder / "generation_config.json").write_text("[]")
    assert load_tokenizer(folder).eos_ids == {0}
    for content in ("{", "{}", "[]", "5"):
        (folder / "tokenizer.json").write_text(content)
        with pytest.raises(UserError, match="no tokenizer that can be loaded .*: choose another"):
            load_tokenizer(folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(UserError, match="broken model: its config.json is not JSON"):
        read_config(folder)
    (folder / "config.json").write_text("[" * 100_000)
    with pytest.raises(UserError, match="broken model: its config.json is not JSON"):
        read_config(folder)
    (folder / "config.json").unlink()
    with pytest.raises(UserError, match="has no model: its config.json cannot be read"):
        read_config(folder)


def test_a_type_that_transformers_does_not_know(folder):
    config = json.loads((folder / "config.json").read_text()) | {"model_type": "newest"}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match="small could not be loaded .*: choose another model"):
        load_hf_model(folder, torch.float32)


@pytest.mark.parametrize("broken, words", [(None, "it has no config.json"), ("{", "its config.json is not JSON")])
def test_a_repository_without_a_readable_config(tmp_path, broken, words):
    files = {"tokenizer.json": 2, "model.safetensors": 9} | ({"config.json": 1} if broken else {})

    def fetch(repository, file, on_bytes):
        (tmp_path / file).write_text(broken or "{}")
        return tmp_path / file

    hub = SimpleNamespace(look=lambda name: Repository(name, "main", files), fetch=fetch)
    with pytest.raises(UserError, match=f"org/model .*{words}"):
        sources.HubSource("org/model", hub).inspect(lambda message, fraction: None)


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("DefaultCPUAllocator: can't allocate memory")]
)
def test_memory_that_ends_while_a_pair_loads_is_reported_and_the_next_pair_loads(folder, monkeypatch, error):
    import transformers

    jobs = Jobs("cpu")
    request = small_request(target=str(folder), draft=str(folder), lanes=["static:1"], max_new_tokens=2, repeats=1)
    with monkeypatch.context() as full:

        def fail(*args, **kwargs):
            raise error

        full.setattr(transformers.AutoModelForCausalLM, "from_pretrained", fail)
        events = load(jobs, request)
    assert events[-1][0] == "failed" and "ran out of memory: choose a smaller pair" in events[-1][1]["message"]
    assert load(jobs, request)[-1][0] == "progress" and jobs._pair is not None


def test_stop_while_a_pair_loads(shipped):
    jobs, request = Jobs("cpu"), small_request(target=str(shipped), draft=str(shipped))
    asked = iter([False, True])
    events = list(guarded(lambda: jobs._load(request, lambda: next(asked, True))))
    assert {kind for kind, _ in events[:-1]} == {"progress"} and events[-1][0] == "cancelled" and jobs._pair is None


def load(jobs, request):
    return list(guarded(lambda: jobs._load(request, lambda: False)))


def test_a_gpu_that_faulted_is_lost_and_one_that_is_well_is_not(monkeypatch):
    with fake_cuda(monkeypatch) as cuda:
        assert not Jobs().has_lost_device()  # it has not been used yet
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
        assert not Jobs().has_lost_device()
        cuda.lost = True
        assert Jobs().has_lost_device() and not Jobs("cpu").has_lost_device()


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory. Tried"), RuntimeError()])
def test_recordings_that_fail_in_whichever_way_leave_plain_calls(monkeypatch, error):
    """Memory runs out in the warm-up, or a kernel cannot be recorded: once, and not again for each new shape."""
    calls = []

    def work():
        calls.append(torch.ones(2))
        if len(calls) == 1:
            raise error
        return calls[-1]

    with fake_cuda(monkeypatch) as cuda:
        runner = GraphRunner(torch.device("cpu"))
        runner.records = True
        assert runner.run("key", work) is calls[1]
        assert runner.run("other", work) is calls[2] and len(calls) == 3
        assert (str(error) or "RuntimeError") in runner.note and "eagerly" in runner.note
        assert cuda.current is cuda.default and cuda.graphs == []


def test_devices_that_are_not_there(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(loading, "gpu_count", lambda: 2)
    assert choose_device("auto") == "cuda" and choose_device("cuda:1") == "cuda:1"
    with pytest.raises(UserError, match="no device cuda:2 here: the last one is cuda:1"):
        choose_device("cuda:2")


def test_free_memory_counts_what_torch_only_keeps(monkeypatch):
    given_back = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: given_back.append(True))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (40 if given_back else 10, 100))
    assert free_memory("cuda") == 40


def test_free_memory_where_the_system_does_not_say(monkeypatch):
    def refuse(*args, **kwargs):
        raise OSError("no such file")

    assert free_memory("cpu") > 2**20
    monkeypatch.setattr(checks, "open", refuse, raising=False)
    monkeypatch.setattr(checks.os, "sysconf", lambda name: 1000)
    assert free_memory("cpu") == 1_000_000
    monkeypatch.setattr(checks.os, "sysconf", refuse)
    assert free_memory("cpu") is None


@pytest.mark.parametrize(
    "config, words",
    [
        (dict(is_encoder_decoder=True), "is an encoder-decoder: choose"),
        (dict(layer_types=["full_attention", "linear_attention"]), "mixes other layers .*: choose"),
        (dict(layer_types=["full_attention", "sliding_attention"]), "sliding-window attention here: choose"),
    ],
)
def test_models_that_cannot_be_rewound(config, words):
    with pytest.raises(UserError, match=f"type strange .*{words}"):
        TransformersModel(SimpleNamespace(config=_config("strange", **config)), None)
    assert refusal(SimpleNamespace(config=_config("fine"))) is None


def _config(model_type: str, **attributes) -> PreTrainedConfig:
    config = PreTrainedConfig()
    for name, value in {"model_type": model_type, **attributes}.items():
        setattr(config, name, value)
    return config


def test_a_model_that_ignores_its_cache_is_refused(shipped):
    hf_model = load_hf_model(shipped, torch.float32)
    model = TransformersModel(hf_model, describe_model(hf_model, "test", "test", "none"))
    forgetful = hf_model.forward
    model._model = lambda **inputs: forgetful(**inputs | {"past_key_values": None, "use_cache": False})
    model._model.config = hf_model.config
    with pytest.raises(UserError, match="does not keep its past in the cache .*: choose another"):
        model.prefill([1, 2])


def test_a_prompt_without_tokens():
    with pytest.raises(UserError, match="gives no tokens: type a question"):
        check_prompt([], 10)


@pytest.mark.parametrize(
    "text, words",
    [
        ("[]", "does not contain a JSON object"),
        ('{"target": "t"}', "does not describe a pair: at drafts: Field required"),
        ('{"target": "t", "drafts": [], "default_draft": "d"}', "does not describe a pair"),
    ],
)
def test_broken_descriptions_of_pairs(tmp_path, text, words):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "pair.json").write_text(text)
    with pytest.raises(UserError, match=f"mine/pair.json {words}"):
        pairs.read_pair(tmp_path / "mine")


def test_where_no_pair_is_installed(tmp_path):
    with pytest.raises(UserError, match="No pair is installed: name a target and a draft"):
        pairs.find_pair("", tmp_path)
    for place in ("./nowhere", "~nobody-of-this-name/x", "x" * 300, "a\x00b"):
        with pytest.raises(UserError, match="There is no folder"):
            sources.local_folder(place)
        with pytest.raises(UserError, match="There is no folder"):
            sources.make_source(f"{place}.gguf", "", None)
