"""The validation prompts' chains beside a draft's policies: what thresholds are chosen on, on every machine.

``fit`` writes ``validation.safetensors`` into the folder of the policies. A chain holds no times, so that it serves any
machine; and no text: whether each guess holds is all that a replay needs. Probabilities are kept as logits in float16.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import get_args

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from ..errors import UserError
from ..files import digest_of_files, write_whole
from ..lookahead.policy_files import AGAIN, weights_digest
from ..records.trace import Chain, Finish, Guesses
from .whatif import Recorded

FILE = "validation.safetensors"
SCHEMA = "speculoscope.validation/1"
MAX_BYTES = 16 * 2**20
FINISHES: tuple[Finish, ...] = get_args(Finish)
HELD, MISSED, SILENT = 1, 0, 2  # a guess; SILENT: the draft had nothing to propose
LARGEST = 15.0  # of a logit
SCORE = "score "  # begins the names of the arrays with a policy's scores


def write_validation(
    folder: Path, fingerprints: tuple[str, str], policies: Sequence[str], recorded: Sequence[Recorded]
) -> None:
    """Writes the chains of a draft with the scores of ``policies``, whose files are in ``folder``.

    Args:
        fingerprints: of the target and of the draft.

    Raises:
        OSError.
    """
    along = [one.chain.along for one in recorded]
    tails = [one.chain.tails[at] for one in recorded for at in sorted(one.chain.tails)]
    everywhere = [*along, *tails]
    arrays: dict[str, np.ndarray] = {
        "limit": np.array([one.max_new_tokens for one in recorded], dtype=np.int32),
        "finish": np.array([FINISHES.index(one.finish) for one in recorded], dtype=np.uint8),
        "length": np.array([len(one.chain.target) for one in recorded], dtype=np.int32),
        "n_tails": np.array([len(one.chain.tails) for one in recorded], dtype=np.int32),
        "outcome": np.concatenate([_outcomes(one.chain) for one in recorded]),
        "tail_at": np.array([at for one in recorded for at in sorted(one.chain.tails)], dtype=np.int32),
        "tail_length": np.array([len(tail.choice) for tail in tails], dtype=np.int32),
        "p": _logits([guesses.p for guesses in everywhere]),
        **{f"{SCORE}{name}": _logits([guesses.scores[name] for guesses in everywhere]) for name in policies},
    }
    heads = {name: weights_digest(folder, name) for name in policies}
    target, own = fingerprints
    metadata = {"schema": SCHEMA, "target": target, "draft": own, "heads": json.dumps(heads)}
    write_whole(folder / FILE, save(arrays, metadata))


def read_validation(
    folder: Path, draft: str, target_fingerprint: str | None = None, draft_fingerprint: str | None = None
) -> list[Recorded]:
    """The chains of ``draft`` beside its policies in ``folder``, with the scores of those whose weights are still the
    same.

    Token ids are made up: a guess that holds is 0, and so is the target's token. [] if there is no file.
    Raises UserError if it is damaged or of other models.
    """
    path = folder / FILE
    if not path.is_file():
        return []
    these = f"The validation chains of the draft {draft}"
    try:
        if path.stat().st_size > MAX_BYTES:
            raise UserError(f"{these} are too large: {AGAIN}.")
        with safe_open(path, "numpy") as opened:
            metadata = opened.metadata() or {}
            names = opened.keys()
            arrays = {name: opened.get_tensor(name) for name in names}
        heads = json.loads(metadata.get("heads", "null"))
        if metadata.get("schema") != SCHEMA or not isinstance(heads, dict):
            raise UserError(f"{these} are of another version: {AGAIN}.")
        for want, got in ((target_fingerprint, metadata["target"]), (draft_fingerprint, metadata["draft"])):
            if want is not None and want != got:
                raise UserError(f"{these} are of other models: {AGAIN}.")
        current = [name for name, digest in heads.items() if weights_digest(folder, name) == digest]
        return _recorded(draft, arrays, current)
    except UserError:
        raise
    except (OSError, SafetensorError, KeyError, ValueError, IndexError) as error:
        raise UserError(f"{these} are damaged: {AGAIN}.") from error


def policies_digest(folder: Path) -> str:
    """The digest of a draft's policies and validation chains: another one after they were fitted again."""
    return digest_of_files(sorted([*folder.glob("*.json"), *folder.glob(FILE)]))


def _recorded(draft: str, arrays: Mapping[str, np.ndarray], policies: Sequence[str]) -> list[Recorded]:
    lengths, n_tails = arrays["length"].tolist(), arrays["n_tails"].tolist()
    outcomes = np.split(arrays["outcome"], np.cumsum(lengths)[:-1])
    ends = np.cumsum([*lengths, *arrays["tail_length"].tolist()])[:-1]
    p = [_chances(column) for column in np.split(arrays["p"], ends)]
    scores = {name: [_chances(one) for one in np.split(arrays[SCORE + name], ends)] for name in policies}
    places = np.split(arrays["tail_at"], np.cumsum(n_tails)[:-1])
    found, tail = [], len(lengths)  # the tails' lists follow those along the texts
    for number, (length, outcome, at) in enumerate(zip(lengths, outcomes, places, strict=True)):
        choices: list[int | None] = [None if one == SILENT else int(one != HELD) for one in outcome.tolist()]
        tails = {
            place: _guesses([1] * len(p[index]), index, p, scores) for index, place in enumerate(at.tolist(), tail)
        }
        tail += len(tails)
        chain = Chain(draft, [0] * length, _guesses(choices, number, p, scores), tails)
        found.append(Recorded(chain, int(arrays["limit"][number]), FINISHES[int(arrays["finish"][number])]))
    return found


def _guesses(
    choices: list[int | None], index: int, p: Sequence[list[float]], scores: Mapping[str, Sequence[list[float]]]
) -> Guesses:
    return Guesses(choices, p[index], [0.0] * len(choices), {name: lists[index] for name, lists in scores.items()})


def _outcomes(chain: Chain) -> np.ndarray:
    pairs = zip(chain.along.choice, chain.target, strict=True)
    return np.array([SILENT if a is None else HELD if a == b else MISSED for a, b in pairs], dtype=np.uint8)


def _logits(columns: Sequence[Sequence[float]]) -> np.ndarray:
    """Probabilities, list after list, as logits [n] float16."""
    p = np.concatenate([np.asarray(column, dtype=np.float64) for column in columns])
    with np.errstate(divide="ignore"):
        return np.clip(np.log(p) - np.log1p(-p), -LARGEST, LARGEST).astype(np.float16)


def _chances(logits: np.ndarray) -> list[float]:
    return (1.0 / (1.0 + np.exp(-logits.astype(np.float64)))).tolist()
