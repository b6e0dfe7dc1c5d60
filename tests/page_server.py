"""The page on its own port, for tests that use it as a browser or a program would."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from decoding.backends.base import Backend
from decoding.records.run_file import save_run
from decoding.records.trace import Run
from viz.page import build_page, serve

from .page_fakes import ScriptedBackend
from .runs import make_run

LANES = ("autoregressive", "static:5", "confidence:0.5", "oracle")


def write_recordings(folder: Path, *runs: Run) -> Path:
    """A recordings folder with ``runs``; by default one plain and one hostile run."""
    for run in runs or (first_run(), make_run(identifier="hostile", hostile=True, lanes=LANES)):
        save_run(run, folder / f"{run.id}.json")
    return folder


def first_run() -> Run:
    return make_run(identifier="first", lanes=LANES)


@contextmanager
def page_at(backend: Backend, recordings: Path, **options: Any) -> Iterator[str]:
    """Serve the page over ``backend``; gives its address. ``options``: of build_page."""
    page = build_page(backend, recordings, **options)
    _, url, _ = serve(page, prevent_thread_lock=True, quiet=True)
    try:
        yield url
    finally:
        close(page)
        backend.close()


@contextmanager
def scripted_page(folder: Path, pause_s: float) -> Iterator[tuple[ScriptedBackend, str]]:
    """A page over a backend that waits ``pause_s`` before each event, with recordings in ``folder``: both of them."""
    backend = ScriptedBackend(pause_s=pause_s)
    with page_at(backend, write_recordings(folder)) as url:
        yield backend, url


def close(page) -> None:
    """Gradio sets an asyncio event of the server's thread from this one; if its waiters change meanwhile, it
    raises with the event set, and a second call completes."""
    try:
        page.close(verbose=False)
    except RuntimeError as error:
        if "mutated during iteration" not in str(error):
            raise
        page.close(verbose=False)
