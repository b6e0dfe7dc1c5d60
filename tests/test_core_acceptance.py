"""The acceptance rules: shaping, and the distribution of what they emit against exact enumeration."""

import itertools
from collections import Counter

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from decoding.comparison.lane_run import LaneRun
from decoding.comparison.prepare import prepare
from decoding.engines.inputs import EncodedPrompt
from decoding.errors import UserError
from decoding.lookahead.lanes import parse_lane
from decoding.loop.acceptance import Coupling, Sampling
from decoding.loop.drafting import ModelDraft
from decoding.loop.sampling import Shaping, gumbel_noise, gumbel_row, softmax
from decoding.records.request import CompareRequest

from .runs import make_costs
from .toy import ToyPair, quick_run

VOCAB, LENGTH = 4, 3
DRAWS = 1000  # show a wrong rule already


# -- temperature, top-k, top-p


@pytest.mark.parametrize("temperature", [1.0, 0.7, 1.6])
@pytest.mark.parametrize("top_k", [0, 1, 5, 100])
@pytest.mark.parametrize("top_p", [1.0, 0.9, 0.5, 0.01])
def test_shaping_is_that_of_transformers(temperature, top_k, top_p):
    from transformers.generation.logits_process import (
        LogitsProcessorList,
        TemperatureLogitsWarper,
        TopKLogitsWarper,
        TopPLogitsWarper,
    )

    logits = np.random.default_rng(0).normal(size=(6, 40)).astype(np.float32) * 3
    warpers = LogitsProcessorList([TemperatureLogitsWarper(temperature)])
    if top_k:
        warpers.append(TopKLogitsWarper(top_k))
    if top_p < 1:
        warpers.append(TopPLogitsWarper(top_p))
    theirs = warpers(torch.zeros(6, 1, dtype=torch.long), torch.from_numpy(logits.copy())).numpy()
    ours = Shaping(temperature, top_k, top_p).apply(logits)
    assert (np.isneginf(ours) == np.isneginf(theirs)).all()
    kept = np.isfinite(theirs)
    np.testing.assert_allclose(ours[kept], theirs[kept], rtol=1e-5)
    one = Shaping(temperature, top_k, top_p).apply(logits[2])
    np.testing.assert_array_equal(one, ours[2])


# -- noise


def test_noise_is_keyed_by_seed_and_position_alone():
    noise = gumbel_noise(7, 5, 50)
    np.testing.assert_array_equal(noise[3], gumbel_row(7, 3, 50))
    np.testing.assert_array_equal(noise[:2], gumbel_noise(7, 2, 50))
    assert not np.array_equal(noise[0], noise[1]) and not np.array_equal(noise[0], gumbel_row(8, 0, 50))
    assert noise.dtype == np.float32


def test_too_much_noise_is_a_sentence():
    with pytest.raises(UserError, match="fewer new tokens"):
        gumbel_noise(0, 4096, 1_000_000)


def test_gumbel_argmax_samples_the_distribution():
    p = np.array([0.5, 0.3, 0.15, 0.05])
    rule = Coupling(4, Shaping(), gumbel_noise(0, 4000, 4))
    row = np.log(p).astype(np.float32)
    seen = Counter(rule.propose(row, at)[0] for at in range(4000))
    assert chisquare([seen[i] for i in range(4)], p * 4000).pvalue > 0.001


# -- speculative sampling, against exact enumeration


class WrongResidual(Sampling):
    """Mutant: replaces a rejected token by a sample of p instead of norm(max(0, p - q))."""

    def verify(self, logits, proposal, start):
        for drawn in self._drawn.values():
            drawn.reject = lambda token, p: p
        return super().verify(logits, proposal, start)


class WrongBonus(Sampling):
    """Mutant: after full acceptance emits the target's first choice instead of a sample."""

    def verify(self, logits, proposal, start):
        path, emitted = super().verify(logits, proposal, start)
        return path, int(logits[-1].argmax()) if len(path) == len(proposal.tokens) else emitted


class AlwaysAccepts(Sampling):
    """Mutant: accepts half of the tokens that the ratio would reject."""

    def verify(self, logits, proposal, start):
        path, emitted = super().verify(logits, proposal, start)
        return path, emitted if len(path) == len(proposal.tokens) else proposal.tokens[len(path)]


class DropsUnlikely(ModelDraft):
    """Mutant: withdraws a proposal that the draft itself finds unlikely, instead of having it checked."""

    def step(self, text, state):
        proposal = super().step(text, state)
        node, drawn = next(reversed(self._rule._drawn.items()))
        if drawn.probability(state.tokens[-1]) >= 0.3:
            return proposal
        state.tokens.pop()
        self._rule._drawn.pop(node)
        return None


def exact(pair: ToyPair, shaping: Shaping, prompt: list[int]) -> dict[tuple[int, ...], float]:
    """Probability of every continuation of LENGTH tokens under the target alone."""
    found = {}
    for tokens in itertools.product(range(VOCAB), repeat=LENGTH):
        pair.target.rewind(0)
        text = [*prompt, *tokens]
        rows = pair.target.extend(text).numpy()[len(prompt) - 1 : -1]
        p = softmax(shaping.apply(rows))
        found[tokens] = float(np.prod(p[np.arange(LENGTH), list(tokens)]))
    assert sum(found.values()) == pytest.approx(1.0)
    return found


def p_value(lane: str, rule_class=Sampling, draft_class=None, frequent=None, **request) -> float:
    """Chi-square of DRAWS continuations against the exact probabilities (cells under 5 expected are merged)."""
    pair = ToyPair(agree=0.4, vocab=VOCAB, seed=3)
    pair.target.sharpness = pair.draft().sharpness = 1.0
    pair.draft().frequent = frequent
    settings = CompareRequest(
        "abc",
        lanes=[lane],
        max_new_tokens=LENGTH,
        rule="sampling",
        temperature=request.pop("temperature", 1.0),
        **request,
    )
    prepared = prepare(settings, pair)
    prepared.prompt = EncodedPrompt([1, 2, 3])
    shaping = Shaping(settings.temperature, settings.top_k, settings.top_p)
    expected = exact(pair, shaping, prepared.prompt.ids)
    seen: Counter = Counter()
    for seed in range(DRAWS):
        prepared.rule = rule_class(VOCAB, shaping, seed)
        run = LaneRun(prepared, parse_lane(lane), make_costs(drafts=("small", "ngram")))
        if draft_class:
            run.source = draft_class("small", pair.draft(), prepared.rule, frozenset())
        seen[tuple(run.run().output)] += 1
    assert all(expected[text] > 0 for text in seen), "emitted what the target never would"
    common = [text for text in expected if expected[text] * DRAWS >= 5]
    observed = [seen[text] for text in common]
    wanted = [expected[text] * DRAWS for text in common]
    if DRAWS - sum(wanted) > 1:
        observed.append(DRAWS - sum(observed))
        wanted.append(DRAWS - sum(wanted))
    return chisquare(observed, np.array(wanted) * sum(observed) / sum(wanted)).pvalue


@pytest.mark.parametrize(
    "lane, options",
    [
        ("static:2", {}),
        ("confidence:0.4", {}),
        ("ngram/static:2", {}),
        ("static:2", {"temperature": 1.4, "top_k": 3, "top_p": 0.95}),
        ("confidence:0.4", {"frequent": [0, 2]}),
    ],
)
def test_speculative_sampling_emits_the_target_distribution(lane, options):
    assert p_value(lane, **options) > 0.001


@pytest.mark.parametrize("rule", ["greedy", "coupling"])
def test_a_reduced_head_changes_no_text_and_proposes_its_own_tokens_and_the_texts(rule):
    lanes, pair = ["autoregressive", "static:4", "confidence:0.3", "entropy:1.0", "oracle"], ToyPair(agree=0.9)
    pair.draft().frequent = range(1, 16, 4)
    run = quick_run(lanes, pair, max_new_tokens=60, rule=rule, temperature=float(rule != "greedy"))
    assert all(trace.verdict.same for trace in run.lanes)
    frequent, rare = {*range(1, 16, 4)}, 0
    for trace in run.lanes:
        for it in trace.iterations:
            drafted = {token.id for token in it.drafted}
            assert drafted <= frequent | {*run.prompt_ids, *trace.output[: it.start]}
            rare += len(drafted - frequent)
    assert rare
    assert np.isfinite([token.entropy for it in run.lanes[1].iterations for token in it.drafted]).all()


@pytest.mark.parametrize("mutant", [WrongResidual, WrongBonus, AlwaysAccepts, DropsUnlikely])
def test_the_chi_square_catches_a_wrong_rule_and_a_draft_that_drops_what_it_drafted(mutant):
    assert p_value("static:2", **{"draft_class" if mutant is DropsUnlikely else "rule_class": mutant}) < 1e-6
