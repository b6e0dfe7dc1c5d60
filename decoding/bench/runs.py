"""The pairs that a benchmark runs on: the named one, and on a GPU also pairs of larger shapes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ..engines.checks import check_memory, free_memory
from ..engines.hub import HuggingFaceHub
from ..engines.loading import choose_device, choose_weights, load_hf_model
from ..engines.pair import load_pair
from ..engines.sources import Sources
from ..errors import UserError, is_out_of_memory, sentence_of
from ..records.pairs import PairDescription, find_pair, name_pair
from ..records.suites import load_suite, suites_for
from .against import Progress, Report, bench_pair, measure_growth
from .shapes import SHAPES, Shape, make_models, make_pair, memory_of, random_prompts

if TYPE_CHECKING:
    from ..engines.pair import Pair


def bench_all(
    pair: str,
    target: str,
    draft: str,
    *,
    limit: int,
    repeats: int,
    max_new_tokens: int,
    device: str,
    dtype: str,
    weights: str = "auto",
    cores: int,
    progress: Progress,
) -> list[Report]:
    """A report on the named pair ("" is the default), and on CUDA also on the shaped pairs."""
    device = choose_device(device)
    form = choose_weights(dtype, device)
    described = name_pair(target, draft) if target or draft else find_pair(pair)
    loaded = load_pair(pair, target, draft, dtype=form, weights=weights, device=device, progress=progress)
    room = loaded.target.max_length - max_new_tokens - 1
    prompts = [
        loaded.encode_prompt(one.prompt)[-room:] for one in load_suite(suites_for("all", loaded.chat), "test", limit)
    ]
    report = bench_pair(
        loaded,
        *_transformers_models(described, form, device, progress),
        prompts,
        max_new_tokens=max_new_tokens,
        repeats=repeats,
        cores=cores,
        progress=progress,
    )
    progress("Measuring how time grows with the context", None)
    report.growth = measure_growth(loaded, _long_text(loaded), repeats)
    shapes = SHAPES if device.startswith("cuda") and not target else ()
    return [
        report,
        *(bench_shape(shape, device, form, limit, repeats, max_new_tokens, progress) for shape in shapes),
    ]


def bench_shape(
    shape: Shape, device: str, weights: str, limit: int, repeats: int, max_new_tokens: int, progress: Progress
) -> Report:
    """The report on a pair of this shape with random weights; only a note if the memory is too small."""
    try:
        check_memory(f"The {shape.name} pair", memory_of(shape, weights), free_memory(device), device)
        return _bench_made(shape, device, weights, limit, repeats, max_new_tokens, progress)
    except UserError as error:
        reason = str(error)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        reason = sentence_of(error)
    return Report(shape.name, weights, device, [], notes=[f"Left out: {reason}"])


def _bench_made(
    shape: Shape, device: str, weights: str, limit: int, repeats: int, max_new_tokens: int, progress: Progress
) -> Report:
    progress(f"Making a {shape.name} pair", None)
    dtype = torch.float32 if weights == "float32" else torch.bfloat16
    models = make_models(shape, device, dtype)
    pair = make_pair(shape, *models, device, weights)
    prompts = random_prompts(shape.vocab, limit)
    return bench_pair(
        pair, *models, prompts, max_new_tokens=max_new_tokens, repeats=repeats, cores=1, progress=progress
    )


def _transformers_models(described: PairDescription, weights: str, device: str, progress: Progress) -> tuple[Any, Any]:
    """transformers' own modules of the target and the default draft, with the same weights and dtype."""
    sources = Sources(described, HuggingFaceHub(), progress)
    dtype = torch.float32 if weights == "float32" else torch.bfloat16
    names = described.target, described.drafts[described.default_draft]
    return tuple(load_hf_model(sources.fetch(name).folder, dtype).to(device) for name in names)


def _long_text(pair: Pair) -> list[int]:
    """Token ids of several prompts, concatenated."""
    return [
        token
        for one in load_suite(suites_for("all", pair.chat), "test", 16)
        for token in pair.tokenizer.encode(one.prompt)
    ]
