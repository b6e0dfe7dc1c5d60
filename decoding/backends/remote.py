"""Comparisons on another machine that runs ``python -m decoding serve``. Needs no torch here."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx
from pydantic import TypeAdapter, ValidationError

from ..errors import UserError
from ..records.events import Event, RawEvents, event_from_json
from ..records.pairs import PairDescription
from ..records.request import CompareRequest, check_request
from ..records.run_file import run_from_dict
from .base import CLOSED, Backend, check_token

log = logging.getLogger(__name__)

PATIENCE_S = 20.0  # how long a lost connection is retried
SILENCE_S = 10.0  # how long a server may be silent: several heartbeats
LONGEST_PAUSE_S = 2.0
OF_A_PROXY = (502, 503, 504)  # HTTP statuses with which a proxy says that it does not reach the server


class RemoteBackend(Backend):
    """Follows runs on a served backend; resumes after a broken connection without losing events.

    ``patience_s``: how long to retry without an answer. Raises UserError for an invalid address or token.
    """

    def __init__(
        self,
        url: str,
        token: str = "",
        patience_s: float = PATIENCE_S,
        silence_s: float = SILENCE_S,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._where = _host_and_port(url)
        self._patience_s = patience_s
        self._client = httpx.Client(
            base_url=url.rstrip("/"),
            headers={"Authorization": f"Bearer {check_token(token)}"} if token else {},
            timeout=httpx.Timeout(silence_s, connect=min(3.0, silence_s), pool=None),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=8),
            transport=transport,
            trust_env=False,
        )

    def _check(self, request: CompareRequest) -> None:
        check_request(request)  # its lanes are checked there: the other machine may have other policies

    def _run(self, kind: str, options: dict[str, Any], cancel: threading.Event, run: str) -> RawEvents:
        follower = _Follower(self._client, self._where, run, cancel, self._patience_s)
        try:
            yield from follower.follow({"kind": kind, "options": options})
        finally:
            follower.release()

    def pairs(self) -> list[PairDescription]:
        """The pairs of the other machine; empty while it cannot be reached (a run then explains why)."""
        try:
            response = self._client.get("/pairs", timeout=3.0)
            _check(response)
            return TypeAdapter(list[PairDescription]).validate_json(response.content)
        except httpx.TransportError:
            log.warning("%s", _unreachable(self._where))
        except UserError as error:
            log.warning("%s", error)
        except (ValidationError, httpx.DecodingError):
            log.warning("the list of pairs of %s cannot be read: is it of the same version?", self._where)
        return []

    def status(self) -> str:
        try:
            response = self._client.get("/health", timeout=3.0)
            _check(response)
            return f"Runs on {self._where}. {response.json()['backend']}"
        except (UserError, httpx.RemoteProtocolError, httpx.DecodingError, ValueError, KeyError, TypeError):
            return _no_backend(self._where)
        except httpx.TransportError:
            return _unreachable(self._where)

    def close(self) -> None:
        self._client.close()


class _Follower:
    """Follows one run: starts it once, reads its events in order, resumes after every break."""

    def __init__(self, client: httpx.Client, where: str, run: str, cancel: threading.Event, patience_s: float) -> None:
        self._client, self._where, self._run, self._cancel = client, where, run, cancel
        self._patience_s = patience_s
        self._at = 0  # number of the next event
        self._started = self._cancel_sent = False
        self._failing_since: float | None = None
        self._pause_s = 0.1

    def follow(self, body: dict[str, Any]) -> RawEvents:
        """The run's events. Raises UserError."""
        while True:
            try:
                if not self._started:
                    _check(self._client.put(f"/runs/{self._run}", json=body))
                    self._started = True
                yield from self._read()
            except httpx.TransportError as error:
                if self._cancel.is_set() or self._out_of_patience():
                    # not raised: the reader need not wait for the other machine, which is told afterwards
                    yield ("cancelled", {}) if self._cancel.is_set() else ("failed", {"message": self._lost(error)})
                    return
                self._cancel.wait(self._pause_s)
                self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
            except httpx.DecodingError as error:
                raise UserError(_no_backend(self._where)) from error
            except RuntimeError as error:
                if not self._client.is_closed:
                    raise
                raise UserError(CLOSED) from error

    def release(self) -> None:
        """Stops following the run: the server may cancel and forget it."""
        if self._started:
            try:
                self._client.delete(f"/runs/{self._run}", timeout=2.0)
            except (httpx.TransportError, RuntimeError):
                pass  # it is gone, or this backend was closed: the server's grace period ends the run

    def _read(self) -> RawEvents:
        """The server's events, as far as the connection lasts. An answer without any counts as a broken connection."""
        heard = False
        with self._client.stream("GET", f"/runs/{self._run}/events", params={"from": self._at}) as response:
            _check(response)
            for line in _whole_lines(response):
                self._failing_since, self._pause_s, heard = None, 0.1, True
                event = self._event(line)
                if event.kind != "heartbeat":
                    if (event.run, event.seq) != (self._run, self._at):
                        raise UserError(f"The results from {self._where} came out of order: start the run again.")
                    self._at += 1
                    yield event.kind, event.data
                if self._cancel.is_set() and not self._cancel_sent:
                    self._cancel_sent = True
                    self._client.delete(f"/runs/{self._run}")
        if not heard:
            raise httpx.RemoteProtocolError("an answer without events")

    def _event(self, line: str) -> Event:
        try:
            event = event_from_json(line)
            if event.kind == "finished" and "run" in event.data:
                run_from_dict(event.data["run"])
            return event
        except UserError as error:
            sentence = f"What {self._where} sent is not an event of a comparison: is it a backend of the same version?"
            raise UserError(sentence) from error

    def _out_of_patience(self) -> bool:
        now = time.monotonic()
        if self._failing_since is None:
            self._failing_since = now
        return now - self._failing_since >= self._patience_s

    def _lost(self, error: httpx.TransportError) -> str:
        if self._at == 0 and isinstance(error, httpx.RemoteProtocolError):
            return _no_backend(self._where)
        if not self._started:
            return _unreachable(self._where)
        return (
            f"The connection to {self._where} was lost and did not come back. The part that was decoded is shown; "
            "start the run again when the other machine answers."
        )


def _whole_lines(response: httpx.Response) -> Iterator[str]:
    """The lines of ``response``. Raises TransportError for a last one without its end: a proxy in between may finish
    an answer properly although what it passes on broke off, or end it with a sentence of its own.
    """
    rest = ""
    for text in response.iter_text():
        *lines, rest = (rest + text).split("\n")
        yield from lines
    if rest:
        raise httpx.RemoteProtocolError("an answer that ends within a line")


def _host_and_port(url: str) -> str:
    """The host and port of ``url``, for sentences. Raises UserError for an invalid address."""
    try:
        parts = urlsplit(url)
        scheme, host, port = parts.scheme, parts.hostname or "", parts.port
        host.encode("idna")  # this and the next line refuse addresses to which no connection is possible
        httpx.URL(url)
    except (ValueError, httpx.InvalidURL):
        scheme = ""
    if scheme not in ("http", "https") or not host:
        raise UserError(f"'{url[:100]}' is not the address of a backend: write for example http://gpu-machine:8700.")
    return host + (f":{port}" if port else "")


def _unreachable(where: str) -> str:
    return f"Nothing answers at {where}: is python -m decoding serve running there?"


def _no_backend(where: str) -> str:
    return f"Something answers at {where}, but it is not a Speculoscope backend: is the address right?"


def _check(response: httpx.Response) -> None:
    """Raises UserError with the server's sentence if it refused, TransportError if a proxy does not reach it."""
    if response.is_success:
        return
    response.read()
    try:
        sentence = str(response.json()["message"])
    except (ValueError, KeyError, TypeError):
        if response.status_code in OF_A_PROXY:
            raise httpx.ConnectError(f"a proxy answered with HTTP status {response.status_code}") from None
        sentence = f"The other machine answered with HTTP status {response.status_code}: is it a Speculoscope backend?"
    raise UserError(sentence)
