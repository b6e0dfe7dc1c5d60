"""The paper's table: how often each draft is right, on words that the picture decides and on all others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from decoding.analysis.seen import decides
from decoding.comparison.annotate import Annotator
from decoding.comparison.chain import foresee
from decoding.comparison.lane_run import LaneRun
from decoding.comparison.prepare import prepare
from decoding.engines.pair import Pair
from decoding.records.request import CompareRequest
from decoding.records.suites import Prompt

from .drafts import CAPTIONS, SEEING

SL = 3
MOST_TOKENS = 40
TITLES = {
    "three-layers": "the pair's draft of three layers, unchanged",
    "one-layer": "one-layer, unchanged",
    CAPTIONS: "one-layer, trained further on captions without pictures",
    SEEING: "one-layer, trained further with the picture tokens",
}


@dataclass
class Counts:
    """Of one draft: right guesses by whether the picture decides the token, and passes of the target at SL."""

    hits: dict[bool, list[bool]] = field(default_factory=lambda: {True: [], False: []})
    tokens: int = 0
    passes: int = 0

    def add(self, right: Sequence[bool], by_picture: Sequence[bool]) -> None:
        for hit, decided in zip(right, by_picture, strict=True):
            self.hits[decided].append(hit)
        self.tokens += len(right)
        self.passes += passes_of(right)

    def row(self) -> dict[str, Any]:
        shares = {decided: sum(hits) / len(hits) for decided, hits in self.hits.items()}
        return {
            "picture": round(shares[True], 4),
            "others": round(shares[False], 4),
            "all": round(sum(map(sum, self.hits.values())) / self.tokens, 4),
            "tokens_per_pass": round(self.tokens / self.passes, 3),
        }


def passes_of(right: Sequence[bool]) -> int:
    """Passes of the target at a fixed SL; the last token of a text is always the target's own."""
    at = passes = 0
    while at < len(right):
        held = 0
        while held < SL and at + held < len(right) - 1 and right[at + held]:
            held += 1
        at, passes = at + held + 1, passes + 1
    return passes


def measure_drafts(pair: Pair, prompts: Sequence[Prompt], tell: Callable[[str], None]) -> dict[str, Any]:
    """The rows of the table by draft, over the target's own answers to ``prompts``."""
    counts = {name: Counts() for name in TITLES if name in pair.draft_names}
    decided = total = 0
    for prompt in prompts:
        request = CompareRequest(
            prompt.prompt, ["autoregressive"], MOST_TOKENS, pair=pair.name, picture=prompt.picture, repeats=1
        )
        prepared = prepare(request, pair)
        run = LaneRun(prepared, prepared.lanes[0]).run()
        annotator = Annotator(prepared, top=1)
        tokens = [token for one in annotator.iterations(run.iterations, None, None) for token in one.tokens]
        greys = annotator.with_grey(run.iterations)
        by_picture = [decides(token.p_target or 0.0, grey) for token, grey in zip(tokens, greys, strict=True)]
        decided, total = decided + sum(by_picture), total + len(tokens)
        for name, count in counts.items():
            choices = foresee(prepared, name, run.output).along.choice
            count.add([choice == token for choice, token in zip(choices, run.output, strict=True)], by_picture)
    rows = {name: count.row() for name, count in counts.items()}
    for name, row in rows.items():
        tell(f"{name}: {row}")
    return {"prompts": len(prompts), "tokens": total, "by_picture": decided, "drafts": rows}
