"""The endpoint for programs, through gradio_client as in the README."""

import json

import pytest
from gradio.utils import diff
from gradio_client.utils import apply_diff

from decoding.records.run_file import run_from_json
from viz.api import keyed_items

from . import web
from .page_server import scripted_page


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    with scripted_page(tmp_path_factory.mktemp("recordings"), pause_s=0.002) as (_, url):
        yield url


def test_compare_streams_numbered_events_and_ends_with_the_run(url):
    """That the streamed tokens are the run's: test_backends_contract.py, whose Space is such a client."""
    job = web.connect(url).submit(
        prompt="def f():", lanes=["autoregressive", "static:3"], max_new_tokens=40, repeats=2, api_name="/compare"
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
