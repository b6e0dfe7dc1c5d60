"""Lane strings and how they are parsed."""

from __future__ import annotations

import pytest

from decoding.errors import UserError
from decoding.lookahead.lanes import expand_lanes, parse_lane


@pytest.mark.parametrize(
    ("text", "draft", "policy", "argument"),
    [
        ("autoregressive", None, "autoregressive", None),
        ("static:5", None, "static", "5"),
        (" wide-1x384/static:5 ", "wide-1x384", "static", "5"),
        ("org/model/confidence:0.4", "org/model", "confidence", "0.4"),
        ("ngram/static:10", "ngram", "static", "10"),
        ("oracle:best", None, "oracle", "best"),
        ("specdecpp:auto", None, "specdecpp", "auto"),
    ],
)
def test_a_lane_string_is_taken_apart(text, draft, policy, argument):
    lane = parse_lane(text)
    assert (lane.draft, lane.policy, lane.argument) == (draft, policy, argument)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("static:10000", "from 1 to 20"),
        ("static:0", "autoregressive"),
        ("static:-3", "from 1 to 20"),
        ("static:5.5", "from 1 to 20"),
        ("static", "static:5"),
        ("static:", "colon"),
        ("warp:9", "no policy 'warp'"),
        ("", "no policy"),
        ("confidence:nan", "from 0 to 1"),
        ("confidence:1.5", "from 0 to 1"),
        ("oracle:0", "oracle:20"),
        ("oracle:inf", "oracle:20"),
        ("autoregressive:3", "just autoregressive"),
        ("small/autoregressive", "just autoregressive"),
        ("heuristic:5", "just heuristic"),
        ("../../etc/static:5", "cannot be the name"),
        ("/static:5", "cannot be the name"),
        ("x" * 500, "no policy"),
    ],
)
def test_a_bad_lane_string_is_answered_with_a_sentence(text, says):
    with pytest.raises(UserError, match=r"\.$") as caught:
        parse_lane(text)
    assert says in str(caught.value) and len(str(caught.value)) < 300


def test_ranges_hold_both_ends():
    names = [lane.text for lane in expand_lanes("static:1..4, confidence:0.2..0.4/0.05,oracle")]
    assert names == [
        *(f"static:{n}" for n in range(1, 5)),
        *(f"confidence:{t}" for t in ("0.2", "0.25", "0.3", "0.35", "0.4")),
        "oracle",
    ]


@pytest.mark.parametrize(
    "text",
    ["static:5..1", "confidence:0..1/0", "confidence:0..1/0.0001", "static:1..", "static:..", "", ",,", "static:1..25"],
)
def test_bad_ranges_are_answered_with_a_sentence(text):
    with pytest.raises(UserError):
        expand_lanes(text)
