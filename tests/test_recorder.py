"""Recording of transformers' generate: every way to draft, on tiny random models."""

import re
import sys
import threading
from functools import wraps
from statistics import median
from time import perf_counter
from types import SimpleNamespace

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationMixin,
    LlamaForCausalLM,
    MuseGlimmerAssistantConfig,
    MuseGlimmerAssistantModel,
)
from transformers.modeling_layers import MtpModel

from decoding.analysis.steadiness import verdict
from decoding.comparison.recorder import SEAM, Recorder
from decoding.errors import UserError
from decoding.records.generate import ENGINE, why_no_chain
from decoding.records.run_file import load_run, save_run
from decoding.records.trace import Run, Verdict
from viz.export import export_html
from viz.figures.race import draw_run
from viz.player.payload import run_payload
from viz.player.sentences import opening

from .commands import command
from .runs import simulate_lane
from .tiny_models import make_lively_pair, make_model, tiny_config

PROMPT = "ab ab ab ab"
N = 24


class Tiny:
    """A target, a draft that is often right, and one with another tokenizer."""

    def __init__(self, folder) -> None:
        target, draft = make_lively_pair(folder)
        self.tokenizer = AutoTokenizer.from_pretrained(target)
        self.target = AutoModelForCausalLM.from_pretrained(target)
        self.draft = AutoModelForCausalLM.from_pretrained(draft)
        other = make_model(folder / "other", "th he in")
        self.other = AutoModelForCausalLM.from_pretrained(other)
        self.tokenizers = {"tokenizer": self.tokenizer, "assistant_tokenizer": AutoTokenizer.from_pretrained(other)}

    def generate(self, prompt: str = PROMPT, **settings):
        inputs = self.tokenizer(prompt, return_tensors="pt")
        return self.target.generate(**inputs, **{"max_new_tokens": N, "do_sample": False, "pad_token_id": 0} | settings)

    def text(self, output) -> list[int]:
        return output[0, len(self.tokenizer(PROMPT).input_ids) :].tolist()


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Tiny:
    return Tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(autouse=True)
def nothing_stays_patched():
    before = [vars(owner)[name] for owner, name in SEAM]
    yield
    assert [vars(owner)[name] for owner, name in SEAM] == before


def record(tiny: Tiny, *calls: dict) -> tuple[Run, list[list[int]]]:
    """The run of these calls, and the texts that they returned."""
    with Recorder(tiny.tokenizer) as recorder:
        texts = [tiny.text(tiny.generate(**settings)) for settings in calls]
    return recorder.run, texts


def test_the_calls_of_one_prompt_are_lanes_and_the_plain_one_is_the_baseline(tiny, tmp_path):
    run, texts = record(tiny, {"assistant_model": tiny.draft}, {}, {"prompt_lookup_num_tokens": 3}, {})
    assert [trace.lane for trace in run.lanes] == ["assisted", "autoregressive", "lookup", "autoregressive#2"]
    assert run.baseline is run.lanes[1] and run.pair.target.engine == ENGINE
    assert [trace.output for trace in run.lanes] == texts
    assert all(trace.verdict.same for trace in run.lanes)
    assert (run.settings.prompt, run.settings.rule, run.token_limit) == (PROMPT, "greedy", N)
    begins = r"num_assistant_tokens 20, .*, assistant_confidence_threshold 0\.4\.$"  # the call moves it
    assert re.search(begins, run.lanes[0].notes[0])
    save_run(run, tmp_path / "run.json")
    assert load_run(tmp_path / "run.json") == run


def test_more_calls_than_a_run_holds_are_a_sentence(tiny, monkeypatch):
    monkeypatch.setattr("decoding.comparison.recorder_run.MAX_LANES", 1)
    with pytest.raises(UserError, match="A run holds at most 1 calls with one prompt, not 2"):
        record(tiny, {}, {})


def test_an_iteration_holds_what_was_proposed_and_what_both_models_said_of_it(tiny):
    run, _ = record(tiny, {"assistant_model": tiny.draft})
    (trace,) = run.lanes
    prompt = tiny.tokenizer(PROMPT).input_ids
    with torch.no_grad():
        p = tiny.target(torch.tensor([prompt + trace.output])).logits[0, len(prompt) - 1 :].softmax(-1)
        q = tiny.draft(torch.tensor([prompt + trace.output])).logits[0, len(prompt) - 1 :].softmax(-1)
    seen = {token.fate for iteration in trace.iterations for token in iteration.drafted}
    assert {"accepted", "rejected"} <= seen
    for iteration in trace.iterations:
        for at, token in enumerate([*iteration.drafted[: iteration.n_accepted + 1]], iteration.start):
            assert token.p_target == pytest.approx(p[at, token.id].item(), abs=1e-5)
            assert token.p_draft == pytest.approx(q[at, token.id].item(), abs=1e-5)
            assert token.target_choice == p[at].argmax() == trace.output[at]
            assert token.draft_choice == q[at].argmax() == token.id
        if iteration.emitted:
            best = p[iteration.start + iteration.n_accepted].max().item()
            assert iteration.emitted.p_target == pytest.approx(best, abs=1e-5)


def test_the_seconds_are_those_of_the_call(tiny, monkeypatch):
    """Drafting and verification are timed apart, the recorder's own work not at all, and nothing is lost."""
    slow, fast = 0.03, LlamaForCausalLM.forward

    def forward(model, *args, **kwargs):
        threading.Event().wait(slow if model is tiny.target else slow / 3)
        return fast(model, *args, **kwargs)

    monkeypatch.setattr(LlamaForCausalLM, "forward", forward)
    before = perf_counter()
    run, _ = record(tiny, {"max_new_tokens": 8}, {"max_new_tokens": 8, "assistant_model": tiny.draft})
    wall = perf_counter() - before
    plain, assisted = (trace.repeats[0] for trace in run.lanes)
    assert all(slow <= one for one in plain.verify_s + assisted.verify_s)
    for iteration, draft_s in zip(run.lanes[1].iterations, assisted.draft_s):
        assert iteration.n_drafted * slow / 3 <= draft_s
    assert sum(repeat.prefill_s + repeat.decode_s for repeat in (plain, assisted)) < wall


def test_the_first_check_does_not_count_what_transformers_imports_in_it(tiny, monkeypatch):
    pytest.importorskip("sklearn")
    monkeypatch.delitem(sys.modules, "sklearn.metrics", raising=False)
    with Recorder(tiny.tokenizer):
        assert "sklearn.metrics" in sys.modules


def test_the_first_pass_counts_as_much_as_the_later_ones_and_the_prompt_has_the_rest(tiny, monkeypatch):
    fast = LlamaForCausalLM.forward

    def forward(model, input_ids=None, **kwargs):
        threading.Event().wait(0.3 if input_ids.shape[1] > 9 else 0.01)
        return fast(model, input_ids=input_ids, **kwargs)

    monkeypatch.setattr(LlamaForCausalLM, "forward", forward)
    run, _ = record(tiny, {"max_new_tokens": 6}, {"max_new_tokens": 6, "assistant_model": tiny.draft})
    plain, assisted = (trace.repeats[0] for trace in run.lanes)
    assert plain.prefill_s > 0.25 and assisted.prefill_s > 0.5
    assert all(one.verify_s[0] <= median(one.verify_s[1:]) for one in (plain, assisted))


def dflash_draft(tiny: Tiny) -> MuseGlimmerAssistantModel:
    torch.manual_seed(0)
    marks = dict(block_size=4, mask_token_id=1, target_layer_ids=[0, 1], bos_token_id=0, eos_token_id=0, pad_token_id=0)
    shape = dict(num_hidden_layers=1, num_attention_heads=2, head_dim=16, sliding_window=512, **marks)
    config = tiny_config(
        tiny.target.config.vocab_size, MuseGlimmerAssistantConfig, max_position_embeddings=512, **shape
    )
    return MuseGlimmerAssistantModel(config).eval()


WAYS = {  # to draft: the arguments of generate
    "assisted": lambda tiny: {"assistant_model": tiny.draft},
    "universal": lambda tiny: {"assistant_model": tiny.other, **tiny.tokenizers},
    "lookup": lambda tiny: {"prompt_lookup_num_tokens": 3},
    "early-exit": lambda tiny: {"assistant_early_exit": 1},
    "dflash": lambda tiny: {"assistant_model": dflash_draft(tiny), "speculation_type": "dflash"},
    "mtp": lambda tiny: {"use_mtp": True},
}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_draft_is_recorded(tiny, way, monkeypatch):
    monkeypatch.setattr(tiny.target.config, "num_mtp_layers", 2, raising=False)
    monkeypatch.setattr(MtpModel, "from_pretrained", lambda model, device_map: MtpModel(model, 2).eval())
    run, texts = record(tiny, {}, WAYS[way](tiny))
    trace = run.lanes[1]
    assert (trace.lane, trace.policy, trace.output) == (way, way, texts[1])
    assert trace.draft in run.pair.drafts and trace.draft in run.costs.draft_step
    assert any(iteration.drafted for iteration in trace.iterations)
    assert trace.verdict.same


@pytest.mark.parametrize("way", ["assisted", "universal", "lookup"])
def test_sampling_is_recorded_as_such(tiny, way):
    torch.manual_seed(1)
    sampled = {"do_sample": True, "temperature": 0.7, "top_k": 20}
    run, texts = record(tiny, sampled, WAYS[way](tiny) | sampled)
    assert run.lanes[1].output == texts[1]
    assert [trace.verdict.same for trace in run.lanes] == [None, None]
    assert (run.settings.rule, run.settings.temperature, run.settings.top_k) == ("sampling", 0.7, 20)


def test_a_text_that_ends_says_how(tiny):
    text = record(tiny, {})[1][0]
    run, texts = record(tiny, {"eos_token_id": text[5]}, {"eos_token_id": text[5], "assistant_model": tiny.draft})
    end = text.index(text[5]) + 1
    assert texts == [text[:end]] * 2
    assert [trace.finish for trace in run.lanes] == ["eos", "eos"]


def test_another_prompt_is_another_run_and_names_of_calls_do_not_clash(tiny):
    with Recorder(tiny.tokenizer) as recorder:
        for prompt in ("one", "two", "one"):
            tiny.generate(prompt, assistant_model=tiny.draft)
    assert [[trace.lane for trace in run.lanes] for run in recorder.runs] == [["assisted", "assisted#2"], ["assisted"]]
    with pytest.raises(UserError, match="2 runs were recorded"):
        recorder.run  # noqa: B018


def test_calls_that_choose_tokens_otherwise_are_another_run(tiny):
    """The greedy lane was called a sampled one, and each temperature the first one."""
    sampled = {"do_sample": True, "top_k": 20}
    with Recorder(tiny.tokenizer) as recorder:
        for chosen in ({}, sampled | {"temperature": 0.5}, sampled | {"temperature": 1.5}, {}):
            tiny.generate(**chosen)
    found = [(run.settings.rule, run.settings.temperature, len(run.lanes)) for run in recorder.runs]
    assert found == [("greedy", 0.0, 2), ("sampling", 0.5, 1), ("sampling", 1.5, 1)]


def test_another_model_is_another_run(tiny):
    """It was a lane of the first one's, with a speedup over it."""
    with Recorder(tiny.tokenizer) as recorder:
        tiny.generate()
        tiny.draft.generate(**tiny.tokenizer(PROMPT, return_tensors="pt"), max_new_tokens=2, pad_token_id=0)
    assert [(run.pair.target.name, len(run.lanes)) for run in recorder.runs] == [("target", 1), ("draft", 1)]


def test_a_call_with_another_limit_writes_the_same_text_as_far_as_it_goes(tiny):
    run, _ = record(tiny, {}, {"assistant_model": tiny.draft, "max_new_tokens": N // 2})
    assert [trace.verdict for trace in run.lanes] == [Verdict(same=True)] * 2
    assert verdict(run, str)["text"] == "Same text in both lanes, as far as each goes."
    assert opening(run).startswith(f"Here: {N // 2} tokens, ")


def test_generate_in_another_thread_is_recorded(tiny):
    with Recorder(tiny.tokenizer) as recorder:
        worker = threading.Thread(target=tiny.generate, kwargs={"assistant_model": tiny.draft})
        worker.start()
        worker.join()
    assert recorder.run.lanes[0].lane == "assisted"


def test_the_return_value_and_the_random_numbers_are_those_of_a_call_without_the_recorder(tiny):
    settings = {"do_sample": True, "assistant_model": tiny.draft}
    settings |= {"return_dict_in_generate": True, "output_scores": True}
    torch.manual_seed(3)
    alone = tiny.generate(**settings)
    torch.manual_seed(3)
    with Recorder(tiny.tokenizer):
        recorded = tiny.generate(**settings)
    assert torch.equal(alone.sequences, recorded.sequences)
    assert all(torch.equal(one, other) for one, other in zip(alone.scores, recorded.scores, strict=True))


@pytest.mark.parametrize(
    "settings, sentence",
    [
        (lambda ids, tiny: {"inputs": ids, "num_beams": 2}, "without beams"),
        (lambda ids, tiny: {"inputs": ids, "num_return_sequences": 2, "do_sample": True}, "one text at a time"),
        (lambda ids, tiny: {"inputs": ids.repeat(2, 1)}, "one text at a time"),
        (lambda ids, tiny: {"inputs_embeds": tiny.target.get_input_embeddings()(ids)}, "inputs_embeds"),
    ],
)
def test_what_is_not_one_text_of_tokens_is_refused(tiny, settings, sentence):
    ids = torch.tensor([tiny.tokenizer(PROMPT).input_ids])
    with Recorder(tiny.tokenizer) as recorder, pytest.raises(UserError, match=sentence):
        tiny.target.generate(**settings(ids, tiny), max_new_tokens=4)
    with pytest.raises(UserError, match="No call of generate was recorded"):
        recorder.run  # noqa: B018


def test_a_second_recorder_is_refused_while_one_watches(tiny):
    with Recorder(tiny.tokenizer) as first:
        with pytest.raises(UserError, match="Another recorder is watching generate"), Recorder(tiny.tokenizer):
            pass
        tiny.generate()
    with Recorder(tiny.tokenizer) as second:
        tiny.generate()
    assert len(first.run.lanes) == len(second.run.lanes) == 1


def test_what_is_no_tokenizer_is_refused_before_anything_runs(tiny):
    for other in (tiny.target, "gpt2", None):
        with pytest.raises(UserError, match=f"the target's tokenizer, not a {type(other).__name__}"):
            Recorder(other)


def test_a_call_that_fails_is_not_recorded(tiny):
    def broken(*args):
        raise RuntimeError("broken streamer")

    streamer = SimpleNamespace(put=broken, end=broken)
    with pytest.raises(RuntimeError, match="broken streamer"), Recorder(tiny.tokenizer) as recorder:
        tiny.generate(assistant_model=tiny.draft, streamer=streamer)
    assert recorder.runs == []


def test_another_version_of_transformers_is_refused(tiny, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(GenerationMixin, "_assisted_decoding", lambda self, ids, config: ids)
        with pytest.raises(UserError, match=r"takes no generation_config, input_ids\): nothing was recorded"):
            Recorder(tiny.tokenizer).__enter__()
    with monkeypatch.context() as patched:
        patched.delattr(GenerationMixin, "_get_candidate_generator")
        with pytest.raises(UserError, match="it has no GenerationMixin._get_candidate_generator"):
            Recorder(tiny.tokenizer).__enter__()


def test_a_text_that_was_not_verified_is_refused(tiny, monkeypatch):
    """Where the methods have their names and do something else."""
    decode = GenerationMixin._assisted_decoding

    @wraps(decode)
    def other(*args, **kwargs):
        ids = decode(*args, **kwargs)
        return torch.cat([ids, ids[:, :1]], dim=1)

    monkeypatch.setattr(GenerationMixin, "_assisted_decoding", other)
    with pytest.raises(UserError, match="other tokens than it verified"), Recorder(tiny.tokenizer):
        tiny.generate(assistant_model=tiny.draft)


def test_commands_show_it_and_say_what_such_a_run_cannot_do(tiny, tmp_path):
    run, _ = record(tiny, {}, {"assistant_model": tiny.draft})
    with pytest.raises(UserError, match="recorded from transformers' generate, which shows only the tokens"):
        simulate_lane(run, "static:4")
    save_run(run, tmp_path / "run.json")
    status, out, _ = command("show", str(tmp_path / "run.json"))
    assert status == 0 and "assisted" in out and "Same text in both lanes." in out
    for asked, words in ((["compare", "--again"], "--target and --draft"), (["whatif"], "run its prompt here")):
        assert words in command(*asked, str(tmp_path / "run.json")).err


def test_the_page_draws_it_and_says_why_nothing_is_simulated(tiny):
    run, _ = record(tiny, {}, {"assistant_model": tiny.draft}, {"assistant_model": tiny.target}, {})
    lanes = [(trace.lane, trace.draft) for trace in run.lanes[1:3]]
    assert lanes == [("assisted", "draft"), ("target/assisted", "target")], "the target as its own draft"
    run.costs.verify_curve, run.costs.contradiction = [1.0], 0.0  # whatever a busy machine made of them
    payload = run_payload(run)
    assert [lane["name"] for lane in payload["lanes"]] == ["Plain", "Assisted", "Assisted · target", "Plain, call 2"]
    assert len({tuple(lane["look"].values()) for lane in payload["lanes"]}) == 4
    assert "smaller model" in payload["lanes"][1]["caption"] and payload["no_chain"] == why_no_chain(run)
    assert "as fast" in payload["sentence"] and "recorded from transformers" in export_html(run)
    assert draw_run(run)
