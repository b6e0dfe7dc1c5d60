"""The Learn tab in a real browser: step by step, be the policy, what if, links."""

import json
import re

import pytest
from playwright.sync_api import expect

from decoding.analysis.metrics import match_rate, static_speedups
from decoding.analysis.run_costs import run_costs
from decoding.backends.recorded import OF_LESSONS, RecordedBackend
from tests.page_server import first_run
from tests.runs import make_run, simulate_lane

from .conftest import LEARN, learn_tab
from .opening import reload, wait_until
from .pointing import open_text, serious


def sentence(page) -> str:
    return page.locator(".sl-steps .sl-sentence").inner_text()


GAME = f"{LEARN}.places.play.game"


def play_out(page, guesses: int) -> None:
    """Play to the end with so many guesses before each check."""
    page.locator("#sl-start").click()
    page.evaluate(
        f"""(guesses) => {{
          const play = {LEARN}.places.play;
          while (!play.game.over) {{ for (let k = 0; k < guesses; k++) play.guessOn(); play.check(); }}
        }}""",
        guesses,
    )


def test_an_iteration_is_shown_step_by_step(there):
    iterations = first_run().lanes[1].iterations
    found = next(i for i, it in enumerate(iterations) if it.n_accepted < it.n_drafted - 1)
    iteration = iterations[found]
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
    fates = f"{held} held, 1 rejected, {n - held - 1} dropped, 1 correction"
    assert sentences[-1] == f"Iteration {found + 1}: guessed {n}, {fates}: {held + 1} token{'s' if held else ''}."
    page.keyboard.press("ArrowLeft")
    assert sentence(page) == sentences[-2]
    page.get_by_role("button", name="a rejection").click()
    assert sentence(page).startswith("Check:") and page.evaluate(f"{LEARN}.query().get('lane')") == "1"


@pytest.mark.parametrize("after", [0, 2])
def test_a_rejected_guess_says_whether_others_followed_it(there, after):
    iterations = enumerate(first_run().lanes[1].iterations)
    found, it = next((i, it) for i, it in iterations if it.n_drafted - it.n_accepted == after + 1)
    page = there(f"?learn=steps&run=first&lane=1&iteration={found}&step={it.n_drafted + 1 + it.n_accepted}")
    said = sentence(page)
    assert "Rejected." in said and said.endswith("The guesses after it no longer count.") == (after > 0)


def test_a_hidden_verdict_waits_for_a_bet(there):
    page = there("?learn=steps&run=first&lane=1&iteration=1&step=5")
    page.get_by_role("button", name="Hide the verdict").click()
    page.locator("[data-key=next]").click()
    assert sentence(page).startswith("Check:")
    page.locator(".sl-bet button", has_text="2").click()
    while "Cost:" not in page.locator(".sl-caption").inner_text():
        page.locator("[data-key=next]").click()
    assert "You said 2" in page.locator(".sl-caption").inner_text()


def test_who_guesses_all_and_checks_never_plays_static(there):
    """Played with three guesses each time, the learner's lane is static:3 on the same tokens."""
    run = first_run()
    page = there("?learn=play&run=first&tokens=88")
    play_out(page, 3)
    expected = simulate_lane(run, "static:3")
    assert page.evaluate(f"{GAME}.past.map((one) => one.tuple)") == [list(one) for one in expected.iterations]
    assert f"You: {expected.speedup:.2f}×" in page.locator(".sl-play h2").first.inner_text()
    assert page.locator(".sl-play .sl-bars li").count() >= 5
    regrets = page.evaluate(f"{GAME}.worst(1000).reduce((sum, one) => sum + one.cost, 0)")
    best = simulate_lane(run, "oracle:best")
    assert regrets == pytest.approx(page.evaluate(f"{GAME}.spent") - best.cost, abs=0.3)
    page.get_by_role("button", name="Step through my lane").click()
    assert "guess" in sentence(page).lower()
    assert not page.evaluate(f"{LEARN}.query().has('lane')")  # nobody else has it


def test_it_is_played_by_keys_and_the_best_is_kept(there):
    page = there("?learn=play&run=first&tokens=24")
    page.locator("#sl-start").click()
    for _ in range(60):
        if page.locator("[data-key=again]").count():
            break
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowDown")
    assert "your best here" in page.locator(".sl-play h2").first.inner_text()
    reload(page)  # it opens the same place
    page.wait_for_selector(".sp-learn:not([aria-busy]) #sl-start")
    assert "Your best here" in page.locator(".sl-play").inner_text()


def test_a_written_policy_runs_as_it_is_typed(there):
    page = there("?learn=play&run=first")
    field = page.get_by_label("Keep guessing while")
    field.fill("guessed < 5")
    static = simulate_lane(first_run(), "static:5")
    assert f"{static.speedup:.2f}×" in page.locator(".sl-play .sl-bars li", has_text="Your policy").inner_text()
    field.fill("fetch('/') > 1")
    assert "not understood" in page.locator(".sl-play .sl-fault").inner_text()


def test_what_if_answers_with_the_replay(there):
    page = there("?learn=whatif&run=first&c=0.5&sl=7")
    expected = simulate_lane(first_run(), "static:7", cost_ratio=0.5)
    answer = page.locator(".sl-whatif-out .sl-sentence")
    assert answer.inner_text().startswith(f"SL 7 at c = 0.50: {expected.speedup:.2f}×")
    page.get_by_role("button", name="as measured").click()
    assert "c = 0.11" in answer.inner_text()
    assert page.locator(".sl-heat").count() == 2
    unsteady = page.get_by_text("This run's timings were unsteady")
    assert unsteady.count() == 0
    page.evaluate(f"{LEARN}.model.doubtful = true; {LEARN}.places.whatif.draw(); {LEARN}.model.doubtful = false")
    assert unsteady.is_visible()
    assert "Model:" in page.locator(".sl-maps").inner_text()
    assert page.locator(".sl-whatif .sl-calculator").is_visible()  # as in a lesson: test_page_lessons.py
    page.locator(".sl-ask input").first.fill("0.01")
    page.locator(".sl-ask button").first.click()
    verdicts = page.locator(".sl-ask .sl-verdict")
    assert "it is" in verdicts.first.inner_text()
    page.get_by_label("What a check costs").select_option("free")
    assert verdicts.first.inner_text() == ""  # it was judged at other costs
    at_one = "whatif.c.set(1); whatif.cost = 1; whatif.sl.set(1); whatif.draw();"
    page.evaluate(f"() => {{ const {{ whatif }} = {LEARN}.places; {at_one} }}")
    page.locator(".sl-ask input").last.fill("0.5")
    page.locator(".sl-ask button").last.click()
    assert re.search(r"[0-9.]+×", answer.inner_text())[0] in verdicts.last.inner_text()
    page.locator(".sl-ask input").last.fill("0.6")
    assert verdicts.last.inner_text() == ""


def test_what_if_says_that_a_run_has_no_guesses_also_after_one_that_has_them(there):
    page = there("?learn=whatif&run=first")
    shown = page.evaluate(f"""() => {{
      const {{ model, places: {{ whatif }} }} = {LEARN};
      whatif.open(Object.assign(Object.create(model), {{ chains: {{}}, no_chain: "No guesses." }}));
      whatif.preset("free");
      const {{ textContent }} = whatif.node;
      whatif.open(model);
      return textContent; }}""")
    assert shown.startswith("No guesses.")


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("?lesson=nothing", "There is no lesson"),
        ("?learn=steps&run=../../etc", "does not name a run"),
        ("?learn=steps&run=gone", "no longer, kept here"),
        ("?learn=steps&lane=99&iteration=9999&step=9999", ""),
        ("?learn=steps&run=constructor", "no longer, kept here"),
        ("?learn=whatif&c=NaN&sl=1e9&checks=<b>", ""),
        ("?learn=whatif&run=first&checks=toString", ""),
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


def test_a_run_of_one_s_own_travels_in_the_link(there, visit, page_url):
    page = there("?learn=steps")
    open_text(page.locator(".sl-runs input[type=file]"), make_run(n_tokens=30, prompt="my very own text"))
    page.wait_for_function("document.querySelector('.sl-runs select').selectedOptions[0].text === 'my very own text'")
    page.get_by_role("button", name="Copy link").click()
    page.wait_for_function("document.querySelector('.sl-root > .sl-status').textContent")
    link = page.evaluate("navigator.clipboard.readText()")
    query, _, packed = link.partition("?")[2].partition("#")
    assert packed.startswith("run=")
    other = learn_tab(visit(f"{page_url}?{query}#{packed}"))
    assert "my very own text" in other.locator(".sl-prompt").first.inner_text()
    other.evaluate(f"([query, packed]) => {LEARN}.follow(query, packed)", ["?" + query, f"#{packed[:-40]}"])
    assert "cut or changed" in other.locator(".sl-root > .sl-status").inner_text()


HELD = f"""(run) => {{  // the server's answer for that run waits until it is let go
  const learn = {LEARN}, server = learn.server;
  let go;
  learn.server = {{ ...server, open_run: async (query) => {{
    if (query.run === run) await new Promise((done) => {{ go = done; }});
    return server.open_run(query);
  }} }};
  window.late = learn.places.lessons.toStep(3);
  window.letGo = () => {{ learn.server = server; go(); return late; }};
}}"""


def test_a_run_that_comes_late_is_not_shown_over_what_was_chosen_meanwhile(there):
    page = there("?lesson=dice")
    page.evaluate(HELD, "lesson-coupling")
    page.evaluate(f"{LEARN}.places.lessons.toStep(1)")
    page.evaluate("letGo()")
    assert page.evaluate(f"{LEARN}.model.id") == "lesson-sampling"
    assert "step 2 of" in page.locator(".sl-lesson-text .sl-where").inner_text()
    page.evaluate(HELD, "lesson-coupling")
    page.locator("[data-place=lessons]").click()  # back to the list while the run is on its way
    page.evaluate("letGo()")
    assert page.locator(".sl-cards").is_visible() and page.locator(".sl-root > .sl-status").inner_text() == ""


def test_where_the_visitor_s_own_run_is_gone_the_tab_says_so(there):
    page = there("?learn=steps&run=first")
    page.evaluate(f"() => {{ {LEARN}.mine = 'opened-gone'; }}")
    page.locator("[data-place=whatif]").click()
    expect(page.locator(".sl-root > .sl-status")).to_contain_text("no longer, kept here")
    page.evaluate(f"() => {{ {LEARN}.mine = null; }}")


def test_an_open_lesson_speaks_of_the_visitor_s_own_run_once_there_is_one(there):
    page = there("?lesson=ten-steps&step=2")
    page.get_by_role("tab", name="Race").click()
    open_text(page.locator("#race .sp-file"), make_run(n_tokens=30, prompt="my very own text"))
    expect(page.locator("#race .sd-badge")).to_contain_text("imported")
    page.get_by_role("tab", name="Learn").click()
    page.wait_for_function(f"{LEARN}.model.badge.kind === 'imported'")
    expect(page.get_by_text("another one is on screen")).to_be_hidden()
    assert page.evaluate(f"{LEARN}.model.lanes.includes({LEARN}.places.lessons.shown.lane)")
    page.evaluate(f"() => {{ {LEARN}.mine = null; }}")


def test_a_lesson_has_its_iteration_again_after_a_look_at_another_place(there):
    page = there("?lesson=ten-steps&step=2")
    for place in ("steps", "play", "steps"):
        page.locator(f"[data-place={place}]").click()
        page.locator("[data-place=lessons]").click()
        assert page.locator(".sl-stage .sl-board").is_visible(), place


@pytest.mark.parametrize("query", ["?learn=lessons", "?learn=whatif&run=first"])
def test_a_page_s_first_heading_is_the_next_level_below_the_title(there, query):
    assert there(query).locator(".sp-learn :is(h2, h3):visible").first.evaluate("node => node.tagName") == "H2"


def test_axe_finds_nothing_serious_in_what_a_lesson_s_file_lacks_the_shelf_and_the_choice_of_a_run(there):
    for query in ("?learn=lessons", "?learn=steps&run=first"):
        page = there(query)
        assert serious(page, ".sp-learn") == []
    assert page.get_by_role("tab", selected=True).last.inner_text() == "Step by step"


def test_the_facts_of_a_run_are_those_that_python_finds(there):
    page, run = there("?lesson=ten-steps"), RecordedBackend(OF_LESSONS).load("lesson-drafts")
    page.get_by_label("Run", exact=True).select_option(run.id)
    wait_until(page, f"{LEARN}.model?.id === {json.dumps(run.id)}")
    facts, draft, other = page.evaluate(f"{LEARN}.known"), run.pair.default_draft, "early-exit"
    sweep, costs = static_speedups(run, draft), run_costs(run)
    best = max(sweep, key=sweep.get)
    assert facts["draft"] == draft and facts["draft2"] == other and facts["best_sl"] == best
    numbers = {
        "best_speedup": sweep[best],
        "one_speedup": sweep[1],
        "long_speedup": sweep[20],
        "best_speedup_draft2": max(static_speedups(run, other).values()),
        "match": 100 * match_rate(run.chains[draft]),
        "match_draft2": 100 * match_rate(run.chains[other]),
        "c": costs.draft_step[draft],
        "c_draft2": costs.draft_step[other],
        "check2": costs.verify(2),
        "check9": costs.verify(9),
    }
    assert {name: facts[name] for name in numbers} == pytest.approx(numbers, rel=2e-3)  # the page's are rounded


def test_a_draft_whose_guesses_are_made_at_once_costs_in_a_lesson_what_it_costs_in_what_if(there):
    page, run = there("?lesson=what-the-draft-may-read&step=6"), RecordedBackend(OF_LESSONS).load("lesson-states")
    wait_until(page, f"{LEARN}.model?.id === {json.dumps(run.id)}")
    facts = page.evaluate(
        f"""() => {{
          // as if it were the run's first
          Object.defineProperty({LEARN}.model, 'draft', {{ value: 'heads', configurable: true }});
          {LEARN}.facts = null;
          return {LEARN}.known;
        }}"""
    )
    assert facts["draft"] == "heads"
    assert facts["c"] == pytest.approx(run_costs(run).first_step["heads"], rel=2e-3)
    page.evaluate(f"() => {{ delete {LEARN}.model.draft; {LEARN}.facts = null; }}")


def play(page, *moves: str) -> None:
    for move in moves:
        page.keyboard.press({"guess": "ArrowRight", "check": "ArrowDown"}[move])


def test_what_a_check_rejected_stays_in_sight_and_a_button_without_use_says_why(there):
    page = there("?learn=play&run=first&tokens=48")
    page.locator("#sl-start").click()
    while page.evaluate(f"{GAME}.replay.holds[{GAME}.start]") > 3:  # until a guess of four fails
        play(page, "guess", "check")
    play(page, *["guess"] * 4, "check")
    last = page.get_by_label("The last check")
    assert last.locator(".sd-is-rejected").count() == 1
    play(page, "guess")
    assert last.locator(".sd-is-rejected").count() == 1  # still there, beside the new guess
    assert page.get_by_label("Guesses of this iteration").locator(".sl-cell").count() == 1
    while not page.locator("[data-key=on]:disabled").count():
        play(page, "guess", "check" if page.evaluate(f"{GAME}.most") > 3 else "guess")
    assert re.search("nothing is left to guess|No further guess was recorded", page.locator(".sl-play").inner_text())


def test_an_expensive_decision_names_the_better_one_and_opens_at_its_guess(there):
    page = there("?learn=play&run=first&tokens=48")
    play_out(page, 6)
    worst = page.evaluate(f"{GAME}.worst(1)[0]")
    said = page.locator(".sl-regrets li").first.inner_text()
    better = int(re.search(r"Better: (?:check after |keep guessing, up to |check without guessing)(\d*)", said)[1] or 0)
    start, guessed, held = page.evaluate(f"{GAME}.past[{worst['i']}].tuple")
    holds = page.evaluate(f"{GAME}.replay.holds[{start}]")
    assert better <= holds and better != guessed and held == min(holds, guessed)
    assert worst["at"] == min(better, guessed - 1)
    page.locator(".sl-regrets button").first.click()
    assert sentence(page).startswith(f"Guess {worst['at'] + 1}: the draft")
    assert f"Iteration {worst['i'] + 1} of" in page.locator(".sl-steps .sl-where").inner_text()


def test_a_presenter_sees_every_guess_and_the_way_out(there):
    page = there("?lesson=one-sl&step=2")
    for size in ({"width": 390, "height": 844}, {"width": 1280, "height": 800}):
        page.set_viewport_size(size)
        page.evaluate(f"{LEARN}.places.lessons.toStep(1)")
        page.evaluate(f"{LEARN}.setPresenting(true)")
        board = page.locator(".sl-board")
        assert board.locator(".sl-cell").count() > 10
        assert board.evaluate("(node) => node.scrollWidth <= node.clientWidth + 1")
        assert page.get_by_text("Esc: exit").is_visible()
        at = page.locator(".sl-lesson-text h2").inner_text()
        page.locator(".sl-stand").get_by_role("button", name="Next").click()
        assert page.locator(".sl-lesson-text h2").inner_text() != at
        page.get_by_role("button", name="Exit presenter mode").click()
        assert page.locator(".sl-presenting").count() == 0
