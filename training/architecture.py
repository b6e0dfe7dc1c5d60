"""The pair's models as Llama configurations, and how they are saved: in bf16, sharded, atomically."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerBase

from training.files import replacing_folder
from training.tokenizer import CONTEXT, VOCABULARY

SHARD_SIZE = "9MB"


@dataclass(frozen=True)
class Shape:
    """Size of a model: layers, hidden size, MLP size. Heads are 64 wide; ``key_value_heads`` groups them."""

    layers: int
    hidden: int
    intermediate: int
    key_value_heads: int | None = None

    def build(self, vocabulary: int = VOCABULARY, context: int = CONTEXT) -> LlamaForCausalLM:
        """A freshly initialised model in fp32."""
        heads = self.hidden // 64
        config = LlamaConfig(
            vocab_size=vocabulary,
            hidden_size=self.hidden,
            intermediate_size=self.intermediate,
            num_hidden_layers=self.layers,
            num_attention_heads=heads,
            head_dim=64,
            num_key_value_heads=self.key_value_heads or heads,
            max_position_embeddings=context,
            tie_word_embeddings=True,
            bos_token_id=0,
            eos_token_id=0,
        )
        return LlamaForCausalLM(config)


def parameter_count(model: torch.nn.Module) -> int:
    """Number of parameters; the tied embedding counts once."""
    return sum(parameter.numel() for parameter in model.parameters())


def deepen(model: LlamaForCausalLM, layers: int) -> LlamaForCausalLM:
    """The same function with more layers: block expansion (Wu et al. 2024, "LLaMA Pro", section 3.2).

    Copies of layers are spread evenly between the old ones. A copy's output projections are zero, so it has no effect
    until it is trained.
    """
    old = model.config.num_hidden_layers
    if not old < layers <= 2 * old:
        raise ValueError(f"cannot deepen {old} layers to {layers}")
    config = copy.deepcopy(model.config)
    config.num_hidden_layers = layers
    if getattr(config, "layer_types", None):
        config.layer_types = [config.layer_types[0]] * layers
    deeper = LlamaForCausalLM(config)
    weights = {name: value for name, value in model.state_dict().items() if ".layers." not in name}
    position = 0
    for index in range(old):
        copies = 1 + ((index + 1) * (layers - old) // old - index * (layers - old) // old)
        for number in range(copies):
            block = {name: value.clone() for name, value in model.model.layers[index].state_dict().items()}
            if number:
                block["self_attn.o_proj.weight"].zero_()
                block["mlp.down_proj.weight"].zero_()
            weights |= {f"model.layers.{position}.{name}": value for name, value in block.items()}
            position += 1
    deeper.load_state_dict(weights)
    return deeper


def load_model(folder: Path) -> LlamaForCausalLM:
    """A saved model in fp32."""
    return LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)


def save_model(model: LlamaForCausalLM, target: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    """Saves a bf16 copy with its tokenizer atomically. An existing README.md stays."""
    half = copy.deepcopy(model).bfloat16()
    half.config.dtype = torch.bfloat16
    card = target / "README.md"
    with replacing_folder(target) as folder:
        half.save_pretrained(folder, max_shard_size=SHARD_SIZE)
        tokenizer.save_pretrained(folder)
        for file in folder.iterdir():
            file.chmod(0o644)
        if card.is_file():
            (folder / "README.md").write_text(card.read_text())


def load_tokenizer_of(folder: Path) -> PreTrainedTokenizerBase:
    """The tokenizer saved with a model."""
    return AutoTokenizer.from_pretrained(folder)
