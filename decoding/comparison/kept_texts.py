"""The target's own greedy texts, kept in the cache folder for whatever asks for them again.

A text is the target's alone, whatever draft helped to write it: a fit that was stopped, one for another draft, and an
evaluation go on with the same ones. Another engine or number format may part at a near tie, so each has its own file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..files import cache_folder
from ..records.json_lines import Lines

if TYPE_CHECKING:
    from ..engines.pair import Pair


class KeptTexts:
    """Texts of up to ``n_tokens`` by their prompt's token ids."""

    def __init__(self, pair: Pair, n_tokens: int) -> None:
        info = pair.target.info
        key = {"target": info.fingerprint, "engine": f"{info.engine} {info.dtype} {info.device}", "tokens": n_tokens}
        name = f"{info.fingerprint}-{info.engine}-{info.dtype}-{info.device}-{n_tokens}.jsonl".replace(":", "-")
        self._lines = Lines(cache_folder() / "texts" / name, key, stale="restart")
        self._texts = {tuple(record["prompt"]): record["text"] for record in self._lines.records}

    def get(self, prompt: list[int]) -> list[int] | None:
        """The text after ``prompt``, None where it is not known yet."""
        return self._texts.get(tuple(prompt))

    def add(self, prompt: list[int], text: list[int]) -> None:
        """Keep ``text``. Raises UserError where the cache folder cannot be written."""
        self._texts[tuple(prompt)] = text
        self._lines.add({"prompt": prompt, "text": text})

    def close(self) -> None:
        self._lines.close()
