"""How well a draft guesses the target's answers, on texts that are not used for training."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import linear
from transformers import LlamaForCausalLM

from decoding.analysis.bootstrap import Bootstrap, Interval
from decoding.engines.slim import read_head_ids
from decoding.errors import UserError

from .data import Texts, all_texts
from .drafts import in_halves, round_layers
from .losses import variation
from .teacher import Teacher

SL = 3
"""Tokens drafted per iteration in the figure that Goel et al. (2024, table 1) call block efficiency."""


@dataclass(frozen=True, slots=True)
class Guesses:
    """Along one answer of n tokens: its temperature; ``hits`` (n,), whether the draft's first choice is the text's
    token; ``accepted`` (n,), the probability that a token sampled from the draft is accepted at temperature 1.
    """

    temperature: float
    hits: np.ndarray
    accepted: np.ndarray


@torch.no_grad()
def guesses(draft: LlamaForCausalLM, texts: Texts, head_ids: Tensor, tokens: int = 4096) -> list[Guesses]:
    """The guesses of a draft with this head along the answers of all texts, in batches of at most ``tokens`` padded
    tokens.
    """
    head, found = draft.lm_head.weight[head_ids].bfloat16(), []
    for rows in texts.batches(tokens, seed=0):
        batch = texts.batch(rows)
        known = batch.known(head_ids)
        logits = linear(hidden_at(draft, batch.ids, batch.places), head).float()
        first = head_ids[logits.argmax(-1)].numpy()
        outside = (known.logp.exp() * ~known.inside).sum(-1)
        # The target's mass outside the head cannot be accepted either; variation covers only what the head can propose.
        accepted = (1 - variation(logits, known) - 0.5 * outside).numpy()
        found += [Guesses(text.temperature, first[at] == ids, accepted[at]) for text, ids, at in texts.answers(rows)]
    return found


def hidden_at(draft: LlamaForCausalLM, ids: Tensor, places: Tensor) -> Tensor:
    """Last hidden states (n, width), bf16, at flat ``places`` (n,) of ids (texts, length)."""
    with in_halves(ids.device):
        return draft.model(input_ids=ids, use_cache=False).last_hidden_state.flatten(0, 1)[places].bfloat16()


def passes_of(hits: np.ndarray) -> int:
    """Passes of the target along one text, when each iteration makes a guess for each step of ``hits`` (steps, n):
    whether the guess of that step for each token holds.
    """
    place = passes = 0
    steps, n = hits.shape
    while place < n:
        run = 0
        while run < steps and place + run < n and hits[run, place + run]:
            run += 1
        place += run + 1
        passes += 1
    return passes


def rates_of(rows: Sequence[np.ndarray]) -> dict[str, float]:
    """The mean over all positions of ``rows`` (one per text) as ``rate``, and ``low`` and ``high`` of its 95% interval
    by a bootstrap over texts (Efron 1979).
    """
    if not sum(map(len, rows)):
        raise UserError(
            "There are too few held-out texts to measure on. Run `python -m training align texts` with more `--tokens`."
        )
    hits, counts = _totals(rows)
    return _as_rate(Bootstrap(len(rows)).ratio(hits, counts))


def difference(rows: Sequence[np.ndarray], others: Sequence[np.ndarray]) -> dict[str, float]:
    """The mean of ``rows`` minus that of ``others`` on the same texts, with an interval by a paired bootstrap."""
    (hits, counts), (theirs, their_counts) = _totals(rows), _totals(others)
    return _as_rate(
        Bootstrap(len(rows)).interval(lambda total: total(hits) / total(counts) - total(theirs) / total(their_counts))
    )


def _as_rate(found: Interval) -> dict[str, float]:
    return {"rate": found.value, "low": found.low, "high": found.high}


def _totals(rows: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """The sum and the number of positions of each text."""
    return np.array([row.sum() for row in rows], float), np.array([len(row) for row in rows], float)


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
        texts = teacher.texts(teacher.splits["validation"])
        figures[name] = _figures(guesses(draft, texts, every)) | {
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
    passes = sum(passes_of(np.broadcast_to(row, (SL, len(row)))) for row in greedy)  # the same from any start
    return {
        "answers": len(greedy),
        "answer_tokens": sum(map(len, greedy)),
        "match": rates_of(greedy),
        "accepted": rates_of(sampled),
        "tokens_per_pass": sum(map(len, greedy)) / passes,
    }


def outside(teacher: Teacher, head_ids: Tensor) -> float:
    """Share of the validation split's answer tokens that a reduced head cannot propose."""
    answers = np.concatenate([text.ids[text.answer :] for text in teacher.splits["validation"]])
    return float(np.isin(answers, head_ids.numpy(), invert=True).mean())


def facts_of_texts(folder: Path) -> dict[str, int]:
    """Numbers of the texts that the target has written and of their tokens."""
    lengths = [len(text.ids) for text in all_texts(folder)]
    return {"texts": len(lengths), "tokens": sum(lengths)}


def figures_of_steps(hits: Sequence[np.ndarray]) -> dict[str, float]:
    """Rates of the first three guesses from any start, and tokens per target pass, of the ``hits`` of each answer."""
    by_step = [np.concatenate([each[step] for each in hits]) for step in range(SL)]
    passes = sum(map(passes_of, hits))
    return {
        "first": float(by_step[0].mean()),
        "second": float(by_step[1].mean()),
        "third": float(by_step[2].mean()),
        "second_if_reached": after_hits(hits, 1),
        "third_if_reached": after_hits(hits, 2),
        "tokens_per_pass": len(by_step[0]) / passes,
        "answers": len(hits),
        "answer_tokens": len(by_step[0]),
    }


def after_hits(hits: Sequence[np.ndarray], step: int) -> float:
    """How often the guess of ``step`` holds where those before it in the iteration hold."""
    good = total = 0
    for rows in hits:
        reached = np.ones(rows.shape[1] - step, bool)
        for s in range(step):
            reached &= rows[s, s : s + len(reached)]
        good += int((rows[step, step:] & reached).sum())
        total += int(reached.sum())
    return good / max(total, 1)
