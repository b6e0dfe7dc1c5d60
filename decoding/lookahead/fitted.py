"""A draft's fitted policies: their files in the ``policies`` folder next to its weights, the heads made of them, and
the policies that use those. Loads no model.

A policy's ``<policy>.json`` holds the features, their normalisation, the tuned settings, the data, the date, the
metrics, the rule and temperature, and the fingerprints of the target and draft that it was fitted for;
``<policy>.safetensors`` holds its weights. No pickles.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from ..errors import UserError, explained, first_line
from ..files import sha256_of, write_whole
from ..records.pairs import PairDescription, find_pair
from ..records.trace import Run
from .base import SL_CAP_LEARNED, LookaheadPolicy
from .heads import Head
from .lanes import Lane
from .ngrams import read_ngrams
from .spec import PolicySpec, all_specs

FOLDER = "policies"
COUNTS = "ngrams"  # weights that have a file of their own beside the draft: the policy's file has their digest
SCHEMA = "speculoscope.policy/2"
MAX_BYTES = 64 * 2**20
HALF_FROM = 2**15  # entries from which on a matrix is stored in float16
AGAIN = "fit again with python -m decoding fit"


@dataclass(slots=True)
class PolicyFile:
    """One fitted policy. ``weights`` is in the safetensors file, everything else in the JSON."""

    policy: str
    draft: str
    target_fingerprint: str
    draft_fingerprint: str
    features: list[str]  # what the loop must compute: its policy's ``needs``
    architecture: dict[str, Any]
    normalisation: dict[str, Any]
    tuned: dict[str, Any]  # settings chosen on the validation split
    data: dict[str, Any]
    metrics: dict[str, Any]
    created: str  # ISO 8601, UTC
    rule: str = "greedy"
    temperature: float = 0.0
    weights: dict[str, np.ndarray] = field(default_factory=dict)


def weights_digest(folder: Path, policy: str) -> str:
    """The digest of the weights that the policy's file names; "" if there is no sound file."""
    try:
        return str(_read_json(folder / f"{policy}.json", policy).get("weights", ""))
    except UserError:
        return ""


def write_policy(folder: Path, policy: PolicyFile) -> None:
    """Writes both files atomically; a reader never mixes old and new weights. Raises OSError."""
    if not all(np.isfinite(array).all() for array in policy.weights.values()):
        raise UserError(f"Training the policy {policy.policy} gave weights that are not finite; nothing was written.")
    folder.mkdir(parents=True, exist_ok=True)
    own = dict(policy.weights)
    counts = own.pop(COUNTS, None)
    weights = save({name: np.ascontiguousarray(_stored(array)) for name, array in own.items()})
    digests = {"weights": sha256_of(weights), "counts": "" if counts is None else sha256_of(counts.tobytes())}
    fields = asdict(policy) | {"schema": SCHEMA} | digests
    write_whole(folder / f"{policy.policy}.safetensors", weights)
    write_whole(folder / f"{policy.policy}.json", json.dumps(fields, indent=1, allow_nan=False).encode())


def read_policy(
    folder: Path, policy: str, target_fingerprint: str | None = None, draft_fingerprint: str | None = None
) -> PolicyFile:
    """Reads a fitted policy. Raises UserError if its files are not whole or belong to other weights, and TypeError for
    fields of other names; what the fields hold is checked by whoever makes a head of them.
    """
    fields = _read_json(folder / f"{policy}.json", policy)
    weights = _read_weights(folder / f"{policy}.safetensors", policy, fields.pop("weights", ""))
    weights |= _read_counts(folder, policy, fields.pop("counts", ""))
    if fields.pop("schema", None) != SCHEMA:
        raise UserError(f"The file of the policy {policy} is of another version: {AGAIN}.")
    found = PolicyFile(**fields, weights=weights)
    if found.policy != policy:
        raise UserError(f"The file of the policy {policy} is damaged: {AGAIN}.")
    for what, want, got in (
        ("target", target_fingerprint, found.target_fingerprint),
        ("draft", draft_fingerprint, found.draft_fingerprint),
    ):
        if want is not None and want != got:
            raise UserError(
                f"The policy {policy} was fitted for another {what} (its fingerprint is {got}, "
                f"this {what}'s is {want}): {AGAIN}."
            )
    return found


def _read_json(path: Path, policy: str) -> dict[str, Any]:
    content = _read_file(path, f"the policy {policy}")
    try:
        fields = json.loads(content, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise UserError(f"The file of the policy {policy} is damaged (no sound JSON): {AGAIN}.") from error
    if not isinstance(fields, dict):
        raise UserError(f"The file of the policy {policy} is damaged (no JSON object): {AGAIN}.")
    return fields


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not a finite number")


def _read_weights(path: Path, policy: str, digest: str) -> dict[str, np.ndarray]:
    content = _read_file(path, f"the weights of the policy {policy}")
    if sha256_of(content) != digest:
        raise UserError(f"The weights of the policy {policy} are damaged or of another fit: {AGAIN}.")
    try:
        stored = load(content)
    except (SafetensorError, KeyError, ValueError) as error:
        raise UserError(f"The weights of the policy {policy} are damaged: {AGAIN}.") from error
    if not all(np.isfinite(array).all() for array in stored.values()):
        raise UserError(f"The weights of the policy {policy} are not finite: {AGAIN}.")
    return {name: array.astype(np.float32) for name, array in stored.items()}


def _read_file(path: Path, what: str) -> bytes:
    """Raises UserError for a file that is too large or cannot be read."""
    with explained(f"Cannot read {what}"):
        if path.stat().st_size > MAX_BYTES:
            raise UserError(f"The file of {what} is too large: {AGAIN}.")
        return path.read_bytes()


def _stored(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float16) if array.dtype == np.float32 and array.size >= HALF_FROM else array


def _read_counts(folder: Path, policy: str, digest: str) -> dict[str, np.ndarray]:
    if not digest:
        return {}
    ngrams = read_ngrams(folder.parent)
    if ngrams is None or sha256_of(ngrams.packed.tobytes()) != digest:
        raise UserError(f"The counts of n-grams that the policy {policy} reads are missing or others: {AGAIN}.")
    return {COUNTS: ngrams.packed}


class Heads(dict[str, Head]):
    """Heads by policy name. ``faults``: a sentence for each policy whose files cannot be used."""

    def __init__(self) -> None:
        super().__init__()
        self.faults: dict[str, str] = {}


def load_heads(folder: Path, target_fingerprint: str | None, draft_fingerprint: str | None) -> Heads:
    """The heads in ``folder`` by policy name; empty if nothing was fitted.

    Damaged files and those fitted for other weights become ``faults``, reported when their lane is requested; a
    fingerprint of None is not checked.
    """
    heads = Heads()
    for name, spec in all_specs().items():
        if spec.head_from is None or not (folder / f"{name}.json").is_file():
            continue
        try:
            policy = read_policy(folder, name, target_fingerprint, draft_fingerprint)
            head = spec.head_from(policy.weights, policy.architecture, policy.tuned)
            _check_bounds(spec, head)
            heads[name] = head
        except UserError as error:
            heads.faults[name] = str(error)
        except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
            heads.faults[name] = f"The file of the policy {name} is damaged ({first_line(error)}): {AGAIN}."
    return heads


def _check_bounds(spec: PolicySpec, head: Head) -> None:
    """Makes the policy once, which reads all settings. Raises ValueError for an SL_max or an argument out of range."""
    cap, argument = spec.build(None, head).cap, spec.argument
    if cap is None or not 1 <= cap <= SL_CAP_LEARNED:
        raise ValueError(f"its SL_max is {cap}")
    if argument is not None:
        number = head.tuned[argument.meaning]
        if not argument.low <= number <= argument.high:
            raise ValueError(f"its {argument.meaning} is {number}")


def need_head(name: str, heads: Mapping[str, Head] | None) -> Head:
    """The head of policy ``name``. Raises UserError that says how to fit one."""
    if heads and name in heads:
        return heads[name]
    if isinstance(heads, Heads) and name in heads.faults:
        raise UserError(heads.faults[name])
    raise UserError(
        f"The policy {name} is not fitted for this pair and draft yet: leave this lane out, or fit it first with "
        "python -m decoding fit --pair PAIR --draft DRAFT (own models: --target FOLDER --draft FOLDER)."
    )


def heads_of(run: Run, draft: str) -> dict[str, Head]:
    """The heads of ``draft`` by policy name; {} if the draft is not installed.

    Those fitted for other weights than the run's are left out. Raises UserError for an unknown pair.
    """
    known, pair = run.pair.drafts.get(draft), _find(run.pair.name)
    if known is None or draft not in pair.drafts:
        return {}
    return load_heads(Path(pair.drafts[draft]) / FOLDER, run.pair.target.fingerprint, known.fingerprint)


def _find(name: str) -> PairDescription:
    try:
        return find_pair(name)
    except UserError as error:
        raise UserError(
            f"Fitted policies are found by the name of their pair, and {name} is none that can be loaded here: leave "
            "learned lanes out."
        ) from error


def make_policy(lane: Lane, heads: Mapping[str, Head] | None = None) -> LookaheadPolicy:
    """A new policy for ``lane``.

    Args:
        lane: as parsed by :func:`decoding.lookahead.lanes.parse_lane`.
        heads: the heads fitted for the lane's draft, by policy name; required for learned policies.

    Raises:
        UserError: a learned policy without its head ("fit first").
    """
    head = need_head(lane.policy, heads) if lane.is_learned else None
    return lane.spec.build(lane.argument, head)
