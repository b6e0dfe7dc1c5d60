"""The goals of a benchmark beside the figures of its reports."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

ReportData = dict[str, Any]
"""A report of ``bench`` as plain data."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A figure: median, lowest and highest (None: not known)."""

    median: float
    low: float | None = None
    high: float | None = None

    def __str__(self) -> str:
        spread = "" if self.low is None or self.high is None else f" ({self.low:.2f} to {self.high:.2f})"
        return f"{self.median:.2f}{spread}"


@dataclass(frozen=True, slots=True)
class Goal:
    """``reads`` finds the figure in a report; None where the report has none. Without ``holds`` it is only shown."""

    text: str
    pairs: tuple[str, ...]  # beginnings of the names of the pairs it is set for; "" is any
    holds: Callable[[float], bool] | None
    reads: Callable[[ReportData], Measured | None]


@dataclass(frozen=True, slots=True)
class Verdict:
    """A goal for one report; ``reached`` is None if nothing was measured or asked."""

    pair: str
    goal: str
    measured: Measured | None
    reached: bool | None

    def row(self) -> list[str]:
        """Pair, goal, figure, reached or missed."""
        if self.measured is None:
            return [self.pair, self.goal, "not measured", ""]
        word = {True: "reached", False: "missed", None: ""}[self.reached]
        return [self.pair, self.goal, str(self.measured), word]


def verdicts(report: ReportData, goals: tuple[Goal, ...] | None = None) -> list[Verdict]:
    """Every goal that is set for the report's pair and device."""
    if goals is None:
        goals = GPU_GOALS if str(report["device"]).startswith("cuda") else CPU_GOALS
    found = []
    for goal in goals:
        if report["pair"].startswith(goal.pairs):
            measured = goal.reads(report)
            reached = goal.holds(measured.median) if measured and goal.holds else None
            found.append(Verdict(report["pair"], goal.text, measured, reached))
    return found


def _ratio(ours: str, theirs: str) -> Callable[[ReportData], Measured | None]:
    def read(report: ReportData) -> Measured | None:
        found = (one for one in report["ratios"] if (one["ours"], one["theirs"]) == (ours, theirs))
        return next((Measured(one["median"], one.get("low"), one.get("high")) for one in found), None)

    return read


def _over_floor(report: ReportData) -> Measured | None:
    """A target pass over the time to read its bytes once."""
    found = next((one for one in report["passes"] if one["name"] == "target" and one["floor_ms"]), None)
    if found is None:
        return None
    floor = found["floor_ms"]
    low, high = (None if (ms := found.get(name)) is None else ms / floor for name in ("low_ms", "high_ms"))
    return Measured(found["ms"] / floor, low, high)


def _draft_step_us(report: ReportData) -> Measured | None:
    """Microseconds of one of several draft steps launched together, its share of the launch included."""
    found = (one for one in report["passes"] if one["name"] == "planned draft")
    return next((Measured(1e3 * one["ms"]) for one in found), None)


def _growth(lane: str) -> Callable[[ReportData], Measured | None]:
    def read(report: ReportData) -> Measured | None:
        found = (one for one in report["growth"] if one["lane"] == lane)
        return next((Measured(one["ratio"], one["low"], one["high"]) for one in found), None)

    return read


def _loop_share(report: ReportData) -> Measured | None:
    """Percent of the time of static:5 outside forward passes: decisions and the loop's own work."""
    found = (one["shares"] for one in report["figures"] if one["name"] == "static:5" and one["shares"])
    return next((Measured(100.0 * sum(shares[2:])) for shares in found), None)


_ASSISTED = _ratio("static:5", "hf assisted 5")
_EMBEDDED = ("codepair", "smollm2-135m")
CPU_GOALS = (
    Goal(
        "autoregressive at least 2.5x generate", _EMBEDDED, lambda x: x >= 2.5, _ratio("autoregressive", "hf generate")
    ),
    Goal("static:5 at least 2.5x assisted generation, same draft", _EMBEDDED, lambda x: x >= 2.5, _ASSISTED),
    Goal("a target pass at most 2.0x the time of its bytes", _EMBEDDED, lambda x: x <= 2.0, _over_floor),
    Goal(
        "context 900 at most 1.3x context 100, autoregressive", _EMBEDDED, lambda x: x <= 1.3, _growth("autoregressive")
    ),
    Goal("context 900 at most 1.3x context 100, static:5", _EMBEDDED, lambda x: x <= 1.3, _growth("static:5")),
    Goal("the loop at most 3% of static:5's time, percent", _EMBEDDED, lambda x: x <= 3.0, _loop_share),
)
GPU_GOALS = (
    Goal("static:5 at least 8x assisted generation", ("codepair",), lambda x: x >= 8, _ASSISTED),
    Goal("static:5 at least 2x assisted generation", ("smollm2", "1B", "8B"), lambda x: x >= 2, _ASSISTED),
    Goal("a target pass at most 1.4x the time of its bytes", ("8B",), lambda x: x <= 1.4, _over_floor),
    Goal("a planned draft step under 60 microseconds", ("",), lambda x: x < 60, _draft_step_us),
    Goal("the loop's share of static:5's time, percent", ("",), None, _loop_share),
)
