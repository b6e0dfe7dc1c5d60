"""Figures of the drafts on answers that no draft was trained on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from transformers import LlamaForCausalLM

from decoding.engines.slim import read_head_ids

from .measure import Guesses, guesses, tokens_per_pass
from .rounding import round_layers
from .shards import all_texts
from .table import rates_of
from .teacher import Teacher

SL = 3
"""Tokens drafted per iteration in the figure that Goel et al. (2024, table 1) call block efficiency."""


def measure_drafts(folders: Mapping[str, Path], teacher: Teacher, report: Callable[[str], None]) -> dict[str, dict]:
    """Figures of each draft, its layers in four bits, on the answers of the validation split; ``folders``: name ->
    folder with all weights.
    """
    figures = {}
    for name, folder in folders.items():
        draft = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        round_layers(draft)
        head_ids = read_head_ids(folder)
        every = torch.arange(draft.config.vocab_size) if head_ids is None else head_ids
        texts = teacher.texts(teacher.validation, every)
        found = guesses(draft, texts, range(len(texts.texts)))
        figures[name] = _figures(found) | {
            "parameters": sum(weight.numel() for weight in draft.parameters()),
            "layers": draft.config.num_hidden_layers,
            "width": draft.config.hidden_size,
            "head_rows": len(every),
            "outside": outside(teacher, every),
        }
        report(f"{name}: match rate {figures[name]['match']['rate']:.3f}")
    return figures


def _figures(found: list[Guesses]) -> dict:
    greedy = [guess.hits for guess in found if guess.temperature == 0]
    sampled = [guess.accepted for guess in found if guess.temperature == 1]
    passes = sum(len(row) / tokens_per_pass(row, SL) for row in greedy)
    return {
        "answers": len(greedy),
        "answer_tokens": sum(map(len, greedy)),
        "match": asdict(rates_of(greedy)),
        "accepted": asdict(rates_of(sampled)),
        "tokens_per_pass": sum(map(len, greedy)) / passes,
    }


def outside(teacher: Teacher, head_ids: torch.Tensor) -> float:
    """Share of the validation split's answer tokens that a reduced head cannot propose."""
    inside = set(head_ids.tolist())
    missed = [
        np.array([token not in inside for token in text.ids[text.answer :].tolist()]) for text in teacher.validation
    ]
    return float(np.concatenate(missed).mean())


def facts_of_texts(folder: Path) -> dict[str, int]:
    """Numbers of the texts that the target has written and of their tokens."""
    lengths = [len(text.ids) for text in all_texts(folder)]
    return {"texts": len(lengths), "tokens": sum(lengths)}
