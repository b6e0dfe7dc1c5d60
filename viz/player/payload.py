"""The page's data of a run: small, plain, and enough to draw and to replay it; see :func:`run_payload`.

Token ids get their texts in the browser, which also simulates lanes from the recorded chains and cost curves. Times are
whole multiples of 1e-7 s.
"""

from __future__ import annotations

from base64 import b64encode
from dataclasses import asdict
from functools import lru_cache
from io import BytesIO
from typing import Any, Literal

from decoding.analysis import metrics
from decoding.analysis.lane_figures import LaneFigure, lane_figures
from decoding.analysis.run_costs import run_costs
from decoding.analysis.seen import count_seen, seen_sentence
from decoding.analysis.steadiness import contradictions, how_timed, timings, verdict
from decoding.analysis.whatif import ending
from decoding.errors import UserError
from decoding.lookahead.base import SL_CAP
from decoding.lookahead.costaware import lines, rows_from_json
from decoding.lookahead.fitted import heads_of
from decoding.lookahead.spec import all_specs
from decoding.pictures.scenes import draw, scene_of
from decoding.records.generate import why_no_chain
from decoding.records.pairs import is_asked
from decoding.records.run_file import to_plain
from decoding.records.text import first_line, pieces
from decoding.records.trace import Costs, Run, Trace

from . import sentences
from .names import lane_heading, lane_name

TICKS_PER_SECOND = 10_000_000
SCALE = 2  # of a drawn scene
PNG = "data:image/png;base64,"
PROMPT_CHARS = 400  # length of the prompt's end that is shown before each text
READ_CHARS = 600  # of a long message, at either end, in the account of what the target read
COLUMN_FIGURES = (
    "speedup",
    "tokens_per_target_pass",
    "target_passes",
    "draft_passes",
    "thrown_away",
    "first_guess_hit_rate",
)
FACTORS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 5.0)
"""Multiples of its own threshold at which a policy that computes it is replayed."""
# What a replay needs of a fitted head, besides what follows from its ledger:
TUNED = ("threshold", "sl_max", "sure_at", "this", "next", "recent", "first", "caution")
Origin = Literal["recorded", "live", "imported"]


def _seen(run: Run, trace: Trace) -> str:
    """What the picture decides in one lane, which is named if several have a draft."""
    sentence, drafted = seen_sentence(run, trace), [one for one in run.lanes if one.draft]
    return f"{lane_name(trace.lane)}: {sentence}" if sentence and len(drafted) > 1 else sentence


def version_of(run: Run) -> str:
    """Differs between a run and the same one later, with more timings, chains or explanations of its guesses."""
    explained = any(it.holds is not None for trace in run.lanes for it in trace.iterations)
    return f"{timings(run)}/{len(run.chains)}/{int(explained)}"


def run_payload(
    run: Run, *, origin: Origin = "live", title: str = "", shows: str = "", point: str = "", details: bool = False
) -> dict[str, Any]:
    """The JSON-ready data of ``run`` for the race and for the Learn tab.

    Args:
        origin: what the badge says. title: the run's name in lists; its prompt's first line if not given.
        shows: an example's sentence on what to notice. point: the lane of the first sentence; "" for the fastest one.
        details: with everything that is recorded of each token, which the Learn tab explains step by step.
    """
    asked, doubt = is_asked(run.settings.chat, run.pair.name), sentences.doubt(run, point)
    lead, (limit, finish) = sentences.lead_lane(run, point), ending(run)
    seen = count_seen(run.lanes[lead]) if run.lanes else None
    return {
        "id": run.id,
        "title": title or first_line(run.settings.prompt) or run.id,
        "badge": {"kind": origin, "text": sentences.badge_text(run), "place": sentences.badge_place(run)},
        "look": sentences.look(run),
        "sentence": sentences.opening(run, point),
        "timings": timings(run),
        "version": version_of(run),
        "doubt": doubt,
        "shows": shows,
        "fact": sentences.check_fact(run) + doubt + sentences.notes(run),
        "picture": _picture(run),
        "seen": _seen(run, run.lanes[lead]) if run.lanes else "",
        "counts": asdict(seen) if seen else None,
        "verdict": verdict(run, lane_name),
        "lead": lead,
        "prompt": prompt_end(run.settings.prompt, asked),
        "chat": asked,
        "read": _read(run),
        "rule": run.settings.rule,
        "temperature": run.settings.temperature,
        "seed": run.settings.seed,
        "settings": settings_table(run),
        "time_table": _time_table(run),
        "lanes": [_lane(run, trace, details) for trace in run.lanes],
        "default_draft": run.pair.default_draft,
        "token_limit": limit,
        "finish": finish,
        "doubtful": bool(contradictions(run)),
        "costs": to_plain(run_costs(run)),
        "weighed": to_plain(run.costs),
        "chains": {draft: _chain(run, draft, details) for draft in run.chains},
        "no_chain": "" if run.chains else why_no_chain(run),
        "tuned": {draft: _tuned(run, draft) for draft in run.chains},
        "titles": {name: spec.title for name, spec in all_specs().items()},
        "vocab": {str(token): [known.text, known.bytes, known.special] for token, known in run.vocab.items()},
    }


def settings_table(run: Run) -> list[list[str]]:
    """How the run was made, as [what, value] rows for handouts and exported files."""
    asked = run.settings
    rows = [
        ["models", f"{run.pair.name}: {run.pair.target.name} with {', '.join(run.pair.drafts) or 'no draft'}"],
        ["machine", f"{run.machine.gpu or run.machine.processor}, {run.pair.target.dtype}, {run.created[:10]}"],
        ["rule", asked.rule + (f", temperature {asked.temperature:g}, seed {asked.seed}" if asked.temperature else "")],
        ["lanes", ", ".join(lane_name(trace.lane) for trace in run.lanes)],
        ["new tokens", f"at most {asked.max_new_tokens}"],
        ["timings", how_timed(run)],
    ]
    if asked.picture:
        rows.append(["picture", asked.picture])
    if asked.top_k:
        rows.append(["top-k", str(asked.top_k)])
    if asked.top_p < 1:
        rows.append(["top-p", f"{asked.top_p:g}"])
    return rows


def prompt_end(prompt: str, asked: bool) -> str:
    """What stands before each text: the prompt's end; after a question (``asked``) the answer begins a new line."""
    shown = prompt if len(prompt) <= PROMPT_CHARS else "…" + prompt[-PROMPT_CHARS:]
    return f"{shown}\n" if asked else shown


def _read(run: Run) -> list[list]:
    """[text, whether it is a special token] of what the target read, if that is more than the prompt; else [].

    Older runs do not hold the text of their prompt's tokens. A picture is one special token.
    """
    if run.picture:
        end = run.picture.at + run.picture.n_tokens
        before, after = (_parts(run, ids) for ids in (run.prompt_ids[: run.picture.at], run.prompt_ids[end:]))
        return [*before, [f"picture: {run.picture.n_tokens} tokens", True], *after]
    return _parts(run, run.prompt_ids)


def _parts(run: Run, ids: list[int]) -> list[list]:
    known = [run.vocab.get(token) for token in ids]
    if None in known or not any(token.special for token in known):
        return []
    parts: list[list] = []
    for text, token in zip(pieces(ids, run.vocab, special=True), known):
        if parts and not token.special and not parts[-1][1]:
            parts[-1][0] += text
        else:
            parts.append([text, token.special])
    return [[_shortened(text), special] for text, special in parts]


def _shortened(text: str) -> str:
    return text if len(text) <= 2 * READ_CHARS else f"{text[:READ_CHARS]} … {text[-READ_CHARS:]}"


# -- the picture -----------------------------------------------------------------------------------------


def _picture(run: Run) -> dict[str, Any] | None:
    """{src, alt, caption, tokens} of the picture that the target read; None without one."""
    picture = run.picture
    if picture is None:
        return None
    size = f"{picture.width} × {picture.height} pixels, {picture.n_tokens} tokens"
    caption = (
        f"The target read this picture ({size}, {picture.seconds * 1e3:.0f} ms). A draft that reads text alone did "
        "not; one that reads the target's states learns a little of it from them."
    )
    src, alt = PNG + picture.preview, "The photograph that the target read"
    if not picture.preview:
        try:
            src, alt = _scene(run.settings.picture)
        except UserError:  # a file from elsewhere may name things that are unknown here
            src, alt = "", "A scene that cannot be drawn here"
    return {"src": src, "alt": alt, "caption": caption, "tokens": picture.n_tokens}


@lru_cache(maxsize=200)
def _scene(text: str) -> tuple[str, str]:
    """A scene as a data URL of a PNG, and in words. Raises UserError."""
    scene, file = scene_of(text), BytesIO()
    draw(scene, SCALE).save(file, "PNG", optimize=True)
    things = ", ".join(f"{thing.what.color} {thing.what.kind}".strip() for thing in scene.things)
    return PNG + b64encode(file.getvalue()).decode(), f"A drawn scene, from left to right: {things}"


# -- measured lanes ------------------------------------------------------------------------------------


def _lane(run: Run, trace: Trace, details: bool) -> dict[str, Any]:
    """The lane: its iterations as a letter per token, the guesses that did not hold, and times."""
    figures = [figure for figure in lane_figures(run, trace) if figure.key in COLUMN_FIGURES]
    spread, parents = metrics.speedup(run, trace), [iteration.parents for iteration in trace.iterations]
    branches = any(parents)
    lane = {
        **lane_heading(trace.lane),
        "policy": trace.policy,
        "draft": trace.draft,
        "ends": trace.finish == "eos",
        "note": sentences.best_static_note(run, trace),
        "speedup": asdict(spread) if spread else None,  # None without an autoregressive lane
        "figures": [_figure(run, trace, figure) for figure in figures],
        "threshold": _threshold(trace),
        "output": trace.output,
        "starts": [iteration.start for iteration in trace.iterations],
        "fates": ["".join(token.fate[0] for token in iteration.all_tokens) for iteration in trace.iterations],
        "wrong": [[token.id for token in it.drafted if token.fate != "accepted"] for it in trace.iterations],
        "parents": parents if branches else None,  # the guess that each guess follows, by iteration
        "reads": [iteration.reads for iteration in trace.iterations] if branches else None,
        "times": _ticks(run, trace),
    }
    if details:
        lane["details"] = [{"stop": it.stop, "tokens": list(map(asdict, it.all_tokens))} for it in trace.iterations]
    return lane


def _figure(run: Run, trace: Trace, figure: LaneFigure) -> dict[str, str]:
    """A speedup is labelled as the median over the repeats: the bars of the strip are those of a single repeat."""
    shown = {name: getattr(figure, name) for name in ("key", "label", "text", "formula")}
    if figure.key == "speedup" and len(trace.repeats) > 1:
        shown["text"] = f"median {shown['text']}"
        replayed = metrics.replayed_speedup(run, trace)
        shown["formula"] += f"; the bars show one of {len(trace.repeats)} repeats: {sentences.times(replayed or 0.0)}"
    return shown


def _threshold(trace: Trace) -> dict[str, Any] | None:
    """For a policy that compares a score with a threshold: at which thresholds the page replays it.

    ``fixed``: ``values`` are thresholds, and the lane ran with ``as_run``; otherwise the policy computes its threshold,
    and they are multiples of it. ``longest``: the lane's cap on guesses per iteration if it reached that.
    """
    spec = all_specs().get(trace.policy)
    if spec is None or spec.score is None:
        return None
    drafted = (token for iteration in trace.iterations for token in iteration.drafted)
    as_run = next((round(token.threshold, 4) for token in drafted if token.threshold is not None), None)
    sweep = spec.argument.sweep if spec.score.fixed and spec.argument else ()
    capped = [iteration.n_drafted for iteration in trace.iterations if iteration.stop == "cap"]
    return {
        "explanation": spec.score.explanation,
        "fixed": spec.score.fixed,
        "values": sorted({*sweep, *([] if as_run is None else [as_run])}) if spec.score.fixed else list(FACTORS),
        "as_run": as_run if spec.score.fixed else 1.0,
        "longest": max(capped, default=SL_CAP),
    }


def _ticks(run: Run, trace: Trace) -> list[int]:
    """draft, check, policy, rest of each iteration of the replayed repeat, flat."""
    index = metrics.replayed_repeat(run)
    if index is None or index >= len(trace.repeats):
        return [0] * (4 * len(trace.iterations))
    repeat = trace.repeats[index]
    rows = zip(repeat.draft_s, repeat.verify_s, repeat.policy_s, repeat.rest_s)
    return [round(seconds * TICKS_PER_SECOND) for row in rows for seconds in row]


# -- for replays ---------------------------------------------------------------------------------------


def _chain(run: Run, draft: str, details: bool) -> dict[str, Any]:
    """The recorded guesses; without ``details`` only with the scores by which the run's own lanes decided."""
    chain, deciding = asdict(run.chains[draft]), {trace.policy for trace in run.lanes}
    if not details:
        for guesses in (chain["along"], *chain["tails"].values(), *chain["starts"]):
            guesses["scores"] = {name: scores for name, scores in guesses["scores"].items() if name in deciding}
    return chain


def _tuned(run: Run, draft: str) -> dict[str, dict[str, Any]]:
    """The fitted parameters of each learned policy whose scores the chain contains; {} if its files are missing."""
    scored = run.chains[draft].along.scores
    try:
        heads = heads_of(run, draft) if scored else {}
    except UserError:
        return {}
    return {name: tuned(name, head.tuned, run.costs, draft) for name, head in heads.items() if name in scored}


def tuned(name: str, fitted: dict[str, Any], costs: Costs, draft: str) -> dict[str, Any]:
    """What the page needs to replay a learned policy: its parameters, and what it derives from the curves it weighs."""
    needed = {key: fitted[key] for key in TUNED if key in fitted}
    if name == "costaware":
        return needed | {"lines": lines(rows_from_json(fitted["ledger"]), costs, draft)}
    return needed


# -- the table of times --------------------------------------------------------------------------------


def _time_table(run: Run) -> dict[str, Any]:
    """Each lane's time by phase, including prefill, and the remaining figures."""
    columns = ["lane", "prefill", "decode", "end to end", "guessing", "checking", "policy", "rest", "other figures"]
    rows = []
    for trace in run.lanes:
        parts = metrics.where_time_goes(run, trace)
        if not parts:
            continue
        prefill = parts.pop("prefill")
        decode = sum(parts.values())
        shares = [f"{_ms(x)} ({x / decode:.0%})" if decode else _ms(x) for x in parts.values()]
        others = [_figure(run, trace, f) for f in lane_figures(run, trace) if f.key not in COLUMN_FIGURES]
        rows.append([lane_name(trace.lane), _ms(prefill), _ms(decode), _ms(prefill + decode), *shares, others])
    return {
        "title": "Time in detail, including prefill",
        "columns": columns,
        "rows": rows,
        "note": "The times of the repeat that is replayed, the same one for all lanes; speedups and the time per "
        "token are medians over all repeats. Strips and speedups count only decoding; the prefill of target and draft "
        "comes before it. The oracle's pre-pass is not part of any lane's time.",
    }


def _ms(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.1f} ms"
