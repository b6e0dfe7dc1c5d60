"""A tiny pair whose drafts read the target's hidden states: random weights, on disk, in a folder of its own."""

import json
from pathlib import Path
from shutil import copyfile

import torch
from safetensors.torch import save_file
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from decoding.engines.pair import Pair, load_pair
from decoding.engines.slim import FEATURE_FILE
from decoding.records import pairs
from training.align.feature import HeadsDraft

from .tiny_pair import make_lively_pair

PROMPT = "def f(x):\n    return"
LAYERS = (1, -1)
WIDTH = 32
N_HEADS = 3


def make_feature_pair(models: Path, seed: int = 1) -> Path:
    """A folder ``models/tiny`` with pair.json; its default draft reads the states after LAYERS."""
    folder = models / "tiny"
    target, draft = make_lively_pair(folder)
    for file in ("config.json", "model.safetensors"):  # the projections alone make its guesses wrong
        copyfile(Path(target, file), Path(draft, file))
    generator = torch.Generator().manual_seed(seed)

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
    described = {
        "name": "tiny",
        "target": "target",
        "drafts": {
            "feature": {"folder": "draft", "kind": pairs.FEATURE, "layers": list(LAYERS)},
            "text": "draft",
            "heads": {"folder": "heads", "kind": pairs.HEADS, "layers": [-1]},
        },
        "default_draft": "feature",
    }
    (folder / "pair.json").write_text(json.dumps(described))
    return folder


def _make_heads(folder: Path, target: str) -> None:
    """A draft of N_HEADS parallel heads, trained for a moment on the target's text after PROMPT: some guesses hold."""
    model = LlamaForCausalLM.from_pretrained(target, dtype=torch.float32)
    ids = torch.tensor([AutoTokenizer.from_pretrained(target).encode(PROMPT)])
    ids = model.generate(ids, max_new_tokens=60, min_new_tokens=60, do_sample=False, eos_token_id=None)
    with torch.no_grad():
        states = model(ids, output_hidden_states=True).hidden_states[-1][:, :-1, None]
    trunk = LlamaForCausalLM(LlamaConfig(**{**model.config.to_dict(), "num_hidden_layers": 0}))
    trunk.load_state_dict(model.state_dict(), strict=False)
    draft = HeadsDraft(trunk, N_HEADS)
    optimiser = torch.optim.Adam(draft.heads.parameters(), lr=0.05)
    for _ in range(35):
        guesses = draft.unroll(ids[:, 1:], states, N_HEADS)
        losses = [
            torch.nn.functional.cross_entropy(trunk.lm_head(guess.float())[0, step:-1], ids[0, step + 2 :])
            for step, guess in enumerate(guesses)
        ]
        optimiser.zero_grad()
        torch.stack(losses).sum().backward()
        optimiser.step()
    trunk.save_pretrained(folder / "heads")
    save_file({name: value.detach() for name, value in draft.stored().items()}, folder / "heads" / FEATURE_FILE)


def load_feature_pair(models: Path, monkeypatch, dtype: str = "float32") -> Pair:
    """The pair in ``models``, made there if necessary."""
    if not (models / "tiny").is_dir():
        make_feature_pair(models)
    monkeypatch.setattr(pairs, "MODELS", models)
    return load_pair("tiny", device="cpu", dtype=dtype)
