"""The draft: its shape, its initialisation, and its distillation from text that the target wrote."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from decoding.errors import UserError
from decoding.records.fingerprint import fingerprint
from training.architecture import Shape, load_model, load_tokenizer_of, save_model
from training.distillation import LOSSES
from training.files import replacing_file
from training.generate import TOP, Texts, read_generated
from training.loop import (
    CHECKPOINTS,
    Rates,
    TimedRun,
    compiled,
    device,
    hidden_states,
    last_of_log,
    logits_of,
    on_device,
    read_checkpoint,
    set_attention,
)
from training.places import BUILD, LOGS
from training.target import TARGET

DRAFTS = BUILD / "drafts"
KEPT_BACK = 96
"""Windows of generated text that no draft trains on, used to measure the match rate."""


@dataclass(frozen=True)
class Recipe:
    """A draft: its shape and the target layers that it starts from (none: random layers)."""

    shape: Shape
    layers: tuple[int, ...] = ()
    note: str = ""


# The target's odd layers are the copies that deepened it; most of its knowledge is in the even ones.
RECIPES: dict[str, Recipe] = {
    "default-2x256": Recipe(Shape(2, 256, 704), (0, 14), "the default: two of the target's own layers"),
}
DEFAULT = "default-2x256"


def start_draft(recipe: Recipe, target: LlamaForCausalLM) -> LlamaForCausalLM:
    """A draft initialised from the target: with its embeddings, and with its layers if the recipe names some.

    A narrower draft gets the embeddings' principal components, a wider one the embeddings plus noise.
    """
    torch.manual_seed(1)
    draft = recipe.shape.build(target.config.vocab_size, target.config.max_position_embeddings)
    embeddings = target.model.embed_tokens.weight.detach()
    with torch.no_grad():
        draft.model.embed_tokens.weight.copy_(fit_width(embeddings, recipe.shape.hidden))
        if recipe.layers:
            for layer, index in zip(draft.model.layers, recipe.layers, strict=True):
                layer.load_state_dict(target.model.layers[index].state_dict())
            draft.model.norm.load_state_dict(target.model.norm.state_dict())
    return draft


def fit_width(embeddings: Tensor, width: int) -> Tensor:
    """Embeddings (vocabulary, hidden) as (vocabulary, width): principal components, or padded with noise."""
    hidden = embeddings.shape[1]
    if width == hidden:
        return embeddings
    if width < hidden:
        directions = torch.linalg.eigh(embeddings.T @ embeddings).eigenvectors
        return embeddings @ directions[:, -width:]
    return torch.cat([embeddings, 0.02 * torch.randn(len(embeddings), width - hidden)], dim=1)


class Batches:
    """Windows of generated text in a shuffled order, each once per pass."""

    def __init__(self, texts: Texts, seed: int = 0) -> None:
        if len(texts.ids) <= KEPT_BACK:
            raise UserError("Too little generated text to distil from. Run `python -m training generate` for longer.")
        self.texts = texts
        order = np.random.default_rng(17).permutation(len(texts.ids))
        self.kept_back = order[:KEPT_BACK]
        self.order = np.random.default_rng(seed).permutation(order[KEPT_BACK:])

    def batch(self, start: int, size: int) -> tuple[Tensor, ...]:
        """ids (size, length), top ids and log-probabilities (size * length, TOP), next tokens (size *
        length,).
        """
        return self.take(self.order[np.arange(start, start + size) % len(self.order)])

    def take(self, rows: np.ndarray) -> tuple[Tensor, ...]:
        """As :meth:`batch`, for the windows of these numbers."""
        ids = torch.from_numpy(self.texts.ids[rows].astype(np.int64))
        top_ids = torch.from_numpy(self.texts.top_ids[rows].astype(np.int64)).view(-1, TOP)
        top_logp = torch.from_numpy(self.texts.top_logp[rows]).view(-1, TOP)
        # No text follows the last id: the target's first choice stands in for it.
        following = torch.cat([ids[:, 1:], top_ids.view(*ids.shape, TOP)[:, -1:, 0]], dim=1).flatten()
        return tuple(tensor.to(device()) for tensor in (ids, top_ids, top_logp, following))


@torch.no_grad()
def match_rate(draft: LlamaForCausalLM, batches: Batches) -> float:
    """How often the draft's first choice is the target's, over all positions of the held-back windows."""
    draft.eval()
    hits = []
    for rows in np.array_split(batches.kept_back, max(1, KEPT_BACK // 8)):
        ids, top_ids, _, _ = batches.take(rows)
        first = logits_of(draft, hidden_states(draft, ids)).argmax(-1).flatten()
        hits.append((first == top_ids[:, 0]).float())
    draft.train()
    return float(torch.cat(hits).mean())


def distil(
    name: str,
    draft: LlamaForCausalLM,
    batches: Batches,
    minutes: float,
    loss: str,
    settings: dict,
    save: Callable[[], None],
    tokens: int | None = None,
    windows: int = 12,
) -> float:
    """Distils for ``minutes``, or on ``tokens`` tokens; returns the match rate on held-back windows. Resumes as
    TimedRun does.
    """
    on_device(draft)
    set_attention(draft, batches.texts.ids.shape[1])

    def step(ids: Tensor, *target: Tensor) -> Tensor:
        return LOSSES[loss](logits_of(draft, hidden_states(draft, ids)).flatten(0, 1), *target)

    rates = Rates(muon=0.015, adam=2e-3, warmup=0.02, flat_until=0.25)
    run = TimedRun(name, draft, 60 * minutes, settings, rates, tokens)
    fast = compiled(step)
    run.train(
        lambda start: fast(*batches.batch(start, windows)),
        (windows, batches.texts.ids.shape[1]),
        lambda: match_rate(draft, batches),
        save,
    )
    return match_rate(draft, batches)


def train_draft(name: str, minutes: float, loss: str = "kl", tokens: int | None = None, inherit: bool = False) -> Path:
    """Trains the draft ``name`` on all text that the target has written; returns its folder.

    ``minutes`` (or ``tokens``, if given) count from the draft's beginning: a larger number trains a finished draft
    further. ``inherit`` starts from the weights in ``build/drafts``, which learned with another loss or from an earlier
    target, instead of from the target's layers.
    """
    if name not in RECIPES:
        raise UserError(f"There is no draft {name!r}. Drafts: {', '.join(RECIPES)}.")
    if loss not in LOSSES:
        raise UserError(f"There is no loss {loss!r}. Losses: {', '.join(LOSSES)}.")
    tokenizer, target = load_tokenizer_of(TARGET), load_model(TARGET)
    draft, folder = start_draft(RECIPES[name], target), DRAFTS / name
    recipe = RECIPES[name]
    settings = {"shape": recipe.shape, "layers": recipe.layers, "loss": loss, "target": fingerprint(TARGET)}
    if inherit:
        settings["inherits"] = True
        set_aside(name, settings)
        draft = load_model(folder)
    distil(
        f"draft-{name}",
        draft,
        Batches(read_generated(TARGET)),
        minutes,
        loss,
        settings,
        lambda: save_model(draft, folder, tokenizer),
        tokens,
    )
    return folder


def set_aside(name: str, settings: dict) -> None:
    """Records a draft's previous training as an earlier stage and removes its checkpoint."""
    checkpoint, log = CHECKPOINTS / f"draft-{name}.pt", LOGS / f"draft-{name}.jsonl"
    if not checkpoint.is_file():
        return
    earlier = read_checkpoint(checkpoint)["settings"]
    if all(earlier.get(key) == settings[key] for key in ("target", "loss")):
        return
    stages = earlier_stages(name)
    stages.append(last_of_log(f"draft-{name}") | {key: earlier.get(key) for key in ("target", "loss")})
    with replacing_file(_stages_file(name), "w") as file:
        json.dump(stages, file, indent=1)
    checkpoint.unlink()
    log.unlink(missing_ok=True)


def earlier_stages(name: str) -> list[dict]:
    """A draft's stages before the last, oldest first: the final figures of each log, the target and the loss."""
    path = _stages_file(name)
    return json.loads(path.read_text()) if path.is_file() else []


def _stages_file(name: str) -> Path:
    return LOGS / f"draft-{name}-earlier.json"


def compare_losses(minutes: float) -> dict[str, float]:
    """Distils the default draft for ``minutes`` with each loss; returns the match rates on held-back windows."""
    target, batches = load_model(TARGET), Batches(read_generated(TARGET))
    rates = {}
    for loss in LOSSES:
        settings = {"minutes": minutes, "loss": loss, "target": fingerprint(TARGET)}
        draft = start_draft(RECIPES[DEFAULT], target)
        rates[loss] = distil(f"loss-{loss}", draft, batches, minutes, loss, settings, lambda: None)
    return rates
