"""The Learn tab in a real browser: each lesson to its end, step by step, be the policy, what if, links."""

from __future__ import annotations

import json
import re

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from decoding.analysis.whatif import simulate_lane
from decoding.records.run_file import run_to_json
from tests.page_server import first_run
from tests.runs import make_run
from viz.learn.export import export_lesson
from viz.learn.lessons import shipped_lessons
from viz.player.payload import run_payload

from .conftest import new_visitor

LEARN = "document.querySelector('.sp-learn').speculoscopeLearn"
LESSONS = [lesson["id"] for lesson in shipped_lessons()]


def at(visit, page_url, query: str, **options):
    """A new visitor who follows a link. Slow: Gradio's page is built again."""
    page = visit(page_url + query, **options)
    page.wait_for_selector(".sp-learn:not([aria-busy]) .sl-body:not([aria-busy]) > *")
    return page


@pytest.fixture(scope="module")
def opened(browser, page_url):
    """One visitor for the tests that need no page of their own."""
    page = new_visitor(browser, page_url + "?learn=lessons")
    page.wait_for_selector(".sp-learn:not([aria-busy]) .sl-cards")
    yield page
    page.context.close()


@pytest.fixture
def there(opened):
    """there(query): the shared page, as if the link had been followed."""

    def follow(query: str):
        opened.evaluate(f"(query) => {{ {LEARN}.places.lessons.lesson = null; return {LEARN}.follow(query); }}", query)
        return opened

    yield follow
    assert opened.faults == []


def sentence(page) -> str:
    return page.locator(".sl-steps .sl-sentence").inner_text()


@pytest.mark.parametrize("lesson", LESSONS)
def test_a_lesson_is_walked_to_its_end(there, lesson):
    page = there(f"?lesson={lesson}")
    steps = next(one for one in shipped_lessons() if one["id"] == lesson)["steps"]
    for number, step in enumerate(steps, start=1):
        page.wait_for_function(
            "text => document.querySelector('.sl-lesson-text h2')?.textContent === text", arg=step["title"]
        )
        assert f"step {number} of {len(steps)}" in page.locator(".sl-lesson-text .sl-where").inner_text()
        text = page.locator(".sl-lesson-text").inner_text()
        assert "{" not in text
        if not step.get("needs"):
            assert "not recorded in this run" not in text
        if "question" in step and page.locator(".sl-answer").count():
            page.locator(".sl-answer").first.click()
            assert page.locator(".sl-answer.sl-right").count() == 1
            assert page.locator(".sl-feedback p").first.inner_text()
        while step.get("done") == "stepped" and "Cost:" not in page.locator(".sl-caption").inner_text():
            page.locator("[data-key=next]").click()
        page.locator(".sl-turn .sl-main").click()
    page.wait_for_selector(".sl-cards")
    card = page.locator(".sl-cards .sl-card", has_text=next(o for o in shipped_lessons() if o["id"] == lesson)["title"])
    assert "done" in card.inner_text()


def test_the_calculator_follows_its_fields(there):
    steps = next(one for one in shipped_lessons() if one["id"] == "ten-steps")["steps"]
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
        assert found.inner_text() == "Each field needs a number that is not negative; a check takes more than 0 ms."


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


def test_an_iteration_is_shown_step_by_step(there):
    run = first_run()
    lane = run.lanes[1]
    found = next(i for i, it in enumerate(lane.iterations) if it.n_accepted < it.n_drafted - 1)
    iteration = lane.iterations[found]
    page = there(f"?learn=steps&run=first&lane=1&iteration={found}&step=0")
    sentences = [sentence(page)]
    while "Cost:" not in page.locator(".sl-caption").inner_text():
        page.keyboard.press("ArrowRight")
        sentences.append(sentence(page))
    assert sum(one.startswith("Guess") and "proposes" in one for one in sentences) == iteration.n_drafted
    assert sum(one.startswith("Check:") for one in sentences) == 1
    assert sum("Accepted." in one for one in sentences) == iteration.n_accepted
    assert sum("Rejected." in one for one in sentences) == 1
    assert any("the correction" in one for one in sentences)
    assert any("caches are cut back" in one for one in sentences)
    held, n = iteration.n_accepted, iteration.n_drafted
    dropped = n - held - 1
    assert sentences[-1] == (
        f"Iteration {found + 1}: guessed {n}, {held} held, 1 rejected, {dropped} dropped, 1 correction: "
        f"{held + 1} token{'s' if held else ''}."
    )
    page.keyboard.press("ArrowLeft")
    assert sentence(page) == sentences[-2]
    page.get_by_role("button", name="a rejection").click()
    assert sentence(page).startswith("Check:")


def test_a_hidden_verdict_waits_for_a_bet(there):
    page = there("?learn=steps&run=first&lane=1&iteration=1&step=5")
    page.get_by_role("button", name="Hide the verdict").click()
    page.locator("[data-key=next]").click()
    assert sentence(page).startswith("Check:")
    page.locator(".sl-bet button", has_text="2").click()
    while "Cost:" not in page.locator(".sl-caption").inner_text():
        page.locator("[data-key=next]").click()
    assert "You said 2" in page.locator(".sl-caption").inner_text()


def test_a_token_of_the_race_is_explained_here(visit, page_url):
    page = visit(page_url)
    page.wait_for_selector(".sp-take button:not(:disabled)")
    page.get_by_label("Time", exact=True).press("End")
    page.locator(".sd-col:not([hidden]) .sd-tk").first.click()
    page.get_by_role("button", name="Explain this token").click()
    page.wait_for_function("document.querySelector('.sl-steps .sl-sentence')?.textContent.startsWith('Guess 1, ')")
    assert "Iteration 1 of" in page.locator(".sl-steps .sl-where").inner_text()
    assert page.faults == []


def test_who_guesses_all_and_checks_never_plays_static(there):
    """Played with three guesses each time, the learner's lane is static:3 on the same tokens."""
    run = make_run(identifier="first", lanes=("autoregressive", "static:5", "confidence:0.5", "oracle"))
    page = there("?learn=play&run=first&tokens=88")
    page.locator("#sl-start").click()
    page.evaluate(
        """() => {
          const play = document.querySelector('.sp-learn').speculoscopeLearn.places.play;
          while (!play.game.over) { for (let k = 0; k < 3; k++) play.guessOn(); play.check(); }
        }"""
    )
    expected = simulate_lane(run, "static:3")
    assert page.evaluate(f"{LEARN}.places.play.game.past.map((one) => one.tuple)") == [
        list(one) for one in expected.iterations
    ]
    assert f"You: {expected.speedup:.2f}×" in page.locator(".sl-play h2").first.inner_text()
    assert page.locator(".sl-play .sl-bars li").count() >= 5
    regrets = page.evaluate(f"{LEARN}.places.play.game.worst(1000).reduce((sum, one) => sum + one.cost, 0)")
    best = simulate_lane(run, "oracle:best")
    assert regrets == pytest.approx(page.evaluate(f"{LEARN}.places.play.game.spent") - best.cost, abs=0.3)
    page.get_by_role("button", name="Step through my lane").click()
    assert "guess" in sentence(page).lower()


def test_it_is_played_by_keys_and_the_best_is_kept(visit, page_url):
    page = at(visit, page_url, "?learn=play&run=first&tokens=24")
    page.locator("#sl-start").click()
    for _ in range(60):
        if page.locator("[data-key=again]").count():
            break
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowDown")
    assert "your best here" in page.locator(".sl-play h2").first.inner_text()
    page.reload()
    page.wait_for_selector("#sl-start")
    assert "Your best here" in page.locator(".sl-play").inner_text()


def test_a_written_policy_runs_as_it_is_typed(there):
    page = there("?learn=play&run=first")
    field = page.get_by_label("Guess on while")
    field.fill("guessed < 5")
    static = simulate_lane(first_run(), "static:5")
    assert f"{static.speedup:.2f}×" in page.locator(".sl-play .sl-bars li", has_text="Your policy").inner_text()
    field.fill("fetch('/') > 1")
    assert "not understood" in page.locator(".sl-play .sl-fault").inner_text()


def test_what_if_answers_with_the_replay(there):
    page = there("?learn=whatif&run=first&c=0.5&sl=7")
    run = first_run()
    expected = simulate_lane(run, "static:7", cost_ratio=0.5)
    assert page.locator(".sl-whatif .sl-sentence").inner_text().startswith(f"SL 7 at c = 0.50: {expected.speedup:.2f}×")
    page.get_by_role("button", name="as measured").click()
    assert "c = 0.11" in page.locator(".sl-whatif .sl-sentence").inner_text()
    assert page.locator(".sl-heat").count() == 2
    assert "Model:" in page.locator(".sl-maps").inner_text()
    page.locator(".sl-ask input").first.fill("0.01")
    page.locator(".sl-ask button").first.click()
    assert "it is" in page.locator(".sl-ask .sl-verdict").first.inner_text()


def test_a_lesson_file_is_opened_from_disk_and_a_hostile_one_refused(there, tmp_path):
    page = there("?learn=lessons")
    mine = json.loads(json.dumps(shipped_lessons()[0]))
    mine.update(id="mine", title="<img src=x onerror=window.hacked=1>", steps=mine["steps"][:1])
    (tmp_path / "mine.json").write_text(json.dumps(mine), encoding="utf-8")
    (tmp_path / "bad.json").write_text('{"id": "<script>"}', encoding="utf-8")
    picker = page.locator(".sl-shelf input[type=file]")
    picker.set_input_files(tmp_path / "bad.json")
    page.wait_for_selector(".sl-status.sl-fault")
    assert "This is not a lesson file" in page.locator(".sl-status").inner_text()
    page.locator(".sl-shelf input[type=file]").set_input_files(tmp_path / "mine.json")
    page.wait_for_selector(".sl-lesson")
    assert "<img" in page.locator(".sl-lesson .sl-where").first.inner_text()
    assert page.evaluate("window.hacked") is None


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("?lesson=nothing", "There is no lesson"),
        ("?learn=steps&run=../../etc", "does not name a run"),
        ("?learn=steps&run=gone", "no longer, kept here"),
        ("?learn=steps&lane=99&iteration=9999&step=9999", ""),
        ("?learn=whatif&c=NaN&sl=1e9&checks=<b>", ""),
    ],
)
def test_a_link_that_leads_nowhere_says_so(there, query, said):
    page = there(query)
    assert said in page.locator(".sl-root > .sl-status").inner_text()


def test_a_hostile_run_is_text_everywhere(there):
    page = there("?learn=steps&run=hostile&lane=1")
    for place in ("play", "whatif", "lessons"):
        page.locator(f"[data-place={place}]").click()
    page.locator("[data-place=steps]").click()
    for _ in range(12):
        page.keyboard.press("ArrowRight")
    assert page.evaluate("window.hacked") is None


def test_a_run_of_one_s_own_travels_in_the_link(there, visit, page_url, tmp_path):
    file = tmp_path / "run.json"
    file.write_text(run_to_json(make_run(n_tokens=30, prompt="my very own text")), encoding="utf-8")
    page = there("?learn=steps")
    page.locator(".sl-runs input[type=file]").set_input_files(file)
    page.wait_for_function("document.querySelector('.sl-runs select').selectedOptions[0].text === 'my very own text'")
    page.get_by_role("button", name="Copy link").click()
    page.wait_for_function("document.querySelector('.sl-root > .sl-status').textContent")
    link = page.evaluate("navigator.clipboard.readText()")
    assert "#run=" in link
    other = at(visit, page_url, link[len(page_url) :] if link.startswith(page_url) else "?" + link.partition("?")[2])
    assert "my very own text" in other.locator(".sl-prompt").first.inner_text()
    query, _, packed = link.partition("?")[2].partition("#")
    other.evaluate(f"([query, packed]) => {LEARN}.follow(query, packed)", ["?" + query, f"#{packed[:-40]}"])
    assert "cut or changed" in other.locator(".sl-root > .sl-status").inner_text()


def test_a_presenter_needs_keys_only_and_answers_wait(there):
    page = there("?lesson=ten-steps&step=6")
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("p")
    page.wait_for_selector(".sl-presenting")
    assert page.locator(".sl-answer").count() == 0
    page.keyboard.press("a")
    assert page.locator(".sl-answer").count() == 4
    assert not page.locator(".sl-runs").is_visible()
    title = page.locator(".sl-lesson-text h2").inner_text()
    for _ in range(40):
        page.keyboard.press("ArrowRight")
        if page.locator(".sl-lesson-text h2").inner_text() != title:
            break
    assert page.locator(".sl-lesson-text h2").inner_text() == "When all guesses hold: the bonus"
    page.keyboard.press("Escape")
    assert page.locator(".sl-presenting").count() == 0


def test_a_lesson_prints_as_a_hand_out(there):
    page = there("?lesson=ten-steps")
    page.evaluate("void (window.print = () => { window.printed = document.querySelector('.sl-print').textContent; })")
    page.get_by_role("button", name="Print a handout").click()
    page.wait_for_function("window.printed")
    printed = page.evaluate("window.printed")
    page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    for step in shipped_lessons()[0]["steps"]:
        assert step["title"] in printed
    assert "Answers" in printed and "How the run was made" in printed


def test_a_hand_out_shows_each_step_on_its_own_run(there):
    page = there("?lesson=dice")
    page.evaluate("window.printed = ''")
    page.evaluate("void (window.print = () => { window.printed = document.querySelector('.sl-print').textContent; })")
    page.get_by_role("button", name="Print a handout").click()
    page.wait_for_function("window.printed")
    assert "another run" in page.evaluate("window.printed")
    assert "In this run, made with coupling" in page.evaluate("window.printed")  # its last step
    page.evaluate("window.dispatchEvent(new Event('afterprint'))")


def test_a_lesson_is_saved_as_one_file_that_works_alone(there, browser, tmp_path):
    page = there("?lesson=one-sl")
    with page.expect_download() as download:
        page.get_by_role("button", name="Save as one HTML file").click()
    file = tmp_path / "lesson.html"
    download.value.save_as(file)
    alone = browser.new_page()
    faults = []
    alone.on("pageerror", lambda error: faults.append(str(error)))
    alone.on("request", lambda request: request.url.startswith("http") and faults.append(request.url))
    alone.goto(file.as_uri())
    alone.wait_for_selector(".sl-lesson h2")
    for _ in range(len(shipped_lessons()[1]["steps"])):
        alone.locator(".sl-turn .sl-main").click()
    assert alone.locator(".sl-cards .sl-card").count() == 1
    assert faults == []
    alone.close()


def test_nothing_is_wider_than_a_phone(visit, page_url):
    page = at(visit, page_url, "?learn=play&run=first", viewport={"width": 390, "height": 844}, has_touch=True)
    page.locator("#sl-start").tap()
    for _ in range(6):
        page.locator("[data-key=on]").tap()
    for place in ("play", "lessons", "steps", "whatif", "words"):
        page.locator(f"[data-place={place}]").tap()
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, place
    assert page.faults == []


def test_everything_has_a_name_for_who_does_not_see_it(there):
    page = there("?learn=steps&run=first")
    for place in ("lessons", "steps", "play", "whatif", "words"):
        page.locator(f"[data-place={place}]").click()
        unnamed = page.evaluate(
            """() => [...document.querySelectorAll('.sl-root :is(button, select, input:not([hidden]), textarea)')]
              .filter((node) => !(node.getAttribute('aria-label') || node.textContent.trim() || node.closest('label')))
              .length"""
        )
        assert unnamed == 0
    assert page.get_by_role("tab", selected=True).last.inner_text() == "Words"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(browser, tmp_path, scheme):
    file = tmp_path / "lesson.html"
    file.write_text(export_lesson(shipped_lessons()[0], run_payload(first_run(), details=True)), encoding="utf-8")
    page = browser.new_page(color_scheme=scheme, bypass_csp=True)
    page.goto(file.as_uri())
    for place in ("lessons", "steps", "play", "whatif", "words"):
        page.evaluate(f"learn.goTo({{ place: '{place}' }})")
        if place == "play":
            page.locator("#sl-start").click()
            page.locator("[data-key=on]").click()
        found = Axe().run(page).response["violations"]
        serious = [
            (one["id"], one["nodes"][0]["html"][:120]) for one in found if one["impact"] in ("serious", "critical")
        ]
        assert serious == [], place
    page.close()


@pytest.mark.parametrize(
    "link, written, shown",
    [
        ("ten-steps&step=3", r"a guess costs (\d+\.\d+) of a pass", r"this iteration\s*(\d+\.\d+)"),
        ("ten-steps&step=4", r"This check costs (\d+\.\d+) passes", r"check: (\d+\.\d+)"),
        ("ten-steps&step=7", r"at the cost of (\d+\.\d+) passes", r"= (\d+\.\d+) passes of the target"),
        ("tree&step=2", r"Of (\d+) guesses", r"reads all (\d+) guesses"),
        ("dice&step=2", r"q = (\d+\.\d+), so", r"q = (\d+\.\d+)\."),
        ("dice&step=2", r"kept with probability (\d+\.\d+)\. ", r"min\(1, p/q\) = (\d+\.\d+)"),
    ],
)
def test_a_number_in_a_lesson_is_the_one_beside_it(there, link, written, shown):
    page = there(f"?lesson={link}")
    stage = page.locator(".sl-steps")
    titles = " ".join(node.get_attribute("title") or "" for node in stage.locator(".sl-cost i").all())
    said = re.search(written, page.locator(".sl-lesson-text").inner_text())[1]
    beside = re.search(shown, f"{stage.inner_text()} {titles}")[1]
    assert abs(float(said) - float(beside)) < 0.0051  # three digits or two


def test_the_tab_opens_on_the_visitor_s_own_run(visit, page_url):
    page = visit(page_url)
    page.get_by_role("button", name="Run", exact=True).click()
    expect(page.locator(".sd-pill")).to_have_text("live")
    for _ in range(60):  # the run is kept once all repeats are timed
        page.get_by_role("tab", name="Race").click()
        page.get_by_role("tab", name="Learn").click()
        page.wait_for_function(f"{LEARN}?.model")
        if page.evaluate(f"{LEARN}.model.badge.kind") == "live":
            return
        page.wait_for_timeout(1000)
    raise AssertionError("the tab goes on with another run")
