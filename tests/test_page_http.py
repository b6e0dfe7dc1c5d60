"""The page's server: what it accepts, how much one visitor may run, the endpoint for programs, the document."""

import json
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.client import HTTPConnection
from types import SimpleNamespace
from urllib.parse import urlsplit

import httpx
import pytest
from gradio.routes import templates
from gradio.utils import diff
from gradio_client.utils import apply_diff
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from decoding.errors import UserError
from decoding.records.run_file import run_from_json, run_to_json
from tests import web
from viz import api, page
from viz.api import keyed_items
from viz.limits import MAX_BODY_BYTES, MAX_FILE_BODY_BYTES, BodyLimits
from viz.opened import BUSY
from viz.session import PER_ADDRESS, PER_SESSION, Visits, address_of

from .page_fakes import ScriptedBackend
from .page_server import close, scripted_page
from .runs import make_run
from .waiting import wait_until


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    with scripted_page(tmp_path_factory.mktemp("recordings"), pause_s=0.02) as found:
        yield found


@pytest.fixture(scope="module")
def url(served):
    return served[1]


def test_a_large_body_is_refused_by_its_announced_size(url):
    small = dict.fromkeys(("/gradio_api/queue/join", "/login"), MAX_BODY_BYTES)  # of opened files only is more read
    files = dict.fromkeys(("/gradio_api/component_server", "/gradio_api/component_server/"), MAX_FILE_BODY_BYTES)
    for route, most in {**small, **files}.items():
        connection = HTTPConnection(urlsplit(url).netloc, timeout=20)
        connection.putrequest("POST", route)
        connection.putheader("Content-Length", str(most + 1))
        connection.endheaders()  # no body follows: a server that waited for one would run into the time limit
        response = connection.getresponse()
        assert response.status == 413 and f"than {most // 2**20} MB, the limit" in response.read().decode()
        connection.close()


def test_a_large_body_is_refused_while_it_comes(url):
    chunks = iter([b" " * 2**20] * 40)
    try:
        response = web.post(f"{url}gradio_api/run/compare", content=chunks)
        assert response.status_code == 413
    except httpx.WriteError:
        pass  # the server hung up on the rest
    assert next(chunks, None) is not None  # it was not read completely


UNUSED = "upload process_recording upload_progress?upload_id=x vibe-code/ proxy=http://127.0.0.1:1/ deep_link stream/x"


@pytest.mark.parametrize("route", [*UNUSED.split(), "custom_component/x", "run-history", "dev/reload"])
def test_nothing_can_be_uploaded(url, route):
    assert web.post(f"{url}gradio_api/{route}", files={"files": b"x"}).status_code == 404


@pytest.mark.parametrize(
    ("route", "body"),
    [
        *(("component_server", {"component_id": name, "fn_name": "open_run"}) for name in (99_999, -1, "junk")),
        ("queue/join", {"fn_index": 99_999}),
        ("run/predict", {"fn_index": 10**12}),
        ("run/nothing", {}),
        ("call/nothing", {}),
        ("call/v2/compare", {}),
    ],
)
def test_names_that_do_not_exist_are_refused_in_words(url, route, body):
    answer = web.post(f"{url}gradio_api/{route}", json={"data": [], "session_hash": "stranger", **body})
    assert 400 <= answer.status_code < 500 and answer.json()["detail"]


def test_every_fault_of_an_event_is_a_sentence(url):
    """Which one fails is Gradio's: those that need more than was sent."""
    bodies = ({"data": [], "fn_index": number, "session_hash": "stranger"} for number in range(40))
    answers = [web.post(f"{url}gradio_api/run/predict", json=body) for body in bodies]
    faults = [answer.json()["error"] for answer in answers if answer.status_code == 500]
    assert any("values (" in fault for fault in faults) and all(faults)


def test_bodies_that_are_held_at_once_are_bounded_together(monkeypatch):
    monkeypatch.setattr("viz.limits.MAX_HELD_BYTES", 1000)
    inside, go_on = threading.Event(), threading.Event()

    def work(request: Request) -> JSONResponse:
        inside.set()
        go_on.wait(20)
        return JSONResponse({})

    app = Starlette(routes=[Route("/work", work, methods=["POST"])])
    post = partial(TestClient(BodyLimits(app)).post, "/work", content=b"x" * 800)
    with ThreadPoolExecutor(1) as thread:
        first = thread.submit(post)
        assert inside.wait(20)
        refused = post()
        assert refused.status_code == 503 and "try again" in refused.json()["detail"]
        go_on.set()
        assert first.result(20).status_code == 200
    assert post().status_code == 200


def test_what_strangers_send_is_not_written_to_the_log(url, capfd, caplog):
    caplog.set_level(logging.DEBUG)
    mark = "SECRET" * 20
    refused = [mark, ["static:0"]]
    for route, data in (
        ("run/compare", refused),
        ("call/compare", refused),
        ("call/compare", []),
        ("queue/join", [mark]),
    ):
        body = {"data": data, "session_hash": "stranger", "fn_index": 0}
        answer = web.post(f"{url}gradio_api/{route}", json=body)
        if "event_id" in answer.text and route == "call/compare":
            stream = web.get(f"{url}gradio_api/call/compare/{answer.json()['event_id']}").text
            assert ("event: error" in stream) == (data == [])  # what is left out at the end has its default
    out, err = capfd.readouterr()
    assert mark not in out + err + caplog.text


def test_pages_and_answers_are_compressed_once_and_event_streams_never(url):
    for path in ("", "config", "speculoscope-learn/learn.js"):
        answer = web.get(url + path)
        assert answer.headers["content-encoding"] == "gzip" and len(answer.text) > 1000, path
        plain = web.get(url + path, headers={"accept-encoding": "identity"})
        assert "content-encoding" not in plain.headers and plain.content == answer.content, path
    body = {"data": ["x", ["autoregressive"]]}
    event = web.post(f"{url}gradio_api/call/compare", json=body).json()["event_id"]
    with web.stream("GET", f"{url}gradio_api/call/compare/{event}") as stream:
        assert "content-encoding" not in stream.headers
        assert "event: generating" in next(stream.iter_text())  # the first event comes before the others


def test_a_program_has_so_many_runs_at_once_and_no_more(url):
    client = web.connect(url)
    arguments = dict(prompt="x", lanes=["autoregressive"], max_new_tokens=1000, api_name="/compare")
    jobs = [client.submit(**arguments) for _ in range(PER_SESSION)]
    for job in jobs:
        next(iter(job))
    refused = list(client.submit(**arguments))
    assert [event["kind"] for event in refused] == ["failed"] and "in progress" in refused[0]["data"]["message"]
    for job in jobs:
        job.cancel()


def test_the_fields_of_the_last_sessions_are_kept_and_no_more(monkeypatch):
    monkeypatch.setattr("viz.page.SESSIONS", 2)
    built = page.build_page(ScriptedBackend())
    page.serve(built, prevent_thread_lock=True, quiet=True)
    try:
        for session in ("first", "second", "third"):
            built.state_holder[session]
        assert [*built.state_holder.session_data] == ["second", "third"]
    finally:
        close(built)


def test_an_address_on_the_internet_has_its_share():
    visits = Visits()

    def enter(session: str, address: str):
        job = visits.present(lambda: SimpleNamespace(cancel=threading.Event()), session, "api", address)
        job.__enter__()
        return job

    jobs = [enter(f"session{i}", "93.184.216.34") for i in range(PER_ADDRESS)]
    with pytest.raises(UserError, match="from your address"):
        enter("another", "93.184.216.34")
    enter("elsewhere", "93.184.216.35")
    jobs += [enter(f"here{i}", "") for i in range(PER_ADDRESS + 1)]  # those on one's own network have no address
    jobs[0].__exit__(None, None, None)
    enter("another", "93.184.216.34")


@pytest.mark.parametrize(
    ("host", "forwarded", "address"),
    [
        ("127.0.0.1", "", ""),
        ("10.1.2.3", "", ""),
        ("93.184.216.34", "", "93.184.216.34"),
        ("93.184.216.34", "1.1.1.1", "93.184.216.34"),  # without a proxy nobody can claim another address
        ("10.1.2.3", "1.1.1.1, 93.184.216.34", "93.184.216.34"),
        ("10.1.2.3", "nonsense", ""),
        ("", "", ""),
    ],
)
def test_a_visitor_s_address_is_what_the_nearest_proxy_saw(host, forwarded, address):
    visitor = SimpleNamespace(client=SimpleNamespace(host=host), headers={"x-forwarded-for": forwarded})
    assert address_of(visitor) == address
    assert address_of(None) == ""


def test_a_run_whose_events_nobody_fetches_is_ended(served, monkeypatch):
    monkeypatch.setattr(api, "GRACE_S", 0.3)
    backend, url = served
    data = ["nobody's", ["autoregressive"], 4000, "", 0.0, "greedy", 0, 1, "", "", "auto"]
    event = web.post(f"{url}gradio_api/call/compare", json={"data": data}).json()["event_id"]
    wait_until(lambda: backend.requests[-1:] and backend.requests[-1].prompt == data[0])  # the run has begun
    wait_until(lambda: not backend._waiting)  # and was ended
    stream = web.get(f"{url}gradio_api/call/compare/{event}").text
    last = json.loads(stream.rstrip().rpartition("data: ")[2])
    assert "not read for too long" in json.dumps(last)


# -- run files from strangers


def test_many_crafted_files_at_once_leave_the_page_answering(url):
    """If all of these waited in the page's own threads, 45 at the same time would block the whole page for minutes."""
    lanes = (f"{name}:0.{i}" for name in ("confidence", "entropy") for i in range(1, 8))
    crafted = make_run(n_tokens=600, match=1.0, lanes=("autoregressive", *lanes), repeats=1, alternatives=0)
    crafted.settings.lanes[1:] = []
    text = run_to_json(crafted)  # every lane needs a panel of thresholds
    with ThreadPoolExecutor(9) as visitors:
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


# -- the endpoint for programs, through gradio_client as in the README


def test_compare_streams_numbered_events_and_ends_with_the_run(url):
    """That the streamed tokens are the run's: test_backends_contract.py, whose Space is such a client."""
    job = web.connect(url).submit(
        prompt="def f():", lanes=["autoregressive", "static:3"], max_new_tokens=10, repeats=2, api_name="/compare"
    )
    events = list(job)
    assert [event["seq"] for event in events] == list(range(len(events)))
    kinds = [event["kind"] for event in events]
    assert kinds[0] == "queued" and kinds[-1] == "finished" and "iterations" in kinds
    run = run_from_json(json.dumps(events[-1]["data"]["run"]))
    assert run.settings.prompt == "def f():" and [trace.lane for trace in run.lanes] == ["autoregressive", "static:3"]
    assert {event["run"] for event in events} == {run.id}


def test_clients_can_apply_gradio_s_differences_between_events():
    def event(lengths, first):
        items = [{"start": 0, "d": [[i, "accepted"] for i in range(n)], "e": None} for n in lengths]
        return keyed_items({"kind": "iterations", "data": {"lane": 0, "first": first, "items": items}})

    before, after = event([5, 4, 6], 0), event([1, 0], 3)
    same_places = event([1, 0, 2], 0)
    assert list(after["data"]["items"]) == ["3", "4"]  # by the iteration's number in the lane
    assert apply_diff(before, diff(before, after)) == after
    assert apply_diff(before, diff(before, same_places)) == same_places


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"prompt": "x", "lanes": "static:5,static:0"}, "static:0 never drafts"),
        ({"prompt": "x", "temperature": "NaN"}, "Temperature must be a number from 0 to 5, not nan"),
        ({"prompt": 5}, "Prompt must be text"),
        ({"prompt": "x", "lanes": [{"a": 1}]}, "Lanes must be a list of texts"),
        ({"prompt": "x", "chat": "yes"}, "Chat must be"),
        ({"prompt": "x", "chat": {"ask": 1}}, "Chat must be"),
    ],
)
def test_what_cannot_run_is_refused_with_a_sentence(url, arguments, sentence):
    events = list(web.connect(url).submit(**arguments, api_name="/compare"))
    assert [event["kind"] for event in events][-1] == "failed"
    assert sentence in events[-1]["data"]["message"]


def test_only_compare_is_offered_to_programs_and_nothing_to_language_models_unasked(url):
    assert list(web.connect(url).view_api(return_format="dict")["named_endpoints"]) == ["/compare"]
    assert web.post(f"{url}gradio_api/mcp/", json={}).status_code in (404, 405)


# -- this project's parts of the page's document


def test_our_parts_are_once_in_each_document_of_gradio():
    page.put_into_document()
    for name in page.TEMPLATES:
        text = templates.env.loader.get_source(templates.env, name)[0]
        for part in (page.head(), f"{page.BEGIN}{{% endraw %}}<gradio-app"):
            assert text.count(part) == 1
