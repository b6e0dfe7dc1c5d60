"""Hostile text on every path into the page: it is shown as text or refused with a sentence, and nothing executes."""

from __future__ import annotations

import json
from urllib.parse import quote

import pytest
from playwright.sync_api import expect

from decoding.records.run_file import run_to_json
from tests.page_fakes import ScriptedBackend
from tests.page_server import LANES, page_at, write_recordings
from tests.runs import HOSTILE, make_run

from .pointing import pictures_had_their_turn, point_at

SPLIT = "".join(HOSTILE)
VISIBLE = [text for text in HOSTILE if text.isprintable()]


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    """A page whose models write hostile text and whose only recording is hostile as well."""
    hostile = make_run(identifier="hostile", hostile=True, lanes=LANES, prompt=SPLIT.replace("\x00", ""))
    folder = write_recordings(tmp_path_factory.mktemp("recordings"), hostile)
    with page_at(ScriptedBackend(pause_s=0.001, hostile=True), folder) as url:
        yield url


@pytest.fixture
def page(shared_page, url):
    """The page of a visitor who stays for several tests and came by a hostile link."""
    page = shared_page(f"{url}?{hostile_query(NAMES[3:])}")
    expect(page.locator("#race .sd-strip").first).to_be_visible()
    expect(page.locator("#run")).to_be_visible()
    return page


NAMES = ("prompt", "lanes", "run", "t", "rule", "pair", "seed", "stop", "theme", "view", "__proto__", "__theme")


def hostile_query(names: tuple[str, ...]) -> str:
    text = "<script>window.hacked=1</script><img src=x onerror=window.hacked=1>${window.hacked=1}{{7*7}}" + SPLIT
    return "&".join(f"{name}={quote(text)}" for name in names)


def unharmed(page) -> None:
    pictures_had_their_turn(page)
    assert page.evaluate("window.hacked") is None
    assert page.locator("#race img, #race script, #race svg[onload], #race [onmouseover]").count() == 0
    assert page.faults == []
    assert page.elsewhere == []


def test_a_recording_from_the_first_paint_on(without_gradio, url):
    page = without_gradio(url)
    expect(page.locator(".sp-early .sd-strip").first).to_be_visible()
    page.locator(".sd-rail").focus()
    page.keyboard.press("End")
    expect(page.locator(".sd-text:visible").first).to_contain_text("<script>window.hacked=1</script>")
    assert page.evaluate("window.hacked") is None
    assert page.locator(".sp-early :is(img, script)").count() == 0
    assert page.faults == []


def test_query_parameters(page, visit, url):
    expect(page.locator(".sp-fault")).to_contain_text("The link's rule was left out")
    unharmed(page)
    other = visit(f"{url}?{hostile_query(NAMES)}")
    expect(other.locator("#race .sd-strip").first).to_be_visible()
    # a visitor for whom a run is named first reads why it is refused
    expect(other.locator(".sp-fault")).to_contain_text("This link does not name a run")
    unharmed(other)


def test_recorded_model_output_prompt_and_title(page):
    expect(page.locator(".sd-text:visible").first).to_contain_text("<script>window.hacked=1</script>")
    page.locator("#example input").click()
    expect(page.locator("#example [role=option], [role=listbox] [role=option]").first).to_be_visible()
    page.keyboard.press("Escape")
    page.locator(".sd-rail").focus()
    page.keyboard.press("End")
    point_at(page, page.locator(".sd-text:visible .sd-tk", has_text="onerror").first)
    page.locator(".sp-plots").scroll_into_view_if_needed()
    expect(page.locator(".sp-figure")).to_have_count(3)
    unharmed(page)


def test_live_model_output_and_typed_prompt(page):
    page.locator("#prompt textarea").fill("".join(VISIBLE))
    page.locator("#max-new-tokens input").fill("60")
    page.locator("#max-new-tokens input").blur()
    page.locator("#run").click()
    expect(page.locator(".sd-badge")).to_contain_text("live")
    expect(page.locator("#stop")).to_be_hidden()
    expect(page.locator(".sd-text:visible").first).to_contain_text("${window.hacked=1}")
    for kind in ("Copy as command", "Copy link"):
        page.get_by_role("button", name=kind).click()
        expect(page.locator(".sp-copied")).to_be_visible()
    unharmed(page)


def test_an_opened_run(page, tmp_path):
    run = make_run(identifier="evil", hostile=True, lanes=("autoregressive", "static:5"))
    run.machine.processor = "<img src=x onerror=window.hacked=1>${window.hacked=1}"
    run.pair.name = "{{7*7}}<script>window.hacked=1</script>"
    path = tmp_path / "evil.json"
    path.write_text(run_to_json(run))
    page.locator(".sp-file").set_input_files(path)
    expect(page.locator(".sd-badge")).to_contain_text("imported")
    expect(page.locator(".sd-badge")).to_contain_text("<img src=x onerror")
    unharmed(page)
    data = json.loads(run_to_json(run))
    data["lanes"][1]["lane"] = "static:5<img src=x onerror=window.hacked=1>"
    path.write_text(json.dumps(data))
    page.locator(".sp-file").set_input_files(path)
    expect(page.locator(".sp-take .sp-note")).to_contain_text("The SL must be a whole number")
    unharmed(page)


def test_a_file_that_holds_no_text_is_called_that(page, tmp_path):
    """Not too large, which it would be with a substitute of three bytes for each of its own."""
    path = tmp_path / "photo.json"
    path.write_bytes(b"\xff" * 5 * 2**20)
    page.locator(".sp-file").set_input_files(path)
    expect(page.locator(".sp-take .sp-note")).to_have_text("photo.json is not a text file: open a run file (JSON).")


def test_a_prompt_of_a_hundred_thousand_characters_runs_and_a_longer_one_is_refused(page):
    page.locator("#max-new-tokens input").fill("20")
    page.locator("#max-new-tokens input").blur()
    page.locator("#prompt textarea").fill("x" * 100_000)
    page.locator("#run").click()
    expect(page.locator(".sd-badge")).to_contain_text("live")
    expect(page.locator("#stop")).to_be_hidden()
    page.locator("#prompt textarea").fill("x" * 100_001)
    page.locator("#run").click()
    expect(page.locator(".sp-fault")).to_contain_text("100,001 characters")
    unharmed(page)
