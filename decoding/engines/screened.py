"""A draft's head in two steps: a rough logit of every token, then the exact one of those that may be the best.

The head is most of what a draft of one layer reads, and nearly all of its logits matter only in the sum of their
exponentials. A rough logit takes ``screen_size`` numbers of a token instead of ``hidden_size`` (SVD-softmax: Shim et
al. 2017): h W^T is about (h D^T) (W U^T)^T, with D and U [screen_size, hidden_size] fitted to the states h that the
head reads (training/screen.py). compiled/screening.py says which tokens get their exact logits.

The draft then guesses a little worse, and no text depends on it. Where nothing is compiled the head stays whole.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from ..errors import UserError, readable
from .compiled.products import product_of
from .compiled.screening import GROUPS, Refinement, refinement
from .compiled.writer import LANES
from .formats.int8 import int8_linear, round_rows
from .linears import CompiledLinear
from .slim import SCREEN_FILE


class Screen(NamedTuple):
    """``down``, ``up``: [screen_size, hidden_size]."""

    down: Tensor
    up: Tensor


def read_screen(folder: Path) -> Screen | None:
    """That of the draft in ``folder``, if it has one. Raises UserError for a damaged file."""
    from safetensors.torch import load_file

    file = folder / SCREEN_FILE
    if not file.is_file():
        return None
    with readable(f"The draft {folder.name} has a damaged {SCREEN_FILE}", "fetch it again"):
        found = load_file(file)
    if set(found) != set(Screen._fields) or found["down"].shape != found["up"].shape or found["down"].dim() != 2:
        raise UserError(f"The draft {folder.name} has no screen in its {SCREEN_FILE}: fetch the draft again.")
    return Screen(**found)


class ScreenedHead:
    """[n, size] -> float32 logits [n, out], all rough but the best of GROUPS groups of tokens; int8 rows."""

    def __init__(self, weight: Tensor, screen: Screen, refine: Refinement) -> None:
        """``weight`` [out, size]: that of the whole head."""
        weight, up = weight.float(), screen.up.float()
        self.down, self.linear = (int8_linear(one, None) for one in (screen.down, weight @ up.t()))
        self._levels, self._scales = round_rows(weight)
        self._refine = refine

    def __call__(self, x: Tensor) -> Tensor:
        x = x.float()
        logits = self.linear(self.down(x))
        self._refine(x, logits, self._levels, self._scales)
        return logits

    @property
    def fields(self) -> tuple[int, ...]:
        """What compiled/layers.py's SCREEN name."""
        assert isinstance(self.down, CompiledLinear)
        found = self.down.fields
        assert found is not None
        return *found, self._levels.data_ptr(), self._scales.data_ptr()

    @property
    def numbers(self) -> int:
        """How many of its weights a row takes."""
        size = self.down.n_in
        return self.down.n_out * (size + self.linear.n_out) + GROUPS * size


def screened_head(weight: Tensor, screen: Screen) -> ScreenedHead | None:
    """The head of ``weight`` [out, size]; None where it cannot be had in this shape or on this CPU."""
    product, refine = product_of(torch.int8), refinement()
    if product is None or refine is None:
        return None
    (n_out, size), (narrow, wide) = weight.shape, screen.down.shape
    fits = size == wide and size % LANES == 0 and n_out % GROUPS == 0 and narrow % product.lanes == 0
    return ScreenedHead(weight, screen, refine) if fits else None
