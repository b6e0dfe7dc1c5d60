"""The order of the rooms is the picture in docs/architecture.md: imports only go along its arrows, also those inside
functions and under TYPE_CHECKING.
"""

import ast
import re
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
WITHOUT_TORCH = ("decoding", "decoding.records", "decoding.pictures", "decoding.lookahead", "decoding.analysis", "viz")
"""Rooms that import no torch at all, not even inside a function."""
NOT_FOR_PAGES = ("decoding.engines", "decoding.loop", "decoding.fit", "decoding.bench", "decoding.cli", "training")
"""What ``viz`` must not import: it draws records and asks a backend."""
STARTERS = {"decoding.__main__": "decoding.cli"}  # a file that only starts something in another room
ARROW = re.compile(r"^ *(\w+)(?:\[[^\]]*\])? --> (.+)$", re.MULTILINE)


def pictured() -> dict[str, set[str]]:
    """The arrows of the picture, by the room that they start from."""
    found: dict[str, set[str]] = {}
    for start, ends in ARROW.findall((ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")):
        names = (re.sub(r"\[.*", "", end).strip() for end in (start, *ends.split("&")))
        room, *others = (f"decoding.{name}" if (ROOT / "decoding" / name).is_dir() else name for name in names)
        found.setdefault(room, set()).update(others)
    return found


ARROWS = pictured()
BELOW: dict[str, set[str]] = {"decoding": set()}  # by room, lowest first: all that its arrows lead to; errors and files
for one in TopologicalSorter(ARROWS).static_order():  # raises CycleError if they lead in a circle
    nearest = ARROWS.get(one, set())
    BELOW[one] = {"decoding"}.union(nearest, *map(BELOW.get, nearest))


def sources() -> list[tuple[str, Path]]:
    """(module, path) of every source file but the tests."""
    found = [("app", ROOT / "app.py")]
    for top in ("decoding", "training", "viz"):
        for path in sorted((ROOT / top).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found.append((".".join(parts[:-1] if parts[-1] == "__init__" else parts), path))
    return found


def room_of(module: str) -> str:
    """The innermost room that contains ``module``."""
    if module in STARTERS:
        return STARTERS[module]
    parts = module.split(".")
    names = [".".join(parts[:n]) for n in range(len(parts), 0, -1)]
    return next(name for name in names if name in BELOW)


@cache
def imports(module: str, source: str, is_package: bool = False) -> list[tuple[int, str]]:
    """(line, imported module or name) of all imports, at any level."""
    package, found = module.split(".") if is_package else module.split(".")[:-1], []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            start = ".".join([*base, *([node.module] if node.module else [])])
            found += [(node.lineno, f"{start}.{alias.name}") for alias in node.names]
    return found


def faults(module: str, source: str, is_package: bool = False) -> list[str]:
    """A sentence for each import that ``module`` must not have."""
    own, found = room_of(module), []
    for line, name in imports(module, source, is_package):
        top = name.split(".")[0]
        if top == "torch" and own in WITHOUT_TORCH:
            found.append(f"{module}:{line} imports torch")
        if top not in {"decoding", "viz", "training", "app", "tests"}:
            continue
        if top == "tests":
            found.append(f"{module}:{line} imports a test")
            continue
        other = room_of(name)
        if other not in {own, *BELOW[own]}:
            found.append(f"{module}:{line} imports {name}, which does not lie below {own}")
        if own == "viz" and other in NOT_FOR_PAGES:
            found.append(f"{module}:{line} imports {name}, which is not for pages")
    return found


@pytest.mark.parametrize("module, path", sources(), ids=lambda value: value if isinstance(value, str) else "")
def test_imports_go_downward_only(module, path):
    assert faults(module, path.read_text(encoding="utf-8"), path.name == "__init__.py") == []


def test_no_circle_of_imports():
    modules = dict(sources())
    below: dict[str, set[str]] = {}
    for module, path in modules.items():
        names = {name for _, name in imports(module, path.read_text(encoding="utf-8"), path.name == "__init__.py")}
        found = {name if name in modules else name.rpartition(".")[0] for name in names}
        below[module] = {name for name in found if name in modules and name != module}
    TopologicalSorter(below).prepare()  # raises CycleError, which names them


def test_every_folder_of_decoding_is_a_room():
    folders = {f"decoding.{path.parent.name}" for path in (ROOT / "decoding").glob("*/*.py")}
    assert folders == {room for room in BELOW if room.startswith("decoding.")}
    flat = {path.name for path in (ROOT / "decoding").glob("*.py")}
    assert flat == {"__init__.py", "__main__.py", "cpu.py", "errors.py", "files.py"}


@pytest.mark.parametrize(
    "module, source",
    [
        ("decoding.records.trace", "from ..loop import clock"),
        ("decoding.records.trace", "def f():\n    from decoding.engines.pair import Pair"),
        (
            "decoding.lookahead.static",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from ..engines import base",
        ),
        ("decoding.engines.pair", "from ..lookahead.base import LookaheadPolicy"),
        ("decoding.cli.evaluate", "from viz.reports.report import report_of"),
        ("decoding.analysis.whatif", "import torch"),
        ("viz.page", "import decoding.engines.pair"),
    ],
)  # each breaks the order in another way
def test_an_upward_import_is_found(module, source):
    assert faults(module, source)


def test_every_arrow_of_the_picture_is_an_import():
    imported: dict[str, set[str]] = {room: set() for room in BELOW}
    for module, path in sources():
        names = {name for _, name in imports(module, path.read_text(encoding="utf-8"), path.name == "__init__.py")}
        imported[room_of(module)] |= {room_of(name) for name in names if name.split(".")[0] in BELOW}
    assert [(room, ends - imported[room]) for room, ends in ARROWS.items() if ends - imported[room]] == []
