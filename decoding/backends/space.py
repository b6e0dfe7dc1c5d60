"""Comparisons on a running Speculoscope Space (or any such page), through its ``compare`` endpoint."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ..errors import UserError
from ..records.events import RawEvents
from ..records.request import SETTINGS, CompareRequest, check_request
from ..records.run_file import run_from_dict
from .base import Backend
from .stream import apart

if TYPE_CHECKING:
    from gradio_client import Client
    from gradio_client.client import Job

    from ..records.pairs import PairDescription

log = logging.getLogger(__name__)

POLL_S = 0.1
_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")
QUOTA = re.compile(r"quota|GPU (duration|task)|credits", re.IGNORECASE)


class SpaceBackend(Backend):
    """Runs each comparison through a separate client, so that the Space notices when it ends.

    ``place``: OWNER/NAME of a Space, or the address of a page. The user's Hub token (``hf auth login``) is sent, so
    that a ZeroGPU Space charges the user's quota. Raises UserError for an invalid place.
    """

    only_comparisons = "A Space only runs comparisons: evaluate on your own machine."

    def __init__(self, place: str) -> None:
        if not (_NAME.fullmatch(place) or place.startswith(("http://", "https://"))):
            raise UserError(f"'{place[:100]}' is not a Space: write space:OWNER/NAME, as in its address on the Hub.")
        self._place = place
        self._closed = False

    def _check(self, request: CompareRequest) -> None:
        carried(check_request(request))  # its lanes are checked there: a Space may know other policies

    def _run(self, kind: str, options: dict[str, Any], cancel: threading.Event, run: str) -> RawEvents:
        """The Space's events; a last one is added here if the Space leaves it out."""
        yield "queued", {"place": 0}
        arguments, gone = carried(CompareRequest(**options)), threading.Event()
        try:
            for came in apart(lambda: self._answers(arguments, gone), "space-reader", POLL_S):
                if cancel.is_set() or self._closed:
                    yield "cancelled", {}
                    return
                yield from (_in_own_form(event, run) for event in came)
        except Exception as error:  # every exception of the client's libraries becomes a sentence
            yield "failed", {"message": self._sentence(error)}
        finally:
            gone.set()

    def _answers(self, arguments: dict[str, Any], gone: threading.Event) -> Iterator[Any]:
        """What the Space's endpoint yields until ``gone`` is set; gradio_client blocks until it answers."""
        job = self._connect().submit(**arguments, api_name="/compare")
        threading.Thread(target=_cancel_when, args=(job, gone), daemon=True).start()
        try:
            yield from job
        finally:
            gone.set()
        raise job.exception() or UserError("The Space ended the run without a result: start it again.")

    def pairs(self) -> list[PairDescription]:
        return []  # the endpoint does not list its pairs; its default pair has no name here

    def status(self) -> str:
        return f"Runs on the Space {self._place}."

    def close(self) -> None:
        self._closed = True

    def _connect(self) -> Client:
        from gradio_client import Client

        return Client(self._place, verbose=False)

    def _sentence(self, error: Exception) -> str:
        if isinstance(error, UserError):
            return str(error)
        kind, message = type(error).__name__, re.sub(r"<[^>]*>", "", str(error)).strip()
        if QUOTA.search(message):
            return f"{self._place} has no GPU for this run: {message[:200]}. You can still play its recorded runs."
        if kind in ("TooManyRequestsError", "QueueError"):
            return f"{self._place} has too many visitors at the moment: try again soon."
        if "invalid state" in message or "PAUSED" in message or "SLEEPING" in message:
            return f"{self._place} is asleep or has stopped: open it in a browser, wait until it runs, and try again."
        if kind == "RepositoryNotFoundError":
            return f"There is no Space {self._place} (or it is private and you are not logged in): check its spelling."
        if kind in ("AppError", "InvalidAPIEndpointError") or isinstance(error, KeyError | TypeError):
            return f"{self._place} answered, but not as a Speculoscope of this version does: is it the right Space?"
        log.warning("%s cannot be used: %s: %s", self._place, kind, message)
        return f"{self._place} does not answer ({kind}): check its name and the network, and try again."


def carried(request: CompareRequest) -> dict[str, Any]:
    """``request`` as arguments of the endpoint: the main settings, and those that are not as usual, since a Space of
    another version may lack some. Raises UserError for a setting that no endpoint has.
    """
    arguments = {}
    for name, setting in SETTINGS.items():
        value = getattr(request, name)
        if not setting.endpoint and value != setting.default:
            raise UserError(f"A Space has no setting {name.replace('_', ' ')}: keep its default, or run it here.")
        if setting.tools or value != setting.default:
            arguments[name] = value if setting.kind == "list" else setting.written(value)
    return arguments


def _in_own_form(event: Any, run: str) -> tuple[Any, dict[str, Any]]:
    """The endpoint's event in a backend's form: iterations as a list, the run with its id here. Raises TypeError for
    what is no such event.
    """
    try:
        kind, data = event["kind"], dict(event["data"])
        if kind == "iterations":
            data["items"] = [data["items"][at] for at in sorted(data["items"], key=int)]
        if kind in ("replay", "finished"):
            data["run"] = {**data["run"], "id": run}
            run_from_dict(data["run"])
    except (KeyError, ValueError, AttributeError) as error:
        raise TypeError("no event of a comparison") from error
    return kind, data


def _cancel_when(job: Job, gone: threading.Event) -> None:
    gone.wait()
    with suppress(Exception):  # whatever the client's libraries raise of a Space that is gone
        if not job.done():
            job.cancel()
