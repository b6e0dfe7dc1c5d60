"""Pages for the browser tests. The browser itself is one for the whole run: tests/conftest.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.page_fakes import ScriptedBackend
from tests.page_server import page_at, write_recordings

LEAVING = "addEventListener('beforeunload', () => { console.error = () => {}; })"
"""Gradio's client reports the streams that it cuts as its page is left: no fault of the page."""
GRADIO = "**/assets/index-*.js"  # the script that loads all others
SEEN = "localStorage.setItem('speculoscope-opening-seen', 'yes')"  # a visitor who comes again
WAIT = 120_000  # ms for whatever must come: on a busy machine the page takes many times as long
LEARN = "document.querySelector('.sp-learn').speculoscopeLearn"
expect.set_options(timeout=WAIT)


@pytest.fixture(scope="module", autouse=True)
def without_sandbox(files_read_here):
    """What the page does with a file is tested here, not where the file is read."""


@pytest.fixture(scope="session")
def scripted(tmp_path_factory):
    """The page over a scripted backend: an iteration every 4 ms, two recorded runs. (address, backend)."""
    backend = ScriptedBackend(pause_s=0.004)
    with page_at(backend, write_recordings(tmp_path_factory.mktemp("recordings"))) as url:
        yield url, backend


@pytest.fixture(scope="session")
def page_url(scripted):
    return scripted[0]


def new_visitor(browser, url: str, **options: Any):
    context = browser.new_context(**{"viewport": {"width": 1280, "height": 800}, **options})
    context.set_default_timeout(WAIT)
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = context.new_page()
    page.add_init_script(LEAVING)
    page.add_init_script(SEEN)
    page.faults, page.elsewhere, page.asked = [], [], []
    page.on("pageerror", lambda error: page.faults.append(str(error)))
    page.on("console", lambda message: message.type == "error" and page.faults.append(message.text))
    home = url.split("/")[2]

    def note(request) -> None:
        page.asked.append(request.url)
        if request.url.startswith("http") and request.url.split("/")[2] != home:
            page.elsewhere.append(request.url)

    page.on("request", note)
    page.goto(url)
    return page


class Visitors:
    """One page for each address and kind of window, opened when first asked for."""

    def __init__(self, browser) -> None:
        self._browser, self._pages = browser, {}

    def page(self, url: str, **options: Any):
        key = (url, repr(options))
        if key not in self._pages:
            self._pages[key] = new_visitor(self._browser, url, **options)
        return self._pages[key]

    def leave(self) -> None:
        for page in self._pages.values():
            page.context.close()
        self._pages = {}


@pytest.fixture
def visit(browser) -> Callable[..., Any]:
    """visit(url, **context options): a new visitor's page, watched for errors and requests to other hosts."""
    contexts = []

    def open_page(url: str, **options: Any):
        page = new_visitor(browser, url, **options)
        contexts.append(page.context)
        return page

    yield open_page
    for context in contexts:
        context.close()


@pytest.fixture
def without_gradio(browser):
    """open(url): a page whose Gradio scripts never arrive."""
    contexts = []

    def open_page(url: str):
        context = browser.new_context(viewport={"width": 1280, "height": 800})
        contexts.append(context)
        page = context.new_page()
        page.add_init_script(SEEN)
        page.faults = []
        page.on("pageerror", lambda error: page.faults.append(str(error)))
        page.route(GRADIO, lambda route: route.abort())
        page.goto(url)
        return page

    yield open_page
    for context in contexts:
        context.close()


@pytest.fixture(scope="module")
def visitors(browser) -> Iterator[Visitors]:
    """Visitors who stay for several tests of a file."""
    visitors = Visitors(browser)
    yield visitors
    visitors.leave()


@pytest.fixture
def shared_page(request, visitors) -> Iterator[Callable[..., Any]]:
    """shared_page(url, **context options): the page of a visitor who stays.

    To build Gradio's page takes seconds of processor time, so tests that can begin on a page that another one has used
    share it. A test that fails leaves none behind.
    """
    failed_before = request.session.testsfailed
    yield visitors.page
    if request.session.testsfailed > failed_before:
        visitors.leave()


def at_link(visit, page_url, query: str, **options):
    """A new visitor who follows a link. Slow: Gradio's page is built again."""
    page = visit(page_url + query, **options)
    page.wait_for_selector(".sp-learn:not([aria-busy]) .sl-body:not([aria-busy]) > *")
    return page


@pytest.fixture(scope="module")
def learn_page(browser, page_url):
    """One visitor for the tests that need no page of their own."""
    page = new_visitor(browser, page_url + "?learn=lessons")
    page.wait_for_selector(".sp-learn:not([aria-busy]) .sl-cards")
    yield page
    page.context.close()


@pytest.fixture
def there(learn_page):
    """there(query): the shared page, as if the link had been followed."""

    def follow(query: str):
        learn_page.evaluate(
            f"(query) => {{ {LEARN}.places.lessons.lesson = null; return {LEARN}.follow(query); }}", query
        )
        return learn_page

    yield follow
    assert learn_page.faults == []
