"""Kept runs, the table of a run, and the browser's requests to the server, those of the Learn tab among them."""

import base64
import csv
import io
import json
import os
import subprocess
import sys
import tempfile
import textwrap
import time
import zlib
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from itertools import product
from pathlib import Path

import pytest

from decoding.backends.recorded import OF_LESSONS, RecordedBackend
from decoding.errors import UserError
from decoding.records.proposal import depths_of
from decoding.records.run_file import run_from_json, run_to_json, save_run
from viz.export import run_csv
from viz.lessons import shipped_lessons
from viz.player.details import token_details
from viz.server_functions import answers
from viz.session import Visits
from viz.store import DAYS, MAX_FRAGMENT_CHARS, SHARED_BYTES, Newest, RunStore, Shelf

from .page_server import write_recordings
from .runs import HOSTILE, make_run
from .toy import ToyPair, quick_run

pytestmark = pytest.mark.usefixtures("files_read_here")

LANES = ("autoregressive", "static:5", "oracle")


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setattr("viz.store.KEEP", 3)
    monkeypatch.setattr("viz.store.WARM", 2)
    save_run(make_run(identifier="first", lanes=LANES), tmp_path / "first.json")
    return RunStore(RecordedBackend(tmp_path))


def functions_of(store: RunStore) -> dict:
    return {function.__name__: function for function in answers(store, Visits())}


@pytest.fixture
def functions(store):
    return functions_of(store)


@pytest.fixture(scope="module")
def learn(tmp_path_factory):
    """The functions of a page with a quick and a slow run."""
    slow = make_run(identifier="slow", match=0.2, c=0.9)
    folder = tmp_path_factory.mktemp("recordings")
    return functions_of(
        RunStore(RecordedBackend(write_recordings(folder, make_run(identifier="quick", match=0.97), slow)))
    )


def test_only_the_last_few_are_kept_and_the_rest_are_a_sentence(store):
    for number in range(5):
        store.add(make_run(identifier=f"run{number}", lanes=LANES, n_tokens=20))
    assert store.get("run2").id == "run2" and len(store._warm._kept) <= 2
    store.add(make_run(identifier="run5", lanes=LANES, n_tokens=20))  # takes the place of run2, which was just read
    assert {path.stem for path in Path(store._folder.name).glob("*.json")} == {"run3", "run4", "run5"}
    for gone in ("run0", "run2"):
        with pytest.raises(UserError, match="no longer, kept here"):
            store.get(gone)


def test_what_was_kept_or_asked_for_last_stays():
    newest = Newest(2)
    newest.keep("a", 1), newest.keep("b", 2)
    assert newest.get("a") == 1
    newest.keep("c", 3)
    assert [newest.get(name) for name in ("a", "b", "c", None, ["a"])] == [1, None, 3, None, None]


def test_the_folder_of_a_killed_page_is_removed_by_the_next_one_and_that_of_a_living_page_stays(tmp_path, monkeypatch):
    script = """
        import sys, tempfile
        from decoding.files import ProcessFolder
        tempfile.tempdir = sys.argv[1]
        folder = ProcessFolder("speculoscope-runs-")  # as a RunStore has
        print(folder.name, flush=True)
        sys.stdin.read()
    """
    command = [sys.executable, "-c", textwrap.dedent(script), str(tmp_path)]
    options = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with subprocess.Popen(command, **options) as living, subprocess.Popen(command, **options) as killed:
        kept, left = (Path(page.stdout.readline().strip()) for page in (living, killed))
        assert kept.parent == left.parent == tmp_path and kept.is_dir() and left.is_dir()
        killed.kill()
        killed.wait()
        assert left.is_dir()
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        store = RunStore(RecordedBackend(tmp_path))
        store.add(make_run(identifier="mine", lanes=LANES, n_tokens=20))
        assert not left.exists() and kept.is_dir() and store.get("mine").id == "mine"
    store._folder.cleanup()
    assert not list(tmp_path.iterdir())  # the living page has ended by itself


def test_a_folder_without_an_owner_s_file_is_left_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "speculoscope-runs-other").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "owner").touch()
    (tmp_path / "speculoscope-runs-link").symlink_to(tmp_path / "elsewhere")
    RunStore(RecordedBackend(tmp_path))._folder.cleanup()
    left = {"elsewhere", "speculoscope-runs-link", "speculoscope-runs-other"}
    assert {path.name for path in tmp_path.iterdir()} == left
    assert (tmp_path / "elsewhere" / "owner").exists()


@pytest.mark.parametrize("name", ["../first", "x/../first", "first\n", "", "a" * 65, None, 5, "first.json", *HOSTILE])
def test_a_name_that_is_none_is_refused(store, name):
    with pytest.raises(UserError, match="not the name of a run"):
        store.get(name)


def test_the_table_has_a_row_per_token_and_no_cell_that_begins_a_formula():
    run = make_run(hostile=True, lanes=LANES)
    run.vocab[0].text = "=HYPERLINK(1)"
    rows = list(csv.DictReader(io.StringIO(run_csv(run))))
    tokens = [token for trace in run.lanes for it in trace.iterations for token in [*it.drafted, it.emitted] if token]
    assert [int(row["id"]) for row in rows] == [token.id for token in tokens]
    assert [json.loads(row["text"]) for row in rows] == [run.vocab[token.id].text for token in tokens]
    assert not any(row[name][:1] in "=+-@" for row in rows for name in ("lane", "text", "fate"))
    kept = [int(row["id"]) for row in rows if row["lane"] == "static:5" and row["fate"] not in ("rejected", "dropped")]
    assert kept == run.lanes[1].output
    assert [int(row["position"]) for row in rows if row["lane"] == "autoregressive"] == list(range(88))
    for name in ("=1+1", "+1", "-1", "@SUM(1)", "\t=1"):
        run.lanes[0].lane = name
        assert next(csv.DictReader(io.StringIO(run_csv(run))))["lane"] == f"'{name}"


def test_the_table_has_the_place_for_which_each_guess_of_a_tree_was_made():
    run = quick_run(["tree:6"], ToyPair(agree=0.7))
    rows = csv.DictReader(io.StringIO(run_csv(run)))
    expected = []
    for it in run.lanes[0].iterations:
        depths = depths_of(it.parents) if it.parents else range(it.n_drafted)
        expected += [it.start + depth for depth in (*depths, *([it.n_accepted] if it.emitted else []))]
    assert [int(row["position"]) for row in rows] == expected
    assert any(it.parents for it in run.lanes[0].iterations)
    for number, it in enumerate(run.lanes[0].iterations):
        n = (it.parents or []).count(it.n_accepted - 1)  # of the guesses for the place of the target's own token
        why = token_details(run, 0, number, it.n_drafted)["why"]
        assert "replaces" not in why or (f"{n} rejected guesses" in why) == (n > 1)


def test_the_size_of_opened_files_is_counted_in_bytes_and_the_oldest_ones_go(tmp_path, monkeypatch):
    monkeypatch.setattr("viz.store.KEEP_BYTES", 100)
    store = RunStore(RecordedBackend(tmp_path))
    store.keep("opened-a", "x" * 60)
    store.keep("opened-b", "é" * 40)  # 80 bytes
    for name, sentence in (("opened-a", "There is no recording"), ("opened-b", "run file")):
        with pytest.raises(UserError, match=f"no longer, kept here.*{sentence}"):
            store.get(name)


@pytest.mark.parametrize(("kind", "mime"), [("json", "application/json"), ("csv", "text/csv"), ("html", "text/html")])
def test_a_file_that_is_taken_has_a_name_and_says_what_it_is(functions, kind, mime):
    file = functions["take"]({"run": "first", "kind": kind})
    assert (file["name"], file["mime"]) == (f"speculoscope-first.{kind}", mime) and file["text"]


def test_a_link_to_a_small_run_carries_it_and_a_larger_one_is_kept_until_a_date(store, functions, tmp_path):
    shelf = Shelf(tmp_path / "shared", SHARED_BYTES, days=DAYS)
    store.shared = shelf
    small, large = (make_run(identifier=name, lanes=LANES, n_tokens=n) for name, n in (("small", 10), ("large", 300)))
    for run in (small, large):
        store.add(run)
    packed = functions["take"]({"run": "small", "kind": "link"})["text"].removeprefix("?t=0.000#run=")
    text = zlib.decompress(base64.urlsafe_b64decode(packed + "=" * (-len(packed) % 4))).decode()
    assert run_from_json(text) == small and len(packed) <= MAX_FRAGMENT_CHARS
    link = functions["take"]({"run": "large", "kind": "link", "t": 2})["text"]
    ends = datetime.now(timezone.utc).date() + timedelta(days=DAYS)
    assert link == f"?run=large&t=2.000&until={ends}"
    for t in (-1, 1e9, "2"):
        assert functions["take"]({"run": "first", "kind": "link", "t": t})["text"] == "?run=first&t=0.000"
    later = RunStore(RecordedBackend(tmp_path))  # the page was started again
    later.shared, later._warm = shelf, Newest(0)
    assert later.get("large") == large and later.origin("large") == "live"
    store.add(replace(large, lanes=large.lanes[:2]))  # the run goes on: the link leads to what it is by then
    assert len(RunStore.get(later, "large").lanes) == 2
    long_ago = time.time() - 86_400 * (DAYS + 1)
    os.utime(tmp_path / "shared" / "large.json", (long_ago, long_ago))
    with pytest.raises(UserError, match="no longer, kept here"):
        later.get("large")
    store.shared.keep(small.id, run_to_json(small))
    assert [path.name for path in (tmp_path / "shared").iterdir()] == ["small.json"]
    narrow = Shelf(tmp_path / "shared", 1000 + (tmp_path / "shared" / "small.json").stat().st_size)
    assert narrow.keep("newer", run_to_json(replace(small, id="newer"))) == ["small"]
    assert [path.name for path in (tmp_path / "shared").iterdir()] == ["newer.json"], "the oldest goes"


@pytest.mark.parametrize(
    ("name", "query"),
    [
        *product(
            ("open_run", "open_file", "take", "learn_lesson", "learn_export"),
            ("x", None, [], {}, {"run": "../../etc"}, {"text": 3}, {"lesson": "x", "run": None}),
        ),
        ("details", {"run": "first", "lane": 99, "iteration": 0, "index": 0}),
        ("details", {"run": "first", "lane": -1, "iteration": 0, "index": 0}),
        ("details", {"run": "first", "lane": True, "iteration": 0, "index": 0}),
        ("details", {"run": "first", "lane": 1, "iteration": 10**9, "index": 0}),
        ("details", {"run": "first", "lane": 1, "iteration": 0, "index": "0"}),
        ("figures", {"run": None}),
        ("take", {"run": "first", "kind": "exe"}),
        ("take", {"run": "first", "kind": ["json"]}),
        ("missed", {"run": "first", "first": -1}),
        ("missed", {"run": "first"}),
    ],
)
def test_a_malformed_question_is_answered_with_a_sentence(functions, name, query):
    query = {"kind": "link" if name == "take" else "learn"} | query if isinstance(query, dict) else query
    answer = functions[name](query)
    assert set(answer) == {"error"} and answer["error"].endswith((".", ")")), answer
    assert "our fault" not in answer["error"]


def test_figures_are_those_of_all_timings_so_far(store, functions):
    whole = make_run(identifier="mine", lanes=LANES, repeats=3)
    first = replace(whole, lanes=[replace(trace, repeats=trace.repeats[:1]) for trace in whole.lanes])
    unexplained = [
        replace(trace, iterations=[replace(it, holds=None) for it in trace.iterations]) for trace in first.lanes
    ]
    store.drawn = lambda kind, run: [kind, run_to_json(store.get(run))]
    for run in (replace(first, chains={}), replace(first, lanes=unexplained), first, whole):
        store.add(run)
        assert functions["figures"]({"run": "mine"})["figures"] == ["figures", run_to_json(run)]


# -- the Learn tab's requests


def test_the_index_names_runs_and_lessons(learn):
    index = learn["learn_index"]({})
    assert [one["id"] for one in index["recordings"]][:2] == ["quick", "slow"]
    assert [lesson["id"] for lesson in index["lessons"]] == [lesson["id"] for lesson in shipped_lessons()]


def test_a_run_comes_with_what_its_replay_needs(learn):
    payload = learn["open_run"]({"run": "quick", "kind": "learn"})["payload"]
    assert payload["lanes"][1]["name"] == "Static 5"
    assert len(payload["lanes"][1]["times"]) == 4 * len(payload["lanes"][1]["details"])
    assert payload["finish"] == "length"
    assert ["rule", "greedy"] in payload["settings"]


def test_the_lessons_runs_open_in_the_race_too(learn):
    for info in RecordedBackend(OF_LESSONS).recordings():
        asked = [{"run": info.id, "kind": kind} for kind in ("payload", "learn")]
        race, lesson = [learn["open_run"](query)["payload"] for query in asked]
        assert race["shows"] == info.shows and lesson["title"] == info.title
        assert "details" in lesson["lanes"][0] and "details" not in race["lanes"][0]
    assert "has the wrong form" in learn["open_run"]({"run": "quick", "kind": "figures"})["error"]


def test_an_exported_lesson_holds_its_run_and_lets_no_text_escape(learn):
    lesson = shipped_lessons()[0] | {"title": "</script><img src=x onerror=alert(1)>"}
    page = learn["learn_export"]({"lesson": json.dumps(lesson), "run": "quick"})
    assert page["name"] == "speculoscope-ten-steps.html"
    assert "<img src=x" not in page["text"]
    assert "default-src 'none'" in page["text"]


def test_an_exported_lesson_holds_the_recordings_that_it_names_and_that_are_here(learn, monkeypatch):
    first, *others = shipped_lessons()[0]["steps"]
    steps = [first | {"recording": "slow"}, *(one | {"recording": "elsewhere"} for one in others)]
    lesson = shipped_lessons()[0] | {"steps": steps}
    page = learn["learn_export"]({"lesson": json.dumps(lesson), "run": "quick"})["text"].replace(" ", "")
    assert page.count('"id":"slow"') == page.count('"id":"quick"') == 1
    monkeypatch.setattr("viz.server_functions.MAX_RUNS", 1)
    for run, said in (("quick", "shows more than 1 runs, the most that one file holds"), (None, "Choose a run first")):
        assert said in learn["learn_export"]({"lesson": json.dumps(lesson), "run": run})["error"]
