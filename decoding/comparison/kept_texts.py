"""The target's greedy texts, kept in the cache folder for later use.

A text depends on the target and on what ends it, not on the draft that helped to write it: a resumed fit, a fit for
another draft and an evaluation all use the same texts. At near ties engines, number formats, processors and versions
of torch may differ, so each of them has its own file.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from ..engines.inputs import EncodedPrompt, encoded
from ..engines.loading import machine_of
from ..engines.pair import Pair
from ..errors import Cancelled
from ..files import Lines, cache_folder, digest_of
from ..lookahead.lanes import Lane, parse_lane
from .lane_run import LaneRun
from .prepare import Prepared


def quickest_lane(pair: Pair, lane: str) -> Lane:
    """The lane that writes plain decoding's text most quickly: ``lane`` where passes over several rows have the bits of
    passes over one (their timed texts are compared with plain decoding's), else plain decoding itself.
    """
    is_same = pair.target.info.engine == "lean" and pair.target.note is None
    return parse_lane(lane if is_same else "autoregressive")


class KeptTexts:
    """Texts of up to ``n_tokens`` by their prompt's key: its token ids, and the digest of a picture."""

    def __init__(self, pair: Pair, n_tokens: int) -> None:
        info = pair.target.info
        machine = machine_of(info.device)
        key = {
            "target": info.fingerprint,
            "engine": f"{info.engine} {info.dtype} {info.device}",
            "machine": f"{machine.gpu or machine.processor}, torch {machine.torch}",
            "ends": sorted(pair.tokenizer.eos_ids),
            "tokens": n_tokens,
        }
        name = f"{info.fingerprint}-{digest_of(json.dumps(key).encode())}.jsonl"
        self._lines = Lines(cache_folder() / "texts" / name, key, stale="restart")
        self._texts = {tuple(record["prompt"]): record["text"] for record in self._lines.records}

    def get(self, prompt: list[int] | EncodedPrompt) -> list[int] | None:
        """The text after ``prompt``; None if it is not kept yet."""
        return self._texts.get(encoded(prompt).key)

    def add(self, prompt: list[int] | EncodedPrompt, text: list[int]) -> None:
        """Keep ``text``. Raises UserError if the cache folder cannot be written."""
        key = encoded(prompt).key
        self._texts[key] = text
        self._lines.add({"prompt": list(key), "text": text})

    def write(self, prepared: Prepared, lane: Lane, cancelled: Callable[[], bool] = lambda: False) -> list[int]:
        """The text after the prompt, which is kept or, where it is not, decoded by ``lane``. Raises Cancelled."""
        text = self.get(prepared.prompt)
        if text is None:
            text = LaneRun(prepared, lane).run(cancelled).output
            if cancelled():
                raise Cancelled
            if prepared.pair.target.info.fingerprint:  # toys have none, and would take each other's texts
                self.add(prepared.prompt, text)
        return text

    def close(self) -> None:
        self._lines.close()
