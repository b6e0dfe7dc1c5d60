"""What-if against a naive loop with two toy models, iteration by iteration."""

from dataclasses import replace
from itertools import product
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decoding.analysis import whatif
from decoding.errors import UserError
from decoding.lookahead.base import SL_CAP, DraftState, LaneContext
from decoding.lookahead.lanes import parse_lane
from decoding.lookahead.oracle import best_split
from decoding.lookahead.registry import make_policy
from decoding.lookahead.static import Static
from decoding.records.trace import Chain, Guesses
from tests.runs import make_costs, make_run

EOS = 0
VOCABULARY = 7
LANES = (
    "autoregressive",
    "static:1",
    "static:3",
    "static:20",
    "heuristic",
    "confidence:0.3",
    "confidence:0.9",
    "entropy",
    "oracle",
    "oracle:3",
    "oracle:best",
)


class ToyPair:
    """Two 'models' as functions of the last three tokens; the draft sometimes agrees with the target."""

    def __init__(self, seed: int, agreement: float, silence: float, eos: bool) -> None:
        self.seed, self.agreement, self.silence, self.eos = seed, agreement, silence, eos

    def _noise(self, salt: int, prefix: list[int]) -> float:
        seen = f"{self.seed} {salt} {len(prefix) % 5} {prefix[-3:]}".encode()
        return crc32(seen) % 10_000 / 10_000

    def target(self, prefix: list[int]) -> int:
        return int(self._noise(1, prefix) * VOCABULARY) if self.eos else 1 + int(self._noise(1, prefix) * 6)

    def draft(self, prefix: list[int]) -> tuple[int | None, float, float]:
        if self._noise(2, prefix) < self.silence:
            return None, 0.0, 0.0
        agrees = self._noise(3, prefix) < self.agreement
        token = self.target(prefix) if agrees else int(self._noise(4, prefix) * VOCABULARY)
        if not self.eos:
            token = max(1, token)
        return token, self._noise(5, prefix), 3 * self._noise(6, prefix)


def write_text(pair: ToyPair, limit: int, stop: tuple[int, int] | None) -> tuple[list[int], str]:
    """The autoregressive text and its finish reason; ``stop``: two tokens that end it, like a stop string."""
    text: list[int] = []
    while len(text) < limit:
        text.append(pair.target(text))
        if pair.eos and text[-1] == EOS:
            return text, "eos"
        if stop and tuple(text[-2:]) == stop:
            return text, "stop"
    return text, "length"


def record(pair: ToyPair, text: list[int], finish: str) -> Chain:
    along = Guesses([], [], [])
    tails = {}
    for at in range(len(text)):
        token = append(along, pair, text[:at])
        ended = token is None or (pair.eos and token == EOS)
        if (token != text[at] or at == len(text) - 1) and not ended:
            tails[at] = tail(pair, text[:at] + [token])
    return Chain("toy", text, along, tails)


def tail(pair: ToyPair, prefix: list[int]) -> Guesses:
    guesses = Guesses([], [], [])
    while len(guesses.choice) < SL_CAP:
        token = append(guesses, pair, prefix)
        if token is None or (pair.eos and token == EOS):
            break
        prefix = [*prefix, token]
    return guesses


def append(guesses: Guesses, pair: ToyPair, prefix: list[int]) -> int | None:
    token, p, entropy = pair.draft(prefix)
    guesses.choice.append(token)
    guesses.p.append(p)
    guesses.entropy.append(entropy)
    return token


def naive_loop(pair: ToyPair, policy, context: LaneContext, text: list[int], finish: str, limit: int):
    """The algorithm box, written without any knowledge of chains: draft, check, emit."""
    policy.reset(context)
    out: list[int] = []
    iterations = []
    while len(out) < len(text):
        state = DraftState()
        state.begin(len(out))
        while len(state.tokens) < min(limit - len(out) - 1, policy.cap or limit) and policy.should_draft(state):
            token, p, entropy = pair.draft(out + state.tokens)
            if token is None:
                break
            state.tokens.append(token)
            state.p.append(p)
            state.entropy.append(entropy)
            if pair.eos and token == EOS:
                break
        accepted = 0
        while accepted < len(state.tokens) and len(out) + accepted < len(text):
            if state.tokens[accepted] != pair.target(out + state.tokens[:accepted]):
                break
            accepted += 1
        policy.observe(len(state.tokens), accepted)
        iterations.append((len(out), len(state.tokens), accepted))
        out += state.tokens[:accepted]
        if len(out) < len(text):
            out.append(pair.target(out))
    assert out == text
    return iterations


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    agreement=st.sampled_from([0.0, 0.5, 0.85, 0.97, 1.0]),
    silence=st.sampled_from([0.0, 0.0, 0.2]),
    eos=st.booleans(),
    stop=st.none() | st.tuples(st.integers(1, 3), st.integers(1, 3)),
    limit=st.integers(1, 60),
)
def test_simulated_iterations_are_the_loops_own(seed, agreement, silence, eos, stop, limit):
    pair = ToyPair(seed, agreement, silence, eos)
    text, finish = write_text(pair, limit, stop)
    chain, costs = record(pair, text, finish), replace(make_costs(), c={"toy": 0.1})
    replay = whatif.Replay(chain)
    for lane in LANES:
        policy = make_policy(parse_lane(lane))
        wanted = limit if finish in ("eos", "stop") else len(text)
        context = LaneContext("toy", costs, wanted, chain.holds, len(text))
        expected = naive_loop(pair, policy, context, text, finish, limit)
        found = whatif.simulate(replay, costs, policy, max_new_tokens=limit, finish=finish)
        assert found.iterations == expected, lane
        assert found.target_passes == len(expected)


def brute_force(holds: list[int], cost, n_tokens: int) -> float:
    best = [0.0] * (n_tokens + 2)
    for start in range(n_tokens - 1, -1, -1):
        most = min(holds[start], n_tokens - start - 1)
        best[start] = min(cost(n) + best[start + n + 1] for n in range(most + 1))
    return best[0]


@given(
    st.lists(st.booleans(), min_size=1, max_size=40),
    st.floats(0, 0.9),
    st.floats(0, 0.3),
    st.floats(0, 0.3),
)
def test_best_split_is_the_floor(right, c, slope, o):
    holds = [0] * (len(right) + 1)
    for at in range(len(right) - 1, -1, -1):
        holds[at] = holds[at + 1] + 1 if right[at] else 0

    def cost(n):
        return n * c + 1 + slope * n + o

    plan = best_split(holds.__getitem__, len(right), cost)
    total, start = 0.0, 0
    while start < len(right):
        assert 0 <= plan[start] <= holds[start]
        total += cost(plan[start])
        start += plan[start] + 1
    assert total == pytest.approx(brute_force(holds, cost, len(right)))


def test_best_split_against_every_split_of_a_short_text():
    holds = [3, 2, 1, 0, 2, 1, 0]

    def cost(n):
        return 1 + 0.45 * n

    def every(start):
        if start >= 7:
            return 0.0
        return min(cost(n) + every(start + n + 1) for n in range(min(holds[start], 6 - start) + 1))

    plan = best_split(holds.__getitem__, 7, cost)
    total, start = 0.0, 0
    while start < 7:
        total += cost(plan[start])
        start += plan[start] + 1
    assert total == pytest.approx(every(0))


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.floats(0.4, 1.0), st.floats(0.0, 1.2))
def test_no_static_and_no_oracle_beats_oracle_best(seed, match, c):
    run = make_run(seed=seed, match=match, c=c, n_tokens=60)
    floor = whatif.simulate_lane(run, "oracle:best").speedup
    for lane, simulated in whatif.sweep(run, "static:1..20,oracle,oracle:5,autoregressive").items():
        assert simulated.speedup <= floor + 1e-9, lane


def test_oracle_loses_with_a_slow_draft_and_oracle_best_does_not():
    run = make_run(c=1.5)
    assert whatif.simulate_lane(run, "oracle").speedup < 1
    assert whatif.simulate_lane(run, "oracle:best").speedup >= 1


def test_speedup_is_the_ratio_of_the_costs_written_out():
    run = make_run(n_tokens=40)
    found = whatif.simulate_lane(run, "static:4")
    costs = run.costs
    spent = sum(n * costs.c["shallow"] + costs.check(n + 1) + costs.o for _, n, _ in found.iterations)
    assert found.cost == pytest.approx(spent)
    assert found.speedup == pytest.approx(40 * (costs.v[0] + costs.o) / spent)
    assert whatif.simulate_lane(run, "autoregressive").speedup == pytest.approx(1.0)


def test_decisions_are_paid_for():
    run = make_run(n_tokens=60)
    costly = replace(run, costs=replace(run.costs, decision={"confidence": 0.2}))
    assert whatif.simulate_lane(costly, "confidence").speedup < whatif.simulate_lane(run, "confidence").speedup
    assert whatif.simulate_lane(costly, "static:5") == whatif.simulate_lane(run, "static:5")


def test_the_recorded_lanes_are_reproduced_from_the_file():
    run = make_run(lanes=("autoregressive", "static:5", "heuristic", "confidence:0.4", "oracle"), finish="eos")
    for trace in run.lanes:
        real = [(it.start, it.n_drafted, it.n_accepted) for it in trace.iterations]
        assert whatif.simulate_lane(run, trace.lane).iterations == real


def test_a_cheaper_draft_is_faster():
    run = make_run()
    cheap, costly = whatif.simulate_lane(run, "static:5", cost_ratio=0.01), whatif.simulate_lane(run, "static:5")
    assert cheap.speedup > costly.speedup
    assert run.costs.c["shallow"] == 0.11


def test_guesses_follow_the_text_and_then_the_tail():
    run = make_run(match=0.6)
    chain = run.chains["shallow"]
    replay = whatif.Replay(chain)
    start = next(at for at in range(len(chain.target)) if 0 < chain.holds(at) < 5 and at < 50)
    held = chain.holds(start)
    places = [replay.guess(start, index) for index in range(min(held + 4, replay.reach[start]))]
    said = [guesses.choice[at] for guesses, at in places]
    assert said[:held] == chain.target[start : start + held]
    assert said[held] == chain.along.choice[start + held] != chain.target[start + held]
    assert said[held + 1 :] == chain.tails[start + held].choice[:3]


def test_policies_that_plan_are_not_asked_step_by_step(monkeypatch):
    """Forty lanes on 256 tokens take about 15 ms because static lanes do no work per drafted token."""
    monkeypatch.setattr(Static, "should_draft", lambda self, state: pytest.fail("asked step by step"))
    found = whatif.sweep(make_run(n_tokens=256), "static:1..20,confidence:0.05..1.0/0.05")
    assert len(found) == 40


@pytest.mark.parametrize(
    "lane, word",
    [("other/static:5", "recorded nothing of the draft other"), ("static:10000", "from 1 to 20"), ("disco", "fit")],
)
def test_what_cannot_be_simulated_is_refused_in_a_sentence(lane, word):
    with pytest.raises(UserError, match=word):
        whatif.simulate_lane(make_run(), lane)


def test_a_run_without_chains_is_distinguished():
    with pytest.raises(UserError, match="no chain to replay"):
        whatif.simulate_lane(replace(make_run(), chains={}), "static:5")


def test_other_cost_curves():
    costs = make_costs()
    free = whatif.with_costs(costs, "shallow", c=0.0, v=[1.0] * 21, o=0.0)
    assert (free.c["shallow"], free.o, free.check(30)) == (0.0, 0.0, 1.0)
    for c, o in product((None, 0.3), (None, 0.4)):
        changed = whatif.with_costs(costs, "shallow", c=c, o=o)
        assert changed.c["shallow"] == (c or 0.11) and changed.o == (o or 0.02)
