"""Exports a run as one self-contained HTML file with the same player, without a server or network."""

from __future__ import annotations

from typing import Any

from decoding.records.trace import Run

from ..core.assets import player_css, player_js
from ..core.document import document
from .details import token_details
from .payload import Origin, run_payload

MAX_DETAILED_TOKENS = 6000  # above it the file leaves out the tokens' alternatives


def export_html(run: Run, *, origin: Origin = "recorded") -> str:
    """The page."""
    payload = run_payload(run, origin=origin)
    return document(
        title=f"Speculoscope: {payload['sentence']}",
        css=player_css(),
        js=player_js(),
        body='<div id="player"></div>\n<section id="appendix" class="speculoscope speculoscope-appendix"></section>',
        data={"payload": payload, "details": _all_details(run)},
        start=_START,
    )


def _all_details(run: Run) -> list[list[list[dict[str, Any]]]]:
    """token_details of every token, by lane, iteration and index."""
    counts = [[it.n_drafted + (it.emitted is not None) for it in trace.iterations] for trace in run.lanes]
    everything = [
        [[token_details(run, lane, i, index) for index in range(n)] for i, n in enumerate(per_iteration)]
        for lane, per_iteration in enumerate(counts)
    ]
    if sum(map(sum, counts)) > MAX_DETAILED_TOKENS:
        for details in (one for lane in everything for iteration in lane for one in iteration):
            details["draft_top"] = details["target_top"] = []
    return everything


_START = """\
  const details = read("details");
  const player = Speculoscope.mount(document.getElementById("player"), {
    globalKeys: true,
    details: async (lane, iteration, index) => details[lane][iteration][index],
  });
  const payload = read("payload");
  player.load(payload);
  Speculoscope.appendix(document.getElementById("appendix"), payload);
  window.player = player;"""
