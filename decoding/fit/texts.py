"""The target's own greedy text over many prompts, by speculative decoding: the heads' training texts.

The loop is several times faster than plain decoding, and on a CPU batches of prompts are no faster. Its text is the
target's own, as in every lane. Texts are the target's alone, whatever draft helped: they are kept in the cache folder,
so that a fit that was stopped, or one for another draft, continues with them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ..comparison.kept_texts import KeptTexts, quickest_lane
from ..comparison.prepare import prepare
from ..engines.inputs import EncodedPrompt
from ..engines.pair import Pair
from ..errors import Cancelled, UserError
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
    pair: Pair,
    draft: str,
    options: FitOptions,
    progress: Progress,
    cancelled: Callable[[], bool],
    splits: Sequence[str] = ("train", "validation"),
) -> dict[str, Texts]:
    """The target's greedy text after the prompts of these splits, decoded with ``draft``."""
    counts = {"train": options.n_train, "validation": options.n_validation}
    asked = {split: _prompts(pair, options, split, counts[split]) for split in splits}
    found = {}
    for split, prompts in asked.items():

        def report(share: float, split: str = split) -> None:
            if cancelled():
                raise Cancelled
            progress(f"The target writes {split} texts", share)

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
