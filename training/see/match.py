"""The paper's table: how often each draft is right, on words that the picture decides and on all others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from decoding.analysis.seen import decides
from decoding.comparison.annotate import Annotator
from decoding.comparison.chain import foresee
from decoding.comparison.lane_run import LaneRun
from decoding.comparison.prepare import prepare
from decoding.engines.pair import Pair
from decoding.records.request import CompareRequest
from decoding.records.suites import Prompt
from training.align.measure import from_any_start, passes_of

from .drafts import CAPTIONS, SEEING

MOST_TOKENS = 40
TITLES = {
    "three-layers": "the pair's draft of three layers, unchanged",
    "one-layer": "one-layer, unchanged",
    CAPTIONS: "one-layer, trained further on captions without pictures",
    SEEING: "one-layer, trained further with the picture tokens",
}


def measure_drafts(pair: Pair, prompts: Sequence[Prompt], tell: Callable[[str], None]) -> dict[str, Any]:
    """The rows of the table by draft, over the target's own answers to ``prompts``."""
    hits: dict[str, list[np.ndarray]] = {name: [] for name in TITLES if name in pair.draft_names}
    by_picture: list[bool] = []
    for prompt in prompts:
        request = CompareRequest(
            prompt.prompt, ["autoregressive"], MOST_TOKENS, pair=pair.name, picture=prompt.picture, repeats=1
        )
        prepared = prepare(request, pair)
        run = LaneRun(prepared, prepared.lanes[0]).run()
        annotator = Annotator(prepared, top=1)
        tokens = [token for one in annotator.iterations(run.iterations, None, None) for token in one.tokens]
        greys = annotator.with_grey(run.iterations)
        by_picture += [decides(token.p_target or 0.0, grey) for token, grey in zip(tokens, greys, strict=True)]
        for name, found in hits.items():
            choices = foresee(prepared, name, run.output).along.choice
            found.append(np.array([choice == token for choice, token in zip(choices, run.output, strict=True)]))
    rows = {name: _row(found, np.array(by_picture)) for name, found in hits.items()}
    for name, row in rows.items():
        tell(f"{name}: {row}")
    return {"prompts": len(prompts), "tokens": len(by_picture), "by_picture": sum(by_picture), "drafts": rows}


def _row(hits: Sequence[np.ndarray], by_picture: np.ndarray) -> dict[str, float]:
    """Of one draft, whose right guesses in each text are ``hits``: their shares by whether the picture decides the
    token, and the target's tokens per pass at SL.
    """
    every = np.concatenate(hits)
    passes = sum(passes_of(from_any_start(each)) for each in hits)
    return {
        "picture": round(float(every[by_picture].mean()), 4),
        "others": round(float(every[~by_picture].mean()), 4),
        "all": round(float(every.mean()), 4),
        "tokens_per_pass": round(len(every) / passes, 3),
    }
