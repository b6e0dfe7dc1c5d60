"""Distils drafts on the chat model's own texts (Goel et al. 2024, "Direct Alignment of Draft Model", section 3): what
all trainings share, and the drafts that read the text alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from decoding.engines.slim import is_slim, own_weights, read_head_ids
from decoding.errors import UserError
from training import DRAFTS, PAIR, TEXTS
from training.loop import Plan, Rates, TimedRun, append_to_log, last_of_log

from .data import Batch, Epochs, Texts, frequent_ids
from .drafts import RECIPES, Recipe, grow, rounded_layers, save_slim, start_draft
from .feature import FeatureDraft, HeadsDraft
from .losses import ROWS, loss_over_head, variation
from .measure import SL, facts_of_texts, figures_of_steps, figures_of_text, outside
from .teacher import Teacher, model

FURTHER = "-further"
"""Ends the name of the run that trains a shipped draft further."""
WATCHED, WATCHED_ON_GPU = 160, 800
"""Held-back texts that are measured during training."""
BATCH = 4096
"""Padded tokens that are measured at once."""
FADING = 0.8
"""Weight of a guess relative to the one before it (EAGLE-3's code)."""
GPU_ROWS = 4096
"""As losses.ROWS, on a GPU."""

NEW = Plan(Rates(muon=0.02, adam=3e-3, warmup=0.02, flat_until=0.3))
GROWN = Plan(Rates(muon=0.01, adam=1.5e-3, warmup=0.02, flat_until=0.3))
"""For a draft that starts from a shallower one."""
FINISHED = Plan(Rates(muon=0.0015, adam=1.5e-4, warmup=0.04, flat_until=0.25), 4096, 0.3)
"""For a finished draft on further texts; a step of Muon takes as long as 2,048 tokens, so batches are larger."""


class Learner(ABC):
    """A ``draft`` that may propose ``head_ids``, and reads the target's states after each of ``layers``. Its batches
    are shared with those that learn beside it. ``turns``: the guesses of an iteration that are unrolled in training,
    batch after batch in turns.
    """

    recipe: Any

    def __init__(
        self,
        teacher: Teacher,
        draft: FeatureDraft | HeadsDraft,
        head_ids: Tensor,
        layers: tuple[int, ...] = (),
        turns: tuple[int, ...] = (1,),
    ) -> None:
        self.teacher, self.layers, self.turns = teacher, layers, turns
        self.draft, self.head_ids = draft.to(teacher.device), head_ids.to(teacher.device)
        self.head = draft.trunk.lm_head.weight.detach()[self.head_ids].bfloat16()

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Writes the draft as a slim folder."""

    def loss_of(self, number: int, batch: Batch) -> Tensor:
        """The loss of each guess of the unrolled iterations, where those before hold, on the batch of that number."""
        known, guesses = batch.known(self.head_ids), self.turns[number % len(self.turns)]
        rows = ROWS if batch.ids.is_cpu else GPU_ROWS
        total, weight = torch.zeros((), device=batch.ids.device), 1.0
        reached = torch.ones_like(batch.places, dtype=torch.bool)
        for step, hidden in enumerate(self._hidden(batch, guesses)):
            total = total + weight * loss_over_head(hidden[reached], self.head, known[reached], rows)
            weight *= FADING
            if step + 1 < guesses:
                reached = self._next_reached(hidden, batch, reached)
                if not reached.any():
                    break
        return total

    def _hidden(self, batch: Batch, steps: int) -> Iterator[Tensor]:
        """The states (n, width) that the head reads at the places of ``batch``, for each of so many guesses."""
        for last in self.draft.unroll(batch.ids, self.teacher.select(batch, self.layers), steps):
            yield last.flatten(0, 1)[batch.places].bfloat16()

    @torch.no_grad()
    def _next_reached(self, hidden: Tensor, batch: Batch, reached: Tensor) -> Tensor:
        """Where the next guess is made: after guesses that hold."""
        good = torch.zeros_like(reached)
        good[reached] = self._holds(hidden[reached], batch.following[reached])
        after = torch.zeros_like(good)
        after[1:] = good[:-1] & (batch.places[1:] == batch.places[:-1] + 1)
        return after

    def _holds(self, hidden: Tensor, following: Tensor) -> Tensor:
        """Whether the guesses are the ``following`` ids (n,)."""
        firsts = [linear(part, self.head).argmax(-1) for part in hidden.split(1024)]
        return self.head_ids[torch.cat(firsts)] == following

    @torch.no_grad()
    def held(self, texts: Texts, tokens: int, temperature: float = 0.0) -> list[np.ndarray]:
        """Of each answer at this temperature (SL, n): whether the guess of each step for each token holds, or of
        sampled ones (n,), how likely a sampled first guess is accepted there. Matrices are in four bits, batches of at
        most ``tokens`` padded tokens.
        """
        found = []
        self.draft.eval()
        with rounded_layers(self.draft):
            for rows in texts.batches(tokens, 0):
                rows = [row for row in rows if texts.texts[row].temperature == temperature]
                if rows:
                    batch = texts.batch(rows)
                    columns = (self._accepted(batch) if temperature else self._steps_held(batch)).cpu().numpy()
                    found += [columns[..., answer] for answer in texts.answers(rows)]
        self.draft.train()
        return found

    def _steps_held(self, batch: Batch) -> Tensor:
        """Where a draft reads the text alone, its guess is the same from any start."""
        lasts = self._hidden(batch, SL if self.layers else 1)
        return torch.stack([self._holds(hidden, batch.following) for hidden in lasts]).expand(SL, -1)

    def _accepted(self, batch: Batch) -> Tensor:
        """The target's mass outside the head cannot be accepted; variation covers only what the head can propose."""
        known = batch.known(self.head_ids)
        logits = linear(next(self._hidden(batch, 1)), self.head).float()
        outside = (known.logp.exp() * ~known.inside).sum(-1)
        return 1 - variation(logits, known) - 0.5 * outside


class Run:
    """The training of drafts by name, in shuffled epochs over the texts. Their losses are summed; since every matrix is
    in one draft, and Muon and AdamW do not depend on the scale of a gradient, each learns as it would alone.
    """

    def __init__(self, kind: str, learners: Mapping[str, Learner], plan: Plan) -> None:
        """``kind``: ends the names of the logs."""
        self.kind, self.learners, self.plan = kind, learners, plan
        self.teacher = teacher = next(iter(learners.values())).teacher
        reads = any(one.layers for one in learners.values())
        self.epochs = Epochs(teacher.texts(teacher.splits["train"], reads), plan.batch_tokens)
        watched = teacher.splits["validation"] + teacher.splits["policies"]
        self.watched = teacher.texts(watched[: WATCHED_ON_GPU if teacher.fresh else WATCHED], reads)
        self.about: dict[str, float | str] = {"written": facts_of_texts(teacher.folder)["tokens"]}
        if teacher.fresh:
            on_cuda = teacher.device.type == "cuda"
            self.about["device"] = torch.cuda.get_device_name() if on_cuda else teacher.device.type

    def train(self, minutes: float, tokens: int | None = None) -> None:
        """Trains for ``minutes`` or on ``tokens`` tokens, which both count what this run did before it was interrupted,
        and writes the drafts into ``build/align/drafts``.
        """
        recipes = {name: one.recipe for name, one in self.learners.items()}
        settings = {"drafts": recipes, "plan": self.plan, "target": self.teacher.mark}
        name = f"align{self.kind}-{'-'.join(self.learners)}"
        drafts = nn.ModuleDict({name: one.draft for name, one in self.learners.items()})
        self.timed = TimedRun(name, drafts, 60 * minutes, settings, self.plan, tokens)
        self.timed.train(self.loss_of, self.watch, self.save)

    def loss_of(self, number: int) -> Tensor:
        """The loss on batch ``number``, counted over all epochs."""
        batch = self.epochs.batch(number)
        return torch.stack([one.loss_of(number, batch) for one in self.learners.values()]).sum()

    def watch(self) -> float:
        """The rate of first guesses of the first draft, 0 without greedy answers; logs the figures of all."""
        rates = []
        for name, one in self.learners.items():
            hits = one.held(self.watched, self.plan.batch_tokens)
            found = figures_of_steps(hits) if hits else {"first": 0.0}
            rates.append(found["first"])
            append_to_log(f"align-{name}{self.kind}", self.timed.progress | self.about | found)
            print(name, {key: round(value, 4) for key, value in found.items()}, self.timed.progress, flush=True)
        return rates[0]

    def save(self) -> None:
        for name, one in self.learners.items():
            one.save(DRAFTS / name)


class TextLearner(Learner):
    """A draft that reads the text alone. ``start``: the slim folder of a trained draft of this recipe, to go on with it
    and the head that it has.
    """

    def __init__(self, recipe: Recipe, teacher: Teacher, start: Path | None = None) -> None:
        self.recipe, weights = recipe, {} if start is None else own_weights(start)
        its_head = None if start is None else read_head_ids(start)
        head_ids = frequent_ids(teacher.splits["train"], recipe.head) if its_head is None else its_head
        trunk, self.projection = start_draft(recipe, teacher.target, weights.get("projection"))
        if start is None and recipe.grown_from:
            grow(trunk, _weights_of(recipe.grown_from))
        trunk.load_state_dict(weights, strict=False)
        super().__init__(teacher, FeatureDraft(trunk, ()), head_ids)

    def save(self, folder: Path) -> None:
        save_slim(self.draft.trunk, folder, self.head_ids, self.recipe.target_layers, self.projection)


def _weights_of(name: str) -> dict[str, Tensor]:
    """The trained weights of the named draft. Raises UserError if it is not trained yet."""
    folder = DRAFTS / name
    if not (folder / "config.json").is_file():
        raise UserError(
            f"This draft starts from {name!r}: run `python -m training align draft {name} --minutes 40` first."
        )
    return own_weights(folder)


def distil(name: str, minutes: float = inf, tokens: int | None = None, further: bool = False) -> str:
    """Distils the named draft for ``minutes`` or on ``tokens``; returns a sentence on its match rate.

    ``further``: starts from the shipped draft of that name. Raises UserError.
    """
    if name not in RECIPES:
        raise UserError(f"There is no draft {name!r}. Drafts: {', '.join(RECIPES)}.")
    recipe, shipped = RECIPES[name], PAIR / "drafts" / name
    if further and not is_slim(shipped):
        raise UserError(f"There is no shipped draft {name!r} to train further. Train it without --further first.")
    plan = FINISHED if further else GROWN if recipe.grown_from else NEW
    learner = TextLearner(recipe, Teacher(model(), TEXTS), shipped if further else None)
    run = Run(FURTHER if further else "", {name: learner}, plan)
    run.train(minutes, tokens)
    return f"match rate {run.watch():.3f} on held-out texts"


def measure_installed(names: Sequence[str], report: Callable[[str], None]) -> dict[str, dict]:
    """Figures of each named draft of PAIR, its layers in four bits, on the answers of the validation split."""
    teacher, figures = Teacher(model(), TEXTS), {}
    answers = teacher.splits["validation"]
    texts = teacher.texts(answers)
    for name in names:
        one = TextLearner(RECIPES[name], teacher, PAIR / "drafts" / name)
        trunk, found = one.draft.trunk, figures_of_text(one.held(texts, BATCH), one.held(texts, BATCH, 1.0))
        figures[name] = found | {
            "parameters": sum(weight.numel() for weight in trunk.parameters()),
            "layers": trunk.config.num_hidden_layers,
            "width": trunk.config.hidden_size,
            "head_rows": len(one.head_ids),
            "outside": outside(answers, one.head_ids),
        }
        report(f"{name}: match rate {figures[name]['match']['rate']:.3f}")
    return figures


def facts_of(name: str) -> dict[str, float]:
    """What the training logs of a draft, and of the draft that it grew from, record: steps, minutes, tokens."""
    logs = [last_of_log(f"align-{name}"), last_of_log(f"align-{name}{FURTHER}")]
    if before := RECIPES[name].grown_from:
        logs.append(facts_of(before))
    return {key: sum(log.get(key, 0) for log in logs) for key in ("steps", "minutes", "tokens")}


def tokens_seen(name: str) -> int:
    """Tokens that a draft was trained on, with repetitions."""
    return int(facts_of(name)["tokens"])
