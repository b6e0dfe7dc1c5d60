"""Draft sources propose tokens: a model with a cache, or the text itself (n-gram)."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from ..engines.base import CachedModel
from ..engines.compiled.readout import Reading
from ..engines.inputs import FINAL, Branches, EncodedPrompt, encoded
from ..errors import UserError
from ..lookahead.base import DraftState
from ..records.pairs import LONGEST_MATCH, PROMPT_LOOKUP, DraftKind
from ..records.proposal import path_to
from .acceptance import AcceptanceRule, Siblings
from .features import OUTSIDE, FeatureReader, as_rows

States = tuple[torch.Tensor, ...]  # hidden states of the target: for each layer [n, hidden], n tokens


@dataclass(frozen=True, slots=True)
class DraftAbilities:
    """The abilities that a draft declares, so that no code depends on its name.

    ``certain``: its proposals have probability 1, so that no policy can base decisions on it. ``may_decline``: it may
    have nothing more to propose. ``at_once``: it makes all guesses of an iteration with the first. ``text_only``: its
    guess depends only on the text, not on where the iteration began; a chain then holds one guess for each place,
    otherwise those of an iteration from each place. ``layers``: the layers of the target whose hidden states it reads,
    of the prompt and after each verification (as EAGLE's and Medusa's heads do; counted as in
    ``CachedModel.kept_layers``); such a guess depends on where the last verification ended. ``sees``: it reads a
    prompt's embeddings where the target does. Raises ValueError for a contradiction.
    """

    certain: bool = False
    may_decline: bool = False
    at_once: bool = False
    text_only: bool = True
    layers: tuple[int, ...] = ()
    sees: bool = False

    def __post_init__(self) -> None:
        if self.text_only and self.layers:
            raise ValueError("a draft that reads the target's hidden states does not depend on the text alone")


class DraftSource(ABC):
    """Proposes tokens one by one; ``text`` is always the prompt and the output so far, as ids."""

    name: str
    abilities = DraftAbilities()
    max_length: int  # the longest text after which it can propose

    @abstractmethod
    def start(self, prompt: EncodedPrompt, states: States) -> None:
        """Reads the prompt (prefill).

        states: the target's, of each layer in ``abilities.layers`` and all tokens of the prompt but the last; () if
        there are no layers or no such tokens. Valid during the call.
        """

    @abstractmethod
    def step(self, text: list[int], state: DraftState) -> Any:
        """Appends one proposal to ``state.tokens``.

        Returns what :meth:`read_features` needs of it, which is not None; None if there is nothing to propose.
        """

    def read_features(self, state: DraftState, proposal: Any) -> None:
        """Appends the features of the last ``proposal`` that the policy needs."""

    def propose(self, text: list[int], state: DraftState, n: int, ends: frozenset[int]) -> bool:
        """Proposes ``n`` tokens, fewer if one of ``ends`` is among them; False if there was nothing left to propose.

        A source on a device (:mod:`decoding.loop.device_drafting`) leaves it to verifying to fill ``state.tokens``.
        """
        for _ in range(n):
            if self.step(text, state) is None:
                return False
            if state.tokens[-1] in ends:
                break
        return True

    def read_node(self, state: DraftState, node: int) -> Siblings:
        """Reads the text, for ``node`` -1, or a token of the tree in ``state``, and returns the guesses below it."""
        raise UserError(f"The draft {self.name} guesses one token for each place: use a policy without a tree.")

    def observe(self, n_accepted: int, states: States) -> None:
        """Receives the result of the verification, before :meth:`forget`.

        n_accepted: how many of the proposals the target accepted. states: the target's, of each layer in
        ``abilities.layers``, [n_accepted + 1, hidden_size]: of the text's last token before the iteration, then of each
        accepted one. On the target's device and in its dtype; valid during the call.
        """

    @abstractmethod
    def forget(self, length: int, path: Sequence[int] = ()) -> None:
        """Discards everything after the first ``length`` tokens of the text.

        path: of the last proposal, the indices of the accepted tokens.
        """


@dataclass(slots=True)
class ModelProposal:
    """A choice of a model: an index into ``row``, its logits after the rule's shaping. ``known``: the likeliest one, if
    the engine has found it.
    """

    choice: int
    row: np.ndarray
    known: Reading | None = None


class ModelDraft(DraftSource):
    """A language model that proposes by ``rule`` and computes the features that a policy ``needs``."""

    def __init__(self, name: str, model: CachedModel, rule: AcceptanceRule, needs: frozenset[str]) -> None:
        self.name = name
        self.max_length = model.max_length
        self._model = model
        self._rule = rule
        self._needs = needs
        self._trunk = 0  # tokens in the cache above a tree
        self._places: dict[int, int] = {}  # rows of the cache, by the nodes of the tree that were read
        self._skipped = 0  # tokens of the text that only the target reads
        self._needs_states = bool(needs & {"hidden", "proposer"})
        self._needs_logits = bool(needs & {"p", "margin", "entropy", "top10"})
        self._ids = model.head_ids  # of the logits that it read last
        self._all_known = self._ids is None or self._ids.max() < rule.vocab_size
        self._takes_choice = rule.name == "greedy" and self._all_known and not self.abilities.at_once
        n_choices = rule.vocab_size if self._ids is None else len(self._ids)
        self._reader = FeatureReader(needs, n_choices, masked=rule.name != "greedy")

    @classmethod
    def abilities_as(cls, kind: DraftKind) -> DraftAbilities:
        """The abilities of such a draft whose pair.json says ``kind``."""
        if cls.abilities.text_only:
            return replace(cls.abilities, sees=kind.sees)
        return replace(cls.abilities, layers=kind.layers)

    def start(self, prompt: EncodedPrompt, states: States = ()) -> None:
        """Reads all but the last token of the prompt, or of its text; the first draft step reads that one."""
        self._model.kept_layers = FINAL if self._needs_states else ()
        read = prompt.as_read(self.abilities.sees)
        self._skipped = len(prompt) - len(read)
        prefill(self._model, read)

    def step(self, text: list[int], state: DraftState) -> ModelProposal | None:
        """One pass over the tokens that the model has not read."""
        row, position = self._next_row(text, state), state.start + len(state.tokens)
        ids, known = self._ids, self._model.likeliest if self._takes_choice else None
        if known is not None:
            proposal = ModelProposal(known.token, row, known)
        else:
            proposal = ModelProposal(*self._rule.propose(row, position, ids))
        state.tokens.append(proposal.choice if ids is None else int(ids[proposal.choice]))
        return proposal

    def read_node(self, state: DraftState, node: int) -> Siblings:
        if node < 0:
            row, path = self._read(self._unseen(state.text, state)), []
            self._trunk, self._places = self._model.length, {}
        else:
            assert state.parents is not None
            self._places[node] = self._model.length
            path = path_to(state.parents, node)
            rows = [self._places[one] for one in path]
            row = self._read([state.tokens[node]], Branches(self._trunk, [rows]))
        known = self._model.likeliest if self._takes_choice else None
        return self._rule.siblings(row, state.start + len(path), node, self._ids, known)

    def rows_along(self, text: list[int], tokens: list[int]) -> Iterator[np.ndarray]:
        """Logits [vocab_size] after ``text``, and after each of ``tokens`` as far as the draft would guess on, as in an
        iteration that guessed these.
        """
        state, whole = DraftState(text=text), np.full(self._model.vocab_size, OUTSIDE, dtype=np.float32)
        for token in [*tokens, None]:
            if not self._has_next(text, state):
                return
            row = self._next_row(text, state)
            whole[slice(None) if self._ids is None else self._ids] = row
            yield whole
            if token is not None:
                state.tokens.append(token)

    def _has_next(self, text: list[int], state: DraftState) -> bool:
        return len(text) + len(state.tokens) <= self.max_length

    def _next_row(self, text: list[int], state: DraftState) -> np.ndarray:
        """Logits after the text and the tokens of ``state``."""
        return self._read(self._unseen(text, state))

    def _read(self, unseen: list[int], branches: Branches | None = None) -> np.ndarray:
        """Logits after the last of ``unseen``, over the tokens that the draft can propose."""
        return self._take_logits(self._model.extend(unseen, branches))[-1]

    def _take_logits(self, logits: torch.Tensor) -> np.ndarray:
        """Of the model's last logits those of the tokens that the draft can propose; sets ``_ids``."""
        if self._all_known:  # normally: no copy of the row at each step
            self._ids = self._model.head_ids
            return as_rows(logits)
        ids = self._model.head_ids
        assert ids is not None, "a whole head has no token that is not known"
        known = ids < self._rule.vocab_size
        self._ids = ids[known]
        return as_rows(logits)[:, known]

    def _unseen(self, text: list[int], state: DraftState) -> list[int]:
        """The tokens that the model has not read yet: the last proposal or, at first, the end of the text.

        The end is one token after a rejection, two after full acceptance (the last proposal and the bonus), and more
        after iterations without drafts.
        """
        return [state.tokens[-1]] if state.tokens else text[self._model.length + self._skipped :]

    def read_features(self, state: DraftState, proposal: ModelProposal) -> None:
        if self._needs_logits:
            self._read_logits(state, proposal)
        if self._needs_states:
            self._read_states(state)

    def _read_logits(self, state: DraftState, proposal: ModelProposal) -> None:
        self._reader.read(state, proposal.row, proposal.choice, proposal.known)

    def _read_states(self, state: DraftState) -> None:
        hidden = as_rows(self._model.last_states[0])[-1].copy()
        if len(state.tokens) > 1:  # the input of this pass was the token before
            state.hidden.append(hidden)
        state.proposer.append(hidden)

    def forget(self, length: int, path: Sequence[int] = ()) -> None:
        length -= self._skipped
        if self._places:
            read = [self._places[node] for node in path if node in self._places]
            self._model.rewind(self._trunk, read[: length - self._trunk])
            self._places = {}
        elif self._model.length > length:
            self._model.rewind(length)


class ModelFreeDraft(DraftSource):
    """A draft without a model, which every pair has; it is made for a lane's ``rule``. Its proposals are certain."""

    max_length = 2**31

    def __init__(self, rule: AcceptanceRule) -> None:
        self._rule = rule

    def read_features(self, state: DraftState, proposal: Any) -> None:
        state.p.append(1.0)
        state.entropy.append(0.0)
        state.margin.append(math.inf)


class NgramDraft(ModelFreeDraft):
    """Prompt lookup: proposes the token that followed the last occurrence of the longest matching suffix of the text.

    Suffixes of 3, 2 and 1 tokens are tried, in prompt, output and proposals (Saxena 2023, prompt lookup decoding, here
    one token at a time). Its proposals are certain: p = 1, entropy 0.
    """

    name = PROMPT_LOOKUP.name
    abilities = DraftAbilities(certain=True, may_decline=True)

    def start(self, prompt: EncodedPrompt, states: States = ()) -> None:
        self._seen: list[int] = []
        self._ends: dict[tuple[int, ...], list[int]] = {}  # n-gram -> its end positions, ascending
        for token in prompt.ids:
            self._push(token)

    def step(self, text: list[int], state: DraftState) -> int | None:
        for token in text[len(self._seen) :]:
            self._push(token)
        found = self._look_up()
        if found is None:
            return None
        self._push(found)
        self._rule.propose_certain(found)
        state.tokens.append(found)
        return found

    def forget(self, length: int, path: Sequence[int] = ()) -> None:
        while len(self._seen) > length:
            for key in self._keys():
                self._ends[key].pop()
            self._seen.pop()

    def _look_up(self) -> int | None:
        """The token after the last earlier occurrence of the text's suffix; None if even its last token is new."""
        for key in self._keys():
            ends = self._ends[key]
            if len(ends) > 1:  # the last one is the end of the text itself
                return self._seen[ends[-2]]
        return None

    def _push(self, token: int) -> None:
        self._seen.append(token)
        for key in self._keys():
            self._ends.setdefault(key, []).append(len(self._seen))

    def _keys(self) -> list[tuple[int, ...]]:
        """The n-grams at the end of the text, longest first."""
        most = min(LONGEST_MATCH, len(self._seen))
        return [tuple(self._seen[-n:]) for n in range(most, 0, -1)]


MODEL_FREE: dict[str, type[ModelFreeDraft]] = {PROMPT_LOOKUP.name: NgramDraft}


def start_text(target: CachedModel, drafts: Iterable[DraftSource | None], prompt: EncodedPrompt) -> None:
    """Target and ``drafts`` read ``prompt`` except its last token; each draft gets the states of its ``layers``."""
    sources = [draft for draft in drafts if draft is not None]
    target.kept_layers = tuple(dict.fromkeys(layer for source in sources for layer in source.abilities.layers))
    prefill(target, prompt)
    states = dict(zip(target.kept_layers, target.last_states)) if len(prompt) > 1 else {}
    for source in sources:
        source.start(prompt, tuple(states[layer] for layer in source.abilities.layers if states))


def prefill(model: CachedModel, prompt: EncodedPrompt | list[int]) -> None:
    """Reads ``prompt`` except its last token, so that every pass of the loop is alike."""
    if len(prompt) > 1:
        model.prefill(encoded(prompt).first(len(prompt) - 1))
    else:
        model.rewind(0)
