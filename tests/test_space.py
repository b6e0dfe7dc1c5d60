"""app.py as a user starts it, and as a Space does: from a whole folder, with requirements that fit its hardware."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest
from huggingface_hub import SpaceCard
from packaging.requirements import Requirement

import app
from viz import page, space
from viz.space import CPU_WHEELS, HARDWARE, ROOT, build, requirements

from . import web
from .serving import free_port, served_at
from .space_rehearsal import faults_in_log, started, variables

ZEROGPU_TORCH = ("2.8.0", "2.9.1", "2.10.0", "2.11.0")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return build(tmp_path_factory.mktemp("space") / "space", "cpu")


@pytest.mark.parametrize("hardware", HARDWARE)
def test_requirements_fit_the_hardware(hardware):
    text = requirements(hardware, (ROOT / "requirements.txt").read_text())
    lines = [Requirement(line) for line in text.splitlines() if not line.startswith("--")]
    wanted = {line.name: line for line in lines}
    assert (CPU_WHEELS in text) == (hardware == "cpu") and ("spaces" in wanted) == (hardware == "zerogpu")
    assert all(version in wanted["torch"].specifier for version in ZEROGPU_TORCH)
    assert "2.12.0" not in wanted["torch"].specifier and "2.13.0" not in wanted["torch"].specifier
    assert "gradio" not in wanted and {"transformers", "pydantic", "plotly"} <= set(wanted)


def test_gradio_is_the_tested_version():
    asked = re.search(r"^sdk_version: (.+)$", (ROOT / "README.md").read_text(), re.MULTILINE)[1]
    assert f"gradio=={asked}\n" in (ROOT / "constraints.txt").read_text()


def test_the_space_starts_by_itself_under_its_variables_and_ends_by_sigterm_without_leaving_files(
    folder, tmp_path, monkeypatch, capsys
):
    """A slice of the rehearsal (tests/space_rehearsal.py), with this interpreter.

    It has no torch, so that the worker does not unpack the chat model.
    """
    files, without = tmp_path / "files", tmp_path / "without"
    files.mkdir()
    without.mkdir()
    (without / "torch.py").write_text("raise ImportError('not here')")
    own = {"TMPDIR": str(files), "PYTHONPATH": str(without)}
    monkeypatch.setattr("tests.space_rehearsal.variables", lambda *of: {**variables(*of), **own})
    with started(folder, tmp_path, Path(sys.executable), "cpu") as url:
        config = httpx.get(f"{url}/config", timeout=100).json()
        assert any(files.glob("speculoscope-*"))
    assert not list(files.iterdir())
    assert config["space_id"] == "someone/speculoscope"
    assert capsys.readouterr().out.startswith("Answers ")
    assert "Speculoscope is at" in (tmp_path / "server.log").read_text()


def test_a_traceback_in_the_log_is_a_fault_unless_it_is_gradios_own(tmp_path, capsys):
    log = tmp_path / "server.log"
    gradios = "Exception ignored in: <function BaseEventLoop.__del__ at 0x7f>\nTraceback (most recent call last):\n"
    log.write_text(f"Speculoscope is at http://here/\n{gradios}")
    assert faults_in_log(log) == [] and "harmless" in capsys.readouterr().out
    log.write_text(f"{gradios}ERROR: Exception in ASGI application\nTraceback (most recent call last):\n")
    assert "holds a traceback" in faults_in_log(log)[0]


def test_every_large_or_binary_file_goes_to_large_file_storage(folder, tmp_path):
    """As in a push to the Hub, which has a limit for plain files."""
    copy = shutil.copytree(folder, tmp_path / "copy", copy_function=os.link)
    subprocess.run(["git", "init", "--quiet", copy], check=True)
    files = [path for path in copy.rglob("*") if path.is_file() and not {".git", "__pycache__"} & {*path.parts}]
    wanted = [one for one in files if one.stat().st_size > 10**6 or b"\0" in one.read_bytes()[:4096]]
    named = [str(one.relative_to(copy)) for one in wanted]
    ended = subprocess.run(["git", "check-attr", "filter", *named], cwd=copy, capture_output=True)
    assert "docs/race.png" in named
    assert {line.rpartition(b": ")[2] for line in ended.stdout.splitlines()} == {b"lfs"}


@pytest.mark.parametrize(("path", "sentence"), [(None, "is no git checkout"), ("", "git is missing")])
def test_without_git_no_space_is_written_and_a_sentence_says_what_to_do(tmp_path, monkeypatch, capsys, path, sentence):
    monkeypatch.setattr(space, "ROOT", tmp_path)
    monkeypatch.setattr(sys, "argv", ["space", str(tmp_path / "space")])
    if path is not None:
        monkeypatch.setenv("PATH", path)
    with pytest.raises(SystemExit) as ended:
        space.main()
    assert ended.value.code == 2 and sentence in capsys.readouterr().err


def test_the_card_of_the_space_is_one():
    card = SpaceCard.load(ROOT / "README.md").data.to_dict()
    assert card["sdk"] == "gradio" and (ROOT / card["app_file"]).exists() and len(card["short_description"]) <= 60
    assert card["python_version"] in ("3.10.13", "3.12.12")  # ZeroGPU has no others


def test_the_container_copies_what_is_there_and_runs_as_a_user():
    text = (ROOT / "Dockerfile").read_text()
    lines = re.findall(r"^COPY (?:--chown=user )?(.+)$", text, re.MULTILINE)
    copied = [name for line in lines for name in line.split()[:-1]]
    assert {"app.py", "decoding", "viz", "models"} <= set(copied) and all((ROOT / name).exists() for name in copied)
    assert re.search(r"^USER 1000$", text, re.MULTILINE) and "--uid 1000" in text
    assert "--owner user --group user /home/user/.cache" in text  # else a volume there would be root's


def test_the_health_check_of_the_container_distinguishes_a_page_from_none():
    text = (ROOT / "Dockerfile").read_text()
    _, option, script = json.loads(re.search(r"HEALTHCHECK.*?CMD (\[.*?\])$", text, re.MULTILINE | re.DOTALL)[1])
    with ThreadingHTTPServer(("127.0.0.1", 0), SimpleHTTPRequestHandler) as server:
        check = [sys.executable, option, script.replace("7860", str(server.server_port))]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        assert subprocess.run(check, capture_output=True, timeout=100).returncode == 0
        server.shutdown()
    assert subprocess.run(check, capture_output=True, timeout=100).returncode != 0


# -- app.py as started by a user


def test_without_torch_it_says_where_the_page_is_serves_it_and_ends_by_ctrl_c_without_leaving_files(tmp_path):
    """The process that serves the page never imports torch. By SIGTERM: as a Space, above."""
    without, files = tmp_path / "without", tmp_path / "files"
    for folder in (without, files):
        folder.mkdir()
    for name in ("torch", "transformers"):
        (without / f"{name}.py").write_text("raise ImportError('not here')")
    port = free_port()
    with served_at() as backend:
        process = subprocess.Popen(
            [sys.executable, "app.py", "--backend", backend, "--port", str(port)],
            cwd=ROOT,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONPATH": str(without), "TMPDIR": str(files)},
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # background shells ignore it
        )
        try:
            line = process.stdout.readline()
            assert f"Speculoscope is at http://127.0.0.1:{port}" in line, line
            html = web.get(f"http://127.0.0.1:{port}/").text
            assert "Speculoscope" in html and "cdn." not in html.lower()
            assert html.count(page.head()) == html.count(f"{page.BEGIN}<gradio-app") == 1
            for closed in ("monitoring", "monitoring/summary"):
                assert web.get(f"http://127.0.0.1:{port}/{closed}").status_code in (403, 404)
            assert any(files.glob("speculoscope-*"))
            process.send_signal(signal.SIGINT)
            assert process.wait(20) is not None
        finally:
            process.kill()
    assert not list(files.iterdir())


def test_a_taken_port_and_a_wrong_address_are_sentences(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))

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
        port = taken.getsockname()[1]
        assert f"Cannot listen on 127.0.0.1:{port}: Address" in refused("--recorded", "--port", str(port))
        monkeypatch.setenv("GRADIO_SERVER_PORT", str(port))
        monkeypatch.setattr("gradio.http_server.INITIAL_PORT_VALUE", port)
        monkeypatch.setattr("gradio.http_server.TRY_NUM_PORTS", 1)
        assert f"Every port from {port} on that was tried is taken: choose another --port" in refused("--recorded")
    for host in ("203.0.113.7", "nowhere.invalid", f"{'a' * 70}.org"):  # at once: Gradio tries a hundred ports
        assert f"Cannot listen on {host}: " in refused("--recorded", "--host", host)
    assert "not an address" in refused("--backend", "not an address")
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        *[
            ("GRADIO_SERVER_PORT", port, f"GRADIO_SERVER_PORT: {port} is not a port: choose a number from 1 to 65535")
            for port in ("abc", "", "99999")
        ],
        ("GRADIO_TEMP_DIR", "/dev/null/files", "Not a directory: '/dev/null/files/vibe_edit_history'"),
    ],
)
def test_what_gradio_cannot_use_of_the_environment_is_a_sentence(name, value, sentence):
    """In a process of its own: Gradio reads it as it is imported."""
    env = {**os.environ, name: value}
    process = subprocess.run([sys.executable, "app.py"], cwd=ROOT, env=env, capture_output=True, text=True)
    assert process.returncode == 2 and process.stderr.splitlines()[-1].endswith(sentence)
    assert "Traceback" not in process.stderr
