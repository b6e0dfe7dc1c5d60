"""Training data: the draft's guess at each position of the target's own text, and whether it is right.

As in DISCO, the draft proposes one token at each prefix of the target's text. As in SpecDec++, the draft reads a
mixture of the target's tokens and its own guesses, and a hidden state whose input was a guess is labelled with that
guess's acceptance. One parallel pass of the draft over a text gives all positions.

The mixture puts wrong guesses into the context of later ones, which a live draft never sees before its first mistake.
Therefore there are also "clean" states: each guess is read after the target's own text, at the cost of one draft step
per wrong guess.

What a draft guesses that reads the target's hidden states depends on where an iteration begins; its iterations are run.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch

from ..comparison.chain import iterations_along
from ..engines.base import CachedModel
from ..engines.inputs import FINAL, EncodedPrompt
from ..lookahead.base import DraftState
from ..lookahead.ngrams import N_LEVELS, Ngrams
from ..lookahead.repetition import evidence_along
from ..loop.drafting import DraftSource, ModelProposal, prefill
from ..loop.features import FeatureReader, all_rows, as_rows
from ..loop.limits import Limits

NEEDS = frozenset({"entropy", "top10"})
MIXING = 0.15  # SpecDec++: share of inputs that are the target's tokens


@dataclass(slots=True)
class Positions:
    """Parallel arrays over all positions of all texts; ``text`` is the number of a position's text."""

    text: np.ndarray
    position: np.ndarray  # from the start of generation
    p: np.ndarray
    entropy: np.ndarray
    top10: np.ndarray  # [n, 10]
    margin: np.ndarray  # nats
    evidence: np.ndarray  # codes of Repetition
    levels: np.ndarray  # [n, N_LEVELS] uint8, of Ngrams; all 0 without counts
    match: np.ndarray  # 1 if the guess is the target's token, else 0
    overlap: np.ndarray  # 1 - TV(draft, target)
    mixed: np.ndarray  # [n, hidden] float16: states of the mixed pass, whose input is the guess or the target's token
    judged: np.ndarray  # bool: the input was the guess, so ``match`` is the label of ``mixed``
    clean: np.ndarray  # [n, hidden] float16: states whose input is the guess, after the target's own text

    def __len__(self) -> int:
        return len(self.text)

    def take(self, rows: np.ndarray) -> Positions:
        return Positions(*(getattr(self, one.name)[rows] for one in fields(self)))


class Collector(ABC):
    """Collects positions text by text."""

    def __init__(self, target: CachedModel, vocab_size: int, ngrams: Ngrams | None = None) -> None:
        self._target, self._vocab, self._ngrams = target, vocab_size, ngrams
        self._texts: list[Positions] = []

    @abstractmethod
    def add(self, prompt: list[int], text: list[int]) -> None:
        """Adds the draft's guesses along ``text``, the target's own text after ``prompt``."""

    def positions(self) -> Positions:
        """All positions collected so far."""
        columns = (np.concatenate([getattr(one, field.name) for one in self._texts]) for field in fields(Positions))
        return Positions(*columns)

    def _take(self, prompt: list[int], text: list[int], guesses: dict[int, int], **columns: np.ndarray) -> None:
        """Adds the guesses, by position, of one text; ``columns``: what does not follow from these."""
        along, places, n = [guesses.get(place) for place in range(len(text))], list(guesses), len(guesses)
        levels = np.zeros((n, N_LEVELS), dtype=np.uint8)
        columns |= {
            "text": np.full(n, len(self._texts)),
            "position": np.array(places),
            "evidence": np.array(evidence_along(prompt, text, along))[places],
            "levels": self._ngrams.levels_along(prompt, text, along)[places] if self._ngrams else levels,
            "match": np.array([guess == text[place] for place, guess in guesses.items()], dtype=np.float32),
        }
        self._texts.append(Positions(**columns))

    def _chances(self, prompt: list[int], text: list[int]) -> torch.Tensor:
        """The target's distributions along ``text`` [n, vocab]."""
        reads = [prompt[-1], *text[:-1]]
        return torch.from_numpy(_logits_along(self._target, prompt, reads)[:, : self._vocab]).softmax(-1)


class ParallelCollector(Collector):
    """Of a draft whose guesses depend on the text alone: one pass over a text gives all of them."""

    def __init__(
        self, target: CachedModel, draft: CachedModel, vocab_size: int, seed: int = 0, ngrams: Ngrams | None = None
    ) -> None:
        super().__init__(target, vocab_size, ngrams)
        self._draft, self._reader = draft, FeatureReader(vocab_size)
        self._random = np.random.default_rng(seed)

    @torch.inference_mode()
    def add(self, prompt: list[int], text: list[int]) -> None:
        reads = [prompt[-1], *text[:-1]]
        logits = _logits_along(self._draft, prompt, reads)[:, : self._vocab]
        guesses = logits.argmax(axis=1)
        # A share of MIXING of the inputs are the target's; where both agree, the input counts as the guess.
        mixed = np.where(self._random.random(len(text)) < MIXING, text, guesses)
        margins = [self._reader.margin(row, int(token)) for row, token in zip(logits, guesses, strict=True)]
        seen = [self._reader.read(row, int(token), NEEDS) for row, token in zip(logits, guesses, strict=True)]
        tops = [top10 for _, _, top10 in seen if top10 is not None]
        assert len(tops) == len(seen), "top10 is among the features that are needed"
        self._take(
            prompt,
            text,
            dict(enumerate(guesses.tolist())),
            p=np.array([one[0] for one in seen], dtype=np.float32),
            entropy=np.array([one[1] for one in seen], dtype=np.float32),
            top10=np.stack(tops),
            margin=np.array(margins, dtype=np.float32),
            overlap=torch.minimum(self._chances(prompt, text), torch.from_numpy(logits).softmax(-1)).sum(-1).numpy(),
            mixed=self._states(prompt, mixed.tolist()),
            judged=mixed == guesses,
            clean=self._clean_states(prompt, text, guesses.tolist()),
        )

    def _clean_states(self, prompt: list[int], text: list[int], guesses: list[int]) -> np.ndarray:
        """The pass over the text has read all right guesses; each wrong one is read at its position, last to first."""
        states = self._states(prompt, text)
        model = self._draft
        model.kept_layers = FINAL
        for index in reversed(range(len(text))):
            if guesses[index] != text[index]:
                model.rewind(len(prompt) + index)
                model.extend([guesses[index]])
                states[index] = as_rows(model.last_states[0])[-1]
        model.kept_layers = ()
        return states

    def _states(self, prompt: list[int], tokens: list[int]) -> np.ndarray:
        """Hidden states of the draft with each of ``tokens`` as its input, [n, hidden] float16."""
        model = self._draft
        model.kept_layers = FINAL
        try:
            _logits_along(model, prompt, [prompt[-1], *tokens])
            return as_rows(model.last_states[0])[1:].astype(np.float16)
        finally:
            model.kept_layers = ()


class LiveCollector(Collector):
    """Of a draft whose guesses depend on where an iteration begins: iterations end with their first mistake, and the
    next one begins after it, so that there is one guess for a position.

    Its states are those of these iterations, whose inputs are all guesses after the target's own text.
    """

    def __init__(
        self,
        target: CachedModel,
        source: DraftSource,
        vocab_size: int,
        ngrams: Ngrams | None = None,
    ) -> None:
        """``source`` computes all features under the greedy rule."""
        super().__init__(target, vocab_size, ngrams)
        self._source = source

    @torch.inference_mode()
    def add(self, prompt: list[int], text: list[int]) -> None:
        chances, overlap = self._chances(prompt, text), np.zeros(len(text), dtype=np.float32)

        def compare(position: int, proposal: ModelProposal) -> None:
            if position < len(text):  # after a mistake; the next iteration's guess replaces it
                ids = slice(None) if proposal.ids is None else torch.from_numpy(proposal.ids)
                guessed = torch.from_numpy(proposal.row).softmax(-1)
                overlap[position] = torch.minimum(chances[position, ids], guessed).sum()

        found, guesses = self._iterate(prompt, text, compare)
        hidden = np.stack(found.hidden).astype(np.float16)
        self._take(
            prompt,
            text,
            guesses,
            p=np.array(found.p, dtype=np.float32),
            entropy=np.array(found.entropy, dtype=np.float32),
            top10=np.stack(found.top10),
            margin=np.array(found.margin, dtype=np.float32),
            overlap=overlap[list(guesses)],
            mixed=hidden,
            judged=np.ones(len(guesses), dtype=bool),
            clean=hidden,
        )

    def _iterate(
        self, prompt: list[int], text: list[int], seen: Callable[[int, ModelProposal], None]
    ) -> tuple[DraftState, dict[int, int]]:
        """The features of the guesses up to each mistake, and the guesses by position. A position has none where the
        draft had nothing more to propose, one step after the guess too: a policy decides nothing there.
        """
        found, guesses = DraftState(), dict[int, int]()
        # The state of a mistake takes one step more, as does that of the text's last token.
        limits = Limits(len(text) + 2)
        iterations = iterations_along(
            self._source, EncodedPrompt(prompt), text, self._target, limits, longest=2, seen=seen
        )
        for state, right in iterations:
            n = min(right + 1, len(state.hidden), len(text) - state.start)
            guesses |= dict(enumerate(state.tokens[:n], state.start))
            for name in ("p", "entropy", "top10", "margin", "hidden"):
                getattr(found, name).extend(getattr(state, name)[:n])
        return found, guesses


def _logits_along(model: CachedModel, prompt: list[int], reads: list[int]) -> np.ndarray:
    """Logits after each of ``reads``; the first of these is the prompt's last token."""
    prefill(model, prompt)
    return all_rows(model, model.extend(reads))


def split_texts(n_texts: int, share: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of the training texts and of the held-out texts. A text is never split: its positions are correlated."""
    order = np.random.default_rng(seed).permutation(n_texts)
    held = max(1, round(share * n_texts)) if n_texts > 1 else 0
    return order[held:], order[:held]


def rows_of(positions: Positions, texts: Sequence[int] | np.ndarray) -> Positions:
    return positions.take(np.isin(positions.text, texts))
