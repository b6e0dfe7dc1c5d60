"""Training data: the draft's guess at each position of the target's own text, and whether it is right.

As in DISCO, there is one guess for a position, made after the target's own text. It is that of a lane: iterations end
with their first mistake, and the next one begins after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch

from ..comparison.chain import iterations_along
from ..engines.base import CachedModel
from ..engines.inputs import EncodedPrompt
from ..lookahead.base import DraftState
from ..lookahead.ngrams import N_LEVELS, Ngrams
from ..lookahead.repetition import evidence_along
from ..loop.drafting import DraftSource
from ..loop.limits import Limits


@dataclass(slots=True)
class Positions:
    """Parallel arrays over all positions of all texts."""

    position: np.ndarray  # from the start of generation
    p: np.ndarray
    entropy: np.ndarray
    top10: np.ndarray  # [n, 10]
    margin: np.ndarray  # nats
    evidence: np.ndarray  # codes of Repetition
    levels: np.ndarray  # [n, N_LEVELS] uint8, of Ngrams; all 0 without counts
    match: np.ndarray  # 1 if the guess is the target's token, else 0
    hidden: np.ndarray  # [n, hidden] float16: the draft's states whose input is the guess

    def __len__(self) -> int:
        return len(self.position)

    @classmethod
    def joined(cls, parts: Sequence[Positions]) -> Positions:
        """Those of several texts."""
        return cls(*(np.concatenate([getattr(one, field.name) for one in parts]) for field in fields(cls)))


@torch.inference_mode()
def positions_along(
    target: CachedModel, source: DraftSource, prompt: list[int], text: list[int], ngrams: Ngrams | None = None
) -> Positions:
    """The draft's guesses along ``text``, the target's own text after ``prompt``, up to each mistake. A position has
    none where the draft had nothing more to propose, one step after the guess too: a policy decides nothing there.

    ``source``: the draft; it computes all features under the greedy rule.
    """
    found, guesses = DraftState(), dict[int, int]()  # the features, and the guesses by position
    # The state of a mistake takes one step more, as does that of the text's last token.
    limits, longest = Limits(len(text) + 2), 2
    for state, right in iterations_along(source, EncodedPrompt(prompt), text, target, limits, longest):
        n = min(right + 1, len(state.hidden), len(text) - state.start)
        guesses |= dict(enumerate(state.tokens[:n], state.start))
        for name in ("p", "entropy", "top10", "margin", "hidden"):
            getattr(found, name).extend(getattr(state, name)[:n])
    along, places = [guesses.get(place) for place in range(len(text))], list(guesses)
    levels = np.zeros((len(text), N_LEVELS), dtype=np.uint8)
    if ngrams is not None:
        levels = ngrams.levels_along(prompt, text, along)
    return Positions(
        position=np.array(places),
        p=np.array(found.p, dtype=np.float32),
        entropy=np.array(found.entropy, dtype=np.float32),
        top10=np.stack(found.top10),
        margin=np.array(found.margin, dtype=np.float32),
        evidence=np.array(evidence_along(prompt, text, along))[places],
        levels=levels[places],
        match=np.array([guess == text[place] for place, guess in guesses.items()], dtype=np.float32),
        hidden=np.stack(found.hidden).astype(np.float16),
    )
