"""Tiny random models on disk, for tests that load a pair."""

from collections.abc import Iterable
from pathlib import Path

import torch
from tokenizers import Tokenizer as RawTokenizer
from tokenizers import decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedConfig, PreTrainedTokenizerFast


def tiny_config(vocab_size: int, family: type[PreTrainedConfig] = LlamaConfig, **changes) -> PreTrainedConfig:
    """A Llama (or another ``family``) of two small layers; ``changes`` are other fields of its configuration."""
    shape = dict(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=True,
    )
    return family(vocab_size=vocab_size, **(shape | changes))


def byte_tokenizer(before: Iterable[str] = (), after: Iterable[str] = (), **options) -> PreTrainedTokenizerFast:
    """A tokenizer of bytes, with other tokens before and after them; ``options`` say what these are."""
    tokens = [*before, *sorted(pre_tokenizers.ByteLevel.alphabet()), *after]
    raw = RawTokenizer(models.BPE(vocab={token: id for id, token in enumerate(tokens)}, merges=[]))
    raw.pre_tokenizer, raw.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=raw, **options)


def make_model(folder: Path, words: str = "", hidden: int = 32) -> Path:
    """A tiny random Llama with a byte-level tokenizer; ``words`` are further tokens."""
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
    )
    torch.manual_seed(hidden)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder
