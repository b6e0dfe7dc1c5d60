"""Losses over a reduced head, and the figures on held-out answers."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from decoding.errors import UserError
from training.losses import Known, draft_q, forward_kl, loss_over_head, sharp, variation
from training.measure import difference, passes_of, rates_of

TOP, HEAD, N = 8, 24, 12


def known_of(p: torch.Tensor, inside: torch.Tensor | None = None) -> Known:
    """The TOP most probable tokens of p (n, HEAD), all positions with equal weight."""
    logp, places = p.log().topk(TOP)
    there = torch.ones_like(places, dtype=torch.bool) if inside is None else inside
    return Known(places.masked_fill(~there, 0), there, logp, torch.full((len(p),), 1 / len(p)))


@pytest.fixture
def logits() -> torch.Tensor:
    return torch.randn(N, HEAD, generator=torch.Generator().manual_seed(0)) * 2


def test_a_draft_that_equals_its_target_has_nothing_to_learn(logits):
    logits.requires_grad_()
    loss = sharp(logits, known_of(logits.detach().softmax(-1)))
    (slope,) = torch.autograd.grad(loss, logits)
    assert float(loss.detach()) == pytest.approx(0, abs=1e-3)
    assert float(slope.abs().max()) < 1e-3


def test_steps_down_the_loss_bring_the_draft_nearer_in_total_variation(logits):
    torch.manual_seed(1)
    known = known_of((torch.randn(N, HEAD) * 2).softmax(-1))
    draft = logits.clone().requires_grad_()
    before = known.mean(variation(draft, known)).item()
    for _ in range(300):
        (slope,) = torch.autograd.grad(sharp(draft, known), draft)
        draft = (draft - 0.5 * slope).detach().requires_grad_()
    assert known.mean(variation(draft, known)).item() < 0.97 * before


def test_kl_is_the_one_of_the_known_classes(logits):
    p = (torch.randn(N, HEAD, generator=torch.Generator().manual_seed(2)) * 2).softmax(-1)
    known = known_of(p)
    q = logits.softmax(-1).gather(-1, known.places)
    ours, theirs = known.logp.exp(), q
    rest_p, rest_q = 1 - ours.sum(-1), 1 - theirs.sum(-1)
    expected = (ours * (ours / theirs).log()).sum(-1) + rest_p * (rest_p / rest_q).log()
    assert forward_kl(logits, known).item() == pytest.approx(expected.mean().item(), abs=1e-4)


def test_what_the_head_cannot_propose_is_not_spread_over_the_rest(logits):
    inside = torch.ones(N, TOP, dtype=torch.bool)
    inside[:, 0] = False  # the target's best token is not in the head
    known = known_of(logits.softmax(-1), inside)
    assert (draft_q(logits, known)[:, 0] == 0).all()
    assert (known.p[:, 0] == 0).all()
    assert float(known.p.sum(-1).max()) < 1


def test_the_loss_in_parts_is_the_loss_of_the_whole():
    torch.manual_seed(3)
    hidden, head = torch.randn(N, 16), torch.randn(HEAD, 16)
    known = known_of((torch.randn(N, HEAD)).softmax(-1))
    one, other = hidden.clone().requires_grad_(), hidden.clone().requires_grad_()
    whole = sharp(one @ head.T, known)
    parts = loss_over_head(other, head, known, rows=5)
    whole.backward()
    (2 * parts).backward()
    assert parts.item() == pytest.approx(whole.item(), rel=1e-4)
    torch.testing.assert_close(other.grad, 2 * one.grad, atol=1e-5, rtol=1e-3)


def from_any_start(hits: list[bool], steps: int) -> np.ndarray:
    """Of a draft whose guesses do not depend on where the iteration began, as (steps, n)."""
    return np.broadcast_to(hits, (steps, len(hits)))


@given(st.lists(st.booleans(), min_size=1, max_size=60), st.integers(1, 8))
def test_a_pass_brings_at_least_one_token_and_at_most_sl_and_one(hits, speculation_length):
    passes = passes_of(from_any_start(hits, speculation_length))
    assert 1 <= len(hits) / passes <= speculation_length + 1


def test_passes_by_hand():
    yes, no = True, False
    assert passes_of(from_any_start([yes, yes, yes, no, no, yes], 3)) == 3  # 3 guesses; then none
    assert passes_of(from_any_start([no, no], 3)) == 2


def test_intervals_hold_their_rate_and_pairs_share_their_draws():
    random = np.random.default_rng(0)
    rows = [random.random(50) < rate for rate in random.random(40)]
    found = rates_of(rows)
    assert found["low"] < found["rate"] < found["high"]
    assert found["high"] - found["low"] > 0.1  # texts differ: tokens alone would give 0.04
    assert difference(rows, rows) == {"rate": 0, "low": 0, "high": 0}
    with pytest.raises(UserError, match="too few held-out texts"):
        rates_of([])
