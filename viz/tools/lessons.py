"""Records the runs that lessons need and the showcase does not contain: ``python -m viz.tools.lessons``.

Each is tried with a few seeds or prompts until it shows what its lesson needs; if none does, it is reported, its old
recording stays, and the exit status is 1. Then (with ``--check``: only) it prints what a lesson needs and no
recording shows. It needs a quiet machine.
"""

from __future__ import annotations

import argparse
import sys
import threading
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from decoding.backends.base import Backend
from decoding.backends.jobs import FittedJobs
from decoding.backends.local import LocalBackend
from decoding.backends.recorded import RecordedBackend, order_index, store_recording
from decoding.errors import UserError
from decoding.records.pairs import PairDescription, find_pair
from decoding.records.request import CompareRequest
from decoding.records.run_file import run_of_events
from decoding.records.suites import Prompt
from decoding.records.trace import Run

from ..learn.lessons import OWN_RECORDINGS, lesson_faults, shipped_lessons
from ..learn.roles import ROLES, missing_sights, readable_runs, shows, wanted_by

STORY = "Tell me a short story about a fox and the moon."
PACKING = "What should I pack for a weekend in the mountains?"
TEA = "How do I make a cup of tea? Give me numbered steps."
DICE: dict[str, Any] = {"temperature": 0.8, "max_new_tokens": 40, "repeats": 3}
SEEDS = range(1, 6)


@dataclass(frozen=True)
class Needed:
    """A recording: its name, the kind that it must be of, and how it is made; ``tries`` replace settings in turn."""

    id: str
    role: str
    title: str
    shows: str
    settings: dict[str, Any]
    tries: list[dict[str, Any]] = field(default_factory=lambda: [{}])


def prompts(*texts: str) -> list[dict[str, Any]]:
    return [{"prompt": text} for text in texts]


NEEDED = (
    Needed(
        "lesson-drafts",
        "drafts",
        "Two drafts",
        "A small draft and a larger, slower one on the same text.",
        {
            "lanes": ["autoregressive", "static:5", "early-exit/static:5", "oracle"],
            "max_new_tokens": 40,
            "repeats": 5,
        },
        prompts(PACKING, TEA),
    ),
    Needed(
        "lesson-tree",
        "tree",
        "A tree of guesses",
        "Several guesses for one place, beside a chain of as many guesses.",
        {"lanes": ["autoregressive", "static:3", "static:8", "tree:8"], "max_new_tokens": 40, "repeats": 3},
        prompts(PACKING, STORY, TEA),
    ),
    Needed(
        "lesson-states",
        "states",
        "What the draft may read",
        "Drafts that also read what the target has computed, and one of the same size that does not.",
        {
            "lanes": ["autoregressive", "one-layer/static:3", "feature/static:3", "heads/static:3", "block/static:4"],
            "max_new_tokens": 64,
            "repeats": 5,
        },
        prompts(PACKING, TEA, STORY),
    ),
    Needed(
        "lesson-sampling",
        "sampling",
        "With dice: speculative sampling",
        "Temperature 0.8: a guess is kept with probability min(1, p/q).",
        {"prompt": STORY, "rule": "sampling", "lanes": ["autoregressive", "static:5", "confidence:0.4"], **DICE},
        [{"seed": seed} for seed in SEEDS],
    ),
    Needed(
        "lesson-coupling",
        "coupling",
        "With dice: coupling",
        "Temperature 0.8, the same random numbers for both models: all lanes write the same text.",
        {
            "prompt": STORY,
            "rule": "coupling",
            "lanes": ["autoregressive", "static:5", "confidence:0.4", "oracle"],
            **DICE,
        },
        [{"seed": seed} for seed in SEEDS],
    ),
)


def requests_for(needed: Needed, pair: str) -> list[CompareRequest]:
    """The comparisons to try, in this order."""
    return [CompareRequest(pair=pair, **(needed.settings | change)) for change in needed.tries]


def record(needed: Needed, pair: PairDescription, backend: Backend, folder: Path, lessons: tuple[dict, ...]) -> str:
    """Make and keep the first recording that shows what the lessons need; a sentence on it. Raises UserError."""
    wanted = wanted_by(lessons).get(needed.role, set())
    for request in requests_for(needed, pair.name):
        run = run_to_the_end(backend, request, needed.id)
        if ROLES[needed.role](run) and all(shows(run, *sight) for sight in wanted):
            prompt = Prompt(needed.id, "lessons", "showcase", request.prompt, "", needed.title, needed.shows)
            size = store_recording(run, prompt, pair, folder)
            return f"{needed.id}: {size // 1000} kB, seed {request.seed}, {request.prompt!r}"
    raise UserError(f"{needed.id}: none of {len(needed.tries)} runs shows what the lessons need; nothing was changed.")


def run_to_the_end(backend: Backend, request: CompareRequest, identifier: str) -> Run:
    """The finished run of ``request``, under this id. Raises UserError if it fails."""
    run = run_of_events(backend.compare(request, threading.Event(), identifier))
    if run is None:
        raise UserError(f"{identifier}: the run was not finished.")
    return replace(run, id=identifier)


def check(folder: Path, lessons: tuple[dict, ...]) -> list[str]:
    """What lessons need and neither the showcase nor ``folder`` shows, as sentences."""
    return missing_sights([*readable_runs(RecordedBackend()), *readable_runs(RecordedBackend(folder))], lessons)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m viz.tools.lessons", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--check", action="store_true", help="record nothing, only compare the lessons with the recordings"
    )
    parser.add_argument("--only", action="append", choices=[one.id for one in NEEDED], help="record only this one")
    parser.add_argument("--pair", default="", help="name of a pair (default: the default pair)")
    parser.add_argument("--folder", type=Path, default=OWN_RECORDINGS, help="the folder of the recordings")
    options = parser.parse_args()
    lessons, failed = shipped_lessons(), False
    if not options.check:
        pair = find_pair(options.pair)
        with closing(LocalBackend(FittedJobs)) as backend:
            for needed in NEEDED:
                if options.only and needed.id not in options.only:
                    continue
                try:
                    print(record(needed, pair, backend, options.folder, lessons), flush=True)
                except UserError as error:
                    print(error, file=sys.stderr, flush=True)
                    failed = True
        order_index(options.folder, [Prompt(one.id, "lessons", "showcase", "", "") for one in NEEDED])
    missing = [*lesson_faults(), *check(options.folder, lessons)]
    print("\n".join(missing) or "Every lesson finds what it needs.")
    return int(failed or bool(missing))


if __name__ == "__main__":
    sys.exit(main())
