"""The common properties of all policies, the README's table of them, and how lanes are written."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decoding.cli.lists import as_markdown
from decoding.errors import UserError
from decoding.evaluation.prediction import correct
from decoding.evaluation.samples import replay_lane
from decoding.lookahead.base import SL_CAP, DraftState, LaneContext
from decoding.lookahead.fitted import make_policy
from decoding.lookahead.lanes import expand_lanes, is_usable, parse_lane, spec_of
from decoding.lookahead.spec import all_specs, evaluated_lanes, offered_lanes
from tests.evaluations import sample
from tests.runs import make_costs
from viz.choices import lane_choices
from viz.player.names import lane_caption, lane_heading, lane_name, lane_of_name

ROOT = Path(__file__).resolve().parent.parent
COSTS = make_costs(0.1, 0.02)
DECIDING = [lane for lane in evaluated_lanes() if is_usable(lane) and not parse_lane(lane).is_learned]


@pytest.mark.parametrize("spec", all_specs().values(), ids=all_specs())
def test_a_spec_is_whole(spec):
    assert spec.title and spec.source and spec.describe(None) and spec.offered
    assert "1 guesses" not in spec.describe("1")
    assert bool(spec.evaluated) != spec.branches, "trees are evaluated where they are named"
    for lane in (*spec.evaluated, *spec.offered):
        assert parse_lane(lane).spec is spec
    if spec.argument is not None:
        assert parse_lane(spec.argument.example).spec is spec
        for value in spec.argument.sweep:
            parse_lane(f"{spec.name}:{value:g}")
        for beyond in (spec.argument.low - 1, spec.argument.high + 1, float("nan")):
            with pytest.raises(UserError, match=r"\.$"):
                parse_lane(f"{spec.name}:{beyond:g}")
    assert spec.score is None or not spec.score.fixed or spec.argument.sweep, "its panel needs thresholds to try"
    if not spec.learned:
        made = make_policy(parse_lane((spec.evaluated or spec.offered)[0]))
        assert made.name == spec.name and (made.needs <= {"p", "entropy"}), "what a chain holds for a replay"


def start(policy, c: float) -> None:
    policy.reset(LaneContext("shallow", replace(COSTS, draft_step={"shallow": c}), 200))


def started(lane: str, c: float):
    policy = make_policy(parse_lane(lane))
    start(policy, c)
    return policy


def decided(policy) -> tuple:
    """What it does next: its plan, or its decision after one sure guess and the threshold that it had."""
    state = DraftState(tokens=[1], p=[1.0], entropy=[0.0])
    return policy.planned(0), policy.should_draft(state), policy.threshold


@pytest.mark.parametrize("lane", DECIDING)
@given(outcomes=st.lists(st.tuples(st.integers(0, 100), st.integers(0, 100)), max_size=60), c=st.floats(0.0, 3.0))
def test_a_policy_stands_whatever_it_observes(lane, outcomes, c):
    """Also with more guesses than its cap, as when an evaluation removes its stops; a start is like the first, and an
    iteration without room to draft teaches nothing.
    """
    policy, again = started(lane, c), started(lane, c)
    for outcome in ((8, 8), (8, 0)):
        again.observe(*outcome)
    start(again, c)
    for n_drafted, n_accepted in outcomes:
        planned, goes_on, threshold = decided(policy)
        assert planned is None or parse_lane(lane).is_plain or 1 <= planned <= SL_CAP
        assert goes_on in (True, False) and (threshold is None or 0.0 <= threshold <= 1.0)
        assert decided(again) == (planned, goes_on, threshold), "equal outcomes, equal decisions"
        for one in (policy, again):
            one.observe(n_drafted, min(n_drafted, n_accepted))
        again.observe(0, 0)


@pytest.mark.parametrize("lane", DECIDING)
def test_its_errors_can_be_undone_where_guesses_hold_beyond_its_cap(lane):
    samples = [sample("y" * 70 + "n" + "yyn" * 6)]
    found = correct(replay_lane(lane, samples, COSTS))
    best = found["no_errors_s"]
    assert best <= found["never_too_late_s"] + 1e-12 and best <= found["as_it_is_s"] + 1e-12


def test_the_form_offers_every_policy_once():
    lanes = [lane for _, lane in lane_choices([])]
    assert set(offered_lanes()) < set(lanes) and len(set(lanes)) == len(lanes) == len(offered_lanes()) + 1
    assert {parse_lane(lane).policy for lane in lanes} == set(all_specs())


NAMES = {
    "autoregressive": "Plain",
    "wide-1x384/static:5": "Static 5 · wide-1x384",
    "specdecpp:auto": "SpecDec++ auto",
    "oracle:best": "Oracle best",
    "ngram/static:10": "Static 10 · ngram",
}


def test_the_form_calls_lanes_as_the_race_does_and_understands_those_names():
    for lane, name in NAMES.items():
        assert lane_name(lane) == name and lane_heading(lane)["caption"] == lane_caption(lane) != ""
    for name, lane in lane_choices([]):
        assert name.removesuffix(" (fit first)") == lane_name(lane)
        assert lane_heading(lane)["caption"] == lane_caption(lane) != ""
        assert lane_of_name(lane_name(lane)) == lane and lane_of_name(lane) == lane
    assert lane_of_name("static 7") == "static:7" and lane_of_name("Static 7 · small") == "small/static:7"
    assert lane_of_name("conf") == "confidence" and lane_of_name("Orac · small") == "small/oracle"  # typed, then Enter
    assert lane_of_name("Cost") == "Cost" and lane_of_name("") == ""  # of two policies; of none
    assert lane_of_name("Statics 7") == "Statics 7"  # parse_lane says what is wrong with it


def test_a_lane_of_another_version_is_shown_by_its_text():
    lane = "small/warp:9"
    assert lane_name(lane) == lane and lane_caption(lane) == lane_heading(lane)["caption"] != ""
    assert spec_of(lane) is None and is_usable(lane)


def test_the_readme_lists_them():
    """``python -m decoding policies --markdown`` prints the table."""
    assert as_markdown() in (ROOT / "README.md").read_text(encoding="utf-8")


# -- lane strings


@pytest.mark.parametrize(
    ("text", "draft", "policy", "argument"),
    [
        ("autoregressive", None, "autoregressive", None),
        ("static:5", None, "static", "5"),
        (" wide-1x384/static:5 ", "wide-1x384", "static", "5"),
        ("org/model/confidence:0.4", "org/model", "confidence", "0.4"),
        ("confidence:.5", None, "confidence", ".5"),
        ("confidence:1e-05", None, "confidence", "1e-05"),
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
        ("tree:0", "tree:0 never guesses"),
        ("static:-3", "from 1 to 20"),
        ("static:5.5", "from 1 to 20"),
        ("static:05", "from 1 to 20"),
        ("static", "static:5"),
        ("static:", "colon"),
        ("warp:9", "no policy 'warp'"),
        ("", "no policy"),
        ("confidence:nan", "from 0 to 1"),
        ("confidence:1.5", "from 0 to 1"),
        ("confidence:0.4_0", "from 0 to 1"),
        ("confidence:\u0660.4", "from 0 to 1"),
        ("confidence:0.\n4", "from 0 to 1"),
        ("confidence:0." + "4" * 99, "from 0 to 1"),
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


HUGE = "9" * 400  # infinite as a float


@pytest.mark.parametrize(
    "text",
    [
        *("static:5..1", "confidence:0..1/0", "confidence:0..1/0.0001", "static:1..", "static:..", "", ",,"),
        *("static:1..25", f"static:1..{HUGE}", f"static:{HUGE}..{HUGE}", f"confidence:0..1/{HUGE}"),
        f"confidence:0..1/0.{'0' * 320}1",
    ],
)
def test_bad_ranges_are_answered_with_a_sentence(text):
    with pytest.raises(UserError, match=r"\.$") as caught:
        expand_lanes(text)
    assert len(str(caught.value)) < 300
