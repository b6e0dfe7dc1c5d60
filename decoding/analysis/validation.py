"""The validation prompts' chains beside a draft's policies: what thresholds are chosen on, on every machine.

``fit`` writes ``validation.safetensors`` into the folder of the policies. A chain holds no times, so that it serves any
machine; and no text: whether each guess holds is all that a replay needs. Probabilities are kept as logits in float16.

Chains with the guesses of an iteration from every place are three times as large: of the guesses after a mistake only
the first FOLLOWED are kept, and how many there were. A policy that guesses on after those sees the last one again. That
changed no threshold that was chosen at the costs tried.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from ..errors import UserError
from ..files import digest_of_files, write_whole
from ..lookahead.policy_files import AGAIN, weights_digest
from ..records.trace import Chain, Finish, Guesses
from .whatif import Replay

FILE = "validation.safetensors"
SCHEMA = "speculoscope.validation/1"
MAX_BYTES = 16 * 2**20
FINISHES: tuple[Finish, ...] = get_args(Finish)
HELD, MISSED, SILENT = 1, 0, 2  # a guess; SILENT: the draft had nothing to propose
LARGEST = 15.0  # of a logit
FOLLOWED = 6  # guesses kept after the first that does not hold
SCORE = "score "  # begins the names of the arrays with a policy's scores


def write_validation(
    folder: Path, fingerprints: tuple[str, str], policies: Sequence[str], recorded: Sequence[Replay]
) -> None:
    """Writes the chains of a draft with the scores of ``policies``, whose files are in ``folder``.

    Args:
        fingerprints: of the target and of the draft.

    Raises:
        OSError.
    """
    chains = [one.chain for one in recorded]
    lists, places = _from_every_place(chains) if chains[0].starts else _along_texts(chains)
    arrays: dict[str, np.ndarray] = {
        "limit": np.array([one.max_new_tokens for one in recorded], dtype=np.int32),
        "finish": np.array([FINISHES.index(one.finish) for one in recorded], dtype=np.uint8),
        "length": np.array([len(chain.target) for chain in chains], dtype=np.int32),
        **places,
        "p": _logits([guesses.p for guesses in lists]),
        **{f"{SCORE}{name}": _logits([guesses.scores[name] for guesses in lists]) for name in policies},
    }
    heads = {name: weights_digest(folder, name) for name in policies}
    target, own = fingerprints
    metadata = {"schema": SCHEMA, "target": target, "draft": own, "heads": json.dumps(heads)}
    write_whole(folder / FILE, save(arrays, metadata))


def _along_texts(chains: Sequence[Chain]) -> tuple[list[Guesses], dict[str, np.ndarray]]:
    """The lists of guesses along the texts, then the tails; what else of them is kept."""
    tails = [chain.tails[at] for chain in chains for at in sorted(chain.tails)]
    return [*(chain.along for chain in chains), *tails], {
        "n_tails": np.array([len(chain.tails) for chain in chains], dtype=np.int32),
        "outcome": np.concatenate([_outcomes(chain) for chain in chains]),
        "tail_at": np.array([at for chain in chains for at in sorted(chain.tails)], dtype=np.int32),
        "tail_length": np.array([len(tail.choice) for tail in tails], dtype=np.int32),
    }


def _from_every_place(chains: Sequence[Chain]) -> tuple[list[Guesses], dict[str, np.ndarray]]:
    """The guesses from every place of the texts, without the last ones after a mistake; how many of them hold, and how
    many there were.
    """
    starts = [guesses for chain in chains for guesses in chain.starts]
    holds = [chain.holds(start) for chain in chains for start in range(len(chain.starts))]
    lists = [_first(guesses, _n_kept(held)) for guesses, held in zip(starts, holds, strict=True)]
    reach = np.array([len(guesses.choice) for guesses in starts], dtype=np.uint16)
    return lists, {"holds": np.array(holds, dtype=np.uint16), "reach": reach}


def _n_kept(held: int) -> int:
    return held + 1 + FOLLOWED


def _first(guesses: Guesses, n: int) -> Guesses:
    scores = {name: column[:n] for name, column in guesses.scores.items()}
    return Guesses(guesses.choice[:n], guesses.p[:n], guesses.entropy[:n], scores)


def read_validation(
    folder: Path, draft: str, target_fingerprint: str | None = None, draft_fingerprint: str | None = None
) -> list[Replay]:
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


def _recorded(draft: str, arrays: Mapping[str, np.ndarray], policies: Sequence[str]) -> list[Replay]:
    read = _read_from_every_place if "reach" in arrays else _read_along_texts
    facts = zip(read(draft, arrays, policies), arrays["limit"].tolist(), arrays["finish"].tolist(), strict=True)
    return [Replay(chain, limit, FINISHES[finish]) for chain, limit, finish in facts]


def _read_along_texts(draft: str, arrays: Mapping[str, np.ndarray], policies: Sequence[str]) -> Iterator[Chain]:
    lengths, at = arrays["length"].tolist(), arrays["tail_at"].tolist()
    lists = _lists(arrays, policies, [*lengths, *arrays["tail_length"].tolist()])
    alongs, tails = lists[: len(lengths)], lists[len(lengths) :]
    outcomes = np.split(arrays["outcome"], np.cumsum(lengths)[:-1])
    for along, outcome, own in zip(alongs, outcomes, _parts(len(at), arrays["n_tails"]), strict=True):
        choices: list[int | None] = [None if one == SILENT else int(one != HELD) for one in outcome.tolist()]
        missed = {at[index]: replace(tails[index], choice=[1] * len(tails[index].p)) for index in own}
        yield Chain(draft, [0] * len(choices), replace(along, choice=choices), missed)


def _read_from_every_place(draft: str, arrays: Mapping[str, np.ndarray], policies: Sequence[str]) -> Iterator[Chain]:
    holds, reach = arrays["holds"].tolist(), arrays["reach"].tolist()
    lists = _lists(arrays, policies, [min(n, _n_kept(held)) for n, held in zip(reach, holds, strict=True)])
    for own in _parts(len(lists), arrays["length"]):
        starts = [_whole(lists[index], holds[index], reach[index]) for index in own]
        yield Chain(draft, [0] * len(starts), _firsts(starts, policies), {}, starts)


def _parts(n: int, lengths: np.ndarray) -> list[list[int]]:
    """The numbers from 0 to n - 1, in parts of these lengths."""
    return [part.tolist() for part in np.split(np.arange(n), np.cumsum(lengths)[:-1])]


def _lists(arrays: Mapping[str, np.ndarray], policies: Sequence[str], lengths: Sequence[int]) -> list[Guesses]:
    """The lists of guesses, of these lengths, without their choices."""
    ends = np.cumsum(lengths)[:-1]
    columns = [
        [_chances(part) for part in np.split(arrays[key], ends)] for key in ("p", *(SCORE + x for x in policies))
    ]
    return [Guesses([], p, [0.0] * len(p), dict(zip(policies, scores))) for p, *scores in zip(*columns, strict=True)]


def _whole(kept: Guesses, holds: int, reach: int) -> Guesses:
    """All ``reach`` guesses from a place; the last of those that were kept stands for the others."""

    def whole(column: list[float]) -> list[float]:
        return column + column[-1:] * (reach - len(column))

    choices: list[int | None] = [int(index >= holds) for index in range(reach)]
    return Guesses(choices, whole(kept.p), [0.0] * reach, {name: whole(one) for name, one in kept.scores.items()})


def _firsts(starts: Sequence[Guesses], policies: Sequence[str]) -> Guesses:
    """The first guess from each place."""

    def first(column: list[float]) -> float:
        return column[0] if column else 0.0

    choices: list[int | None] = [one.choice[0] if one.choice else None for one in starts]
    scores = {name: [first(one.scores[name]) for one in starts] for name in policies}
    return Guesses(choices, [first(one.p) for one in starts], [0.0] * len(starts), scores)


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
