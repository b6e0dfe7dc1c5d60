"""What an evaluation needs from the models: texts, chains, costs and timings, each saved as soon as it is known."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from statistics import median
from time import monotonic
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from ..analysis.trees import Growth
from ..analysis.validation import policies_digest
from ..comparison.chain import chain_of, grow_along
from ..comparison.costs import Timer, measure_decision, smooth_costs
from ..comparison.kept_texts import KeptTexts, quickest_lane
from ..comparison.prepare import (
    Prepared,
    check_vocabulary,
    load_heads_of,
    make_limits,
    prepare,
    shared_vocabulary,
)
from ..cpu import imitated
from ..engines.pair import Pair
from ..errors import Cancelled, UserError
from ..files import Lines, digest_of, safe_name
from ..lookahead.base import TREE_CAP
from ..lookahead.fitted import FOLDER
from ..lookahead.lanes import parse_lane
from ..loop.acceptance import Greedy
from ..loop.drafting import MODEL_FREE
from ..records.request import CompareRequest
from ..records.run_file import to_plain
from ..records.suites import Prompt
from ..records.trace import Chain, Costs
from .results import Progress
from .samples import Sample
from .slices import Slices

_CHAIN = TypeAdapter(Chain)
_COSTS = TypeAdapter(Costs)
_TREES = TypeAdapter(list[Growth])
_TEXT = {"prompt", "of", "output", "finish"}  # what the record of a text has
TREES = "trees-"  # begins the names of files with trees, before the draft's
COST_PROMPTS = 5  # prompts for measuring the cost curves
DECISION_PROMPTS = 3  # prompts for measuring decisions

Steps = Iterator[Progress]
T = TypeVar("T")


class Collector:
    """Runs prompts on one pair and some of its drafts; every stage can be stopped and resumed."""

    def __init__(
        self,
        pair: Pair,
        drafts: Sequence[str],
        prompts: Sequence[Prompt],
        max_new_tokens: int,
        folder: Path,
        cancel: Callable[[], bool],
        trees: bool = False,
    ) -> None:
        """``prompts``: all leave room for a text. ``trees``: how trees grow along the texts is collected, too."""
        self.pair = pair
        self.drafts = list(drafts)
        self._tracks = [*self.drafts, *(f"{TREES}{draft}" for draft in self.drafts if trees)]  # what has a file
        self._cancel = cancel
        self._folder = folder
        self._key: dict[str, Any] = {
            "schema": 1,
            "target": pair.target.info.fingerprint,
            "engine": f"{pair.target.info.engine} {pair.target.info.dtype} {pair.target.info.device}",
            "max_new_tokens": max_new_tokens,
        }
        self._prompts = prompts
        request = CompareRequest(prompts[0].prompt, ["autoregressive"], max_new_tokens, picture=prompts[0].picture)
        heads = {draft: load_heads_of(pair, draft) for draft in drafts}
        self._base = replace(prepare(request, pair), rule=Greedy(shared_vocabulary(pair, self.drafts)), heads=heads)
        self._kept = KeptTexts(pair, max_new_tokens)
        self.files: dict[str, Lines] = {}
        texts = self._file("texts", "refuse").records
        self._by_prompt = {record["prompt"]: record for record in texts if record.keys() >= _TEXT}
        for prompt in prompts:
            if prompt.id in self._by_prompt and self._by_prompt[prompt.id]["of"] != _digest(prompt):
                raise UserError(f"The suite's prompts have changed since {folder} was begun: choose another folder.")
        self.costs: Costs

    # -- texts and chains

    def collect_chains(self, prompts: Sequence[Prompt], label: str, minutes: float | None) -> Steps:
        """Collects the target's text of each prompt and every draft's chain (and trees) along it, unless they exist.

        After ``minutes`` the rest is left for a later call; at least one prompt is done.
        """
        out_of_time = deadline(minutes)
        done = {track: self._records(track) for track in self._tracks}
        begun = False
        for number, prompt in enumerate(prompts):
            missing = [track for track in self._tracks if prompt.id not in done[track]]
            if missing or prompt.id not in self._by_prompt:
                self._check_cancel()
                if begun and out_of_time():
                    return
                begun = True
                message = f"{label}: prompt {number + 1} of {len(prompts)}"
                yield Progress("chains", message, number / len(prompts))
                self._collect_prompt(prompt, missing)

    def _collect_prompt(self, prompt: Prompt, missing: Sequence[str]) -> None:
        prepared = self._prepared(prompt)
        record = self._by_prompt.get(prompt.id) or self._write_text(prompt, prepared)
        for track in missing:
            draft, output = track.removeprefix(TREES), record["output"]
            if track == draft:
                chain = chain_of(prepared, draft, output, self._cancel)
                found = {"chain": _CHAIN.dump_python(chain, mode="json")}
            else:
                found = {"trees": _TREES.dump_python(grow_along(prepared, draft, output, self._cancel))}
            self._lines(track).add({"prompt": prompt.id, **found})

    def _write_text(self, prompt: Prompt, prepared: Prepared) -> dict[str, Any]:
        """Plain decoding's text. A text written before comes from the cache."""
        output = self._kept.write(prepared, quickest_lane(self.pair, "static:5"), self._cancel)
        finish = prepared.limits.cut([], output)[1]
        record = {"prompt": prompt.id, "of": _digest(prompt), "output": output, "finish": finish}
        self._file("texts").add(record)
        self._by_prompt[prompt.id] = record
        return record

    def ready(self, prompts: Sequence[Prompt]) -> list[Prompt]:
        """Those of ``prompts`` that have a text and the chains (and trees) of all drafts."""
        done = [self._by_prompt, *map(self._records, self._tracks)]
        return [prompt for prompt in prompts if all(prompt.id in ids for ids in done)]

    def samples(self, prompts: Sequence[Prompt], draft: str) -> list[Sample]:
        """The chains of ``draft`` along the texts of ``prompts``; empty texts are left out."""
        chains, texts = self._records(draft), self._by_prompt
        trees = self._records(f"{TREES}{draft}") if f"{TREES}{draft}" in self._tracks else {}
        return [
            Sample(
                _read(_CHAIN, chains[prompt.id].get("chain")),
                self._key["max_new_tokens"],
                texts[prompt.id]["finish"],
                prompt=prompt.id,
                suite=prompt.suite,
                trees=_read(_TREES, trees[prompt.id].get("trees")) if prompt.id in trees else None,
            )
            for prompt in prompts
            if prompt.id in chains and prompt.id in texts and texts[prompt.id]["output"]
        ]

    # -- costs

    def measure(self, lanes: Sequence[str], name: str) -> Steps:
        """The cost curves and the costs of decisions, measured once and then frozen in the folder as ``name``. The last
        record has all: an evaluation of further policies adds the costs of theirs.
        """
        lines = self._readings_file(name)
        if not lines.records:
            costs = yield from self._readings()
            lines.add({"costs": to_plain(costs), "decision": {}})
        record = lines.records[-1]
        costs = _read(_COSTS, {**record["costs"], "decision": record["decision"]})
        if missing := [lane for lane in lanes if parse_lane(lane).policy not in costs.decision]:
            costs.decision |= yield from self._decisions(missing, costs)
            lines.add({"costs": record["costs"], "decision": costs.decision})
        self.costs = costs

    def _readings(self) -> Generator[Progress, None, Costs]:
        """Measures the cost curves on several prompts; checks for cancellation before each round of passes."""
        readings: list[Costs] = []
        for number, prompt in enumerate(self._spread(COST_PROMPTS)):
            prepared = self._prepared(prompt)
            context = len(prepared.prompt) + prepared.limits.max_new_tokens // 2
            timer = Timer(self.pair, self.drafts, prepared.prompt.ids, context)
            for share in itertools.chain([0.0], timer.rounds()):
                self._check_cancel()
                message = f"Measuring what draft steps and checks cost: prompt {number + 1} of {COST_PROMPTS}"
                yield Progress("costs", message, (number + share) / COST_PROMPTS)
            readings.append(timer.costs())
        return smooth_costs(readings)

    def _spread(self, n: int) -> list[Prompt]:
        """``n`` prompts, short and long ones."""
        by_length = sorted(self._prompts, key=lambda one: len(one.prompt))
        return [by_length[(2 * index + 1) * len(by_length) // (2 * n)] for index in range(n)]

    def _decisions(self, lanes: Sequence[str], costs: Costs) -> Generator[Progress, None, dict[str, float]]:
        """Policy -> cost of one decision with its features; the median over the lanes of that policy and prompts."""
        found: dict[str, list[float]] = {}
        prompts = self._spread(DECISION_PROMPTS)
        for number, prompt in enumerate(prompts):
            prepared = self._prepared(prompt)
            for index, text in enumerate(lanes):
                self._check_cancel()
                done = (number + index / len(lanes)) / len(prompts)
                message = f"Measuring what decisions cost: prompt {number + 1} of {len(prompts)}, {text}"
                yield Progress("costs", message, done)
                lane = parse_lane(text)
                spent = measure_decision(prepared, lane, costs, prepared.limits.max_new_tokens)
                found.setdefault(lane.policy, []).append(spent)
        return {policy: median(values) for policy, values in found.items()}

    # -- the clock

    def clock(
        self,
        prompts: Sequence[Prompt],
        lanes: Sequence[str],
        repeats: int,
        name: str,
        minutes: float | None,
    ) -> Steps:
        """Times every lane on every prompt, ``repeats`` times round robin, until ``minutes`` are over.

        A reading is one prompt with all lanes, which take turns (see :mod:`.slices`) in an order that rotates from one
        to the next, so that no lane always follows the same one. Existing readings are not repeated.
        """
        lines = self._readings_file(name, lanes=list(lanes))
        slices = Slices(self.pair, self.costs, self._cancel)
        done = {(record["prompt"], record["repeat"]) for record in lines.records}
        wanted = [(prompt, repeat) for repeat in range(repeats) for prompt in prompts]
        out_of_time, warm = deadline(minutes), False
        for number, (prompt, repeat) in enumerate(wanted):
            if (prompt.id, repeat) in done:
                continue
            if out_of_time():
                break
            yield Progress("clock", f"On the clock: round {number + 1} of {len(wanted)}", number / len(wanted))
            if not warm:
                self._reading(slices, prompt, lanes, 0)
                warm = True
            reading = self._reading(slices, prompt, lanes, number)
            lines.add({"prompt": prompt.id, "repeat": repeat, "lanes": reading})

    def _reading(self, slices: Slices, prompt: Prompt, lanes: Sequence[str], turn: int) -> dict[str, Any]:
        """Lane -> {decode_s, tokens, same}, one decoding each."""
        expected = self._by_prompt[prompt.id]["output"]
        order = [*lanes[turn % len(lanes) :], *lanes[: turn % len(lanes)]]
        runs = slices.run(lambda: self._prepared(prompt), order, self._oracle_chains(prompt, lanes))
        self._check_cancel()
        return {
            lane: {"decode_s": run.decode_s, "tokens": len(run.output), "same": run.output == expected}
            for lane, run in runs.items()
        }

    def _oracle_chains(self, prompt: Prompt, lanes: Sequence[str]) -> dict[str, Chain]:
        """The chains that the oracles among ``lanes`` need."""
        return {
            lane.text: _read(_CHAIN, self._records(draft)[prompt.id].get("chain"))
            for lane in map(parse_lane, lanes)
            if lane.is_oracle and (draft := self._base.draft_of(lane))
        }

    def readings(self, lanes: Sequence[str], name: str) -> list[dict[str, Any]]:
        """The readings of :meth:`clock` so far: {prompt, repeat, lanes: {lane: timing}}."""
        return self._readings_file(name, lanes=list(lanes)).records

    def _readings_file(self, name: str, **key: Any) -> Lines:
        """The file ``name`` of these drafts, policies and ``key``, on this CPU or as another one. Each has its own:
        readings took minutes.
        """
        drafts = {draft: self._model(draft) for draft in sorted(self.drafts)}
        key |= {"drafts": drafts, "heads": self._digests, "cpu": imitated()}
        return self._file(f"{name}-{digest_of(json.dumps({**self._key, **key}).encode())}", **key)

    # -- odds and ends

    def close(self) -> None:
        self._kept.close()
        for lines in self.files.values():
            lines.close()

    def heads(self, draft: str) -> dict[str, Any]:
        return self._base.heads.get(draft, {})

    def _prepared(self, prompt: Prompt) -> Prepared:
        encoded = self.pair.encode_prompt(prompt.prompt, picture=prompt.picture)
        request = replace(self._base.request, prompt=prompt.prompt, picture=prompt.picture)
        limits = make_limits(request, self.pair, len(encoded))
        check_vocabulary(self._base.rule.vocab_size, encoded, limits)
        return replace(self._base, request=request, prompt=encoded, limits=limits)

    def _records(self, track: str) -> dict[str, dict[str, Any]]:
        """What was collected, by prompt."""
        return {record["prompt"]: record for record in self._lines(track).records}

    def _lines(self, track: str) -> Lines:
        draft = track.removeprefix(TREES)
        own = {"heads": self._digests.get(draft, "")} if track == draft else {"most": TREE_CAP}
        return self._file(f"chain-{safe_name(track)}", draft=[draft, *self._model(draft)], **own)

    def _file(self, name: str, stale: str = "restart", **key: Any) -> Lines:
        """The file ``name``, which stays open; ``key``: under what it was made beside the same target and limit."""
        if name not in self.files:
            self.files[name] = Lines(self._folder / f"{name}.jsonl", {**self._key, **key}, stale)
        return self.files[name]

    def _model(self, draft: str) -> list[str]:
        """What was timed and replayed under the draft's name."""
        if draft in MODEL_FREE:
            return []
        info = self.pair.draft(draft).info
        return [info.fingerprint or "", info.dtype]

    @cached_property
    def _digests(self) -> dict[str, str]:
        """Draft -> digest of its fitted policies: refitting makes old scores stale."""
        return {
            draft: policies_digest(folder / FOLDER)
            for draft, folder in self.pair.draft_folders.items()
            if draft in self.drafts
        }

    def _check_cancel(self) -> None:
        if self._cancel():
            raise Cancelled


def _read(adapter: TypeAdapter[T], data: Any) -> T:
    """Raises UserError for a record that is none of this program's."""
    try:
        return adapter.validate_json(json.dumps(data))  # as JSON its keys may be text, and numbers must be numbers
    except (ValidationError, TypeError, ValueError) as error:
        raise UserError("A record is damaged: delete the evaluation's folder and start over.") from error


def deadline(minutes: float | None) -> Callable[[], bool]:
    """A function that says whether ``minutes`` from now are over; never for None."""
    end = math.inf if minutes is None else monotonic() + 60 * minutes
    return lambda: monotonic() >= end


def _digest(prompt: Prompt) -> str:
    """Of what the target reads of a prompt."""
    return digest_of(f"{prompt.picture}\n{prompt.prompt}".encode())
