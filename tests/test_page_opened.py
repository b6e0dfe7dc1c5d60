"""Run files from strangers: parsed in a separate process, within limits of time, memory and queue length."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import httpx
import pytest

from decoding.backends.recorded import RecordedBackend
from decoding.errors import UserError
from decoding.records.run_file import run_to_json, save_run
from decoding.records.trace import Chain, Guesses, Run, TokenText
from viz import opened
from viz.opened import BUSY, LEFT, TOO_LONG, Sandbox, work
from viz.player.payload import run_payload
from viz.server_functions import while_there
from viz.store import MAX_UPLOAD_BYTES, RunStore, check_text

from . import web
from .page_fakes import ScriptedBackend
from .page_server import page_at, write_recordings
from .runs import make_run
from .waiting import in_own_loop, wait_until

LANES = ("autoregressive", "static:5", "oracle")


def crafted_run(n_tokens: int) -> Run:
    """A small file that is much work to draw: every lane needs a panel of thresholds, and none has run."""
    run = make_run(n_tokens=20, lanes=("autoregressive", "confidence:0.5"), repeats=1, alternatives=0)
    guesses = Guesses(choice=[1] * n_tokens, p=[1] * n_tokens, entropy=[0] * n_tokens, scores={})
    plain, drafting = (replace(lane, output=[], iterations=[], repeats=[]) for lane in run.lanes)
    lanes = [
        replace(drafting, lane=f"{name}:0.{i}", policy=name) for name in ("confidence", "entropy") for i in range(1, 8)
    ]
    return replace(
        run,
        chains={"shallow": Chain("shallow", [1] * n_tokens, guesses, {})},
        lanes=[plain, *lanes],
        vocab={1: TokenText("a")},
        prompt_ids=[],
    )


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
    assert set(work({"kind": "payload", "id": "x", "text": text})) == {"error"}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("x" * (MAX_UPLOAD_BYTES + 1), "larger than 8 MB"),
        *((one, "not a text file") for one in (5, None, {}, "\ud800")),
    ],
)
def test_what_is_no_text_or_too_long_is_refused_before_any_process_is_started(text, sentence):
    with pytest.raises(UserError, match=sentence):
        check_text(text)


def test_a_job_that_takes_too_long_is_ended_and_the_next_one_works():
    sandbox = Sandbox(limit_s=0.1)  # less than any process takes to start
    with pytest.raises(UserError) as refusal:
        sandbox.do("payload", run_to_json(crafted_run(2000)), "opened-x")
    assert str(refusal.value) == TOO_LONG
    sandbox._limit_s = 60.0
    assert sandbox.do("payload", run_to_json(make_run(lanes=LANES)), "opened-y")["id"] == "opened-y"


def test_too_much_memory_is_a_sentence(monkeypatch):
    def greedy(run, origin):
        raise MemoryError

    monkeypatch.setitem(opened.JOBS, "payload", greedy)
    assert "more memory" in work(job(make_run(lanes=LANES)))["error"]


def test_the_line_is_short_and_who_leaves_gives_up_the_place(monkeypatch):
    sandbox, inside, go_on, gone = Sandbox(max_waiting=1), threading.Event(), threading.Event(), threading.Event()

    def run(text, gone):
        inside.set()
        assert go_on.wait(30)
        return b'{"answer": 1}'

    monkeypatch.setattr(sandbox, "_run", run)
    with ThreadPoolExecutor(2) as visitors:
        first = visitors.submit(sandbox.do, "payload", "", "a")
        assert inside.wait(30)
        second = visitors.submit(sandbox.do, "payload", "", "b", gone)
        wait_until(lambda: sandbox._waiting == 2)
        with pytest.raises(UserError) as refusal:
            sandbox.do("payload", "", "c")
        assert str(refusal.value) == BUSY
        gone.set()
        assert str(second.exception(30)) == LEFT
        go_on.set()
        assert first.result(30) == 1 and sandbox._waiting == 0


def test_a_visitor_who_leaves_ends_the_work():
    class Visitor:
        async def is_disconnected(self):
            return True

    answer = in_own_loop(while_there(Visitor(), Sandbox().threads, lambda gone: {"left": gone.wait(60)}))
    assert answer == {"left": True}


def test_many_crafted_files_at_once_leave_the_page_answering(tmp_path):
    """If each of these used the page's own threads, 45 at the same time would block the whole page for minutes."""
    text = run_to_json(crafted_run(600))
    with page_at(ScriptedBackend(), write_recordings(tmp_path)) as url, ThreadPoolExecutor(9) as visitors:
        components = web.get(f"{url}config").json()["components"]
        race = next(one["id"] for one in components if one["props"].get("elem_id") == "race")
        body = {"data": {"text": text}, "component_id": race, "session_hash": "x", "fn_name": "open_file"}
        send = partial(httpx.post, f"{url}gradio_api/component_server", json=body, timeout=120)
        sent = [visitors.submit(send) for _ in range(9)]
        wait_until(lambda: sum(one.done() for one in sent) >= 3)  # those for which the queue was too long
        assert web.get(url).status_code == 200
        assert not all(one.done() for one in sent), "the page answered when all was done"
        answers = [one.result().json() for one in sent]
    refused = [answer["error"] for answer in answers if "error" in answer]
    assert set(refused) == {BUSY} and len(refused) < len(answers)
