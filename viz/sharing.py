"""Links that bring a run along: small runs within the link itself, larger ones kept here until a date."""

from __future__ import annotations

import base64
import zlib
from datetime import date, datetime, timedelta, timezone
from pathlib import Path

from decoding.files import cache_folder, write_whole
from decoding.records.run_file import run_to_json
from decoding.records.trace import Run

MAX_FRAGMENT_CHARS = 32_000  # all browsers open such links, and most programs send them whole
DAYS = 30  # for which a larger run is kept
MAX_BYTES = 400 * 2**20  # of all of them; the oldest go first


class SharedRuns:
    """Run files that links name. Unlike the page's other runs they are still there when it is started again."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder or cache_folder() / "shared-runs"

    def path(self, identifier: str) -> Path | None:
        """The file of that run; None if it is not shared, or no longer."""
        path = self._folder / f"{identifier}.json"
        return path if path.is_file() and _age(path) < timedelta(days=DAYS) else None

    def keep(self, run: Run) -> date:
        """Keeps ``run``; returns the day until which. Raises OSError."""
        path = self._folder / f"{run.id}.json"
        write_whole(path, run_to_json(run))
        self._tidy()
        return (datetime.now(timezone.utc) + timedelta(days=DAYS)).date()

    def _tidy(self) -> None:
        files = sorted(self._folder.glob("*.json"), key=_age)
        total = 0
        for path in files:
            total += path.stat().st_size
            if total > MAX_BYTES or _age(path) >= timedelta(days=DAYS):
                path.unlink(missing_ok=True)


def fragment(run: Run) -> str:
    """``run`` as the part of a link after "#", which browsers do not send to servers; "" if it is too long for one."""
    packed = base64.urlsafe_b64encode(zlib.compress(run_to_json(run).encode(), 9)).decode().rstrip("=")
    return f"#run={packed}" if len(packed) <= MAX_FRAGMENT_CHARS else ""


def _age(path: Path) -> timedelta:
    try:
        written = path.stat().st_mtime
    except FileNotFoundError:  # another process has just removed it
        return timedelta.max
    return datetime.now(timezone.utc) - datetime.fromtimestamp(written, timezone.utc)
