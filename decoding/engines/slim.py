"""Slim drafts, stored without the weights that they share with their target.

A slim draft's folder holds:

- ``config.json``: its Llama configuration, with the target's vocabulary and tied embeddings;
- ``draft.json``: ``target_layers``, the numbers of the target's layers that are its first layers unchanged (an early
  exit: Elhoushi et al. 2024, "LayerSkip"), often none; ``trunk``, if it differs from another draft in nothing but
  ``feature.safetensors``: that draft's ``folder``, beside its own, and ``fingerprint``. It then has no own weights, and
  its ``feature.safetensors`` only what the other one's lacks;
- ``own*.safetensors``: the weights of its own in bfloat16, named as in ``LlamaForCausalLM``'s state dict, and, where
  it is not as wide as the target, ``projection`` (target's width, its width), by which the target's embeddings become
  its own;
- ``head_ids.json``: the sorted ids that it may propose besides those of the text (a reduced head: FR-Spec, Zhao et al.
  2025; text_tokens.py). No list: all ids;
- ``feature.safetensors``: if it reads the target's hidden states, the projections (projections.py);
- ``screen/screen.safetensors``: by what its head may be screened on a CPU (formats/int8.py). Not among its weights,
  whose fingerprint stays.

``materialise`` makes of it a Llama folder that transformers loads as it is; all but its own weights goes along.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..errors import UserError, readable
from ..files import digest_of_files, whole_folder
from ..records.weights import ORIGIN_FILE, SCREEN_FILE, fingerprint

DRAFT_FILE, HEAD_FILE, OWN_FILES = "draft.json", "head_ids.json", "own*.safetensors"
FEATURE_FILE = "feature.safetensors"
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "generation_config.json",
)
EMBEDDINGS = "model.embed_tokens.weight"


def is_slim(folder: Path) -> bool:
    """Whether this is the folder of a slim draft."""
    return (folder / DRAFT_FILE).is_file()


def read_head_ids(folder: Path) -> Tensor | None:
    """The sorted ids (n,) that a draft proposes from; None where it proposes from all. Raises UserError."""
    file = folder / HEAD_FILE
    if not file.is_file():
        return None
    ids = _read_json(file)
    numbers = isinstance(ids, list) and ids and all(isinstance(token, int) and token >= 0 for token in ids)
    if not numbers or sorted(set(ids)) != ids:
        raise UserError(f"{folder.name}/{HEAD_FILE} is not a sorted list of token ids: fetch the draft again.")
    return torch.tensor(ids)


class Screen(NamedTuple):
    """By what rough logits of a head are computed: ``down`` and ``up``, [screen_size, hidden_size]."""

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


def materialise(draft: Path, target: Path, folder: Path) -> Path:
    """Writes the slim ``draft`` with what it shares with ``target`` to ``folder``, a Llama folder; returns it.

    An undamaged folder that stands there is taken as it is. Raises UserError where a file of the draft is missing or
    damaged or does not fit.
    """
    if _is_whole(folder):
        return folder
    with (
        readable(f"The draft {draft.name} could not be made whole", "fetch it again, or free some space on the disk"),
        whole_folder(folder, lambda: _is_whole(folder)) as beside,
    ):
        _write_model(draft, target, beside)
        for name in TOKENIZER_FILES:
            if (target / name).is_file():
                shutil.copyfile(target / name, beside / name)
        for name in (HEAD_FILE, SCREEN_FILE):
            if (draft / name).is_file():
                (beside / name).parent.mkdir(exist_ok=True)
                shutil.copyfile(draft / name, beside / name)
        _write_features(draft, beside)
        (beside / ORIGIN_FILE).write_text(json.dumps({"digest": _digest(beside)}) + "\n", encoding="utf-8")
    return folder


def _is_whole(folder: Path) -> bool:
    """Whether ``folder`` is as it was written: a power cut, for one, may leave files that are cut short."""
    try:
        return json.loads((folder / ORIGIN_FILE).read_text(encoding="utf-8")) == {"digest": _digest(folder)}
    except (OSError, ValueError):
        return False


def _digest(folder: Path) -> str:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != ORIGIN_FILE)
    return digest_of_files(files)


def _write_features(draft: Path, folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    weights: dict[str, Tensor] = {}
    for source in (trunk_of(draft), draft):
        if source and (source / FEATURE_FILE).is_file():
            weights |= load_file(source / FEATURE_FILE)
    if weights:
        save_file(weights, folder / FEATURE_FILE)


def trunk_of(draft: Path) -> Path | None:
    """The folder of the draft whose weights this one shares, if any. Raises UserError where it is another draft's."""
    trunk = _read_json(draft / DRAFT_FILE).get("trunk")
    if trunk is None:
        return None
    folder = draft.parent / Path(trunk["folder"]).name
    if not is_slim(folder) or fingerprint(folder) != trunk["fingerprint"]:
        raise UserError(f"The draft {draft.name} was made from another {folder.name}: fetch both drafts again.")
    return folder


def _write_model(draft: Path, target: Path, folder: Path) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    config = LlamaConfig.from_pretrained(draft)
    model = LlamaForCausalLM(config).bfloat16()
    weights = whole_weights(draft, target)
    wanted = {name for name in model.state_dict() if name != "lm_head.weight"}
    if set(weights) != wanted:
        raise UserError(f"The draft {draft.name} lacks weights or has too many: {sorted(set(weights) ^ wanted)[:3]}.")
    try:
        model.load_state_dict(weights, strict=False)
    except RuntimeError as error:
        what = str(error).splitlines()[-1].strip()
        raise UserError(
            f"The draft {draft.name} was not made for this target: choose one of the same pair ({what})"
        ) from error
    model.tie_weights()
    model.save_pretrained(folder)


def whole_weights(draft: Path, target: Path) -> dict[str, Tensor]:
    """All weights of a slim draft: its own, and what it takes from the target, by their names."""
    weights = own_weights(trunk_of(draft) or draft)
    taken = _read_json(draft / DRAFT_FILE)["target_layers"]
    projection = weights.pop("projection", None)
    for name, weight in _target_weights(target, taken):
        if name == EMBEDDINGS and projection is not None:
            weight = (weight.float() @ projection.float()).bfloat16()
        weights[name] = weight
    return weights


def own_weights(draft: Path) -> dict[str, Tensor]:
    """The weights that a slim draft does not share with its target, by name."""
    from safetensors.torch import load_file

    own: dict[str, Tensor] = {}
    for file in sorted(draft.glob(OWN_FILES)):
        own |= load_file(file)
    return own


def _target_weights(target: Path, layers: list[int]) -> list[tuple[str, Tensor]]:
    """The target's embeddings, and its ``layers`` numbered from 0 as the draft has them."""
    from safetensors import safe_open

    found = []
    for file in sorted(target.glob("*.safetensors")):
        with safe_open(file, "pt") as weights:
            for name in weights.keys():  # noqa: SIM118 (no dict)
                parts = name.split(".")
                if name == EMBEDDINGS:
                    found.append((name, weights.get_tensor(name)))
                elif parts[:2] == ["model", "layers"] and int(parts[2]) in layers:
                    parts[2] = str(layers.index(int(parts[2])))
                    found.append((".".join(parts), weights.get_tensor(name)))
    return found


def _read_json(file: Path) -> Any:
    with readable(f"{file.parent.name}/{file.name} cannot be read", "fetch the draft again"):
        return json.loads(file.read_text(encoding="utf-8"))
