"""Lessons as data, and the recordings that they use."""

import json
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decoding.backends.recorded import OF_LESSONS, RECORDINGS, read_index
from decoding.errors import UserError
from decoding.records.suites import load_lessons
from viz.lessons import LESSONS, MAX_BYTES, known_facts, lesson_faults, read_lesson, recordings_of, shipped_lessons


def a_lesson(**changes):
    steps = [{"title": "One", "text": ["The best SL is {best_sl}."]}]
    return dict(id="mine", title="Mine", about="about", minutes=3, recording="some-run", steps=steps) | changes


def refused(lesson) -> str:
    with pytest.raises(UserError) as refusal:
        read_lesson(lesson if isinstance(lesson, str) else json.dumps(lesson))
    return str(refusal.value)


def a_step(**changes):
    return a_lesson(steps=[{"title": "One", "text": ["Text."], **changes}])


def a_question(right):
    """A question with two answers that are right if ``right``."""
    return a_step(question={"text": "?", "answers": [{"text": "a", "right": right, "why": "w"}] * 2})


def test_seven_lessons_ship_and_each_asks_questions():
    lessons = shipped_lessons()
    ids = "ten-steps one-sl choosing-a-draft dice a-draft-that-cannot-see tree what-the-draft-may-read"
    assert [lesson["id"] for lesson in lessons] == ids.split()
    assert all(any("question" in step for step in lesson["steps"]) for lesson in lessons)
    assert len(lessons[0]["steps"]) == 10


def test_the_documented_example_is_a_lesson():
    text = (LESSONS / "README.md").read_text(encoding="utf-8")
    assert read_lesson(re.search(r"```json\n(.*?)```", text, re.DOTALL)[1])["id"] == "my-lesson"


def test_facts_are_those_that_the_browser_computes_and_each_is_used():
    assert {"best_sl", "c", "check6", "wrong_speedup", "held"} <= known_facts()
    used = re.findall(r"\{(\w+)\}", json.dumps(shipped_lessons()))
    steps = [step for lesson in shipped_lessons() for step in lesson["steps"]]
    answers = [one for step in steps for one in step.get("question", {}).get("answers", ())]
    used += [fact for step in steps for fact in step["needs"]]
    used += [word for one in answers if isinstance(one["right"], str) for word in one["right"].split()]
    assert known_facts() - set(used) == set()


@pytest.mark.parametrize(
    ("lesson", "sentence"),
    [
        ("", "not a lesson file"),
        ("[]", "not a lesson file"),
        ("[" * 100_000, "not a lesson file"),
        ("\ud800", "not a lesson file"),
        ("x" * (MAX_BYTES + 1), "larger than 200 kB"),
        (a_lesson(id="../x"), "at id"),
        (a_lesson(steps=[]), "at steps"),
        (a_lesson(script="alert(1)"), "at script"),
        (
            a_step(text=["{nonsense}"]),
            "at steps, no. 1, text, no. 1: there is no fact {nonsense}; lessons/README.md says",
        ),
        (a_step(text=["Fine.", "{best_s}"]), "text, no. 2: there is no fact {best_s}; did you mean {best_sl} or"),
        (a_step(title="SL {best_sl}"), "at steps, no. 1, title: {best_sl} is not filled in here"),
        (a_lesson(title="SL {best_sl}"), "at title: {best_sl} is not filled in here"),
        (a_lesson(about="Why {c}?"), "at about: {c} is not filled in here"),
        (a_lesson(goals=["say {c}"]), "at goals, no. 1: {c} is not filled in here"),
        (a_step(show={"view": "steps", "lane": "nothing:9"}), "lane: There is no policy 'nothing'"),
        (a_step(show={"view": "video"}), "at steps, no. 1, show, view"),
        (a_step(done="answered"), "has no question"),
        (a_step(done="stepped"), "does not show the view “steps”"),
        (a_step(needs=["love"]), "an unknown fact: love"),
        (a_question(False), "no answer is right"),
        (a_question("alert(1)"), "not a comparison of facts"),
        (a_question("best_sl > love"), "not a comparison of facts"),
        (a_question("5 < best_sl"), "not a comparison of facts"),
    ],
)
def test_what_is_no_lesson_is_refused_with_a_sentence(lesson, sentence):
    said = refused(lesson)
    assert sentence in said
    assert len(said) < 1500


TEXTS = st.text(st.characters(exclude_categories=("Cs",)), max_size=9)


@given(st.recursive(st.none() | st.booleans() | TEXTS | st.integers(), st.lists, max_leaves=9))
@settings(max_examples=40)
def test_no_json_breaks_the_reader(value):
    refused(value if isinstance(value, str) else a_lesson(steps=value))


def test_a_broken_lesson_is_left_out_and_named_with_its_step(tmp_path: Path):
    broken = a_lesson(steps=[a_lesson()["steps"][0], {"title": "Two", "text": ["{nonsense}"], "done": "answered"}])
    for name, text in (("1-good", json.dumps(a_lesson())), ("2-cut", "{"), ("3-bad", json.dumps(broken))):
        (tmp_path / f"{name}.json").write_text(text, encoding="utf-8")
    assert [lesson["id"] for lesson in shipped_lessons(tmp_path)] == ["mine"]
    cut, bad = lesson_faults(tmp_path)
    assert "2-cut.json" in cut and "3-bad.json" in bad and "at steps, no. 2" in bad
    assert lesson_faults() == ()


NUMBER = r"(\d+(?:\.\d+)?)"
STEPS = [(lesson["id"], step) for lesson in shipped_lessons() for step in lesson["steps"]]
FOLLOWS = {  # title of a step: what follows from the numbers of its question, in their order
    "What it gains": lambda guess, check: [
        *[check, 1.5, 1.5 * check, guess + check, (guess + check) / 1.5],
        *[1, 1 + check, (1 + check) / 1.5],  # a guess of 1 ms
    ],
    "More guesses are not always better": lambda guess, check, sl, held, further, more: [
        *[sl, held, held + 1, sl * guess + check, (sl * guess + check) / (held + 1)],
        *[further, more, more + 1, further * guess + check, (further * guess + check) / (more + 1)],
        *[1000 * (held + 1) / (sl * guess + check), 1000 * (more + 1) / (further * guess + check)],
    ],
    "Keep a guess with probability min(1, p/q)": lambda q, p: [q, p, p / q, 1],
    "Wider or deeper?": lambda a, b, after: [b, a / 100, after / 100, a, after, a * after / 100, 100],
}


@pytest.mark.parametrize(("lesson", "step"), STEPS, ids=lambda one: one if isinstance(one, str) else one["title"])
def test_each_number_written_in_an_answer_follows_from_its_question(lesson, step):
    question = step.get("question", {"text": "", "answers": []})
    given = [float(number) for number in re.findall(NUMBER, question["text"])]
    known = FOLLOWS[step["title"]](*given) if step["title"] in FOLLOWS else [*given, 1]
    for text in (one[part] for one in question["answers"] for part in ("text", "why")):
        for number in re.findall(NUMBER, re.sub(r"\{\w+\}", "", text)):
            digits = len(number.partition(".")[2])
            assert number in {f"{value:.{digits}f}" for value in known}, text
        for ms, tokens, each in re.findall(rf"{NUMBER} ms for {NUMBER} tokens(?: is|,) {NUMBER} ms per token", text):
            assert f"{float(ms) / float(tokens):.1f}" == each, text
        for tokens, ms, rate in re.findall(rf"{NUMBER} tokens in {NUMBER} ms(?: are|,) {NUMBER}(?: tokens)? per", text):
            assert f"{1000 * float(tokens) / float(ms):.0f}" == rate, text


@pytest.mark.parametrize(("lesson", "step"), STEPS, ids=lambda one: one if isinstance(one, str) else one["title"])
def test_a_number_written_in_a_lesson_is_that_of_the_fact_or_the_lane_that_it_is_about(lesson, step):
    texts = [*step["text"], *(one["why"] for one in step.get("question", {}).get("answers", ()))]
    show = step.get("show", {"view": ""})
    lane = show["lane"] if show["view"] == "steps" else ""
    for text in texts:
        for size, named in re.findall(r"(?:over|check of) (\d+)[^.{]*\{check(\d+)\}", text):
            assert size == named, text
        if lane.startswith("static:"):
            assert {f"static:{sl}" for sl in re.findall(r"SL (\d+)", text)} <= {lane}, text
        for percent in re.findall(r"less than (\d+)% sure", text):
            assert lane == f"confidence:{int(percent) / 100:g}"


# -- recordings


def test_every_recording_that_a_lesson_names_is_there():
    showcase, own = ({info.id for info in read_index(folder)} for folder in (RECORDINGS, OF_LESSONS))
    named = set().union(*map(recordings_of, shipped_lessons()))
    assert own <= named <= showcase | own
    assert own == {prompt.id for prompt in load_lessons()}, "the command records all that the showcase lacks"
