"""Reads a scene for a language model: an encoder that finds the things, and a projector to picture tokens.

As in LLaVA (Liu et al. 2023) the picture tokens are rows of input embeddings that stand in the user's turn. The encoder
is a small ResNet (He et al. 2016) that says for each cell of a grid whether a thing's centre lies in it, and which
thing (as YOLO, Redmon et al. 2016). The things found, from left to right, fill MOST_THINGS slots of TOKENS_EACH tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import torch
import torch.nn.functional as F
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor, nn

from ..pictures.scenes import COLORS, MOST_THINGS, SIDE, kinds

WEIGHTS = ("encoder.safetensors", "projector.safetensors")  # small enough for a repository
GRID = 6
TOKENS_EACH = 8  # two for which kind; for the left and then the right side a mark, and two for what is there
TOKENS = 2 + MOST_THINGS * TOKENS_EACH  # before the slots: a mark of the beginning, and how many things there are
_WIDTHS = (32, 64, 128, 256)


@dataclass(frozen=True, slots=True)
class Cells:
    """What the encoder says of each of the GRID * GRID cells, row by row; logits but for ``place``."""

    thing: Tensor
    """(batch, cells): a thing's centre lies here."""
    kind: Tensor
    """(batch, cells, kinds)."""
    color: Tensor
    """(batch, cells, 1 + colours); the first is "no sign"."""
    place: Tensor
    """(batch, cells, 2): x and y of the centre inside the cell, 0 to 1."""


@dataclass(frozen=True, slots=True)
class Slots:
    """The things from left to right, MOST_THINGS places; the empty places stand last."""

    filled: Tensor
    """(batch, slots), 0 or 1."""
    kind: Tensor
    """(batch, slots, kinds), probabilities, 0 where empty."""
    color: Tensor
    """(batch, slots, 1 + colours), probabilities, 0 where empty."""


class Block(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2))
        self.norm, self.norm2 = nn.GroupNorm(8, width), nn.GroupNorm(8, width)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.norm2(self.second(F.relu(self.norm(self.first(x))))))


class Encoder(nn.Module):
    """Pictures (batch, 3, SIDE, SIDE), 0 to 1, to :class:`Cells`."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for before, width in pairwise((3, *_WIDTHS)):
            layers += [nn.Conv2d(before, width, 3, stride=2, padding=1, bias=False), nn.GroupNorm(8, width), nn.ReLU()]
            layers += [Block(width)] if width > _WIDTHS[0] else []  # at full resolution a block costs the most
        self.layers = nn.Sequential(*layers)
        self.sizes = (1, len(kinds()), 1 + len(COLORS), 2)
        self.head = nn.Conv2d(_WIDTHS[-1], sum(self.sizes), 1)

    def forward(self, pictures: Tensor) -> Cells:
        cells = self.head(self.layers(pictures * 2 - 1)).flatten(2).transpose(1, 2).float()
        thing, kind, color, place = cells.split(self.sizes, dim=-1)
        return Cells(thing.squeeze(-1), kind, color, place)


def slots_of(cells: Cells) -> Slots:
    """The MOST_THINGS likeliest cells that hold a thing with a probability above one half, from left to right."""
    likely, where = cells.thing.topk(MOST_THINGS, dim=-1)
    column = where % GRID + cells.place[..., 0].gather(1, where)
    column = column.masked_fill(likely <= 0, float(GRID + 1))
    order = column.argsort(dim=-1)
    where, filled = where.gather(1, order), (likely.gather(1, order) > 0).float()
    kind, color = (
        logits.gather(1, where[..., None].expand(-1, -1, logits.shape[-1])).softmax(-1) * filled[..., None]
        for logits in (cells.kind, cells.color)
    )
    return Slots(filled, kind, color)


class Projector(nn.Module):
    """Slots to picture tokens (batch, TOKENS, width), from each thing, those beside it, and how many are of its kind.

    A slot reads like text: "a dog left a cat right a fish". The chat model, which stays as it is, copies what once
    followed the words that it just wrote (induction heads, Olsson et al. 2022); it needs the order of an answer.
    ``words`` and ``aside`` give every kind a vector for each token; ``mix``, shared by all kinds, makes a picture token
    of it.
    """

    def __init__(self, width: int, hidden: int = 256) -> None:
        super().__init__()
        self.width = width
        self.own = 2 + len(kinds()) + 1 + len(COLORS) + MOST_THINGS
        self.words = nn.Linear(self.own, 4 * width, bias=False)  # its first and last, the marks of left and right
        self.aside = nn.Linear(self.own, 2 * width, bias=False)
        self.nothing = nn.Parameter(torch.zeros(3, width))  # added to a side's tokens where no thing is
        self.mix = nn.Parameter(torch.eye(width).expand(TOKENS_EACH, -1, -1).clone())
        self.bias = nn.Parameter(torch.zeros(TOKENS_EACH, width))
        self.perceptron = nn.Sequential(
            nn.Linear(3 * self.own, hidden), nn.GELU(), nn.Linear(hidden, TOKENS_EACH * width, bias=False)
        )
        self.begin = nn.Parameter(torch.zeros(width))
        self.count = nn.Embedding(MOST_THINGS + 1, width)

    def forward(self, slots: Slots) -> Tensor:
        filled = slots.filled[..., None]
        own = torch.cat([filled, 1 - filled, slots.kind, slots.color, _alike(slots)], dim=-1)
        nothing = F.one_hot(torch.tensor(1), self.own).to(own).expand(len(own), 1, -1)
        left, right = torch.cat([nothing, own[:, :-1]], dim=1), torch.cat([own[:, 1:], nothing], dim=1)
        first, last, *marks = self.words(own).unflatten(-1, (-1, self.width)).unbind(-2)
        beside = [one for mark, there in zip(marks, (left, right), strict=True) for one in self._beside(mark, there)]
        words = torch.stack([first, last, *beside], dim=2) * filled[..., None]
        seen = torch.cat([own, left, right], dim=-1) * filled
        things = torch.einsum("bstw,twv->bstv", words, self.mix) + self.bias + self.perceptron(seen).view_as(words)
        start = torch.stack([self.begin.expand(len(seen), -1), self.count(slots.filled.sum(-1).long())], dim=1)
        return torch.cat([start, things.flatten(1, 2)], dim=1)

    def _beside(self, mark: Tensor, own: Tensor) -> Sequence[Tensor]:
        """Three vectors (batch, slots, width): the mark of a side and the thing there, which ``own`` describes."""
        thing = self.aside(own).unflatten(-1, (-1, self.width))
        return (torch.cat([mark[..., None, :], thing], dim=-2) + own[..., 1, None, None] * self.nothing).unbind(-2)


def _alike(slots: Slots) -> Tensor:
    """How many things are of each slot's kind and colour, itself among them, between two whole numbers by shares."""
    same = torch.einsum("bik,bjk,bic,bjc->bij", slots.kind, slots.kind, slots.color, slots.color)
    steps = torch.arange(1, MOST_THINGS + 1, device=same.device)
    return (1 - (same.sum(-1, keepdim=True) - steps).abs()).clamp_min(0)


class PictureReader(nn.Module):
    """Encoder and projector."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.encoder, self.projector = Encoder(), Projector(width)

    def forward(self, pictures: Tensor) -> Tensor:
        """Pictures (batch, 3, SIDE, SIDE), 0 to 1, to input embeddings (batch, TOKENS, width)."""
        return self.projector(slots_of(self.encoder(pictures)))

    @torch.inference_mode()
    def read(self, picture: Image.Image) -> Tensor:
        """The picture tokens (TOKENS, width) of one drawn scene, in float32."""
        return self(pixels([picture]))[0]


def pixels(pictures: list[Image.Image]) -> Tensor:
    """(batch, 3, SIDE, SIDE), 0 to 1."""
    rows = [torch.frombuffer(bytearray(picture.convert("RGB").tobytes()), dtype=torch.uint8) for picture in pictures]
    return torch.stack(rows).view(-1, SIDE, SIDE, 3).permute(0, 3, 1, 2).float() / 255


def load_reader(folder: Path, width: int) -> PictureReader:
    """The reader whose weights are in ``folder``, in float32, for a model of ``width``."""
    reader = PictureReader(width).eval()
    reader.encoder = load_encoder(folder)
    _load(reader.projector, folder / WEIGHTS[1])
    return reader


def load_encoder(folder: Path) -> Encoder:
    """The reader's encoder alone."""
    encoder = Encoder().eval()
    _load(encoder, folder / WEIGHTS[0])
    return encoder


def _load(part: nn.Module, file: Path) -> None:
    part.load_state_dict({name: tensor.float() for name, tensor in load_file(file).items()})
