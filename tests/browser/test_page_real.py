"""The page over the real worker process and a tiny random pair: a run, a crash of the worker, a run again."""

from __future__ import annotations

import os
import signal

import pytest
from playwright.sync_api import expect

from decoding.backends.local import LocalBackend
from tests.page_server import page_at, write_recordings
from tests.tiny_pair import make_tiny_pair

WAIT = 150_000  # ms; loading torch and the pair on a busy machine


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    target, draft = make_tiny_pair(tmp_path_factory.mktemp("pair"))
    backend = LocalBackend()
    with page_at(backend, write_recordings(tmp_path_factory.mktemp("recordings"))) as url:
        yield url, target, draft, backend


@pytest.mark.timeout(600)  # it loads torch twice
def test_a_real_run_a_crash_and_a_real_run_again(visit, served):
    url, target, draft, backend = served
    page = visit(url)
    expect(page.locator("#race .sd-strip").first).to_be_visible(timeout=WAIT)
    page.locator("#settings > button").click()
    page.get_by_label("or your own target").fill(target)
    page.get_by_label("with this draft").fill(draft)
    page.get_by_label("with this draft").blur()
    lanes = page.locator("#lanes")
    while lanes.locator(".token", has_text="disco").count():  # needs a fitted head
        lanes.locator(".token", has_text="disco").locator(".token-remove").click()
    page.locator("#max-new-tokens input").fill("30")
    page.locator("#max-new-tokens input").blur()
    page.locator("#prompt textarea").fill("Hello, wörld 👩‍👩‍👧‍👦 <script>window.hacked=1</script>")
    page.locator("#run").click()
    expect(page.locator(".sd-badge")).to_contain_text("live", timeout=WAIT)
    expect(page.locator("#run")).to_be_visible(timeout=WAIT)
    expect(page.locator(".sd-sentence")).to_contain_text("Here:", timeout=WAIT)
    expect(page.locator(".sd-verdict")).to_contain_text("ame text", timeout=WAIT)
    page.locator("#max-new-tokens input").fill("1800")  # long enough to be killed in the middle
    page.locator("#max-new-tokens input").blur()
    page.locator("#run").click()
    expect(page.locator("#stop")).to_be_visible(timeout=WAIT)
    os.kill(backend._worker._process.pid, signal.SIGKILL)
    expect(page.locator(".sp-fault")).to_contain_text("process that runs the models", timeout=WAIT)
    page.locator("#max-new-tokens input").fill("20")
    page.locator("#max-new-tokens input").blur()
    page.locator("#run").click()
    expect(page.locator(".sd-sentence")).to_contain_text("20 tokens", timeout=WAIT)
    assert page.evaluate("window.hacked") is None
    assert page.faults == []
