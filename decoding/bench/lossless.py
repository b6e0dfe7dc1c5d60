"""The lossless check: every policy and SL cap against transformers' own greedy generation, in float32."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from ..comparison.assemble import NEAR_TIE, difference, top_gap
from ..comparison.chain import record_chain
from ..comparison.prepare import check_vocabulary, load_heads_of, make_draft, shared_vocabulary
from ..engines.inputs import EncodedPrompt
from ..engines.pair import Pair
from ..engines.tokenizer import load_tokenizer
from ..lookahead.base import LaneContext, LookaheadPolicy
from ..lookahead.fitted import make_policy
from ..lookahead.heads import Head
from ..lookahead.lanes import parse_lane
from ..lookahead.spec import all_specs
from ..loop.acceptance import Greedy
from ..loop.clock import Clock
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
    prompts: Sequence[EncodedPrompt],
    max_new_tokens: int,
    caps: range = CAPS,
    so_far: Counts | None = None,
) -> Iterator[Counts]:
    """Decodes every prompt with every policy and SL cap and compares with the reference's text.

    Args:
        pair: loaded in the reference's number format. reference: prompt, token limit -> the expected text.
        so_far: counts of earlier prompts, which are skipped; the others are added to it.

    Yields the same Counts after each prompt.
    """
    checker = _Checker(pair, max_new_tokens)
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
        """Reads ``prompt`` and records, for the oracles, the draft's guesses along the text. Raises UserError for a
        draft that lacks tokens of it.
        """
        check_vocabulary(self._rule.vocab_size, prompt, self._limits)
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
        decode = speculative_decode(self._pair.target, source, policy, self._rule, self._prompt, self._limits, Clock())
        return [token for iteration in decode for token in iteration.tokens]

    def _policy(self, name: str, cap: int | None) -> tuple[LookaheadPolicy, DraftSource | None]:
        lane = parse_lane(name.replace("{cap}", str(cap)))
        policy = make_policy(lane, self._heads)
        if lane.is_plain:
            return policy, None
        policy.cap = cap
        draft = lane.draft or self._pair.default_draft
        costs = replace(COSTS, draft_step={draft: 0.1})
        policy.reset(LaneContext(draft, costs, self._limits.max_new_tokens, self._chain, self._prompt.ids))
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
    """``generate(do_sample=False)`` of the model in ``folder``, in float32. Of its generation config only the ends of a
    text count: the rest, such as a penalty on repetition, would make it another text than the model's likeliest.
    """
    from transformers import AutoModelForCausalLM, GenerationConfig

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, trust_remote_code=False).eval()
    ends = sorted(load_tokenizer(folder).eos_ids) or None
    model.generation_config = GenerationConfig(eos_token_id=ends, pad_token_id=0)

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
