"""The Learn tab's requests to the server."""

import json

import pytest

from decoding.backends.recorded import RecordedBackend
from tests.page_server import write_recordings
from tests.runs import make_run
from tests.waiting import in_own_loop
from viz.learn.lessons import OWN_RECORDINGS, shipped_lessons
from viz.learn.roles import find_roles, readable_runs
from viz.learn.tab import learn_answers
from viz.player.payload import run_payload
from viz.server_functions import answers
from viz.session import Visits
from viz.store import RunStore

pytestmark = pytest.mark.usefixtures("files_read_here")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    slow = make_run(identifier="slow", match=0.2, c=0.9)
    return write_recordings(tmp_path_factory.mktemp("recordings"), make_run(identifier="quick", match=0.97), slow)


@pytest.fixture(scope="module")
def functions(folder):
    store = RunStore(RecordedBackend(folder))
    return {function.__name__: function for function in (*answers(store, Visits()), *learn_answers(store))}


def test_the_index_names_runs_lessons_and_what_each_run_shows(functions):
    index = functions["learn_index"]({})
    assert [one["id"] for one in index["recordings"]][:2] == ["quick", "slow"]
    assert [lesson["id"] for lesson in index["lessons"]] == [lesson["id"] for lesson in shipped_lessons()]
    assert index["roles"]["burst"] == "quick"
    assert index["roles"]["loses"] == "slow"


def test_the_lessons_bring_the_runs_that_they_need():
    own = RecordedBackend(OWN_RECORDINGS)
    roles = find_roles(readable_runs(own))
    assert {"everyday", "sampling", "coupling", "drafts", "loses"} <= set(roles)
    guesses = [one for trace in own.load(roles["sampling"]).lanes for it in trace.iterations for one in it.drafted]
    chances = [one.accept_probability for one in guesses if one.accept_probability is not None]
    assert min(chances) < 1, "the lesson shows a guess that is kept with a probability below 1"


def test_a_run_comes_with_what_its_replay_needs(functions):
    payload = functions["open_run"]({"run": "quick", "kind": "learn"})["payload"]
    assert payload["lanes"][1]["name"] == "Static 5"
    assert len(payload["lanes"][1]["times"]) == 4 * len(payload["lanes"][1]["details"])
    assert payload["finish"] == "length"
    assert ["rule", "greedy"] in payload["settings"]


def test_a_run_without_a_plain_lane_has_no_speedups():
    payload = run_payload(make_run(lanes=("static:5",)))
    assert payload["lanes"][0]["speedup"] is None


def test_the_lessons_runs_open_in_the_race_too(functions):
    for info in RecordedBackend(OWN_RECORDINGS).recordings():
        asked = [{"run": info.id, "kind": kind} for kind in ("payload", "learn")]
        race, learn = [functions["open_run"](query)["payload"] for query in asked]
        assert race["shows"] == info.shows and learn["title"] == info.title
        assert "details" in learn["lanes"][0] and "details" not in race["lanes"][0]
    assert "error" in functions["open_run"]({"run": "quick", "kind": "figures"})


@pytest.mark.parametrize("name", ["open_run", "open_file", "take", "learn_lesson", "learn_export"])
@pytest.mark.parametrize("query", [None, [], {}, {"run": "../../etc"}, {"text": 3}, {"lesson": "x", "run": None}])
def test_nonsense_is_answered_with_a_sentence(functions, name, query):
    query = {**query, "kind": "link" if name == "take" else "learn"} if isinstance(query, dict) else query
    answer = functions[name](query) if name != "open_file" else in_own_loop(functions[name](query, None))
    assert set(answer) == {"error"}
    assert answer["error"].endswith((".", ")")) and "our fault" not in answer["error"]


def test_an_exported_lesson_holds_its_run_and_lets_no_text_escape(functions):
    lesson = shipped_lessons()[0] | {"title": "</script><img src=x onerror=alert(1)>"}
    page = functions["learn_export"]({"lesson": json.dumps(lesson), "run": "quick"})
    assert page["name"] == "speculoscope-ten-steps.html"
    assert "<img src=x" not in page["text"]
    assert "default-src 'none'" in page["text"]


def test_an_exported_lesson_holds_the_runs_of_all_its_steps(functions):
    lesson = next(one for one in shipped_lessons() if one["id"] == "one-sl")
    asked = {"lesson": json.dumps(lesson), "run": "quick", "roles": {"everyday": "quick", "loses": "slow", "x": "y"}}
    page = functions["learn_export"](asked)["text"].replace(" ", "")
    assert '"roles":{"everyday":"quick","loses":"slow"}' in page
    assert page.count('"id":"slow"') == 1 and '"id":"quick"' in page
    assert "error" in functions["learn_export"](asked | {"roles": {"loses": "../../etc"}})
    alone = functions["learn_export"](asked | {"roles": {"loses": ["slow"]}})["text"].replace(" ", "")
    assert '"id":"slow"' not in alone
