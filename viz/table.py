"""A run as a table: one row per token of every lane, for spreadsheets and data frames."""

from __future__ import annotations

import csv
import io
import json

from decoding.records.trace import Run

OF_TOKEN = (
    "fate",
    "p_draft",
    "p_target",
    "entropy",
    "score",
    "threshold",
    "accept_probability",
    "draw",
    "draft_choice",
    "target_choice",
)
COLUMNS = ("lane", "iteration", "index", "position", "id", "text", *OF_TOKEN, "sl", "accepted", "holds")


def run_csv(run: Run) -> str:
    """CSV of ``run`` with a header row.

    Texts are JSON strings, so that white space is visible and no cell starts a formula. ``index`` counts an iteration's
    tokens, the emitted one last; ``position`` is the position in the text (for a token that was not accepted: the
    position it was drafted for).
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for trace in run.lanes:
        for number, iteration in enumerate(trace.iterations):
            for index, token in enumerate([*iteration.drafted, *([iteration.emitted] if iteration.emitted else [])]):
                place = iteration.n_accepted if index == iteration.n_drafted else index
                known = run.vocab.get(token.id)
                where = (_safe(trace.lane), number, index, iteration.start + place)
                what = (token.id, json.dumps(known.text if known else ""), *(getattr(token, name) for name in OF_TOKEN))
                writer.writerow([*where, *what, iteration.n_drafted, iteration.n_accepted, iteration.holds])
    return out.getvalue()


def _safe(text: str) -> str:
    """A cell that no spreadsheet reads as a formula (a lane's name in an opened file may be anything)."""
    return f"'{text}" if text[:1] in "=+-@\t\r" else text
