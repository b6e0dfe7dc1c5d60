"""A run on the page between its first repeat and its end: it plays, its figures settle, Stop keeps what is there."""

import re

import pytest
from playwright.sync_api import expect

from decoding.records.run_file import run_from_json
from tests.runs import make_run

from .conftest import LEARN
from .opening import reload
from .pointing import RACE, download, explain, open_text, ready, run_box


@pytest.fixture
def page(shared_page, scripted):
    """The page of a visitor who stays, whose run has been timed once and waits."""
    url, backend = scripted
    backend.go_on.clear()
    page = ready(shared_page(url))
    run_box(page, "def f(x):")
    expect(page.locator("#stop")).to_be_visible()  # Run is back then only for another run: before, it is a second press
    expect(page.locator(".sd-status")).to_contain_text("1 of 3 timings")
    yield page
    backend.go_on.set()
    expect(page.locator("#stop")).to_be_hidden()


def test_the_first_repeat_plays_while_the_others_are_timed(page, scripted):
    expect(page.locator(".sd-badge")).to_contain_text("live")
    expect(page.locator(".sd-sentence")).to_contain_text("Here: the same 30 tokens")
    expect(page.locator("#stop")).to_be_visible()
    assert page.locator(".sd-slider").count() == 0
    early = run_from_json(download(page, "Run file (JSON)"))
    assert all(len(trace.repeats) == 1 for trace in early.lanes)
    page.get_by_role("button", name="Copy as command").click()
    copied = page.locator(".sp-copied")
    command = copied.input_value()
    assert command.startswith("python -m decoding compare")
    rail = page.locator(".sd-rail")
    rail.focus()
    page.keyboard.press("End")  # pauses, too
    rail.evaluate("rail => { rail.value = 500; rail.dispatchEvent(new Event('input')); }")
    page.locator(".sd-row .sd-name").nth(2).click()
    scripted[1].go_on.set()
    expect(page.locator(".sd-sim .sd-slider")).to_be_visible()
    expect(page.locator(".sd-status")).to_be_hidden()
    expect(page.locator("#stop")).to_be_hidden()
    assert abs(float(rail.input_value()) - 500) < 200  # at the same time, if the replayed repeat took about as long
    expect(page.locator(".sd-row .sd-name").nth(2)).to_have_attribute("aria-pressed", "true")
    expect(page.locator(".sd-row .sd-name").nth(2)).to_be_focused()
    expect(copied).to_have_value(command)
    page.get_by_role("button", name="Copy as command").click()
    expect(page.locator(".sp-take .sp-note")).to_have_text("The command is in your clipboard.")
    assert copied.input_value() == command
    whole = run_from_json(download(page, "Run file (JSON)"))
    assert all(len(trace.repeats) == 3 for trace in whole.lanes) and whole.id == early.id


def test_stop_keeps_the_timings_that_are_there(page):
    page.locator("#stop").click()
    expect(page.locator(".sd-status")).to_have_text("Stopped after 1 of 3 timings. They are kept.")
    expect(page.locator("#stop")).to_be_hidden()
    expect(page.locator(".sd-sentence")).to_contain_text("Here: the same 30 tokens")
    kept = run_from_json(download(page, "Run file (JSON)"))
    assert all(len(trace.repeats) == 1 for trace in kept.lanes)
    page.locator(".sd-rail").focus()
    page.keyboard.press("Home")
    page.locator(".sd-play").click()
    expect(page.locator(".sd-play")).to_have_attribute("aria-label", "Pause (space)")


def test_another_run_ends_the_timings_of_the_one_before(page, scripted):
    page.evaluate(f"() => {{ race = {RACE}; first = {{ run: race.live, payload: race.player.payload }}; }}")
    run_box(page, "def g(y):")
    expect(page.locator(".sd-text").first).to_contain_text("def g(y):")
    expect(page.locator(".sd-status")).to_contain_text("1 of 3 timings")
    page.evaluate("""async () => {  // the end of the first run was still on its way
      const { run, payload } = first;
      await race.accept({ run, seq: 0, next: 1, events: [{ kind: "finished", data: { payload } }] });
    }""")
    expect(page.locator(".sd-text").first).to_contain_text("def g(y):")
    expect(page.locator("#stop")).to_be_visible()
    assert [asked.prompt for asked in scripted[1].requests][-2:] == ["def f(x):", "def g(y):"]
    scripted[1].go_on.set()
    expect(page.locator(".sd-place")).to_contain_text("· 3 timings")
    expect(page.locator("#stop")).to_be_hidden()


def test_a_run_under_way_does_not_come_back_over_one_that_was_opened(page, scripted):
    open_text(page.locator(".sp-file"), make_run(prompt="the opened one", identifier="opened"))
    expect(page.locator(".sd-prompt").first).to_contain_text("the opened one")
    shown = page.locator(".sd-prompt").first.inner_text()
    expect(page.locator("#stop")).to_be_hidden()  # no further timings are made of what nobody sees
    scripted[1].go_on.set()
    run_box(page, "   ")  # whatever came meanwhile has come before this answer
    expect(page.locator(".sp-status.sp-fault")).to_contain_text("The prompt is empty")
    assert page.locator(".sd-prompt").first.inner_text() == shown != "def f(x):"


def test_the_learn_tab_shows_the_whole_run_where_it_had_shown_its_first_timing(page, scripted):
    page.get_by_label("Time", exact=True).press("End")
    explain(page, page.locator(".sd-text:visible .sd-tk:visible").first)
    expect(page.locator(".sl-run-line")).to_contain_text("(1 of 3 timings)")
    page.get_by_role("tab", name="Race").click()
    scripted[1].go_on.set()
    expect(page.locator("#stop")).to_be_hidden()
    page.get_by_role("tab", name="Learn").click()
    expect(page.locator(".sl-run-line")).not_to_contain_text("(1 of 3 timings)")
    assert page.evaluate(f"{LEARN}.model.timings") == 3
    page.get_by_role("tab", name="Race").click()


def test_a_reload_shows_the_run_again_and_says_that_it_ended(page, scripted):
    answers = "**/gradio_api/run/predict**"  # of the server, which fill in the form
    waiting = []
    page.route(answers, lambda route: waiting.append(route))
    reload(page)
    expect(page.locator(".sp-status")).to_contain_text("The timings made by then are shown.")
    expect(page.locator(".sd-sentence")).to_contain_text("(1 of 3 timings)")
    scripted[1].go_on.set()
    again = page.get_by_role("button", name="Start again")
    expect(again).to_be_disabled()  # until the form asks for that run again
    while waiting:
        waiting.pop().continue_()
    page.unroute(answers)
    again.click()
    expect(page.locator(".sd-place")).to_contain_text("· 3 timings")
    expect(page.locator("#stop")).to_be_hidden()  # the news that it has ended may come after its last timing
    reload(page)
    expect(page.locator(".sd-prompt").first).to_contain_text("def f(x):")
    expect(page.locator(".sd-place")).to_contain_text("· 3 timings")
    expect(page.locator(".sp-status")).to_be_hidden()
    run_box(page, "endless")
    expect(page.locator(".sd-text").first).to_contain_text("endless")
    reload(page)  # before its first timing: the last run that has one is shown
    expect(page.locator(".sp-status")).to_have_text(
        re.compile("ended when this page was left or reloaded.Start again$")
    )
    expect(page.locator(".sd-prompt").first).to_contain_text("def f(x):")


def test_no_further_timings_are_made_when_nobody_looks(page):
    page.evaluate("""() => {
      const later = window.setTimeout;
      window.setTimeout = (act, ms, ...more) => later(act, ms === 20000 ? 50 : ms, ...more);
      Object.defineProperty(document, "hidden", { configurable: true, get: () => true });
      document.dispatchEvent(new Event("visibilitychange"));
    }""")
    expect(page.locator(".sd-status")).to_have_text("Stopped after 1 of 3 timings. They are kept.")
    expect(page.locator(".sd-sentence")).to_contain_text("(1 of 3 timings)")
