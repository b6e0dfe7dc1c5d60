"""How the page opens: the recorded run plays before Gradio stands; a link's settings or the kept ones are filled in."""

import json
import re
from dataclasses import replace

import pytest
from playwright.sync_api import expect

from tests.fakes import fake_pair
from tests.page_fakes import ScriptedBackend
from tests.page_server import first_run, page_at, write_recordings

from .opening import await_gradio, let_gradio_begin, open_held, prepare, reload
from .pointing import fill, finished, run_box, settled, unfold

STILL_AT = """(before) => {
    const now = document.querySelector(".sp-player").getBoundingClientRect();
    return now.x === before.x && now.width === before.width && Math.abs(now.y - before.y) < 30;
}"""


def test_the_race_tab_takes_the_playing_player_over_where_it_stands(visit, page_url):
    page = visit(page_url, gradio=False)
    expect(page.locator(".sp-early .sd-badge")).to_contain_text("recorded")
    expect(page.locator(".sp-early .sd-sentence")).to_contain_text("Here: the same 88 tokens")
    page.evaluate("document.querySelector('.sd-rail').mine = true")
    page.locator(".sd-rail").focus()
    before = page.locator(".sp-player").bounding_box()
    page.wait_for_function("document.querySelector('.sd-rail').value > 20")
    let_gradio_begin(page)
    page.locator("#race .sd-strip").first.wait_for()
    assert page.locator(".sp-player").count() == 1 and page.locator(".sp-early").count() == 0
    assert page.evaluate("(() => { const r = document.querySelector('.sd-rail'); return r.mine && r.value > 20; })()")
    assert page.evaluate("document.activeElement === document.querySelector('.sd-rail')")
    page.wait_for_function("document.querySelector('#run')")
    page.wait_for_function(STILL_AT, arg=before)  # Gradio may still be laying out what stands above it
    expect(page.get_by_role("button", name="Run file (JSON)")).to_be_enabled()
    expect(page.locator("h1")).to_have_text("Speculoscope")
    expect(page.locator("#prompt textarea")).to_have_value(first_run().settings.prompt)
    tops = [text.bounding_box()["y"] for text in page.locator(".sd-text:visible").all()[:3]]
    assert max(tops) + 40 < 800  # strips and the tops of three texts without scrolling


def test_a_link_to_a_run_waits_for_that_run_and_opens_it_at_its_moment(visit, page_url):
    """It stands still there: plots, and with them Plotly, also come when the replay ends."""
    page = visit(f"{page_url}?run=hostile&t=0.2", gradio=False)
    settled(page)
    assert page.locator(".sp-early").count() == 0
    let_gradio_begin(page)
    page.locator(".sd-text:visible").first.wait_for()
    expect(page.locator(".sd-text:visible").first).to_contain_text("<script>")
    expect(page.locator(".sd-clock").first).to_have_text("0.20 s")
    expect(page.locator("#prompt textarea")).to_have_value(re.compile("^<script>"))  # and its settings
    expect(page.locator("#max-new-tokens input")).to_have_value("88")
    expect(page.get_by_role("button", name="Play (space)")).to_be_visible()
    settled(page)
    assert [url for url in page.asked if "plotly" in url] == []
    page.locator(".sp-plots").scroll_into_view_if_needed()
    page.wait_for_function("document.querySelectorAll('.sp-canvas .main-svg').length >= 2")
    assert [url for url in page.asked if "plotly.min.js" in url] == [f"{page_url}speculoscope/plotly.min.js"]


def test_without_a_recording_the_page_starts_without_a_cover(visit, tmp_path):
    (tmp_path / "index.json").write_text(json.dumps([]))
    with page_at(ScriptedBackend(), tmp_path) as url:
        page = visit(url)
        expect(page.locator(".sp-status")).to_contain_text(["press Run to make one"])
        assert page.locator(".sp-early").count() == 0


@pytest.fixture
def first_visit(request, tab, page_url):
    """first_visit(**context options): a page without Gradio's scripts, in a browser that has not seen it."""

    def open_it(**options):
        page = tab(request.node.name, **options)  # of its own: a clock that is installed stays
        prepare(page, page_url, seen=False)
        page.clock.install(time=0)
        page.clock.pause_at(1000)  # only run_for moves it: on a busy machine the opening would end before it is read
        open_held(page, page_url)
        page.locator(".sp-opening").wait_for()
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
    page.reload(wait_until="commit")
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


# -- what it fills in: a link's settings, or what the browser has kept of the forms


def test_a_link_restores_the_settings_the_browser_keeps_them_and_the_next_link_replaces_them(visit, page_url):
    query = "prompt=Once+upon&lanes=autoregressive,static:3&max_new_tokens=33&seed=7&temperature=0.5&rule=coupling"
    page = visit(f"{page_url}?{query}")
    expect(page.locator("#prompt textarea")).to_have_value("Once upon")
    expect(page.locator(".sp-status")).to_contain_text("press Run")
    expect(page.locator(".sd-race")).to_be_hidden()  # no unrelated run plays meanwhile
    expect(page.locator("#lanes .token")).to_have_text(["Plain", "Static 3"])
    expect(page.locator("#max-new-tokens input")).to_have_value("33")
    page.wait_for_function("(localStorage.getItem('speculoscope-form-race') || '').length > 20")
    settled(page)
    held = []
    page.route("**/queue/join*", lambda route: held.append(route))  # the page's questions to the server wait
    with page.expect_request(lambda request: "Once upon" in (request.post_data or "")):
        page.goto(page_url)
    fill(page.locator("#max-new-tokens input"), 30)  # before the kept settings come
    for route in held:
        route.continue_()
    page.unroute("**/queue/join*")
    expect(page.locator("#prompt textarea")).to_have_value("Once upon")
    expect(page.locator("#max-new-tokens input")).to_have_value("30")
    query = "pair=nope&temperature=6&repeats=40&top_p=0&max_new_tokens=10000&seed=-1&lanes=static:5,autoregressive"
    page.goto(f"{page_url}?{query}")
    for name in ("pair", "temperature", "repeats", "top_p", "max_new_tokens", "seed"):
        expect(page.locator(".sp-fault")).to_contain_text(f"The link's {name} was left out")
    expect(page.locator("#max-new-tokens input")).to_have_value("128")  # a link is complete: nothing kept is mixed in
    run_box(page, "def link():", tokens=20)
    finished(page)
    reload(page)  # the link does not come back over the run
    expect(page.locator("#prompt textarea")).to_have_value("def link():")
    expect(page.locator(".sd-prompt").first).to_contain_text("def link():")


def test_a_reload_shows_the_example_that_was_chosen_and_its_form_not_those_of_the_link(visit, page_url):
    page = visit(f"{page_url}?prompt=Once+upon")
    expect(page.locator("#prompt textarea")).to_have_value("Once upon")
    settled(page)
    page.locator("#example input").click()
    page.get_by_role("option").first.click()
    expect(page.locator(".sd-badge")).to_contain_text("recorded")
    page.wait_for_function("!sessionStorage.getItem('speculoscope-form-race').includes('Once upon')")
    reload(page)
    expect(page.locator(".sd-badge")).to_contain_text("recorded")
    expect(page.locator("#prompt textarea")).to_have_value(first_run().settings.prompt)


def test_a_reload_fills_in_the_form_of_its_own_tab_and_a_new_tab_that_of_the_last_one(visit, page_url):
    def change(page, text: str) -> None:
        settled(page)
        before = page.evaluate("localStorage.getItem('speculoscope-form-race')")
        fill(page.locator("#prompt textarea"), text)
        page.wait_for_function("text => sessionStorage.getItem('speculoscope-form-race')?.includes(text)", arg=text)
        page.wait_for_function("before => localStorage.getItem('speculoscope-form-race') !== before", arg=before)

    page = visit(page_url)
    change(page, "the first tab's")
    other = page.context.new_page()
    other.goto(page_url)
    await_gradio(other)
    expect(other.locator("#prompt textarea")).to_have_value("the first tab's")
    change(other, "the second tab's")
    other.close()
    reload(page)
    expect(page.locator("#prompt textarea")).to_have_value("the first tab's")


def test_on_a_phone_the_form_with_the_run_button_that_a_link_speaks_of_is_open(visit, page_url):
    page = visit(f"{page_url}?prompt=Once+upon", viewport={"width": 390, "height": 800})
    expect(page.locator(".sp-status")).to_contain_text("press Run")
    expect(page.locator("#run")).to_be_visible()
    expect(page.locator(".sp-unfold")).to_have_attribute("aria-expanded", "true")
    settled(page)
    expect(page.locator("#prompt textarea")).to_have_value("Once upon")


class Measured(ScriptedBackend):
    """Measures what its machine's costs choose between two visits."""

    chosen = ""

    def pairs(self):
        chosen = {"shallow": self.chosen} if self.chosen else {}
        return [replace(fake_pair(), set_here=chosen, best_sl=dict.fromkeys(chosen, 3))]


def test_the_next_visit_shows_what_was_chosen_meanwhile_and_that_a_measurement_ended(visit, tmp_path):
    backend = Measured(pause_s=0.1)  # 50 steps, 5 s
    with page_at(backend, write_recordings(tmp_path)) as url:
        page = visit(f"{url}?prompt=Once&lanes=autoregressive,static:3")
        expect(page.locator("#lanes .token")).to_have_text(["Plain", "Static 3"])
        expect(page.locator("#set-here")).to_be_hidden()
        panel = drafts_tab(page)
        prompts = panel.get_by_role("spinbutton", name="Test prompts")
        unfold(panel.get_by_text("Measure again here"), prompts)
        fill(prompts, 2.5)
        panel.get_by_role("button", name="Run here").click()
        expect(panel.locator(".sp-status")).to_contain_text("a whole number from 1 to 1,000, not 2.5")
        fill(prompts, 7)
        panel.get_by_role("button", name="Run here").click()
        expect(panel.locator(".sp-status")).to_contain_text("of 50")
        backend.chosen = "Set for this machine on validation prompts: best static SL 3."

        reload(page)
        expect(page.locator("#set-here")).to_have_text(backend.chosen)
        expect(page.locator("#lanes .token")).to_have_text(["Plain", "Best static SL here: 3"])
        page.locator("#lanes input").click()
        expect(page.get_by_role("option", name="Best static SL here: 3")).to_be_visible()
        page.keyboard.press("Escape")
        backend.chosen = "Set for this machine on validation prompts: best static SL 2."
        run_box(page, "def again():", tokens=8)
        expect(page.locator("#set-here")).to_have_text(backend.chosen)
        finished(page)
        panel = drafts_tab(page)
        expect(panel.locator(".sp-status")).to_contain_text("ended when this page was left")
        panel.get_by_role("button", name="Start again").click()  # its form is folded
        expect(panel.get_by_role("spinbutton", name="Test prompts")).to_have_value("7")
        expect(panel.locator(".sp-status")).to_contain_text("of 50")
        # the shipped results may arrive late: what is under way is not said to have ended
        open_again = "(n) => { while (!n.speculoscope) n = n.parentNode; return n.speculoscope.open(true) }"
        panel.locator(".sp-status").evaluate(open_again)
        assert panel.get_by_role("button", name="Start again").count() == 0
        panel.get_by_role("button", name="Stop", exact=True).click()
        expect(panel.locator(".sp-status")).to_have_text("Stopped.")
        backend.pause_s = 0.0
        panel.get_by_role("button", name="Run here").click()
        expect(panel.locator(".sp-status")).to_contain_text("has no evaluation")

        reload(page)
        expect(drafts_tab(page).locator(".sp-status")).to_contain_text("No results are shipped")


def drafts_tab(page):
    page.get_by_role("tab", name="Drafts").click()
    return page.locator("[role=tabpanel]:visible")
