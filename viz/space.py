"""Writes the folder of a Hugging Face Space: ``python -m viz.space build/space --hardware cpu``.

It contains only what a Space needs, with requirements that fit its hardware and a .gitattributes for its binary files.
Upload it with ``hf upload OWNER/NAME build/space --repo-type space``.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PARTS = (
    "app.py",
    "README.md",
    "LICENSE",
    "decoding",
    "viz",
    "models",
    "prompts",
    "recordings",
    "results",
    "lessons",
    "docs",
    "examples",
)
HARDWARE = ("cpu", "zerogpu", "gpu")
TORCH = "torch>=2.8,<2.12"  # ZeroGPU knows 2.8.0, 2.9.1, 2.10.0 and 2.11.0
CPU_WHEELS = "--extra-index-url https://download.pytorch.org/whl/cpu"  # without them: gigabytes of CUDA libraries
ATTRIBUTES = "".join(f"*.{ending} filter=lfs diff=lfs merge=lfs -text\n" for ending in ("safetensors", "xz", "png"))
"""Of Git: the Hub refuses binary files outside of its large file storage."""


def requirements(hardware: str, text: str) -> str:
    """The project's requirements ``text`` for a Space: torch bounded, Gradio left to ``sdk_version``."""
    lines = [line for line in text.splitlines() if line and not line.startswith(("#", "gradio", "torch"))]
    head = [CPU_WHEELS] if hardware == "cpu" else []
    tail = ["spaces"] if hardware == "zerogpu" else []
    return "\n".join([*head, TORCH, *lines, *tail]) + "\n"


def build(folder: Path, hardware: str) -> Path:
    """Write the Space into ``folder``, which must not exist yet; returns it."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--", *PARTS], cwd=ROOT, capture_output=True, check=True, text=True
    )
    for name in filter(None, listed.stdout.split("\0")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    text = (ROOT / "requirements.txt").read_text(encoding="utf-8")
    (folder / "requirements.txt").write_text(requirements(hardware, text), encoding="utf-8")
    (folder / ".gitattributes").write_text(ATTRIBUTES, encoding="utf-8")
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m viz.space", description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="where to write it; must not exist")
    parser.add_argument("--hardware", choices=HARDWARE, default="cpu")
    options = parser.parse_args()
    if options.folder.exists():
        parser.error(f"{options.folder} already exists: name another folder, or delete it.")
    try:
        folder = build(options.folder, options.hardware)
    except subprocess.CalledProcessError:
        parser.error(f"{ROOT} is no git checkout, whose files a Space consists of: clone the repository.")
    except OSError as error:
        if error.filename == "git":
            parser.error("git is missing, which lists the files of a Space: install it.")
        parser.error(f"Cannot write {options.folder} ({error.strerror}): name another folder.")
    print(f"Wrote {folder}. Upload it: hf upload OWNER/NAME {folder} --repo-type space")


if __name__ == "__main__":
    main()
