"""The recorded run plays before Gradio stands, and goes on playing when it does."""

import json
from dataclasses import replace

import pytest
from playwright.sync_api import expect

from tests.page_fakes import ScriptedBackend
from tests.page_server import LANES, first_run, page_at, write_recordings
from tests.runs import make_run

from .opening import GRADIO, SEEN, blank_page, disable_gradio
from .pointing import settled

STILL_AT = """(before) => {
    const now = document.querySelector(".sp-player").getBoundingClientRect();
    return now.x === before.x && now.width === before.width && Math.abs(now.y - before.y) < 30;
}"""


def test_the_race_tab_takes_the_playing_player_over_where_it_stands(browser, watched, page_url):
    page, held = watched(blank_page(browser)), []
    page.add_init_script(SEEN)
    page.route(GRADIO, lambda route: held.append(route))
    page.goto(page_url, wait_until="commit")
    expect(page.locator(".sp-early .sd-badge")).to_contain_text("recorded")
    expect(page.locator(".sp-early .sd-sentence")).to_contain_text("Here: the same 88 tokens")
    page.evaluate("document.querySelector('.sd-rail').mine = true")
    page.locator(".sd-rail").focus()
    before = page.locator(".sp-player").bounding_box()
    page.wait_for_function("document.querySelector('.sd-rail').value > 20")
    for route in held:
        route.continue_()
    expect(page.locator("#race .sd-strip").first).to_be_visible()
    assert page.locator(".sp-player").count() == 1 and page.locator(".sp-early").count() == 0
    assert page.evaluate("(() => { const r = document.querySelector('.sd-rail'); return r.mine && r.value > 20; })()")
    assert page.evaluate("document.activeElement === document.querySelector('.sd-rail')")
    page.wait_for_function("document.querySelector('#run')")
    page.wait_for_function(STILL_AT, arg=before)  # Gradio may still be laying out what stands above it
    expect(page.get_by_role("button", name="Run file (JSON)")).to_be_enabled()


def test_a_link_to_a_run_waits_for_that_run(visit, page_url):
    """And then it comes: test_a_link_opens_a_recording_at_its_moment in test_page_walk.py."""
    page = visit(f"{page_url}?run=hostile", gradio=False)
    settled(page)
    assert page.locator(".sp-early").count() == 0


def test_without_a_recording_the_page_starts_without_a_cover(visit, tmp_path):
    (tmp_path / "index.json").write_text(json.dumps([]))
    with page_at(ScriptedBackend(), tmp_path) as url:
        page = visit(url)
        expect(page.locator(".sp-status")).to_contain_text(["press Run to make one"])
        assert page.locator(".sp-early").count() == 0


def test_a_link_to_a_pair_opens_that_pairs_first_example_and_no_other_before(visit, tmp_path):
    run = make_run(identifier="second", lanes=LANES, prompt="what the toy pair writes")
    of_toy = replace(run, settings=replace(run.settings, pair="toy"), pair=replace(run.pair, name="toy"))
    with page_at(ScriptedBackend(), write_recordings(tmp_path, first_run(), of_toy)) as url:
        waiting = visit(f"{url}?pair=toy", gradio=False)
        settled(waiting)
        assert waiting.locator(".sp-early").count() == 0
        page = visit(f"{url}?pair=toy&max_new_tokens=33")
        expect(page.locator("#prompt textarea")).to_have_value(run.settings.prompt)
        expect(page.locator(".sd-prompt").first).to_contain_text(run.settings.prompt)
        expect(page.locator("#max-new-tokens input")).to_have_value("33")
        expect(page.get_by_label("Examples")).to_have_value(run.settings.prompt)  # its title


@pytest.fixture
def first_visit(browser, watched, page_url):
    """first_visit(**context options): a page without Gradio's scripts, in a browser that has not seen it."""

    def open_it(**options):
        page = watched(blank_page(browser, **options))
        page.clock.install(time=0)
        page.clock.pause_at(1000)  # only run_for moves it: on a busy machine the opening would end before it is read
        disable_gradio(page)
        page.goto(page_url)
        expect(page.locator(".sp-opening")).to_be_visible()
        return page

    return open_it


PLAY = "document.querySelector('.sp-early .sd-play').title"


def test_a_first_visit_opens_with_one_iteration_in_captions_then_the_replay_plays(first_visit):
    page = first_visit()
    said, seen = page.locator(".sp-opening-said"), page.locator(".sp-opening-row .sd-token")
    page.clock.run_for(20)
    assert "The small model guesses" in said.inner_text() and "The big model checks" not in said.inner_text()
    page.clock.run_for(9000)
    fates = "[...document.querySelectorAll('.sp-opening-row .sd-token')].map((n) => n.className.split('sd-is-')[1])"
    shown = page.evaluate(fates)
    held = shown.count("accepted")
    assert shown[-1] == "correction" and shown.count("rejected") == 1 and held and seen.count() == len(shown)
    number = ("no", "One", "Two", "Three", "Four", "Five")[held]
    assert f"{number} hold" in said.inner_text()
    page.clock.run_for(3000)
    assert page.locator(".sp-opening").count() == 0
    assert page.evaluate(PLAY).startswith("Pause")
    page.reload()
    expect(page.locator(".sp-early .sd-strip").first).to_be_visible()
    assert page.locator(".sp-opening").count() == 0


@pytest.mark.parametrize(
    "act", [lambda page: page.mouse.click(5, 5), lambda page: page.keyboard.press(" ")], ids=["click", "key"]
)
def test_any_click_or_key_ends_the_opening_and_does_what_it_does(first_visit, act):
    page = first_visit()
    act(page)
    page.clock.run_for(100)
    assert page.locator(".sp-opening").count() == 0
    assert page.evaluate(PLAY).startswith("Pause")


def test_with_reduced_motion_the_opening_stands_still_until_it_is_ended(first_visit):
    page = first_visit(reduced_motion="reduce")
    said = page.locator(".sp-opening-said").inner_text()
    assert "The small model guesses" in said and "hold" in said
    page.clock.run_for(60_000)
    assert page.locator(".sp-opening").count() == 1
    page.keyboard.press("Escape")
    assert page.locator(".sp-opening").count() == 0
