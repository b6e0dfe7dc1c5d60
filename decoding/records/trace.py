"""The run file: all results of one comparison, as plain data.

``Run -> Trace (a lane) -> Iteration -> Token``; everything that draws, exports, replays, simulates or tests reads only
these. The dataclasses cost the decode loop almost nothing; validation happens once, when a file enters the program
(:mod:`decoding.records.run_file`).

Units: seconds; probabilities in [0, 1]; entropies in nats; cost curves in units of one target pass
over one token. Output positions count the new tokens from 0.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, ConfigDict, Field

from .events import IDENTIFIER
from .proposal import depths_of, parents_in
from .request import CompareRequest

SCHEMA: Final = "speculoscope.run/1"
MAX_LANES = 16
MAX_TOKENS = 8192

Fate = Literal["accepted", "rejected", "dropped", "correction", "bonus", "plain"]
StopReason = Literal["policy", "cap", "limit", "context", "eos", "exhausted"]
Finish = Literal["length", "eos", "stop", "context", "cancelled"]

TokenId = Annotated[int, Field(ge=0, lt=2**31)]
Probability = Annotated[float, Field(ge=0.0, le=1.0 + 1e-6)]
Seconds = Annotated[float, Field(ge=0.0, le=1e6)]
Score = Annotated[float, Field(ge=-1e9, le=1e9)]
Ratio = Annotated[float, Field(ge=0.0, le=1e6)]
Count = Annotated[int, Field(ge=0, le=10**15)]
TokenString = Annotated[str, Field(max_length=400)]
_DIRECTION_MARKS = re.compile("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")  # Unicode's bidirectional controls


def keeps_direction(name: str) -> str:
    """Names appear in the program's sentences, whose text direction they must not change."""
    if mark := _DIRECTION_MARKS.search(name):
        raise ValueError(f"a name may not hold U+{ord(mark[0]):04X}, which changes the direction of the text around it")
    return name


ShortText = Annotated[str, Field(max_length=400), AfterValidator(keeps_direction)]
TopTokens = Annotated[list[tuple[TokenId, Probability]], Field(max_length=20)]


class _Checked:
    """How a record is checked when a file is read: "1" and true are no numbers."""

    __slots__ = ()
    __pydantic_config__ = ConfigDict(extra="forbid", allow_inf_nan=False, strict=True)


@dataclass(slots=True)
class Token(_Checked):
    """One token that a lane drafted or emitted.

    ``score`` and ``threshold`` belong to the decision that the policy took right after this token was drafted (draft
    another, or verify now); they are None if it was not asked. ``accept_probability`` and ``draw`` exist only under
    speculative sampling: the token was accepted iff draw < probability.
    """

    id: TokenId
    fate: Fate
    draft_choice: TokenId | None = None  # the draft's first choice at this position (with its noise)
    target_choice: TokenId | None = None  # the target's first choice at this position (with its noise)
    p_draft: Probability | None = None
    p_target: Probability | None = None
    entropy: Score | None = None  # of the draft's distribution, nats
    score: Score | None = None
    threshold: Score | None = None
    accept_probability: Probability | None = None
    draw: Probability | None = None
    draft_top: TopTokens = field(default_factory=list)
    target_top: TopTokens = field(default_factory=list)


@dataclass(slots=True)
class Iteration(_Checked):
    """One round: the draft proposes ``drafted``, the target verifies them in one pass and adds ``emitted``.

    ``emitted`` is a correction, bonus or plain token, or None if the text ended within the accepted tokens (end of
    sequence, stop string). ``holds`` is the number of draft tokens that would have held from ``start`` on (the oracle's
    SL), None if no chain was recorded, and for a tree, which may hold where the chain does not. ``parents``, for a
    tree: the index of the guess that each one follows, -1 for the text; the accepted guesses come first. None for a
    chain. ``reads``: the draft passes behind a tree, also those below which nothing was guessed; None for a chain, and
    in files of earlier versions.
    """

    start: Annotated[int, Field(ge=0, le=MAX_TOKENS)]
    drafted: Annotated[list[Token], Field(max_length=MAX_TOKENS)]
    emitted: Token | None
    stop: StopReason
    score: Score | None = None  # of the decision before the first draft token
    threshold: Score | None = None
    holds: Annotated[int, Field(ge=0, le=MAX_TOKENS)] | None = None
    parents: Annotated[list[Annotated[int, Field(ge=-1, lt=MAX_TOKENS)]], Field(max_length=MAX_TOKENS)] | None = None
    reads: Annotated[int, Field(ge=0, le=MAX_TOKENS)] | None = None

    def __post_init__(self) -> None:
        if self.parents is not None:  # files of earlier versions have a chain's number
            self.holds = None

    @property
    def n_steps(self) -> int:
        """Draft passes behind the guesses: one for each guess of a chain, and for each place of a tree."""
        return len(set(parents_in(self.parents, len(self.drafted)))) if self.reads is None else self.reads

    @property
    def deepest(self) -> int:
        """The most guesses below each other."""
        return max(depths_of(parents_in(self.parents, len(self.drafted))), default=-1) + 1

    @property
    def n_drafted(self) -> int:
        return len(self.drafted)

    @property
    def n_accepted(self) -> int:
        return sum(token.fate == "accepted" for token in self.drafted)

    @property
    def all_tokens(self) -> list[Token]:
        """All guesses, and what was emitted."""
        return self.drafted + ([self.emitted] if self.emitted else [])

    @property
    def tokens(self) -> list[Token]:
        """The tokens of the text that this iteration produced."""
        return [token for token in self.all_tokens if token.fate not in ("rejected", "dropped")]


@dataclass(slots=True)
class Repeat(_Checked):
    """The times of one repeat; the four lists have one entry per iteration."""

    prefill_s: Seconds  # target and draft together, not part of the decode time
    draft_s: Annotated[list[Seconds], Field(max_length=MAX_TOKENS)]
    verify_s: Annotated[list[Seconds], Field(max_length=MAX_TOKENS, alias="check_s")]
    policy_s: Annotated[list[Seconds], Field(max_length=MAX_TOKENS)]
    rest_s: Annotated[list[Seconds], Field(max_length=MAX_TOKENS)]

    @property
    def decode_s(self) -> float:
        return sum(map(sum, (self.draft_s, self.verify_s, self.policy_s, self.rest_s)))


@dataclass(slots=True)
class Verdict(_Checked):
    """Whether this lane's text is the autoregressive lane's; of recorded calls of generate, as far as both go.

    With a difference: the first differing output position, and the gap between the target's two best logits there;
    ``near_tie`` is a gap under 1e-4 in float32. ``same`` is None if the texts may differ legitimately (plain
    speculative sampling).
    """

    same: bool | None
    first_difference: int | None = None
    gap: Score | None = None
    near_tie: bool = False


@dataclass(slots=True)
class Trace(_Checked):
    """One lane: one prompt under one policy and one draft."""

    lane: ShortText  # the lane string, e.g. "two-layers/static:5"
    policy: ShortText  # its policy's name, e.g. "static"
    draft: ShortText | None  # None: autoregressive
    output: Annotated[list[TokenId], Field(max_length=MAX_TOKENS)]
    iterations: Annotated[list[Iteration], Field(max_length=MAX_TOKENS)]
    repeats: Annotated[list[Repeat], Field(max_length=100)]
    finish: Finish
    verdict: Verdict
    notes: list[ShortText] = field(default_factory=list)
    # the target's probability of each token of the output had the picture been a grey one; [] without a picture
    p_grey: Annotated[list[Probability], Field(max_length=MAX_TOKENS)] = field(default_factory=list)


@dataclass(slots=True)
class TokenText(_Checked):
    """A token's text. ``bytes`` (hex) is set if it is not complete UTF-8 by itself.

    ``special``: it has no text of its own, such as the end of a message; texts leave it out.
    """

    text: TokenString
    bytes: TokenString | None = None
    special: bool = False


@dataclass(slots=True)
class ModelInfo(_Checked):
    """A model as it ran: its source, size and engine."""

    name: ShortText
    source: ShortText  # folder name or Hub id
    fingerprint: ShortText
    parameters: Count
    layers: Count
    hidden_size: Count
    vocab_size: Count
    engine: ShortText  # "lean", "transformers", "cuda-graphs", "ngram"
    dtype: ShortText  # as it ran: "bfloat16", "float32", "int8"
    device: ShortText
    threads: Count


@dataclass(slots=True)
class PairInfo(_Checked):
    """The pair of a run: the target and the drafts that ran."""

    name: ShortText
    target: ModelInfo
    drafts: dict[ShortText, ModelInfo]  # those that ran, by name
    default_draft: ShortText


@dataclass(slots=True)
class PictureInfo(_Checked):
    """The picture that a target read in its prompt.

    It took the place of ``n_tokens`` tokens from ``at`` on, which a draft that reads text alone does not get.
    ``preview``: a small PNG of a photograph, in base64; "" for a scene, which is drawn from the settings. ``file``: the
    photograph itself, as a request carries it, where that was asked for.
    """

    digest: Annotated[str, Field(pattern="^[0-9a-f]{16}$")]
    width: Count
    height: Count
    at: Count
    n_tokens: Count
    seconds: Seconds  # of the encoder, which runs once for all lanes; part of each lane's prefill
    preview: Annotated[str, Field(max_length=80_000, pattern="^[A-Za-z0-9+/]*={0,2}$")] = ""
    file: Annotated[str, Field(max_length=600_000, pattern="^(data:image/jpeg;base64,[A-Za-z0-9+/]+={0,2})?$")] = ""


@dataclass(slots=True)
class Machine(_Checked):
    """The machine of a run and the versions of its libraries; ``memory_gb`` in units of 2^30 bytes."""

    processor: ShortText
    cores: Count
    memory_gb: Ratio
    gpu: ShortText | None
    system: ShortText
    python: ShortText
    torch: ShortText
    transformers: ShortText

    @property
    def where(self) -> str:
        """What the models ran on, in words."""
        return self.gpu or f"{self.processor}, {self.cores} cores"


@dataclass(slots=True)
class Costs(_Checked):
    """The cost curves: measured in iterations of the loop and frozen before any lane uses them.

    An iteration of n > 0 drafted tokens costs ``first_step + n*c + v(n+1) + o`` (plus its decisions), in units of
    ``target_s``, the median seconds of a target pass over one token; one without a draft costs ``v(1) + o``. Files keep
    the short names: c, v, o, first, doubt.
    """

    target_s: Annotated[Seconds, Field(gt=0.0)]
    verify_curve: Annotated[  # v; [n-1]: a pass over n tokens, over one over 1
        list[Annotated[Ratio, Field(gt=0.0)]], Field(min_length=1, max_length=256, alias="v")
    ]
    draft_step: Annotated[dict[ShortText, Ratio], Field(alias="c")]  # c by draft name: t_draft / t_target
    overhead: Annotated[Ratio, Field(alias="o")]  # the loop's own work per iteration
    # policy name -> features and one decision; on a GPU also what a guess costs beyond one of a planned chain
    decision: dict[ShortText, Ratio] = field(default_factory=dict)
    # draft name -> the cost of an iteration's first draft step beyond c: the target's pass has just evicted the CPU
    # caches, and the draft may have two tokens to read. Older runs include it in c.
    first_step: Annotated[dict[ShortText, Ratio], Field(alias="first")] = field(default_factory=dict)
    # The largest share by which a pass over more tokens was measured as cheaper than one over fewer.
    contradiction: Annotated[Ratio, Field(alias="doubt")] = 0.0
    measured: ShortText | None = None  # when, ISO 8601, UTC; None: for this run

    def verify(self, n_tokens: int) -> float:
        """v(n): cost of a target pass over ``n_tokens``; beyond the measured range extrapolated with its mean slope, or
        as it ends if a busy moment made it fall.
        """
        curve = self.verify_curve
        if n_tokens <= len(curve):
            return curve[n_tokens - 1]
        slope = max(0.0, curve[-1] - curve[0]) / max(1, len(curve) - 1)
        return curve[-1] + slope * (n_tokens - len(curve))

    def iteration(
        self, n_drafted: int, draft: str | None, policy: str | None = None, n_steps: int | None = None
    ) -> float:
        """Cost of one iteration with ``n_drafted`` tokens, in units of ``target_s``; ``n_steps``: draft passes, if they
        are fewer.
        """
        steps = n_drafted if n_steps is None else n_steps
        step = self.draft_step[draft] if draft else 0.0
        decision = self.decision.get(policy, 0.0) if policy else 0.0
        drafting = self.start(n_drafted, draft) + steps * step + n_drafted * decision
        return drafting + self.verify(n_drafted + 1) + self.overhead

    def start(self, n_drafted: int, draft: str | None) -> float:
        """The cost of starting to draft in an iteration, beyond c per token."""
        return self.first_step.get(draft, 0.0) if draft and n_drafted else 0.0


@dataclass(slots=True)
class Guesses(_Checked):
    """The draft's successive choices, with what a policy may see of each (parallel lists).

    ``p``: the draft's probability of its choice; ``scores``: head name -> the acceptance probability by that learned
    head. A choice of None: the draft had nothing to propose (n-gram).
    """

    choice: Annotated[list[TokenId | None], Field(max_length=MAX_TOKENS)]
    p: Annotated[list[Score], Field(max_length=MAX_TOKENS)]
    entropy: Annotated[list[Score], Field(max_length=MAX_TOKENS)]
    scores: dict[ShortText, list[Score]] = field(default_factory=dict)


@dataclass(slots=True)
class Chain(_Checked):
    """Everything that any policy on this text can see of one draft.

    ``along`` has one guess per output position, each made on the target's own text before it. ``tails[k]`` are the
    guesses that follow ``along.choice[k]`` if that is not the target's token: the draft's continuation after its first
    mistake, up to the highest cap of a policy, or fewer if it ends the text itself. A tail at the last position follows
    the whole text (needed if a stop string cut the text off).

    Of a draft whose guesses depend on where the iteration began (one that reads the target's hidden states),
    ``starts[k]`` are all guesses of an iteration at position k, those that hold and the tail; ``along`` has the first
    of each, and there are no ``tails``.
    """

    draft: ShortText
    target: Annotated[list[TokenId], Field(max_length=MAX_TOKENS)]
    along: Guesses
    tails: dict[Annotated[int, Field(ge=0, lt=MAX_TOKENS)], Guesses]
    starts: Annotated[list[Guesses], Field(max_length=MAX_TOKENS)] = field(default_factory=list)

    def holds(self, start: int) -> int:
        """Number of consecutive guesses that are right in an iteration at output position ``start``."""
        guesses, first = (self.starts[start].choice, start) if self.starts[start:] else (self.along.choice, 0)
        end, last = start, min(len(self.target), first + len(guesses))
        while end < last and guesses[end - first] == self.target[end]:
            end += 1
        return end - start

    def lists(self) -> list[Guesses]:
        """All recorded guesses, each once."""
        return self.starts or [self.along, *self.tails.values()]


@dataclass(slots=True)
class Run(_Checked):
    """One comparison: several lanes on one prompt. The file, the download, the recording, the API."""

    id: Annotated[str, Field(pattern=f"^{IDENTIFIER.pattern}$")]
    created: ShortText  # ISO 8601, UTC
    machine: Machine
    pair: PairInfo
    settings: CompareRequest
    prompt_ids: Annotated[list[TokenId], Field(max_length=131072)]
    costs: Costs
    chains: dict[ShortText, Chain]  # by draft name; empty under plain speculative sampling
    lanes: Annotated[list[Trace], Field(max_length=MAX_LANES)]
    vocab: dict[TokenId, TokenText]  # every id in the run, once
    token_limit: Count | None = None  # new tokens requested, or left by the context; None: not recorded
    picture: PictureInfo | None = None
    schema: Literal["speculoscope.run/1"] = SCHEMA

    def lane(self, name: str) -> Trace:
        """The lane of that name; KeyError if there is none."""
        return next(trace for trace in self.lanes if trace.lane == name)

    @property
    def asked(self) -> CompareRequest:
        """The request with its pair named explicitly, since the default pair may differ elsewhere."""
        request = self.settings
        return request if request.pair or request.target else replace(request, pair=self.pair.name)

    @property
    def baseline(self) -> Trace | None:
        """The autoregressive lane, if the run has one."""
        return next((trace for trace in self.lanes if trace.policy == "autoregressive"), None)
