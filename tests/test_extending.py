"""The documentation, followed exactly: recipes of docs/extending.md, a setting in one line, the example notebook."""

import ast
import json
import os
import pkgutil
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import pytest

import viz.notebook
from decoding.engines.pair import load_pair
from decoding.errors import UserError
from decoding.loop import drafting
from decoding.records import pairs
from decoding.records.pairs import ModelFree
from decoding.records.run_file import load_run, save_run
from tests.page_fakes import ScriptedBackend
from tests.page_server import page_at, write_recordings
from tests.runs import make_run
from tests.tiny_models import make_tiny_pair
from tests.toy import quick_run
from tests.web import connect

ROOT = Path(__file__).resolve().parents[1]
RECIPES = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")


def block(language: str, section: str) -> str:
    """The first block of code in ``language`` under the heading ``section``."""
    text = RECIPES.split(f"## {section}\n", 1)[1].split("\n## ")[0]
    return re.search(rf"```{language}\n(.*?)```", text, re.DOTALL).group(1)


def defined(section: str) -> dict:
    """What the Python code under that heading of our own documentation defines."""
    found: dict = {}
    exec(compile(block("python", section), "extending.md", "exec"), found)
    return found


@pytest.fixture
def my_pair(tmp_path, monkeypatch):
    """The folder that the recipe describes, with a tiny target and draft."""
    target, draft = make_tiny_pair(tmp_path / "trained")
    folder = tmp_path / "models" / "my-pair"
    shutil.copytree(target, folder / "target")
    shutil.copytree(draft, folder / "drafts" / "small")
    (folder / "pair.json").write_text(block("json", "Add a pair"))
    monkeypatch.setattr(pairs, "MODELS", tmp_path / "models")


def test_a_pair_is_a_folder_with_a_description(my_pair):
    assert pairs.find_pair("my-pair").drafts.keys() == {"small"}
    run = quick_run(["autoregressive", "static:3"], load_pair("my-pair", device="cpu"), max_new_tokens=8)
    assert run.pair.name == "my-pair" and run.lane("static:3").verdict.same


def test_a_draft_is_a_class_and_two_rows(monkeypatch):
    monkeypatch.setitem(drafting.MODEL_FREE, "repeating", defined("Add a draft")["Repeating"])
    monkeypatch.setitem(pairs.MODEL_FREE, "repeating", ModelFree("repeating", "repetition", "it repeats"))
    run = quick_run(["autoregressive", "repeating/static:3", "repeating/oracle"], prompt="abcdabcd")
    assert all(trace.verdict.same for trace in run.lanes) and set(run.chains) == {"repeating"}
    assert run.lane("repeating/static:3").iterations[0].n_drafted == 3
    assert run.pair.drafts["repeating"].source == "repetition"


def test_a_backend_is_a_class_that_yields_events(tmp_path):
    kept, recordings = tmp_path / "kept", tmp_path / "recordings"
    kept.mkdir()
    recordings.mkdir()
    backend = defined("Add a backend")["Keeping"](ScriptedBackend(), kept)
    with page_at(backend, write_recordings(recordings)) as url:
        job = connect(url).submit(
            prompt="def f():", lanes=["autoregressive", "static:3"], max_new_tokens=20, api_name="/compare"
        )
        *_, last = list(job)
    (path,) = kept.iterdir()
    assert last["kind"] == "finished" and json.loads(path.read_text()) == last["data"]["run"]
    assert load_run(path).settings.prompt == "def f():"


def test_the_glossary_names_what_is_in_the_code():
    glossary = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    rows = [line for line in glossary.splitlines() if line.startswith("| ")][1:]
    names = re.findall(r"`(decoding\.[\w.]+)` \|$", glossary, re.MULTILINE)
    assert len(names) == len(rows) > 30
    for name in names:
        assert pkgutil.resolve_name(name) is not None


# -- a new setting

ADD_A_LINE = """
import sys, types
sys.modules["torch"] = None  # nothing that offers settings needs it; to import it takes seconds
from importlib import import_module
from pathlib import Path

path = Path("decoding/records/request.py")
source, end = path.read_text(encoding="utf-8"), "\\n\\nSETTINGS = "
line = '    patience: int = setting("Patience", "How long to wait.", 3, low=1, high=9, tools=True)\\n'
assert source.count(end) == 1
name = "decoding.records.request"
module = sys.modules[name] = types.ModuleType(name)
module.__package__, module.__file__ = "decoding.records", str(path)
exec(compile(source.replace(end, line + end), str(path), "exec"), module.__dict__)
import_module("decoding.records").request = module
"""
FIND_IT = """
import inspect
import gradio as gr
import typer.testing
from decoding.backends.space import carried
from decoding.cli import _application
from decoding.errors import UserError
from decoding.records.request import CompareRequest, read_request, request_from_dict
from viz.api import make_compare
from viz.mcp_tools import make_tools
from viz.race_form import Form
from viz.settings import command_line, form_of, read_form, request_of

request = CompareRequest("x", patience=7)
with gr.Blocks():
    field = Form(form_of(request), [], [], "").fields["patience"]
assert (field.label, field.value) == ("Patience", 7), "the form"
assert request_of(form_of(request)) == request, "the form, pressed Run"
assert read_form({"patience": "8"}, form_of(request), "link")[0]["patience"] == 8, "a link"
assert "must be a whole number from 1 to 9" in read_form({"patience": "10"}, form_of(request), "link")[1][0]
assert "--patience=7" in command_line(request), "the copied command"
application = _application(["compare"])
told = typer.testing.CliRunner().invoke(application, ["compare", "--help"], env={"COLUMNS": "200"})
assert "--patience" in told.output and "How long to wait." in told.output, "the command line"
try:
    application(["compare", "--prompt", "x", "--patience", "10"], standalone_mode=False)
    raise AssertionError("the command line took a wrong value")
except UserError as error:
    assert str(error) == "Patience must be a whole number from 1 to 9, not 10."
endpoint = inspect.signature(make_compare(None, None, None)).parameters
assert list(endpoint)[-1] == "patience" and endpoint["patience"].default == 3, "the endpoint"
for tool in make_tools(None, None, None)[:2]:
    assert "patience" in inspect.signature(tool).parameters and "patience: How long to wait." in tool.__doc__, "a tool"
assert carried(request)["patience"] == 7, "a Space as the backend"
assert request_from_dict({"prompt": "x"}).patience == 3, "a run file that was written before"
print("found everywhere")
"""


def test_a_new_setting_is_one_line_and_is_offered_everywhere():
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "GRADIO_ANALYTICS_ENABLED": "False"}
    command = [sys.executable, "-c", ADD_A_LINE + FIND_IT]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.stdout.strip() == "found everywhere", done.stderr[-2000:]


# -- the example notebook, cell by cell, over a backend without models

NOTEBOOK = Path(__file__).resolve().parents[1] / "examples" / "speculoscope.ipynb"
CELLS = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
CODE = ["".join(cell["source"]) for cell in CELLS if cell["cell_type"] == "code"]


@pytest.fixture
def scripted(monkeypatch):
    backend = ScriptedBackend()
    monkeypatch.setattr(viz.notebook, "_default_backend", lambda: backend)
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


def test_a_notebook_shows_a_run_file_by_its_path(scripted, tmp_path):
    run, path = viz.notebook.compare("def mean(values):"), tmp_path / "run.json"
    save_run(run, path)
    shown, opened = viz.notebook.player(run).html, viz.notebook.player(str(path)).html
    assert opened == shown.replace('"badge":{"kind":"live"', '"badge":{"kind":"imported"') != shown
    assert len(viz.notebook.plots(path)) == len(viz.notebook.plots(run)) > 1
    with pytest.raises(UserError, match="nowhere.json"):
        viz.notebook.lesson(tmp_path / "nowhere.json")


def test_the_first_cell_finds_the_project_from_the_notebook_s_own_folder():
    look = "import importlib.util as util; assert util.find_spec('viz.notebook')"
    surroundings = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    started = [sys.executable, "-c", f"{CODE[0]}\n{look}"]  # like Jupyter's kernel, in this folder
    subprocess.run(started, cwd=NOTEBOOK.parent, env=surroundings, check=True, timeout=60)


def test_one_command_installs_jupyter_and_opens_the_example():
    project = NOTEBOOK.parents[1]
    rules = (project / "Makefile").read_text(encoding="utf-8")
    assert "jupyterlab" in (project / "requirements-notebook.txt").read_text(encoding="utf-8")
    installs = r"^\S.* \.venv/\.notebook: \.venv/\.%: requirements-%\.txt.*\n\t\S+pip install .* -r \$<"
    assert re.search(installs, rules, re.MULTILINE)
    opened = re.search(r"^notebook: .*\n\t.* jupyter lab (\S+)", rules.replace("$(BIN)/", " "), re.MULTILINE)
    assert opened and project / opened[1] == NOTEBOOK
    assert "make notebook" in (project / "README.md").read_text(encoding="utf-8")


def test_what_cannot_be_is_said(scripted):
    with pytest.raises(UserError, match="static:0 never drafts"):
        viz.notebook.compare("x", "autoregressive,static:0")
    with pytest.raises(UserError, match="bogus"):
        viz.notebook.compare("x", bogus=3)
    for missing in ("nothing", Path("nothing")):
        with pytest.raises(UserError, match="There is no lesson nothing"):
            viz.notebook.lesson(make_run(), missing)


def test_a_frame_can_be_saved_and_lets_nothing_out_of_its_attribute(tmp_path):
    frame = viz.notebook.player(make_run(hostile=True))
    assert frame._repr_html_().count('"') == 8  # four attributes, whatever the texts are
    assert (
        'sandbox="allow-scripts allow-downloads allow-modals"' in frame._repr_html_()
    )  # it is not of the notebook's own origin
    frame.save(tmp_path / "run.html")
    assert (tmp_path / "run.html").read_text(encoding="utf-8") == frame.html
