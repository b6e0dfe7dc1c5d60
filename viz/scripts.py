"""The shipped scripts and stylesheets: the dashboard and the exported HTML files contain the same texts unchanged.

ES modules are bundled into one plain script, so that an exported file needs neither a server nor a build step. The
sources use a subset of the language: ``import { a, b } from "./other.js";``, ``export`` before a declaration at the
beginning of a line, and ``export { a, b };``. Each module keeps a scope of its own. An import that does not exist and
circular imports raise ValueError.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

TAGLINE = (
    "A small model, the draft, guesses ahead; a big one, the target, checks all guesses in one pass. Same text, sooner."
)
VIZ = Path(__file__).resolve().parent
IMPORT = re.compile(r'^import (?:\{([^}]*)\} from )?"([^"]+)";\n', re.MULTILINE)
EXPORT = re.compile(r"^export ((?:async )?(?:const|function|class) (\w+))", re.MULTILINE)
EXPORTS = re.compile(r"^export \{([^}]*)\};\n", re.MULTILINE)


def player_js() -> str:
    """The script, which defines ``Speculoscope``."""
    return script("player/js/main.js", "Speculoscope")


def player_css() -> str:
    """The stylesheet, with the parts that the Learn tab and the page share."""
    return styles("core/base.css", "player/player.css")


def learn_js() -> str:
    """The script, which defines ``SpeculoscopeLearn``."""
    return script("learn/js/main.js", "SpeculoscopeLearn")


def learn_css() -> str:
    """What the Learn tab adds to :func:`player_css`."""
    return styles("learn/learn.css")


def light_colours() -> dict[str, str]:
    """The colour variables of the light theme by name."""
    block = re.search(r"\{([^{}]*--sd-bg:[^{}]*)\}", player_css())
    return dict(re.findall(r"(--sd-[\w-]+):\s*(#[0-9a-f]{6})", block.group(1) if block else ""))


@cache
def script(entry: str, name: str) -> str:
    """The module ``entry`` (a path below ``viz``) with all that it imports; its exports become ``window[name]``."""
    modules = "".join(_modules(VIZ / entry).values())
    return f'(function () {{\n"use strict";\n{modules}window.{name} = {_variable(VIZ / entry)};\n}})();\n'


def _modules(entry: Path) -> dict[Path, str]:
    """The text of ``entry`` and of all modules that it needs, each after those that it imports."""
    found: dict[Path, str] = {}
    exports: dict[Path, list[str]] = {}

    def add(path: Path, importing: tuple[Path, ...]) -> None:
        if path in importing:
            raise ValueError(f"{path.name} imports itself, by {importing[-1].name}.")
        if path in found:
            return
        source = path.read_text(encoding="utf-8")
        lines = []
        for names, target in IMPORT.findall(source):
            other = (path.parent / target).resolve()
            add(other, (*importing, path))
            wanted = _names(names)
            if missing := set(wanted) - set(exports[other]):
                raise ValueError(f"{path.name} imports {min(missing)}, which {other.name} does not export.")
            lines.append(f"const {{ {', '.join(wanted)} }} = {_variable(other)};\n" if wanted else "")
        listed = [name for names in EXPORTS.findall(source) for name in _names(names)]
        exports[path] = [name for _, name in EXPORT.findall(source)] + listed
        body = EXPORTS.sub("", EXPORT.sub(r"\1", IMPORT.sub("", source)))
        offered = f"return {{ {', '.join(exports[path])} }};"
        found[path] = f"const {_variable(path)} = (() => {{\n{''.join(lines)}{body}{offered}\n}})();\n"

    add(entry.resolve(), ())
    return found


def _names(text: str) -> list[str]:
    return [one.strip() for one in text.split(",") if one.strip()]


def _variable(path: Path) -> str:
    return re.sub(r"\W", "_", str(path.resolve().relative_to(VIZ).with_suffix("")))


@cache
def styles(*names: str) -> str:
    """The stylesheets of these names (paths below ``viz``), joined."""
    return "".join((VIZ / name).read_text(encoding="utf-8") for name in names)
