"""The lossless check: every policy and SL cap against transformers' own greedy generation, in float32.

It decodes each prompt about 200 times, with models that compute equal passes only once (:func:`remembering`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from ..comparison.assemble import NEAR_TIE, difference, top_gap
from ..comparison.chain import record_chain
from ..comparison.prepare import abilities_of, load_heads_of, make_draft, shared_vocabulary
from ..engines.base import CachedModel
from ..engines.cuda import CudaModel
from ..engines.inputs import Branches, EncodedPrompt, already_in_place
from ..engines.pair import Pair
from ..lookahead.base import LaneContext, LookaheadPolicy
from ..lookahead.fitted import make_policy
from ..lookahead.heads import Head
from ..lookahead.lanes import parse_lane
from ..lookahead.spec import all_specs
from ..loop.acceptance import Greedy
from ..loop.clock import CpuClock
from ..loop.drafting import MODEL_FREE, DraftSource, prefill, start_text
from ..loop.limits import Limits
from ..loop.speculative import speculative_decode
from ..records.trace import Chain, Costs

CAPS = range(1, 17)
# The oracle needs cost curves; any will do, since the text must not depend on them.
COSTS = Costs(target_s=1.0, verify_curve=[1.0 + 0.01 * n for n in range(21)], draft_step={}, overhead=0.0)


@dataclass(slots=True)
class Text:
    """The reference's text: its new tokens, and the gap between the two best logits at each of them."""

    tokens: list[int]
    gaps: list[float]


@dataclass(slots=True)
class Counts:
    """Outcomes so far. ``different`` holds (prompt, policy, cap, first difference, top-2 gap there)."""

    prompts: int = 0
    compared: int = 0
    equal: int = 0
    near_ties: int = 0
    different: list[tuple[int, str, int, int, float]] = field(default_factory=list)

    def add(self, prompt: int, name: str, cap: int, output: list[int], expected: Text) -> None:
        """Counts one text of policy ``name`` with at most ``cap`` guesses an iteration on the prompt of that number."""
        self.compared += 1
        at = difference(output, expected.tokens)
        if at is None:
            self.equal += 1
            return
        gap = expected.gaps[min(at, len(expected.gaps) - 1)]
        if gap < NEAR_TIE:
            self.near_ties += 1
        else:
            self.different.append((prompt, name, cap, at, gap))


def check_lossless(
    pair: Pair,
    reference: Callable[[EncodedPrompt, int], Text],
    prompts: list[EncodedPrompt],
    max_new_tokens: int,
    caps: range = CAPS,
    so_far: Counts | None = None,
) -> Iterator[Counts]:
    """Decodes every prompt with every policy and SL cap and compares with the reference's text.

    Args:
        pair: loaded in the reference's number format. reference: prompt, token limit -> the expected text.
        so_far: counts of earlier prompts, which are skipped; the others are added to it.

    Yields the same Counts after each prompt. Passes that are the same to the last token are computed once.
    """
    checker = _Checker(remembering(pair), max_new_tokens)
    counts = so_far or Counts()
    for number, prompt in enumerate(prompts[counts.prompts :], counts.prompts):
        expected = reference(prompt, max_new_tokens)
        checker.start(prompt)
        counts.add(number, "autoregressive", 0, checker.decode("autoregressive", None), expected)
        for name in checker.names:
            for cap in caps:
                counts.add(number, name, cap, checker.decode(name, cap), expected)
        counts.prompts += 1
        yield counts


def checked_lanes(heads: Mapping[str, Head], trees: bool = True) -> list[str]:
    """Every policy that drafts and needs no fitting or has its head, and prompt lookup; {cap} stands for the most
    guesses of an iteration. ``trees``: whether the models can read them.
    """
    found = ["ngram/static:{cap}"]
    for name, spec in all_specs().items():
        if spec.plain or (spec.branches and not trees) or (spec.learned and name not in heads):
            continue
        required = spec.argument is not None and spec.argument.required
        words = spec.argument.words if spec.argument is not None else ()
        found += [f"{name}:{{cap}}" if required else name, *(f"{name}:{word}" for word in words)]
    return found


class _Checker:
    """Decodes one prompt repeatedly; the prompt is read once and then rewound to."""

    def __init__(self, pair: Pair, max_new_tokens: int) -> None:
        self._pair = pair
        self._limits = Limits(max_new_tokens, frozenset(pair.tokenizer.eos_ids))
        self._rule = Greedy(shared_vocabulary(pair, [pair.default_draft]))
        self._heads: dict[str, Head] = load_heads_of(pair, pair.default_draft)
        self.names = checked_lanes(self._heads, pair.target.can_branch and pair.draft().can_branch)
        needs = frozenset({"p", "entropy"}).union(*(head.needs for head in self._heads.values()))
        self._sources = {name: make_draft(pair, name, self._rule, needs) for name in (pair.default_draft, *MODEL_FREE)}

    def start(self, prompt: EncodedPrompt) -> None:
        """Reads ``prompt`` and records, for the oracles, the draft's guesses along the text."""
        self._prompt = prompt
        start_text(self._pair.target, self._sources.values(), self._prompt)
        output = self.decode("autoregressive", None)
        self._chain: Chain = record_chain(
            self._sources[self._pair.default_draft],
            self._prompt,
            output,
            self._limits,
            target=self._pair.target,
        )

    def decode(self, name: str, cap: int | None) -> list[int]:
        """The text under the policy ``name`` and at most ``cap`` guesses per iteration."""
        policy, source = self._policy(name, cap)
        self._pair.target.rewind(len(self._prompt) - 1)
        if source is not None:
            source.forget(len(self._prompt) - 1)
        decode = speculative_decode(
            self._pair.target, source, policy, self._rule, self._prompt, self._limits, CpuClock()
        )
        return [token for iteration in decode for token in iteration.tokens]

    def _policy(self, name: str, cap: int | None) -> tuple[LookaheadPolicy, DraftSource | None]:
        lane = parse_lane(name.replace("{cap}", str(cap)))
        policy = make_policy(lane, self._heads)
        if lane.is_plain:
            return policy, None
        policy.cap = cap
        draft = lane.draft or self._pair.default_draft
        costs = replace(COSTS, draft_step={draft: 0.1})
        context = LaneContext(draft, costs, self._limits.max_new_tokens, prompt=self._prompt.ids)
        if lane.is_oracle:
            context.holds, context.n_tokens = self._chain.holds, len(self._chain.target)
        policy.reset(context)
        return policy, self._sources[draft]


def plain_reference(pair: Pair) -> Callable[[EncodedPrompt, int], Text]:
    """The target's own text, token by token: the reference where transformers' kernels would round otherwise."""
    vocab, ends = shared_vocabulary(pair, [pair.default_draft]), frozenset(pair.tokenizer.eos_ids)

    def write(prompt: EncodedPrompt, max_new_tokens: int) -> Text:
        text = Text([], [])
        prefill(pair.target, prompt)
        last = prompt.ids[-1]
        while len(text.tokens) < max_new_tokens and (not text.tokens or last not in ends):
            row = pair.target.extend([last])[0, :vocab].cpu().numpy()
            last = int(row.argmax())
            text.tokens.append(last)
            text.gaps.append(top_gap(row))
        return text

    return write


def transformers_reference(folder: Path) -> Callable[[EncodedPrompt, int], Text]:
    """``generate(do_sample=False)`` of the model in ``folder``, in float32."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, trust_remote_code=False).eval()

    @torch.inference_mode()
    def write(prompt: EncodedPrompt, max_new_tokens: int) -> Text:
        ids = torch.tensor([prompt.ids])
        given = {"input_ids": ids}
        if prompt.embeddings is not None:
            given = {"inputs_embeds": model.get_input_embeddings()(ids)}
            given["inputs_embeds"][0, prompt.at : prompt.at + prompt.n_placeholders] = prompt.embeddings
        out = model.generate(
            **given,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=max_new_tokens,
            return_dict_in_generate=True,
            output_logits=True,
        )
        new = out.sequences[0, -len(out.logits) :]  # with embeddings, all there are
        return Text(new.tolist(), [top_gap(row[0].numpy()) for row in out.logits])

    return write


class _Step(NamedTuple):
    """One change of a cache: a pass over ``ids``, or without them a rewind to the first tokens and ``rows``.

    ``first``: the first row that it wrote; ``length``: that of the cache after it; ``branches``: the trunk and the
    paths of ``ids`` in a tree.
    """

    first: int
    length: int
    ids: tuple[int, ...] = ()
    branches: tuple[int, tuple[tuple[int, ...], ...]] | None = None
    rows: tuple[int, ...] = ()


class RememberingModel(CachedModel):
    """Answers a pass from memory if exactly the same pass was computed before.

    The content of a cache follows from the passes that wrote it. If they are the same, tokens rejected on the way
    included, then the next pass has the same result to the bit and is not computed again. The same text written by
    other passes is *not* the same: whether their results agree is what a lossless check asks.
    """

    def __init__(self, model: CachedModel, first_choices: int | None = None) -> None:
        """``first_choices``: of each row only the first choice among so many ids is kept, which is all that a greedy
        rule needs of a target, and not its logits (a fifth of a megabyte).
        """
        self._model, self._first_choices = model, first_choices
        self.info, self.max_length, self.hidden_size = model.info, model.max_length, model.hidden_size
        self.vocab_size, self.head_ids, self.can_branch = model.vocab_size, model.head_ids, model.can_branch
        self.kept_layers: tuple[int, ...] = ()
        self.last_states: tuple[torch.Tensor, ...] = ()
        self._begin(0)

    def _begin(self, length: int) -> None:
        """Forgets all passes; ``length`` tokens are in the cache."""
        self._root = length
        self._steps: list[_Step] = []  # what the caller did
        self._done: list[_Step] = []  # what ``_model`` did
        self._memory: dict[tuple, tuple[torch.Tensor, tuple[torch.Tensor, ...], np.ndarray | None]] = {}

    @property
    def length(self) -> int:  # type: ignore[override]
        return self._length_of(self._steps)

    def _length_of(self, steps: Sequence[_Step]) -> int:
        return steps[-1].length if steps else self._root

    def prefill(self, prompt: list[int] | EncodedPrompt) -> torch.Tensor:
        self._model.kept_layers = self.kept_layers
        logits = self._model.prefill(prompt)
        self.last_states, self.head_ids = self._model.last_states, self._model.head_ids
        self._begin(len(prompt))
        return logits

    def rewind(self, length: int, rows: Sequence[int] = ()) -> None:
        in_place = already_in_place(length, rows)
        length, rows = length + in_place, rows[in_place:]
        if length < self._root:
            self._model.rewind(length)
            self._begin(length)
        while self._steps and self._steps[-1].first >= length and not rows:  # it left no trace
            self._steps.pop()
        if rows or self.length > length:
            self._steps.append(_Step(length, length + len(rows), rows=tuple(rows)))

    def extend(self, ids: list[int], branches: Branches | None = None) -> torch.Tensor:
        place = None if branches is None else (branches.trunk, tuple(map(tuple, branches.paths)))
        step = _Step(self.length, self.length + len(ids), tuple(ids), place)
        key = (self.kept_layers, tuple(self._steps), step)
        if key not in self._memory:
            self._memory[key] = self._compute(step)
        self._steps.append(step)
        answer, self.last_states, self.head_ids = self._memory[key]
        return self._restored(answer)

    def _compute(self, step: _Step) -> tuple[torch.Tensor, tuple[torch.Tensor, ...], np.ndarray | None]:
        self._catch_up()
        self._model.kept_layers = self.kept_layers
        logits = self._do(step)
        states = tuple(one.clone() for one in self._model.last_states)
        return self._kept(logits), states, self._model.head_ids

    def _kept(self, logits: torch.Tensor) -> torch.Tensor:
        if self._first_choices is None:
            return logits.clone()
        return logits[:, : self._first_choices].argmax(1, keepdim=True).cpu()

    def _restored(self, kept: torch.Tensor) -> torch.Tensor:
        """Logits [n, vocab]; where only first choices were kept, 1 for them and 0 elsewhere."""
        if self._first_choices is None:
            return kept
        return torch.zeros(len(kept), self._first_choices).scatter_(1, kept, 1.0)

    def _catch_up(self) -> None:
        """Brings ``_model`` to the caller's state, with the passes that were answered from memory."""
        same = next((i for i, (one, other) in enumerate(zip(self._steps, self._done)) if one != other), None)
        common = min(len(self._steps), len(self._done)) if same is None else same
        while any(step.first < self._length_of(self._done[:common]) for step in self._done[common:]):
            common -= 1  # what was there after that step has been overwritten since
        self._model.rewind(self._length_of(self._done[:common]))
        del self._done[common:]
        for step in self._steps[common:]:
            self._do(step)

    def _do(self, step: _Step) -> Any:
        """Repeats one step on ``_model``; the logits of a pass."""
        self._done.append(step)
        if not step.ids:
            return self._model.rewind(step.first, step.rows)
        if step.branches is None:
            return self._model.extend(list(step.ids))
        trunk, paths = step.branches
        return self._model.extend(list(step.ids), Branches(trunk, list(map(list, paths))))


def remembering(pair: Pair) -> Pair:
    """The same pair with a memory for target and default draft; unchanged if their greedy work stays on a device.

    A draft that reads hidden states has none: its guesses depend on more than its tokens.
    """
    if isinstance(pair.target, CudaModel):
        return pair
    return replace(
        pair,
        target=RememberingModel(pair.target, shared_vocabulary(pair, [pair.default_draft])),
        load_draft=lambda name: (
            RememberingModel(pair.draft(name)) if abilities_of(pair, name).text_only else pair.draft(name)
        ),
    )
