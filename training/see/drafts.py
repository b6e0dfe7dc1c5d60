"""Third step: drafts for questions about pictures, as in the paper's table (Gagrani et al. 2024).

Both start from a draft of the chat pair and are trained further on answers about scenes: CAPTIONS without any picture,
SEEING with the picture tokens that the target reads. Loss: cross-entropy of the answers' tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import LlamaForCausalLM

from decoding.engines.picture_encoder import load_reader, pixels
from decoding.engines.slim import materialise
from decoding.pictures.draw import draw
from decoding.pictures.scenes import Scene
from training.align.draft_folder import save_slim
from training.align.teacher import ChatModel

from .chat import Chat
from .questions import Question, ask
from .reading import answer_candidates
from .scenes import training_scenes
from .states import Cooling, train

CAPTIONS, SEEING = "captions", "seeing"
SCENES, QUESTIONS_EACH = 12, 3
RATE = 6e-4
WARM_UP = 10
IGNORED = -100  # as F.cross_entropy has it


class DraftTrainer:
    """Trains ``base``, the folder of a slim draft, on scenes; ``reader``: the folder of the picture reader it gets."""

    def __init__(self, model: ChatModel, base: Path, reader: Path | None) -> None:
        self.chat = Chat(model)
        with TemporaryDirectory() as folder:
            whole = materialise(base, model.folder, Path(folder, base.name))
            self.draft: LlamaForCausalLM = LlamaForCausalLM.from_pretrained(whole, dtype=torch.float32)
        self.draft.model.embed_tokens.weight.requires_grad_(False)
        self.own = nn.ModuleDict({"layers": self.draft.model.layers, "norm": self.draft.model.norm})
        self.head_ids = answer_candidates(self.chat)
        self._reader = load_reader(reader, self.chat.width) if reader else None

    def train(self, states: Path, name: str, minutes: float) -> None:
        """For ``minutes`` in all; a file of that name in ``states`` keeps what was reached."""
        optimiser = torch.optim.AdamW(self.own.parameters(), RATE, weight_decay=0.01)
        train(states, name, self.own, Cooling(optimiser, WARM_UP), minutes, self._losses)

    def _losses(self, step: int) -> Iterator[tuple[Tensor, Callable[[], str]]]:
        random, scenes = Random(step), training_scenes(seed=20_000 + step)
        while True:
            batch = list(islice(scenes, SCENES))
            loss, right = self.loss(batch, [ask(scene, random, QUESTIONS_EACH) for scene in batch])
            yield loss, partial("loss {:.3f} match {:.3f}".format, loss, right)

    def loss(self, scenes: list[Scene], asked: list[list[Question]]) -> tuple[Tensor, Tensor]:
        """The mean cross-entropy of the answers' tokens, and the share of them that the draft would guess."""
        embeddings, wanted = self._rows(scenes, asked)
        with torch.autocast("cpu", torch.bfloat16):
            hidden = self.draft.model(inputs_embeds=embeddings).last_hidden_state[:, :-1]
        wanted = wanted[:, 1:]
        chosen = wanted != IGNORED
        logits = (hidden[chosen].float() @ self.draft.model.embed_tokens.weight[self.head_ids].T).float()
        target = torch.searchsorted(self.head_ids, wanted[chosen])
        return F.cross_entropy(logits, target), (logits.argmax(-1) == target).float().mean()

    def _rows(self, scenes: list[Scene], asked: list[list[Question]]) -> tuple[Tensor, Tensor]:
        """(rows, length, width) and (rows, length), a row for each question, padded at the end: input embeddings, and
        the ids of answers.
        """
        tokens = self._pictures(scenes)
        rows, wanted = [], []
        for number, questions in enumerate(asked):
            for question in questions:
                answer, _ = self.chat.answer_ids(question)
                before = [*self.chat.ids(question.text), *self.chat.turns.between]
                parts = [self._embed(self.chat.turns.before), tokens[number], self._embed([*before, *answer])]
                rows.append(torch.cat(parts))
                wanted.append(torch.tensor([*[IGNORED] * (len(rows[-1]) - len(answer)), *answer]))
        pad = nn.utils.rnn.pad_sequence
        return pad(rows, batch_first=True), pad(wanted, batch_first=True, padding_value=IGNORED)

    def _embed(self, ids: list[int]) -> Tensor:
        return self.draft.model.embed_tokens.weight[torch.tensor(ids)]

    @torch.no_grad()
    def _pictures(self, scenes: list[Scene]) -> Tensor:
        """(scenes, n, width), n = 0 for a draft that gets no picture."""
        if self._reader is None:
            return torch.zeros(len(scenes), 0, self.chat.width)
        return self._reader(pixels([draw(scene) for scene in scenes]))

    def save(self, folder: Path) -> None:
        """Writes the draft as the pair ships it."""
        save_slim(self.draft, folder, self.head_ids)
