"""Pages for the browser tests. The browser itself is one for the whole run: tests/conftest.py."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.page_fakes import ScriptedBackend
from tests.page_server import page_at, write_recordings
from viz.player.payload import run_payload

from .opening import WAIT, blank_page, faults, leave, open_export, open_file, open_page, result_of

STAYING = ("page", "export")
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


@pytest.fixture(scope="session")
def tabs(browser) -> Iterator[dict[Any, Any]]:
    """The browser's tabs, for the whole run."""
    tabs: dict[Any, Any] = {}
    yield tabs
    close_all(tabs)


def close_all(tabs: dict[Any, Any]) -> None:
    for page in tabs.values():
        page.context.close()
    tabs.clear()


@pytest.fixture(scope="module")
def new_visitors(tabs) -> Iterator[None]:
    """Each file begins with new visitors; a page that stays open takes a tenth of a processor."""
    yield
    for page in tabs.values():
        leave(page)


@pytest.fixture
def tab(request, browser, tabs, new_visitors) -> Iterator[Callable[..., Any]]:
    """tab(use, **context options): the tab for ``use`` in a window of that kind; what a STAYING one shows stays.

    In a tab that has compiled Gradio's scripts, its page takes half of the processor time. A test that fails, or that
    leaves a fault, leaves no tab behind.
    """
    failed_before = request.session.testsfailed

    def find(use: str, **options: Any):
        key = use, repr(options)
        if key not in tabs:
            tabs[key] = blank_page(browser, **options)
        return tabs[key]

    yield find
    found = faults(tabs.values())
    if found or request.session.testsfailed > failed_before:
        close_all(tabs)
    for (use, _), page in tabs.items():
        if use not in STAYING:
            leave(page)
    assert found == []


@pytest.fixture
def visit(tab) -> Callable[..., Any]:
    """visit(url, gradio=True, **context options): the page of a new visitor who has seen it before."""
    return lambda url, gradio=True, **options: open_page(tab("visit", **options), url, gradio)


@pytest.fixture
def shared_page(tab) -> Callable[..., Any]:
    """shared_page(url, **context options): the page of a visitor who stays, for tests that need no fresh page."""

    def stay(url: str, **options: Any):
        page = tab("page", **options)
        if page.home != url:
            return open_page(page, url)
        page.set_viewport_size(page.size)
        return page

    return stay


@pytest.fixture
def opened(tab, tmp_path) -> Callable[..., Any]:
    """opened(run or HTML, **context options): the page of the run's export, or of this HTML, as a file of its own."""

    def open_it(content, **options: Any):
        open_one = open_file if isinstance(content, str) else open_export
        return open_one(tab("file", **options), tmp_path, content)

    return open_it


@pytest.fixture
def shown(tab, tmp_path) -> Iterator[Callable[..., Any]]:
    """shown(run, **context options): an exported page that stays, its player begun anew with ``run``."""
    pages = []

    def show(run, **options: Any):
        page = tab("export", **options)
        if not page.home:
            open_export(page, tmp_path, run)
        page.mouse.move(2, 2)
        load = "payload => { player.setFinalOnly(false); player.load(payload); scrollTo(0, 0); }"
        result_of(page, load, run_payload(run, origin="recorded"))
        pages.append(page)
        return page

    yield show
    for page in pages:
        page.evaluate("player.pause()")


@pytest.fixture
def there(shared_page, page_url) -> Callable[[str], Any]:
    """there(query): the Learn tab of a visitor who stays, as if the link had been followed."""
    page = learn_tab(shared_page(f"{page_url}?learn=lessons"))

    def follow(query: str):
        page.evaluate(f"(query) => {{ {LEARN}.places.lessons.lesson = null; return {LEARN}.follow(query); }}", query)
        return page

    return follow


def learn_tab(page):
    """``page`` once its Learn tab shows what was asked for."""
    page.wait_for_selector(".sp-learn:not([aria-busy]) .sl-body:not([aria-busy]) > *")
    return page
