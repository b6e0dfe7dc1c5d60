"""Hostile text on every path into the page: it is shown as text or refused with a sentence, and nothing executes."""

import json
from urllib.parse import quote

import pytest
from playwright.sync_api import expect

from decoding.records.run_file import run_to_json
from tests.page_fakes import ScriptedBackend
from tests.page_server import LANES, page_at, write_recordings
from tests.runs import HOSTILE, make_run

from .pointing import finished, open_text, pictures_had_their_turn, point_at, ready, run_box

SPLIT = "".join(HOSTILE)
VISIBLE = "".join(text for text in HOSTILE if text.isprintable())
ATTACK = "<script>window.hacked=1</script><img src=x onerror=window.hacked=1>${window.hacked=1}{{7*7}}"
NAMES = ("prompt", "lanes", "run", "t", "rule", "pair", "seed", "stop", "theme", "view", "__proto__", "__theme")


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
    return ready(shared_page(f"{url}?{hostile_query(NAMES[3:])}"))


def hostile_query(names: tuple[str, ...]) -> str:
    return "&".join(f"{name}={quote(ATTACK + SPLIT)}" for name in names)


def unharmed(page) -> None:
    pictures_had_their_turn(page)
    assert page.evaluate("window.hacked") is None
    assert page.locator("#race :is(img, script, svg[onload], [onmouseover])").count() == 0


def test_a_recording_from_the_first_paint_on(visit, url):
    page = visit(url, gradio=False)
    expect(page.locator(".sp-early .sd-strip").first).to_be_visible()
    page.locator(".sd-rail").focus()
    page.keyboard.press("End")
    expect(page.locator(".sd-text:visible").first).to_contain_text("<script>window.hacked=1</script>")
    assert page.evaluate("window.hacked") is None
    assert page.locator(".sp-early :is(img, script)").count() == 0


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
    expect(page.get_by_role("option").first).to_be_visible()
    page.keyboard.press("Escape")
    page.locator(".sd-rail").focus()
    page.keyboard.press("End")
    point_at(page, page.locator(".sd-text:visible .sd-tk", has_text="onerror").first)
    page.locator(".sp-plots").scroll_into_view_if_needed()
    expect(page.locator(".sp-figure")).to_have_count(3)
    unharmed(page)


def test_live_model_output_and_typed_prompt(page):
    run_box(page, VISIBLE, tokens=60)
    finished(page)
    expect(page.locator(".sd-text:visible").first).to_contain_text("${window.hacked=1}")
    for kind in ("Copy as command", "Copy link"):
        page.get_by_role("button", name=kind).click()
        expect(page.locator(".sp-copied")).to_be_visible()
    unharmed(page)


def test_an_opened_run(page):
    run = make_run(identifier="evil", hostile=True, lanes=("autoregressive", "static:5"))
    run.machine.processor = run.pair.name = ATTACK
    open_text(page.locator(".sp-file"), run)
    expect(page.locator(".sd-badge")).to_contain_text("imported")
    expect(page.locator(".sd-badge")).to_contain_text("<img src=x onerror")
    unharmed(page)
    data = json.loads(run_to_json(run))
    data["lanes"][1]["lane"] = f"static:5{ATTACK}"
    open_text(page.locator(".sp-file"), json.dumps(data))
    expect(page.locator(".sp-take .sp-note")).to_contain_text("The SL must be a whole number")
    expect(page.locator(".sd-badge")).to_contain_text("imported")  # the run on screen stays
    unharmed(page)


def test_a_file_that_holds_no_text_is_called_that(page):
    """Not too large, which it would be with a substitute of three bytes for each of its own."""
    open_text(page.locator(".sp-file"), b"\xff" * 5 * 2**20, "photo.json")
    expect(page.locator(".sp-take .sp-note")).to_have_text("photo.json is not a text file: open a JSON file.")


def test_a_prompt_of_a_hundred_thousand_characters_runs_and_a_longer_one_is_refused(page):
    run_box(page, "x" * 100_000, tokens=20)
    finished(page)
    run_box(page, "x" * 100_001, tokens=20)
    expect(page.locator(".sp-fault")).to_contain_text("100,001 characters")
    unharmed(page)
