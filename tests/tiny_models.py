"""Tiny random models and pairs on disk, in seconds: for tests that need real models and no particular text."""

from collections.abc import Iterable
from pathlib import Path

import torch
from tokenizers import Tokenizer as RawTokenizer
from tokenizers import decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedConfig, PreTrainedTokenizerFast

JOINED = dict(head_dim=32, intermediate_size=64)  # with layers that are one compiled call, as in most real models
LIVELY = 0.6  # spread of the random weights with which the text does not repeat itself immediately


def tiny_config(vocab_size: int, family: type[PreTrainedConfig] = LlamaConfig, **changes) -> PreTrainedConfig:
    """A Llama (or another ``family``) of two small layers; ``changes`` are other fields of its configuration."""
    shape = dict(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        rms_norm_eps=1e-4,  # large enough to be missed
        tie_word_embeddings=True,
    )
    return family(vocab_size=vocab_size, **(shape | changes))


def byte_tokenizer(before: Iterable[str] = (), after: Iterable[str] = (), **options) -> PreTrainedTokenizerFast:
    """A tokenizer of bytes, with other tokens before and after them; ``options`` say what these are."""
    tokens = [*before, *sorted(pre_tokenizers.ByteLevel.alphabet()), *after]
    raw = RawTokenizer(models.BPE(vocab={token: id for id, token in enumerate(tokens)}, merges=[]))
    raw.pre_tokenizer, raw.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=raw, **options)


def make_model(folder: Path, words: str = "", hidden: int = 32, **more) -> Path:
    """A tiny random Llama with a byte-level tokenizer; ``words`` are further tokens; ``more``: of its configuration."""
    tokenizer = byte_tokenizer(["<s>"], words.split(), bos_token="<s>", eos_token="<s>")
    tokenizer.save_pretrained(folder)
    config = tiny_config(
        len(tokenizer),
        hidden_size=hidden,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=128,
        tie_word_embeddings=False,
        bos_token_id=0,
        eos_token_id=0,
        **more,
    )
    torch.manual_seed(hidden)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


def make_tiny_pair(folder: Path, **more) -> tuple[str, str]:
    """Write a target (2 layers) and a draft (its first layer) with a byte tokenizer; returns both folders. ``more``: of
    their configuration.
    """
    torch.manual_seed(0)
    sizes = dict(num_attention_heads=2, max_position_embeddings=2048, bos_token_id=256, eos_token_id=256)
    changes = sizes | more
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


def make_lively_pair(folder: Path, **more) -> tuple[str, str]:
    """The tiny pair with other weights: a varied text, and a draft that is right about half of the time."""
    target, draft = make_tiny_pair(folder, **more)
    write_lively_weights(target, draft)
    return target, draft


def write_lively_weights(target: Path | str, draft: Path | str) -> None:
    """Random weights for the model in ``target``, and its first layer as the model in ``draft``."""
    config = LlamaConfig.from_pretrained(target)
    config.tie_word_embeddings, config.initializer_range = False, LIVELY
    torch.manual_seed(1)
    model = LlamaForCausalLM(config)
    model.save_pretrained(target)
    small = LlamaForCausalLM(LlamaConfig(**{**config.to_dict(), "num_hidden_layers": 1}))
    small.load_state_dict(model.state_dict(), strict=False)
    small.save_pretrained(draft)
