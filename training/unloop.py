"""Training of the target to leave its loops: sequence-level unlikelihood added to the usual loss.

Greedy text of a small model soon repeats itself forever. Welleck et al. 2019 (arXiv 1908.04319, section 5.2) let the
model write greedily and then lower the probability of what it repeated, with the loss -log(1 - p(y_t | before)) for
each repeated token y_t. Here a token counts as repeated if it lies inside a loop (:mod:`training.loops`) or ends a
stretch of N_GRAM tokens that occurred twice before. Each update also includes windows of the corpus, so that the target
keeps learning and keeps the repetition that belongs to code.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from training.architecture import load_model, save_model
from training.batch_decoder import BatchDecoder
from training.loop import (
    Rates,
    TimedRun,
    compiled,
    device,
    hidden_states,
    last_of_log,
    logits_of,
    mean_loss,
    next_token_loss,
    on_device,
    set_attention,
)
from training.loops import inside_loops
from training.target import SHORT, TARGET, TargetTraining
from training.tokens import Windows

NAME = "target-unlooped"
RATES = Rates(muon=0.007, adam=1e-3, warmup=0.03, flat_until=0.3, last=0.02)
PREFIXES = (24, 40, 64)  # tokens of the corpus that a text continues
LENGTH = 168  # of prefix and text together
TEXTS = 16  # written per step
N_GRAM, TWICE = 8, 2
WEIGHT = 1.0  # of the unlikelihood, relative to the loss on the corpus
LOG_EVERY = 10  # steps between logs of the share of repeated tokens
LONG_FROM = 0.75  # share of the time after which the corpus windows have full context


def train_unlooped(minutes: float) -> Path:
    """Trains the target in ``build/target`` further for ``minutes``; a killed run resumes."""
    training = TargetTraining(minutes)
    run = TimedRun(NAME, on_device(load_model(TARGET)), 60 * minutes, {"texts": TEXTS, "weight": WEIGHT}, RATES)
    run.position = run.position or _windows_seen()
    for windows, until in ((training.short, LONG_FROM), (training.long, 1.0)):
        size = max(1, training.plan.tokens_per_step // windows.length)
        set_attention(run.model, windows.length)
        run.train(
            loss_of=_loss_of(run, windows, size, training.short),
            shape=(size, windows.length),
            held_out=lambda: mean_loss(run.model, training.held_out),
            save=lambda: save_model(run.model, TARGET, training.tokenizer),
            until=until,
        )
    return TARGET


def _windows_seen() -> int:
    """Number of short windows that the target's training has read so far."""
    return sum(last_of_log(name).get("tokens", 0) for name in ("target-first", "target-deepened")) // SHORT


def _loss_of(run: TimedRun, windows: Windows, size: int, prefixes: Windows) -> Callable[[int], Tensor]:
    """The loss of a step: on ``size`` windows of the corpus and on texts that the target writes for this step."""
    on_corpus = compiled(lambda ids: next_token_loss(run.model, ids))
    on_text = compiled(lambda ids, repeated: unlikelihood(run.model, ids, repeated))

    def loss(start: int) -> Tensor:
        length = PREFIXES[run.steps % len(PREFIXES)]
        text = write(run.model, prefixes.batch(start + size, TEXTS)[:, :length].to(device()))
        repeated = torch.tensor([_mask(row, length) for row in text.tolist()], device=device())
        if run.steps % LOG_EVERY == 0:
            run.log(repeated=float(repeated[:, length:].float().mean()))
        return on_corpus(windows.batch(start, size).to(device())) + WEIGHT * on_text(text, repeated)

    return loss


def write(model: LlamaForCausalLM, prompts: Tensor) -> Tensor:
    """Greedy text after ``prompts`` (rows, n), up to LENGTH: (rows, LENGTH)."""
    decoder = BatchDecoder(model, len(prompts), LENGTH)
    ids = torch.zeros(len(prompts), LENGTH, dtype=torch.long, device=prompts.device)
    ids[:, : prompts.shape[1]] = prompts
    hidden = decoder.extend(prompts, 0)
    for position in range(prompts.shape[1], LENGTH):
        ids[:, position] = decoder.logits(hidden[:, -1]).argmax(-1)
        hidden = decoder.extend(ids[:, position : position + 1], position)
    return ids


def _mask(ids: list[int], n_prompt: int) -> list[bool]:
    return [False] * n_prompt + repeats(ids[n_prompt:])


def repeats(text: Sequence[int]) -> list[bool]:
    """For each token whether it lies inside a loop or ends N_GRAM tokens that occurred TWICE before."""
    seen: Counter[tuple[int, ...]] = Counter()
    found = inside_loops(text)
    for end in range(N_GRAM, len(text) + 1):
        stretch = tuple(text[end - N_GRAM : end])
        found[end - 1] |= seen[stretch] >= TWICE
        seen[stretch] += 1
    return found


def unlikelihood(model: LlamaForCausalLM, ids: Tensor, repeated: Tensor) -> Tensor:
    """Mean over all tokens of -log(1 - p) where ``repeated``, 0 elsewhere. ids and repeated: (rows, length)."""
    logits = logits_of(model, hidden_states(model, ids[:, :-1])).float()
    p = torch.exp(torch.gather(logits, 2, ids[:, 1:, None])[..., 0] - torch.logsumexp(logits, -1))
    missed = torch.log1p(-p.clamp(max=1 - 1e-4))
    return -(missed * repeated[:, 1:]).mean()
