"""The recorded run plays before Gradio stands, and goes on playing when it does."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from playwright.sync_api import expect

from tests.page_fakes import ScriptedBackend
from tests.page_server import LANES, first_run, page_at, write_recordings
from tests.runs import make_run

from .conftest import WAIT
from .pointing import settled

GRADIO = "**/assets/index-*.js"  # the script that loads all others


@pytest.fixture
def without_gradio(browser):
    """open(url): a page whose Gradio scripts never arrive."""
    contexts = []

    def open_page(url: str):
        context = browser.new_context(viewport={"width": 1280, "height": 800})
        contexts.append(context)
        page = context.new_page()
        page.faults = []
        page.on("pageerror", lambda error: page.faults.append(str(error)))
        page.route(GRADIO, lambda route: route.abort())
        page.goto(url)
        return page

    yield open_page
    for context in contexts:
        context.close()


def test_the_recorded_run_plays_before_gradio_has_started(without_gradio, page_url):
    page = without_gradio(page_url)
    expect(page.locator(".sp-early .sd-badge")).to_contain_text("recorded", timeout=WAIT)
    expect(page.locator(".sp-early .sd-sentence")).to_contain_text("Here: the same 88 tokens")
    page.wait_for_function("document.querySelector('.sp-early .sd-rail').value > 20", timeout=WAIT)
    assert page.locator("#race").count() == 0
    assert page.faults == []


def test_the_race_tab_takes_the_playing_player_over_where_it_stands(browser, page_url):
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    page, held = context.new_page(), []
    page.route(GRADIO, lambda route: held.append(route))
    page.goto(page_url, wait_until="commit")
    expect(page.locator(".sp-early .sd-strip").first).to_be_visible(timeout=WAIT)
    page.evaluate("document.querySelector('.sd-rail').mine = true")
    page.locator(".sd-rail").focus()
    before = page.locator(".sp-player").bounding_box()
    page.wait_for_function("document.querySelector('.sd-rail').value > 20", timeout=WAIT)
    for route in held:
        route.continue_()
    expect(page.locator("#race .sd-strip").first).to_be_visible(timeout=WAIT)
    assert page.locator(".sp-player").count() == 1 and page.locator(".sp-early").count() == 0
    assert page.evaluate("(() => { const r = document.querySelector('.sd-rail'); return r.mine && r.value > 20; })()")
    assert page.evaluate("document.activeElement === document.querySelector('.sd-rail')")
    page.wait_for_function("document.querySelector('#run')", timeout=WAIT)
    settled(page)
    after = page.locator(".sp-player").bounding_box()
    assert after["x"] == before["x"] and after["width"] == before["width"] and abs(after["y"] - before["y"]) < 30
    expect(page.get_by_role("button", name="Run file (JSON)")).to_be_enabled()
    context.close()


def test_a_link_to_a_run_waits_for_that_run(without_gradio, visit, page_url):
    page = without_gradio(f"{page_url}?run=hostile")
    settled(page)
    assert page.locator(".sp-early").count() == 0
    page = visit(f"{page_url}?run=hostile")
    expect(page.locator("#race .sd-strip").first).to_be_visible(timeout=WAIT)
    expect(page.locator(".sd-text:visible").first).to_contain_text("<script>", timeout=WAIT)


def test_a_hostile_recording_is_text_from_the_first_paint_on(without_gradio, tmp_path):
    folder = write_recordings(tmp_path, make_run(identifier="hostile", hostile=True, lanes=LANES))
    with page_at(ScriptedBackend(), folder) as url:
        page = without_gradio(url)
        expect(page.locator(".sp-early .sd-strip").first).to_be_visible(timeout=WAIT)
        page.locator(".sd-rail").focus()
        page.keyboard.press("End")
        expect(page.locator(".sd-text:visible").first).to_contain_text("<script>window.hacked=1</script>", timeout=WAIT)
        assert page.evaluate("window.hacked") is None
        assert page.locator(".sp-early :is(img, script)").count() == 0
        assert page.faults == []


def test_without_a_recording_the_page_starts_without_a_cover(visit, tmp_path):
    (tmp_path / "index.json").write_text(json.dumps([]))
    with page_at(ScriptedBackend(), tmp_path) as url:
        page = visit(url)
        expect(page.locator(".sp-status")).to_contain_text(["press Run to make one"], timeout=WAIT)
        assert page.locator(".sp-early").count() == 0
        assert page.faults == []


def test_a_link_to_a_pair_opens_that_pairs_first_example(visit, tmp_path):
    run = make_run(identifier="second", lanes=LANES, prompt="what the toy pair writes")
    of_toy = replace(run, settings=replace(run.settings, pair="toy"), pair=replace(run.pair, name="toy"))
    with page_at(ScriptedBackend(), write_recordings(tmp_path, first_run(), of_toy)) as url:
        page = visit(f"{url}?pair=toy&max_new_tokens=33")
        expect(page.locator("#prompt textarea")).to_have_value(run.settings.prompt, timeout=WAIT)
        expect(page.locator(".sd-prompt").first).to_contain_text(run.settings.prompt, timeout=WAIT)
        expect(page.locator("#max-new-tokens input")).to_have_value("33", timeout=WAIT)
        expect(page.get_by_label("Examples")).to_have_value(run.settings.prompt, timeout=WAIT)  # its title
        assert page.faults == []
