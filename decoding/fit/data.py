"""What heads are trained on: the target's own greedy texts over many prompts, and the draft's guess at each position of
them, with whether it is right.

The texts are written by speculative decoding: the loop is several times faster than plain decoding, and on a CPU
batches of prompts are no faster. They are the target's alone, as in every lane, whatever draft helped: so they are kept
in the cache folder, and a fit that was stopped, or one for another draft, continues with them.

As in DISCO, there is one guess for a position, made after the target's own text. It is that of a lane: iterations end
with their first mistake, and the next one begins after it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial

import numpy as np
import torch

from ..comparison.chain import iterations_along
from ..comparison.kept_texts import KeptTexts, quickest_lane
from ..comparison.prepare import prepare
from ..engines.base import CachedModel
from ..engines.inputs import EncodedPrompt
from ..engines.pair import Pair
from ..errors import UserError
from ..lookahead.base import DraftState
from ..lookahead.ngrams import N_LEVELS, Ngrams
from ..lookahead.repetition import evidence_along
from ..loop.drafting import DraftSource
from ..loop.limits import Limits
from ..records.request import CompareRequest
from ..records.suites import load_suite, suites_for

Progress = Callable[[str, float | None], None]
Texts = list[tuple[list[int], list[int]]]  # prompt and the target's text
Report = Callable[[float], None]  # called with the share done, 0 to 1
SHORTEST = 8  # minimum length of a text in tokens


@dataclass(frozen=True, slots=True)
class FitOptions:
    """What to fit on. ``suite``: a suite's name or "all"; counts are total numbers of prompts."""

    suite: str = "all"
    n_train: int = 480
    n_validation: int = 160
    max_new_tokens: int = 128
    epochs: int = 12
    seed: int = 0


def write_texts(
    pair: Pair, draft: str, options: FitOptions, progress: Progress, splits: Sequence[str]
) -> dict[str, Texts]:
    """The target's greedy text after the prompts of these splits, decoded with ``draft``."""
    counts = {"train": options.n_train, "validation": options.n_validation}
    asked = {split: _prompts(pair, options, split, counts[split]) for split in splits}
    found = {}
    for split, prompts in asked.items():
        report = partial(progress, f"The target writes {split} texts")
        texts = greedy_texts(pair, draft, prompts, options.max_new_tokens, report)
        found[split] = [(p, text) for p, text in zip(prompts, texts, strict=True) if len(text) >= SHORTEST]
        if not found[split]:
            raise UserError(f"The target ends every {split} text immediately: there is nothing to fit on.")
    return found


def _prompts(pair: Pair, options: FitOptions, split: str, limit: int) -> list[list[int]]:
    most = pair.target.max_length - options.max_new_tokens
    prompts = [
        pair.encode_prompt(one.prompt).ids for one in load_suite(suites_for(options.suite, pair.chat), split, limit)
    ]
    usable = [prompt for prompt in prompts if 1 < len(prompt) <= most]
    if not usable:
        raise UserError(
            f"The suite {options.suite} has no usable prompt in its {split} split: all are empty or longer "
            f"than the {most:,} tokens that leave room for {options.max_new_tokens} new ones."
        )
    return usable


def greedy_texts(
    pair: Pair, draft: str, prompts: Sequence[list[int]], n_tokens: int, report: Report = lambda share: None
) -> list[list[int]]:
    """The target's greedy continuations of ``prompts`` (token ids), each ``n_tokens`` long or up to its end."""
    lane = quickest_lane(pair, f"{draft}/confidence")
    request = CompareRequest("given as ids", lanes=[lane.text], max_new_tokens=n_tokens)
    prepared, kept = prepare(request, pair), KeptTexts(pair, n_tokens)
    texts: list[list[int]] = []
    for number, prompt in enumerate(prompts):
        report(number / len(prompts))
        texts.append(kept.write(replace(prepared, prompt=EncodedPrompt(prompt)), lane))
    kept.close()
    return texts


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
