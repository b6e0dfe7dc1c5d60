"""The chat model that drafts are aligned to, with the tokens of its chat template and the texts that it writes, many at
once, by transformers' own ``generate``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm
from transformers import AutoTokenizer, LlamaForCausalLM, PreTrainedTokenizerBase

from decoding.engines.gguf import unpack
from decoding.engines.hub import HuggingFaceHub
from decoding.errors import UserError
from decoding.records.weights import read_record
from training import PAIR

from .data import Batch, Texts, all_texts, save_texts, shard_files
from .drafts import half
from .reading import FreshTexts, of_the_token_before, read, with_states
from .texts import (
    LONGEST_ANSWER,
    LONGEST_PROMPT,
    NUCLEUS,
    NUCLEUS_TOKENS,
    SHARES,
    TEMPERATURES,
    Text,
    Turns,
    key_of,
    new_prompt,
)


@dataclass(frozen=True, slots=True)
class ChatModel:
    """A chat model's folder on this machine, and ``mark``, the fingerprint of its weights."""

    folder: Path
    mark: str

    def load(self, dtype: torch.dtype, device: torch.device | None = None) -> LlamaForCausalLM:
        model = LlamaForCausalLM.from_pretrained(self.folder, dtype=dtype).eval()
        nn.Module.to(model, device or "cpu")  # transformers' own ``to`` is not typed
        return model

    def tokenizer(self) -> PreTrainedTokenizerBase:
        return AutoTokenizer.from_pretrained(self.folder)


def model() -> ChatModel:
    """The target of the pair PAIR, unpacked if necessary. Raises UserError if it has no source record."""
    record = read_record(PAIR / "target")
    if record is None:
        raise UserError(
            f"{PAIR.name}/target has no source.json, so there is no chat model to align drafts to. "
            "Restore that file from the repository."
        )
    return ChatModel(unpack(record, HuggingFaceHub(), lambda message, share: print(message)), record.mark)


def turns_of(tokenizer: PreTrainedTokenizerBase) -> Turns:
    """The ids of the chat template around a prompt. Raises UserError if the model has no chat template."""
    mark = "\0"
    if not tokenizer.chat_template:
        raise UserError("The target has no chat template, so it cannot write prompts. Choose a chat model.")
    message = [{"role": "user", "content": mark}]
    whole = tokenizer.apply_chat_template(message, add_generation_prompt=True, tokenize=False)
    assert isinstance(whole, str), "asked for as text"
    before, between = (tokenizer(part, add_special_tokens=False).input_ids for part in whole.split(mark))
    return Turns(before, between, between[0])


class Teacher:
    """What all drafts are trained on: the target in float32, the first tokens of its template, and its texts in a
    folder. With a ``device`` it reads the texts anew there for each batch.
    """

    def __init__(self, model: ChatModel, folder: Path, device: torch.device | None = None) -> None:
        self.device, self.fresh = device or torch.device("cpu"), device is not None
        self.target, self.mark, self.folder = model.load(torch.float32, self.device), model.mark, folder
        self.before = turns_of(model.tokenizer()).before

    @cached_property
    def splits(self) -> dict[str, list[Text]]:
        """The texts by split, in the order in which they were written: all that the target can read anew, or those that
        were kept with its states and probabilities.
        """
        found = defaultdict[str, list[Text]](list)
        for text in all_texts(self.folder):
            if self.fresh or text.states is not None:
                found[text.split].append(text)
        return found

    def texts(self, texts: Sequence[Text], with_states: bool = False) -> Texts:
        """``texts`` to be batched; ``with_states``: with the target's hidden states."""
        if self.fresh:
            return FreshTexts(texts, self.before, self.target, STATE_LAYERS)
        return Texts(texts, self.before, self._states_before if with_states else None)

    @cached_property
    def _states_before(self) -> Tensor:
        """The states of the token before each of ``before``; zeros for the first."""
        _, states = read(self.target, torch.tensor([self.before]), STATE_LAYERS)
        return of_the_token_before(states)[0]

    @torch.no_grad()
    def select(self, batch: Batch, layers: Sequence[int]) -> Tensor:
        """Of the states in ``batch`` those of ``layers``, the target's last one as its head reads it."""
        top, norm = len(self.target.model.layers), self.target.model.norm
        if not layers:
            return norm.weight.new_zeros(*batch.ids.shape, 0, len(norm.weight))
        states = batch.states
        assert states is not None, "read with the states"
        parts = [states[..., STATE_LAYERS.index(layer), :] for layer in layers]
        read = [norm(part.float()).bfloat16() if layer == top else part for part, layer in zip(parts, layers)]
        return torch.stack(read, -2)


ROWS = 128
"""Prompts that are written at once; their answers are a file of texts."""
GPU_ROWS = 2048
"""As ROWS, on a GPU; their cache takes 13 GB."""
STATE_LAYERS = (2, 15, 27, 30)
"""The layers after which the target's hidden states are kept: EAGLE-3's three depths (Li et al. 2025), and the last."""


def gpu_if_any() -> torch.device | None:
    """The GPU, if there is one, without cuDNN's attention, which plans anew, in 50 ms, for each shape of a batch."""
    if not torch.cuda.is_available():
        return None
    torch.backends.cuda.enable_cudnn_sdp(False)
    return torch.device("cuda")


def gpu() -> torch.device:
    """The GPU. Raises UserError if there is none."""
    if (device := gpu_if_any()) is None:
        raise UserError("This needs a GPU. Without one, run `python -m training align feature`.")
    return device


@dataclass(frozen=True, slots=True)
class Writer:
    """The target, its chat template and its tokenizer; ``seen``: the keys of all prompts so far, which are refused."""

    target: LlamaForCausalLM
    turns: Turns
    tokenizer: PreTrainedTokenizerBase
    seen: set[str]

    def write(self, rows: int) -> list[Text]:
        """New texts, without the target's states: ``rows`` prompts, and answers to those that are good and new. Their
        temperatures are drawn by SHARES.
        """
        prompts = self._prompts(rows)
        shares = torch.tensor(SHARES).expand(rows, -1)
        drawn = [TEMPERATURES[place] for place in shares.multinomial(1)[:, 0].tolist()]
        found: list[Text] = []
        for temperature in TEMPERATURES:
            part = [prompt for prompt, its_own in zip(prompts, drawn, strict=False) if its_own == temperature]
            found += self._answered(part, temperature)
        return found

    def _prompts(self, rows: int) -> list[tuple[list[int], str]]:
        """Good and new ones of ``rows`` prompts: their ids up to the answer, and their text."""
        how = {"do_sample": True, "temperature": 1.0, "top_p": NUCLEUS, "top_k": NUCLEUS_TOKENS}
        found = []
        for ids in self._continued([[]] * rows, LONGEST_PROMPT, **how):
            if ids[-1] == self.turns.end and (prompt := new_prompt(ids[:-1], self.tokenizer, self.seen)):
                found.append((ids + self.turns.between[1:], prompt))
        return found

    def _answered(self, prompts: list[tuple[list[int], str]], temperature: float) -> list[Text]:
        """Those of ``prompts`` whose answers at this temperature have more than one token."""
        if not prompts:
            return []
        sampled = {"do_sample": True, "temperature": temperature, "top_p": 1.0, "top_k": 0}
        how = sampled if temperature else {"do_sample": False}
        answers = self._continued([ids for ids, _ in prompts], LONGEST_ANSWER, **how)
        return [
            _text(ids + answer, len(ids), prompt, temperature)
            for (ids, prompt), answer in zip(prompts, answers)
            if len(answer) > 1
        ]

    def _continued(self, texts: list[list[int]], longest: int, **how: Any) -> list[list[int]]:
        """What the target writes after each of ``texts``: at most ``longest`` ids, the last one of which may end the
        turn. ``how``: settings of ``generate``.
        """
        end, before = self.turns.end, self.turns.before
        width = max(map(len, texts))
        ids = [[end] * (width - len(text)) + before + text for text in texts]
        attended = [[0] * (width - len(text)) + [1] * len(before + text) for text in texts]
        device = self.target.device
        written = self.target.generate(  # type: ignore[misc]  # of all models that it is declared for, not of this
            torch.tensor(ids, device=device),
            attention_mask=torch.tensor(attended, device=device),
            max_new_tokens=longest,
            eos_token_id=end,
            pad_token_id=end,
            **how,
        )
        rows = written[:, len(before) + width :].tolist()
        return [row[: row.index(end) + 1] if end in row else row for row in rows]


def _text(ids: list[int], answer: int, prompt: str, temperature: float) -> Text:
    """A text without the target's probabilities and states."""
    nothing = np.zeros((len(ids), 0))
    top_ids, top_logp = nothing.astype(np.uint16), nothing.astype(np.float16)
    return Text(np.array(ids, dtype=np.uint16), answer, top_ids, top_logp, prompt, temperature)


def write_enough(
    model: ChatModel, folder: Path, tokens: int, device: torch.device | None = None, rows: int | None = None
) -> int:
    """Writes texts into ``folder`` until all texts there have ``tokens`` tokens; returns the number of their tokens.

    On a GPU, the ``device``, only the ids of the texts are kept. ``rows``: prompts that are written at once. An
    interrupted run resumes after its last complete file, with a new seed. Raises OSError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    before, place = list(all_texts(folder)), device or torch.device("cpu")
    if (done := sum(len(text.ids) for text in before)) >= tokens:
        return done
    turns = turns_of(tokenizer := model.tokenizer())
    seen = {key_of(text.prompt) for text in before}
    writer = Writer(model.load(half(place), place), turns, tokenizer, seen)
    reader = None if device else model.load(torch.float32)
    torch.manual_seed(1000 + len(shard_files(folder)))  # no file there was written with it
    with tqdm(total=tokens, initial=done, desc="texts", unit=" tokens") as bar:
        while done < tokens:
            texts = writer.write(rows or (GPU_ROWS if device else ROWS))
            if texts and reader:
                texts = with_states(FreshTexts(texts, turns.before, reader, STATE_LAYERS))
            if texts:
                save_texts(texts, folder / f"texts-{len(shard_files(folder)):05d}.safetensors")
            written = sum(len(text.ids) for text in texts)
            done += written
            bar.update(written)
    return done
