"""A fitted policy on disk: ``<policy>.json`` with its metadata, ``<policy>.safetensors`` with its weights.

The JSON holds the features, their normalisation, the tuned settings, the data, the date, the metrics, the rule and
temperature, and the fingerprints of the target and draft that it was fitted for. No pickles.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from ..errors import UserError, explained
from ..files import sha256_of, write_whole
from .ngrams import read_ngrams

COUNTS = "ngrams"  # weights that have a file of their own: the policy's file then has their digest in their place
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
    own, counts = dict(policy.weights), ""
    if COUNTS in own and (known := _counts_of(folder)) is not None and np.array_equal(known, own[COUNTS]):
        counts = sha256_of(own.pop(COUNTS).tobytes())
    weights = save({name: np.ascontiguousarray(_stored(array)) for name, array in own.items()})
    fields = asdict(policy) | {"schema": SCHEMA, "weights": sha256_of(weights), "counts": counts}
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
    return {name: x if x.dtype == np.uint8 else x.astype(np.float32) for name, x in stored.items()}


def _read_file(path: Path, what: str) -> bytes:
    """Raises UserError for a file that is too large or cannot be read."""
    with explained(f"Cannot read {what}"):
        if path.stat().st_size > MAX_BYTES:
            raise UserError(f"The file of {what} is too large: {AGAIN}.")
        return path.read_bytes()


def _stored(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float16) if array.dtype == np.float32 and array.size >= HALF_FROM else array


def _counts_of(folder: Path) -> np.ndarray | None:
    """The counts of n-grams for the draft whose policies are in ``folder``. Raises UserError."""
    ngrams = read_ngrams(folder.parent)
    return None if ngrams is None else ngrams.packed


def _read_counts(folder: Path, policy: str, digest: str) -> dict[str, np.ndarray]:
    if not digest:
        return {}
    counts = _counts_of(folder)
    if counts is None or sha256_of(counts.tobytes()) != digest:
        raise UserError(f"The counts of n-grams that the policy {policy} reads are missing or others: {AGAIN}.")
    return {COUNTS: counts}
