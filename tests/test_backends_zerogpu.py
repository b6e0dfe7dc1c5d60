"""ZeroGPU with a stand-in for the ``spaces`` package: decoration, durations, refusals.

What every backend does with a run, this one too: test_backends_contract.py.
"""

import ast
import importlib
import inspect
import pickle
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import pytest

from decoding.backends import choose_backend
from decoding.records import pairs
from tests.fakes import FakeBackend, ScriptedRunner, compare, last_sentence, small_request


class GradioError(Exception):
    """Like Gradio's error, which spaces raises with a title."""

    def __init__(self, title, message):
        super().__init__(message)
        self.title, self.message = title, message


class FakeSpaces:
    """Records the requests, pickles what passes to the GPU's process, and raises what it is set to raise."""

    def __init__(self):
        self.durations, self.lent, self.error, self.take_back_after = [], 0, None, None

    def GPU(self, duration):
        def decorate(task):
            assert inspect.isgeneratorfunction(task)

            def lent(*args):
                self.durations.append(duration(*args))
                if self.error:
                    raise self.error
                self.lent += 1
                try:
                    for count, item in enumerate(task(*pickle.loads(pickle.dumps(args)))):
                        if count == self.take_back_after:
                            return
                        yield pickle.loads(pickle.dumps(item))
                finally:
                    self.lent -= 1

            return lent

        return decorate


@contextmanager
def fake_spaces() -> Iterator[FakeSpaces]:
    """Installed as the package ``spaces``, with which the backend is imported anew."""
    fake = FakeSpaces()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "spaces", SimpleNamespace(GPU=fake.GPU))
        patch.delitem(sys.modules, "decoding.backends.zerogpu", raising=False)
        patch.setattr(pairs, "describe_pairs", lambda: FakeBackend().pairs())
        yield fake
        sys.modules.pop("decoding.backends.zerogpu", None)


@pytest.fixture
def spaces():
    with fake_spaces() as fake:
        yield fake


@pytest.fixture
def zerogpu(spaces):
    return importlib.import_module("decoding.backends.zerogpu")


@pytest.fixture
def backend(zerogpu):
    return zerogpu.ZeroGPUBackend(ScriptedRunner())


def test_the_time_asked_for_follows_the_settings_up_to_a_limit(backend, spaces, zerogpu):
    compare(backend)
    compare(backend, repeats=9)
    assert spaces.durations == sorted(spaces.durations) and 10 < spaces.durations[0] < spaces.durations[1]
    most = asdict(small_request(max_new_tokens=4096, repeats=50))
    assert zerogpu.estimate_seconds("compare", most, "x") == zerogpu.LONGEST_S


QUOTA = "You have exceeded your quota (60s <b>requested</b> vs. 0s left)."


@pytest.mark.parametrize(
    "error, words",
    [
        (GradioError("ZeroGPU quota exceeded", QUOTA), "(60s requested vs. 0s left)"),
        (GradioError("ZeroGPU queue timeout", QUOTA), "(60s requested vs. 0s left)"),
        (GradioError("ZeroGPU illegal duration", QUOTA), "(60s requested vs. 0s left)"),
        (GradioError("ZeroGPU worker error", "GPU task aborted"), "GPU task aborted. Choose fewer"),
        (RuntimeError("Connection closed by visitor while queueing"), "RuntimeError: Connection closed"),
    ],
)
def test_what_spaces_raises_is_a_sentence_that_points_to_the_recordings(backend, spaces, error, words):
    spaces.error = error
    message = last_sentence(compare(backend))
    assert words in message and "recorded runs" in message


def test_a_gpu_taken_back_in_the_midst_is_a_sentence(backend, spaces):
    spaces.take_back_after = 5
    assert "withdrawn" in last_sentence(compare(backend))


def test_what_cannot_run_here_is_refused_before_a_gpu_is_asked_for(backend, spaces):
    another, loaded = "Only the pair toy runs here", "leave the number formats at auto"
    for changes, words in (
        ({"prompt": " "}, "prompt is empty"),
        ({"lanes": ["statc:5"]}, "no policy 'statc'"),
        ({"pair": "other"}, another),
        ({"target": "a/b", "draft": "c/d"}, another),
        ({"dtype": "float32"}, loaded),
        ({"weights": "int4"}, loaded),
        ({"draft_dtype": "int8"}, loaded),
    ):
        assert words in last_sentence(compare(backend, **changes))
    assert "longer than a GPU is lent" in last_sentence(list(backend.run_job("evaluate", {}, threading.Event())))
    assert spaces.durations == []


def test_it_is_chosen_on_zerogpu_with_the_models_loaded_at_the_start(zerogpu, monkeypatch):
    loaded = []
    monkeypatch.setenv("SPACES_ZERO_GPU", "true")
    monkeypatch.setattr(zerogpu.Jobs, "preload", lambda self: loaded.append(self._device))
    assert isinstance(choose_backend(), zerogpu.ZeroGPUBackend)
    assert loaded == ["cuda"]


def test_the_models_are_loaded_in_the_thread_that_started(monkeypatch):
    """The stand-in for CUDA in a Space's main process works in one thread only."""
    from decoding.backends.jobs import Jobs
    from decoding.engines import pair

    threads = []

    def load_pair(*key, device):
        threads.append(threading.current_thread())
        return SimpleNamespace(draft_names=["a", "b"], draft=lambda name: threads.append(threading.current_thread()))

    monkeypatch.setattr(pair, "load_pair", load_pair)
    jobs = Jobs(device="cuda")
    jobs.preload()
    assert threads == [threading.main_thread()] * 3
    assert list(jobs._load(small_request(), lambda: False)) == [] and len(threads) == 3  # the fork finds it loaded


def test_app_py_asks_for_spaces_before_anything_that_imports_torch():
    source = (Path(__file__).parents[1] / "app.py").read_text()
    imports = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Import | ast.ImportFrom)]
    lines = {getattr(node, "module", None) or node.names[0].name: node.lineno for node in imports}
    own = min(line for name, line in lines.items() if name.startswith(("decoding", "viz", "torch", "gradio")))
    assert lines["spaces"] < own


def test_elsewhere_the_decorator_does_nothing(zerogpu, monkeypatch):
    monkeypatch.setattr(zerogpu.spaces, "GPU", lambda duration: lambda task: task)
    assert compare(zerogpu.ZeroGPUBackend(ScriptedRunner()))[-1].kind == "finished"
