"""A visitor's whole way through the Race tab, in a real browser over a scripted backend."""

import re
from collections import Counter

import pytest
from playwright.sync_api import expect

from decoding.records.request import MAX_LANES
from decoding.records.run_file import run_from_json
from tests.page_server import LANES, first_run
from tests.runs import add_draft, make_run, simulate_lane

from .conftest import LEARN
from .pointing import (
    RACE,
    download,
    explain,
    fill,
    finished,
    open_text,
    point_at,
    ready,
    run_box,
    stand_still,
    unfold,
)


@pytest.fixture
def page(shared_page, page_url):
    """The page of a visitor who stays, gone back to the first recording, which sets the whole form to its settings."""
    page = ready(shared_page(page_url))
    page.locator("#prompt textarea").fill("something else")
    choose_the_first_example(page)
    expect(page.locator("#prompt textarea")).to_have_value(first_run().settings.prompt)
    expect(page.locator(".sd-badge")).to_contain_text("recorded")
    stand_still(page)
    page.evaluate("scrollTo(0, 0)")
    return page


def choose_the_first_example(page) -> None:
    """Return when all is answered: the list asks twice, and its second answer also fills in the prompt."""
    asked, answered = set(), set()
    listeners = {
        "request": lambda one: "/run/predict" in one.url and asked.add(one),
        "requestfinished": lambda one: answered.add(one),
        "requestfailed": lambda one: answered.add(one),
    }
    page.locator("#example input").click()
    for event, listener in listeners.items():
        page.on(event, listener)
    page.get_by_role("option").first.click()
    while not asked or not asked <= answered:  # the test's own limit ends it
        page.wait_for_timeout(20)
    for event, listener in listeners.items():
        page.remove_listener(event, listener)


def test_command_and_link_are_of_the_run_on_screen(page):
    page.get_by_role("button", name="Copy as command").click()
    expect(page.get_by_label("Command")).to_have_value(re.compile("python -m decoding compare"))
    command = page.evaluate("navigator.clipboard.readText()")
    parts = (f"--lanes={','.join(LANES)}", "--repeats=3", "--max-new-tokens=88", "--pair=synthetic")
    assert all(part in command for part in parts)
    page.get_by_role("button", name="Copy link").click()
    expect(page.get_by_label("Link")).to_have_value(re.compile(r"\?run=first&t=\d"))


def test_plots_come_with_sentences_and_are_linked_both_ways(page):
    page.locator(".sp-take").scroll_into_view_if_needed()
    page.locator(".sp-plots").scroll_into_view_if_needed()
    expect(page.locator(".sp-figure")).to_have_count(3)
    expect(page.locator(".sp-figure p").first).to_contain_text("threw away")
    page.wait_for_function("document.querySelector('.sp-canvas .bars .point path')")
    position = page.evaluate("""() => {
      const plot = document.querySelector(".sp-canvas"), bars = plot.data.filter((one) => one.type === "bar");
      const bar = bars.find((one) => one.customdata[0][0] === 2).customdata[3];
      document.querySelector(".sp-player").addEventListener("sd:position", (event) => (window.moved = event.detail));
      plot.emit("plotly_click", { points: [{ customdata: bar }] });
      return bar[1];
    }""")
    assert page.evaluate("window.moved.lane") == "confidence:0.5"
    page.wait_for_function(  # the line stands there in the plot, too
        """(position) => {
          const plot = document.querySelector(".sp-canvas"), x = plot._fullLayout.xaxis;
          const left = (selector) => document.querySelector(selector)?.getBoundingClientRect().x;
          return Math.abs(left(".sp-now") - left(".sp-canvas") - x._offset - x.l2p(position)) < 2;
        }""",
        arg=position,
    )
    page.get_by_role("button", name="over iterations").first.click()
    expect(page.locator(".sp-figure:visible h3").first).to_contain_text("over iterations")
    expect(page.locator(".sp-figure:visible .main-svg").first).to_be_visible()


def test_a_run_of_one_s_own_has_details_too(page):
    run_box(page, "def f(x):")
    finished(page)
    page.locator(".sd-rail").focus()
    page.keyboard.press("End")
    point_at(page, page.locator(".sd-text:visible .sd-tk").first)
    expect(page.locator(".sd-pop")).to_contain_text("position")
    expect(page.locator(".sd-pop")).to_contain_text("The target would say")  # fetched when asked


def test_stop_leaves_a_sentence_and_a_form_that_runs_again(page):
    run_box(page, "def endless():")
    expect(page.locator(".sd-status")).to_contain_text("On the clock")
    expect(page.locator("#stop")).to_be_focused()  # Run, which was pressed, has gone
    page.keyboard.press("Enter")
    expect(page.locator("#run")).to_be_focused()
    expect(page.locator(".sd-sentence")).to_contain_text(re.compile(r"Stopped after \d+ tokens? in \d"))
    expect(page.locator(".sp-take")).to_contain_text("cannot be saved")
    page.get_by_role("button", name="Play (space)").click()
    expect(page.get_by_role("button", name="Pause (space)")).to_be_visible()
    run_box(page, "def again():", tokens=20)
    finished(page)


def test_a_refusal_is_a_sentence_each_time_and_the_run_on_screen_stays(page):
    page.set_viewport_size({"width": 1280, "height": 380})  # what is said of the run is below the form
    for prompt, tokens, sentence in (
        ("   ", 30, "The prompt is empty"),
        ("   ", 30, "The prompt is empty"),
        ("def many():", 10_000, "Max new tokens must be a whole number from 1 to"),
        ("def half():", 2.5, "4,096, not 2.5"),
    ):
        run_box(page, prompt, tokens=tokens)
        expect(page.locator(".sp-status.sp-fault")).to_contain_text(sentence)
        expect(page.locator(".sp-status.sp-fault")).to_be_in_viewport()
        expect(page.locator("#run")).to_be_visible()
    expect(page.locator(".sd-badge")).to_contain_text("recorded")
    fill(page.locator("#max-new-tokens input"), 30)
    expect(page.locator(".sp-status.sp-fault")).to_be_hidden()


def test_a_typed_lane_is_found_in_the_list_or_refused_at_once_in_its_words(page):
    box, chosen = page.locator("#lanes input"), page.locator("#lanes .token")
    before = chosen.count()
    box.click()
    option = page.get_by_role("option", name="DISCO")
    expect(option).to_have_attribute("data-group", "Learned from texts")
    expect(option).to_have_attribute("data-about", re.compile("lookahead Optimization: after each guess, a classifier"))
    box.fill("<img src=x onerror=window.hacked=1> 3")
    box.press("Enter")
    fault = page.locator("#lanes .sp-hint")
    expect(fault).to_contain_text("There is no lane “<img src=x")
    expect(fault).to_contain_text("There are Plain, Static, Heuristic")
    page.wait_for_function(  # the open list does not cover it
        """() => { const node = document.querySelector("#lanes .sp-hint"), { x, y } = node.getBoundingClientRect();
          return document.elementFromPoint(x + 9, y + 9) === node; }""",
    )
    expect(chosen).to_have_count(before)
    box.fill("heur")
    box.press("Enter")
    expect(chosen.last).to_have_text("Heuristic")
    expect(fault).to_have_count(0)
    chosen.last.locator(".token-remove").hover()
    expect(chosen.last.get_by_role("button", name="Remove Heuristic")).to_be_visible()
    for count in range(chosen.count() + 1, MAX_LANES + 2):
        box.fill(f"static:{count + 8}")
        box.press("Enter")
        expect(chosen).to_have_count(min(count, MAX_LANES))
    expect(fault).to_contain_text("at most 8 lanes")
    expect(box).to_be_focused()
    assert page.evaluate("window.hacked") is None


def test_plots_of_another_run_never_stand_below_a_run(page):
    plots = page.locator(".sp-plots")
    plots.scroll_into_view_if_needed()
    expect(page.locator(".sp-figure")).to_have_count(3)
    recorded = page.locator(".sp-figure p").first.inner_text()
    page.locator("#run").scroll_into_view_if_needed()
    run_box(page, "def endless():")
    expect(page.locator(".sd-status")).to_contain_text("On the clock")
    expect(page.locator(".sp-figure")).to_have_count(0)
    page.locator("#stop").click()
    expect(page.locator("#run")).to_be_visible()
    expect(plots).to_contain_text("stopped before its first timing has none")
    run_box(page, "def g(y):", tokens=24)
    finished(page)
    plots.scroll_into_view_if_needed()
    expect(page.locator(".sp-figure")).to_have_count(3)
    assert page.locator(".sp-figure p").first.inner_text() != recorded
    expect(plots).not_to_contain_text("a stopped run")
    choose_the_first_example(page)
    expect(page.locator(".sd-badge")).to_contain_text("recorded")
    plots.scroll_into_view_if_needed()
    expect(page.locator(".sp-figure p").first).to_have_text(recorded)


def test_plots_that_cannot_be_drawn_any_more_say_nothing_of_the_run_that_has_begun(page):
    said = page.evaluate(f"""async () => {{
      const {{ plots }} = {RACE}, {{ fetch, run }} = plots;
      let fail;
      plots.fetch = () => new Promise((_, failed) => {{ fail = failed; }});
      Object.assign(plots, {{ fetched: null, ended: true }});
      const drawn = plots.refresh();
      plots.show(null);
      fail(new Error("the run before is gone"));
      await drawn;
      const {{ textContent }} = plots.note;
      plots.fetch = fetch;
      plots.show(run);
      return textContent; }}""")
    assert said.startswith("The plots appear when the run has ended")


def test_a_run_can_be_taken_along_and_brought_back(page, visit):
    run = run_from_json(download(page, "Run file (JSON)", "speculoscope-first.json"))
    assert run == first_run()
    rows = download(page, "Table (CSV)", "speculoscope-first.csv").splitlines()
    assert rows[0].startswith("lane,iteration,index,position,id,text,fate")
    assert len(rows) == 1 + sum(it.n_drafted + bool(it.emitted) for trace in run.lanes for it in trace.iterations)
    assert "Content-Security-Policy" in download(page, "Page (HTML)", "speculoscope-first.html")
    mine = make_run(identifier="other", n_tokens=41, lanes=("autoregressive", "static:5"))
    open_text(page.locator(".sp-file"), mine)
    expect(page.locator(".sd-badge")).to_contain_text("imported")
    expect(page.locator(".sd-sentence")).to_contain_text("41 tokens")
    expect(page.locator("#max-new-tokens input")).to_have_value("41")  # the form repeats it
    expect(page.locator("#lanes .token")).to_have_count(2)
    half = page.evaluate(
        f"() => {{ const {{ player }} = {RACE}; player.pause(); player.seek(player.total / 2); return player.t; }}"
    )
    page.get_by_role("button", name="Copy link").click()
    link = page.get_by_label("Link")
    expect(link).to_have_value(re.compile("#run="))
    other = visit(link.input_value())  # it carries the run
    expect(other.locator(".sd-badge")).to_contain_text("imported")
    assert other.evaluate(f"{RACE}.player.t") == pytest.approx(half, abs=0.001)
    expect(other.locator(".sd-sentence")).to_contain_text("41 tokens")
    expect(other.locator("#max-new-tokens input")).to_have_value("41")


def test_the_simulated_lane_guesses_with_the_draft_that_is_chosen(page):
    run = make_run(identifier="drafts", n_tokens=60, lanes=("autoregressive", "static:5"))
    add_draft(run, "two-layers", match=0.6, c=0.04)
    open_text(page.locator(".sp-file"), run)
    choice = page.get_by_label("Draft of the simulated lane")
    expect(choice.locator("option")).to_have_text(["shallow", "two-layers"])
    for draft, lane in (("two-layers", "two-layers/static:7"), ("shallow", "static:7")):
        choice.select_option(draft)
        page.get_by_label("SL of a simulated static lane").fill("7")
        expected = simulate_lane(run, lane)
        measure = f"{expected.speedup:.2f}× simulated, {expected.counts.target_passes} target passes"
        expect(page.locator(".sd-sim-note")).to_contain_text(f"Always guessing 7 with {draft}: {measure}")


def test_an_example_replaces_the_prompt_when_it_is_chosen_and_not_when_the_list_is_left(page):
    box, example = page.locator("#prompt textarea"), page.locator("#example input")
    first = box.input_value()
    box.fill("mine")  # at once, as pasted text comes
    expect(example).to_have_value("")
    choose_the_first_example(page)  # the one chosen last, again
    expect(box).to_have_value(first)
    box.fill("mine")
    example.focus()
    expect(page.get_by_role("listbox")).to_be_visible()
    page.keyboard.press("Tab")
    expect(page.get_by_role("listbox")).to_have_count(0)
    page.locator("#example input").click()
    page.keyboard.press("Escape")
    page.locator("#prompt textarea").click()
    run_box(page, "mine", tokens=10)  # to the server and back: whatever the list asked for has come by then, too
    finished(page)
    expect(page.locator("#prompt textarea")).to_have_value("mine")
    page.locator("#example input").focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(page.locator("#prompt textarea")).not_to_have_value("mine")
    run_box(page, "mine", tokens=10)  # as above: the list asks twice, and its second answer also fills in the prompt
    finished(page)


def test_a_form_that_is_filled_in_asks_the_server_nothing_again_and_again(page):
    """Gradio reports a change of the list of lanes after each event that reads it."""
    asked = Counter()

    def note(one):
        asked.update([one.post_data] if "/run/predict" in one.url else [])

    page.on("request", note)
    page.locator("#example input").click()
    page.get_by_role("option").nth(1).click()
    page.wait_for_timeout(1500)
    page.remove_listener("request", note)
    assert max(asked.values()) <= 2, asked


def test_a_line_break_typed_at_the_end_is_pointed_out_and_can_be_removed(page):
    box, hint = page.locator("#prompt textarea"), page.locator(".sp-hint")
    box.fill("def mean(values):")
    expect(hint).to_have_count(0)
    box.press("Enter")
    expect(hint).to_contain_text("Shift+Enter runs")
    hint.get_by_role("button").click()
    expect(box).to_have_value("def mean(values):")
    expect(hint).to_be_hidden()


def test_rule_and_temperature_go_together(page):
    unfold(page.locator("#settings > button"), page.get_by_label("coupling:"))
    page.get_by_label("coupling:").check()
    expect(page.locator("#temperature input[type=number]")).to_have_value("0.7")
    for none in (0, -1):
        page.get_by_label("sampling:").check()
        fill(page.locator("#temperature input[type=number]"), none)
        expect(page.get_by_label("greedy:")).to_be_checked()


def test_what_was_missed_is_fetched_again(page):
    page.evaluate(
        f"""() => {{ const race = {RACE};
        const accept = race.accept.bind(race); let count = 0; window.repairs = 0;
        const server = race.server, missed = server.missed;
        race.server = {{ ...server, missed: (query) => {{ window.repairs += 1; return missed(query); }} }};
        race.accept = (delta) => (count++ === 3 ? Promise.resolve() : accept(delta)); }}"""
    )
    run_box(page, "def lost():", tokens=120)
    page.wait_for_function("window.repairs > 0")
    finished(page)
    assert page.locator(".sp-fault").count() == 0


def test_keys_move_the_player_that_is_on_screen(page):
    page.locator(".sd-rail").evaluate("rail => { rail.focus(); rail.blur(); }")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    page.evaluate("scrollTo(0, document.body.scrollHeight)")
    page.locator("#prompt textarea").evaluate("field => field.blur()")
    page.get_by_role("tab", name="Learn").click()
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_have_count(0)  # another tab is on screen
    page.get_by_role("tab", name="Race").click()


def test_keys_go_on_from_the_token_that_was_clicked_and_e_explains_the_one_that_is_shown(page):
    page.get_by_label("Time", exact=True).press("End")
    tokens = page.locator(".sd-col:not([hidden]) .sd-tk")
    for key, shown in (("ArrowRight", 4), ("ArrowLeft", 2)):
        point_at(page, tokens.nth(3))
        tokens.nth(3).click()
        expect(tokens.nth(3)).to_be_focused()
        page.keyboard.press(key)
        expect(tokens.nth(shown)).to_be_focused()
    page.keyboard.press("Escape")
    page.evaluate("document.activeElement.blur()")
    point_at(page, tokens.nth(5))
    page.keyboard.press("e")
    page.wait_for_selector(".sl-steps .sl-sentence")
    page.get_by_role("tab", name="Race").click()


def test_the_learn_tab_explains_a_token_and_opens_on_the_visitor_s_own_run(page):
    page.get_by_label("Time", exact=True).press("End")
    explain(page, page.locator(".sd-col:not([hidden]) .sd-tk").first)
    page.wait_for_function("document.querySelector('.sl-steps .sl-sentence')?.textContent.startsWith('Guess 1, ')")
    assert "Iteration 1 of" in page.locator(".sl-steps .sl-where").inner_text()

    page.get_by_role("tab", name="Race").click()
    run_box(page, "def mine():", tokens=12)
    finished(page)  # the run is kept once all repeats are timed
    page.get_by_role("tab", name="Learn").click()
    page.wait_for_function(f"{LEARN}.model?.badge.kind === 'live'")
    mine = page.evaluate(f"{LEARN}.model.id")
    page.locator("[data-place=lessons]").click()
    page.locator(".sl-cards .sl-card", has_text="A tree of guesses").get_by_role("button").click()
    page.wait_for_selector(".sl-lesson")
    assert page.evaluate(f"{LEARN}.model.id") != mine  # the lesson's own
    listed = page.evaluate("[...document.querySelector('.sl-runs select').options].map((one) => one.value)")
    assert listed[0] == mine
    page.locator("[data-place=play]").click()
    page.wait_for_selector("#sl-start")
    assert page.evaluate(f"{LEARN}.model.id") == mine
    page.get_by_role("tab", name="Race").click()
