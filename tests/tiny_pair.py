"""A tiny random pair on disk, in seconds: for tests that need real models and no particular text."""

from pathlib import Path

LIVELY = 0.6  # spread of the random weights with which the text does not repeat itself immediately


def make_tiny_pair(folder: Path, intermediate: int = 48) -> tuple[str, str]:
    """Write a target (2 layers) and a draft (its first layer) with a byte tokenizer; returns both folders."""
    import torch
    from transformers import LlamaForCausalLM

    from .tiny_models import byte_tokenizer, tiny_config

    torch.manual_seed(0)
    changes = dict(
        intermediate_size=intermediate,
        num_attention_heads=2,
        max_position_embeddings=2048,
        bos_token_id=256,
        eos_token_id=256,
    )
    target = LlamaForCausalLM(tiny_config(257, **changes))
    draft = LlamaForCausalLM(tiny_config(257, **changes, num_hidden_layers=1))
    with torch.no_grad():
        for parameter in target.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
        draft.load_state_dict(target.state_dict(), strict=False)
    for name, model in (("target", target), ("draft", draft)):
        model.save_pretrained(folder / name)
        byte_tokenizer(after=["<|end|>"], eos_token="<|end|>", bos_token="<|end|>").save_pretrained(folder / name)
    return str(folder / "target"), str(folder / "draft")


def make_lively_pair(folder: Path) -> tuple[str, str]:
    """The tiny pair with other weights: a varied text, and a draft that is right about half of the time."""
    target, draft = make_tiny_pair(folder)
    write_lively_weights(target, draft)
    return target, draft


def write_lively_weights(target: Path | str, draft: Path | str) -> None:
    """Random weights for the model in ``target``, and its first layer as the model in ``draft``."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig.from_pretrained(target)
    config.tie_word_embeddings, config.initializer_range = False, LIVELY
    torch.manual_seed(1)
    model = LlamaForCausalLM(config)
    model.save_pretrained(target)
    small = LlamaForCausalLM(LlamaConfig(**{**config.to_dict(), "num_hidden_layers": 1}))
    small.load_state_dict(model.state_dict(), strict=False)
    small.save_pretrained(draft)
