"""app.py as started by a user."""

import os
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

import app
from decoding.backends.server import Limits
from decoding.backends.soak import served
from decoding.cli.serve import free_port

from . import web
from .fakes import FakeBackend

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize(
    "source, ending", [("--backend", signal.SIGINT), ("--recorded", signal.SIGTERM)], ids=["Ctrl-C", "SIGTERM"]
)
def test_without_torch_it_says_where_the_page_is_serves_it_and_ends_without_leaving_files(source, ending, tmp_path):
    """The process that serves the page never imports torch."""
    without, files = tmp_path / "without", tmp_path / "files"
    for folder in (without, files):
        folder.mkdir()
    for name in ("torch", "transformers"):
        (without / f"{name}.py").write_text("raise ImportError('not here')")
    port, server = free_port(), ExitStack()
    runs_at = [source]
    if source == "--backend":
        runs_at.append(f"http://127.0.0.1:{server.enter_context(served(FakeBackend(), Limits()))}")
    process = subprocess.Popen(
        [sys.executable, "app.py", *runs_at, "--port", str(port)],
        cwd=ROOT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONPATH": str(without), "TMPDIR": str(files)},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # a background shell ignores it
    )
    try:
        line = process.stdout.readline()
        assert f"Speculoscope is at http://127.0.0.1:{port}" in line, line
        html = web.get(f"http://127.0.0.1:{port}/").text
        assert "Speculoscope" in html and "cdn." not in html.lower()
        for closed in ("monitoring", "monitoring/summary"):
            assert web.get(f"http://127.0.0.1:{port}/{closed}").status_code in (403, 404)
        assert any(files.glob("speculoscope-*"))
        process.send_signal(ending)
        assert process.wait(20) is not None
    finally:
        process.kill()
        server.close()
    assert not list(files.glob("speculoscope-*"))


def test_a_taken_port_and_a_wrong_address_are_sentences(monkeypatch, capsys):
    def refused(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["app.py", *arguments])
        with pytest.raises(SystemExit) as end:
            app.main()
        assert end.value.code == 2
        return capsys.readouterr().err.splitlines()[-1]  # after the usage

    before = signal.getsignal(signal.SIGTERM)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert "port" in refused("--recorded", "--port", str(taken.getsockname()[1]))
    assert "not an address" in refused("--backend", "not an address")
    assert signal.getsignal(signal.SIGTERM) is before
