"""Models that are broken, do not fit or cannot be rewound; GPUs that run out of memory or fault: the messages."""

import json
import shutil
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import MambaConfig, MistralConfig, PreTrainedConfig

from decoding.backends.jobs import Jobs
from decoding.engines import checks, loading, sources
from decoding.engines.checks import free_memory
from decoding.engines.cuda_graphs import GraphRunner
from decoding.engines.formats import find_format
from decoding.engines.loading import choose_device, describe_model, is_lean, load_hf_model, read_config
from decoding.engines.pair import load_pair
from decoding.engines.tokenizer import load_tokenizer
from decoding.engines.transformers_engine import TransformersModel, check_rewindable
from decoding.errors import UserError
from decoding.records import machine
from decoding.records.events import guarded
from decoding.records.machine import memory_bytes
from tests.fakes import small_request
from tests.lean_models import lean_config, random_model
from tests.test_models_hub import FakeHub


@pytest.fixture
def folder(folders, tmp_path):
    """A copy of a model, for tests that break it."""
    return shutil.copytree(folders["small"], tmp_path / "small")


@pytest.mark.parametrize("kept", [0, 5000])
def test_weights_that_are_cut_short(folder, kept):
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:kept])
    with pytest.raises(UserError, match="weights of small are damaged or cut short .*: delete and download"):
        load_hf_model(folder, torch.float32)


QUERY = "model.layers.0.self_attn.q_proj.weight"
INCOMPLETE = "small is an incomplete model: weights"


@pytest.mark.parametrize(
    "change, words",
    [
        (lambda query: {}, f"{INCOMPLETE} are missing from its files .{QUERY}."),
        (lambda query: {QUERY: query[:8].clone()}, f"{INCOMPLETE} have other sizes than its config.json"),
        (lambda query: {QUERY: query.int()}, f"{INCOMPLETE} are stored as whole numbers"),
        (lambda query: {QUERY: query * torch.nan}, "small gives results that are not numbers .NaN or infinite"),
    ],
)
def test_no_weight_is_made_up_and_each_must_give_numbers(folder, change, words):
    weights = load_file(folder / "model.safetensors")
    weights |= change(weights.pop(QUERY))
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    place = loading.LocalModel(folder, "small", "test")
    with pytest.raises(UserError, match=words):
        loading.load_model(place, "small", [find_format("float32")], threads=1)


def test_a_head_of_tokens_that_the_model_does_not_have(folder):
    (folder / "head_ids.json").write_text("[5, 1000]")
    with pytest.raises(UserError, match="small proposes tokens beyond its vocabulary of 257: fetch the draft again"):
        loading.load_model(loading.LocalModel(folder, "small", "test"), "small", [find_format("float32")], threads=1)


@pytest.mark.parametrize(
    "template, words",
    [
        ("{{ messages[0].nothing.at.all }}", "(is broken|does not accept)"),
        ("{{ 10 ** 'x' }}", "is broken .TypeError.*: let it continue"),
        (f"{{{{ {'(' * 20_000}1{')' * 20_000} }}}}", "is broken .RecursionError.*: let it continue"),
        (5, "is broken .TypeError.*: let it continue"),
        ("{% for _ in range(99999) %}{{ messages[0]['content'] }}{% endfor %}", "it writes 499,995 characters"),
    ],
    ids=["nothing", "power", "deep", "number", "long"],
)
def test_a_chat_template_that_fails(folders, template, words):
    tokenizer = load_tokenizer(folders["small"])
    tokenizer._hf.chat_template = template
    with pytest.raises(UserError, match=f"chat template .*{words}"):
        tokenizer.chat("hello")


def test_a_template_that_takes_no_pictures(folders):
    deaf = SimpleNamespace(apply_chat_template=lambda messages, **options: "the same, whatever is asked")
    with pytest.raises(UserError, match="takes no pictures: leave the picture out"):
        load_tokenizer(folders["small"]).picture_message(deaf)


NO_TOKENIZER = "no tokenizer that can be loaded .*: choose another"


@pytest.mark.parametrize(
    "read, file, content, words",
    [
        (load_tokenizer, "generation_config.json", "{", "broken model: its generation_config.json is not JSON"),
        (load_tokenizer, "tokenizer.json", "{", NO_TOKENIZER),
        (load_tokenizer, "tokenizer.json", "{}", NO_TOKENIZER),
        (load_tokenizer, "tokenizer.json", "[]", NO_TOKENIZER),
        (load_tokenizer, "tokenizer.json", "5", NO_TOKENIZER),
        (load_tokenizer, "tokenizer_config.json", '{"model_max_length": []}', NO_TOKENIZER),
        (read_config, "config.json", "{", "broken model: its config.json is not JSON"),
        (read_config, "config.json", "[" * 100_000, "broken model: its config.json is not JSON"),
        (read_config, "config.json", None, "has no model: its config.json cannot be read"),
    ],
)
def test_files_that_are_broken_or_missing(folder, read, file, content, words):
    (folder / file).unlink(missing_ok=True)
    if content:
        (folder / file).write_text(content)
    with pytest.raises(UserError, match=words):
        read(folder)


@pytest.mark.parametrize("content", ["[]", '{"eos_token_id": {}}', '{"eos_token_id": [[1], "</s>", -1]}'])
def test_settings_of_generate_that_name_no_token_say_nothing(folder, content):
    (folder / "generation_config.json").write_text(content)
    assert load_tokenizer(folder).eos_ids == {0}


def test_an_end_of_text_that_the_target_cannot_write_says_nothing(folder, folders):
    (folder / "generation_config.json").write_text('{"eos_token_id": [0, 300000]}')
    assert load_pair(target=str(folder), draft=str(folders["small"])).tokenizer.eos_ids == {0}


@pytest.mark.parametrize("change", [{"model_type": "newest"}, {"rms_norm_eps": "small"}, {"rope_parameters": 5}])
def test_what_transformers_does_not_understand(folder, change):
    config = json.loads((folder / "config.json").read_text()) | change
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match="small could not be loaded .*: choose another model"):
        load_hf_model(folder, torch.float32)


@pytest.mark.parametrize("broken, words", [(None, "it has no config.json"), ("{", "its config.json is not JSON")])
def test_a_repository_without_a_readable_config(tmp_path, broken, words):
    (tmp_path / "model").mkdir()
    for file, text in {"tokenizer.json": "{}", "model.safetensors": "", "config.json": broken}.items():
        if text is not None:
            (tmp_path / "model" / file).write_text(text)
    hub = FakeHub(tmp_path / "hub", {"org/model": tmp_path / "model"})
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
        events = list(guarded(jobs._load(request, lambda: False)))
    assert events[-1][0] == "failed" and "ran out of memory: choose a smaller pair" in events[-1][1]["message"]
    assert {kind for kind, _ in jobs._load(request, lambda: False)} == {"progress"} and jobs._known is not None


def test_stop_while_a_pair_loads(folders):
    jobs, request = Jobs("cpu"), small_request(target=str(folders["small"]), draft=str(folders["small"]))
    asked = iter([False, True])
    events = list(guarded(jobs._load(request, lambda: next(asked, True))))
    assert {kind for kind, _ in events[:-1]} == {"progress"} and events[-1][0] == "cancelled" and jobs._known is None


def test_another_number_format_is_loaded_anew(folders):
    jobs, request = Jobs("cpu"), small_request(target=str(folders["small"]), draft=str(folders["small"]))
    for dtype in ("float32", "bfloat16", "float32"):
        assert {kind for kind, _ in jobs._load(replace(request, dtype=dtype), lambda: False)} == {"progress"}
        assert jobs._known.pair.target.info.dtype == dtype


def test_a_gpu_that_faulted_is_lost_and_one_that_is_well_is_not(cuda):
    assert not Jobs().has_lost_device()
    cuda.lost = True
    assert Jobs().has_lost_device() and not Jobs("cpu").has_lost_device()


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory. Tried"), RuntimeError()])
def test_recordings_that_fail_in_whichever_way_leave_plain_calls(cuda, error):
    """Memory runs out in the warm-up, or a kernel cannot be recorded: once, and not again for each new shape."""
    calls = []

    def work():
        calls.append(torch.ones(2))
        if len(calls) == 1:
            raise error
        return calls[-1]

    runner = GraphRunner(torch.device("cpu"))
    runner.records = True
    assert runner.run("key", work) is calls[1]
    assert runner.run("other", work) is calls[2] and len(calls) == 3
    assert (str(error) or "RuntimeError") in runner.note and "eagerly" in runner.note
    assert cuda.current is cuda.default and cuda.graphs == []


def test_devices_that_are_not_there(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
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
    assert free_memory("cpu") is None


@pytest.mark.parametrize("names", machine._CONTAINER)
def test_the_memory_of_a_container_counts_not_that_of_its_host(names, tmp_path, monkeypatch):
    """Else a model that does not fit ends the whole container."""
    monkeypatch.setattr(machine, "CONTROL_GROUPS", tmp_path)
    limit, used, stat = (tmp_path / name for name in names)
    limit.parent.mkdir(exist_ok=True)
    used.write_text("7000000\n")
    stat.write_text("anon 4000000\ninactive_anon 500\ninactive_file 1000000\nactive_file 2000000\n")
    whole = memory_bytes()
    limit.write_text("9000000\n")
    assert (memory_bytes(), free_memory("cpu")) == (9_000_000, 5_000_000)
    limit.write_text("3000000\n")
    assert free_memory("cpu") == 0
    for unlimited in ("max\n", f"{2**63 - 4096}\n"):
        limit.write_text(unlimited)
        assert memory_bytes() == whole > 9_000_000 < free_memory("cpu")


class Strange(PreTrainedConfig):
    model_type = "strange"


@pytest.mark.parametrize(
    "config, words",
    [
        (Strange(layer_types=["full_attention", "linear_attention"]), "mixes other layers .*: choose"),
        (Strange(layer_types=["full_attention", "sliding_attention"]), "sliding-window attention here: choose"),
        (lean_config(MistralConfig, sliding_window=8), "sliding-window attention here: choose"),
        (MambaConfig(vocab_size=64, hidden_size=32, num_hidden_layers=1, state_size=4), "running state .*: choose"),
    ],
)
def test_models_that_cannot_be_rewound(config, words):
    hf_model = SimpleNamespace(config=config) if isinstance(config, Strange) else random_model(config)
    with pytest.raises(UserError, match=words):
        check_rewindable(hf_model)
    assert not is_lean(config)
    check_rewindable(SimpleNamespace(config=Strange()))


def test_a_model_that_ignores_its_cache_is_refused(folders):
    hf_model = load_hf_model(folders["small"], torch.float32)
    model = TransformersModel(hf_model, describe_model(hf_model, "test", "test", "none"))
    forgetful = hf_model.forward
    model.module = lambda **inputs: forgetful(**inputs | {"past_key_values": None, "use_cache": False})
    model.module.config = hf_model.config
    with pytest.raises(UserError, match="does not keep its past in the cache .*: choose another"):
        model.prefill([1, 2])
