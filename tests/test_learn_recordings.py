"""Which recordings the lessons use, and the command that records what they need."""

from __future__ import annotations

import pytest

from decoding.errors import UserError
from decoding.records.events import Event
from decoding.records.pairs import PairDescription
from decoding.records.run_file import load_run, to_plain
from decoding.records.trace import Iteration, Token
from tests.runs import make_run
from viz.learn.lessons import shipped_lessons
from viz.learn.roles import GAINED, KINDS, SECOND, find_roles, missing_sights, second_held, shows, wanted_by
from viz.tools.lessons import NEEDED, Needed, record, requests_for

ALWAYS_RIGHT, NEVER_RIGHT = make_run(match=1.0, identifier="right"), make_run(match=0.0, identifier="wrong")


class Scripted:
    """A backend that answers each comparison with the next of some runs."""

    def __init__(self, *runs):
        self.runs = list(runs)

    def compare(self, request, cancel, run_id=None):
        run = self.runs.pop(0)
        yield Event(run_id, 0, "queued", {"place": 0})
        yield (
            Event(run_id, 1, "failed", {"message": "The draft is gone."})
            if run is None
            else Event(run_id, 1, "finished", {"run": to_plain(run)})
        )


@pytest.fixture
def pair(tmp_path):
    for name in ("target", "shallow"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
    drafts = {"shallow": str(tmp_path / "shallow")}
    return PairDescription("toy", "", "embedded", str(tmp_path / "target"), drafts, "shallow")


def needed(tries: int) -> Needed:
    settings = {"prompt": "any text", "lanes": ["autoregressive", "static:5"]}
    return Needed("mine", "everyday", "Mine", "it", settings, [{"seed": seed} for seed in range(tries)])


LESSON = ({"recording": "everyday", "steps": [{"show": {"lane": "static:5", "find": "wasted"}}]},)


def test_what_a_lesson_looks_for_decides_which_run_it_gets():
    runs = [ALWAYS_RIGHT, NEVER_RIGHT]
    for kind, identifier in (("full", "right"), ("burst", "right"), ("wasted", "wrong"), ("rejection", "wrong")):
        wanted = {"everyday": [("static:5", kind)]}
        assert find_roles(runs, wanted)["everyday"] == identifier, kind
    assert shows(ALWAYS_RIGHT, "static:1", "short") and not shows(ALWAYS_RIGHT, "oracle", "short")
    assert not shows(ALWAYS_RIGHT, "no-such-draft/static:1", "short")


def test_what_no_run_shows_is_named():
    assert missing_sights([NEVER_RIGHT], LESSON) == []
    (said,) = missing_sights([ALWAYS_RIGHT], LESSON)
    assert said == "right (everyday) has no iteration of the kind wasted in its lane static:5."
    assert missing_sights([ALWAYS_RIGHT], ({"recording": "coupling", "steps": [{}]},)) == [
        "No recording is of the kind coupling."
    ]


def test_it_is_tried_until_a_run_shows_what_the_lesson_is_about(pair, tmp_path):
    said = record(needed(3), pair, Scripted(ALWAYS_RIGHT, NEVER_RIGHT), tmp_path, LESSON)
    assert "seed 1" in said
    assert load_run(tmp_path / "mine.json").lanes == NEVER_RIGHT.lanes


def test_a_recording_that_fails_leaves_the_old_one(pair, tmp_path):
    record(needed(1), pair, Scripted(NEVER_RIGHT), tmp_path, LESSON)
    before = (tmp_path / "mine.json").read_bytes()
    with pytest.raises(UserError, match="none of 2 runs shows"):
        record(needed(2), pair, Scripted(ALWAYS_RIGHT, ALWAYS_RIGHT), tmp_path, LESSON)
    with pytest.raises(UserError, match="The draft is gone"):
        record(needed(1), pair, Scripted(None), tmp_path, LESSON)
    assert (tmp_path / "mine.json").read_bytes() == before


def test_the_command_s_recordings_are_of_the_kinds_that_lessons_name():
    kinds = {step.get("recording", lesson["recording"]) for lesson in shipped_lessons() for step in lesson["steps"]}
    assert {one.role for one in NEEDED} <= kinds
    assert all(requests_for(one, "toy")[0].prompt for one in NEEDED)
    assert {kind for sights in wanted_by(shipped_lessons()).values() for _, kind in sights} <= {*KINDS, SECOND, GAINED}


@pytest.mark.parametrize(
    ("parents", "p", "held"),
    [
        ([-1, -1], [0.3, 0.5], True),
        ([-1, -1], [0.5, 0.3], False),
        ([-1, 0], [0.3, 0.5], False),
        (None, [0.3, 0.5], False),
    ],
)
def test_a_second_guess_held_if_a_sibling_was_likelier(parents, p, held):
    guesses = [Token(id=1, fate="accepted", p_draft=p[0]), Token(id=2, fate="rejected", p_draft=p[1])]
    assert second_held(Iteration(0, guesses, Token(id=3, fate="correction"), "policy", parents=parents)) is held
