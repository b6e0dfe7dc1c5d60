"""A served backend, its metrics, and the client that follows it, over real sockets on loopback.

What every backend does with a run, this one too: test_backends_contract.py. Faults between them: test_server_faults.py.
"""

import asyncio
import itertools
import json
import subprocess
import sys
import textwrap
import threading
from collections import Counter
from types import SimpleNamespace

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from decoding.backends.local import LocalBackend
from decoding.backends.metrics import Metrics
from decoding.backends.remote import RemoteBackend
from decoding.backends.server import Limits, Session, _EventsResponse, _read_body
from decoding.backends.stream import EventStream
from decoding.errors import UserError
from decoding.records.events import Event, event_to_json
from decoding.records.run_file import run_from_dict
from tests import web
from tests.fakes import FakeBackend, ScriptedRunner, begin, compare, last_sentence, small_request
from tests.page_fakes import ScriptedBackend
from tests.serving import BODY, answered, compare_through_cuts, served_at
from tests.waiting import in_own_loop, wait_until


@pytest.mark.parametrize("cut", [False, True], ids=["never read", "cut in the midst"])
def test_a_run_that_nobody_reads_ends_after_the_time_of_grace(cut):
    body = {"kind": "compare", "options": {"prompt": "#slow", "max_new_tokens": 2000, "lanes": ["autoregressive"]}}
    grace_s = 2.0 if cut else 0.3  # a reader who is to be cut must come in time, also on a busy machine
    with served_at(LocalBackend(ScriptedRunner), grace_s=grace_s) as url:
        run = f"{url}/runs/unread-one"
        assert web.put(run, json=body).status_code == 201
        if cut:
            with web.stream("GET", f"{run}/events") as response:
                next(line for line in response.iter_lines() if json.loads(line)["kind"] == "iterations")
        wait_until(lambda: "nothing is running" in RemoteBackend(url).status())
        assert web.get(f"{run}/events").status_code == 404


def test_a_reader_who_is_gone_leaves_the_run_to_the_time_of_grace_which_ends_it_once():
    """Also one who is gone before the answer begins; and nothing is left to end a later run of the same name."""
    ended: list[str] = []

    async def gone() -> dict[str, str]:
        return {"type": "http.disconnect"}

    async def send(message: dict) -> None:
        await asyncio.sleep(60)

    async def leave() -> None:
        sessions = []
        for run in ("one", "two", "read"):
            stream = EventStream(run, lambda cancel: iter(()), str)  # it says nothing, and goes on
            sessions.append(Session(stream, b"", Limits(grace_s=0.05), ended.append))
        await _EventsResponse(sessions[0], 0)({"type": "http"}, gone, send)
        reader = sessions[1].take_over(0)
        sessions[1].expire()
        sessions[1].leave(reader)
        sessions[2].take_over(0)
        await asyncio.sleep(0.5)

    in_own_loop(leave())
    assert ended == ["two", "one"]


@pytest.fixture(scope="module")
def url():
    with served_at() as url:
        yield url


@pytest.mark.parametrize(
    "body, status, part",
    [
        (b"not json", 400, "must be JSON"),
        (b"[]", 400, "must be JSON"),
        (b'{"kind": "compare"}', 400, "must be JSON"),
        (b'{"kind": "shell", "options": {}}', 400, "kind must be"),
        (b'{"kind": "compare", "options": {"prompt": ""}}', 400, "empty"),
        (b'{"kind": "compare", "options": {"prompt": "x", "fancy": 1}}', 400, "fancy: is the front end of the same"),
        (b'{"kind": "compare", "options": {"prompt": "x", "\\ud800": 1}}', 400, "does not know the setting"),
        (b'{"kind": "compare", "options": {"prompt": "x", "target": "a/b", "draft": "c/d"}}', 400, "lists"),
        (b'{"kind": "compare", "options": {"prompt": "x", "max_new_tokens": true}}', 400, "not True"),
        (b"[" * 100_000, 400, "must be JSON"),
        (b" " * (2 * 2**20 + 1), 413, "larger than"),
    ],
)
def test_bad_bodies_are_answered_with_a_sentence(url, body, status, part):
    response = web.put(f"{url}/runs/bad-body", content=body)
    assert response.status_code == status and part in response.json()["message"]


def test_an_evaluation_may_name_a_draft_of_the_pair():
    assert _read_body(b'{"kind": "evaluate", "options": {"draft": "small"}}', Limits())[0] == "evaluate"
    with pytest.raises(UserError, match="only the pairs that it lists"):
        _read_body(b'{"kind": "evaluate", "options": {"target": "a", "draft": "small"}}', Limits())


def test_no_pages_but_the_documented_ones(url):
    for path in ("/docs", "/openapi.json", "/redoc"):
        assert web.get(f"{url}{path}").status_code == 404


def test_a_full_server_refuses_with_a_sentence():
    with served_at(LocalBackend(ScriptedRunner), max_runs=1) as url:
        remote = RemoteBackend(url)
        stream, _ = begin(remote)
        assert "the maximum" in last_sentence(compare(remote))
        stream.close()


def test_a_stop_that_crosses_the_end_of_a_run_loses_nothing():
    with served_at() as url:
        run = f"{url}/runs/ended-unread"
        assert web.put(run, json=BODY).status_code == 201
        wait_until(lambda: 'runs_total{outcome="finished"}' in web.get(f"{url}/metrics").text)  # it has ended, unread
        assert web.delete(run).status_code == 204
        lines = web.get(f"{run}/events").text.split("\n")
        assert json.loads([line for line in lines if line.strip()][-1])["kind"] == "finished"
        assert web.delete(run).status_code == 204
        wait_until(lambda: web.get(f"{run}/events").status_code == 404)


def test_the_token_is_asked_for():
    with served_at(token="s3cret") as url:
        for token in ("", "s3cret!"):
            refused = last_sentence(compare(RemoteBackend(url, token=token)))
            assert "with SPECULOSCOPE_TOKEN set to the server's" in refused
        response = web.delete(f"{url}/runs/any-run-at-all")
        assert response.status_code == 401 and response.headers["www-authenticate"] == "Bearer"
        assert web.get(f"{url}/runs/any-run-at-all/events").status_code == 401
        assert web.get(f"{url}/pairs", headers={"Authorization": "bearer s3cret"}).status_code == 200
        assert compare(RemoteBackend(url, token="s3cret"))[-1].kind == "finished"
        assert RemoteBackend(url).pairs() == []
        assert [pair.name for pair in RemoteBackend(url, token="s3cret").pairs()] == ["toy"]
        assert web.get(f"{url}/health").json()["status"] == "ok"


def test_nobody_there_is_a_sentence():
    nowhere = RemoteBackend("http://127.0.0.1:9", patience_s=0.1)
    assert "Nothing answers at 127.0.0.1:9" in last_sentence(compare(nowhere))
    assert "Nothing answers" in nowhere.status()
    assert nowhere.pairs() == []
    assert "empty" in last_sentence(compare(nowhere, " "))  # refused before it travels


NO_ADDRESSES = ["gpu:8700", "ftp://x", "http://", "javascript:1", "http://gpu:port", "http://gpu:99999", "http://[::1"]


@pytest.mark.parametrize("url", ["", *NO_ADDRESSES, "http://gpu:1\n", f"http://{'a' * 80}:1"])
def test_bad_addresses_are_refused(url):
    with pytest.raises(UserError, match="not the address"):
        RemoteBackend(url)


def test_events_of_another_run_are_never_shown():
    for run, seq in (("another-run", 0), (None, 1)):  # nor one before which another is missing

        def answer(request: httpx.Request, run=run, seq=seq) -> httpx.Response:
            of = run or request.url.path.split("/")[2]
            return httpx.Response(200, text=event_to_json(Event(of, seq, "queued", {})) + "\n")

        events = compare(answered(answer))
        assert [event.kind for event in events] == ["failed"] and "out of order" in events[0].data["message"]


def test_nothing_is_lost_or_mixed_when_connections_are_cut():
    requests = [small_request(f"run {i} #slow", seed=i, max_new_tokens=12, repeats=1) for i in range(10)]
    with served_at(LocalBackend(ScriptedRunner), max_runs=len(requests), grace_s=300.0) as url:
        assert compare_through_cuts(url, requests) > 5


@pytest.mark.parametrize("ending", ["", "Internal Server Error"])
def test_an_answer_that_ends_within_a_line_is_a_broken_connection(ending):
    """A proxy in between may end an answer properly although what it passes on broke off."""
    sent = compare(FakeBackend())
    lines = [event_to_json(event) + "\n" for event in sent]
    answers = []

    def answer(request: httpx.Request) -> httpx.Response:
        if request.method != "GET":
            return httpx.Response(204)
        answers.append("".join(lines[int(request.url.params["from"]) :]))
        return httpx.Response(200, text=answers[0][:700] + ending if len(answers) == 1 else answers[-1])

    events = list(answered(answer).compare(small_request(), threading.Event(), sent[0].run))
    assert [event_to_json(event) + "\n" for event in events] == lines and len(answers) == 2


@pytest.mark.parametrize("status", [502, 503, 504])
def test_a_proxy_that_does_not_reach_the_server_for_a_moment_costs_no_run(status):
    sent, asked = compare(FakeBackend()), []
    text = "".join(event_to_json(event) + "\n" for event in sent)

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.method)
        is_first = asked.count(request.method) == 1
        return httpx.Response(status, text="<html>Bad gateway") if is_first else httpx.Response(200, text=text)

    events = answered(answer).compare(small_request(), threading.Event(), sent[0].run)
    assert "".join(event_to_json(event) + "\n" for event in events) == text
    assert asked[:4] == ["PUT", "PUT", "GET", "GET"]


def test_patience_begins_anew_with_each_event(monkeypatch):
    """Each answer breaks off within a line, after further events; between two of them 15 of the 20 seconds pass."""
    sent = compare(FakeBackend())
    lines = [event_to_json(event) + "\n" for event in sent]
    monkeypatch.setattr("decoding.backends.remote.time", SimpleNamespace(monotonic=itertools.count(0, 15).__next__))

    def answer(request: httpx.Request) -> httpx.Response:
        start = int(request.url.params.get("from", 0))
        return httpx.Response(200, text="".join(lines[start:])[: len("".join(lines[start : start + 4])) + 9])

    assert len(list(answered(answer).compare(small_request(), threading.Event(), sent[0].run))) == len(lines) > 12


def test_the_front_end_needs_no_torch_with_a_worker_nor_with_a_server(url):
    """The models are in the worker or on the server. The page itself: tests/test_space.py."""
    script = textwrap.dedent(f"""
        import sys
        for name in ("torch", "transformers"):
            sys.modules[name] = None
        from decoding.backends import choose_backend
        from decoding.backends.local import LocalBackend
        from tests.fakes import ScriptedRunner, compare
        worker = LocalBackend(ScriptedRunner)
        assert compare(worker)[-1].kind == "finished"
        worker.close()
        assert compare(choose_backend(url="{url}"))[-1].kind == "finished"
    """)
    subprocess.run([sys.executable, "-c", script], check=True, timeout=170)


# -- Prometheus metrics, compared with the run files of the runs that they count

LANES = ["autoregressive", "static:4", "confidence:0.5"]
HEADERS = {"Authorization": "Bearer s3cret"}


def numbers(text: str) -> dict[tuple[str, ...], float]:
    """(name, label value, ...) -> value of all samples; labels in the order of their names."""
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.fixture(scope="module")
def measured():
    """What /metrics says after two runs and two refusals, one of them of a misnamed run, and one of the runs."""
    with served_at(ScriptedBackend(), token="s3cret") as url:
        remote = RemoteBackend(url, "s3cret")
        finished = [compare(remote, lanes=LANES)[-1] for _ in range(2)]
        assert compare(remote, lanes=["static:x"])[-1].kind == "failed"
        assert web.put(f"{url}/runs/short", headers=HEADERS).status_code == 400
        assert web.get(f"{url}/metrics").status_code == 401
        answer = web.get(f"{url}/metrics", headers=HEADERS)
        remote.close()
    assert answer.headers["content-type"].startswith("text/plain")
    return numbers(answer.text), run_from_dict(finished[0].data["run"])


def test_tokens_times_and_acceptance_are_those_of_the_run_files(measured):
    found, run = measured
    times, by_place = 2 * len(run.lanes[0].repeats), Counter()  # two runs, each with its repeats
    for trace in run.lanes:
        of = (trace.draft or "", "synthetic", trace.policy)
        assert found[("vllm:generation_tokens_total", *of)] == times * len(trace.output)
        assert found[("vllm:request_decode_time_seconds_count", *of)] == times
        seconds = 2 * sum(repeat.decode_s for repeat in trace.repeats)
        assert found[("vllm:request_decode_time_seconds_sum", *of)] == pytest.approx(seconds)
        drafted = [iteration for iteration in trace.iterations if iteration.drafted]
        if drafted:
            n_drafted, accepted = sum(it.n_drafted for it in drafted), sum(it.n_accepted for it in drafted)
            assert found[("vllm:spec_decode_num_drafts_total", *of)] == times * len(drafted)
            assert found[("vllm:spec_decode_num_draft_tokens_total", *of)] == times * n_drafted
            assert found[("vllm:spec_decode_num_accepted_tokens_total", *of)] == times * accepted
            by_place.update(place for it in drafted for place in range(it.n_accepted))
    for place, count in by_place.items():
        name = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
        assert found[name, "shallow", "synthetic", str(place)] == times * count


def test_runs_are_counted_by_how_they_ended(measured):
    found, _ = measured
    assert found["speculoscope:runs_total", "finished"] == found["speculoscope:runs_total", "refused"] == 2
    assert found["vllm:num_requests_running",] == found["vllm:num_requests_waiting",] == 0
    assert found["vllm:e2e_request_latency_seconds_count",] == 2


def test_stages_and_the_line_are_timed():
    now = [0.0]
    metrics = Metrics(clock=lambda: now[0])
    events = [
        (0.0, "queued", {"place": 1}),
        (2.0, "queued", {"place": 0}),
        (5.0, "progress", {"stage": "loading"}),
        (6.0, "progress", {"stage": "loading"}),
        (9.0, "progress", {"stage": "measuring"}),
        (10.0, "cancelled", {}),
    ]
    seen = []
    for event in metrics.watched(Event("r" * 8, seq, kind, data) for seq, (_, kind, data) in enumerate(events)):
        found = numbers(metrics.text().decode())
        seen.append((found["vllm:num_requests_waiting",], found["vllm:num_requests_running",]))
        if not event.is_last:
            now[0] = events[event.seq + 1][0]
    assert seen == [(1, 0), (1, 0), (0, 1), (0, 1), (0, 1), (0, 0)]
    found = numbers(metrics.text().decode())
    assert found["vllm:request_queue_time_seconds_sum",] == 5.0
    assert found["speculoscope:stage_seconds_sum", "loading"] == 4.0
    assert found["speculoscope:stage_seconds_sum", "measuring"] == 1.0
    assert found["vllm:e2e_request_latency_seconds_sum",] == 10.0
    assert found["speculoscope:runs_total", "cancelled"] == 1


def test_a_run_that_nobody_reads_to_its_end_is_counted_as_such():
    metrics = Metrics()
    events = metrics.watched(iter([Event("r" * 8, 0, "queued", {"place": 0}), Event("r" * 8, 1, "cancelled", {})]))
    next(events)
    events.close()
    found = numbers(metrics.text().decode())
    assert found["speculoscope:runs_total", "abandoned"] == 1 and found["vllm:num_requests_waiting",] == 0
