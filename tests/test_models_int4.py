"""Four-bit weights: the levels of the model's file, lossless in their format, refused where they cannot be."""

import json
from dataclasses import asdict, replace

import gguf
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config

from decoding.backends.jobs import Jobs
from decoding.bench.against import floor_bytes
from decoding.bench.lossless import plain_reference
from decoding.comparison import kept_texts
from decoding.comparison.kept_costs import KnownCosts
from decoding.comparison.kept_texts import KeptTexts
from decoding.engines.choosing import target_formats
from decoding.engines.formats.int4 import GROUP, Int4Linear, round_to_groups
from decoding.engines.invariance import keeps_bits
from decoding.engines.pair import load_pair
from decoding.errors import UserError
from decoding.evaluation.options import options_from_dict
from decoding.records.machine import describe_machine
from decoding.records.pairs import find_pair
from decoding.records.request import CompareRequest
from decoding.records.run_file import run_from_json
from decoding.records.weights import read_record
from tests.commands import command
from tests.lean_models import lean, random_model
from tests.tiny_gguf import write_gguf
from tests.tiny_models import make_tiny_pair
from viz.settings import command_line

from .test_models_lean import WIDE

pytestmark = pytest.mark.usefixtures("all_cores")


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPECULOSCOPE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("four") / "tiny.Q4_1.gguf"
    write_gguf(path, "Q4_1")
    return path


@pytest.fixture(scope="module")
def tensors():
    """Of the chat model's file, by name."""
    path = read_record(find_pair("smollm2-135m").target).packaged()
    return {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}


def load(folders, **options):
    return load_pair(target=folders[0], draft=folders[1], device="cpu", threads=1, **{"dtype": "int4", **options})


@pytest.mark.parametrize("name", ["blk.17.attn_v.weight", "blk.29.ffn_down.weight"])
def test_the_chat_models_layers_keep_the_sixteen_levels_of_their_file(tensors, name):
    """The weights come unpacked to bfloat16 and are rounded again; only scale and zero differ, by that rounding."""
    blocks = torch.from_numpy(tensors[name].data.copy()).unflatten(-1, (-1, 4 + GROUP // 2))
    pairs = blocks[..., 4:]  # a block: scale and least value in float16, then two levels a byte
    weight = torch.from_numpy(gguf.quants.dequantize(tensors[name].data, tensors[name].tensor_type))
    groups = round_to_groups(weight.bfloat16())
    assert torch.equal(groups.levels, torch.cat([pairs & 15, pairs >> 4], dim=-1).flatten(1))
    assert (groups.rounded().dequantised() - weight).abs().max() < weight.abs().max() * 2**-7
    held = Int4Linear(groups)(torch.eye(weight.shape[1], dtype=torch.bfloat16)).T
    assert torch.equal(held, groups.rounded().dequantised().bfloat16())


def test_a_whole_model_from_a_file_computes_with_rounded_weights(file):
    pair = load((str(file), str(file)))
    assert (pair.target.info.dtype, pair.target.info.source) == ("int4", "tiny, from Q4_1")
    assert pair.target.note is None and pair.draft().info.dtype != "int4"
    hf_model = AutoModelForCausalLM.from_pretrained(pair.target_folder, dtype=torch.float32)
    for name, module in hf_model.model.layers.named_modules():
        if name.endswith("_proj"):
            module.weight.data = round_to_groups(module.weight).rounded().dequantised()
    text = list(range(20, 50))
    with torch.inference_mode():
        expected = hf_model(torch.tensor([text])).logits[0, -1]
    torch.testing.assert_close(pair.target.prefill(text)[0], expected, atol=0.03 * float(expected.abs().max()), rtol=0)


def test_rounding_takes_the_nearest_of_sixteen_values():
    weight = torch.randn(16, 2 * GROUP, generator=torch.Generator().manual_seed(0))
    groups = round_to_groups(weight)
    off = (groups.dequantised() - weight).abs().view(16, 2, GROUP).amax(-1)
    assert (off <= groups.scale / 2 * 1.001).all() and groups.levels.max() == 15 and groups.levels.min() == 0
    again = round_to_groups(groups.dequantised())
    assert torch.equal(again.levels, groups.levels)
    flat = round_to_groups(torch.full((16, GROUP), 0.25))  # a group of one value
    assert torch.equal(flat.dequantised(), torch.full((16, GROUP), 0.25))


def test_a_drafts_reduced_head_takes_eight_bits():
    hf_model, kept = random_model(WIDE), torch.arange(3, 128, 5)
    draft = lean(hf_model, "int4", head_ids=kept)
    assert keeps_bits(draft)
    whole = lean(hf_model, "int4")
    expected, found = whole.prefill([3, 8])[:, kept], draft.prefill([3, 8])
    assert 0 < (found - expected).abs().max() < 0.03 * expected.abs().max()
    draft.info.dtype = whole.info.dtype = "int4"
    assert floor_bytes(draft, 9) < floor_bytes(whole, 9)


def test_every_lane_writes_the_plain_text_of_the_format(tiny_pair):
    words = ["--target", tiny_pair[0], "--draft", tiny_pair[1], "--limit=2", "--max-new-tokens=12", "--longest=3"]
    ended = command("lossless", *words, "--dtype=int4", "--json")
    found, pair = json.loads(ended.out[ended.out.index("{") :]), load(tiny_pair)
    assert ended.status == 0 and found["equal"] == found["compared"] > 20
    text = plain_reference(pair)(pair.encode_prompt("ababab"), 12)
    assert len(text.tokens) == len(text.gaps) and min(text.gaps) >= 0


def test_a_run_records_them_and_its_command_repeats_them(tiny_pair):
    pair = dict(target=tiny_pair[0], draft=tiny_pair[1], weights="int4")
    lanes = ["autoregressive", "static:3", "oracle"]
    request = CompareRequest("hello", lanes, max_new_tokens=12, repeats=1, **pair)
    *_, (kind, data) = Jobs("cpu").run("compare", asdict(request), "r", lambda: False)
    run = run_from_json(json.dumps(data["run"]))
    assert kind == "finished" and run.settings.weights == "int4" and run.pair.target.dtype == "int4"
    assert all(trace.verdict.same for trace in run.lanes)
    assert "--weights=int4" in command_line(run.asked)


def test_texts_and_costs_are_kept_apart_by_format_and_machine(tiny_pair, tmp_path, monkeypatch):
    four, sixteen = load(tiny_pair), load(tiny_pair, dtype="bfloat16")
    kept = KeptTexts(four, 8)
    kept.add([1, 2], [3])
    kept.close()
    assert KeptTexts(four, 8).get([1, 2]) == [3] and KeptTexts(sixteen, 8).get([1, 2]) is None
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(kept_texts, "machine_of", lambda device: replace(describe_machine(), processor="other"))
        assert KeptTexts(four, 8).get([1, 2]) is None
    names = {repr(KnownCosts(pair, tmp_path)._setting(None, 100)) for pair in (four, sixteen)}
    assert len(names) == 2
    assert floor_bytes(four.target, 0) < 0.7 * floor_bytes(sixteen.target, 0)


def test_without_a_way_they_are_refused_in_a_sentence(tiny_pair, tmp_path):
    odd = make_tiny_pair(tmp_path)
    with pytest.raises(UserError, match="48 inputs and 32 outputs does not divide into groups of 32"):
        load(odd)
    with pytest.raises(UserError, match="runs on a CPU only, not on cuda:0"):
        target_formats("int4", "cuda:0", "bfloat16")
    with pytest.raises(UserError, match="Two number formats were named, float32 and int4"):
        options_from_dict({"weights": "int4", "dtype": "float32"})
    assert options_from_dict({"weights": "int4"}).weights == "int4"


def test_other_families_are_refused_in_a_sentence(tiny_pair, tmp_path):
    config = GPT2Config(n_layer=1, n_head=2, n_embd=32, vocab_size=257, n_positions=64)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "gpt")
    AutoTokenizer.from_pretrained(tiny_pair[0]).save_pretrained(tmp_path / "gpt")
    with pytest.raises(UserError, match="Only Llama-shaped models run in int4"):
        load((str(tmp_path / "gpt"), tiny_pair[1]))
