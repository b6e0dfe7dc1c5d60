"""Lets the target write the texts that drafts are trained on, until there are enough."""

from __future__ import annotations

from pathlib import Path

import torch
from tqdm import tqdm

from .data import load_texts, save_texts, shard_files
from .rows import RowDecoder
from .stream import LONGEST_ANSWER, LONGEST_PROMPT, Stream, key_of
from .teacher import ChatModel, turns_of

ROWS = 128
"""Texts that are written at once; more of them bring no more tokens per second on a CPU."""
SHARD = 400
"""Texts per file."""
STATE_LAYERS = (2, 15, 27, 30)
"""The layers after which the target's hidden states are kept: EAGLE-3's three depths (Li et al. 2025), and the last."""


def write_enough(model: ChatModel, folder: Path, tokens: int, rows: int = ROWS, shard: int = SHARD) -> int:
    """Writes texts into ``folder`` until all texts there have ``tokens`` tokens; returns the number of their tokens.

    An interrupted run resumes after its last complete file, with a new seed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    seen, done = _written(folder)
    if done >= tokens:
        return done
    turns = turns_of(tokenizer := model.tokenizer())
    length = len(turns.before) + LONGEST_PROMPT + len(turns.between) + LONGEST_ANSWER
    decoder = RowDecoder(model.load(torch.bfloat16), turns.before, rows, length, STATE_LAYERS)
    stream = Stream(decoder, turns, tokenizer, seen, seed=1000 + len(shard_files(folder)))
    ended = []
    with tqdm(total=tokens, initial=done, desc="texts", unit=" tokens", mininterval=5) as bar:
        while done < tokens:
            new = stream.step()
            ended += new
            written = sum(len(text.ids) for text in new)
            done += written
            bar.update(written)
            if len(ended) >= shard or done >= tokens:
                save_texts(ended, folder / f"texts-{len(shard_files(folder)):05d}.safetensors")
                ended = []
    return done


def _written(folder: Path) -> tuple[set[str], int]:
    """Keys of the prompts written so far, and the number of tokens of all texts."""
    seen, tokens = set[str](), 0
    for file in shard_files(folder):
        for text in load_texts(file):
            seen.add(key_of(text.prompt))
            tokens += len(text.ids)
    return seen, tokens
