"""app.py as started by a user."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

import app

ROOT = Path(__file__).resolve().parent.parent


def start(*arguments: str, **environment: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "app.py", *arguments],
        cwd=ROOT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "PYTHONUNBUFFERED": "1", **environment},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # a background shell ignores it
    )


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_it_says_where_the_page_is_serves_it_and_ends_on_ctrl_c(tmp_path):
    port = free_port()
    process = start("--recorded", "--port", str(port), TMPDIR=str(tmp_path))
    try:
        line = process.stdout.readline()
        assert f"Speculoscope is at http://127.0.0.1:{port}" in line, line
        html = urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=20).read().decode()
        assert "Speculoscope" in html and "cdn." not in html.lower()
        for closed in ("monitoring", "monitoring/summary"):
            try:
                status = urllib.request.urlopen(f"http://127.0.0.1:{port}/{closed}", timeout=20).status
            except urllib.error.HTTPError as error:
                status = error.code
            assert status in (403, 404)
        process.send_signal(signal.SIGINT)
        assert process.wait(20) is not None
    finally:
        process.kill()
    assert not list(tmp_path.glob("speculoscope-*"))


def test_sigterm_ends_it_and_leaves_no_files_behind(tmp_path):
    process = start("--recorded", "--port", str(free_port()), TMPDIR=str(tmp_path))
    try:
        assert "Speculoscope is at" in process.stdout.readline()
        assert any(tmp_path.glob("speculoscope-*"))
        process.terminate()
        assert process.wait(20) == 0
    finally:
        process.kill()
    assert not list(tmp_path.glob("speculoscope-*"))


def test_a_taken_port_and_a_wrong_address_are_sentences(monkeypatch, capsys):
    def refused(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["app.py", *arguments])
        with pytest.raises(SystemExit) as end:
            app.main()
        assert end.value.code == 2
        return capsys.readouterr().err.splitlines()[-1]  # after the usage

    monkeypatch.setattr(signal, "signal", lambda *_: None)  # main sets what this process does on SIGTERM
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert "port" in refused("--recorded", "--port", str(taken.getsockname()[1]))
    assert "not an address" in refused("--backend", "not an address")
