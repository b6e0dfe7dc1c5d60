"""Choosing thresholds and a static SL: the simulated cost of policies on the validation prompts' chains.

``fit`` chooses with the cost curves of its machine, and every other machine chooses again with its own: cheap checks
favour long SLs, dear ones short SLs. Only the number that follows a policy's name in a lane is chosen again; its cap
stays as ``fit`` left it, since no other cap gained more than 0.3% at any of the costs tried.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from pydantic import TypeAdapter

from ..files import costs_folder
from ..lookahead.base import SL_CAP, LookaheadPolicy
from ..lookahead.costaware import Row
from ..lookahead.heads import Head
from ..lookahead.spec import all_specs
from ..lookahead.static import Static
from ..records.machine import describe_machine
from ..records.trace import Costs
from .validation import FILE as VALIDATION
from .validation import policies_digest
from .whatif import Replay

T = TypeVar("T")


@dataclass(slots=True)
class Chosen:
    """What the costs of one machine choose for one draft.

    ``arguments``: policy -> the text after the colon of its lane. ``source``: digest of the policies and chains that it
    was chosen with; ``measured``: date of the curves.
    """

    static: int
    arguments: dict[str, str] = field(default_factory=dict)
    source: str = ""
    measured: str | None = None

    def sentence(self) -> str:
        """For the page: "Set for this machine on validation prompts: best static SL 3, DISCO stops below 0.55." """
        specs = all_specs()
        words = [f"best static SL {self.static}"]
        for policy, text in self.arguments.items():
            spec = specs.get(policy)
            if spec is not None and spec.argument is not None:
                words.append(f"{spec.title} {spec.argument.effect.replace('{}', text)}")
        return f"Set for this machine on validation prompts: {', '.join(words)}."


def chosen_here(folder: Path) -> Chosen | None:
    """What this machine's curves chose for the policies in ``folder``, from the files of
    :mod:`decoding.comparison.kept_costs`; of several the one for the latest curves in the number formats that a trial
    chose. Loads no model.
    """
    if not (folder / VALIDATION).is_file():
        return None
    source = policies_digest(folder)
    kept = _kept_here(lambda kept: _CHOSEN.validate_python(kept["chosen"]), chosen_formats=True)
    found = (chosen for chosen in kept if chosen.source == source)
    return max(found, key=lambda one: one.measured or "", default=None)


_CHOSEN = TypeAdapter(Chosen)


def curves_here(sources: Mapping[str, Sequence[str]]) -> dict[str, dict[str, Any]]:
    """What is kept of the cost curves of drafts on this machine: name -> {costs, target, draft}, all as in the files.

    ``sources``: under which sources a draft may be kept. Of several curves the latest in the number formats that a
    trial chose. Loads no model.
    """
    found: dict[str, dict[str, Any]] = {}
    kept = sorted(_kept_here(_dated_curves, chosen_formats=True), key=lambda one: one[0])
    for _, source, curves in kept:  # the latest replaces others
        found |= {name: curves for name, possible in sources.items() if source in possible}
    return found


def _dated_curves(kept: dict[str, Any]) -> tuple[str, str, dict[str, Any]]:
    """When the curves in a file were measured, the source of the draft, and the curves."""
    setting, costs = kept["setting"], kept["costs"]
    curves = {"costs": costs, "target": setting["target"], "draft": setting["draft"]}
    return str(costs["measured"] or ""), setting["draft"]["source"], curves


def format_here(target: Mapping[str, Any]) -> str:
    """Why ``target``, as kept with its curves, runs in its number format, from what the trial at its first load kept:
    "Number format float16, the fastest of 3 tried here: a pass over one token takes 1.6 times as long in bfloat16."
    "" if nothing was tried.
    """

    def sentence(kept: dict[str, Any]) -> str:
        same = (kept["model"]["fingerprint"], kept["chosen"]) == (target["fingerprint"], target["dtype"])
        return _why(kept["chosen"], kept["seconds"], len(kept["choices"])) if same and kept["seconds"] else ""

    return next(filter(None, _kept_here(sentence, "format-*.json")), "")


def _why(chosen: str, seconds: dict[str, float], tried: int) -> str:
    """``seconds``: of a pass over one token, by format; formats that could not serve have none."""
    others = sorted((spent / seconds[chosen], name) for name, spent in seconds.items() if name != chosen)
    if not others:
        return f"Number format {chosen}: of {tried} tried here the only one in which checks cannot change the text."
    longer = " and ".join(f"{_times_as_long(ratio)} in {name}" for ratio, name in others)
    if others[0][0] <= 0.95:
        best = f"of {tried} tried here the fastest for plain passes and checks together"
        return f"Number format {chosen}: {best}; a pass over one token alone takes {longer}."
    return f"Number format {chosen}, the fastest of {tried} tried here: a pass over one token takes {longer}."


def _times_as_long(ratio: float) -> str:
    return "as long" if abs(ratio - 1) < 0.05 else f"{ratio:.1f} times as long"


def _kept_here(
    read: Callable[[dict[str, Any]], T], pattern: str = "*.json", chosen_formats: bool = False
) -> Iterator[T]:
    """What ``read`` makes of each file of measurements on this machine; what it cannot read is measured again.

    ``chosen_formats``: without curves in formats that somebody asked for although a trial chose others.
    """
    own = asdict(describe_machine())
    chosen: dict[str, set[str]] = {}
    if chosen_formats:
        trials = _kept_here(lambda kept: (kept["model"]["fingerprint"], kept["chosen"]), "format-*.json")
        for fingerprint, name in trials:
            chosen.setdefault(fingerprint, set()).add(name)
    for path in costs_folder().glob(pattern):
        with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            kept = json.loads(path.read_bytes())
            machine = kept["machine"] if "machine" in kept else kept["setting"]["machine"]
            models = [kept["setting"][which] for which in ("target", "draft")] if chosen else []
            unchosen = any(one["dtype"] not in chosen.get(one["fingerprint"], {one["dtype"]}) for one in models)
            if not unchosen and {**machine, "gpu": None} == {**own, "gpu": None}:
                yield read(kept)


class Bench:
    """Computes the latency of policies on validation chains, under one set of costs."""

    def __init__(self, recorded: Sequence[Replay], costs: Costs) -> None:
        self._recorded, self._costs = recorded, costs
        self._draft = recorded[0].chain.draft

    def row(self, policy: LookaheadPolicy, threshold: float = 0.0) -> Row:
        """The histogram of iterations by SL that ``policy`` gives on these texts."""
        simulated = [one.simulate(self._costs, policy) for one in self._recorded]
        lengths = [drafted for one in simulated for _, drafted, _ in one.iterations]
        histogram = np.bincount(lengths, minlength=SL_CAP + 1).tolist()
        return Row(float(threshold), sum(one.n_tokens for one in simulated), tuple(histogram))

    def latency(self, policy: LookaheadPolicy) -> float:
        """Time per token of ``policy``, in target passes."""
        return self.row(policy).latency(self._costs, self._draft, policy.name)

    def static_opt(self) -> tuple[int, float]:
        """(SL, latency per token) of the best static policy."""
        found = {sl: self.latency(Static(sl)) for sl in range(1, SL_CAP + 1)}
        return min(found.items(), key=lambda item: item[1])

    def best_argument(self, policy: str, head: Head) -> tuple[float, str]:
        """(latency per token, argument) of a learned policy, at the best of its ``tuned`` arguments."""
        spec = all_specs()[policy]
        assert spec.argument is not None and spec.argument.tuned, "nothing is to be chosen for this policy"
        texts = [f"{value:g}" for value in spec.argument.tuned]
        return min((self.latency(spec.build(text, head)), text) for text in texts)


def choose(
    recorded: Sequence[Replay],
    heads: Mapping[str, Head],
    costs: Costs,
    stopped: Callable[[], bool] = lambda: False,
) -> Chosen | None:
    """What ``costs`` choose for the draft of these chains; None if ``stopped()`` before the end.

    A policy without scores in the chains (its head was fitted again since) keeps what ``fit`` chose.
    """
    bench = Bench(recorded, costs)
    found = Chosen(bench.static_opt()[0], measured=costs.measured)
    for policy, spec in all_specs().items():
        if stopped():
            return None
        chooses = spec.argument is not None and spec.argument.tuned
        if chooses and policy in heads and policy in recorded[0].chain.along.scores:
            _, found.arguments[policy] = bench.best_argument(policy, heads[policy])
    return found
