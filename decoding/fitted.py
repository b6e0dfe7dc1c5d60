"""The fitted heads that belong to a recorded run, where its pair is installed here. Loads no model."""

from __future__ import annotations

from pathlib import Path

from .lookahead.heads import FOLDER, Head, load_heads
from .pairs import find_pair
from .trace import Run


def heads_of(run: Run, draft: str | None = None) -> dict[str, Head]:
    """The heads of ``draft`` (None: the pair's own) by policy name; {} where the draft is not installed.

    Those fitted for other weights than the run's are left out. Raises UserError where there is no such pair.
    """
    name = draft or run.pair.default_draft
    known, pair = run.pair.drafts.get(name), find_pair(run.pair.name)
    if known is None or name not in pair.drafts:
        return {}
    return load_heads(Path(pair.drafts[name]) / FOLDER, run.pair.target.fingerprint, known.fingerprint)
