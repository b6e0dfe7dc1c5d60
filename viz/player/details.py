"""The explanation of one token's fate under the run's rule; fetched on request."""

from __future__ import annotations

from typing import Any

from decoding.analysis.seen import decides, log_probability
from decoding.errors import UserError
from decoding.records.proposal import parents_in, path_to
from decoding.records.text import pieces
from decoding.records.trace import Iteration, Run, Token, Trace

from .names import lane_name

_STOPPED = {
    "policy": "then checked",
    "cap": "then checked: this is the limit for one iteration",
    "limit": "then checked: no more tokens were wanted",
    "context": "then checked: the context was full",
    "eos": "then checked: the draft had ended its text",
    "exhausted": "then checked: the draft had nothing more to propose",
}


def token_details(run: Run, lane: int, iteration: int, index: int) -> dict[str, Any]:
    """The pop-up of one token.

    Args:
        lane, iteration: their indices in the run.
        index: the token's position in its iteration: drafted tokens first, then the target's own one.

    Returns:
        {text, fate, where, why, policy, rows: [[label, value]], draft_top, target_top: [[text, probability]],
        picture: {text, rows: [[label, log-probability, share of a bar]]} or None}

    Raises:
        UserError: there is no such token.
    """
    trace, it, token = _find(run, lane, iteration, index)
    drafted = index < it.n_drafted
    return {
        "text": _text(run, token.id),
        "fate": token.fate,
        "where": _where(trace, it, iteration, index),
        "why": _why(run, it, index, token),
        "policy": _policy(it, index, token) if drafted else "",
        "rows": _rows(run, token),
        "picture": _by_picture(trace, it, index),
        "draft_top": _alternatives(run, token.draft_top),
        "target_top": _alternatives(run, token.target_top),
    }


def _find(run: Run, lane: int, iteration: int, index: int) -> tuple[Trace, Iteration, Token]:
    if min(lane, iteration, index) >= 0 and lane < len(run.lanes) and iteration < len(run.lanes[lane].iterations):
        trace = run.lanes[lane]
        it = trace.iterations[iteration]
        if index < len(it.all_tokens):
            return trace, it, it.all_tokens[index]
    raise UserError("This run has no such token.")


def _where(trace: Trace, it: Iteration, iteration: int, index: int) -> str:
    drafted = index < it.n_drafted
    place = f"guess {index + 1} of {it.n_drafted}" if drafted else "the target's own token"
    position = it.start + (len(_above(it, index)) if drafted else it.n_accepted)
    in_a_row = "once" if it.holds == 1 else f"{it.holds} times in a row"
    holds = "" if it.holds is None else f" · from its start the draft would guess right {in_a_row}"
    return f"{lane_name(trace.lane)} · output position {position} · iteration {iteration + 1}, {place}{holds}"


def _above(it: Iteration, index: int) -> list[int]:
    """The guesses that the guess ``index`` follows."""
    return path_to(parents_in(it.parents, it.n_drafted), index)[:-1]


def _why(run: Run, it: Iteration, index: int, token: Token) -> str:
    if token.fate == "plain":
        return "Nothing was guessed in this iteration: the target produced this token alone."
    if token.fate == "bonus":
        held = "The guess held" if it.n_drafted == 1 else f"All {it.n_drafted} guesses held"
        if it.parents is not None:
            held = "No guess followed the last one that held"
        return f"{held}, so the same pass also gave the next token."
    if token.fate == "correction":
        return f"The target's own token here. It replaces {_rejected_here(run, it)}."
    if token.fate == "dropped":
        rejected = next((it.drafted[one] for one in _above(it, index) if it.drafted[one].fate == "rejected"), None)
        after = f" the rejected {_quoted(run, rejected.id)}" if rejected else " the end of the text"
        return f"Guessed after{after}: its check does not count."
    return _check(run, token)


def _rejected_here(run: Run, it: Iteration) -> str:
    """The rejected guesses for the place of the target's own token."""
    parents = parents_in(it.parents, it.n_drafted)
    refused = [guess for guess, parent in zip(it.drafted, parents) if parent == it.n_accepted - 1]
    return f"the rejected {_quoted(run, refused[0].id)}" if len(refused) == 1 else f"{len(refused)} rejected guesses"


def _check(run: Run, token: Token) -> str:
    """The check under the run's acceptance rule."""
    if run.settings.rule == "sampling" and token.accept_probability is not None:
        outcome = "below it: accepted" if token.fate == "accepted" else "not below it: rejected"
        drawn = "" if token.draw is None else f"; the draw {token.draw:.3f} is {outcome}"
        return f"Kept with probability min(1, p/q) = {token.accept_probability:.3f}{drawn}."
    own, theirs = _quoted(run, token.draft_choice), _quoted(run, token.target_choice)
    noise = " with the same noise" if run.settings.rule == "coupling" else ""
    if token.fate == "accepted":
        return f"Both models' first choice here{noise} is {theirs or _quoted(run, token.id)}."
    if theirs and own == theirs:  # in a tree, another guess for the place
        return f"Both models' first choice here{noise} is {theirs}, which is another guess of the tree."
    if not own or not theirs:
        return "The target's choice here is another token."
    return f"The draft's first choice{noise} is {own}, the target's is {theirs}."


def _policy(it: Iteration, index: int, token: Token) -> str:
    """The policy's decision after this guess."""
    last = index == it.n_drafted - 1 and it.parents is None  # a tree lists its accepted guesses first
    outcome = _STOPPED[it.stop] if last else "kept guessing"
    if token.score is None:
        return f"Policy: {outcome}." if last else ""
    if token.threshold is None:
        return f"Policy: score {token.score:.3f}: {outcome}."
    return f"Policy: score {token.score:.3f} against the threshold {token.threshold:.3f}: {outcome}."


def _rows(run: Run, token: Token) -> list[list[str]]:
    sampling = run.settings.rule == "sampling"
    p_name = "p, by the target" if sampling else "probability, target"
    q_name = "q, by the draft" if sampling else "probability, draft"
    rows = [[q_name, token.p_draft], [p_name, token.p_target]]
    if sampling and token.p_draft and token.p_target is not None:
        rows.append(["ratio p/q", token.p_target / token.p_draft])
    rows += [["kept with probability", token.accept_probability], ["draw", token.draw]] if sampling else []
    rows.append(["entropy of the draft's choice, nats", token.entropy])
    shown = [[label, f"{value:.3f}"] for label, value in rows if value is not None]
    if run.settings.rule == "coupling":
        shown.append(["shared noise", f"seed {run.settings.seed}, one draw per output position"])
    return shown


def _by_picture(trace: Trace, it: Iteration, index: int) -> dict[str, Any] | None:
    """What the picture did for the text's token at the place of this one; None without a picture."""
    first_wrong = it.parents is None and index == it.n_accepted
    tokens, at = it.tokens, min(index, it.n_accepted)
    at_its_place = index < it.n_accepted or index >= it.n_drafted or first_wrong
    if not trace.p_grey or not at_its_place or at == len(tokens):
        return None
    grey = trace.p_grey[it.start + at]
    p = grey if tokens[at].p_target is None else tokens[at].p_target
    text = "The picture decided this" if decides(p, grey) else "The picture did not decide this"
    rows = [["with the picture", log_probability(p)], ["with a grey one", log_probability(grey)]]
    return {
        "text": f"{text}: the target's token has probability {p:.3f} with the picture, {grey:.3f} with a grey one.",
        "rows": [[label, round(value, 2), round(1 - value / log_probability(0), 3)] for label, value in rows],
    }


def _alternatives(run: Run, top: list[tuple[int, float]]) -> list[list[Any]]:
    return [[_text(run, token), round(p, 4)] for token, p in top[:5]]


def _quoted(run: Run, token: int | None) -> str:
    """The token in quotes with visible spaces, since most tokens begin with one."""
    if token is None:
        return ""
    text = _text(run, token).replace("\n", "↵").replace("\t", "⇥").replace(" ", "·")
    return f"“{text}”"


def _text(run: Run, token: int) -> str:
    entry, text = run.vocab.get(token), pieces([token], run.vocab, special=True)[0]
    return f"bytes {entry.bytes}" if entry and entry.bytes is not None and "\ufffd" in text else text
