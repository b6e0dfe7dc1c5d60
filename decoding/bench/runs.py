"""The pairs that a benchmark runs on: the named one, and on a GPU also pairs of larger shapes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ..engines.checks import check_memory, free_memory
from ..engines.choosing import plain_dtype
from ..engines.hub import HuggingFaceHub
from ..engines.loading import choose_device, load_hf_model
from ..engines.pair import load_pair
from ..engines.sources import Sources
from ..errors import UserError, is_out_of_memory, sentence_of
from ..records.pairs import PairDescription, embedded_pairs, find_pair, name_pair
from ..records.suites import load_suite, suites_for
from .against import Progress, Report, bench_llamacpp, bench_pair, measure_growth
from .llamacpp import NOTE, LlamaCppContender, check_installed
from .shapes import SHAPES, Shape, make_models, make_pair, memory_of, random_prompts

if TYPE_CHECKING:
    from ..engines.pair import Pair


@dataclass(frozen=True, slots=True)
class Work:
    """What a benchmark is to do: ``limit`` prompts, ``repeats`` runs of each contender, so many CPU ``cores``."""

    limit: int
    repeats: int
    max_new_tokens: int
    device: str = "cpu"
    dtype: str = "auto"
    cores: int = 1


def bench_all(pair: str, target: str, draft: str, work: Work, progress: Progress) -> list[Report]:
    """Reports against transformers: on the named pair ("": on all embedded ones), on CUDA also on the shaped pairs."""
    device = choose_device(work.device)
    reports = [_bench_described(one, device, work, progress) for one in _described(pair, target, draft)]
    for shape in SHAPES if device.startswith("cuda") and not target else ():
        reports.append(
            bench_shape(shape, device, _plain(work, device), work.limit, work.repeats, work.max_new_tokens, progress)
        )
    return reports


def bench_against_llamacpp(pair: str, target: str, draft: str, work: Work, progress: Progress) -> list[Report]:
    """A report against llama.cpp on the named pair ("": the default one), whose target must be from a GGUF file."""
    check_installed()
    if choose_device(work.device) != "cpu":
        raise UserError("llama.cpp is compared on a CPU, one thread each: use --device cpu.")
    described = name_pair(target, draft) if target or draft else find_pair(pair)
    find_file = Sources(described, HuggingFaceHub(), progress).fetch(described.target).gguf
    if find_file is None:
        raise UserError(f"The target of {described.name} is not from a GGUF file: use --pair smollm2-135m.")
    name = "" if target else described.name
    draft = draft if target else ""
    sixteen, four = (
        load_pair(name, target, draft, dtype, device="cpu", threads=1, progress=progress) for dtype in ("auto", "int4")
    )
    prompts = _prompts(sixteen, work)
    theirs = LlamaCppContender(find_file(), max(map(len, prompts)) + work.max_new_tokens + 1)
    report = bench_llamacpp(
        sixteen, four, theirs, prompts, max_new_tokens=work.max_new_tokens, repeats=work.repeats, progress=progress
    )
    report.notes.append(NOTE)
    return [report]


def _described(pair: str, target: str, draft: str) -> list[PairDescription]:
    if target or draft:
        return [name_pair(target, draft)]
    here = [] if pair else [one for one in embedded_pairs() if one.loadable]
    return here or [find_pair(pair)]


def _bench_described(described: PairDescription, device: str, work: Work, progress: Progress) -> Report:
    name, target, draft = described.name, "", ""
    if described.kind == "named":
        name, target, draft = "", described.target, described.drafts[described.default_draft]
    loaded = load_pair(name, target, draft, work.dtype, device, progress=progress)
    report = bench_pair(
        loaded,
        *_transformers_models(described, _plain(work, device), device, progress),
        _prompts(loaded, work),
        max_new_tokens=work.max_new_tokens,
        repeats=work.repeats,
        cores=work.cores,
        progress=progress,
    )
    progress("Measuring how time grows with the context", None)
    report.growth = measure_growth(loaded, _long_text(loaded), work.repeats)
    return report


def _plain(work: Work, device: str) -> str:
    """The dtype of transformers' models: the one asked for, else the faster one here."""
    return work.dtype if work.dtype in ("float32", "bfloat16") else plain_dtype(device)


def _prompts(pair: Pair, work: Work) -> list[list[int]]:
    """Token ids of test prompts, cut to what the target's context leaves room for."""
    room = pair.target.max_length - work.max_new_tokens - 1
    suite = load_suite(suites_for("all", pair.chat), "test", work.limit)
    return [pair.encode_prompt(one.prompt).ids[-room:] for one in suite]


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
