"""Prepares what a request's lanes share: prompt ids, limits, the rule, drafts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from ..analysis.tuning import Chosen
from ..engines.base import CachedModel
from ..engines.inputs import EncodedPrompt
from ..engines.pair import Pair
from ..errors import UserError
from ..lookahead.fitted import FOLDER as POLICIES_FOLDER
from ..lookahead.fitted import Heads, load_heads, make_policy
from ..lookahead.heads import Head
from ..lookahead.lanes import Lane, check_certain, parse_lane, stand_in
from ..loop.acceptance import AcceptanceRule, make_rule
from ..loop.device_drafting import ON_DEVICE, works_on_device
from ..loop.drafting import MODEL_FREE, DraftAbilities, DraftSource, ModelDraft
from ..loop.limits import Limits, StopStrings
from ..loop.state_drafting import BlockDraft, FeatureDraft, HeadsDraft
from ..records.pairs import BLOCK, FEATURE, HEADS, TEXT_MODEL
from ..records.pairs import MODEL_FREE as WORDS
from ..records.request import DEFAULT_LANES, CompareRequest, check_request
from ..records.trace import ModelInfo

KINDS: dict[str, type[ModelDraft]] = {
    TEXT_MODEL.kind: ModelDraft,
    FEATURE: FeatureDraft,
    HEADS: HeadsDraft,
    BLOCK: BlockDraft,
}
"""As pair.json names them."""
ALL_FEATURES = frozenset({"p", "entropy", "top10", "margin", "proposer", "hidden"})


@dataclass(slots=True)
class Prepared:
    """What the lanes of one comparison share. ``heads``: by draft, then by policy."""

    request: CompareRequest
    pair: Pair
    lanes: list[Lane]
    prompt: EncodedPrompt
    limits: Limits
    rule: AcceptanceRule
    heads: dict[str, dict[str, Head]] = field(default_factory=dict)
    recorded: set[str] = field(default_factory=set)  # lanes whose graphs were recorded untimed
    notes: dict[str, str] = field(default_factory=dict)  # by lane: what a reader of its results should know

    def draft_of(self, lane: Lane) -> str | None:
        """Name of the lane's draft; None for plain decoding."""
        return lane.draft_in(self.pair.default_draft)

    @property
    def drafts(self) -> list[str]:
        """Names of all drafts that the lanes use, in order of appearance."""
        return _drafts_of(self.lanes, self.pair)

    def source(self, draft: str | None, needs: frozenset[str] = frozenset()) -> DraftSource | None:
        """A new draft source of that name that computes the features ``needs``."""
        return None if draft is None else make_draft(self.pair, draft, self.rule, needs)

    def policy(self, lane: Lane):
        """A new policy for ``lane``. Raises UserError if it needs a head and none was fitted."""
        return make_policy(lane, self.heads.get(self.draft_of(lane) or "", {}))


def _drafts_of(lanes: Iterable[Lane], pair: Pair) -> list[str]:
    names = (lane.draft_in(pair.default_draft) for lane in lanes)
    return list(dict.fromkeys(name for name in names if name is not None))


def make_draft(pair: Pair, draft: str, rule: AcceptanceRule, needs: frozenset[str] = frozenset()) -> DraftSource:
    """The draft named ``draft`` of ``pair``, or one that needs no model. Raises UserError for an unknown kind."""
    if draft in MODEL_FREE:
        return MODEL_FREE[draft](rule)
    kind, model = _class_of(pair, draft), pair.draft(draft)
    if works_on_device(model, rule) and works_on_device(pair.target, rule):
        kind = ON_DEVICE.get(kind, kind)
    source = kind(draft, model, rule, needs)
    source.abilities = abilities_of(pair, draft)
    return source


def abilities_of(pair: Pair, draft: str) -> DraftAbilities:
    """What the draft declares, without loading it."""
    if draft in MODEL_FREE:
        return MODEL_FREE[draft].abilities
    return _class_of(pair, draft).abilities_as(pair.draft_kinds.get(draft, TEXT_MODEL))


def _class_of(pair: Pair, draft: str) -> type[ModelDraft]:
    kind = pair.draft_kinds.get(draft, TEXT_MODEL).kind
    if kind not in KINDS:
        raise UserError(f"The draft {draft} is of the kind {kind}; this version knows {', '.join(KINDS)}.")
    return KINDS[kind]


def shared_vocabulary(pair: Pair, drafts: list[str]) -> int:
    """Number of ids that the target and all of ``drafts`` share; some families pad each model differently."""
    return min(model.vocab_size for model in models_of(pair, drafts))


def models_of(pair: Pair, drafts: Iterable[str | None]) -> list[CachedModel]:
    """The target, and the models of those ``drafts`` that have one."""
    return [pair.target, *(pair.draft(name) for name in drafts if name is not None and name not in MODEL_FREE)]


def prepare(
    request: CompareRequest, pair: Pair, chosen: Callable[[str], Chosen | None] = lambda draft: None
) -> Prepared:
    """Checks ``request`` against ``pair`` and creates what its lanes share; loads the drafts. Raises UserError.

    ``chosen``: by draft what this machine's costs chose for its policies, for lanes that name no number.
    """
    lanes = check_lanes(request)
    prompt = _encode(request, pair)
    limits = make_limits(request, pair, len(prompt))
    vocabulary = shared_vocabulary(pair, _drafts_of(lanes, pair))
    check_vocabulary(vocabulary, prompt, limits)
    rule = make_rule(request, vocabulary, limits.max_new_tokens + 1)  # + 1: the position after the text
    if prompt.name:  # the run file keeps a photograph by its name
        request = replace(request, picture=prompt.name)
    prepared = Prepared(request, pair, lanes, prompt, limits, rule)
    prepared.heads = {draft: _heads_for(prepared, draft) for draft in prepared.drafts}
    if tuple(request.lanes) == DEFAULT_LANES:  # nobody asked for a policy by name
        prepared.lanes = [_fitted(prepared, lane) for lane in prepared.lanes]
    prepared.lanes = [_set_here(prepared, lane, chosen) for lane in prepared.lanes]
    # The request names them too, so that the run file and the command line repeat the run elsewhere.
    prepared.request = replace(request, lanes=[lane.text for lane in prepared.lanes])
    for lane in prepared.lanes:
        _check_features(prepared, lane)
    return prepared


def _fitted(prepared: Prepared, lane: Lane) -> Lane:
    """``lane``, or a stand-in, with a note, if its policy was not fitted for this pair."""
    heads = prepared.heads.get(prepared.draft_of(lane) or "", {})
    faulty = isinstance(heads, Heads) and lane.policy in heads.faults
    if not lane.is_learned or lane.policy in heads or faulty:
        return lane
    other = parse_lane(stand_in(lane))
    prepared.notes[other.text] = f"It replaces {lane.spec.title}, which is not fitted for this pair."
    return other


def _set_here(prepared: Prepared, lane: Lane, chosen: Callable[[str], Chosen | None]) -> Lane:
    """``lane``; a learned one that names no number at the one chosen for this machine, if there is one."""
    if not lane.is_learned or lane.number is not None:
        return lane
    here = chosen(prepared.draft_of(lane) or "")
    argument = here.arguments.get(lane.policy) if here else None
    text = f"{lane.text.partition(':')[0]}:{argument}"
    is_asked = any(one.text == text for one in prepared.lanes)  # a lane of that number stays the only one
    return lane if argument is None or is_asked else parse_lane(text)


def check_vocabulary(shared: int, prompt: EncodedPrompt, limits: Limits) -> None:
    """Raises UserError if a token of the prompt, or one that ends a text, is beyond the ``shared`` ids: with such a
    draft the target could not write it, and the text would not be its own.
    """
    beyond = sorted({token for token in (*prompt.text, *limits.ends) if token >= shared})
    if beyond:
        raise UserError(
            f"The draft has {shared:,} tokens, and the target needs others for this text (id {beyond[0]:,}): "
            "choose a draft with the target's whole vocabulary."
        )


def check_lanes(request: CompareRequest) -> list[Lane]:
    """The lanes of ``request``. Raises UserError for those that its rule does not allow."""
    check_request(request)
    lanes = [parse_lane(text) for text in request.lanes]
    for lane in lanes:
        if lane.is_oracle and request.rule == "sampling":
            raise UserError(
                "The oracle is not defined with speculative sampling: looking at a draw before deciding "
                "would bias the text. Choose the coupling rule, or leave the oracle out."
            )
    return lanes


def make_limits(request: CompareRequest, pair: Pair, n_prompt: int) -> Limits:
    """The limits of this request's texts. Raises UserError if the prompt fills the context."""
    room = pair.target.max_length - n_prompt + 1  # the last token is never read
    if room < 1:
        raise UserError(
            f"The prompt has {n_prompt:,} tokens; this target reads at most {pair.target.max_length:,}: shorten it."
        )
    tokenizer = pair.tokenizer
    return Limits(
        max_new_tokens=min(request.max_new_tokens, room),
        ends=frozenset() if request.ignore_eos else frozenset(tokenizer.eos_ids),
        stop=StopStrings(request.stop, tokenizer.decode) if request.stop else None,
        finish_at_limit="context" if room < request.max_new_tokens else "length",
    )


def model_info(pair: Pair, draft: str) -> ModelInfo:
    """The model that ran as ``draft``."""
    if draft not in MODEL_FREE:
        return pair.draft(draft).info
    return without_model(draft, WORDS[draft].source, pair.target.vocab_size)


def without_model(name: str, source: str, vocab_size: int) -> ModelInfo:
    """The description of what drafts without a model of its own."""
    return ModelInfo(
        name=name,
        source=source,
        fingerprint="",
        parameters=0,
        layers=0,
        hidden_size=0,
        vocab_size=vocab_size,
        engine=name,
        dtype="",
        device="cpu",
        threads=1,
    )


def load_heads_of(pair: Pair, draft: str) -> dict[str, Head]:
    """All heads fitted for ``draft`` of ``pair``, by policy; {} if there are none. Raises UserError."""
    folder = pair.draft_folders.get(draft)
    if folder is None:
        return {}
    return load_heads(folder / POLICIES_FOLDER, pair.target.info.fingerprint, pair.draft(draft).info.fingerprint)


def _encode(request: CompareRequest, pair: Pair) -> EncodedPrompt:
    prompt = pair.encode_prompt(request.prompt, request.chat, request.system, request.picture)
    if not prompt.ids:
        raise UserError("The prompt gives no tokens: type a question for the model, or a text to continue.")
    return prompt


def _heads_for(prepared: Prepared, draft: str) -> dict[str, Head]:
    """The draft's heads. Raises UserError for a stale or broken one only if a lane needs it."""
    try:
        return load_heads_of(prepared.pair, draft)
    except UserError:
        if any(lane.is_learned and prepared.draft_of(lane) == draft for lane in prepared.lanes):
            raise
        return {}


def _check_features(prepared: Prepared, lane: Lane) -> None:
    """Raises UserError for lanes whose policy their draft cannot serve, or whose policy is not fitted."""
    draft = prepared.draft_of(lane)
    if draft is not None:
        check_draft(prepared.pair, draft, lane)
    prepared.policy(lane)  # raises for one that is not fitted


def check_draft(pair: Pair, draft: str, lane: Lane) -> None:
    """Raises UserError for a lane whose policy ``draft`` cannot serve."""
    if abilities_of(pair, draft).certain:
        check_certain(lane, draft)
    if lane.spec.branches and not all(model.can_branch for model in models_of(pair, [draft])):
        raise UserError(f"The lane {lane.text} guesses trees, which these models cannot read: choose another policy.")
