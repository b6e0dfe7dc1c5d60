"""What an engine reads besides a list of ids: a prompt with a picture in it, and passes over a tree of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from ..records.trace import PictureInfo

FINAL = (-1,)  # CachedModel.kept_layers: the input of the LM head alone


@dataclass(frozen=True, slots=True, eq=False)
class EncodedPrompt:
    """A prompt as the target reads it.

    A prompt may be more than text: the target then reads ``embeddings`` [n, hidden_size] (of a picture, say) in place
    of those of ``ids[at : at + n]``, which are placeholders. A draft that knows only text reads ``text``. ``digest``
    identifies the embeddings, "" if there are none. ``grey``: the embeddings of a grey picture in place of
    ``picture``'s. ``name``: how settings name a picture whose file they do not hold. ``positions`` [axes, n]: where the
    first n tokens stand, for a target that gives a picture's tokens height and width (M-RoPE, Qwen2-VL 2024).
    """

    ids: list[int]
    embeddings: torch.Tensor | None = None
    at: int = 0
    digest: str = ""
    grey: torch.Tensor | None = None
    picture: PictureInfo | None = None
    name: str = ""
    positions: torch.Tensor | None = None

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def n_placeholders(self) -> int:
        """Number of placeholders, which ``text`` lacks."""
        return 0 if self.embeddings is None else len(self.embeddings)

    @property
    def text(self) -> list[int]:
        """The ids without placeholders."""
        return self.ids if self.embeddings is None else self.ids[: self.at] + self.ids[self.at + self.n_placeholders :]

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for equal prompts only."""
        return (*self.ids, self.digest) if self.digest else tuple(self.ids)

    def extended(self, ids: list[int]) -> EncodedPrompt:
        """The prompt followed by ``ids``."""
        return replace(self, ids=[*self.ids, *ids])

    def as_read(self, sees: bool) -> EncodedPrompt:
        """The prompt for a draft that ``sees`` what the target does, or for one that reads the text alone."""
        return self if sees else EncodedPrompt(self.text)

    def with_grey(self) -> EncodedPrompt:
        """The prompt with a grey picture in place of its own."""
        return replace(self, embeddings=self.grey, digest="grey")

    def first(self, n: int) -> EncodedPrompt:
        """The first ``n`` tokens. Raises ValueError if that cuts the embeddings."""
        if self.embeddings is not None and n < self.at + self.n_placeholders:
            raise ValueError(f"the first {n} tokens of this prompt hold its embeddings in part only")
        return replace(self, ids=self.ids[:n])


def encoded(prompt: EncodedPrompt | list[int]) -> EncodedPrompt:
    """``prompt``; ids alone are a prompt of text."""
    return prompt if isinstance(prompt, EncodedPrompt) else EncodedPrompt(prompt)


@dataclass(frozen=True, slots=True)
class Branches:
    """Where the rows of a pass stand in a tree of tokens that continues a text.

    All rows see the first ``trunk`` rows of the cache, which are the text. Row i of the pass also sees the cache rows
    ``paths[i]``: its ancestors from the tree's root on, and itself. So it stands at position trunk + len(paths[i]) - 1
    of its own text. Earlier rows of the tree may have been read by earlier passes.
    """

    trunk: int
    paths: list[list[int]]

    @classmethod
    def below(cls, trunk: int, parents: Sequence[int]) -> Branches:
        """A tree whose row i stands in the cache at ``trunk + i``.

        ``parents[i]`` is the row that row i follows, less than i, or -1 if it follows the trunk.
        """
        paths: list[list[int]] = []
        for row, parent in enumerate(parents):
            paths.append([*(paths[parent] if parent >= 0 else ()), trunk + row])
        return cls(trunk, paths)

    @property
    def positions(self) -> list[int]:
        """Each row's position in its text."""
        return [self.trunk + len(path) - 1 for path in self.paths]

    def is_chain(self, length: int) -> bool:
        """Whether the rows follow one another and a cache of ``length`` rows, as without branches."""
        return all(
            path[-1] == length + index and self.trunk + len(path) == length + index + 1
            for index, path in enumerate(self.paths)
        )

    def part(self, first: int, end: int) -> Branches:
        """The rows from ``first`` to before ``end``."""
        return Branches(self.trunk, self.paths[first:end])


def already_in_place(length: int, rows: Sequence[int]) -> int:
    """How many of ``rows`` stand where they belong if they are to follow the first ``length`` rows of a cache."""
    return next((index for index, row in enumerate(rows) if row != length + index), len(rows))
