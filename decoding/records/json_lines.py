"""JSON Lines files from which interrupted work resumes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from ..errors import UserError, explained
from ..files import locked, write_whole


class Lines:
    """One JSON Lines file whose first line says under which ``key`` it was made.

    A last line that a kill cut short is dropped. Where the key differs, ``stale`` decides: "refuse" raises
    UserError, "restart" begins a new file (for data that can be computed again from other files). Raises UserError
    where the file cannot be read or written, too. Several processes may add to one file.
    """

    def __init__(self, path: Path, key: dict[str, Any], stale: str = "refuse") -> None:
        self.path = path
        self.key = json.loads(json.dumps(key))
        with explained(f"Cannot use {path}"):
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.exists() and not path.is_file():  # a device is read without end
                raise UserError(f"{path} is no regular file: name another.")
            with path.open("ab") as file, locked(file):
                self.records = self._open(stale)
            self._file = path.open("a", encoding="utf-8")

    def add(self, record: dict[str, Any]) -> None:
        """Write one record through to the file. Raises UserError where that fails."""
        with explained(f"Cannot write {self.path.name}"), locked(self._file):
            self._file.write(json.dumps(record, allow_nan=False, separators=(",", ":")) + "\n")
            self._file.flush()
        self.records.append(record)

    def close(self) -> None:
        self._file.close()

    def _open(self, stale: str) -> list[dict[str, Any]]:
        lines, begun = read_lines(self.path), self.path.stat().st_size > 0
        if begun and lines[:1] != [self.key]:
            if stale == "refuse":
                key = lines[0] if lines else {}
                different = ", ".join(name for name in self.key if key.get(name) != self.key[name]) or "version"
                raise UserError(
                    f"{self.path} contains other work (different {different}): choose another place, or delete it."
                )
            lines = []
        self._mend([self.key, *lines[1:]])
        return lines[1:]

    def _mend(self, records: list[dict[str, Any]]) -> None:
        """Makes the file consist of ``records``, in place where it begins with them: another process may add to it."""
        whole, found = "".join(json.dumps(one, separators=(",", ":")) + "\n" for one in records), self.path.read_bytes()
        if not found:
            self.path.write_text(whole, encoding="utf-8")
        elif found.startswith(whole.encode()):
            os.truncate(self.path, len(whole.encode()))
        else:
            write_whole(self.path, whole)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a file, the key first; [] if there is no file. Raises OSError."""
    if not path.exists():
        return []
    found = []
    for line in path.read_text(encoding="utf-8", errors="replace").split("\n"):
        try:
            record = json.loads(line)
        except ValueError:
            break  # cut short: what follows, if anything, cannot be trusted
        if not isinstance(record, dict):
            break
        found.append(record)
    return found
