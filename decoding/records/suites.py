"""Prompt suites: JSON Lines under ``prompts/``, one file a suite, each prompt in one split.

The suites are ``code``, ``prose``, ``tests`` and ``structured``, with the splits ``train``, ``validation``
and ``test``; ``showcase`` is a handful of prompts that look good on a page. They are written by ``python -m
training prompts``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from decoding.errors import UserError

FOLDER = Path(__file__).resolve().parents[2] / "prompts"
SUITES = ("code", "prose", "tests", "structured")
SPLITS = ("train", "validation", "test")
SHOWCASE = "showcase"


@dataclass(frozen=True)
class Prompt:
    """One prompt. ``source`` tells where its text comes from; the last three only a showcase prompt has.

    ``title`` and ``shows`` are for the page (what it is, what it shows); ``lanes`` are lane strings that
    bring out what it shows, empty where the default lanes do.
    """

    id: str
    suite: str
    split: str
    prompt: str
    source: str
    title: str = ""
    shows: str = ""
    lanes: tuple[str, ...] = ()


def load_suite(name: str, split: str | None = None, limit: int | None = None) -> list[Prompt]:
    """The prompts of a suite in the order of the file, of one split or of all, at most ``limit``.

    ``name`` is one of SUITES, ``showcase``, or ``all``: the four suites taking turns, so that any ``limit``
    is mixed. Raises UserError for an unknown suite or split, or when no prompt is left.
    """
    if split is not None and split not in SPLITS:
        raise UserError(f"There is no split {split!r}. Splits: {', '.join(SPLITS)}.")
    if name == "all":
        suites = [load_suite(suite, split) for suite in SUITES]
        longest = max(map(len, suites))
        prompts = [suite[index] for index in range(longest) for suite in suites if index < len(suite)]
    else:
        prompts = [prompt for prompt in _read(name) if split is None or prompt.split == split]
    if limit is not None:
        prompts = prompts[: max(limit, 0)]
    if not prompts:
        raise UserError(f"The suite {name!r} has no prompts for split {split!r} and limit {limit}.")
    return prompts


def load_showcase() -> list[Prompt]:
    """The prompts of the page's examples, in the order in which to show them."""
    return _read(SHOWCASE)


def _read(name: str) -> list[Prompt]:
    path = FOLDER / f"{name}.jsonl"
    if name not in (*SUITES, SHOWCASE) or not path.is_file():
        raise UserError(f"There is no prompt suite {name!r}. Suites: {', '.join((*SUITES, SHOWCASE))}, all.")
    with path.open(encoding="utf-8") as file:
        return [_parse(line, path, number) for number, line in enumerate(file, 1) if line.strip()]


def _parse(line: str, path: Path, number: int) -> Prompt:
    try:
        fields = json.loads(line)
        return Prompt(**fields | {"lanes": tuple(fields.get("lanes", ()))})
    except (ValueError, TypeError) as error:
        raise UserError(
            f"{path.name}, line {number} is not a prompt ({error}). Mend it or rebuild the suites."
        ) from error
