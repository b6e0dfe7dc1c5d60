"""The interface of a backend for its users (page, command line, server)."""

from __future__ import annotations

import re
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from ..analysis.tuning import chosen_here
from ..errors import UserError
from ..lookahead.fitted import FOLDER as POLICIES
from ..lookahead.lanes import parse_lane
from ..records.events import Event, Numbering
from ..records.pairs import PairDescription, describe_pairs
from ..records.request import CompareRequest, Grant, check_granted, check_long_job, check_request


def pairs_here() -> list[PairDescription]:
    """All named pairs, with what this machine's costs chose for the policies of their drafts."""
    pairs = describe_pairs()
    for pair in pairs:
        for draft in (name for name, fitted in pair.fitted.items() if fitted):
            chosen = chosen_here(Path(pair.drafts[draft]) / POLICIES)
            if chosen is not None:
                pair.best_sl[draft], pair.set_here[draft] = chosen.static, chosen.sentence()
    return pairs


CLOSED = "The program was closed before the run was done: start it and the run again."


class Backend(Protocol):
    """Runs comparisons and other long jobs, here or elsewhere.

    The streams never raise for bad input or a broken machine. They begin with ``queued`` unless the request is refused
    immediately, are numbered from 0 without gaps, contain JSON-ready data, and end with exactly one of ``finished``,
    ``cancelled`` and ``failed`` (a sentence). Setting ``cancel`` ends the run between two iterations; closing the
    stream does so as well and frees its place in the queue.
    """

    name: str
    live: bool  # False: only recorded runs can be shown

    def compare(self, request: CompareRequest, cancel: threading.Event, run_id: str | None = None) -> Iterator[Event]:
        """Decodes one prompt with several lanes; ``finished`` carries ``{"run": ...}``."""
        ...

    def run_job(
        self, kind: str, options: dict[str, Any], cancel: threading.Event, run_id: str | None = None
    ) -> Iterator[Event]:
        """Another long job ("evaluate", "drafts"): ``progress`` events, then ``finished`` with ``{"result": ...}``."""
        ...

    def prepare(self) -> None:
        """A run will soon be requested: start whatever can be loaded and measured before it, if anything."""

    def pairs(self) -> list[PairDescription]: ...

    def status(self) -> str:
        """One sentence on the backend and its current activity."""
        ...

    def close(self) -> None: ...


def check_comparison(request: CompareRequest, grant: Grant) -> CompareRequest:
    """Raises UserError with a sentence for a request that cannot run, or that ``grant`` does not allow."""
    check_granted(check_request(request), grant)
    for lane in request.lanes:
        parse_lane(lane)
    return request


class GrantedBackend(ABC):
    """A backend that runs what ``grant`` allows; the rest is refused with a sentence before it enters the queue."""

    def __init__(self, grant: Grant) -> None:
        self._grant = grant

    def compare(self, request: CompareRequest, cancel: threading.Event, run_id: str | None = None) -> Iterator[Event]:
        try:
            options = asdict(check_comparison(request, self._grant))
        except UserError as error:
            yield Numbering(run_id)("failed", message=str(error))
            return
        yield from self._run("compare", options, cancel, run_id)

    def run_job(
        self, kind: str, options: dict[str, Any], cancel: threading.Event, run_id: str | None = None
    ) -> Iterator[Event]:
        try:
            check_long_job(self._grant)
        except UserError as error:
            yield Numbering(run_id)("failed", message=str(error))
            return
        yield from self._run(kind, options, cancel, run_id)

    @abstractmethod
    def _run(self, kind: str, options: dict[str, Any], cancel: threading.Event, run_id: str | None) -> Iterator[Event]:
        """The events of a job that is allowed, from ``queued`` on."""


def check_token(token: str) -> str:
    """``token`` unchanged. Raises UserError if no HTTP header can carry it. An empty one means that none is
    required.
    """
    if not re.fullmatch(r"[!-~]*", token):
        raise UserError("A token may contain only ASCII letters, digits and punctuation, no spaces: choose another.")
    return token
