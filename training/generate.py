"""Text that the target writes, with its distribution at every token: the drafts' training data.

Prompts are cuts from training files and the train split of the suites. Three texts in four continue greedily, the
others at temperature 0.7; some windows of the corpus are only read. The target's ``TOP`` most probable tokens are kept
at every position, prompt included, so that distillation need not run the target again.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm
from transformers import PreTrainedTokenizerBase

from decoding.errors import UserError
from decoding.records.fingerprint import fingerprint
from decoding.records.suites import SUITES, load_suite
from training.architecture import load_model, load_tokenizer_of
from training.batch_decoder import BatchDecoder
from training.files import replacing_file
from training.loop import device, on_device
from training.places import BUILD
from training.structured import structured_prompts
from training.tokens import BOS, read_tokens

GENERATED = BUILD / "generated"
LENGTH = 320
TOP = 32
BATCH = 192
PREFIXES = {"sampled": (32, 64, 96, 160), "greedy": (96, 128, 160, 192), "corpus": (LENGTH,)}
KINDS = ("greedy", "sampled", "greedy", "greedy", "corpus")
"""Prompt lengths in tokens. Greedy text loops sooner or later, so it gets less room."""
TEMPERATURE = 0.7
SUITE_SHARE = 0.25


@dataclass(frozen=True)
class Texts:
    """Windows that the target wrote: ids (count, length), and its most probable next tokens at each position.

    ``top_ids`` and ``top_logp`` are (count, length, TOP): entry [i, j] is the target's distribution after
    ids[i, : j+1].
    """

    ids: np.ndarray
    top_ids: np.ndarray
    top_logp: np.ndarray


class PromptPool:
    """Prompts of a given length: cuts of the training stream and some of the suites' train prompts."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.stream = read_tokens("train")
        texts = [prompt.prompt for suite in SUITES for prompt in load_suite(suite, "train")]
        kept_back = {p.prompt for split in ("validation", "test") for p in load_suite("structured", split)}
        texts += [text for _, text in structured_prompts(400, seed=1000) if text not in kept_back]
        self.prompts = [np.asarray(tokenizer(text).input_ids) for text in texts]

    def take(self, count: int, length: int) -> Tensor:
        """ids (count, length); each row starts with BOS."""
        rows = [self._cut(length) for _ in range(count)]
        return torch.from_numpy(np.stack(rows).astype(np.int64))

    def _cut(self, length: int) -> np.ndarray:
        fitting = [prompt for prompt in self.prompts if length <= len(prompt) < length + 40]
        if fitting and self.rng.random() < SUITE_SHARE:
            text = fitting[self.rng.integers(len(fitting))]
        else:
            end = int(self.rng.integers(length, len(self.stream)))
            text = self.stream[end - length : end]
        return np.concatenate([[BOS], text[len(text) - length + 1 :]])


def write_batch(
    decoder: BatchDecoder, prompts: Tensor, temperature: float, noise: torch.Generator
) -> tuple[Tensor, ...]:
    """Continues prompts (batch, n) up to LENGTH tokens.

    Returns ids (batch, LENGTH) and the target's TOP next tokens: ids and log-probabilities, (batch, LENGTH,
    TOP).
    """
    rows, n = prompts.shape
    ids = torch.zeros(rows, LENGTH, dtype=torch.long, device=prompts.device)
    ids[:, :n] = prompts
    top_ids = torch.zeros(rows, LENGTH, TOP, dtype=torch.int32)
    top_logp = torch.zeros(rows, LENGTH, TOP, dtype=torch.float16)
    hidden = decoder.extend(prompts, 0)
    for start in range(0, n - 1, 8):
        part = slice(start, min(start + 8, n - 1))
        top_ids[:, part], top_logp[:, part] = best(decoder.logits(hidden[:, part]))[:2]
    hidden = hidden[:, -1:]
    for position in range(n - 1, LENGTH):
        best_ids, best_logp, logits = best(decoder.logits(hidden[:, 0]))
        top_ids[:, position], top_logp[:, position] = best_ids, best_logp
        if position + 1 < LENGTH:
            ids[:, position + 1] = choose(logits, temperature, noise)
            hidden = decoder.extend(ids[:, position + 1 : position + 2], position + 1)
    return ids, top_ids, top_logp


def best(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The TOP tokens and their log-probabilities, and the logits in fp32."""
    logits = logits.float()
    values, ids = logits.topk(TOP, dim=-1)
    return ids.int().cpu(), (values - logits.logsumexp(-1, keepdim=True)).half().cpu(), logits


def choose(logits: Tensor, temperature: float, noise: torch.Generator) -> Tensor:
    """The next tokens (batch,): the first choice at temperature 0, otherwise a sample by the Gumbel-max trick."""
    if temperature == 0:
        return logits.argmax(-1)
    uniform = torch.rand(logits.shape, generator=noise, device=logits.device).clamp_min_(1e-20)
    return (logits / temperature - torch.log(-torch.log(uniform))).argmax(-1)


def generate(target: Path, minutes: float, batch: int = BATCH) -> int:
    """Writes batches into ``build/generated/<fingerprint>`` for ``minutes`` in total; returns the number of new tokens.

    Each batch is one file, named with the seconds spent so far: a killed run resumes after the last complete batch.
    """
    folder = folder_of(target)
    tokenizer, model = load_tokenizer_of(target), on_device(load_model(target)).eval()
    decoder = BatchDecoder(model, batch, LENGTH)
    files = batches_in(folder)
    number, tokens = len(files), 0
    pool = PromptPool(tokenizer, seed=number)
    begun = time.monotonic() - (seconds_of(files[-1]) if files else 0)
    with tqdm(total=round(60 * minutes), desc="generate", unit="s") as bar:
        while not number or time.monotonic() - begun < 60 * minutes:  # at least one batch
            kind = KINDS[number % len(KINDS)]
            length = PREFIXES[kind][number % len(PREFIXES[kind])]
            noise = torch.Generator(device()).manual_seed(number)
            temperature = TEMPERATURE if kind == "sampled" else 0.0
            ids, top_ids, top_logp = write_batch(decoder, pool.take(batch, length).to(device()), temperature, noise)
            spent = round(time.monotonic() - begun)
            with replacing_file(folder / f"{number:04d}-{spent}s.npz", "wb") as file:
                np.savez(
                    file,
                    ids=ids.cpu().numpy().astype(np.uint16),
                    top_ids=top_ids.numpy().astype(np.uint16),
                    top_logp=top_logp.numpy(),
                )
            number, tokens = number + 1, tokens + batch * (LENGTH - length)
            bar.n = min(spent, bar.total)
            bar.set_postfix(tokens=tokens)
    return tokens


def folder_of(target: Path) -> Path:
    """The folder of the texts that these weights wrote."""
    return GENERATED / fingerprint(target)


def batches_in(folder: Path) -> list[Path]:
    """The batches in the order of writing."""
    return sorted(folder.glob("*.npz"))


def seconds_of(batch: Path) -> int:
    """Seconds spent when the batch was written."""
    return int(batch.stem.split("-")[1].rstrip("s"))


def read_generated(target: Path) -> Texts:
    """All text that this target has written so far."""
    files = batches_in(folder_of(target))
    if not files:
        raise UserError("This target has written nothing yet. Run `python -m training generate` first.")
    parts = [np.load(file) for file in files]
    return Texts(*(np.concatenate([part[key] for part in parts]) for key in ("ids", "top_ids", "top_logp")))
