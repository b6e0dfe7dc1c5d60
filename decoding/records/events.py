"""The events of a running comparison: numbered plain data."""

from __future__ import annotations

import json
import logging
import re
import secrets
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

from ..errors import Cancelled, UserError, sentence_of

log = logging.getLogger(__name__)

IDENTIFIER = re.compile(r"[A-Za-z0-9_-]{1,64}")  # of a run

Kind = Literal[
    "queued",  # {place}: how many comparisons are ahead of this one
    "started",  # {settings, pair, lanes: [lane string]}
    "progress",  # {stage, message, fraction | None}: loading, measuring, warming up, lane, chain
    "lane_started",  # {lane: index, repeat}
    "iterations",  # {lane, repeat, first: iteration index, items: [see live_iteration]}
    "lane_finished",  # {lane, repeat, decode_s}
    "replay",  # {run: the run as far as it is decoded, timings: repeats so far, of: all repeats}
    "finished",  # {run: the whole run as JSON-ready dict}; of other jobs {result: dict}
    "cancelled",  # {}
    "failed",  # {message}: a sentence for the user
    "heartbeat",  # {}: only sent between machines; not numbered
]
LAST_KINDS = ("finished", "cancelled", "failed")
NO_END = "The run ended without a result. Start it again; the server's log may have the reason."
RawEvents = Generator[tuple[Kind, dict[str, Any]], None, None]  # a job's events before they are numbered


@dataclass(slots=True)
class Event:
    """One event of the comparison ``run``; ``seq`` counts from 0 without gaps."""

    run: Annotated[str, Field(pattern=f"^{IDENTIFIER.pattern}$")]
    seq: Annotated[int, Field(ge=0)]
    kind: Kind
    data: dict[str, Any] = field(default_factory=dict)

    @property
    def is_last(self) -> bool:
        return self.kind in LAST_KINDS


def new_id() -> str:
    """An unguessable run id."""
    return secrets.token_hex(8)


def numbered(run: str, events: RawEvents) -> Iterator[Event]:
    """``events`` as those of ``run``; closing the one iterator closes the other."""
    with closing(events):
        for seq, (kind, data) in enumerate(events):
            yield Event(run, seq, kind, data)


def guarded(events: RawEvents, broken: str = "") -> RawEvents:
    """``events`` of a job to a last one, which there always is: an exception becomes ``failed``, a stop ``cancelled``.

    ``broken``: the sentence for a fault of the program, by default one that names it.
    """
    try:
        with closing(events):
            for kind, data in events:
                yield kind, data
                if kind in LAST_KINDS:
                    return
        log.error("a job ended without a last event")
        yield "failed", {"message": NO_END}
    except Cancelled:
        yield "cancelled", {}
    except UserError as error:
        yield "failed", {"message": str(error)}
    except Exception as error:  # the boundary to the user: every fault becomes a sentence here
        log.exception("a job failed")
        yield "failed", {"message": broken or sentence_of(error)}


def whole(run: str, events: Iterable[Event], broken: str = "") -> Iterator[Event]:
    """``events`` of ``run``, which end with a sentence even if they raise or lack a last one; see :func:`guarded`."""
    return numbered(run, guarded(((event.kind, event.data) for event in events), broken))


def event_to_json(event: Event) -> str:
    """One line of JSON without newline; ids that are keys become strings."""
    # Not asdict, which would copy a whole run.
    fields = {"run": event.run, "seq": event.seq, "kind": event.kind, "data": event.data}
    return json.dumps(fields, ensure_ascii=True, allow_nan=False, separators=(",", ":"))


def event_from_json(line: str | bytes) -> Event:
    """Reads and checks one line. Raises UserError if it is not an event."""
    try:
        return _ADAPTER.validate_json(line)
    except (ValidationError, RecursionError) as error:
        raise UserError("The other side sent a line that is not an event of a comparison.") from error


_ADAPTER = TypeAdapter(Event)
