"""The page's tools for language models, called by the official client."""

import json
import sys
from datetime import timedelta
from types import SimpleNamespace

import pytest
from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client

from decoding.analysis.metrics import speedup
from decoding.errors import UserError
from decoding.records.events import Event
from viz.mcp_tools import best_length, check_installed, explain
from viz.mcp_tools import make_run as run_of_tool
from viz.session import Visits

from . import web
from .page_fakes import ScriptedBackend
from .page_server import page_at, write_recordings
from .runs import make_run
from .waiting import in_own_loop

TOOLS = {"compare_policies", "best_speculation_length", "explain_token", "list_pairs"}
LANES = "autoregressive,static:3,oracle"


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    with page_at(ScriptedBackend(), write_recordings(tmp_path_factory.mktemp("recordings")), mcp=True) as url:
        yield url


def ask(url: str, *calls: tuple[str, dict]) -> list:
    """The results of tool ``calls`` in one session; a call None lists the tools."""

    async def talk() -> list:
        async with (
            streamable_http_client(f"{url}gradio_api/mcp/") as (read, write, _),
            ClientSession(read, write, read_timeout_seconds=timedelta(seconds=60)) as session,
        ):
            await session.initialize()
            return [await (session.call_tool(*call) if call else session.list_tools()) for call in calls]

    return in_own_loop(talk())


def answer(result) -> dict | list:
    assert not result.isError, result.content
    assert len(result.content) == 1 and len(result.content[0].text) < 4000  # compact: no run file
    return json.loads(result.content[0].text)


def test_the_tools_are_typed_and_described_and_the_page_s_events_stay_private(url):
    (listed,) = ask(url, None)
    tools = {tool.name: tool for tool in listed.tools}
    assert set(tools) == TOOLS and all(tool.description for tool in tools.values())
    arguments = tools["compare_policies"].inputSchema["properties"]
    assert set(arguments) == {"prompt", "lanes", "max_new_tokens", "pair", "repeats", "picture"}
    assert arguments["max_new_tokens"]["type"] == "integer" and arguments["prompt"]["description"]
    assert arguments["max_new_tokens"]["description"].endswith("From 1 to 256.")  # as it is refused below


def test_a_comparison_its_token_and_the_link_to_its_run(url):
    (first,) = ask(url, ("compare_policies", {"prompt": "def f():", "lanes": LANES, "max_new_tokens": 40}))
    answered = answer(first)
    assert [lane["lane"] for lane in answered["lanes"]] == LANES.split(",") and answered["link"].startswith(url)
    assert answered["lanes"][0]["speedup"] == 1.0 and answered["lanes"][1]["same_text_as_plain_decoding"] is True
    assert web.get(answered["link"]).status_code == 200
    call = {"run": answered["run"], "lane": "static:3", "position": 7.0}
    (second, missing) = ask(url, ("explain_token", call), ("explain_token", call | {"lane": "static:99"}))
    assert answer(second)["fate"] in ("accepted", "correction", "bonus") and "position 7" in answer(second)["where"]
    assert missing.isError and "it has autoregressive, static:3, oracle" in missing.content[0].text


def test_the_best_length_and_the_pairs(url):
    lengths, pairs = ask(url, ("best_speculation_length", {"prompt": "x", "max_new_tokens": 60}), ("list_pairs", {}))
    answered = answer(lengths)
    simulated = {int(sl): value for sl, value in answered["simulated_speedups"].items()}
    assert set(simulated) == set(range(1, 21)) and max(simulated.values()) == answered["simulated_speedup_at_best"]
    assert simulated[answered["best_speculation_length"]] == answered["simulated_speedup_at_best"]
    assert [pair["name"] for pair in answer(pairs)] == ["toy"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"prompt": " "}, "prompt is empty"),
        ({"prompt": "x", "lanes": "static:0"}, "never drafts"),
        ({"prompt": "x", "max_new_tokens": 257}, "must be a whole number from 1 to 256, not 257"),
    ],
)
def test_bad_input_is_an_error_with_a_sentence_and_no_traceback(url, capfd, arguments, sentence):
    (result,) = ask(url, ("compare_policies", arguments))
    assert result.isError and sentence in result.content[0].text
    assert "Traceback" not in capfd.readouterr().err


def test_a_run_that_is_stopped_is_a_sentence():
    stopped = SimpleNamespace(compare=lambda request, cancel, run: iter([Event(run, 0, "cancelled", {})]))
    asked = {"prompt": "x", "lanes": "static:3", "max_new_tokens": 8}
    with pytest.raises(UserError, match="The run was stopped"):
        in_own_loop(run_of_tool(stopped, None, Visits(), None, asked))


def test_a_missing_package_is_a_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "mcp", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match="requirements-mcp.txt"):
        check_installed()


def test_every_position_is_explained_and_figures_are_the_run_s():
    run = make_run(lanes=("autoregressive", "static:5", "oracle"))
    for lane in run.lanes:
        for position, token in enumerate(lane.output):
            answered = explain(run, lane.lane, position)
            assert answered["fate"] not in ("rejected", "dropped") and f"position {position} " in answered["where"]
            assert run.vocab[token].bytes or answered["text"] == run.vocab[token].text
    measured = {lane["lane"]: lane["speedup"] for lane in best_length(run)["measured"]}
    assert measured["static:5"] == round(speedup(run, run.lanes[1]).median, 3)
    for position in (-1, 10**9, "3", None):
        with pytest.raises(UserError, match="give a position"):
            explain(run, "static:5", position)
