"""A tiny pair whose drafts read the target's hidden states: random weights, on disk, in a folder of its own."""

import json
from pathlib import Path
from shutil import copyfile, copytree

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from decoding.engines.pair import Pair, load_pair
from decoding.engines.slim import FEATURE_FILE
from decoding.records import pairs
from training.feature import BlockDraft, HeadsDraft

from .tiny_models import make_lively_pair

PROMPT = "def f(x):\n    return"
LAYERS = (1, -1)
WIDTH = 32
N_HEADS, N_BLOCK = 3, 4


def make_feature_pair(models: Path) -> Path:
    """A folder ``models/tiny`` with pair.json; its default draft reads the states after LAYERS."""
    folder = models / "tiny"
    target, draft = make_lively_pair(folder)
    for file in ("config.json", "model.safetensors"):  # the projections alone make its guesses wrong
        copyfile(Path(target, file), Path(draft, file))
    generator = torch.Generator().manual_seed(1)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    wide = len(LAYERS) * WIDTH
    projections = {
        "fuse.weight": random(WIDTH, wide) * 0.02,
        "own.weight": random(WIDTH, WIDTH) * 0.02,
        "centre": random(wide) * 0.1,
        "scale": 1 + random(wide) * 0.1,
        "own_centre": random(WIDTH) * 0.1,
        "own_scale": 1 + random(WIDTH) * 0.1,
    }
    save_file(projections, folder / "draft" / FEATURE_FILE)
    _make_heads(folder, target)
    _make_block(folder, target)
    described = {
        "name": "tiny",
        "target": "target",
        "drafts": {
            "feature": {"folder": "draft", "kind": pairs.FEATURE, "layers": list(LAYERS)},
            "text": "draft",
            "heads": {"folder": "heads", "kind": pairs.HEADS, "layers": [-1]},
            "block": {"folder": "block", "kind": pairs.BLOCK, "layers": list(LAYERS)},
        },
        "default_draft": "feature",
    }
    (folder / "pair.json").write_text(json.dumps(described))
    return folder


def _make_heads(folder: Path, target: str) -> None:
    """A draft of N_HEADS parallel heads."""
    model = LlamaForCausalLM.from_pretrained(target, dtype=torch.float32)
    trunk = LlamaForCausalLM(LlamaConfig(**{**model.config.to_dict(), "num_hidden_layers": 0}))
    trunk.load_state_dict(model.state_dict(), strict=False)
    draft = HeadsDraft(trunk, N_HEADS)
    _train(draft, model, (-1,), N_HEADS)
    trunk.save_pretrained(folder / "heads")
    save_file({name: value.detach() for name, value in draft.stored().items()}, folder / "heads" / FEATURE_FILE)


def _make_block(folder: Path, target: str) -> None:
    """A draft that guesses N_BLOCK tokens in one pass, with the layers and the projections of the feature draft."""
    model = LlamaForCausalLM.from_pretrained(target, dtype=torch.float32)
    draft, shared = BlockDraft(model, LAYERS, N_BLOCK), load_file(folder / "draft" / FEATURE_FILE)
    draft.take(shared)
    _train(draft, model, LAYERS, N_BLOCK)
    copytree(folder / "draft", folder / "block")
    own = {name: value.detach() for name, value in draft.stored().items()}
    kept = {name: value for name, value in shared.items() if not name.startswith("own")}
    save_file(kept | own, folder / "block" / FEATURE_FILE)


def _train(draft: HeadsDraft | BlockDraft, target: LlamaForCausalLM, layers: tuple[int, ...], guesses: int) -> None:
    """For a moment, on the target's text after PROMPT: some guesses hold."""
    tokenizer = AutoTokenizer.from_pretrained(target.name_or_path)
    ids = torch.tensor([tokenizer.encode(PROMPT)])
    ids = target.generate(ids, max_new_tokens=60, min_new_tokens=60, do_sample=False, eos_token_id=None)
    with torch.no_grad():
        found = target(ids, output_hidden_states=True).hidden_states
        states = torch.stack([found[layer] for layer in layers], 2)[:, :-1]
    optimiser = torch.optim.Adam([one for one in draft.parameters() if one.requires_grad], lr=0.05)
    for _ in range(35):
        losses = [
            torch.nn.functional.cross_entropy(draft.trunk.lm_head(guess.float())[0, step:-1], ids[0, step + 2 :])
            for step, guess in enumerate(draft.unroll(ids[:, 1:], states, guesses))
        ]
        optimiser.zero_grad()
        torch.stack(losses).sum().backward()
        optimiser.step()


def load_feature_pair(models: Path, monkeypatch, dtype: str = "float32", device: str = "cpu") -> Pair:
    """The pair in ``models``, made there if necessary."""
    if not (models / "tiny").is_dir():
        make_feature_pair(models)
    monkeypatch.setattr(pairs, "MODELS", models)
    return load_pair("tiny", device=device, dtype=dtype)
