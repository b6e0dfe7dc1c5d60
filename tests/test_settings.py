"""A setting is one line: a new one is in every place that offers settings."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ADD_A_LINE = """
import sys, types
sys.modules["torch"] = None  # nothing that offers settings needs it; to import it takes seconds
from importlib import import_module
from pathlib import Path

path = Path("decoding/records/request.py")
source, last = path.read_text(encoding="utf-8"), "    picture: str = PICTURE\\n"
line = '    patience: int = setting("Patience", "How long to wait.", 3, low=1, high=9, tools=True)\\n'
assert source.count(last) == 1
name = "decoding.records.request"
module = sys.modules[name] = types.ModuleType(name)
module.__package__, module.__file__ = "decoding.records", str(path)
exec(compile(source.replace(last, last + line), str(path), "exec"), module.__dict__)
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
from viz.race_form import build_form
from viz.settings import command_line, form_of, link_query, read_form, request_of

request = CompareRequest("x", patience=7)
with gr.Blocks():
    field = build_form(form_of(request), [], [], "").fields["patience"]
assert (field.label, field.value) == ("Patience", 7), "the form"
assert request_of(form_of(request)) == request, "the form, pressed Run"
assert "patience=7" in link_query(request).split("&"), "the link"
assert read_form({"patience": "8"}, form_of(request), "link")[0]["patience"] == 8, "the link, opened"
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
endpoint = inspect.signature(make_compare(None, None)).parameters
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
