"""The recipes of docs/extending.md, followed exactly."""

from __future__ import annotations

import json
import pkgutil
import re
import shutil
from pathlib import Path

import pytest

from decoding.engines.pair import load_pair
from decoding.loop import drafting
from decoding.records import pairs
from decoding.records import pairs as pairs_module
from decoding.records.pairs import ModelFree
from decoding.records.request import CompareRequest
from decoding.records.run_file import load_run

from .page_fakes import ScriptedBackend
from .page_server import page_at, write_recordings
from .tiny_pair import make_tiny_pair
from .toy import ToyPair, finished_run
from .web import connect

RECIPES = (Path(__file__).resolve().parents[1] / "docs" / "extending.md").read_text(encoding="utf-8")


def block(language: str, section: str) -> str:
    """The first block of code in ``language`` under the heading ``section``."""
    text = RECIPES.split(f"## {section}\n", 1)[1].split("\n## ")[0]
    return re.search(rf"```{language}\n(.*?)```", text, re.DOTALL).group(1)


@pytest.fixture
def my_pair(tmp_path, monkeypatch):
    """The folder that the recipe describes, with a tiny target and draft."""
    target, draft = make_tiny_pair(tmp_path / "trained")
    folder = tmp_path / "models" / "my-pair"
    shutil.copytree(target, folder / "target")
    shutil.copytree(draft, folder / "drafts" / "small")
    (folder / "pair.json").write_text(block("json", "Add a pair"))
    monkeypatch.setattr(pairs_module, "MODELS", tmp_path / "models")


def test_a_pair_is_a_folder_with_a_description(my_pair):
    assert pairs_module.find_pair("my-pair").drafts.keys() == {"small"}
    pair = load_pair("my-pair", device="cpu")
    run = finished_run(CompareRequest("def f():", lanes=["autoregressive", "static:3"], max_new_tokens=8), pair)
    assert run.pair.name == "my-pair" and run.lane("static:3").verdict.same


def test_a_draft_is_a_class_and_two_rows(monkeypatch):
    found: dict = {}
    exec(compile(block("python", "Add a draft"), "extending.md", "exec"), found)  # our own documentation
    monkeypatch.setitem(drafting.MODEL_FREE, "repeating", found["Repeating"])
    monkeypatch.setitem(pairs.MODEL_FREE, "repeating", ModelFree("repeating", "repetition", "it repeats"))
    lanes = ["autoregressive", "repeating/static:3", "repeating/oracle"]
    run = finished_run(CompareRequest("abcdabcd", lanes=lanes, max_new_tokens=40, repeats=1), ToyPair())
    assert all(trace.verdict.same for trace in run.lanes) and set(run.chains) == {"repeating"}
    assert run.lane("repeating/static:3").iterations[0].n_drafted == 3


def test_a_backend_is_a_class_that_yields_events(tmp_path):
    found: dict = {}
    exec(compile(block("python", "Add a backend"), "extending.md", "exec"), found)  # our own documentation
    kept = tmp_path / "kept"
    kept.mkdir()
    recordings = tmp_path / "recordings"
    recordings.mkdir()
    with page_at(found["Keeping"](ScriptedBackend(), kept), write_recordings(recordings)) as url:
        job = connect(url).submit(
            prompt="def f():", lanes=["autoregressive", "static:3"], max_new_tokens=20, api_name="/compare"
        )
        *_, last = list(job)
    (path,) = kept.iterdir()
    assert last["kind"] == "finished" and json.loads(path.read_text()) == last["data"]["run"]
    assert load_run(path).settings.prompt == "def f():"


def test_the_glossary_names_what_is_in_the_code():
    glossary = (Path(__file__).resolve().parents[1] / "docs" / "glossary.md").read_text(encoding="utf-8")
    rows = [line for line in glossary.splitlines() if line.startswith("| ")][1:]
    names = re.findall(r"`(decoding\.[\w.]+)` \|$", glossary, re.MULTILINE)
    assert len(names) == len(rows) > 30
    for name in names:
        assert pkgutil.resolve_name(name) is not None
