"""The form as a link and as a command line, and what is left out of hostile ones."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from urllib.parse import parse_qsl

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decoding.errors import UserError
from decoding.records.generate import ENGINE
from decoding.records.request import SETTINGS, CompareRequest
from viz.settings import command_line, form_of, form_of_run, link_query, read_form, request_of

from .runs import HOSTILE, make_run

FIRST = form_of(CompareRequest(""))
PROMPTS = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\x00"), min_size=1, max_size=60)
CHATS = st.sampled_from([(None, ""), (None, "Be kind."), (True, ""), (True, "Be kind."), (False, "")])
REQUESTS = st.builds(
    lambda asked, **settings: CompareRequest(chat=asked[0], system=asked[1], **settings),
    asked=CHATS,
    prompt=PROMPTS.filter(str.strip),
    lanes=st.lists(st.sampled_from(["autoregressive", "static:5", "ngram/static:10"]), min_size=1, unique=True),
    max_new_tokens=st.integers(1, 4096),
    temperature=st.sampled_from([0.3, 1.0, 2.0]),
    top_p=st.sampled_from([1.0, 0.9]),
    rule=st.sampled_from(["coupling", "sampling"]),
    seed=st.integers(0, 2**31 - 1),
    ignore_eos=st.booleans(),
    dtype=st.sampled_from(["auto", "int4"]),
    stop=st.lists(st.sampled_from(["\t", "END", "a b"]), max_size=2),
)


@given(REQUESTS)
def test_the_form_and_a_link_give_the_request_back(request_):
    assert request_of(form_of(request_)) == request_
    query = dict(parse_qsl(link_query(request_), keep_blank_values=True))
    restored, faults = read_form(query, FIRST, "link")
    assert faults == []
    assert request_of(restored) == request_


@given(REQUESTS)
@settings(max_examples=30)
def test_a_shell_reads_the_command_as_it_was_meant(request_):
    line = command_line(request_)
    assert "\n" not in line
    words = subprocess.run(["bash", "-c", f"printf '%s\\0' {line}"], capture_output=True, env={"LC_ALL": "C.UTF-8"})
    read = words.stdout.decode().split("\0")[:-1]
    assert read[:4] == ["python", "-m", "decoding", "compare"]
    assert f"--prompt={request_.prompt}" in read and f"--lanes={','.join(request_.lanes)}" in read
    assert {"--chat", "--no-chat"} & {*read} == {None: set(), True: {"--chat"}, False: {"--no-chat"}}[request_.chat]
    assert [word for word in read if word.startswith("--system=")] == ["--system=Be kind."] * bool(request_.system)


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_values_stay_text_or_are_left_out_with_a_sentence(text):
    read, faults = read_form(dict.fromkeys(SETTINGS, text), FIRST, "link")
    assert read["prompt"] == text
    named = " ".join(faults)
    checked = "max_new_tokens temperature rule seed repeats top_k top_p dtype weights ignore_eos"
    for name in checked.split():
        assert f"The link's {name} was left out" in named
        assert read[name] == FIRST[name]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("seed", "1e400"),
        ("seed", "nan"),
        ("seed", "-1"),
        ("seed", True),
        ("temperature", "inf"),
        ("top_p", "2"),
        ("lanes", ",".join(f"static:{n}" for n in range(1, 12))),
        ("lanes", [1]),
        ("lanes", ""),
        ("prompt", "x" * 100_001),
        ("prompt", 5),
        ("max_new_tokens", "1.5"),
        ("max_new_tokens", "9" * 5000),
        ("stop", None),
        ("ignore_eos", "yes"),
        ("temperature", "2.5"),
        ("repeats", "10"),
        ("top_p", "0"),
    ],
)
def test_what_does_not_fit_is_left_out(name, value):
    read, faults = read_form({name: value}, FIRST, "link")
    assert len(faults) == 1 and faults[0].startswith(f"The link's {name} was left out: it ")
    assert read == FIRST


def test_a_pair_that_is_not_offered_is_left_out():
    read, faults = read_form({"pair": "nope"}, FIRST, "link", ["toy", "other"])
    assert read["pair"] == "" and faults == ["The link's pair was left out: it must be one of toy, other."]
    assert read_form({"pair": "toy"}, FIRST, "link", ["toy"])[0]["pair"] == "toy"


def test_weights_in_an_older_link_are_the_number_format():
    read, faults = read_form({"weights": "int4"}, FIRST, "link")
    assert (read["dtype"], read["weights"], faults) == ("int4", "auto", [])
    assert form_of(CompareRequest("x", weights="int4", dtype="bfloat16"))["dtype"] == "int4"


def test_unknown_names_are_ignored():
    assert read_form({"__class__": "x", "theme": "y"}, FIRST, "link") == (FIRST, [])


def test_a_very_long_prompt_does_not_go_into_the_link():
    query = link_query(CompareRequest(prompt="é" * 5000, seed=3))
    assert "prompt" not in query and "seed=3" in query.split("&")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"max_new_tokens": None}, "whole number"),
        ({"max_new_tokens": 2.5}, "whole number"),
        ({"lanes": []}, "No lane"),
        ({"prompt": " "}, "prompt is empty"),
        ({"temperature": 0.5}, "greedy rule"),
        ({"target": "x"}, "both a target"),
    ],
)
def test_a_form_that_cannot_run_says_why(changes, sentence):
    with pytest.raises(UserError, match=sentence):
        request_of({**FIRST, "prompt": "x", **changes})


def test_a_run_fills_in_the_form_and_one_of_generate_all_but_its_lanes():
    run = make_run(lanes=("autoregressive", "static:7"), prompt="mine")
    assert form_of_run(run)["lanes"] == ["autoregressive", "static:7"]
    target = replace(run.pair.target, engine=ENGINE)
    lanes = [replace(trace, lane=lane) for trace, lane in zip(run.lanes, ("generate", "assistant/generate"))]
    watched = form_of_run(replace(run, lanes=lanes, pair=replace(run.pair, target=target)))
    assert watched["lanes"] == FIRST["lanes"] and watched["prompt"] == "mine"
