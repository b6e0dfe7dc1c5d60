"""The interface of a backend for its users (page, command line, server)."""

from __future__ import annotations

import re
import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ..analysis.tuning import chosen_here, curves_here, format_here
from ..errors import UserError
from ..lookahead.fitted import FOLDER as POLICIES
from ..lookahead.lanes import parse_lane
from ..records.events import Event, RawEvents, guarded, new_id, numbered
from ..records.machine import has_gpu, memory_bytes
from ..records.pairs import PairDescription, describe_pairs
from ..records.request import CompareRequest, Grant, check_granted, check_length, check_request


def pairs_here() -> list[PairDescription]:
    """All named pairs, with the kept cost curves of this machine and what they chose for the drafts' policies."""
    pairs = describe_pairs()
    drafts = [(f"{pair.name}/{draft}", source) for pair in pairs for draft, source in pair.drafts.items()]
    kept = curves_here({name: (name, source) for name, source in drafts})
    return [_as_large(_with_costs(pair, kept)) for pair in pairs]


def _with_costs(pair: PairDescription, kept: dict[str, dict[str, Any]]) -> PairDescription:
    """``pair``, which may be one of all callers' presets, with what is kept of its costs on this machine.

    ``kept``: the curves by "pair/draft".
    """
    best_sl: dict[str, int] = {}
    said: dict[str, list[str]] = {}
    for draft in (name for name, fitted in pair.fitted.items() if fitted):
        chosen = chosen_here(Path(pair.drafts[draft]) / POLICIES)
        if chosen is not None:
            best_sl[draft], said[draft] = chosen.static, [chosen.sentence()]
    names = {draft: f"{pair.name}/{draft}" for draft in pair.drafts}
    curves = {draft: kept[name] for draft, name in names.items() if name in kept}
    for draft, found in curves.items():
        if why := format_here(found["target"]):
            said.setdefault(draft, []).append(why)
    set_here = {draft: " ".join(sentences) for draft, sentences in said.items()}
    return replace(pair, best_sl=best_sl, set_here=set_here, curves=curves)


def _as_large(pair: PairDescription) -> PairDescription:
    """``pair``, not to be loaded if its target's 16-bit weights alone exceed the memory of a machine without a GPU."""
    memory, need = memory_bytes(), 2e9 * pair.billions
    if not pair.loadable or has_gpu() or not memory or need <= memory:
        return pair
    reason = f"Its target's weights take {need / 1e9:.0f} GB, and this machine has {memory / 1e9:.0f} GB of memory."
    return replace(pair, loadable=False, reason=reason)


CLOSED = "The program was closed before the run was done: start it and the run again."
SHARED = "Evaluations take minutes and this machine is shared: run them on your own machine."


class Backend(ABC):
    """Runs comparisons and other long jobs, here or elsewhere.

    The streams never raise. They begin with ``queued`` unless the request is refused immediately, are numbered from 0
    without gaps, contain JSON-ready data, and end with exactly one of ``finished``, ``cancelled`` and ``failed`` (a
    sentence). Setting ``cancel`` ends the run between two iterations; closing the stream does so as well and frees its
    place in the queue. What cannot run, or what ``grant`` does not allow, is refused before it enters the queue.
    """

    only_comparisons = ""  # the sentence that refuses other jobs; "": they run, too
    _grant = Grant()  # the most that a job may request

    def compare(self, request: CompareRequest, cancel: threading.Event, run_id: str | None = None) -> Iterator[Event]:
        """Decodes one prompt with several lanes: a job whose options are the settings of ``request``."""
        return self.run_job("compare", asdict(request), cancel, run_id)

    def run_job(
        self, kind: str, options: dict[str, Any], cancel: threading.Event, run_id: str | None = None
    ) -> Iterator[Event]:
        """A job: "compare", whose ``finished`` carries ``{"run": ...}``, or the long one "evaluate":
        ``progress`` events, then ``finished`` with ``{"result": ...}``.
        """
        run = run_id or new_id()
        return numbered(run, guarded(self._checked(kind, options, cancel, run)))

    def _checked(self, kind: str, options: dict[str, Any], cancel: threading.Event, run: str) -> RawEvents:
        self.check_job(kind, options)
        yield from self._run(kind, options, cancel, run)

    def check_job(self, kind: str, options: dict[str, Any]) -> None:
        """Raises UserError with a sentence for a job that cannot run here."""
        if kind == "compare":
            self._check(CompareRequest(**options))
        elif self.only_comparisons or not self._grant.long_jobs:
            raise UserError(self.only_comparisons or SHARED)
        elif kind == "evaluate":
            from ..evaluation.options import options_from_dict

            check_length(options_from_dict(options).max_new_tokens, self._grant)

    def _check(self, request: CompareRequest) -> None:
        """Raises UserError with a sentence for a comparison that cannot run here."""
        check_request(request)
        check_granted(request, self._grant)
        for lane in request.lanes:
            parse_lane(lane)

    @abstractmethod
    def _run(self, kind: str, options: dict[str, Any], cancel: threading.Event, run: str) -> RawEvents:
        """The events of an allowed job, from ``queued`` on to a last one, at which this is closed; an exception becomes
        the last one (see :func:`~decoding.records.events.guarded`).
        """

    def pairs(self) -> list[PairDescription]:
        """The pairs that can be named."""
        return describe_pairs()

    @abstractmethod
    def status(self) -> str:
        """One sentence on the backend and its current activity."""

    def prepare(self) -> None:
        """A run will soon be requested: start whatever can be loaded and measured before it, if anything."""

    def close(self) -> None:
        """Ends what this backend started."""


def check_token(token: str) -> str:
    """``token`` unchanged. Raises UserError if no HTTP header can carry it. An empty one means that none is
    required.
    """
    if not re.fullmatch(r"[!-~]*", token):
        raise UserError("A token may contain only ASCII letters, digits and punctuation, no spaces: choose another.")
    return token


def check_address(host: str, port: int) -> None:
    """Raises UserError if nothing can listen at ``host``:``port``, or for port 0 at any port of ``host``."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        where = f"{host}:{port}" if port else host
        raise UserError(
            f"Cannot listen on {where}: {error.strerror or error}. Choose another --port or --host."
        ) from error
