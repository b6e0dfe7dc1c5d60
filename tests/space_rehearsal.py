"""Rehearses a Space: ``python -m tests.space_rehearsal build/rehearsal --hardware cpu``.

Writes the Space's folder, installs it into a virtual environment of its own as the Hub would, starts it with a Space's
variables and a Hub that cannot be reached, and visits it with chromium and as a program. Prints what a deployer would
see, and leaves screenshots, the server's log and the list of packages in the folder. ``zerogpu`` runs on a stand-in
that lends no GPU (tests/zerogpu_standin).
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import httpx
from playwright.sync_api import sync_playwright

from viz.space import CPU_WHEELS, ROOT, TORCH, build

from .serving import free_port
from .web import connect, open_chromium

START_S, WAIT_MS = 600, 600_000
STANDIN = ROOT / "tests" / "zerogpu_standin"
NOWHERE = "http://127.0.0.1:9"  # the port that discards: nothing answers
VIEWS = {"laptop": {"width": 1280, "height": 800}, "phone": {"width": 390, "height": 844}}


def rehearse(folder: Path, hardware: str, torch: str, python: str) -> bool:
    """The whole rehearsal in ``folder``, which must not exist yet; whether all went as it should."""
    space = build(folder / "space", hardware)
    interpreter = install(space, folder, torch, python)
    with started(space, folder, interpreter, hardware) as url:
        faults = visit(url, folder, hardware)
        faults += faults_in_log(folder / "server.log")
    for fault in faults:
        print(f"FAULT: {fault}")
    print("The Space would start and run." if not faults else "The Space has faults.")
    return not faults


def faults_in_log(path: Path) -> list[str]:
    """A fault if the server's log holds a traceback, other than of the event loops that Gradio never closes."""
    lines = path.read_text(encoding="utf-8").splitlines()
    before = [lines[i - 1] if i else "" for i, line in enumerate(lines) if line.startswith("Traceback")]
    gradios = [line for line in before if line.startswith("Exception ignored in: <function BaseEventLoop.__del__")]
    if gradios:
        print(f"The log holds {len(gradios)} harmless tracebacks of event loops that Gradio leaves open.")
    return [f"the server's log holds a traceback: {path}"] if len(before) > len(gradios) else []


def install(space: Path, folder: Path, torch: str, python: str) -> Path:
    """A virtual environment with what the Hub installs: Gradio in the version of README.md, spaces, requirements.txt.

    ``torch`` replaces the line of torch where that cannot be had here. Returns the interpreter.
    """
    wanted = (space / "requirements.txt").read_text(encoding="utf-8")
    if torch != TORCH:
        print(f"torch: {torch} in place of the Space's own line, {TORCH}.")
        wanted = wanted.replace(f"{CPU_WHEELS}\n", "").replace(TORCH, torch)
    asked = folder / "requirements.txt"
    asked.write_text(wanted, encoding="utf-8")
    sdk = re.search(r"^sdk_version: (\S+)", (space / "README.md").read_text(encoding="utf-8"), re.MULTILINE)[1]
    begin = time.monotonic()
    subprocess.run([python, "-m", "venv", folder / "venv"], check=True)
    interpreter = folder / "venv" / "bin" / "python"
    pip = [interpreter, "-m", "pip", "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "--quiet", f"gradio[oauth,mcp]=={sdk}", "spaces", "-r", asked], check=True)
    listed = subprocess.run([*pip, "freeze"], check=True, capture_output=True, text=True).stdout
    (folder / "packages.txt").write_text(listed, encoding="utf-8")
    size = sum(path.stat().st_size for path in (folder / "venv").rglob("*") if path.is_file() and not path.is_symlink())
    weight = sum(path.stat().st_size for path in space.rglob("*") if path.is_file())
    print(
        f"Installed {len(listed.splitlines())} packages, {size / 1e9:.1f} GB, in {time.monotonic() - begin:.0f} s; "
        f"the Space itself has {weight / 1e6:.0f} MB."
    )
    return interpreter


def variables(folder: Path, hardware: str, port: int) -> dict[str, str]:
    """The environment of the Space: nothing of this machine's own but the path, nothing in the caches."""
    home = folder / "home"
    home.mkdir(exist_ok=True)
    found = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "SYSTEM": "spaces",
        "SPACE_ID": "someone/speculoscope",
        "SPACE_AUTHOR_NAME": "someone",
        "SPACE_REPO_NAME": "speculoscope",
        "SPACE_HOST": "someone-speculoscope.hf.space",
        "GRADIO_SERVER_NAME": "127.0.0.1",
        "GRADIO_SERVER_PORT": str(port),
        "HF_ENDPOINT": NOWHERE,
        "PYTHONUNBUFFERED": "1",
    }
    if hardware == "zerogpu":
        found |= {"SPACES_ZERO_GPU": "true", "PYTHONPATH": str(STANDIN)}
    return found


@contextmanager
def started(space: Path, folder: Path, interpreter: Path, hardware: str) -> Iterator[str]:
    """The Space's program, as long as this is entered; gives its address. Raises RuntimeError if it does not start."""
    port, begin = free_port(), time.monotonic()
    url = f"http://127.0.0.1:{port}"
    with (folder / "server.log").open("w", encoding="utf-8") as log:
        program = subprocess.Popen(
            [interpreter, "app.py"], cwd=space, env=variables(folder, hardware, port), stdout=log, stderr=log
        )
        try:
            while not _answers(url):
                if program.poll() is not None or time.monotonic() - begin > START_S:
                    raise RuntimeError(f"The Space did not start; see {folder / 'server.log'}.")
                time.sleep(0.5)
            print(f"Answers {time.monotonic() - begin:.0f} s after its start.")
            yield url
        finally:
            program.terminate()
            program.wait(30)


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=5).status_code == 200
    except httpx.HTTPError:
        return False


def visit(url: str, folder: Path, hardware: str) -> list[str]:
    """A first paint on a laptop and on a phone, a run, errors, a program; returns what was wrong."""
    faults: list[str] = []
    asked: Counter[str] = Counter()
    with sync_playwright() as playwright:
        browser = open_chromium(playwright)
        for name, size in VIEWS.items():
            page = browser.new_page(viewport=size)
            page.set_default_timeout(WAIT_MS)
            page.on("pageerror", lambda error: faults.append(f"an error in the page: {error}"))
            page.on("request", lambda one: asked.update([urlsplit(one.url).netloc]))
            _look(page, url, folder / f"{name}.png", name)
            if name == "laptop":
                _run(page, folder, hardware, faults)
            page.close()
        browser.close()
    elsewhere = sorted(host for host in asked if host and host != urlsplit(url).netloc)
    print(f"On a Space, Gradio's own header asks other hosts: {', '.join(elsewhere) or 'none'}.")
    _call(url, hardware, faults)
    return faults


def _look(page, url: str, picture: Path, name: str) -> None:
    begin = time.monotonic()
    page.goto(url)
    page.locator("#race .sd-strip").first.wait_for()
    kind = page.locator(".sd-badge").inner_text().split("\n")[0]
    print(f"First paint, {name}: {kind}, after {time.monotonic() - begin:.1f} s.")
    page.screenshot(path=picture)


def _run(page, folder: Path, hardware: str, faults: list[str]) -> None:
    """An empty prompt, a run, and on ZeroGPU a run without quota."""
    fault, prompt, button = page.locator(".sp-fault"), page.locator("#prompt textarea"), page.locator("#run")
    prompt.fill("")
    button.click()
    fault.wait_for()
    print(f"Without a prompt it says: {fault.inner_text()}")
    prompt.fill("Why is the sky blue?")
    begin = time.monotonic()
    button.click()
    page.locator(".sd-badge", has_text="live").wait_for()
    button.wait_for()
    page.screenshot(path=folder / "run.png")
    if fault.is_visible():
        faults.append(f"the first run failed: {fault.inner_text()}")
        return
    print(f"The first run took {time.monotonic() - begin:.0f} s: {page.locator('.sd-sentence').inner_text()}")
    if hardware == "zerogpu":
        button.click()
        fault.wait_for()
        print(f"Without quota it says: {fault.inner_text()}")


def _call(url: str, hardware: str, faults: list[str]) -> None:
    """A program asks for a pair that has to come from the Hub, which cannot be reached."""
    preset = "smollm2" if hardware != "zerogpu" else "another pair"
    job = connect(url).submit(
        prompt="Hello", pair=preset, lanes=["autoregressive"], max_new_tokens=8, api_name="/compare"
    )
    last = list(job)[-1]
    print(f"A program that asks for the pair {preset} hears: {last['data'].get('message', last['kind'])}")
    if last["kind"] != "failed":
        faults.append("a pair that cannot be loaded did not fail")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.space_rehearsal", description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="where to work; must not exist")
    parser.add_argument("--hardware", choices=("cpu", "zerogpu"), default="cpu")
    parser.add_argument("--torch", default=os.environ.get("SPACE_TORCH", TORCH), help="in place of the Space's torch")
    parser.add_argument("--python", default=sys.executable, help="the interpreter; a Space has 3.12")
    options = parser.parse_args()
    if options.folder.exists():
        parser.error(f"{options.folder} is there already: name another folder, or delete it.")
    folder = options.folder.resolve()
    folder.mkdir(parents=True)
    sys.exit(not rehearse(folder, options.hardware, options.torch, options.python))


if __name__ == "__main__":
    main()
