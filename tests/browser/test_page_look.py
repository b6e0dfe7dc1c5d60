"""How the page behaves in other windows: axe, a phone, dark, keyboard only."""

import pytest
from playwright.sync_api import expect

from tests.evaluations import make_drafts, make_papers
from tests.page_server import first_run
from viz.export import export_lesson
from viz.lessons import shipped_lessons
from viz.player.names import lane_name
from viz.player.payload import run_payload
from viz.reports.report import report_of

from .conftest import LEARN, learn_tab
from .opening import PHONE, result_of
from .pointing import serious, settled, stand_still

DARK = {"color_scheme": "dark"}


@pytest.fixture
def race(shared_page, page_url):
    """race(**context options): the page of a visitor who stays, at the Race tab."""

    def go(**options):
        page = shared_page(page_url, **options)
        page.get_by_role("tab", name="Race").click()
        page.locator("#race .sd-strip").first.wait_for()
        stand_still(page)
        return page

    return go


def with_plots(page):
    page.locator(".sp-plots").scroll_into_view_if_needed()
    page.wait_for_function("document.querySelectorAll('.sp-canvas .main-svg').length >= 2")
    return page


def test_axe_finds_nothing_serious_in_the_race_and_its_plots_dark_or_light(race):
    page = with_plots(race(**DARK))
    expect(page.locator("body.dark")).to_be_attached()
    page.get_by_role("button", name="Copy as command").click()
    expect(page.locator(".sp-copied")).to_be_visible()
    assert serious(page, "#race") == []
    ink = page.evaluate("getComputedStyle(document.querySelector('.sp-canvas')).getPropertyValue('--sd-mute').trim()")
    colour = "document.querySelector('.sp-canvas').layout.font.color"  # dark colours reach the plots
    assert page.evaluate(colour) == ink
    page.evaluate("document.body.classList.remove('dark')")
    page.wait_for_function(f"{colour} !== '{ink}'")
    assert serious(page, "#race", "color-contrast") == []  # only colours differ
    page.evaluate("document.body.classList.add('dark')")


def test_keyboard_only_a_visitor_reaches_run_and_the_player(race):
    page = race(**DARK)
    page.locator("#prompt textarea").focus()
    focused = "(() => { const n = document.activeElement; return n.id || n.className || n.closest('[id]')?.id })()"
    reached = ""
    for _ in range(120):  # glossary words are tab stops, too
        page.keyboard.press("Tab")
        reached += f"{page.evaluate(focused)} "
        if all(wanted in reached for wanted in ("run", "sd-play", "sd-rail", "sd-button")):
            return
    raise AssertionError(f"Tab leads only to {reached}")


def test_on_a_phone_axe_finds_nothing_serious_and_nothing_scrolls_sideways(race):
    page = with_plots(race(**PHONE))
    assert serious(page, "#race") == []
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.evaluate("document.querySelector('.sd-strips').getBoundingClientRect().bottom + scrollY") < 844
    assert not page.locator("#prompt").is_visible()  # the form is collapsed: the first screen shows the race
    page.locator(".sp-unfold").click()
    expect(page.locator("#prompt")).to_be_visible()
    for summary in page.locator(".sd-panel summary").all():
        summary.click()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.locator(".sd-text:visible").count() == 1  # one text at a time


def test_on_a_phone_nothing_in_the_learn_tab_is_wider(race):
    page = race(**PHONE)
    page.get_by_role("tab", name="Learn").tap()
    learn_tab(page).evaluate(f"{LEARN}.follow('?learn=play&run=first')")
    page.locator("#sl-start").tap()
    for _ in range(6):
        page.locator("[data-key=on]").tap()
    for place in ("play", "lessons", "steps", "whatif", "words"):
        page.locator(f"[data-place={place}]").tap()
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, place
    meaning, word = (page.locator(f".sl-glossary {one}").bounding_box() for one in ("dd >> nth=0", "dt >> nth=1"))
    assert word["y"] - meaning["y"] - meaning["height"] == 8
    page.locator("[data-place=lessons]").tap()
    page.locator(".sl-cards .sl-main").first.tap()
    for _ in range(2):
        page.locator(".sl-turn .sl-main").tap()
        settled(page)
        assert 0 <= page.locator(".sl-lesson-text h2").bounding_box()["y"] < 844  # a step begins at its title


def show_report(page, job: str, content: dict) -> None:
    show = f"""(report) => [...document.querySelectorAll('#report-{job}, #report-{job} *')]
      .find((node) => node.speculoscope).speculoscope.show(report)"""
    result_of(page, show, content)


TOO_WIDE = """[...document.querySelectorAll('#report-evaluate .sp-tabled')]
  .filter((node) => node.querySelector('table').offsetWidth > node.offsetWidth)
  .map((node) => node.textContent.slice(0, 60))"""


OF_PAPERS = {"code": "humaneval", "prose": "gsm8k"}  # suites of the papers: two tables more
SCROLLED = """[...document.querySelectorAll('#report-evaluate .sp-stackable')]
  .map((node) => node.scrollWidth - node.clientWidth)"""


CUT = """[...document.querySelectorAll('.sp-canvas')].filter((node) => node.offsetWidth).flatMap((node) => {
  const edge = node.getBoundingClientRect(), isCut = ({ left, right, top, bottom, width }) => width
    && (left < edge.left || right > edge.right + 1 || top < edge.top || bottom > edge.bottom + 1);
  return [...node.querySelectorAll('svg text')].filter((text) => isCut(text.getBoundingClientRect()))
    .map((text) => text.textContent);
})"""


def open_folds(page, job: str) -> None:
    page.evaluate(f"document.querySelectorAll('#report-{job} .sp-fold').forEach((fold) => {{ fold.open = true; }})")


def test_reports_fit_a_phone_axe_finds_nothing_serious_and_their_words_explain_themselves(race):
    page = race(**PHONE)
    page.set_viewport_size({"width": 360, "height": 780})
    reports = {"evaluate": report_of(make_papers(OF_PAPERS)), "drafts": report_of(make_drafts())}
    for tab, (job, report) in zip(("Evaluation", "Drafts"), reports.items()):
        page.get_by_role("tab", name=tab).click()
        expect(page.locator(f"#report-{job} .sp-status")).to_contain_text("No results are shipped")
        show_report(page, job, report.content("Shipped results"))
        open_folds(page, job)
        expect(page.locator(f"#report-{job} .sp-table").first).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        page.wait_for_function(f"!document.querySelector('#report-{job} .sp-canvas:not(:has(text))')")
        assert page.evaluate(CUT) == []
        assert job == "drafts" or page.evaluate(SCROLLED) == [0, 0]  # the papers' tables need no sideways scrolling
        expect(page.locator(f"#report-{job}").get_by_role("button", name="Tables (CSV)")).to_be_visible()
        assert serious(page, f"#report-{job}") == []
    page.locator("#report-drafts .sd-term").first.click()
    expect(page.locator("#report-drafts .sd-pop")).to_be_visible()
    page.set_viewport_size({"width": 280, "height": 653})  # the tabs do not fit into one line
    for tab in ("Race", "Learn", "Evaluation", "Drafts"):
        expect(page.get_by_role("tab", name=tab)).to_be_in_viewport()


def test_the_tables_of_a_report_sort_by_their_numbers(race):
    page = race(**DARK)
    page.get_by_role("tab", name="Evaluation").click()
    expect(page.locator("#report-evaluate .sp-status")).to_contain_text("No results are shipped")
    result = make_papers(OF_PAPERS)
    show_report(page, "evaluate", report_of(result).content("Shipped results"))
    expect(page.locator("#report-evaluate .sp-answer .main-svg").nth(2)).to_be_visible()
    assert page.locator("#report-evaluate .sp-table:visible").count() == 0  # folded
    open_folds(page, "evaluate")
    assert page.evaluate(TOO_WIDE) == []
    table = page.locator("#report-evaluate .sp-table").first
    names = table.locator("tbody th")
    as_it_came = names.all_inner_texts()
    key = table.get_by_role("button", name="Sort by speedup")
    assert key.bounding_box()["height"] >= 24
    key.click()
    best = [lane_name(label) for label in sorted(result.lanes, key=lambda label: -result.value("speedup", label))]
    assert [name.partition(" (")[0] for name in names.all_inner_texts()] == best
    assert table.locator("th[aria-sort=descending]").count() == 1
    key.click()
    assert names.first.inner_text() == lane_name("autoregressive")
    key.click()
    assert names.all_inner_texts() == as_it_came and table.locator("th[aria-sort]").count() == 0
    table.get_by_role("button", name="Sort by ahead of static-opt").click()
    assert "static-opt" in names.last.inner_text()  # its cell is empty
    assert serious(page, "#report-evaluate") == []  # dark


def test_an_iteration_of_many_guesses_scrolls_beside_its_lesson_on_a_phone(opened):
    lesson = next(one for one in shipped_lessons() if one["id"] == "ten-steps")
    page = opened(export_lesson(lesson, run_payload(first_run(), details=True)), **PHONE)
    for _ in range(3):
        page.locator(".sl-turn .sl-main").tap()
    assert page.evaluate(
        "(({ scrollWidth, clientWidth }) => scrollWidth > clientWidth)(document.querySelector('.sl-board'))"
    )
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
