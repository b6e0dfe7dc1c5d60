"""All that a draft guesses along a known text: as a chain, or as the growth of a tree from each place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from ..analysis.trees import Growth
from ..engines.base import CachedModel
from ..engines.inputs import EncodedPrompt
from ..errors import Cancelled
from ..lookahead.base import SL_CAP, TREE_CAP, DraftState
from ..lookahead.heads import Head
from ..lookahead.tree import Tree
from ..loop.clock import Clock
from ..loop.drafting import DraftSource, States, start_text
from ..loop.growing import grow_tree
from ..loop.limits import Limits
from ..records.trace import Chain, Guesses
from .prepare import ALL_FEATURES, Prepared, make_draft

ROWS = 32  # of logits held at once


def chain_of(prepared: Prepared, draft: str, output: list[int], cancelled: Callable[[], bool] = lambda: False) -> Chain:
    """What ``draft`` guesses along ``output``, with the scores of all heads fitted for it."""
    heads = prepared.heads.get(draft, {})
    needs = frozenset({"p", "entropy"}).union(*(head.needs for head in heads.values())) & ALL_FEATURES
    return record_chain(
        make_draft(prepared.pair, draft, prepared.rule, needs),
        prepared.prompt,
        output,
        prepared.limits,
        target=prepared.pair.target,
        longest=max([SL_CAP, *(int(head.tuned.get("sl_max", SL_CAP)) for head in heads.values())]),
        heads=heads,
        cancelled=cancelled,
    )


def read_in_parts(model: CachedModel, ids: list[int]) -> Iterator[Any]:
    """Lets ``model`` read ``ids``; yields their logits, of at most ROWS of them at a time."""
    for first in range(0, len(ids), ROWS):
        yield model.extend(ids[first : first + ROWS])


def record_chain(
    source: DraftSource,
    prompt: EncodedPrompt,
    output: list[int],
    limits: Limits,
    *,
    target: CachedModel | None = None,
    longest: int = SL_CAP,
    heads: Mapping[str, Head] | None = None,
    cancelled: Callable[[], bool] = lambda: False,
) -> Chain:
    """Lets the draft guess along ``output`` and continue after each mistake, with the same steps as the live loop;
    from every place anew if what it guesses depends on where the iteration began.

    Args:
        source: the draft; it must compute "p", "entropy" and the features that ``heads`` need.
        prompt, output: ``output`` (ids) is the target's own text.
        limits: the run's. Nothing is ever drafted beyond its token limit, nor after a token that ends a text.
        target: for a draft that reads hidden states: the model that has them. It reads the whole text first.
        longest: the highest cap of any policy to be replayed; no tail needs to be longer.
        heads: by policy name; their acceptance probabilities are recorded with the guesses.

    Returns:
        The chain. Features that exist only one step after a guess (``hidden``) are zeros for the last guess of
        a tail or of the text: a live policy never needs them.
    """
    anew = not source.abilities.text_only
    chain = Chain(source.name, list(output), Guesses([], [], []), {})
    for state, right in iterations_along(source, prompt, output, target, limits, longest, from_every_place=anew):
        if cancelled():
            raise Cancelled
        scores = _scores(state, heads or {})
        n_along = 1 if anew else min(right + 1, len(output) - state.start)
        _append(chain.along, state, scores, range(n_along))
        if anew:
            chain.starts.append(_append(Guesses([], [], []), state, scores, range(len(state.tokens))))
        elif tail := range(n_along, len(state.tokens)):
            chain.tails[state.start + n_along - 1] = _append(Guesses([], [], []), state, scores, tail)
    return chain


def iterations_along(
    source: DraftSource,
    prompt: EncodedPrompt,
    output: list[int],
    target: CachedModel | None,
    limits: Limits,
    longest: int = SL_CAP,
    from_every_place: bool = False,
) -> Iterator[tuple[DraftState, int]]:
    """Iterations of ``source`` along ``output``: each guesses up to its first mistake and then on, ``longest`` guesses
    with the mistake. Yields what each guessed and how many of its guesses hold; the next one begins after the mistake.

    ``from_every_place``: at the next place instead. The rest as for :func:`record_chain`.
    """
    states, start = start_along(source, prompt, output, target), 0
    while start < len(output):
        state = DraftState(text=prompt.ids + output[:start])
        state.begin(start)
        right = _guess_until_wrong(source, output, state, limits, longest)
        yield state, right
        read = 0 if from_every_place else right
        source.observe(read, tuple(layer[start : start + read + 1] for layer in states))
        start += read + 1
        source.forget(len(prompt) + min(start, len(output)) - 1)


def start_along(source: DraftSource, prompt: EncodedPrompt, output: list[int], target: CachedModel | None) -> States:
    """Lets ``source`` read the prompt. Returns the states of ``target``, of each layer that the draft reads, for the
    prompt's last token and all of ``output`` but its last, [n, hidden_size]; () for a draft that reads none.
    """
    if not source.abilities.layers:
        source.start(prompt, ())
        return ()
    import torch

    assert target is not None, "a draft that reads hidden states has a target"
    start_text(target, [source], prompt)
    reads, parts = [prompt.ids[-1], *output[:-1]], []
    for _ in read_in_parts(target, reads):
        parts.append(tuple(layer.clone() for layer in target.last_states))
    return tuple(torch.cat(layer) for layer in zip(*parts))


def _guess_until_wrong(source: DraftSource, output: list[int], state: DraftState, limits: Limits, longest: int) -> int:
    """Fills ``state`` with guesses up to the first wrong one and its tail. Returns the number of right ones.

    The mistake itself is the first of at most ``longest`` tokens that an iteration may draft from there.
    """
    right = 0
    wrong = 0
    room = source.max_length - len(state.text) + 1  # guesses that fit the draft's context
    while wrong < longest and len(state.tokens) < room:
        position = state.position
        last = limits.max_new_tokens - (2 if wrong else 1)  # after a mistake a text's last token is never drafted
        proposal = source.step(state.text, state) if position <= last else None
        if proposal is None:
            break
        source.read_features(state, proposal)
        if not wrong and position < len(output) and state.tokens[-1] == output[position]:
            right += 1
        else:
            wrong += 1
        if state.tokens[-1] in limits.ends:
            break
    return right


def _scores(state: DraftState, heads: Mapping[str, Head]) -> dict[str, np.ndarray]:
    """The acceptance probabilities of all guesses in ``state``, by head."""
    if not heads or not state.tokens:
        return {name: np.zeros(0) for name in heads}
    # A state exists one draft step after its guess: that of the last guesses is unknown.
    unknown = state.proposer[len(state.hidden) :]
    state.hidden = [*state.hidden[: len(state.tokens)], *(np.zeros_like(one) for one in unknown)]
    return {name: head.score_chain(state) for name, head in heads.items()}


def _append(to: Guesses, state: DraftState, scores: dict[str, np.ndarray], indices: range) -> Guesses:
    """``to`` with the guesses of ``state`` at ``indices``; a missing one means that there was nothing to propose."""
    for index in indices:
        exists = index < len(state.tokens)
        to.choice.append(state.tokens[index] if exists else None)
        to.p.append(_short(state.p[index]) if exists else 0.0)
        to.entropy.append(_short(state.entropy[index]) if exists else 0.0)
        for name, column in scores.items():
            to.scores.setdefault(name, []).append(_short(column[index]) if exists else 0.0)
    return to


def _short(value: float) -> float:
    """Rounds to seven decimals: float32's precision in half the bytes of the file."""
    return round(float(value), 7)


def grow_along(
    prepared: Prepared,
    draft: str,
    output: list[int],
    cancelled: Callable[[], bool] = lambda: False,
    cap: int = TREE_CAP,
) -> list[Growth]:
    """The growth from each place of ``output`` (ids), the target's own text, with the same steps as the live loop, up
    to ``cap`` guesses. Raises Cancelled.
    """
    source = make_draft(prepared.pair, draft, prepared.rule, frozenset({"p"}))
    states = start_along(source, prepared.prompt, output, prepared.pair.target)
    found, policy, clock = [], Tree(cap), Clock()
    clock.begin()
    for start in range(len(output)):
        if cancelled():
            raise Cancelled
        state = DraftState(text=[*prepared.prompt.ids, *output[:start]])
        state.begin(start)
        length = len(state.text)
        room = min(prepared.pair.target.max_length - length, source.max_length - length + 1)
        deepest = prepared.limits.max_new_tokens - start - 1
        grow_tree(source, policy, state, max(0, min(cap, room)), deepest, "cap", prepared.limits.ends, clock)
        reads, nodes, chances = (list(column) for column in zip(*state.steps)) if state.steps else ([], [], [])
        found.append(Growth(reads, nodes, chances, _hits(state, output[start:])))
        source.observe(0, tuple(layer[start : start + 1] for layer in states))
        source.forget(length)
    return found


def _hits(state: DraftState, text: list[int]) -> list[int]:
    """The guesses on the path of the tree that is the ``text`` after it."""
    nodes = {(parent, token): node for node, (parent, token) in enumerate(zip(state.parents or [], state.tokens))}
    hits: list[int] = []
    for token in text:
        node = nodes.get((hits[-1] if hits else -1, token))
        if node is None:
            break
        hits.append(node)
    return hits
