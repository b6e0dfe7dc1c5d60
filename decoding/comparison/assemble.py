"""From what the lanes decoded to the run: the record that is shown, kept and replayed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from itertools import zip_longest

import numpy as np

from ..engines.loading import machine_of
from ..lookahead.lanes import Lane
from ..loop.drafting import prefill
from ..loop.features import as_rows
from ..records.trace import Chain, Costs, PairInfo, Repeat, Run, TokenText, Trace, Verdict
from .annotate import Annotator, to_iteration
from .lane_run import LaneRun
from .prepare import Prepared, model_info, models_of

MANY_TOKENS = 4000  # in all lanes together, beyond which fewer alternatives are kept: the file has a limit
NEAR_TIE = 1e-4  # top-2 logit gap in float32 under which rounding may decide


@dataclass(slots=True)
class Decoded:
    """What a comparison has decoded and measured so far."""

    costs: Costs
    lanes: list[list[LaneRun]]  # by lane, one for each repeat
    notes: list[list[str]]  # by lane
    reference: LaneRun | None = None  # the target's own text; None where texts may differ
    chains: dict[str, Chain] = field(default_factory=dict)


def assemble(prepared: Prepared, decoded: Decoded, run_id: str, explained: bool) -> Run:
    """The run.

    Args:
        explained: read all texts once more with both models, to explain each token's fate. Without it the tokens have
            only their fates, which takes no time.
    """
    firsts = [runs[0] for runs in decoded.lanes]
    n_tokens = sum(len(run.output) for run in firsts)
    annotator = Annotator(prepared, firsts, top=5 if n_tokens <= MANY_TOKENS else 2) if explained else None
    lanes = [_trace(prepared, decoded, index, annotator) for index in range(len(prepared.lanes))]
    return Run(
        id=run_id,
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        machine=machine_of(prepared.pair.target.info.device),
        pair=pair_info(prepared),
        settings=prepared.request,
        prompt_ids=list(prepared.prompt.ids),
        costs=decoded.costs,
        chains={name: decoded.chains[name] for name in prepared.drafts if name in decoded.chains},
        lanes=lanes,
        vocab=vocabulary(prepared.prompt.ids, lanes, decoded.chains, prepared.pair.tokenizer.token_text),
        token_limit=prepared.limits.max_new_tokens,
        picture=prepared.prompt.picture,
    )


def timed_again(run: Run, decoded: Decoded) -> Run:
    """``run`` with the repeats that were made since it was assembled, and what was noted in them."""
    lanes = [
        replace(trace, repeats=[_repeat(one) for one in runs], notes=list(dict.fromkeys([*trace.notes, *notes])))
        for trace, runs, notes in zip(run.lanes, decoded.lanes, decoded.notes)
    ]
    return replace(run, lanes=lanes)


def pair_info(prepared: Prepared) -> PairInfo:
    """The target and the drafts that the lanes use."""
    pair = prepared.pair
    drafts = {name: model_info(pair, name) for name in prepared.drafts}
    return PairInfo(pair.name, pair.target.info, drafts, pair.default_draft)


def _trace(prepared: Prepared, decoded: Decoded, index: int, annotator: Annotator | None) -> Trace:
    lane, runs = prepared.lanes[index], decoded.lanes[index]
    first, draft = runs[0], prepared.draft_of(lane)
    if annotator is None:
        iterations = [to_iteration(one, {}, None, None, None) for one in first.iterations]
    else:
        iterations = annotator.iterations(first, decoded.chains.get(draft or ""))
    return Trace(
        lane=lane.text,
        policy=lane.policy,
        draft=draft,
        output=first.output,
        iterations=iterations,
        repeats=[_repeat(run) for run in runs],
        finish=first.finish,
        verdict=_verdict(prepared, decoded.reference, first.output),
        notes=[*_engine_notes(prepared, lane), *decoded.notes[index]],
        p_grey=annotator.with_grey(first.output) if annotator else [],
    )


def _engine_notes(prepared: Prepared, lane: Lane) -> list[str]:
    """The notes of the lane's engines, such as that no CUDA graph could be recorded, or that the draft cannot guess as
    far as the lane asks.
    """
    target, *drafts = models_of(prepared.pair, [prepared.draft_of(lane)])
    notes = [model.note for model in (target, *drafts)]
    for draft in drafts:
        most = max((one.n for one in (draft.parallel_heads, draft.projections) if one is not None), default=1)
        if most > 1 and lane.policy == "static" and (lane.number or 0) > most:
            notes.append(f"This draft makes {most} guesses at once and then no further ones.")
    return [note[:400] for note in dict.fromkeys(notes) if note]


def _verdict(prepared: Prepared, reference: LaneRun | None, output: list[int]) -> Verdict:
    if reference is None:
        return Verdict(same=None)
    at = difference(output, reference.output)
    if at is None:
        return Verdict(same=True)
    gap = _gap_after(prepared, reference.output[:at])
    exact = prepared.pair.target.info.dtype == "float32" and prepared.rule.name == "greedy"
    return Verdict(same=False, first_difference=at, gap=round(gap, 6), near_tie=exact and gap < NEAR_TIE)


def difference(output: list[int], expected: list[int]) -> int | None:
    """The first position at which two texts differ, or at which only one of them ends; None if they are the same."""
    return next((at for at, (ours, theirs) in enumerate(zip_longest(output, expected)) if ours != theirs), None)


def _gap_after(prepared: Prepared, output: list[int]) -> float:
    """The gap between the target's two best logits after ``output``."""
    target = prepared.pair.target
    text = prepared.prompt.extended(output)
    prefill(target, text)
    return top_gap(as_rows(target.extend(text.ids[-1:]))[-1, : prepared.rule.vocab_size])


def top_gap(row: np.ndarray) -> float:
    """The gap between the two best logits of a row."""
    second, best = np.partition(row, -2)[-2:]
    return float(best - second)


def _repeat(run: LaneRun) -> Repeat:
    columns = zip(*(iteration.times for iteration in run.iterations))
    draft, verify, policy, rest = ([round(max(0.0, s), 9) for s in column] for column in columns)
    return Repeat(run.prefill_s, draft, verify, policy, rest)


def vocabulary(
    prompt: list[int], lanes: list[Trace], chains: dict[str, Chain], token_text: Callable[[int], TokenText]
) -> dict[int, TokenText]:
    """The text of every token id that the run mentions."""
    ids = set(prompt)
    for trace in lanes:
        for iteration in trace.iterations:
            for token in iteration.all_tokens:
                choices = (token.draft_choice, token.target_choice)
                ids |= {token.id, *(choice for choice in choices if choice is not None)}
                ids |= {other for other, _ in (*token.draft_top, *token.target_top)}
    for chain in chains.values():
        for guesses in chain.lists():
            ids |= {choice for choice in guesses.choice if choice is not None}
        ids |= set(chain.target)
    return {token: token_text(token) for token in sorted(ids)}
