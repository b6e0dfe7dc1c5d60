"""Turns raw iterations into a Trace whose tokens have everything that decided their fate. Untimed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..analysis.whatif import Replay
from ..engines.inputs import EncodedPrompt
from ..loop.acceptance import AcceptanceRule, Coupling
from ..loop.drafting import MODEL_FREE, ModelDraft, prefill
from ..loop.features import all_rows
from ..loop.sampling import softmax
from ..loop.speculative import RawIteration
from ..records.proposal import parents_in, path_to
from ..records.trace import Chain, Fate, Iteration, Token
from .chain import read_in_parts, start_along
from .lane_run import LaneRun
from .prepare import Prepared, abilities_of, make_draft


@dataclass(slots=True)
class View:
    """A model's distribution at one output position, after a given text."""

    choice: int  # first choice under the rule (with its noise)
    entropy: float
    top: list[tuple[int, float]]
    p: dict[int, float]  # probability of the tokens that were drafted or emitted there


Place = tuple[int, tuple[int, ...]]  # an output position, and the wrong tokens right before it
Views = dict[Place, View]
Wanted = Mapping[Place, Collection[int]]  # tokens whose probabilities are needed


class Annotator:
    """Reads the texts of ``runs``, one of each lane, once more with both models and fills in the iterations.

    A model's distribution at a position depends on the text before it: the lane's output or, for dropped tokens, the
    output plus the wrong tokens after it. Lanes with the same output share its views, so that each model reads each
    text once.
    """

    def __init__(self, prepared: Prepared, runs: Sequence[LaneRun], top: int = 5) -> None:
        """``top``: number of alternatives kept per token."""
        self._prepared, self._runs, self._top = prepared, runs, top
        self._views: dict[tuple[str, tuple[int, ...]], Views] = {}

    def iterations(self, run: LaneRun, chain: Chain | None) -> list[Iteration]:
        """The iterations of one lane in the format of the run file.

        If its policy accepted a token without evaluating its head, the head's score is taken from the chain. A chain
        says nothing of a lane that wrote another text.
        """
        draft, output, prompt = self._prepared.draft_of(run.lane), run.output, self._prepared.prompt
        chain = chain if chain is not None and chain.target == output else None
        target = self._look("", self._prepared.pair.target, prompt, output)
        seen = None
        if draft is not None and draft not in MODEL_FREE:
            abilities = abilities_of(self._prepared.pair, draft)
            if abilities.text_only:
                read = prompt.as_read(abilities.sees)
                seen = self._look(draft, self._prepared.pair.draft(draft), read, output)
            else:
                seen = self._draft_again(draft, run)
        found = [to_iteration(iteration, target, seen, draft, chain) for iteration in run.iterations]
        if chain is not None:
            replay = Replay(chain)
            for iteration in found:
                _fill_scores(iteration, replay, run.lane.policy)
        return found

    def with_grey(self, output: list[int]) -> list[float]:
        """The target's probability of each token of the text, had the prompt's picture been a grey one; [] without."""
        if self._prepared.prompt.grey is None:
            return []
        views = self._views.setdefault(("grey picture", tuple(output)), {})
        if not views:  # no lane before wrote the same text
            wanted: Wanted = {(at, ()): (token,) for at, token in enumerate(output)}
            self._read_text(self._prepared.pair.target, self._prepared.prompt.with_grey(), views, output, wanted)
        return [views[at, ()].p[token] for at, token in enumerate(output)]

    def _draft_again(self, name: str, run: LaneRun) -> Views:
        """The views of a draft that reads hidden states: they depend on where an iteration began, so that each lane has
        its own. The draft reads each iteration's guesses once more, down each branch.
        """
        prompt, output, views, wanted = self._prepared.prompt, run.output, Views(), _wanted(run.iterations)
        source = make_draft(self._prepared.pair, name, self._prepared.rule)
        assert isinstance(source, ModelDraft), "a draft that reads hidden states is a model"
        states = start_along(source, prompt, output, self._prepared.pair.target)
        for iteration in run.iterations:
            end = iteration.start + iteration.n_accepted
            for branch in branches_of(iteration):
                source.forget(len(prompt) + iteration.start - 1)
                text = prompt.ids + output[: iteration.start]
                rows = source.rows_along(text, [iteration.drafted[node] for node in branch])
                for depth, row in enumerate(rows):
                    self._add(views, place_after(iteration, branch[:depth]), row, wanted)
            source.observe(iteration.n_accepted, tuple(layer[iteration.start : end + 1] for layer in states))
            source.forget(len(prompt) + min(end + 1, len(output)) - 1)
        return views

    def _look(self, draft: str, model: Any, prompt: EncodedPrompt, output: list[int]) -> Views:
        """The views of a model that reads only the text: along ``output``, and after the wrong tokens of the lanes that
        wrote it. ``draft`` "": of the target, after those of all lanes.
        """
        key = draft, tuple(output)
        if key in self._views:
            return self._views[key]
        views = self._views[key] = {}
        runs = [run for run in self._runs if run.output == output and draft in ("", self._prepared.draft_of(run.lane))]
        wanted = _wanted(iteration for run in runs for iteration in run.iterations)
        self._read_text(model, prompt, views, output, wanted)
        branches = {(position - len(wrong), wrong) for position, wrong in wanted if wrong}
        for at, wrong in sorted(branches, reverse=True):  # from the end, where rewinding keeps what comes before
            if (at + len(wrong), wrong) not in views:  # it is the beginning of none that was read
                self._read_wrong(model, prompt, views, at, wrong, wanted)
        return views

    def _read_text(self, model: Any, prompt: EncodedPrompt, views: Views, output: list[int], wanted: Wanted) -> None:
        """Views along ``output`` and right after it."""
        model.kept_layers = ()
        prefill(model, prompt)
        feed = [prompt.ids[-1], *output][: model.max_length - len(prompt) + 1]
        rows = (row for logits in read_in_parts(model, feed) for row in all_rows(model, logits))
        for at, row in enumerate(rows):
            self._add(views, (at, ()), row, wanted)

    def _read_wrong(
        self, model: Any, prompt: EncodedPrompt, views: Views, at: int, wrong: tuple[int, ...], wanted: Wanted
    ) -> None:
        """Views after each of the tokens ``wrong``, which follow the text before position ``at``."""
        length = len(prompt) + at
        if length + len(wrong) > model.max_length or length > model.length:
            return
        model.rewind(length)
        for n, row in enumerate(all_rows(model, model.extend([*wrong])), start=1):
            self._add(views, (at + n, wrong[:n]), row, wanted)

    def _add(self, views: Views, place: Place, row: np.ndarray, wanted: Wanted) -> None:
        if place not in views:
            views[place] = _view(row, self._prepared.rule, place[0], wanted.get(place, ()), self._top)


def _view(row: np.ndarray, rule: AcceptanceRule, position: int, wanted: Collection[int], top: int) -> View:
    shaped = rule.shape(row)
    probabilities = softmax(shaped)
    possible = np.flatnonzero(probabilities)  # a reduced head lacks most ids, and partitioning equal numbers is slow
    positive = probabilities[possible]
    best = np.argpartition(positive, -top)[-top:] if top < len(positive) else np.arange(len(positive))
    best = possible[best[np.argsort(-positive[best], kind="stable")]]
    choice = rule.choices(row[None], [position])[0] if isinstance(rule, Coupling) else int(shaped.argmax())
    return View(
        choice=choice,
        entropy=_short(max(0.0, float(-(positive * np.log(positive)).sum()))),
        top=[(int(token), _short(probabilities[token])) for token in best],
        p={token: _short(probabilities[token]) for token in wanted if token < len(probabilities)},
    )


def _wanted(raw: Iterable[RawIteration]) -> dict[Place, set[int]]:
    """By place, the tokens drafted or emitted there."""
    found: dict[Place, set[int]] = defaultdict(set)
    for iteration in raw:
        for index, token in enumerate(iteration.drafted):
            found[place_of(iteration, index)].add(token)
        if iteration.emitted is not None:
            found[iteration.start + iteration.n_accepted, ()].add(iteration.emitted)
    return found


def to_iteration(
    raw: RawIteration, target: Views, seen: Views | None, draft: str | None, chain: Chain | None
) -> Iteration:
    """The iteration with what both models said of its tokens; ``seen``: the draft's views, None if it has none."""
    drafted = [_drafted_token(raw, index, target, seen, draft) for index in range(len(raw.drafted))]
    first = raw.decisions[0] if raw.decisions else (None, None)
    return Iteration(
        start=raw.start,
        drafted=drafted,
        emitted=_emitted_token(raw, target, seen, draft),
        stop=raw.stop,
        score=_number(first[0]),
        threshold=_number(first[1]),
        holds=chain.holds(raw.start) if chain is not None and raw.start < len(chain.target) else None,
        parents=raw.parents,
        reads=raw.reads,
    )


def _fill_scores(iteration: Iteration, replay: Replay, policy: str) -> None:
    """Fills in scores of tokens that a decision was taken on (they have a threshold) without evaluating them."""
    reach = replay.reach[iteration.start] if iteration.start < replay.n_tokens else 0
    for index, token in enumerate(iteration.drafted[:reach]):
        if token.score is None and token.threshold is not None:
            guesses, at = replay.guess(iteration.start, index)
            if policy in guesses.scores:
                token.score = _number(guesses.scores[policy][at])


def _drafted_token(raw: RawIteration, index: int, target: Views, seen: Views | None, draft: str | None) -> Token:
    token = Token(id=raw.drafted[index], fate=fate_of(raw, index))
    _describe(token, place_of(raw, index), target, seen)
    if seen is None and draft is not None:  # no model: its first choice is what it proposed
        token.draft_choice = token.id
    if index + 1 < len(raw.decisions):
        token.score, token.threshold = map(_number, raw.decisions[index + 1])
    drawn = raw.draws[index] if raw.draws is not None and index < len(raw.draws) else None
    if drawn is not None:
        token.accept_probability, token.draw = map(_short, drawn)
    return token


def _emitted_token(raw: RawIteration, target: Views, seen: Views | None, draft: str | None) -> Token | None:
    if raw.emitted is None:
        return None
    token = Token(id=raw.emitted, fate=fate_of_emitted(raw))
    _describe(token, (raw.start + raw.n_accepted, ()), target, seen)
    if seen is None and draft is not None and raw.n_accepted < len(raw.drafted):
        token.draft_choice = raw.drafted[raw.n_accepted]
    return token


def fate_of(raw: RawIteration, index: int) -> Fate:
    """Fate of the drafted token ``index``."""
    if index < raw.n_accepted:
        return "accepted"
    return "rejected" if raw.emitted is not None and not place_of(raw, index)[1] else "dropped"


def branches_of(raw: RawIteration) -> list[list[int]]:
    """The branches of an iteration, each as its guesses from the first on; without guesses one empty branch."""
    parents = parents_in(raw.parents, len(raw.drafted))
    inner = set(parents)
    return [path_to(parents, node) for node in range(len(parents)) if node not in inner] or [[]]


def place_of(raw: RawIteration, index: int) -> Place:
    """The place of the guess ``index``."""
    return place_after(raw, path_to(parents_in(raw.parents, len(raw.drafted)), index)[:-1])


def place_after(raw: RawIteration, branch: Sequence[int]) -> Place:
    """The place after the guesses ``branch``, of which those that were not accepted are wrong."""
    return raw.start + len(branch), tuple(raw.drafted[node] for node in branch if node >= raw.n_accepted)


def fate_of_emitted(raw: RawIteration) -> Fate:
    """Fate of the target's own token."""
    if not raw.drafted:
        return "plain"
    rest = parents_in(raw.parents, len(raw.drafted))[raw.n_accepted :]
    return "correction" if raw.n_accepted - 1 in rest else "bonus"


def _describe(token: Token, place: Place, target: Views, seen: Views | None) -> None:
    if (view := target.get(place)) is not None:
        token.target_choice = view.choice
        token.p_target = view.p.get(token.id)
        token.target_top = view.top
    if (view := (seen or {}).get(place)) is not None:
        token.draft_choice = view.choice
        token.p_draft = view.p.get(token.id)
        token.entropy = view.entropy
        token.draft_top = view.top


def _number(value: float | None) -> float | None:
    return None if value is None else _short(value)


def _short(value: float) -> float:
    return round(float(value), 6)
