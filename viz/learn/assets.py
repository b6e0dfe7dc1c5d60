"""The Learn place as it ships: one framework-free script and one stylesheet, as the player's.

The dashboard and exported lessons hold the same two texts. The script is written in sections, ``js/*.js``, which share
one scope; joining them is all that is done to them.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

HERE = Path(__file__).parent
SECTIONS = ("replay", "policies", "theory", "expression")
EXPORTED = "{ Replay, simulate, bestSplit, iterationCost, withCosts, cutChain, parseLane, makePolicy,\n  POLICIES, Written, expectedTokens, modelSpeedup, breakEven }"


@cache
def learn_js() -> str:
    """The script: its sections, joined in the order in which they build on each other."""
    sections = [(HERE / "js" / f"{name}.js").read_text(encoding="utf-8") for name in SECTIONS]
    body = "\n".join([*sections, f"window.SpeculoscopeLearn = {EXPORTED};"])
    return f'(function () {{\n"use strict";\n{body}\n}})();\n'
