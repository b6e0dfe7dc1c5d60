"""Fixtures for the whole run of the tests."""

import gc
import json
import os
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import settings

gc.disable()  # until all tests are imported
settings.register_profile("speculoscope", deadline=None)  # a busy machine is not a failure
settings.load_profile("speculoscope")

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # tiny models gain nothing from more, and three processes share the cores
os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
os.environ.setdefault("HF_HUB_OFFLINE", "1")


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory):
    """Separate folders for what the tests keep; only unpacked models, which are slow to make, come from the user's."""
    from decoding.files import cache_folder

    models = cache_folder() / "models"
    models.mkdir(parents=True, exist_ok=True)
    own = tmp_path_factory.mktemp("cache")
    (own / "models").symlink_to(models)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPECULOSCOPE_CACHE", str(own))
        patch.setenv("SPECULOSCOPE_COSTS", str(tmp_path_factory.mktemp("costs")))
        yield


@pytest.fixture(scope="session", autouse=True)
def few_measurements():
    """What passes cost is measured only for a moment: it matters to no test but those of measuring it."""
    from tests.quick_jobs import measure_little

    with pytest.MonkeyPatch.context() as patch:
        measure_little(patch.setattr)
        yield


@pytest.fixture
def cuda(monkeypatch):
    """A stand-in for ``torch.cuda``, without a GPU (tests/fake_cuda.py)."""
    from tests.fake_cuda import fake_cuda

    with fake_cuda(monkeypatch) as cuda:
        yield cuda


@pytest.fixture
def own_costs(tmp_path, monkeypatch):
    """A folder of the test's own for what is measured and chosen."""
    monkeypatch.setenv("SPECULOSCOPE_COSTS", str(tmp_path / "costs"))
    return tmp_path / "costs"


@pytest.fixture
def short_bench(monkeypatch):
    """The benchmark takes a moment: for tests of what it does with its readings."""
    from decoding.bench import against

    monkeypatch.setattr(against, "_PROBE_BYTES", dict.fromkeys(against._PROBE_BYTES, 2**16))
    monkeypatch.setattr(against, "ROUNDS", 2)


@pytest.fixture(scope="module")
def all_cores():
    """Passes take all cores, or the number that a trial finds, as for a user: for tests of rows, formats and CPUs."""
    import torch

    before = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("OMP_NUM_THREADS")
        torch.set_num_threads(os.cpu_count() or 1)
        yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def tiny_pair(tmp_path_factory) -> tuple[str, str]:
    """The folders of a tiny target and its draft, for all tests that write nothing there."""
    from tests.tiny_models import JOINED, make_tiny_pair

    return make_tiny_pair(tmp_path_factory.mktemp("tiny"), **JOINED)


@pytest.fixture(scope="session")
def lively_pair(tmp_path_factory) -> tuple[str, str]:
    """As ``tiny_pair``, with a varied text and a draft that is right about half of the time."""
    from tests.tiny_models import JOINED, make_lively_pair

    return make_lively_pair(tmp_path_factory.mktemp("lively"), **JOINED)


@pytest.fixture(scope="session")
def folders(tmp_path_factory) -> dict[str, Path]:
    """A "big" and a "small" model of the same tokens, for all tests that write nothing there."""
    from tests.tiny_models import JOINED, make_model

    base = tmp_path_factory.mktemp("models")
    return {"big": make_model(base / "big", hidden=64, **JOINED), "small": make_model(base / "small", **JOINED)}


@pytest.fixture(scope="module")
def files_read_here():
    """Opened files are read in this process: to start one takes a second, and tests/test_page_session.py tests it."""
    from viz import opened

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(opened.Sandbox, "_run", lambda self, job: json.dumps(opened.work(json.loads(job))).encode())
        yield


NO_GPU = "needs a CUDA GPU: real kernels were not run"


def pytest_configure(config):
    config.addinivalue_line("markers", f"gpu: {NO_GPU}")


def has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


LONG = (  # begin first: the last files of the order must be short ones
    "test_page_real.py",
    "test_server_remote.py",
    "test_space.py",
    "test_cpu_classes.py",
    "test_gpu_day.py",
    "test_recorder.py",
    "test_server_faults.py",
    "test_extending.py",
    "test_training_align.py",
)


def pytest_collection_modifyitems(items):
    """What needs a GPU is reported as not run where there is none, with the reason. The only other conditions are those
    of the tests of Ray (installed or not) and of compiled code (whether anything is compiled for this CPU).
    """
    items.sort(key=lambda item: item.path.name not in LONG)
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if marked and not has_gpu():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason=f"not run: {NO_GPU}"))


def pytest_collection_finish():
    """Imports leave little garbage. Loading a pair collects it twice: half a second each time, unless what was imported
    is set aside.
    """
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_terminal_summary(terminalreporter):
    """Counts what this machine could not run, by reason, apart from what passed."""
    skipped = (report.longrepr[-1] for report in terminalreporter.stats.get("skipped", []))
    for reason, n in Counter(text.removeprefix("Skipped: ").removeprefix("not run: ") for text in skipped).items():
        terminalreporter.write_line(f"{n} not run: {reason}")


@pytest.fixture(scope="session")
def browser():
    """One Chromium for the whole run: playwright refuses a second synchronous browser in one thread."""
    from playwright.sync_api import sync_playwright

    from tests.web import open_chromium

    with sync_playwright() as playwright:
        chromium = open_chromium(playwright)
        yield chromium
        chromium.close()
