"""Drafts and Evaluation measured from the page: real worker, tiny random pair, to the end and stopped on the way."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from decoding.backends.local import LocalBackend
from tests.page_server import page_at, write_recordings
from tests.tiny_pair import make_tiny_pair

WAIT = 400_000  # ms; loading torch and measuring on a busy machine


class TinyBackend(LocalBackend):
    """Measures the tiny pair, which the tabs do not offer."""

    def __init__(self, target: str, draft: str) -> None:
        super().__init__()
        self.models = {"target": target, "draft": draft, "max_new_tokens": 24, "validation_limit": 1}

    def run_job(self, kind, options, cancel, run_id=None):
        yield from super().run_job(kind, options | self.models, cancel, run_id)


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    backend = TinyBackend(*make_tiny_pair(tmp_path_factory.mktemp("pair")))
    with page_at(backend, write_recordings(tmp_path_factory.mktemp("recordings"))) as url:
        yield url


def start(page, tab: str):
    """Open the tab, ask for the least and press Run here; returns the tab's panel."""
    page.get_by_role("tab", name=tab).click()
    panel = page.locator("[role=tabpanel]:visible")
    panel.get_by_text("Measure again here").click()
    for name, value in (
        ("Test prompts", "1"),
        ("of them on the clock", "1"),
        ("Minutes on the clock, at most", "0.05"),
    ):
        field = panel.get_by_role("spinbutton", name=name)
        field.fill(value)
        field.blur()
    panel.get_by_role("button", name="Run here").click()
    return panel


@pytest.mark.timeout(900)  # it loads torch, and measures passes for some ten seconds
def test_measured_to_the_end_with_another_visitor_in_line_and_stopped_on_the_way(visit, url):
    page, other = visit(url), visit(url)
    panel = start(page, "Drafts")
    expect(panel.locator(".sp-status")).to_contain_text("process that runs the models", timeout=WAIT)
    other.locator("#run").click()
    expect(other.locator("#race .sp-status")).to_contain_text("Waiting: one run is ahead of yours", timeout=WAIT)
    other.locator("#stop").click()
    expect(other.locator("#race .sp-status")).to_have_text("Stopped.", timeout=WAIT)
    expect(panel.locator(".sp-stamp")).to_contain_text("Measured here", timeout=WAIT)
    expect(panel.get_by_role("button", name="Run here")).to_be_visible(timeout=WAIT)
    expect(panel.locator(".sp-table").first).to_contain_text("ngram")

    panel = start(page, "Evaluation")
    expect(panel.locator(".sp-status")).to_contain_text("Measuring what draft steps and checks cost", timeout=WAIT)
    panel.get_by_role("button", name="Stop").click()
    expect(panel.locator(".sp-status")).to_have_text("Stopped.", timeout=WAIT)
    expect(panel.get_by_role("button", name="Run here")).to_be_visible(timeout=WAIT)
    expect(panel.locator(".sp-stamp")).not_to_contain_text("Measured here")
    assert page.faults == [] and other.faults == []
