"""Pages for the browser tests. The browser itself is one for the whole run: tests/conftest.py."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.page_fakes import ScriptedBackend
from tests.page_server import LANES, page_at, write_recordings
from tests.runs import make_run
from viz.player.payload import run_payload

from .opening import WAIT, faults, open_export, open_file, open_page
from .pointing import result_of

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


@pytest.fixture
def watched() -> Iterator[Callable[[Any], Any]]:
    """watched(page): the page, which is closed at the end and must have no faults."""
    pages = []
    yield lambda page: pages.append(page) or page
    found = faults(pages)
    for page in pages:
        page.context.close()
    assert found == []


@pytest.fixture
def visit(browser, watched) -> Callable[..., Any]:
    """visit(url, gradio=True, **context options): a new visitor's page."""
    return lambda url, **options: watched(open_page(browser, url, **options))


@pytest.fixture
def opened(browser, watched, tmp_path) -> Callable[..., Any]:
    """opened(run or HTML, **context options): the page of the run's export, or of this HTML, as a file of its own."""

    def open_it(content, **options: Any):
        open_one = open_file if isinstance(content, str) else open_export
        return watched(open_one(browser, tmp_path, content, **options))

    return open_it


@pytest.fixture(scope="module")
def staying() -> Iterator[dict[Any, Any]]:
    """Pages that stay for several tests of a file."""
    pages: dict[Any, Any] = {}
    yield pages
    close_all(pages)


def close_all(pages: dict[Any, Any]) -> None:
    for page in pages.values():
        page.context.close()
    pages.clear()


@pytest.fixture
def shared(request, staying) -> Iterator[Callable[..., Any]]:
    """shared(key, open_it): the page that stays under ``key``, or else that of ``open_it()``.

    A test that fails, or that leaves a fault, leaves no page behind.
    """
    failed_before = request.session.testsfailed
    yield lambda key, open_it: staying.get(key) or staying.setdefault(key, open_it())
    found = faults(staying.values())
    if found or request.session.testsfailed > failed_before:
        close_all(staying)
    assert found == []


@pytest.fixture
def shared_page(browser, shared) -> Callable[..., Any]:
    """shared_page(url, **context options): the page of a visitor who stays.

    To build Gradio's page takes seconds of processor time, so tests that can begin on a page that another one has used
    share it.
    """
    return lambda url, **options: shared((url, repr(options)), lambda: open_page(browser, url, **options))


@pytest.fixture
def shown(browser, shared, tmp_path) -> Iterator[Callable[..., Any]]:
    """shown(run, **context options): an exported page that stays, its player begun anew with ``run``."""
    pages = []

    def show(run, **options: Any):
        page = shared(repr(options), lambda: open_export(browser, tmp_path, make_run(lanes=LANES), **options))
        pages.append(page)
        page.mouse.move(2, 2)
        load = "payload => { player.setFinalOnly(false); player.load(payload); scrollTo(0, 0); }"
        result_of(page, load, run_payload(run, origin="recorded"))
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
