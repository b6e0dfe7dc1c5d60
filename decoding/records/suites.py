"""Prompt suites: JSON Lines under ``prompts/``, one file per suite, each prompt in one split.

The suites of the small pair are ``code``, ``prose``, ``tests`` and ``structured`` (from files that
it was not trained on), with the splits ``train``, ``validation`` and ``test``; ``showcase`` has a few prompts that
look good on the page, and ``lessons`` those of the runs that lessons need besides. The papers' data sets are in the
cache folder after ``python -m decoding suites fetch``. Any other file there is a suite, too.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..files import cache_folder
from .request import is_whole_text

FOLDER = Path(__file__).resolve().parents[2] / "prompts"
SUITES = ("code", "prose", "tests", "structured")  # of the small pair, which continues text
CHAT = ("chat",)  # questions that the chat pair's target wrote
PICTURES = ("pictures",)  # questions about scenes
PAPERS = ("humaneval", "gsm8k", "mbpp", "mtbench")
SPLITS = ("train", "validation", "test")
SHOWCASE, SHOWCASE_CHAT = "showcase", "showcase-chat"  # of the small pair; of the chat pair
LESSONS = "lessons"


@dataclass(frozen=True)
class Prompt:
    """One prompt. A line needs the prompt alone: every third one is for validation then, the others are for the test.

    ``source`` is the origin of its text; ``picture``, as in a request, stands before it. Only showcase
    prompts, and those of lessons, have the fields between.

    ``title`` and ``shows`` are for the page (what it is, what it shows); ``lanes`` are lane strings that demonstrate
    it, empty if the default lanes do; ``point`` is the lane that the first sentence is about, "" for the fastest;
    ``settings`` are further ones of the run that is recorded.
    """

    id: str
    suite: str
    split: str
    prompt: str
    source: str
    title: str = ""
    shows: str = ""
    lanes: tuple[str, ...] = ()
    point: str = ""
    picture: str = ""
    settings: dict[str, Any] = field(default_factory=dict, hash=False)


def load_suite(name: str, split: str | None = None, limit: int | None = None) -> list[Prompt]:
    """The prompts of a suite in the order of the file, of one split or of all, at most ``limit``.

    ``name`` is a suite, several joined by commas, or ``all`` (SUITES); several are interleaved, so that any ``limit``
    is mixed. Raises UserError for an unknown suite or split, for data sets that have not been fetched, or if no prompt
    is left.
    """
    if split is not None and split not in SPLITS:
        raise UserError(f"There is no split {split!r}. Splits: {', '.join(SPLITS)}.")
    names = suite_names(name)
    if missing := [one for one in names if one in PAPERS and not _file(one).is_file()]:
        which = f"set {missing[0]} has" if len(missing) == 1 else f"sets {', '.join(missing)} have"
        fetch = f"python -m decoding suites fetch {' '.join(missing)}"
        raise UserError(f"The data {which} not been fetched: run `{fetch}`.")
    if len(names) > 1:
        suites = [load_suite(suite, split) for suite in names]
        longest = max(map(len, suites))
        prompts = [suite[index] for index in range(longest) for suite in suites if index < len(suite)]
    else:
        prompts = [prompt for prompt in _read(names[0]) if split is None or prompt.split == split]
    if limit is not None:
        prompts = prompts[: max(limit, 0)]
    if not prompts:
        if limit == 0 or split is None:
            raise UserError(f"No prompt of the suite {name} is left: raise the limit, or add lines to its file.")
        raise UserError(f'The suite {name} has no prompts for {split}: give some lines of its file "split": "{split}".')
    return prompts


def suite_names(name: str) -> tuple[str, ...]:
    """The suites that ``name`` stands for: ``all``, ``papers`` (PAPERS), or names joined by commas.

    Raises UserError for an unknown one.
    """
    sets = {"all": SUITES, "papers": PAPERS}
    parts = [part.strip() for part in name.split(",")]
    for own in _own_suites():
        if own in (name, *parts) and (own in sets or own in PAPERS or own != own.strip() or "," in own):
            raise UserError(f"The suite {own[:40]!r} cannot be reached: its name means others. Rename {own}.jsonl.")
    names = tuple(dict.fromkeys(one for part in parts for one in sets.get(part, (part,))))
    known = *SUITES, *CHAT, *PICTURES, *PAPERS, SHOWCASE, SHOWCASE_CHAT, LESSONS, *_own_suites()
    for one in names:
        if one not in known:
            raise UserError(f"There is no prompt suite {one[:40]!r}. Suites: {', '.join(known)}, all, papers.")
    return names


def _own_suites() -> list[str]:
    """Files that somebody has added."""
    shipped = {*SUITES, *CHAT, *PICTURES, SHOWCASE, SHOWCASE_CHAT, LESSONS}
    return sorted(path.stem for path in FOLDER.glob("*.jsonl") if path.stem not in shipped)


def suites_for(name: str, chat: bool) -> str:
    """``name``; for a pair that chats (``chat``), ``all`` are the questions of CHAT."""
    return ",".join(",".join(CHAT) if chat and part.strip() == "all" else part for part in name.split(","))


def available_suites() -> tuple[str, ...]:
    """Suites whose prompts are on this machine."""
    own = _own_suites()
    known = dict.fromkeys((*SUITES, *CHAT, *PICTURES, *PAPERS, *own))
    return tuple(name for name in known if name in own or _file(name).is_file())


def fetched_file(name: str) -> Path:
    """The file of a fetched data set's prompts, in the cache folder."""
    return cache_folder() / "suites" / f"{name}.jsonl"


def load_showcase(chat: bool | None = None) -> list[Prompt]:
    """The prompts of the page's examples, in the order in which to show them.

    ``chat``: those of a pair that chats, or of one that continues text; None: both, the former first.
    """
    names = {True: [SHOWCASE_CHAT], False: [SHOWCASE], None: [SHOWCASE_CHAT, SHOWCASE]}[chat]
    return [prompt for name in names for prompt in _read(name)]


def load_lessons() -> list[Prompt]:
    """The prompts of the runs that lessons need and the showcase does not contain."""
    return _read(LESSONS)


def _read(name: str) -> list[Prompt]:
    path = _file(name)
    if not path.is_file():
        raise UserError(f"There is no prompt suite {name!r} in {FOLDER}. Rebuild the suites.")
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise UserError(f"{path.name} is not UTF-8 text: save it as UTF-8.") from error
    written = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    found = [
        _parse(line, path, number, "test" if count % 3 else "validation")
        for count, (number, line) in enumerate(written, 1)
    ]
    twice = [name for name, times in Counter(prompt.id for prompt in found).items() if times > 1]
    if twice:
        raise UserError(f"{path.name} has several prompts with the id {twice[0][:40]!r}: each needs its own.")
    return found


def _file(name: str) -> Path:
    return fetched_file(name) if name in PAPERS else FOLDER / f"{name}.jsonl"


def _parse(line: str, path: Path, number: int, split: str) -> Prompt:
    """The prompt in line ``number``, of ``split`` unless it names another. Raises UserError."""
    no_prompt = f'{path.name}, line {number} is not a prompt such as {{"prompt": "Hello"}}'
    try:
        given = json.loads(line)
    except ValueError as error:
        raise UserError(f"{no_prompt} ({error}).") from error
    if not isinstance(given, dict) or "prompt" not in given or not isinstance(given.get("lanes", []), list):
        raise UserError(f"{no_prompt}.")
    if unknown := given.keys() - {one.name for one in fields(Prompt)}:
        raise UserError(f"{no_prompt}: there is no field {min(unknown)[:40]!r}.")
    own: dict[str, Any] = {"id": f"{path.stem}-{number}", "suite": path.stem, "split": split}
    found = Prompt(**{"source": ""} | own | given | {"lanes": tuple(given.get("lanes", ()))})
    texts = (found.prompt, found.id, found.picture, found.suite, found.split)
    if not all(map(is_whole_text, texts)) or found.split not in (*SPLITS, SHOWCASE):
        raise UserError(
            f"{path.name}, line {number}: prompt, id, picture and suite must be texts of whole characters, "
            f"split one of {', '.join(SPLITS)}."
        )
    return found
