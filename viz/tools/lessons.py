"""Records the runs that lessons need and the showcase does not contain: ``python -m viz.tools.lessons``.

Then (with ``--check``: only) it prints which lessons are faulty and which recordings that they name are missing. That
each recording still shows what its lesson speaks of is tested (tests/browser/test_page_lessons.py). It needs a quiet
machine.
"""

from __future__ import annotations

import argparse
import sys
import threading
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from decoding.backends.base import Backend
from decoding.backends.jobs import FittedJobs
from decoding.backends.local import LocalBackend
from decoding.backends.recorded import RECORDINGS, order_index, read_index, store_recording
from decoding.errors import UserError
from decoding.records.pairs import PairDescription, find_pair
from decoding.records.request import CompareRequest
from decoding.records.run_file import run_of_events
from decoding.records.suites import Prompt

from ..learn.lessons import OWN_RECORDINGS, lesson_faults, recordings_of, shipped_lessons

STORY = "Tell me a short story about a fox and the moon."
PACKING = "What should I pack for a weekend in the mountains?"
DICE: dict[str, Any] = {"temperature": 0.8, "max_new_tokens": 40, "repeats": 3, "seed": 1}


@dataclass(frozen=True)
class Needed:
    """A recording: its id, what the page says of it, and how it is made."""

    id: str
    title: str
    shows: str
    settings: dict[str, Any]


NEEDED = (
    Needed(
        "lesson-drafts",
        "Two drafts",
        "A small draft and a larger, slower one on the same text.",
        {
            "prompt": PACKING,
            "lanes": ["autoregressive", "static:5", "early-exit/static:5", "oracle"],
            "max_new_tokens": 40,
            "repeats": 5,
        },
    ),
    Needed(
        "lesson-tree",
        "A tree of guesses",
        "Several guesses for one place, beside a chain of as many guesses.",
        {
            "prompt": PACKING,
            "lanes": ["autoregressive", "static:3", "static:8", "tree:8"],
            "max_new_tokens": 40,
            "repeats": 3,
        },
    ),
    Needed(
        "lesson-states",
        "What the draft may read",
        "Drafts that also read what the target has computed, and one of the same size that does not.",
        {
            "prompt": PACKING,
            "lanes": ["autoregressive", "one-layer/static:3", "feature/static:3", "heads/static:3", "block/static:4"],
            "max_new_tokens": 64,
            "repeats": 5,
        },
    ),
    Needed(
        "lesson-sampling",
        "With dice: speculative sampling",
        "Temperature 0.8: a guess is kept with probability min(1, p/q).",
        {"prompt": STORY, "rule": "sampling", "lanes": ["autoregressive", "static:5", "confidence:0.4"], **DICE},
    ),
    Needed(
        "lesson-coupling",
        "With dice: coupling",
        "Temperature 0.8, the same random numbers for both models: all lanes write the same text.",
        {
            "prompt": STORY,
            "rule": "coupling",
            "lanes": ["autoregressive", "static:5", "confidence:0.4", "oracle"],
            **DICE,
        },
    ),
)


def prompt_of(needed: Needed) -> Prompt:
    """What a recording's entry says of it."""
    text = needed.settings["prompt"]
    return Prompt(needed.id, "lessons", "showcase", text, "", needed.title, needed.shows)


def record(needed: Needed, pair: PairDescription, backend: Backend, folder: Path) -> int:
    """Makes and keeps the recording; returns its bytes. Raises UserError if the run fails: the old one then stays."""
    request = CompareRequest(pair=pair.name, **needed.settings)
    run = run_of_events(backend.compare(request, threading.Event(), needed.id))
    if run is None:
        raise UserError(f"{needed.id}: the run was not finished.")
    return store_recording(replace(run, id=needed.id), prompt_of(needed), pair, folder)


def missing_recordings(folder: Path, lessons: tuple[dict[str, Any], ...]) -> list[str]:
    """A sentence for each recording that a lesson names and that neither the showcase nor ``folder`` has."""
    there = {info.id for place in (RECORDINGS, folder) for info in read_index(place)}
    return [
        f"The lesson {lesson['id']} names the recording {name}, which is missing."
        for lesson in lessons
        for name in sorted(recordings_of(lesson) - there)
    ]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m viz.tools.lessons", description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="record nothing, only look for what is missing")
    parser.add_argument("--only", action="append", choices=[one.id for one in NEEDED], help="record only this one")
    parser.add_argument("--pair", default="", help="name of a pair (default: the default pair)")
    parser.add_argument("--folder", type=Path, default=OWN_RECORDINGS, help="the folder of the recordings")
    options = parser.parse_args()
    chosen = [] if options.check else [one for one in NEEDED if not options.only or one.id in options.only]
    try:
        with closing(LocalBackend(FittedJobs)) as backend:
            for needed in chosen:
                size = record(needed, find_pair(options.pair), backend, options.folder)
                print(f"{needed.id}: {size // 1000} kB", flush=True)
    except UserError as error:
        print(error, file=sys.stderr)
        return 1
    if chosen:
        order_index(options.folder, [prompt_of(one) for one in NEEDED])
    missing = [*lesson_faults(), *missing_recordings(options.folder, shipped_lessons())]
    print("\n".join(missing) or "Every lesson finds what it needs.")
    return int(bool(missing))


if __name__ == "__main__":
    sys.exit(main())
