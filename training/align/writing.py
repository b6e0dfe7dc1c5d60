"""The target writes texts, many at once, by transformers' own ``generate``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerBase

from .texts import (
    LONGEST_ANSWER,
    LONGEST_PROMPT,
    NUCLEUS,
    NUCLEUS_TOKENS,
    SHARES,
    TEMPERATURES,
    Text,
    Turns,
    new_prompt,
)


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
