"""The run file as JSON: written atomically, checked when read."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sized
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from ..errors import UserError, explained, first_fault
from ..files import write_whole
from .events import Event
from .proposal import parents_in
from .request import CHOICES, CompareRequest, check_request, number_formats
from .trace import SCHEMA, Chain, Costs, Guesses, Iteration, Run, Trace, keeps_direction

MAX_FILE_BYTES = 128 * 2**20  # eight lanes of the longest text, with a chain from every token, have some 50 MB


def to_plain(record: Any) -> Any:
    """A dataclass as plain data with the names that its fields have in files."""
    return _adapter(record.__class__).dump_python(record, by_alias=True)


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def run_to_json(run: Run) -> str:
    """Compact JSON of ``run``; :func:`run_from_json` returns an equal run."""
    return json.dumps(to_plain(run), ensure_ascii=True, allow_nan=False, separators=(",", ":"))


def run_from_json(text: str | bytes) -> Run:
    """Reads and checks a run. Raises UserError with the first error."""
    if len(text) > MAX_FILE_BYTES:
        raise UserError(f"This run file is larger than {MAX_FILE_BYTES // 2**20} MB, the limit.")
    try:
        run = _adapter(Run).validate_json(text)
    except (ValidationError, RecursionError) as error:
        raise UserError(f"This is not a Speculoscope run file of schema {SCHEMA}: {first_fault(error)}") from error
    check_consistent(run)
    return run


def run_from_dict(data: Any) -> Run:
    """Reads and checks the run in an event's data. Raises UserError."""
    return run_from_json(json.dumps(data))  # the strict types of a run file are those of JSON: its keys are text


def request_again(run: Run) -> CompareRequest:
    """The request that repeats ``run``, also where a trial would choose other number formats than it did; of drafts
    only if all ran in the same one.
    """
    asked, target = run.asked, run.pair.target.dtype
    if number_formats(asked)[0] == "auto" and target in CHOICES:
        asked = replace(asked, dtype=target)
    drafts = {draft.dtype for draft in run.pair.drafts.values()} & {*CHOICES}
    if asked.draft_dtype == "auto" and drafts:
        asked = replace(asked, draft_dtype=drafts.pop() if len(drafts) == 1 else "trial")
    return asked


def run_of_events(events: Iterable[Event]) -> Run | None:
    """The run with which ``events`` end; None if it was stopped. Raises UserError with the sentence of a failure."""
    for event in events:
        if event.kind == "failed":
            raise UserError(event.data["message"])
        if event.kind == "finished":
            return run_from_dict(event.data["run"])
    return None


def load_run(path: str | Path) -> Run:
    """Reads and checks the run file at ``path``. Raises UserError with the file's name."""
    path = Path(path)
    with explained(f"Cannot read the run file {path.name or path}"), path.open("rb") as file:
        data = file.read(MAX_FILE_BYTES + 1)  # the size of a pipe is not known in advance
    try:
        return run_from_json(data)
    except UserError as error:
        raise UserError(f"{path.name}: {error}") from error


def save_run(run: Run, path: str | Path) -> None:
    """Writes ``run`` to ``path`` atomically. Raises UserError."""
    path = Path(path)
    with explained(f"Cannot write the run file {path}"):
        write_whole(path, run_to_json(run))


DRAFTED = ("accepted", "rejected", "dropped")


def check_consistent(run: Run) -> None:
    """Raises UserError with the first fault."""
    try:
        check_request(run.settings)
        for name in (*run.settings.lanes, run.settings.pair, run.settings.target, run.settings.draft):
            keeps_direction(name)
    except (UserError, ValueError) as error:
        raise UserError(f"The settings in this run file are invalid: {error}") from error
    if not run.lanes:
        raise UserError("This run file holds no lane.")
    if len({trace.lane for trace in run.lanes}) < len(run.lanes):
        raise UserError("This run file names a lane twice.")
    if run.picture and run.picture.at + run.picture.n_tokens > len(run.prompt_ids):
        raise UserError("The picture of this run file is longer than its prompt.")
    for trace in run.lanes:
        _check_trace(trace, run.costs)
    for name, chain in run.chains.items():
        if name != chain.draft:
            raise UserError(f"Chain {name}: it holds the guesses of {chain.draft}.")
        if name not in run.costs.draft_step:
            raise UserError(f"Chain {name}: the costs lack its draft.")
        check_chain(chain)


def check_chain(chain: Chain) -> None:
    """Raises UserError with the first fault."""
    name = chain.draft
    _check_guesses(chain.along, len(chain.target), f"chain {name}")
    for at, tail in chain.tails.items():
        if at >= len(chain.target):
            raise UserError(f"Chain {name}: a tail at {at} is outside the text.")
        _check_guesses(tail, len(tail.choice), f"chain {name}, tail {at}")
    if chain.starts and len(chain.starts) != len(chain.target):
        raise UserError(f"Chain {name}: it holds guesses from {len(chain.starts)} places of {len(chain.target)}.")
    for at, guesses in enumerate(chain.starts):
        _check_guesses(guesses, len(guesses.choice), f"chain {name}, start {at}")
    if any(one.choice and one.scores.keys() != chain.along.scores.keys() for one in chain.lists()):
        raise UserError(f"Chain {name}: some of its guesses lack scores that others have.")


def _check_trace(trace: Trace, costs: Costs) -> None:
    for repeat in trace.repeats:
        lists = (repeat.draft_s, repeat.verify_s, repeat.policy_s, repeat.rest_s)
        if any(len(one) != len(trace.iterations) for one in lists):
            raise UserError(f"Lane {trace.lane}: its times do not match its {len(trace.iterations)} iterations.")
        if trace.iterations and not repeat.decode_s > 0.0:
            raise UserError(f"Lane {trace.lane}: its times are all 0.")
    position = 0
    for number, iteration in enumerate(trace.iterations):
        if iteration.start != position or not _fates_in_order(iteration):
            raise UserError(f"Lane {trace.lane}: iteration {number} does not follow from the one before it.")
        if not iteration.tokens:
            raise UserError(f"Lane {trace.lane}: iteration {number} emitted nothing, not even one token.")
        position += len(iteration.tokens)
    if [token.id for it in trace.iterations for token in it.tokens] != trace.output:
        raise UserError(f"Lane {trace.lane}: its output is not what its iterations emitted.")
    if trace.p_grey and len(trace.p_grey) != len(trace.output):
        raise UserError(f"Lane {trace.lane}: its probabilities with a grey picture do not match its output.")
    if trace.draft is not None and trace.draft not in costs.draft_step:
        raise UserError(f"Lane {trace.lane}: the costs lack its draft {trace.draft}.")


def _fates_in_order(iteration: Iteration) -> bool:
    """The accepted path first; a guess is rejected, or dropped, if it follows that path, and dropped otherwise; the
    emitted token is the target's own.
    """
    n_accepted, parents = iteration.n_accepted, parents_in(iteration.parents, len(iteration.drafted))
    if len(parents) != len(iteration.drafted) or [*parents[:n_accepted]] != [*range(-1, n_accepted - 1)]:
        return False
    for index, (token, parent) in enumerate(zip(iteration.drafted, parents)):
        allowed = ("accepted",) if index < n_accepted else ("rejected", "dropped")[parent >= n_accepted :]
        if token.fate not in allowed or parent >= index:
            return False
    return iteration.emitted is None or iteration.emitted.fate not in DRAFTED


def _check_guesses(guesses: Guesses, length: int, where: str) -> None:
    columns: list[Sized] = [guesses.choice, guesses.p, guesses.entropy, *guesses.scores.values()]
    if any(len(column) != length for column in columns):
        raise UserError(f"In {where} the lists have different lengths.")
