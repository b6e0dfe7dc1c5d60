"""Pages for the browser tests. The browser itself is one for the whole run: tests/conftest.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.page_fakes import ScriptedBackend
from tests.page_server import page_at, write_recordings


@pytest.fixture(scope="session")
def page_url(tmp_path_factory):
    """The page over a scripted backend: an iteration every 4 ms, two recorded runs."""
    with page_at(ScriptedBackend(pause_s=0.004), write_recordings(tmp_path_factory.mktemp("recordings"))) as url:
        yield url


@pytest.fixture
def visit(browser) -> Callable[..., Any]:
    """visit(url, **context options): a new visitor's page, watched for errors and requests to other hosts."""
    contexts = []

    def open_page(url: str, **options: Any):
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 800}, **options})
        contexts.append(context)
        context.grant_permissions(["clipboard-read", "clipboard-write"])
        context.set_default_timeout(120_000)
        page = context.new_page()
        page.faults, page.elsewhere = [], []
        page.on("pageerror", lambda error: page.faults.append(str(error)))
        page.on("console", lambda message: message.type == "error" and page.faults.append(message.text))
        home = url.split("/")[2]
        page.on(
            "request",
            lambda r: (
                r.url.split("/")[2] not in (home, "") and page.elsewhere.append(r.url)
                if r.url.startswith("http")
                else None
            ),
        )
        page.goto(url)
        return page

    yield open_page
    for context in contexts:
        context.close()
