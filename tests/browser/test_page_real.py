"""The page over the real worker process and a tiny random pair: Drafts measured to the end, a run, a crash, a run."""

from __future__ import annotations

import os
import signal

import pytest
from playwright.sync_api import expect

from decoding.backends.local import LocalBackend
from tests.page_server import page_at, write_recordings
from tests.quick_jobs import HeldJobs
from tests.waiting import wait_until

from .pointing import unfold

WAIT = 400_000  # ms; loading torch and the pair, and measuring, on a busy machine


class TinyBackend(LocalBackend):
    """Measures the tiny pair, which the tabs do not offer."""

    def __init__(self, target: str, draft: str) -> None:
        super().__init__(HeldJobs)
        self.models = {"target": target, "draft": draft, "max_new_tokens": 24, "validation_limit": 1}

    def run_job(self, kind, options, cancel, run_id=None):
        more = {} if kind == "compare" else self.models
        yield from super().run_job(kind, options | more, cancel, run_id)


@pytest.fixture(scope="module")
def go(tmp_path_factory):
    """The file that lets a measurement go on."""
    path = tmp_path_factory.mktemp("go") / "go"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOLD_UNTIL", str(path))
        yield path


@pytest.fixture(scope="module")
def served(tiny_pair, tmp_path_factory, go):
    backend = TinyBackend(*tiny_pair)
    with page_at(backend, write_recordings(tmp_path_factory.mktemp("recordings"))) as url:
        yield url, backend


def measure_drafts(page):
    """Open the tab, ask for the least and press Run here; returns the tab's panel."""
    page.get_by_role("tab", name="Drafts").click()
    panel = page.locator("[role=tabpanel]:visible")
    unfold(panel.get_by_text("Measure again here"), panel.get_by_role("spinbutton", name="Test prompts"))
    for name, value in (
        ("Test prompts", "1"),
        ("of them on the clock", "1"),
        ("Minutes on the clock, at most", "0.01"),
    ):
        field = panel.get_by_role("spinbutton", name=name)
        field.fill(value)
        field.blur()
    panel.get_by_role("button", name="Run here").click()
    return panel


@pytest.mark.timeout(900)  # it loads torch
def test_drafts_are_measured_to_the_end_with_a_run_in_line(served, go, shared_page):
    page = shared_page(served[0])
    panel = measure_drafts(page)
    expect(panel.locator(".sp-status")).to_contain_text("Measuring what draft steps and checks cost", timeout=WAIT)
    page.get_by_role("tab", name="Race").click()
    page.locator("#run").click()
    expect(page.locator("#race .sp-status")).to_contain_text("Waiting: one run is ahead of yours", timeout=WAIT)
    page.locator("#stop").click()
    expect(page.locator("#race .sp-status")).to_have_text("Stopped.", timeout=WAIT)
    page.get_by_role("tab", name="Drafts").click()
    go.touch()
    expect(panel.locator(".sp-stamp")).to_contain_text("Measured here", timeout=WAIT)
    expect(panel.get_by_role("button", name="Run here")).to_be_visible(timeout=WAIT)
    expect(panel.locator(".sp-table").first).to_contain_text("ngram")
    assert page.faults == []


@pytest.mark.timeout(600)  # it loads torch again
def test_a_real_run_a_crash_and_a_real_run_again(served, shared_page):
    url, backend = served
    page = shared_page(url)
    page.get_by_role("tab", name="Race").click()
    expect(page.locator("#race .sd-strip").first).to_be_visible(timeout=WAIT)
    unfold(page.locator("#settings > button"), page.get_by_label("or your own target"))
    page.get_by_label("or your own target").fill(backend.models["target"])
    page.get_by_label("with this draft").fill(backend.models["draft"])
    page.get_by_label("with this draft").blur()
    lanes = page.locator("#lanes")
    while lanes.locator(".token", has_text="disco").count():  # needs a fitted head
        lanes.locator(".token", has_text="disco").locator(".token-remove").click()
    page.locator("#max-new-tokens input").fill("30")
    page.locator("#max-new-tokens input").blur()
    page.locator("#prompt textarea").fill("Hello, wörld 👩‍👩‍👧‍👦 <script>window.hacked=1</script>")
    page.locator("#run").click()
    expect(page.locator(".sd-badge")).to_contain_text("live", timeout=WAIT)
    expect(page.locator("#stop")).to_be_hidden(timeout=WAIT)
    expect(page.locator(".sd-sentence")).to_contain_text("Here:", timeout=WAIT)
    expect(page.locator(".sd-verdict")).to_contain_text("ame text", timeout=WAIT)
    page.locator("#max-new-tokens input").fill("1800")  # long enough to be killed in the middle
    page.locator("#max-new-tokens input").blur()
    page.locator("#run").click()
    expect(page.locator("#stop")).to_be_visible(timeout=WAIT)
    wait_until(lambda: backend._running is not None, WAIT / 1000)  # killed before, it would only start again
    expect(page.locator(".sd-badge")).to_contain_text("live", timeout=WAIT)
    expect(page.locator(".sd-text:visible .sd-tk").nth(10)).to_be_visible(timeout=WAIT)
    os.kill(backend._worker._process.pid, signal.SIGKILL)
    expect(page.locator(".sp-fault")).to_contain_text("process that runs the models", timeout=WAIT)
    assert page.locator(".sd-text:visible .sd-tk").count() > 10  # what had arrived stays
    page.locator("#max-new-tokens input").fill("20")
    page.locator("#max-new-tokens input").blur()
    page.locator("#run").click()
    expect(page.locator(".sd-sentence")).to_contain_text("20 tokens", timeout=WAIT)
    assert page.evaluate("window.hacked") is None
    assert page.faults == []
