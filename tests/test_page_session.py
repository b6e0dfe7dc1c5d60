"""From a backend's events to the page's deltas: merged, numbered, kept for pages that missed some, stoppable."""

import asyncio
import json
import threading
from functools import partial
from types import SimpleNamespace

import pytest

from decoding.backends.recorded import RecordedBackend
from decoding.records.events import Event
from decoding.records.request import CompareRequest
from viz.session import BROKEN, Visits, delta_of, merged, race_stream, stream_of
from viz.store import RunStore

from .page_fakes import ScriptedBackend
from .runs import HOSTILE
from .waiting import in_own_loop

REQUEST = CompareRequest(prompt="def f():", lanes=["autoregressive", "static:5"], max_new_tokens=40, repeats=2)


def iterations(lane: int, repeat: int, first: int, ids: list[int]) -> Event:
    items = [{"d": [], "e": [token, "plain"], "start": first + i, "t": [0, 1, 0, 0]} for i, token in enumerate(ids)]
    texts = {str(token): [str(token), None] for token in ids}
    return Event("r", 0, "iterations", dict(lane=lane, repeat=repeat, first=first, items=items, texts=texts))


def test_neighbouring_iterations_of_a_lane_become_one_event():
    events = [iterations(0, 0, 0, [5, 6]), iterations(0, 0, 2, [7]), Event("r", 3, "lane_finished", {"lane": 0})]
    batch = merged([*events, iterations(1, 0, 0, [5])])
    assert [event["kind"] for event in batch] == ["iterations", "lane_finished", "iterations"]
    assert [item["e"][0] for item in batch[0]["data"]["items"]] == [5, 6, 7]
    assert set(batch[0]["data"]["texts"]) == {"5", "6", "7"}
    assert len(events[0].data["items"]) == 2  # the backend's data are not changed


def test_later_repeats_and_heartbeats_are_not_sent():
    events = [iterations(0, 1, 0, [5]), Event("r", 1, "heartbeat", {}), Event("r", 2, "cancelled", {})]
    (delta,) = collect(lambda: stream_of(lambda cancel, run: iter(events)))
    assert [event["kind"] for event in delta["events"]] == ["cancelled"] and (delta["seq"], delta["next"]) == (0, 3)


def collect(start, visits: Visits | None = None, until=lambda deltas: False) -> list[dict]:
    async def run() -> list[dict]:
        found = []
        stream = (visits or Visits()).deltas(start, "ann", "race")
        async for text, _ in stream:
            found.append(json.loads(text))
            if until(found):
                await stream.aclose()
                break
        return found

    return in_own_loop(run())


@pytest.fixture
def runs(tmp_path) -> RunStore:
    return RunStore(RecordedBackend(tmp_path))


@pytest.fixture
def begin(runs):
    """begin(pause_s): a race over a scripted backend."""
    return lambda pause_s: race_stream(ScriptedBackend(pause_s=pause_s), runs, REQUEST)


def test_a_race_is_reported_in_numbered_deltas_and_ends_with_its_payload(begin, runs):
    deltas = collect(lambda: begin(0.002))
    number = 0
    for delta in deltas:
        assert delta["seq"] == number
        number = delta["next"]
    events = [event for delta in deltas for event in delta["events"]]
    assert [event["kind"] for event in events][:2] == ["queued", "started"]
    started = events[1]["data"]
    assert [lane["name"] for lane in started["lanes"]] == ["Plain", "Static 5"] and started["repeats"] == 2
    assert events[-1]["kind"] == "finished"
    payload = events[-1]["data"]["payload"]
    run = runs.get(payload["id"])
    assert run.settings.prompt == REQUEST.prompt and runs.origin(run.id) == "live"
    sent = [item for e in events if e["kind"] == "iterations" and e["data"]["lane"] == 1 for item in e["data"]["items"]]
    assert len(sent) == len(run.lanes[1].iterations)


def test_deltas_come_at_most_some_fifteen_times_a_second(begin):
    deltas = collect(lambda: begin(0.0005))
    sent_iterations = sum(event["kind"] == "iterations" for delta in deltas for event in delta["events"])
    assert sent_iterations < 40  # the backend sent more than 100


def test_what_was_missed_can_be_asked_for_while_the_race_goes_on(begin):
    visits, asked = Visits(), {}

    def until(deltas: list[dict]) -> bool:
        if len(deltas) == 4:
            asked["seen"] = [event for delta in deltas[2:] for event in delta["events"]]
            asked["again"] = visits.missed(deltas[2]["run"], deltas[2]["seq"], deltas[3]["next"])
        return len(deltas) == 4

    collect(lambda: begin(0.01), visits, until)
    assert tokens(asked["again"]) == tokens(asked["seen"]) != []
    assert visits.missed("unknown", 0, 9) == []


def tokens(events: list[dict]) -> list[tuple[int, int]]:
    """(lane, position) of every iteration in ``events``."""
    return [(e["data"]["lane"], i["start"]) for e in events if e["kind"] == "iterations" for i in e["data"]["items"]]


def test_closing_the_stream_cancels_the_job_and_forgets_it(begin):
    visits, begun = Visits(), []
    collect(lambda: begun.append(begin(0.01)) or begun[0], visits, until=lambda deltas: len(deltas) == 2)
    (race,) = begun
    assert race.cancel.is_set()
    assert visits.missed(race.run, 0, 9) == []


def test_stop_by_one_visitor_and_task_leaves_the_others(begin):
    visits, began = Visits(), {job: asyncio.Event() for job in ("ann race", "bob race", "ann evaluate")}

    async def follow(job: str) -> str:
        last = ""
        async for text, _ in visits.deltas(lambda: begin(0.01), *job.split()):
            began[job].set()
            last = json.loads(text)["events"][-1]["kind"]
        return last

    async def all_of_them() -> list[str]:
        tasks = [asyncio.create_task(follow(job)) for job in began]
        await asyncio.gather(*(one.wait() for one in began.values()))
        visits.stop("ann", "race")
        return await asyncio.wait_for(asyncio.gather(*tasks), 30)

    assert in_own_loop(all_of_them()) == ["cancelled", "finished", "finished"]


def test_faults_become_sentences():
    def broken(cancel: threading.Event, run: str):
        yield Event("r", 0, "queued", {"place": 0})
        raise RuntimeError("secret path /home/someone")

    def silent(cancel: threading.Event, run: str):
        return iter(())

    for job, sentence in ((broken, BROKEN), (silent, "ended without a result")):
        last = collect(partial(stream_of, job))[-1]["events"][-1]
        assert last["kind"] == "failed" and sentence in last["data"]["message"]
        assert "secret" not in last["data"]["message"]


@pytest.mark.parametrize(
    ("kind", "data", "sentence"),
    [("started", {}, BROKEN), ("finished", {"run": {"schema": "speculoscope.run/1"}}, "not a Speculoscope run")],
)
def test_what_a_backend_of_another_version_says_is_not_shown(runs, kind, data, sentence):
    backend = SimpleNamespace(compare=lambda request, cancel, run: iter([Event("r", 0, kind, data)]))
    last = collect(partial(race_stream, backend, runs, REQUEST))[-1]["events"][-1]
    assert last["kind"] == "failed" and sentence in last["data"]["message"]


def test_deltas_hold_no_markup():
    for text in HOSTILE:
        written = delta_of("failed", message=text)
        assert "<" not in written and json.loads(written)["events"][0]["data"]["message"] == text
