"""The page over the real worker process and a tiny random pair: Drafts measured to the end, a run, a crash, a run."""

import os
import signal

import pytest
from playwright.sync_api import expect

from decoding.backends.local import LocalBackend
from tests.page_server import page_at, write_recordings
from tests.quick_jobs import HeldJobs
from tests.waiting import wait_until

from .opening import WAIT
from .pointing import fill, finished, ready, run_box, unfold

LONG = 400_000  # ms; loading torch and the pair, and measuring, on a busy machine


@pytest.fixture(scope="module", autouse=True)
def patience():
    expect.set_options(timeout=LONG)
    yield
    expect.set_options(timeout=WAIT)


class TinyBackend(LocalBackend):
    """Measures the tiny pair, which the tabs do not offer."""

    def __init__(self, target: str, draft: str) -> None:
        super().__init__(HeldJobs)
        self.models = {"target": target, "draft": draft, "max_new_tokens": 8, "validation_limit": 1}

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


@pytest.mark.timeout(900)  # it loads torch
def test_drafts_are_measured_to_the_end_with_a_run_in_line(served, go, shared_page):
    page = shared_page(served[0])
    page.get_by_role("tab", name="Drafts").click()
    panel = page.locator("[role=tabpanel]:visible")
    unfold(panel.get_by_text("Measure again here"), panel.get_by_role("spinbutton", name="Test prompts"))
    least = {"Test prompts": 1, "of them on the clock": 1, "Minutes on the clock, at most": 0.01}
    for name, value in least.items():
        fill(panel.get_by_role("spinbutton", name=name), value)
    panel.get_by_role("button", name="Run here").click()
    expect(panel.locator(".sp-status")).to_contain_text("Measuring what draft steps and checks cost")
    page.get_by_role("tab", name="Race").click()
    page.locator("#run").click()
    expect(page.locator("#race .sp-status")).to_contain_text("Waiting: one run is ahead of yours")
    page.locator("#stop").click()
    expect(page.locator("#race .sp-status")).to_have_text("Stopped.")
    page.get_by_role("tab", name="Drafts").click()
    go.touch()
    expect(panel.locator(".sp-stamp")).to_contain_text("Measured here")
    expect(panel.get_by_role("button", name="Run here")).to_be_visible()
    expect(panel.locator(".sp-table").first).to_contain_text("ngram")


@pytest.mark.timeout(600)  # it loads torch again
def test_a_real_run_a_crash_and_a_real_run_again(served, shared_page):
    url, backend = served
    page = shared_page(url)
    page.get_by_role("tab", name="Race").click()
    ready(page)
    unfold(page.locator("#settings > button"), page.get_by_label("or your own target"))
    page.get_by_label("or your own target").fill(backend.models["target"])
    fill(page.get_by_label("with this draft"), backend.models["draft"])
    lanes = page.locator("#lanes")
    while lanes.locator(".token", has_text="disco").count():  # needs a fitted head
        lanes.locator(".token", has_text="disco").locator(".token-remove").click()
    prompt = "Hello, wörld 👩‍👩‍👧‍👦 <script>window.hacked=1</script>"
    run_box(page, prompt)
    finished(page)
    expect(page.locator(".sd-verdict")).to_contain_text("ame text")
    tokens = page.locator(".sd-text:visible .sd-tk")
    shown = tokens.count()  # by the first run, whose text stays until the next one's arrives
    run_box(page, prompt, tokens=1800)  # long enough to be killed in the middle
    expect(page.locator("#stop")).to_be_visible()
    wait_until(lambda: backend._running is not None, LONG / 1000)  # killed before, it would only start again
    expect(page.locator(".sd-badge")).to_contain_text("live")
    expect(tokens.nth(shown + 10)).to_be_visible()
    os.kill(backend._worker._process.pid, signal.SIGKILL)
    expect(page.locator(".sp-fault")).to_contain_text("process that runs the models")
    assert tokens.count() > shown + 10  # what had arrived stays
    run_box(page, prompt, tokens=20)
    expect(page.locator(".sd-sentence")).to_contain_text("20 tokens")
    assert page.evaluate("window.hacked") is None
