"""The folder of a Space: complete, able to start, and with requirements that fit its hardware."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from viz.tools.space import CPU_WHEELS, HARDWARE, ROOT, build

ZEROGPU_TORCH = ("2.8.0", "2.9.1", "2.10.0", "2.11.0")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return build(tmp_path_factory.mktemp("space") / "space", "cpu")


def asked(hardware: str, tmp_path: Path) -> tuple[str, dict[str, Requirement]]:
    from viz.tools.space import requirements

    text = requirements(hardware, (ROOT / "requirements.txt").read_text())
    lines = [Requirement(line) for line in text.splitlines() if not line.startswith("--")]
    return text, {line.name: line for line in lines}


@pytest.mark.parametrize("hardware", HARDWARE)
def test_requirements_fit_the_hardware(hardware, tmp_path):
    text, wanted = asked(hardware, tmp_path)
    assert (CPU_WHEELS in text) == (hardware == "cpu") and ("spaces" in wanted) == (hardware == "zerogpu")
    assert all(version in wanted["torch"].specifier for version in ZEROGPU_TORCH)
    assert "2.12.0" not in wanted["torch"].specifier and "2.13.0" not in wanted["torch"].specifier
    assert "gradio" not in wanted and {"transformers", "pydantic", "plotly"} <= set(wanted)


def test_gradio_is_the_tested_version():
    asked = re.search(r"^sdk_version: (.+)$", (ROOT / "README.md").read_text(), re.MULTILINE)[1]
    assert f"gradio=={asked}\n" in (ROOT / "constraints.txt").read_text()


def test_every_binary_file_goes_to_large_file_storage(folder):
    endings = re.findall(r"^\*(\.\w+) filter=lfs", (folder / ".gitattributes").read_text(), re.MULTILINE)
    binary = [path for path in folder.rglob("*") if path.is_file() and b"\0" in path.read_bytes()[:4096]]
    assert binary and {path.suffix for path in binary} <= set(endings)


def test_the_folder_starts_by_itself(folder):
    script = (
        "import app; from viz.page import build_page; from decoding.backends.recorded import RecordedBackend; "
        "build_page(RecordedBackend()); print('built')"
    )
    told = subprocess.run([sys.executable, "-c", script], cwd=folder, capture_output=True, text=True, timeout=170)
    assert told.stdout.strip().endswith("built"), told.stderr


def test_the_container_copies_what_is_there_and_runs_as_a_user():
    text = (ROOT / "Dockerfile").read_text()
    copied = [name for line in re.findall(r"^COPY (?:--chown=user )?(.+)$", text, re.MULTILINE)
              for name in line.split()[:-1]]  # fmt: skip
    assert {"app.py", "decoding", "viz", "models"} <= set(copied) and all((ROOT / name).exists() for name in copied)
    assert re.search(r"^USER user$", text, re.MULTILINE) and "HEALTHCHECK" in text
