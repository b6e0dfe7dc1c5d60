"""The endpoint for programs: ``compare``, typed and streaming, through gradio_client or plain HTTP."""

# No "from __future__ import annotations" here: Gradio reads the real types of this signature.

from collections.abc import AsyncIterator, Callable
from typing import Any, Literal

from decoding.backends.base import Backend
from decoding.errors import UserError
from decoding.records.request import DEFAULT_LANES, CompareRequest, check_request

from .session import Feed

DESCRIPTION = """Decode one prompt under several lookahead policies and compare them.

Streams events {run, seq, kind, data}; the last one is finished (data.run is the whole run file), cancelled, or
failed (data.message says why). In events of kind iterations, data.items is keyed by the iteration's index."""


def keyed_items(event: dict[str, Any]) -> dict[str, Any]:
    """``event`` with its list of iterations as a dict by iteration index ("0", "1", ...).

    Gradio sends what changed since the last event, and shifts the deletions within a list that lies in a list
    once too often (gradio.utils.diff): a client would fail on the next event with shorter lists.
    """
    data = event["data"]
    if event["kind"] != "iterations":
        return event
    first = data["first"]
    return {**event, "data": {**data, "items": {str(first + i): item for i, item in enumerate(data["items"])}}}


def make_compare(backend: Backend) -> Callable[..., AsyncIterator[dict[str, Any]]]:
    """The endpoint's function, bound to ``backend``."""

    async def compare(
        prompt: str,
        lanes: list[str] = list(DEFAULT_LANES),  # noqa: B006 (Gradio shows the default; nothing changes it)
        max_new_tokens: int = 128,
        pair: str = "",
        temperature: float = 0.0,
        rule: Literal["greedy", "coupling", "sampling"] = "greedy",
        seed: int = 0,
        repeats: int = 3,
    ) -> AsyncIterator[dict]:
        feed, seq = None, 0
        try:
            request = check_request(
                CompareRequest(
                    prompt=prompt,
                    lanes=lanes.split(",") if isinstance(lanes, str) else list(lanes),
                    max_new_tokens=max_new_tokens,
                    pair=pair,
                    temperature=float(temperature),
                    rule=rule,
                    seed=seed,
                    repeats=repeats,
                )
            )
        except (UserError, TypeError, ValueError, AttributeError) as error:
            sentence = str(error) if isinstance(error, UserError) else "A parameter is of the wrong kind."
            yield {"run": "", "seq": 0, "kind": "failed", "data": {"message": sentence}}
            return
        feed = Feed(lambda cancel: backend.compare(request, cancel), finish=lambda event: event)
        async for batch in feed.batches():
            for event in batch:
                yield {"run": feed.run, "seq": seq, **keyed_items(event)}
                seq += 1

    return compare
