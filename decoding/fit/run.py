"""``fit``: the target's texts, training data, training, calibration and tuning of a draft's learned policies."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from itertools import product
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from ..analysis.tuning import Bench
from ..analysis.validation import write_validation
from ..analysis.whatif import Replay
from ..comparison.chain import record_chain
from ..comparison.costs import measure_costs, measure_decision, smooth_costs
from ..comparison.prepare import (
    ALL_FEATURES,
    Prepared,
    abilities_of,
    make_draft,
    prepare,
    shared_vocabulary,
)
from ..engines.inputs import EncodedPrompt
from ..engines.pair import Pair
from ..errors import Cancelled, UserError, explained
from ..lookahead.base import SL_CAP
from ..lookahead.fitted import FOLDER, PolicyFile, load_heads, write_policy
from ..lookahead.heads import Head
from ..lookahead.lanes import parse_lane
from ..lookahead.ngrams import read_ngrams
from ..lookahead.oracle import Oracle
from ..loop.acceptance import Greedy
from ..records.request import CompareRequest
from ..records.trace import Costs, Finish
from .candidates import Candidate, choose, fitted_policies, train_candidates
from .data import FitOptions, Positions, Progress, Texts, positions_along, write_texts

COST_PROMPTS = 3
DECISION_PROMPTS = 5
MIN_POSITIONS = 500  # too few to train on below this
SHIPPED = 40  # validation prompts whose chains are written beside the policies


@dataclass(frozen=True, slots=True)
class Fit:
    """The result: the folder, the fitted policies, and their validation figures as text."""

    draft: str
    folder: Path
    policies: list[PolicyFile]  # [] if only the chains were recorded
    seconds: float


def fit(
    pair: Pair,
    drafts: Sequence[str],
    options: FitOptions,
    progress: Progress = lambda message, fraction: None,
    cancelled: Callable[[], bool] = lambda: False,
    only_chains: bool = False,
) -> list[Fit]:
    """Fits DISCO, SpecDec++ and costaware for each of ``drafts`` and writes them next to the draft, with the validation
    prompts' chains, on which other machines choose thresholds for their own costs.

    ``only_chains``: the policies stay as they are. Raises UserError, Cancelled.
    """

    def report(message: str, share: float | None) -> None:
        if cancelled():
            raise Cancelled
        progress(message, share)

    folders = [policies_folder(pair, draft) for draft in drafts]
    began = perf_counter()
    splits = ("validation",) if only_chains else ("train", "validation")
    texts = write_texts(pair, pair.default_draft, options, report, splits)
    found = []
    for draft, folder in zip(drafts, folders, strict=True):
        job = _Job(pair, draft, options, report, cancelled)
        policies = [] if only_chains else _fit_draft(job, texts)
        with explained(f"Cannot write the fitted policies into {folder}"):
            for policy in policies:
                write_policy(folder, policy)
            job.ship_chains(folder, texts["validation"])
        found.append(Fit(draft, folder, policies, perf_counter() - began))
        began = perf_counter()
    return found


def _fit_draft(job: _Job, texts: dict[str, Texts]) -> list[PolicyFile]:
    readings = job.read_costs(texts["validation"])
    positions = job.collect(texts["train"])
    readings += job.read_costs(texts["validation"])
    job.report("training the heads", None)
    candidates = train_candidates(positions, job.ngrams, job.options.epochs, job.options.seed)
    recorded = job.record(texts["validation"], {one.column: one.head for one in candidates})
    readings += job.read_costs(texts["validation"])
    costs = job.with_decisions(smooth_costs(readings), texts["validation"], candidates)
    job.report("tuning on the validation split", None)
    data = asdict(job.options) | {
        "train_texts": len(texts["train"]),
        "validation_texts": len(texts["validation"]),
        "train_positions": len(positions),
        "train_match_rate": round(float(positions.match.mean()), 5),
    }
    return list(_choose(job, candidates, recorded, costs, data))


class _Job:
    """The steps of a fit that run models. ``report`` raises Cancelled where ``cancelled()`` is true."""

    def __init__(
        self, pair: Pair, draft: str, options: FitOptions, report: Progress, cancelled: Callable[[], bool]
    ) -> None:
        self.pair, self.draft, self.options, self._cancelled = pair, draft, options, cancelled
        self.report = lambda message, share: report(f"{draft}: {message}", share)
        self.ngrams = read_ngrams(pair.draft_folders[draft])

    def collect(self, texts: Texts) -> Positions:
        """The draft's guesses at all positions of the training texts."""
        rule = Greedy(shared_vocabulary(self.pair, [self.draft]))
        source = make_draft(self.pair, self.draft, rule, ALL_FEATURES)
        found = []
        for number, (prompt, text) in enumerate(texts):
            self.report("reading the texts", number / len(texts))
            found.append(positions_along(self.pair.target, source, prompt, text, self.ngrams))
        positions = Positions.joined(found)
        if len(positions) < MIN_POSITIONS:
            raise UserError(
                f"Only {len(positions)} positions to train on, at least {MIN_POSITIONS} are needed: use more prompts."
            )
        if not 0.0 < positions.match.mean() < 1.0:
            raise UserError("The draft is always right or always wrong on these texts: there is nothing to learn.")
        return positions

    def record(self, texts: Texts, heads: Mapping[str, Head]) -> list[Replay]:
        """Chains along the validation texts.

        Hardly any policy guesses on for SL_CAP tokens after a mistake, so that longer tails would change nothing.
        """
        prepared = self._prepared(texts)
        found = []
        for number, (prompt, text) in enumerate(texts):
            self.report("drafting on validation texts", number / len(texts))
            chain = record_chain(
                make_draft(self.pair, self.draft, prepared.rule, ALL_FEATURES),
                EncodedPrompt(prompt),
                text,
                prepared.limits,
                target=self.pair.target,
                longest=SL_CAP,
                heads=heads,
                cancelled=self._cancelled,
            )
            finish: Finish = "length" if len(text) >= self.options.max_new_tokens else "eos"
            found.append(Replay(chain, self.options.max_new_tokens, finish))
        return found

    def ship_chains(self, folder: Path, texts: Texts) -> None:
        """Writes chains of validation texts beside the policies, with their scores. Raises UserError, OSError."""
        fingerprints = self.pair.target.info.fingerprint, self.pair.draft(self.draft).info.fingerprint
        heads = load_heads(folder, *fingerprints)
        if not heads:
            raise UserError(
                f"No policy is fitted for the draft {self.draft}, so there is nothing to choose thresholds for: "
                "fit first, without --only-chains."
            )
        chains = self.record(texts[:: max(1, len(texts) // SHIPPED)][:SHIPPED], heads)
        write_validation(folder, fingerprints, list(heads), chains)

    def read_costs(self, texts: Texts) -> list[Costs]:
        """The cost curves of this machine, from a few prompts measured at different times, so that no busy moment
        decides.
        """
        self.report("measuring the cost of passes", None)
        return [measure_costs(self.pair, [self.draft], prompt) for prompt, _ in texts[:COST_PROMPTS]]

    def with_decisions(self, costs: Costs, texts: Texts, candidates: list[Candidate]) -> Costs:
        """``costs`` plus the costs of the features and of each candidate's decision, by its column."""
        found: dict[str, list[float]] = {one.column: [] for one in candidates}
        for one, (prompt, _) in product(candidates, texts[:DECISION_PROMPTS]):
            self.report("measuring the cost of decisions", None)
            prepared = replace(self._prepared(texts), prompt=EncodedPrompt(prompt))
            prepared.heads = {self.draft: {one.policy: one.head}}
            lane = parse_lane(f"{self.draft}/{one.policy}")
            found[one.column].append(measure_decision(prepared, lane, costs, self.options.max_new_tokens))
        return replace(costs, decision={column: float(np.median(values)) for column, values in found.items()})

    def _prepared(self, texts: Texts) -> Prepared:
        """A prepared request on one validation prompt under the greedy rule."""
        prompt = self.pair.tokenizer.decode(texts[0][0]) or "x"
        request = CompareRequest(prompt, lanes=[f"{self.draft}/static:5"], max_new_tokens=self.options.max_new_tokens)
        return prepare(request, self.pair)


def _choose(
    job: _Job, candidates: list[Candidate], recorded: list[Replay], costs: Costs, data: dict[str, Any]
) -> Iterator[PolicyFile]:
    """The best candidate of each policy, tuned, as a policy file."""
    bench = Bench(recorded, costs)
    static_sl, static_latency = bench.static_opt()
    yardsticks = {
        "static_opt": static_sl,
        "static_opt_latency": round(static_latency, 5),
        "oracle_latency": round(bench.latency(Oracle()), 5),
        "costs": {
            "c": costs.draft_step[job.draft],
            "v": costs.verify_curve,
            "o": costs.overhead,
            "target_s": costs.target_s,
        },
    }
    for policy in fitted_policies():
        best = choose(policy, candidates, recorded, costs)
        below = round(1.0 - best.latency / static_latency, 5)
        validation = best.figures | {"latency": best.latency, "below_static_opt": below}
        yield PolicyFile(
            policy=policy,
            draft=job.draft,
            target_fingerprint=job.pair.target.info.fingerprint,
            draft_fingerprint=job.pair.draft(job.draft).info.fingerprint,
            features=sorted(best.head.needs),
            architecture=best.trained.architecture,
            normalisation=best.trained.normalisation,
            tuned=best.tuned,
            data=data,
            metrics={"validation": validation, **yardsticks, "candidates": best.candidates},
            created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            weights=best.trained.weights,
        )


def policies_folder(pair: Pair, draft: str) -> Path:
    """Where the policies of ``draft`` are written. Raises UserError for a draft that cannot have any."""
    if abilities_of(pair, draft).certain:
        raise UserError(f"The draft {draft} has no probabilities to learn from: fit a model draft.")
    pair.draft(draft)  # raises UserError for an unknown name
    folder = pair.draft_folders.get(draft)
    if folder is None:
        raise UserError(
            f"The draft {draft} is not in a folder on this machine, and policies are written next to the draft. "
            "Download it and give its folder with --draft."
        )
    return folder / FOLDER
