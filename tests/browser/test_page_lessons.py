"""Lessons in a real browser: each to its end, their numbers, on paper, in one file, for teachers."""

import json
import re

import pytest
from playwright.sync_api import expect

from decoding.backends.recorded import RecordedBackend
from tests.page_server import first_run
from viz.export import export_lesson
from viz.lessons import recordings_of, shipped_lessons
from viz.player.payload import run_payload
from viz.store import RunStore

from .conftest import LEARN, learn_tab
from .opening import reload, wait_until
from .pointing import download, open_text, serious_light_or_dark


def lesson_named(name: str) -> dict:
    return next(lesson for lesson in shipped_lessons() if lesson["id"] == name)


def walk(page, lesson: dict, look=lambda number, step: None) -> None:
    """Go through ``lesson`` to its end by its buttons; ``look`` is called at each step, before anything is pressed."""
    steps = lesson["steps"]
    for number, step in enumerate(steps, start=1):
        wait_until(page, f"document.querySelector('.sl-lesson-text h2')?.textContent === {json.dumps(step['title'])}")
        assert f"step {number} of {len(steps)}" in page.locator(".sl-lesson-text .sl-where").inner_text()
        text = page.locator(".sl-lesson-text").inner_text()
        assert "{" not in text
        if not step.get("needs"):
            assert "not recorded in this run" not in text
        look(number, step)
        if "question" in step and page.locator(".sl-answer").count():
            page.locator(".sl-answer").first.click()
            assert page.locator(".sl-answer.sl-right").count() == 1
            assert page.locator(".sl-feedback p").first.inner_text()
        while step.get("done") == "stepped" and "Cost:" not in page.locator(".sl-caption").inner_text():
            page.locator("[data-key=next]").click()
        page.locator(".sl-turn .sl-main").click()
    said = page.locator(".sl-end").inner_text()
    asked = sum("question" in step for step in steps)
    assert f" of {asked} question{'s' * (asked > 1)}, " in said
    assert all(goal in said for goal in lesson["goals"])


def test_a_lesson_of_several_runs_is_walked_on_the_page(there):
    """The others are walked in their files, below."""
    lesson = lesson_named("dice")
    page = there("?lesson=dice")
    walk(page, lesson)
    page.locator(".sl-end").get_by_role("button", name="All lessons").click()
    page.wait_for_selector(".sl-cards")
    assert "done" in page.locator(".sl-cards .sl-card", has_text=lesson["title"]).inner_text()


def test_a_reload_opens_what_was_on_screen(there):
    page, title = there("?lesson=ten-steps&step=2"), ".sl-lesson-text h2"
    page.locator(".sl-turn .sl-main").click()
    shown = page.locator(title).inner_text()
    reload(page)
    expect(learn_tab(page).locator(title)).to_have_text(shown)
    page.get_by_role("tab", name="Race").click()
    reload(page)
    expect(page.get_by_role("tab", name="Race")).to_have_attribute("aria-selected", "true")
    page.get_by_role("tab", name="Learn").click()
    learn_tab(page)


def test_a_lesson_says_when_another_iteration_is_on_screen_than_the_one_it_is_about(there):
    page = there("?lesson=ten-steps&step=4")
    at = page.locator(".sl-caption .sl-where").inner_text().split(" of ")[0]  # "Iteration 5"
    note = page.locator(
        ".sl-lesson-text .sl-note", has_text=f"This step is about {at.lower()} of Static 5; another one"
    )
    assert note.is_hidden()
    page.locator("[data-key=skip]").click()
    assert note.is_visible()
    note.get_by_role("button", name="Back to it").click()
    assert note.is_hidden() and page.locator(".sl-caption .sl-where").inner_text().startswith(f"{at} of ")
    page.get_by_label("Lane", exact=True).select_option("0")
    assert note.is_visible()


def test_a_guess_says_what_its_draft_reads(there):
    page = there("?lesson=what-the-draft-may-read&step=4")
    page.get_by_text(re.compile("^Guess 1: the draft reads states of the target and proposes")).wait_for()
    page.locator("[data-key=next]").click()
    page.get_by_text(re.compile("^Guess 2: the draft proposes")).wait_for()
    page = there("?lesson=what-the-draft-may-read&step=1")
    for _ in range(3):
        page.locator("[data-key=back]").click()
    page.get_by_text(re.compile("^Guess 1: the draft reads the text so far and proposes")).wait_for()


def test_guesses_of_one_pass_are_paid_once(there):
    page = there("?lesson=what-the-draft-may-read&step=5")
    cost = page.locator(".sl-costs .sl-note")
    first = re.match(r"1 draft pass at [0-9.]+", cost.inner_text())
    page.locator("[data-key=next]").click()
    assert "Guess 2" in page.locator(".sl-steps .sl-sentence").inner_text()
    assert first and cost.inner_text().startswith(first[0])


def test_an_open_lesson_speaks_of_the_run_that_is_chosen(there):
    page = there("?lesson=one-sl")
    before = page.locator(".sl-lesson-text").inner_text()
    run = page.get_by_label("Run", exact=True)
    others = [
        value
        for value in run.evaluate("one => [...one.options].map(({ value }) => value)")
        if value != run.input_value()
    ]
    run.select_option(others[0])
    wait_until(page, f"document.querySelector('.sl-lesson-text').innerText !== {json.dumps(before)}")
    assert page.locator(".sl-lesson-text h2").inner_text() == lesson_named("one-sl")["steps"][0]["title"]


def test_a_run_without_a_picture_shows_that_it_has_none(there):
    page = there("?lesson=a-draft-that-cannot-see")
    page.get_by_label("Run", exact=True).select_option("first")
    page.locator(".sl-stage", has_text="This run has no picture.").wait_for()


def test_a_key_answers_no_question_whose_numbers_the_run_lacks(there):
    page = there("?lesson=tree&step=5")
    page.get_by_label("Run", exact=True).select_option("first")
    page.get_by_text("does not contain the numbers for this question").wait_for()
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("1")
    assert page.evaluate(f"{LEARN}.places.lessons.results.size") == 0


def test_the_calculator_follows_its_fields(there):
    steps = lesson_named("ten-steps")["steps"]
    place = next(i for i, step in enumerate(steps, start=1) if step["show"]["view"] == "calculator")
    page = there(f"?lesson=ten-steps&step={place}")
    found = page.locator(".sl-calculator [role=status]")
    assert "5 × 1 ms + 10 ms = 15 ms for 3 + 1 = 4 tokens" in found.inner_text()
    assert "267 tokens a second; plain decoding 100: 2.67×, faster." in found.inner_text()
    page.get_by_label("a guess takes (ms)").fill("9")
    assert "5 × 9 ms + 10 ms = 55 ms" in found.inner_text() and "0.73×, slower." in found.inner_text()
    page.get_by_label("guesses that hold, on average").fill("4.5")
    assert "100 tokens a second; plain decoding 100: no difference." in found.inner_text()
    page.get_by_label("guesses per check, SL").fill("4")
    assert found.inner_text() == "At most 4 can hold: there are no more guesses."
    for wrong in ("0", "-1", ""):
        page.get_by_label("a check takes (ms)").fill(wrong)
        assert "a check takes at least 0.001 ms; the SL is a whole number up to 1,000" in found.inner_text()


def test_the_right_answer_does_not_always_stand_first(there):
    page = there("?learn=lessons")
    places = page.evaluate(
        """() => {
          const learn = document.querySelector('.sp-learn').speculoscopeLearn;
          const place = ({ question }, key) => SpeculoscopeLearn.answersOf(question, learn.known, key)
            .findIndex((one) => one.right);
          return learn.index.lessons.flatMap(({ id, steps }) => steps.flatMap(
            (step, i) => (step.question ? [place(step, `${id}/${i}`)] : [])));
        }"""
    )
    assert set(places) >= {0, 1, 2}


def test_a_lesson_file_is_opened_from_disk_and_a_hostile_one_refused(there):
    page = there("?learn=lessons")
    mine = json.loads(json.dumps(shipped_lessons()[0]))
    mine.update(id="mine", title="<img src=x onerror=window.hacked=1>", path=False, steps=mine["steps"][:1])
    picker = page.locator(".sl-shelf input[type=file]")
    open_text(picker, '{"id": "<script>"}')
    page.wait_for_selector(".sl-status.sl-fault")
    assert "This is not a lesson file" in page.locator(".sl-status").inner_text()
    open_text(picker, " " * 200_001)
    page.get_by_text("mine.json is larger than 200 kB, the limit for a lesson").wait_for()
    open_text(picker, json.dumps(mine))
    page.wait_for_selector(".sl-lesson")
    assert "<img" in page.locator(".sl-lesson .sl-where").first.inner_text()
    assert page.evaluate("window.hacked") is None


def handout(page) -> None:
    """Print the open lesson; what would be printed stays on the page."""
    page.evaluate("void (window.print = () => { window.printed = true; })")
    page.get_by_role("button", name="Print a handout").click()
    page.wait_for_function("window.printed")


def test_a_lesson_prints_as_a_hand_out_with_each_step_on_its_own_run(there):
    lesson = lesson_named("dice")
    page = there("?lesson=dice")
    handout(page)
    printed = page.locator(".sl-print").text_content()
    page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    assert page.locator(".sl-print").count() == 0
    for step in lesson["steps"]:
        assert step["title"] in printed
    assert "Answers" in printed and "How the run was made" in printed
    assert "another run" in printed
    assert "In this run, made with coupling" in printed  # its last step


def test_a_lesson_is_saved_as_one_file_that_works_alone(there, opened):
    """As every lesson does, below; here with the run that is on the page."""
    alone = opened(download(there("?lesson=one-sl"), "Save as one HTML file"))
    for step in lesson_named("one-sl")["steps"][:2]:
        assert alone.locator(".sl-lesson h2").inner_text() == step["title"]
        alone.locator(".sl-turn .sl-main").click()


def test_axe_finds_nothing_serious_light_or_dark(opened):
    page = opened(export_lesson(shipped_lessons()[0], run_payload(first_run(), details=True)), bypass_csp=True)
    for place in ("lessons", "steps", "play", "whatif", "words"):
        page.evaluate(f"learn.goTo({{ place: '{place}' }})")
        if place == "play":
            page.locator("#sl-start").click()
            page.locator("[data-key=on]").click()
        assert serious_light_or_dark(page) == [], place


# In the page, all at once: to ask and to press from here, dozens of times in a lesson, takes most of its walk.
ANSWERS = """() => Array.from(document.querySelectorAll('.sl-answer'), (_, n) => {
  const answer = document.querySelectorAll('.sl-answer')[n];  // drawn anew by the one before
  answer.click();
  return `${answer.querySelector('span').innerText}\\n${document.querySelector('.sl-feedback p').innerText}`;
})"""
PANEL = """() => {
  const find = (selector) => document.querySelector(selector), chosen = (one) => one.selectedOptions[0].text;
  const seen = [];
  const look = () => {
    const stage = find('.sl-stage');
    for (const walk = document.createTreeWalker(stage, NodeFilter.SHOW_TEXT); walk.nextNode(); )
      if (!walk.currentNode.parentElement.closest('select')) seen.push(walk.currentNode.data);
    seen.push(...Array.from(stage.querySelectorAll('select'), chosen), find('.sl-run-line').innerText);
  };
  look();
  for (let left = 99; find('.sl-steps') && !find('.sl-caption').innerText.includes('Cost:'); look()) {
    if (!left--) throw new Error('the iteration has no end');
    find('.sl-bet button')?.click();
    find('[data-key=next]').click();
  }
  return seen.join(' ');
}"""
"""What stands beside the text; for an iteration, from its first step to its last."""
NUMBER = re.compile(r"(\d+(?:\.\d+)?)([%×]?)")


def facts_shown(page, step: dict) -> dict[str, str]:
    """{fact: text on the page}; each text of the step, its question, its answers and their reasons must be there."""
    shown = page.locator(".sl-lesson-text > p:not(.sl-where), .sl-question legend").all_inner_texts()
    shown += page.evaluate(ANSWERS)
    question = step.get("question", {"text": "", "answers": []})
    answers = [f"{one['text']}\n{one['why']}" for one in question["answers"]]
    found = {}
    for written in filter(None, [*step["text"], question["text"], *answers]):
        pattern = re.sub(r"\\\{\w+\\\}", "(.+?)", re.escape(written))
        values = next(match.groups() for text in shown if (match := re.fullmatch(pattern, text)))
        found |= dict(zip(re.findall(r"\{(\w+)\}", written), values, strict=True))
    return found


def is_beside(fact: str, panel: str) -> bool:
    """Whether the panel shows ``fact``: a name as it is, a number also with more digits."""
    number = NUMBER.fullmatch(fact)
    if not number:
        return fact in panel
    value, unit = number.groups()
    digits = len(value.partition(".")[2])
    return any(f"{float(one):.{digits}f}" == value for one, of in NUMBER.findall(panel) if of == unit)


@pytest.fixture(scope="module")
def shipped():
    """The shipped recordings."""
    return RunStore(RecordedBackend())


def in_one_file(lesson: dict, shipped: RunStore) -> str:
    first, *others = [shipped.payload("learn", run) for run in sorted(recordings_of(lesson))]
    return export_lesson(lesson, first, others)


ON_PAPER = {
    "calculator": ".sl-calculator",
    "checks": ".sl-bars",
    "lanes": ".sl-bars",
    "picture": ".sd-picture img",
    "whatif": ".sd-chart",
}


@pytest.mark.parametrize("name", ["ten-steps", "a-draft-that-cannot-see", "tree"])
def test_a_hand_out_shows_what_each_step_speaks_of_and_no_verdict_that_it_asks_for(opened, shipped, name):
    lesson = lesson_named(name)
    page = opened(in_one_file(lesson, shipped))
    handout(page)
    for place, step in enumerate(lesson["steps"], start=1):
        part = page.locator(".sl-handout > section", has_text=f"{place}. {step['title']}").first
        show = step.get("show") or {"view": None}
        if show["view"] in ON_PAPER:
            assert part.locator(ON_PAPER[show["view"]]).count() == 1, step["title"]
        elif show["view"] == "steps":
            assert part.locator(".sd-tree" if show["lane"].startswith("tree") else ".sl-printed").count() == 1
            assert (part.locator(".sd-is-waiting").count() > 0) == show.get("hide", False), step["title"]
            assert (part.locator(".sd-is-rejected, .sd-is-bonus").count() > 0) != show.get("hide", False), step["title"]


@pytest.mark.parametrize("lesson", shipped_lessons(), ids=lambda lesson: lesson["id"])
def test_a_lesson_is_walked_to_its_end_and_each_of_its_numbers_stands_in_the_panel_beside_it(opened, shipped, lesson):
    page = opened(in_one_file(lesson, shipped))
    missing = {}

    def look(number: int, step: dict) -> None:
        assert page.locator(".sl-missing").count() == 0, "the run shows what the step speaks of"
        facts = facts_shown(page, step)
        panel = page.evaluate(PANEL) if facts else ""
        missing.update({(step["title"], name): fact for name, fact in facts.items() if not is_beside(fact, panel)})

    walk(page, lesson, look)
    assert missing == {}


def test_a_number_in_a_lesson_has_the_meaning_of_the_one_beside_it(there):
    for link, *pairs in (
        (
            "ten-steps&step=2",
            (r"a guess costs (\d+\.\d+) of a pass", r"draft passes at (\d+\.\d+)"),
            (r"which costs (\d+\.\d+) passes", r"a check at (\d+\.\d+)"),
        ),
        ("ten-steps&step=5", (r"at the cost of (\d+\.\d+) passes", r"= (\d+\.\d+) passes of the target")),
        ("tree&step=2", (r"Of (\d+) guesses", r"reads all (\d+) guesses")),
        ("what-the-draft-may-read&step=4", (r"cost (\d+\.\d+) passes together", r"1 draft pass at (\d+\.\d+)")),
        ("what-the-draft-may-read&step=5", (r"for (\d+\.\d+) passes together", r"1 draft pass at (\d+\.\d+)")),
        (
            "dice&step=2",
            (r"q = (\d+\.\d+), so", r"q = (\d+\.\d+)\."),
            (r"kept with probability (\d+\.\d+)\. ", r"min\(1, p/q\) = (\d+\.\d+)"),
        ),
    ):
        page = there(f"?lesson={link}")
        assert page.locator(".sl-fault").count() == 0
        for written, shown in pairs:
            said = re.search(written, page.locator(".sl-lesson-text").inner_text())[1]
            beside = re.search(shown, page.locator(".sl-steps").inner_text())[1]
            assert abs(float(said) - float(beside)) < 0.0051, (link, written)  # three digits or two


def test_how_probable_a_token_is_takes_one_line(there):
    page = there("?lesson=dice&step=2")
    assert "under 1%" in page.locator(".sd-tops").inner_text()
    assert len(set(page.locator(".sd-top li").evaluate_all("rows => rows.map((row) => row.offsetHeight)"))) == 1


def test_the_end_of_a_lesson_has_the_score_and_leads_on(there):
    page = there("?lesson=ten-steps&step=4")
    page.locator(".sl-answer", has_text=re.compile("A B C$")).click()
    for step in range(5, 11):
        page.locator(".sl-turn .sl-main").click()
        if step == 6:
            page.locator(".sl-answer", has_text="Another, worse text").click()
            page.locator(".sl-answer", has_text="more slowly").click()  # too late for the score
    page.locator(".sl-turn .sl-main").click()
    end = page.locator(".sl-end")
    assert "You answered 2 of 7 questions, 1 of them correctly at the first try." in end.inner_text()
    end.get_by_role("button", name="Step 6: ").click()
    assert page.locator(".sl-lesson-text h2").inner_text() == "The same text, always"
    assert page.locator(".sl-answer.sl-right").count() == 1
    page.evaluate(f"{LEARN}.places.lessons.toStep(9)")
    page.locator(".sl-turn .sl-main").click()
    page.get_by_role("button", name="Why one SL does not fit all").click()
    assert "step 1 of" in page.locator(".sl-lesson-text .sl-where").inner_text()


def test_teachers_get_goals_an_answer_key_and_a_path_of_30_minutes(there):
    page = there("?learn=lessons")
    page.get_by_role("button", name="For teachers").click()
    page.wait_for_selector(".sl-teachers")
    text = page.locator(".sl-teachers").inner_text()
    assert "One path of 30 minutes" in text
    for lesson in shipped_lessons():
        assert all(goal in text for goal in lesson["goals"]) and lesson["title"] in text
    assert "A B C." in text and "Slower." in text and "SL 4 with 3 accepted." in text
