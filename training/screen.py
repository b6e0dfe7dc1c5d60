"""The screen of a shipped draft's head (decoding/engines/formats/int8.py), fitted to the states that the head reads."""

from __future__ import annotations

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor

from decoding.comparison.chain import iterations_along
from decoding.comparison.prepare import make_draft, shared_vocabulary
from decoding.engines.inputs import EncodedPrompt
from decoding.engines.lean import LeanModel
from decoding.engines.pair import Pair
from decoding.engines.slim import SCREEN_FILE, Screen, read_head_ids
from decoding.errors import UserError
from decoding.files import write_whole
from decoding.fit.data import FitOptions, Progress, write_texts
from decoding.loop.acceptance import Greedy
from decoding.loop.limits import Limits

SIZE = 160
"""Numbers that a rough logit is computed from: more take longer, fewer miss more of the best tokens."""
TEXTS = FitOptions(suite="chat", n_train=200, max_new_tokens=96)
_SMALLEST = 1e-4  # of the mean variance: what every direction has


def make_screen(pair: Pair, name: str, report: Progress, options: FitOptions = TEXTS, size: int = SIZE) -> int:
    """Writes that of the draft ``name`` into its folder; the number of states that it was fitted to. Raises UserError
    for a draft whose head is not reduced.
    """
    folder = pair.draft_folders.get(name)
    ids = None if folder is None else read_head_ids(folder)
    if folder is None or ids is None:
        raise UserError(f"{name} is no draft with a reduced head: choose another one of {pair.name}.")
    states, model = states_along(pair, name, options, report), pair.draft(name)
    assert isinstance(model, LeanModel), "shipped drafts are Llama-shaped"
    screen = fit_screen(states, model.embedding[ids], size)
    file = folder / SCREEN_FILE
    file.parent.mkdir(exist_ok=True)
    write_whole(file, save({part: weight.half() for part, weight in screen._asdict().items()}))
    return len(states)


@torch.inference_mode()
def states_along(pair: Pair, name: str, options: FitOptions, report: Progress) -> Tensor:
    """What the draft's head reads along the target's own texts, guess by guess up to each mistake: [n, hidden]."""
    texts = write_texts(pair, name, options, report, ("train",))["train"]
    source = make_draft(pair, name, Greedy(shared_vocabulary(pair, [name])), frozenset({"proposer"}))
    found = []
    for number, (prompt, text) in enumerate(texts):
        report("Reading the texts", number / len(texts))
        limits = Limits(len(text) + 2)
        for state, _ in iterations_along(source, EncodedPrompt(prompt), text, pair.target, limits, 2):
            found += state.proposer
    return torch.from_numpy(np.stack(found))


def fit_screen(states: Tensor, weight: Tensor, size: int) -> Screen:
    """The one of that size whose rough logits of ``states`` [n, hidden] by ``weight`` [out, hidden] have the least
    squared error: the best approximation of rank ``size`` to W S, with S^2 the states' second moment (Eckart and Young,
    1936).
    """
    states, weight = states.double(), weight.double()
    moment = states.t() @ states / len(states)
    variances, axes = torch.linalg.eigh(moment)
    deviations = (variances.clamp_min(0) + _SMALLEST * variances.mean()).sqrt()
    root, inverse = axes * deviations @ axes.t(), axes / deviations @ axes.t()
    _, directions = torch.linalg.eigh(root @ weight.t() @ weight @ root)
    best = directions[:, -size:].t()
    return Screen((best @ inverse).float(), (best @ root).float())
