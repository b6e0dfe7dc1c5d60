"""The CUDA engine: Llama-shaped models over fixed buffers, so that every pass can be a CUDA graph.

A pass reads its input (position in the text, ids) from one device buffer; its shape depends only on two bucket sizes,
the number of rows and of keys. Rows beyond the ids are padding: they write keys at positions that later passes
overwrite before they see them, because a row sees keys up to its own position only. Rewinding is therefore a change of
one number. Everything also runs on a CPU, without graphs; the tests use this.

In addition to :class:`~decoding.engines.base.CachedModel` it offers greedy work that never copies logits to the host:
``draft_step`` (a proposal and its features in one small copy), ``draft_planned`` (K proposals, nothing copied) and
``verify_planned`` (a check of what it drafted, with acceptance on the device; the only copy of the iteration).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from ..records.trace import ModelInfo
from .attention import Plan
from .base import OUTSIDE, check_room
from .compiled.readout import TOP
from .cuda_attention import MAX_TREE, FixedAttention, key_bucket
from .cuda_graphs import GraphRunner
from .inputs import Branches
from .lean import LeanModel
from .linears import DenseHead

# Weights are read once for any number of rows, so 8 rows cost about as much as one. With equal shapes libraries choose
# equal kernels, so plain decoding and checks of up to 8 tokens should round alike.
ROW_BUCKETS = (8, 16, 24, 32)
LEAST_ROWS = ROW_BUCKETS[0]
MAX_ROWS = ROW_BUCKETS[-1]
_PLACE, _LAST, _IDS = 0, 1, 2  # layout of the input buffer: position in the text, index of the last id, ids
_GRAPHS, _EAGER = "cuda-graphs", "lean, fixed buffers"


def row_bucket(n: int) -> int:
    """The number of rows that a pass over ``n`` ids computes."""
    return next(rows for rows in ROW_BUCKETS if rows >= n)


@dataclass(slots=True)
class DraftStep:
    """One greedy proposal: its probability, the entropy (nats) and the ten highest probabilities, descending."""

    token: int
    p: float
    entropy: float
    top10: list[float]


class CudaModel(LeanModel):
    """A Llama-shaped model whose passes are CUDA graphs (on a CPU: plain calls)."""

    can_fork = False
    _attention: FixedAttention
    _building = torch.no_grad  # ZeroGPU later exchanges the data of tensors, which inference tensors do not allow

    def __init__(
        self,
        hf_model: Any,
        info: ModelInfo,
        weights: str,
        device: str = "cuda",
        head_ids: torch.Tensor | None = None,
    ) -> None:
        super().__init__(hf_model, info, weights, device, head_ids)
        with self._building():
            self._input = torch.zeros(_IDS + MAX_ROWS, dtype=torch.int64, device=self.device)
            self._offsets = torch.arange(MAX_ROWS, device=self.device)
            self._trunk = torch.zeros(1, dtype=torch.int64, device=self.device)
            self._positions = torch.zeros(MAX_ROWS, dtype=torch.int64, device=self.device)
            self._sees = torch.zeros(MAX_ROWS, MAX_TREE, dtype=torch.bool, device=self.device)
            self._added, self._own = (
                torch.zeros(n, self.hidden_size, dtype=self.dtype, device=self.device) for n in (MAX_ROWS, 1)
            )
            if self.tied and head_ids is None:  # one copy on the device serves both
                self.head = DenseHead(self.embedding)
        self._pins = self.device.type == "cuda"
        self._runner = GraphRunner(self.device)
        info.engine = _GRAPHS if self._runner.records else _EAGER

    @property
    def records_graphs(self) -> bool:
        return self._runner.records

    def take_projections(self, weights: Mapping[str, torch.Tensor], layers: int) -> None:
        super().take_projections(weights, layers)
        with self._building():
            self._target_states = torch.zeros(MAX_ROWS, layers, self.hidden_size, dtype=self.dtype, device=self.device)

    def _make_attention(self) -> FixedAttention:
        return FixedAttention(self._cache_shape(), MAX_ROWS)

    def _make_head(self, weight: torch.Tensor, bias: torch.Tensor | None) -> DenseHead:
        return DenseHead(weight, bias)

    def _norm_weight(self, weight: torch.Tensor) -> torch.Tensor:
        return weight

    def _norm(self, x: torch.Tensor, weight: torch.Tensor, epsilon: torch.Tensor | None = None) -> torch.Tensor:
        """One kernel on CUDA. A weight [heads, d] normalises each head separately."""
        if weight.dim() == 1:
            return F.rms_norm(x, weight.shape, weight, self._eps)
        return F.rms_norm(x, weight.shape[-1:], None, self._eps) * weight

    # -- a cached model

    @torch.inference_mode()
    def extend(
        self,
        ids: list[int],
        branches: Branches | None = None,
        added: torch.Tensor | None = None,
        last: int | None = None,
    ) -> torch.Tensor:
        one_pass = len(ids) <= MAX_ROWS
        if added is not None and not one_pass:  # a prompt
            return super().extend(ids, branches, added, last)
        check_room(self.length, len(ids), self.max_length)
        self._take_text(ids)
        logits, states, unread = [], [], 0 if last is None else len(ids) - last
        for first in range(0, len(ids), MAX_ROWS):
            part = ids[first : first + MAX_ROWS]
            nodes = None if branches is None else branches.part(first, first + MAX_ROWS)
            out_logits, out_states = self._pass(part, nodes, added)
            logits.append(self._lasting(out_logits[max(0, unread - first) : len(part)]))
            states.append(tuple(one[: len(part)] if one_pass else one[: len(part)].clone() for one in out_states))
        self.last_states = states[0] if one_pass else tuple(map(torch.cat, zip(*states)))
        return logits[0] if one_pass else torch.cat(logits)

    def _lasting(self, logits: torch.Tensor) -> torch.Tensor:
        """A copy of a pass's logits, which the next launch overwrites; of a reduced head those of ``head_ids``."""
        if self.text_tokens is None:
            return logits.to(torch.float32, copy=True)
        n = len(self.text_tokens.ids)
        lasting = logits[:, :n].to(torch.float32, copy=True)
        self.text_tokens.seen(lasting[:, n - len(self.text_tokens) :], self.length)
        return lasting

    # -- greedy work on the device

    @torch.inference_mode()
    def draft_step(self, ids: list[int], vocab: int, added: torch.Tensor | None = None) -> DraftStep:
        """Appends ``ids`` and proposes the next token among the first ``vocab``, with its features.

        ``added``: as of ``extend``; None, where ``projections``: what they make of the state of the step before.
        """
        check_room(self.length, len(ids), self.max_length)
        ids, added = self._catch_up(ids, added, MAX_ROWS)
        self._take_text(ids)
        rows = row_bucket(len(ids))
        keys = key_bucket(self.length + rows, self._attention.capacity)
        self._fill(ids, added=added)
        begins = added is not None
        key = ("step", rows, keys, vocab, self.kept_layers, begins)
        features, self.last_states = self._launch(key, lambda: self._step(rows, keys, vocab, begins))
        self.length += len(ids)
        token, p, entropy, *top = features.tolist()
        return DraftStep(int(token), p, entropy, top)

    @torch.inference_mode()
    def draft_planned(self, ids: list[int], n: int, vocab: int, added: torch.Tensor | None = None) -> torch.Tensor:
        """Appends ``ids`` and greedily proposes ``n`` tokens without a copy to the host.

        ``added``: as of ``extend``; to a guess is added what ``projections`` make of the state before it.
        Returns them on the device, [n] int64, valid until the next pass. The last one is not in the cache afterwards.
        """
        check_room(self.length, len(ids) + n - 1, self.max_length)
        ids, added = self._catch_up(ids, added, LEAST_ROWS)  # graphs are recorded for one number of rows only
        self._take_text(ids)
        keys = key_bucket(self.length + len(ids) + n + LEAST_ROWS, self._attention.capacity)
        self._fill(ids, added=added)
        adds = added is not None
        tokens = self._launch(("planned", n, keys, vocab, adds), lambda: self._planned(n, keys, vocab, adds))
        self.length += len(ids) + n - 1
        self.last_states = ()
        return tokens

    @torch.inference_mode()
    def of_target(self, states: Sequence[torch.Tensor]) -> torch.Tensor:
        n = len(states[0])
        if n > MAX_ROWS:  # of a prompt
            return super().of_target(states)
        torch.stack([state.to(self.dtype) for state in states], 1, out=self._target_states[:n])
        rows = row_bucket(n)
        work = super().of_target
        return self._launch(("states", rows), lambda: work(self._target_states[:rows].unbind(1)))[:n].clone()

    def _catch_up(self, ids: list[int], added: torch.Tensor | None, most: int) -> tuple[list[int], torch.Tensor | None]:
        """Reads all ``ids`` but the last if they are more than ``most``, and returns those that are unread."""
        if len(ids) <= most:
            return ids, added
        self.extend(ids[:-1], added=None if added is None else added[:-1], last=1)
        return ids[-1:], None if added is None else added[-1:]

    @torch.inference_mode()
    def verify_planned(self, last: int, drafted: torch.Tensor, vocab: int) -> tuple[list[int], list[int], int]:
        """Checks proposals on the device after the token ``last``: one pass, one small copy.

        Returns the proposals, the target's first choices (one more), and the number of accepted proposals.
        """
        n = len(drafted)
        check_room(self.length, n + 1, self.max_length)
        self._fill([last], n)
        self._input[_IDS + 1 : _IDS + 1 + n].copy_(drafted)
        return self._read_verified(n, vocab)

    @torch.inference_mode()
    def choices(self, ids: list[int], vocab: int, branches: Branches | None = None) -> list[int]:
        """Appends ``ids``, as ``extend``, and returns the first choice after each, among the first ``vocab`` tokens."""
        if branches is not None or len(ids) > MAX_ROWS:
            return self.extend(ids, branches)[:, :vocab].argmax(-1).tolist()
        check_room(self.length, len(ids), self.max_length)
        self._fill(ids)
        return self._read_verified(len(ids) - 1, vocab)[1]

    def _read_verified(self, n: int, vocab: int) -> tuple[list[int], list[int], int]:
        """Verifies a token and ``n`` proposals in the input buffer; returns as ``verify_planned``."""
        rows = row_bucket(n + 1)
        keys = key_bucket(self.length + rows, self._attention.capacity)
        key = ("verify", rows, keys, vocab, self.kept_layers)
        found, states = self._launch(key, lambda: self._verify(rows, keys, vocab))
        self.length += n + 1
        self.last_states = tuple(one[: n + 1] for one in states)
        n_accepted, *columns = found.tolist()
        return columns[1 : n + 1], columns[rows : rows + n + 1], n_accepted

    # -- the passes: the input buffer is their only variable input

    def _pass(
        self, ids: list[int], branches: Branches | None, added: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        """Logits and kept states of ``ids``, and of padding after them; appends the ids to the cache."""
        rows = row_bucket(len(ids))
        keys = key_bucket(self.length + rows, self._attention.capacity)
        self._fill(ids, added=added)
        to_add = None if added is None else self._added[:rows]
        if branches is None or branches.is_chain(self.length):  # a chain has the bits of a plain pass
            kind, work = "pass", lambda: self._rows(self._first_ids(rows), 0, keys, to_add)
        else:
            self._fill_tree(branches)
            kind, work = "tree", lambda: self._tree_rows(rows, keys, to_add)
        out = self._launch((kind, rows, keys, self.kept_layers, added is not None), work)
        self.length += len(ids)
        return out

    def _launch(self, key: tuple, work: Callable[[], Any]) -> Any:
        out = self._runner.run(key, work)
        if self._runner.note:
            self.info.engine, self.note = _EAGER, self._runner.note
        return out

    def _fill(self, ids: list[int], last: int | None = None, added: torch.Tensor | None = None) -> None:
        """Writes the input buffers; ``last``: index of the last id that counts, if not all are given here.

        Does not synchronise, so that a check can be launched while the drafting before it still runs: the copy is from
        pinned memory, in stream order. torch's caching host allocator reuses that memory only after the copy, so
        ``given`` may be released at once.
        """
        given = torch.tensor([self.length, len(ids) - 1 if last is None else last, *ids], pin_memory=self._pins)
        self._input[: len(given)].copy_(given, non_blocking=True)
        if added is not None:
            self._added[: len(added)].copy_(added)

    def _fill_tree(self, branches: Branches) -> None:
        """Writes the buffers of a tree's shape. Padding sees a row, since a softmax over none would not be finite."""
        sees = torch.zeros(MAX_ROWS, MAX_TREE, dtype=torch.bool)
        sees[:, 0] = True
        for row, path in enumerate(branches.paths):
            if path[-1] >= branches.trunk + MAX_TREE:
                raise ValueError(f"a tree of more than {MAX_TREE} tokens")
            sees[row, 0] = False
            sees[row, [at - branches.trunk for at in path]] = True
        self._sees.copy_(sees)
        self._positions[: len(branches.paths)].copy_(torch.tensor(branches.positions))
        self._trunk.fill_(branches.trunk)

    def _first_ids(self, rows: int) -> torch.Tensor:
        return self._input[_IDS : _IDS + rows]

    def _last(self) -> torch.Tensor:
        return self._input[_LAST : _LAST + 1]

    def _rows(
        self, ids: torch.Tensor, offset: torch.Tensor | int, keys: int, added: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        """Logits and kept states of ``ids`` [rows] at ``offset`` (one number) after the pass's position.

        ``added`` [rows or 1, hidden]: to their embeddings.
        """
        places = self._input[_PLACE] + self._offsets[: len(ids)] + offset
        return self._run(ids, places, self._attention.plan_at(places, keys), added)

    def _tree_rows(
        self, rows: int, keys: int, added: torch.Tensor | None
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        """As ``_rows``, for the tree in the buffers."""
        places = self._input[_PLACE] + self._offsets[:rows]
        plan = self._attention.plan_tree(places, self._trunk, self._sees[:rows], keys)
        return self._run(self._first_ids(rows), self._positions[:rows], plan, added)

    def _run(
        self, ids: torch.Tensor, positions: torch.Tensor, plan: Plan, added: torch.Tensor | None
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        turns = positions.clamp(max=self.max_length - 1)  # padding may be beyond the tables
        cos, sin = self.cos.index_select(0, turns), self.sin.index_select(0, turns)
        x = F.embedding(ids, self.embedding)
        hidden, states = self._run_blocks(x if added is None else x + added, cos, sin, plan)
        return self._logits(hidden), states

    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Final-norm output [n, hidden] -> logits [n, vocab], or those of a reduced head's places."""
        logits = self.head(hidden)
        if self.text_tokens is None:
            return logits
        return torch.cat([logits, DenseHead(self.text_tokens.rows)(hidden)], 1)

    def _known(self, logits: torch.Tensor, vocab: int) -> torch.Tensor:
        """The logits of tokens below ``vocab``; a reduced head's other places become OUTSIDE."""
        if self.text_tokens is None:
            return logits[:, :vocab]
        return logits.masked_fill(self.text_tokens.places >= vocab, OUTSIDE)

    def _ids_of(self, choices: torch.Tensor) -> torch.Tensor:
        """Indices into logits -> ids."""
        return choices if self.text_tokens is None else self.text_tokens.places.index_select(0, choices)

    def _step(self, rows: int, keys: int, vocab: int, begins: bool) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        """[token, p, entropy, top 10] as float32 (ids stay exact below 2^24), and the last row of each kept state.

        Avoids indexing by a one-element tensor: torch would copy it to the host, which a recording does not allow.
        """
        added = self._added[:rows] if begins else None
        if self.projections is not None and not begins:
            added = self.projections.of_own(self._own)
        logits, states = self._rows(self._first_ids(rows), 0, keys, added)
        row = self._known(logits.index_select(0, self._last()), vocab)[0]
        choice, p = row.argmax(-1, keepdim=True), torch.softmax(row, -1)
        entropy = -torch.special.xlogy(p, p).sum(0, keepdim=True)
        top = F.pad(p.topk(min(TOP, len(row))).values, (0, max(0, TOP - len(row))))
        states = tuple(one.index_select(0, self._last()) for one in states)
        if self.projections is not None:
            self._own.copy_(states[0])
        return torch.cat([self._ids_of(choice).float(), p.gather(0, choice), entropy, top]), states

    def _planned(self, n: int, keys: int, vocab: int, adds: bool) -> torch.Tensor:
        """``n`` successive first choices; each pass after the first reads one token (and copies of it as padding)."""
        added, last = self._added[:LEAST_ROWS] if adds else None, self._last()
        logits, states = self._rows(self._first_ids(LEAST_ROWS), 0, keys, added)
        row, before = logits.index_select(0, last), [one.index_select(0, last) for one in states]
        tokens = [self._ids_of(self._known(row, vocab).argmax(-1))]
        for index in range(1, n):
            if adds:
                assert self.projections is not None
                added = self.projections.of_own(before[0])
            logits, states = self._rows(tokens[-1].expand(LEAST_ROWS), last + index, keys, added)
            row, before = logits[:1], [one[:1] for one in states]
            tokens.append(self._ids_of(self._known(row, vocab).argmax(-1)))
        return torch.cat(tokens)

    def _verify(self, rows: int, keys: int, vocab: int) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        """[accepted, ids of all rows, choices of all rows] int64, and kept states; padding after the proposals is never
        accepted.
        """
        ids = self._first_ids(rows)
        logits, states = self._rows(ids, 0, keys)
        choices = self._ids_of(self._known(logits, vocab).argmax(-1))
        held = (ids[1:] == choices[:-1]) & (self._offsets[: rows - 1] < self._last())
        accepted = held.long().cumprod(0).sum()
        return torch.cat([accepted[None], ids, choices]), states
