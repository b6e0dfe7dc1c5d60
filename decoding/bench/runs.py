"""The pairs that a benchmark runs on: the named one, and on a GPU also pairs of common sizes with random weights, made
here without a download.

In those the target's late layers have zero output projections, so that they cost their full time and change nothing;
the draft is the early layers. Draft and target then always agree, and noise on the draft's head lowers the match rate.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..engines.base import CachedModel
from ..engines.checks import SPARE, check_memory, free_memory
from ..engines.choosing import plain_dtype
from ..engines.cuda import CudaModel
from ..engines.hub import HuggingFaceHub
from ..engines.lean import LeanModel
from ..engines.loading import choose_device, describe_model, load_hf_model
from ..engines.pair import Pair, load_pair
from ..engines.sources import Sources
from ..engines.tokenizer import Tokenizer
from ..errors import UserError, is_out_of_memory, sentence_of
from ..records.pairs import PairDescription, embedded_pairs, find_pair, name_pair
from ..records.suites import load_suite, suites_for
from .against import Report, Work, bench_llamacpp, bench_pair, bench_recorder
from .contenders import NOTE, LlamaCppContender, check_installed


def bench_all(pair: str, target: str, draft: str, work: Work, recorder: bool = False) -> Iterator[Report]:
    """Reports against transformers: on the named pair; "": on all embedded ones, on CUDA also on the shaped pairs.

    ``recorder``: of transformers' ``generate`` itself with and without the recorder, not on the shaped pairs.
    """
    work, measure = replace(work, device=choose_device(work.device)), bench_recorder if recorder else bench_pair
    for one in _described(pair, target, draft):
        loaded = _load(one, work.dtype, work)
        loaded.default_draft = one.text_draft  # transformers runs no other
        yield measure(loaded, *_transformers_models(one, work), _prompts(loaded, work), work)
    if work.device.startswith("cuda") and not (pair or target or recorder):
        for shape in SHAPES:
            yield bench_shape(shape, work)


def bench_against_llamacpp(pair: str, target: str, draft: str, work: Work) -> Iterator[Report]:
    """A report against llama.cpp on the named pair ("": the default one), whose target must be from a GGUF file."""
    check_installed()
    if choose_device(work.device) != "cpu":
        raise UserError("llama.cpp is compared on a CPU, one thread each: use --device cpu.")
    described = name_pair(target, draft) if target or draft else find_pair(pair)
    find_file = Sources(described, HuggingFaceHub(), work.progress).fetch(described.target).gguf
    if find_file is None:
        raise UserError(f"The target of {described.name} is not from a GGUF file: use --pair smollm2-135m.")
    sixteen, four = (_load(described, dtype, work, threads=1) for dtype in ("auto", "int4"))
    prompts = _prompts(sixteen, work)
    theirs = LlamaCppContender(find_file(), max(map(len, prompts)) + work.max_new_tokens + 1)
    report = bench_llamacpp(sixteen, four, theirs, prompts, work)
    report.notes.append(NOTE)
    yield report


def _described(pair: str, target: str, draft: str) -> list[PairDescription]:
    if target or draft:
        return [name_pair(target, draft)]
    here = [] if pair else [one for one in embedded_pairs() if one.loadable]
    return here or [find_pair(pair)]


def _load(described: PairDescription, dtype: str, work: Work, threads: int | None = None) -> Pair:
    named = described.kind == "named"
    place = ("", described.target, described.drafts[described.default_draft]) if named else (described.name, "", "")
    return load_pair(*place, dtype, device=work.device, threads=threads, progress=work.progress)


def _plain(work: Work) -> str:
    """The dtype of transformers' models: the one asked for, else the faster one here."""
    return work.dtype if work.dtype in ("float32", "bfloat16") else plain_dtype(work.device)


def _transformers_models(described: PairDescription, work: Work) -> tuple[Any, Any]:
    """transformers' own modules of the target and the draft of text, with the same weights and dtype."""
    sources = Sources(described, HuggingFaceHub(), work.progress)
    names = described.target, described.drafts[described.text_draft]
    target, draft = (
        load_hf_model(sources.fetch(name).folder, getattr(torch, _plain(work))).to(work.device) for name in names
    )
    return target, draft


def _prompts(pair: Pair, work: Work) -> list[list[int]]:
    """Token ids of test prompts, cut to what the target's context leaves room for. Raises UserError for no room."""
    room = pair.target.max_length - work.max_new_tokens - 1
    if room < 1:
        raise UserError(
            f"{work.max_new_tokens:,} new tokens leave no room for a prompt in this target's context of "
            f"{pair.target.max_length:,}: ask for fewer."
        )
    suite = load_suite(suites_for("all", pair.chat), "test", work.limit)
    return [pair.encode_prompt(one.prompt).ids[-room:] for one in suite]


def bench_shape(shape: Shape, work: Work) -> Report:
    """The report on a pair of this shape with random weights; only a note if the memory is too small."""
    weights = _plain(work)
    try:
        needed = memory_of(shape, weights)
        check_memory(f"The {shape.name} pair", needed, free_memory(work.device), work.device)
        work.progress(f"Making a {shape.name} pair", None)
        models = make_models(shape, work.device, getattr(torch, weights))
        pair = make_pair(shape, *models, work.device, weights)
        return bench_pair(pair, *models, random_prompts(shape.vocab, work.limit), replace(work, cores=1))
    except UserError as error:
        reason = str(error)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        reason = sentence_of(error)
    return Report(shape.name, weights, work.device, notes=[f"Left out: {reason}"])


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a target; its draft has the first ``draft_layers`` of its ``layers``."""

    name: str
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    layers: int
    draft_layers: int
    vocab: int = 128_256
    context: int = 4096


SHAPES = (
    Shape("1B/0.15B-shaped", 2048, 8192, 32, 8, 16, 2),  # Llama 3.2 1B; the 0.15B exclude its embeddings
    Shape("8B/1B-shaped", 4096, 14336, 32, 8, 32, 4),  # Llama 3.1 8B
)
NOISE = 0.2  # on the draft's head, in standard deviations of its weights


def memory_of(shape: Shape, weights: str) -> int:
    """Bytes that a shape's benchmark needs: target and draft, each as transformers' modules and on our engine."""
    models = [_random_llama(shape, layers, "meta", torch.float32) for layers in (shape.layers, shape.draft_layers)]
    parameters = sum(weight.numel() for model in models for weight in model.parameters())
    width = shape.kv_heads * shape.hidden // shape.heads
    cache = 2 * (shape.layers + shape.draft_layers) * width * shape.context
    return int(SPARE * 2 * (parameters + cache) * (4 if weights == "float32" else 2))


def make_models(shape: Shape, device: str, dtype: torch.dtype, noise: float = NOISE) -> tuple[Any, Any]:
    """transformers' modules of target and draft."""
    torch.manual_seed(0)
    target, draft = (_random_llama(shape, layers, device, dtype) for layers in (shape.layers, shape.draft_layers))
    with torch.no_grad():
        for layer in target.model.layers[shape.draft_layers :]:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        draft.load_state_dict(
            {name: value for name, value in target.state_dict().items() if name in draft.state_dict()}
        )
        head = draft.lm_head.weight
        head.add_(torch.randn_like(head) * head.std() * noise)
    return target, draft


def _random_llama(shape: Shape, layers: int, device: str, dtype: torch.dtype) -> Any:
    from transformers import AutoModelForCausalLM, LlamaConfig

    config = LlamaConfig(
        vocab_size=shape.vocab,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        max_position_embeddings=shape.context,
        tie_word_embeddings=False,
    )
    with torch.device(device):
        return AutoModelForCausalLM.from_config(config, dtype=dtype).eval()


def make_pair(shape: Shape, hf_target: Any, hf_draft: Any, device: str, weights: str) -> Pair:
    """The pair on our own engine for ``device``."""
    threads = torch.get_num_threads()

    def engine(name: str, hf_model: Any) -> CachedModel:
        info = describe_model(hf_model, name, "random weights", "random")
        info.dtype, info.device, info.threads, info.engine = weights, device, threads, "lean"
        return LeanModel(hf_model, info, weights) if device == "cpu" else CudaModel(hf_model, info, weights, device)

    draft = engine("early layers", hf_draft)
    return Pair(
        shape.name,
        Tokenizer(IdsAsText()),
        engine(shape.name, hf_target),
        "early-layers",
        ["early-layers"],
        lambda name: draft,
    )


class IdsAsText:
    """Stands in for transformers' tokenizer where ids have no meaning."""

    eos_token_id = bos_token = None

    def encode(self, text: str, **options: Any) -> list[int]:
        return [1]

    def decode(self, ids: list[int], **options: Any) -> str:
        return " ".join(map(str, ids))

    def convert_ids_to_tokens(self, token: int) -> None:
        return None  # no bytes are defined for it


def random_prompts(vocab: int, n: int, length: int = 128) -> list[list[int]]:
    """``n`` prompts of ``length`` ids below ``vocab``, the same at each call."""
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, vocab, (n, length), generator=generator).tolist()
