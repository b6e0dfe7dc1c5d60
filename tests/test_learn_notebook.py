"""The example notebook, cell by cell, over a backend without models."""

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import pytest

import viz.notebook
from decoding.errors import UserError
from tests.page_fakes import ScriptedBackend
from tests.runs import make_run

NOTEBOOK = Path(__file__).resolve().parents[1] / "examples" / "speculoscope.ipynb"
CELLS = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
CODE = ["".join(cell["source"]) for cell in CELLS if cell["cell_type"] == "code"]


@pytest.fixture(autouse=True)
def scripted(monkeypatch):
    backend = ScriptedBackend()
    monkeypatch.setattr(viz.notebook, "choose_backend", lambda: backend)
    viz.notebook._default_backend.cache_clear()
    return backend


def run_cell(source: str, scope: dict[str, Any]) -> Any:
    """As in a notebook: a cell shows the value of its last line."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), scope)
    return eval(compile(ast.Expression(last.value), "cell", "eval"), scope) if last else None


def test_every_cell_of_the_example_shows_something(scripted):
    scope: dict[str, Any] = {}
    _, *shown = [run_cell(cell, scope) for cell in CODE]  # the first one finds the project
    assert len([line for line in CODE[1].splitlines() if line.strip()]) == 3
    assert shown[0]._repr_html_().startswith("<iframe srcdoc=")
    assert isinstance(shown[1], go.Figure)
    assert "var(--" not in shown[1].to_json()
    assert shown[2]["static:5"] > 0
    assert "ten-steps" in shown[3].html
    recorded = scope["recorder"].run
    assert [trace.policy for trace in recorded.lanes] == ["autoregressive", "assisted", "lookup"]
    assert all(trace.verdict.same for trace in recorded.lanes) and shown[4]._repr_html_().startswith("<iframe srcdoc=")
    assert scripted.requests[0].prompt == "def mean(values):"


def test_the_first_cell_finds_the_project_from_the_notebook_s_own_folder():
    look = "import importlib.util as util; assert util.find_spec('viz.notebook')"
    surroundings = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    started = [sys.executable, "-c", f"{CODE[0]}\n{look}"]  # like Jupyter's kernel, in this folder
    subprocess.run(started, cwd=NOTEBOOK.parent, env=surroundings, check=True, timeout=60)


def test_one_command_installs_jupyter_and_opens_the_example():
    project = NOTEBOOK.parents[1]
    rules = (project / "Makefile").read_text(encoding="utf-8")
    assert "jupyterlab" in (project / "requirements-notebook.txt").read_text(encoding="utf-8")
    assert "pip install --quiet --disable-pip-version-check -r requirements-notebook.txt" in rules
    opened = re.search(r"^notebook: .*\n\t.* jupyter lab (\S+)", rules.replace("$(BIN)/", " "), re.MULTILINE)
    assert opened and project / opened[1] == NOTEBOOK
    assert "make notebook" in (project / "README.md").read_text(encoding="utf-8")


def test_what_cannot_be_is_said():
    with pytest.raises(UserError):
        viz.notebook.compare("x", ["static:0"])
    with pytest.raises(UserError, match="There is no lesson"):
        viz.notebook.lesson(make_run(), "nothing")


def test_a_frame_can_be_saved_and_lets_nothing_out_of_its_attribute(tmp_path):
    frame = viz.notebook.player(make_run(hostile=True))
    assert frame._repr_html_().count('"') == 8  # four attributes, whatever the texts are
    frame.save(tmp_path / "run.html")
    assert (tmp_path / "run.html").read_text(encoding="utf-8") == frame.html
