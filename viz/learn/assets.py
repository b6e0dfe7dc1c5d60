"""The Learn tab's script and stylesheet, the same in the dashboard and in exported lessons."""

from __future__ import annotations

from ..core.bundle import script, styles


def learn_js() -> str:
    """The script, which defines ``SpeculoscopeLearn``."""
    return script("learn/js/main.js", "SpeculoscopeLearn")


def learn_css() -> str:
    return styles("learn/learn.css")
