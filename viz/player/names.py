"""What a lane is called on the page, and its caption in one line."""

from __future__ import annotations

from typing import Any

from decoding.records.lanes import Lane, parse_lane

from .looks import lane_look

_TITLES = {
    "autoregressive": "Plain",
    "static": "Static",
    "heuristic": "Heuristic",
    "confidence": "Confidence",
    "entropy": "Entropy",
    "oracle": "Oracle",
    "disco": "DISCO",
    "specdecpp": "SpecDec++",
    "costaware": "Cost-aware",
}
_CAPTIONS = {
    "autoregressive": "the big model alone, one token per pass",
    "heuristic": "two guesses more after a round in which all held, one fewer otherwise",
    "entropy": "guesses on while the small model's own choice is clear (low entropy)",
    "disco": "after each guess a classifier decides: guess on or check",
    "specdecpp": "guesses on while the chance that some guess has failed stays under a threshold",
    "costaware": "guesses on while one more guess gains more time than it costs",
}


def lane_name(text: str) -> str:
    """``wide-1x384/static:5`` -> ``Static 5 · wide-1x384``."""
    lane = parse_lane(text)
    title = _TITLES[lane.policy] + (f" {lane.argument}" if lane.argument else "")
    return f"{title} · {lane.draft}" if lane.draft else title


def lane_caption(text: str) -> str:
    """What the lane's rule does, for someone who sees it for the first time."""
    lane = parse_lane(text)
    caption = _rule_caption(lane)
    return f"{caption}; no small model, it copies from the text so far" if lane.draft == "ngram" else caption


def _rule_caption(lane: Lane) -> str:
    if lane.policy == "static":
        return f"always guesses {lane.argument}, then checks"
    if lane.policy == "confidence":
        return f"guesses on while the small model is at least {lane.argument or '0.4'} sure of its guess"
    if lane.policy == "oracle":
        return _oracle_caption(lane)
    return _CAPTIONS[lane.policy]


def _oracle_caption(lane: Lane) -> str:
    if lane.argument == "best":
        return "told beforehand where guesses fail and what everything costs; the true floor, not usable"
    capped = f", at most {lane.argument} guesses" if lane.argument else ""
    return f"told beforehand where guesses fail{capped}; a ceiling, not usable"


_RUNNING = {
    "tokens_per_target_pass": ("tokens per target pass", "tokens so far / target passes so far"),
    "target_passes": ("target passes", "passes of the big model so far, one per round"),
    "draft_passes": ("draft passes", "guesses of the small model so far"),
    "thrown_away": ("thrown away", "rejected and dropped guesses so far"),
}


def lane_heading(text: str) -> dict[str, Any]:
    """A lane as the player's "started" event wants it: nothing has been decoded yet, only counts can run."""
    lane = parse_lane(text)
    keys = ("target_passes",) if lane.is_plain else tuple(_RUNNING)
    figures = [{"key": key, "label": _RUNNING[key][0], "text": "…", "formula": _RUNNING[key][1]} for key in keys]
    return {
        "lane": text,
        "policy": lane.policy,
        "name": lane_name(text),
        "caption": lane_caption(text),
        "look": lane_look(text)._asdict(),
        "figures": figures,
    }
