"""The figures of a pair, draft by draft and suite by suite, along the target's own greedy text."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers import LlamaForCausalLM, PreTrainedTokenizerBase

from decoding.records.suites import SUITES, Prompt, load_suite
from training.architecture import load_tokenizer_of
from training.baselines import bits_per_byte, compressed_bits, five_gram_bits
from training.corpus import read_documents
from training.greedy_texts import greedy_texts
from training.loop import device, on_device
from training.loops import distinct, inside_loops, runs_that_hold
from training.tokenizer import CONTEXT, VOCABULARY
from training.tokens import read_tokens

NEW_TOKENS = 128


@dataclass(frozen=True)
class Text:
    """The target's greedy continuation of one prompt; ``in_loop`` marks the tokens inside a loop."""

    suite: str
    prompt: list[int]
    ids: list[int]
    in_loop: list[bool]


def load_bf16(folder: Path) -> LlamaForCausalLM:
    """A shipped model, in bf16."""
    return on_device(LlamaForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)).eval()


def write_texts_of(
    target: LlamaForCausalLM, folder: Path, prompts: Sequence[Prompt]
) -> tuple[PreTrainedTokenizerBase, list[list[int]]]:
    """The tokenizer, and greedy texts of up to NEW_TOKENS ids after the prompts."""
    tokenizer = load_tokenizer_of(folder)
    ids = [tokenizer(prompt.prompt).input_ids for prompt in prompts]
    return tokenizer, greedy_texts(target, ids, NEW_TOKENS, frozenset([tokenizer.eos_token_id]))


def write_texts(target: LlamaForCausalLM, folder: Path, limit: int, split: str = "test") -> list[Text]:
    """Greedy text after the first ``limit`` prompts of each suite's split, with loops marked."""
    prompts = [prompt for suite in SUITES for prompt in load_suite(suite, split, limit)]
    tokenizer, texts = write_texts_of(target, folder, prompts)
    found = []
    for prompt, text in zip(prompts, texts, strict=True):
        before = tokenizer(prompt.prompt).input_ids
        found.append(Text(prompt.suite, before, text, inside_loops(before + text)[len(before) :]))
    return found


@torch.inference_mode()
def probabilities(model: LlamaForCausalLM, text: Text) -> Tensor:
    """The model's distribution at each token of the text. Shape (tokens, vocabulary), fp32."""
    ids = torch.tensor([text.prompt + text.ids[:-1]], device=device())
    return model(input_ids=ids, use_cache=False, logits_to_keep=len(text.ids)).logits[0].float().softmax(-1)


@dataclass(frozen=True)
class Along:
    """One draft along one text: whether its first choice is the text's token, and 1-TV to the target."""

    suite: str
    hits: np.ndarray
    overlap: np.ndarray
    in_loop: np.ndarray


def go_along(
    target: LlamaForCausalLM, drafts: dict[str, LlamaForCausalLM], texts: Sequence[Text]
) -> dict[str, list[Along]]:
    """Runs every draft along every text, and the target once per text."""
    found: dict[str, list[Along]] = {name: [] for name in drafts}
    for text in texts:
        p, ids, in_loop = probabilities(target, text), torch.tensor(text.ids), np.array(text.in_loop)
        for name, draft in drafts.items():
            q = probabilities(draft, text)
            hits, overlap = q.argmax(-1).cpu() == ids, torch.minimum(p, q).sum(-1).cpu()
            found[name].append(Along(text.suite, hits.numpy(), overlap.numpy(), in_loop))
    return found


def summarise(alongs: Sequence[Along]) -> dict[str, float | None]:
    """Match rate and 1-TV over all tokens, outside and inside loops; mean and standard deviation of the oracle SL.

    ``match_outside_error`` is the standard error of the match rate outside; ``oracle_sl_outside`` counts the
    oracle's SLs over the text up to its first loop.
    """
    hits, overlap, in_loop = (
        np.concatenate([getattr(a, key) for a in alongs]) for key in ("hits", "overlap", "in_loop")
    )
    runs = [run for a in alongs for run in runs_that_hold(a.hits.tolist())]
    before = [run for a in alongs for run in runs_that_hold(a.hits[: first_true(a.in_loop)].tolist())]
    return {
        "tokens": len(hits),
        "loop_share": float(in_loop.mean()),
        "match": float(hits.mean()),
        "match_outside": mean_of(hits[~in_loop]),
        "match_outside_error": error_outside(alongs),
        "match_inside": mean_of(hits[in_loop]),
        "overlap": float(overlap.mean()),
        "overlap_outside": mean_of(overlap[~in_loop]),
        "overlap_inside": mean_of(overlap[in_loop]),
        "oracle_sl": statistics.fmean(runs),
        "oracle_sl_sd": statistics.pstdev(runs),
        "oracle_sl_outside": mean_of(np.array(before)),
        "oracle_sl_outside_sd": float(np.std(before)) if before else 0.0,
    }


def error_outside(alongs: Sequence[Along]) -> float | None:
    """Standard error of the match rate outside loops, with texts as clusters; None for fewer than two texts.

    Tokens of one text are correlated, so texts are the sampling units: the linearised variance of a ratio of two sums
    (Cochran 1977, "Sampling Techniques", section 6.5).
    """
    tokens = np.array([float((~a.in_loop).sum()) for a in alongs])
    hits = np.array([float(a.hits[~a.in_loop].sum()) for a in alongs])
    if len(alongs) < 2 or not tokens.sum():
        return None
    residuals = hits - hits.sum() / tokens.sum() * tokens
    spread = len(alongs) / (len(alongs) - 1) * float((residuals**2).sum())
    return spread**0.5 / float(tokens.sum())


def first_true(flags: np.ndarray) -> int:
    """Index of the first true flag, or the number of flags."""
    return int(flags.argmax()) if flags.any() else len(flags)


def mean_of(values: np.ndarray) -> float | None:
    """The mean; None of an empty sequence."""
    return float(values.mean()) if len(values) else None


def by_suite(alongs: Sequence[Along]) -> dict[str, dict[str, float | None]]:
    """``summarise`` for each suite and, as ``all``, for all of them."""
    rows = {suite: [a for a in alongs if a.suite == suite] for suite in SUITES}
    return {name: summarise(row) for name, row in {**rows, "all": list(alongs)}.items() if row}


def text_figures(texts: Sequence[Text]) -> dict[str, dict[str, float]]:
    """Tokens, share in loops and distinct-4 of the target's texts, per suite and over all."""
    rows = {suite: [t for t in texts if t.suite == suite] for suite in SUITES}
    return {
        name: {
            "tokens": sum(len(t.ids) for t in row),
            "distinct_4": distinct([t.ids for t in row]),
            "loop_share": float(np.concatenate([t.in_loop for t in row]).mean()),
        }
        for name, row in {**rows, "all": list(texts)}.items()
        if row
    }


@torch.inference_mode()
def nats_per_token(model: LlamaForCausalLM, ids: Sequence[int], bos: int) -> float:
    """Cross-entropy of ids, cut into independent windows of the full context that each start with BOS."""
    nats = 0.0
    for start in range(0, len(ids), CONTEXT - 1):
        window = torch.tensor([[bos, *ids[start : start + CONTEXT - 1]]], device=device())
        logits = model(input_ids=window[:, :-1], use_cache=False).logits[0].float()
        nats += float(torch.nn.functional.cross_entropy(logits, window[0, 1:], reduction="sum"))
    return nats / len(ids)


def held_out_figures(
    target: LlamaForCausalLM,
    drafts: dict[str, LlamaForCausalLM],
    folder: Path,
    seen: int,
    characters: int = 300_000,
) -> dict:
    """Bits per byte of held-out text under the target, each draft, gzip -9, xz -9, and a 5-gram trained on ``seen``
    tokens.
    """
    tokenizer, text = load_tokenizer_of(folder), ""
    for document in read_documents("held_out"):
        text += document.text[: characters - len(text)]
    ids, size = tokenizer(text, verbose=False).input_ids[1:], len(text.encode())
    nats = {name: nats_per_token(draft, ids, tokenizer.bos_token_id) for name, draft in drafts.items()}
    target_nats = nats_per_token(target, ids, tokenizer.bos_token_id)
    n_gram = five_gram_bits(np.asarray(read_tokens("train")[:seen]), np.asarray(ids), VOCABULARY)
    return {
        "bytes": size,
        "tokens": len(ids),
        "nats_per_token": target_nats,
        "target": bits_per_byte(target_nats, len(ids), size),
        **compressed_bits(text),
        "5-gram": n_gram * len(ids) / size,
        "drafts": {name: bits_per_byte(value, len(ids), size) for name, value in nats.items()},
    }
