"""What visitors cause on the page's server: a run's deltas, numbered and stoppable; files that they open."""

import asyncio
import json
import resource
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import gradio as gr
import pytest

from decoding.backends.recorded import RecordedBackend
from decoding.errors import UserError
from decoding.records.events import Event
from decoding.records.request import CompareRequest
from decoding.records.run_file import run_to_json, save_run
from decoding.records.trace import Run
from viz import opened, session
from viz.forms import make_buttons, wire_job
from viz.opened import BUSY, TOO_LONG, Sandbox, work
from viz.player.payload import run_payload
from viz.session import BROKEN, Visits, delta_of, merged, race_stream, stream_of
from viz.store import MAX_UPLOAD_BYTES, RunStore, check_text

from .page_fakes import ScriptedBackend
from .page_server import write_recordings
from .runs import HOSTILE, make_run
from .waiting import in_own_loop, wait_until

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
    assert len(merged([iterations(0, 0, 0, [5]), iterations(1, 0, 0, [5])])) == 2
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
    assert [lane["name"] for lane in started["lanes"]] == ["Plain", "Static 5"]
    assert events[-1]["kind"] == "finished"
    payload = events[-1]["data"]["payload"]
    run = runs.get(payload["id"])
    assert run.settings.prompt == REQUEST.prompt and runs.origin(run.id) == "live"
    sent = [item for e in events if e["kind"] == "iterations" and e["data"]["lane"] == 1 for item in e["data"]["items"]]
    assert len(sent) == len(run.lanes[1].iterations)


def test_a_recording_with_which_a_page_without_models_answers_is_called_one(tmp_path):
    backend = RecordedBackend(write_recordings(tmp_path))
    store, settings = RunStore(backend), backend.load("first").settings
    last = collect(lambda: race_stream(backend, store, settings))[-1]["events"][-1]
    assert last["data"]["payload"]["badge"]["kind"] == store.origin("first") == "recorded"


def test_there_is_a_result_from_the_first_replay_on(begin):
    async def run() -> list[bool]:
        return [has_result async for _, has_result in Visits().deltas(lambda: begin(0.008), "ann", "race")]

    found = in_own_loop(run())
    assert found == sorted(found) and not found[0] and found[-2:] == [True, True]


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


def test_stop_can_be_pressed_again_in_the_next_run(begin):
    with gr.Blocks() as page:
        wire_job("race", lambda: begin(0.01), Visits(), [], gr.HTML(), make_buttons("Run", 100))
    work, cancel = (one.fn for one in page.fns.values())
    ann = SimpleNamespace(session_hash="ann", client=None, headers={})

    async def run() -> tuple[dict, dict]:
        first = work(ann)
        async for _, again, _ in first:
            if again.get("visible"):
                break  # there is a result, and Run may be pressed
        pressed = cancel(ann)
        second = work(ann)
        (_, _, stop), _ = await asyncio.gather(anext(second), collected(first))
        await second.aclose()
        return pressed, stop

    pressed, stop = in_own_loop(run())
    assert (pressed["value"], pressed["interactive"]) == ("Stopping", False)
    assert (stop["value"], stop["interactive"], stop["visible"]) == ("Stop", True, True)


async def collected(items) -> list:
    return [item async for item in items]


def test_a_silent_race_still_says_how_many_events_there_were(runs, monkeypatch):
    """So that a page that missed the last of them asks for them."""
    monkeypatch.setattr(session, "SILENCE_S", 0.1)
    backend = ScriptedBackend()
    backend.go_on.clear()  # nothing more comes after the first repeat
    deltas = collect(lambda: race_stream(backend, runs, REQUEST), until=lambda deltas: deltas[-2:] == deltas[-1:] * 2)
    silent = deltas[-1]
    assert silent["events"] == [] and silent["seq"] == silent["next"] == deltas[-3]["next"] > 0


def tokens(events: list[dict]) -> list[tuple[int, int]]:
    """(lane, position) of every iteration in ``events``."""
    return [(e["data"]["lane"], i["start"]) for e in events if e["kind"] == "iterations" for i in e["data"]["items"]]


def test_closing_the_stream_cancels_the_job_and_forgets_it(begin):
    visits, begun = Visits(), []
    collect(lambda: begun.append(begin(0.01)) or begun[0], visits, until=lambda deltas: len(deltas) == 2)
    (race,) = begun
    assert race.cancel.is_set()
    assert visits.missed(race.run, 0, 9) == []


@pytest.mark.parametrize("rounds", range(6))
def test_a_reader_that_is_cancelled_as_an_event_comes_ends(rounds):
    """``rounds``: of the event loop between the two."""
    go_on = threading.Event()

    def job(cancel: threading.Event, run: str):
        go_on.wait(20)
        yield Event(run, 0, "heartbeat")
        cancel.wait(20)

    async def run() -> bool:
        stream = stream_of(job)
        came = stream._news
        reader = asyncio.create_task(collected(session.batches(stream)))
        await asyncio.sleep(0.05)  # it waits for the first event
        go_on.set()
        await came.wait()
        for _ in range(rounds):
            await asyncio.sleep(0)
        reader.cancel()
        done, _ = await asyncio.wait([reader], timeout=5)
        stream.cancel.set()
        return bool(done) and reader.cancelled()

    assert in_own_loop(run())


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


# -- run files from strangers: parsed in a separate process, within limits of time, memory and queue length

LANES = ("autoregressive", "static:5", "oracle")


def job(run: Run, kind: str = "payload") -> dict[str, str]:
    return {"kind": kind, "id": "opened-x", "text": run_to_json(run)}


def test_a_file_is_checked_and_drawn_in_a_process_of_its_own_and_never_takes_another_s_name(tmp_path):
    run, store, recorded = make_run(lanes=LANES), RunStore(RecordedBackend(tmp_path)), make_run(n_tokens=20)
    save_run(recorded, tmp_path / f"{run.id}.json")
    payload = store.open("payload", run_to_json(run))
    opened = replace(run, id=payload["id"])
    assert payload["id"].startswith("opened-") and store.get(payload["id"]) == opened
    assert store.origin(payload["id"]) == "imported" and store.get(run.id) == recorded
    expected = json.loads(json.dumps(run_payload(opened, origin="imported")))
    assert payload == expected == store.drawn("payload", payload["id"], shows="only of the page's own examples")


def test_every_job_is_what_the_page_draws_itself():
    run = make_run(lanes=LANES)
    assert [figure["name"] for figure in work(job(run, "figures"))["answer"]][:1] == ["lookahead"]
    assert work(job(run, "html"))["answer"].startswith("<!doctype html>")
    assert work(job(run, "learn"))["answer"]["badge"]["kind"] == "imported"


@pytest.mark.parametrize("text", ["{", "[]", "null", "\ud800", "[" * 200_000])
def test_a_file_that_is_no_run_is_refused(text):
    answer = work({"kind": "payload", "id": "x", "text": text})
    assert set(answer) == {"error"} and "not a Speculoscope run file" in answer["error"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("x" * (MAX_UPLOAD_BYTES + 1), "larger than 40 MB"),
        *((one, "not a text file") for one in (5, None, {}, "\ud800")),
    ],
)
def test_what_is_no_text_or_too_long_is_refused_before_any_process_is_started(text, sentence):
    with pytest.raises(UserError, match=sentence):
        check_text(text)


def test_a_job_that_takes_too_long_is_ended_and_the_next_one_works(monkeypatch):
    monkeypatch.setattr(opened, "LIMIT_S", 0.1)  # less than any process takes to start
    sandbox = Sandbox()
    with pytest.raises(UserError) as refusal:
        sandbox.do("payload", run_to_json(make_run(lanes=LANES)), "opened-x")
    assert str(refusal.value) == TOO_LONG
    monkeypatch.setattr(opened, "LIMIT_S", 60.0)
    assert sandbox.do("payload", run_to_json(make_run(lanes=LANES)), "opened-y")["id"] == "opened-y"


def test_too_much_memory_is_a_sentence(monkeypatch):
    def greedy(run, origin):
        raise MemoryError

    monkeypatch.setitem(opened.JOBS, "payload", greedy)
    assert "more memory" in work(job(make_run(lanes=LANES)))["error"]


def test_the_process_that_reads_a_file_has_a_limit_of_memory(monkeypatch):
    limits = []
    monkeypatch.setattr("resource.setrlimit", lambda *words: limits.append(words))
    opened._bound_memory()
    assert limits == [(resource.RLIMIT_AS, (opened.MAX_MEMORY_BYTES,) * 2)]


def test_the_line_is_short(monkeypatch):
    monkeypatch.setattr(opened, "MAX_WAITING", 1)
    sandbox, inside, go_on = Sandbox(), threading.Event(), threading.Event()

    def run(job):
        inside.set()
        assert go_on.wait(30)
        return b'{"answer": 1}'

    monkeypatch.setattr(sandbox, "_run", run)
    with ThreadPoolExecutor(2) as visitors:
        first = visitors.submit(sandbox.do, "payload", "", "a")
        assert inside.wait(30)
        second = visitors.submit(sandbox.do, "payload", "", "b")
        wait_until(lambda: sandbox._places._value == 0)
        with pytest.raises(UserError) as refusal:
            sandbox.do("payload", "", "c")
        assert str(refusal.value) == BUSY
        go_on.set()
        assert first.result(30) == second.result(30) == sandbox.do("payload", "", "d") == 1
