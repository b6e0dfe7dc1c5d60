"""The learned policies: their decisions, which are the same live and in what-if."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from decoding.comparison.annotate import Annotator
from decoding.comparison.chain import chain_of
from decoding.comparison.lane_run import LaneRun
from decoding.comparison.prepare import prepare
from decoding.lookahead.base import SL_CAP, SL_CAP_LEARNED, DraftState, LaneContext, LookaheadPolicy
from decoding.lookahead.costaware import CostAware, least_latency, marginals, rows_from_json, thresholds
from decoding.lookahead.disco import Disco, as_logs, sure_at
from decoding.lookahead.fitted import make_policy
from decoding.lookahead.heads import HIGHEST, LOWEST, log_odds
from decoding.lookahead.lanes import parse_lane
from decoding.lookahead.ngrams import N_LEVELS
from decoding.lookahead.repetition import LONGEST, Repetition, evidence_along
from decoding.lookahead.specdecpp import SpecDecPlusPlus, hinged
from decoding.records.request import CompareRequest
from decoding.records.trace import Costs

from .learned_heads import FLAT_FROM, LEDGER, TUNED, make_head, make_heads, make_weights
from .runs import make_costs
from .toy import ToyPair

COSTS = make_costs(0.1, 0.02, drafts=["small"])
ROWS = rows_from_json(LEDGER)


def started(policy: LookaheadPolicy, costs: Costs = COSTS) -> LookaheadPolicy:
    policy.reset(LaneContext("small", costs, 100))
    return policy


def known(scores: list[float]) -> DraftState:
    """A state of tokens whose acceptance probabilities are known without running the head."""
    return DraftState(tokens=list(range(len(scores))), p=[0.5] * len(scores), known=scores)


# -- the decisions


def test_disco_drafts_while_the_classifier_reaches_the_threshold():
    policy = started(Disco(0.6, make_head("disco")))
    assert policy.cap == TUNED["disco"]["sl_max"]
    assert policy.should_draft(known([]))  # nothing to classify yet
    assert policy.should_draft(known([0.6]))
    assert not policy.should_draft(known([0.6, 0.59]))
    assert (policy.score, policy.threshold) == (0.59, 0.6)
    assert policy.should_draft(known([0.1, 0.9]))  # only the last token counts


def test_specdecpp_scores_only_tokens_that_have_been_an_input():
    policy = started(SpecDecPlusPlus(0.5, make_head("specdecpp")))
    assert policy.should_draft(known([]))
    assert policy.should_draft(known([0.0]))  # Y_1 was not an input yet, and the SL is at least two
    assert policy.score is None
    assert policy.should_draft(known([0.8, 0.0]))  # 1 - 0.8, whatever the last token's score
    assert policy.score == pytest.approx(0.2)
    assert policy.should_draft(known([0.8, 0.7, 0.0]))
    assert policy.score == pytest.approx(1 - 0.8 * 0.7)
    assert not policy.should_draft(known([0.8, 0.7, 0.8, 1.0]))
    policy.should_draft(known([]))
    assert policy.should_draft(known([0.9, 1.0]))
    assert policy.score == pytest.approx(0.1), "a new iteration starts with a product of 1"


@pytest.mark.parametrize(
    ("lane", "threshold"),
    [("specdecpp", 0.5), ("specdecpp:auto", 0.5), ("specdecpp:0.8", 0.8), ("disco", 0.5), ("disco:0.7", 0.7)],
)
def test_a_lane_without_a_number_has_the_fitted_one(lane, threshold):
    policy = started(make_policy(parse_lane(lane), make_heads()))
    policy.should_draft(known([0.9, 0.9]))
    assert policy.threshold == threshold


def test_costaware_weighs_the_next_token_against_its_cost():
    policy = started(CostAware(1.0, make_head("costaware")))
    limit = thresholds(ROWS, COSTS, "small")[0]
    assert policy.should_draft(known([])) == (limit < 0.8)
    assert (policy.score, policy.threshold) == (0.8, limit)
    policy.should_draft(known([0.9]))
    this, following = TUNED["costaware"]["this"], TUNED["costaware"]["next"]
    rates = [TUNED["costaware"]["recent"]]
    rates += [rates[0] + 0.1 * (1 - rates[0])]
    rates += [rates[1] + 0.1 * (1 - rates[1])]
    first = likely(this, 0.9, rates[0])
    assert policy.score == pytest.approx(first * likely(following, 0.9, rates[1]))
    policy.should_draft(known([0.9, 0.5]))
    assert policy.score == pytest.approx(first * likely(this, 0.5, rates[1]) * likely(following, 0.5, rates[2]))
    policy.observe(2, 1)
    policy.should_draft(known([]))
    assert policy.score == 0.7
    policy.should_draft(known([0.9]))
    recent = 0.9 * rates[1]  # one guess held, one did not
    assert policy.score == pytest.approx(
        likely(this, 0.9, recent) * likely(following, 0.9, recent + 0.1 * (1 - recent))
    )
    policy.observe(1, 1)
    policy.should_draft(known([]))
    assert policy._recent == policy._assumed == pytest.approx(recent + 0.1 * (1 - recent)), "none has failed"


def test_disco_trusts_a_token_by_the_next_threshold_that_validation_knows():
    tuned = {"sure_at": [[0.3, 0.8], [0.6, 0.9]]}
    assert [sure_at(tuned, threshold) for threshold in (0.2, 0.3, 0.5, 0.7)] == [0.8, 0.8, 0.9, np.inf]


def likely(coefficients, h, recent):
    alpha, beta, gamma = coefficients
    return 1 / (1 + np.exp(-(alpha + beta * np.log(h / (1 - h)) + gamma * recent)))


@pytest.mark.parametrize("p, lead", [(0.0, LOWEST), (1e-9, LOWEST), (0.5, 0.0), (0.9, np.log(9)), (1.0, HIGHEST)])
def test_log_odds_stay_within_the_table(p, lead):
    assert log_odds(p) == pytest.approx(lead)


@pytest.mark.parametrize("c", [0.05, 0.1])
def test_the_time_of_a_token_is_the_least_of_the_ledger(c):
    here = replace(COSTS, draft_step={"small": c})
    lam = least_latency(ROWS, here, "small")
    assert lam == min(row.latency(here, "small", "costaware") for row in ROWS)
    assert thresholds(ROWS, here, "small") == pytest.approx([(c + 0.02) / lam] * (SL_CAP_LEARNED + 1))


@given(st.lists(st.floats(0, 0.3), min_size=SL_CAP, max_size=SL_CAP))
@example([0.03, 0.0, 0.0, 0.0, *[0.08] * (SL_CAP - 4)])  # some processors check a few tokens as fast as one
def test_another_token_costs_the_rise_of_the_check_made_non_decreasing(rises):
    v = np.cumsum([1.0, *rises]).tolist()
    found = marginals(replace(COSTS, verify_curve=v), "small")
    assert found == sorted(found) and min(found) >= 0.1 - 1e-9 and len(found) == SL_CAP_LEARNED + 1
    assert sum(found[1:SL_CAP]) == pytest.approx(0.1 * (SL_CAP - 1) + v[-1] - v[1])
    if rises[1:] == sorted(rises[1:]):
        assert found[1:SL_CAP] == pytest.approx([0.1 + rise for rise in rises[1:]])


def test_costaware_can_be_asked_past_every_cap():
    """As an evaluation asks it, to simulate a policy that never stops too soon."""
    policy = started(CostAware(1.0, make_head("costaware")))
    for n in range(2 * SL_CAP_LEARNED):
        policy.should_draft(known([0.99] * n))
        assert 0.0 < policy.threshold <= 1.0


def test_caution_raises_the_line():
    lines = []
    for caution in (1.0, 1.2):
        policy = started(CostAware(caution, make_head("costaware")))
        policy.should_draft(known([0.9]))
        lines.append(policy.threshold)
    assert lines[1] == pytest.approx(1.2 * lines[0])


def test_costaware_never_drafts_where_plain_decoding_is_cheaper():
    hopeless = replace(COSTS, first_step={"small": 9.0})
    assert least_latency(ROWS, hopeless, "small") > hopeless.iteration(0, None)
    policy = started(CostAware(1.0, make_head("costaware")), hopeless)
    assert set(thresholds(ROWS, hopeless, "small")) == {1.0} and not policy.should_draft(known([]))


def test_a_costly_start_is_no_reason_to_check_at_once():
    """The cost of v(2) over v(1) and of the first draft step counts for the iteration, not for the first token."""
    steep = replace(COSTS, verify_curve=[1.0, *(v + 0.2 for v in COSTS.verify_curve[1:])], first_step={"small": 0.1})
    policy = started(CostAware(1.0, make_head("costaware")), steep)
    m = steep.verify(2) - steep.verify(1) + steep.draft_step["small"] + steep.first_step["small"]
    assert 0.8 * least_latency(ROWS, steep, "small") < m and policy.should_draft(known([]))


def test_disco_asks_for_nothing_more_where_p_is_sure():
    policy = started(Disco(0.4, make_head("disco")))
    state = DraftState(tokens=[], p=[])
    policy.should_draft(state)
    assert state.sure == 0.6
    state.tokens, state.p = [5], [0.7]
    assert policy.should_draft(state) and policy.score is None and policy.threshold == 0.4


@pytest.mark.parametrize("seed", [0, 2, 3])
def test_costaware_looks_at_the_leads_only_outside_of_long_repetitions(seed):
    head = make_head("costaware", seed)
    levels = [0] * N_LEVELS if head.ngrams else []

    def logit(evidence: int, lead: float) -> float:
        return head.logit(evidence, [lead] * len(head.features), levels)

    assert all(head.needs_lead(code) for code in (0, FLAT_FROM - 1, LONGEST + 1))
    assert not any(head.needs_lead(code) for code in (FLAT_FROM, LONGEST))
    assert logit(FLAT_FROM, 0.1) == logit(FLAT_FROM, 5.0)
    assert logit(FLAT_FROM - 1, 0.1) != logit(FLAT_FROM - 1, 5.0)
    if head.ngrams:
        alone = make_weights("costaware", seed)["alone"].tolist()
        assert [logit(run, 0.0) for run in range(FLAT_FROM, LONGEST + 1)] == alone


def test_leads_beyond_the_table_read_its_ends():
    head = make_head("costaware")
    assert head.logit(0, [math.inf]) == head.logit(0, [HIGHEST])
    assert head.logit(0, [-math.inf]) == head.logit(0, [LOWEST])


# -- evidence of repetition

tokens = st.lists(st.integers(0, 3), max_size=60)


@given(tokens, tokens, tokens)
def test_what_was_pushed_can_be_taken_back(text, wrong, rest):
    tried, plain = Repetition(), Repetition()
    tried.follow(text)
    for token in wrong:
        tried.push(token)
    tried.rewind(len(text))
    tried.follow(text + rest)
    plain.follow(text + rest)
    assert [tried.evidence(token) for token in range(4)] == [plain.evidence(token) for token in range(4)]
    assert list(tried.end) == list(plain.end)


def test_evidence_counts_how_long_the_text_repeats():
    repetition = Repetition()
    repetition.follow([1, 2, 3, 4, 1, 2])
    assert repetition.evidence(3) == 2  # the two tokens that were found again
    assert repetition.evidence(9) == LONGEST + 2
    repetition.push(3)
    assert repetition.evidence(4) == 3
    repetition.push(7)
    assert repetition.evidence(4) == 0, "nothing like (3, 7) came before"
    assert evidence_along([1, 2, 3, 4, 1, 2], [3, 7], [3, None]) == [2, 0]


# -- heads, token by token and over a chain


@given(st.integers(0, 1000), st.booleans())
def test_heads_score_a_chain_by_their_formulas(seed, plain):
    rng = np.random.default_rng(seed)
    n = 12
    top10 = np.sort(rng.dirichlet(np.ones(12), n)[:, :10])[:, ::-1].astype(np.float32)
    before, guesses = rng.integers(0, 4, 9).tolist(), rng.integers(0, 4, n).tolist()
    state = DraftState(
        tokens=guesses,
        start=3,
        text=before,
        p=top10[:, 0].tolist(),
        entropy=rng.random(n).tolist(),
        top10=list(top10),
        margin=rng.normal(2, 6, n).tolist(),
        hidden=list(rng.normal(size=(n, 4)).astype(np.float32) * 5),
    )
    disco, specdecpp = make_head("disco", seed, plain=plain), make_head("specdecpp", seed, plain=plain)
    weights = make_weights("disco", seed)
    probabilities = top10 if plain else as_logs(top10)
    inputs = np.column_stack([probabilities, state.entropy, np.log1p(range(3, 3 + n)), np.ones(n)])
    logits = np.maximum(inputs @ weights["first"].T, 0.0) @ weights["second"][:-1] + weights["second"][-1]
    np.testing.assert_allclose(disco.score_chain(state), 1.0 / (1.0 + np.exp(-logits)), rtol=1e-3, atol=1e-5)
    weights, x = make_weights("specdecpp", seed), np.stack(state.hidden) / 3.0
    for _ in range(2):
        z = x @ weights["block"].T + weights["bias"]
        x = x + z * 0.5 * (1.0 + np.tanh(z / 2))  # SiLU
    logits = x @ weights["out"][:-1] + weights["out"][-1]
    if not plain:
        logits = logits + hinged(specdecpp.feature, getattr(state, specdecpp.feature)) @ weights["lead"]
    np.testing.assert_allclose(specdecpp.score_chain(state), 1.0 / (1.0 + np.exp(-logits)), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("lane", ["disco", "costaware"])
def test_a_trace_shows_the_scores_that_a_lazy_policy_did_not_ask_for(lane):
    pair, heads = ToyPair(agree=0.8, seed=1), make_heads(1)
    prepared = prepare(CompareRequest("abcdabc", lanes=["autoregressive"], max_new_tokens=60), pair)
    prepared.heads = {"small": heads}
    output = LaneRun(prepared, parse_lane("autoregressive"), COSTS).run().output
    chain = chain_of(prepared, "small", output)
    live = LaneRun(prepared, parse_lane(lane), COSTS).run()
    asked = [score for it in live.iterations for score, line in it.decisions if line is not None]
    assert (None in asked) == (lane == "disco"), "some tokens were trusted unseen"
    iterations = Annotator(prepared, [live]).iterations(live, chain)
    judged = [(it, index, token) for it in iterations for index, token in enumerate(it.drafted) if token.threshold]
    assert judged and all(token.score is not None for _, _, token in judged)
    for it, index, token in judged:
        if lane == "disco" and index < it.n_accepted:
            assert token.score == pytest.approx(chain.along.scores["disco"][it.start + index], abs=1e-5)
