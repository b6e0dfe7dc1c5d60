"""Metrics counted by hand, invariants on synthetic runs, and what iterations cost in a run."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decoding.analysis import metrics
from decoding.analysis.counts import Counts, counts
from decoding.analysis.lane_figures import lane_figures
from decoding.analysis.metrics import predicted_cost, speedup
from decoding.analysis.run_costs import _line, _met, run_costs
from decoding.analysis.whatif import sweep
from decoding.errors import UserError
from decoding.lookahead.static import expected_tokens
from decoding.records.run_file import load_run
from decoding.records.trace import Chain, Guesses, Iteration, Repeat, Run, Token, Trace, Verdict
from tests.runs import add_draft, make_run, simulate_lane, untimed


def iteration(start: int, fates: str, emitted: str | None) -> Iteration:
    """``fates``: a (accepted), r (rejected), d (dropped), one letter per drafted token."""
    names = {"a": "accepted", "r": "rejected", "d": "dropped"}
    own = Token(9, emitted) if emitted else None
    return Iteration(start, [Token(1, names[fate]) for fate in fates], own, "policy")


def by_hand() -> Trace:
    """13 tokens in 5 iterations; the last is truncated: the text ends among its accepted tokens."""
    iterations = [
        iteration(0, "aaaaa", "bonus"),  # 6 tokens
        iteration(6, "rdd", "correction"),  # 1
        iteration(7, "aard", "correction"),  # 3
        iteration(10, "", "plain"),  # 1
        iteration(11, "aad", None),  # 2: end of sequence
    ]
    output = [token.id for one in iterations for token in one.tokens]
    times = [
        Repeat(0.5, [0.1] * 5, [0.3] * 5, [0.02] * 5, [0.08] * 5),  # 2.5 s
        Repeat(0.5, [0.1] * 5, [0.2] * 5, [0.02] * 5, [0.08] * 5),  # 2.0 s
        Repeat(0.5, [0.1] * 5, [0.6] * 5, [0.02] * 5, [0.08] * 5),  # 4.0 s
    ]
    return Trace("static:5", "static", "shallow", output, iterations, times, "eos", Verdict(True))


def plain() -> Trace:
    iterations = [iteration(at, "", "plain") for at in range(13)]
    times = [Repeat(0.4, [0.0] * 13, [second / 13] * 13, [0.0] * 13, [0.0] * 13) for second in (5.0, 6.0, 6.0)]
    return Trace("autoregressive", "autoregressive", None, [9] * 13, iterations, times, "eos", Verdict(True))


def hand_run():
    return replace(make_run(n_tokens=13), lanes=[plain(), by_hand()])


RATES = {
    "tokens_per_target_pass": 1 + 9 / 5,  # as if the last had emitted one
    "block_efficiency": 13 / 5,  # as it came
    "acceptance_rate": 9 / 15,
    "discard_rate": 6 / 13,
    "verification_rate": 5 / 13,
    "mean_sl": 3.0,
}


def test_counts_and_rates():
    found = counts(by_hand())
    assert found == Counts(target_passes=5, drafted=15, draft_passes=15, accepted=9, tokens=13)
    assert found.thrown_away == 6
    assert {name: getattr(found, name) for name in RATES} == pytest.approx(RATES)
    assert metrics.first_guess_hit_rate(by_hand()) == 3 / 4
    assert metrics.seconds_per_token(by_hand()) == pytest.approx(2.5 / 13)


def test_speedup_pairs_the_repeats_and_end_to_end_has_the_prefill_in_it():
    run = hand_run()
    assert metrics.speedups(run, run.lanes[1]) == pytest.approx([5 / 2.5, 6 / 2.0, 6 / 4.0])
    spread = metrics.speedup(run, run.lanes[1])
    assert (spread.median, spread.low, spread.high) == pytest.approx((2.0, 1.5, 3.0))
    assert metrics.end_to_end_speedup(run, run.lanes[1]).median == pytest.approx(5.4 / 3.0)


def test_the_replayed_repeat_and_its_time():
    run = hand_run()
    trace = run.lanes[1]
    assert metrics.replayed_repeat(run) == 0
    parts = metrics.where_time_goes(run, trace)
    assert parts == pytest.approx({"prefill": 0.5, "draft": 0.5, "check": 1.5, "policy": 0.1, "rest": 0.4})
    assert metrics.loop_share(run, trace) == pytest.approx(0.2)


def test_all_lanes_are_replayed_from_one_repeat_the_one_nearest_to_the_medians():
    run = make_run(repeats=5)
    chosen = metrics.replayed_repeat(run)
    for repeat in run.lanes[1].repeats[:chosen] + run.lanes[1].repeats[chosen + 1 :]:
        repeat.verify_s = [4 * second for second in repeat.verify_s]
    assert metrics.replayed_repeat(run) != chosen  # it is now the exception
    for trace in run.lanes:
        shown = metrics.replayed_speedup(run, trace)
        repeat = metrics.replayed_repeat(run)
        assert shown == pytest.approx(run.lanes[0].repeats[repeat].decode_s / trace.repeats[repeat].decode_s)
    run.lanes[1].repeats = []
    assert metrics.replayed_repeat(run) is not None and metrics.replayed_speedup(run, run.lanes[1]) is None
    assert metrics.where_time_goes(run, run.lanes[1]) == {}


def test_prediction_from_the_cost_curves():
    run = hand_run()
    costs = run.costs
    spent = sum(n * costs.draft_step["shallow"] + costs.verify_curve[n] + costs.overhead for n in (5, 3, 4, 0, 3))
    assert metrics.predicted_speedup(run, by_hand()) == pytest.approx(13 * (1 + costs.overhead) / spent)
    assert metrics.predicted_speedup(run, plain()) == pytest.approx(1.0)


def test_a_tree_pays_for_its_draft_passes():
    chain, costs = by_hand(), hand_run().costs
    tree = replace(chain, iterations=[replace(chain.iterations[0], parents=[-1] * 5, reads=1), *chain.iterations[1:]])
    assert counts(tree).draft_passes == counts(chain).draft_passes - 4
    saved = metrics.predicted_cost(costs, chain) - metrics.predicted_cost(costs, tree)
    assert saved == pytest.approx(4 * costs.draft_step["shallow"])
    shown = {figure.key: figure.formula for figure in lane_figures(hand_run(), tree)}
    assert "first + d c + n decision + v(n+1) + o" in shown["predicted"], "its guesses outnumber its passes"


def test_match_rate_and_the_oracle_belong_to_the_chain():
    along = Guesses([1, 2, 0, 4, 5, None], [0.5] * 6, [0.1] * 6)
    chain = Chain("shallow", [1, 2, 3, 4, 5, 6], along, {})
    assert metrics.match_rate(chain) == pytest.approx(4 / 6)
    assert metrics.oracle_sls(chain) == [2, 2]


def test_nothing_decoded_gives_no_figures_and_no_crash():
    empty = Trace("static:5", "static", "shallow", [], [], [], "cancelled", Verdict(None))
    run = replace(hand_run(), lanes=[plain(), empty])
    assert {getattr(counts(empty), name) for name in RATES} == {None}
    assert metrics.first_guess_hit_rate(empty) is metrics.seconds_per_token(empty) is None
    assert metrics.where_time_goes(run, empty) == {} and metrics.loop_share(run, empty) is None
    assert metrics.speedup(run, empty) is None and metrics.predicted_speedup(run, empty) is None
    assert [figure.key for figure in lane_figures(run, empty)]


def test_a_lane_has_no_speedup_without_the_autoregressive_one_which_has_no_draft_figures():
    run = replace(hand_run(), lanes=[by_hand()])
    assert metrics.speedup(run, by_hand()) is None
    for lane, lacks in ((by_hand(), "speedup"), (plain(), "acceptance_rate")):
        keys = {figure.key for figure in lane_figures(run, lane)}
        assert lacks not in keys and "target_passes" in keys


def test_figures_show_their_formula_with_the_lanes_own_numbers():
    run = hand_run()
    figures = {figure.key: figure for figure in lane_figures(run, run.lanes[1])}
    assert figures["speedup"].text == "2.00× (1.50 to 3.00)"
    assert "1 + 9 / 5" in figures["tokens_per_target_pass"].formula
    assert figures["thrown_away"].text == "6 (40%)"
    assert "9 / 15" in figures["acceptance_rate"].formula
    assert figures["latency"].text == "192.31 ms"


def test_static_opt_is_the_best_of_the_sweep():
    run = make_run(n_tokens=120)
    sl, gain = metrics.static_opt(run)
    found = sweep(run, "static:1..20")
    assert gain == max(one.speedup for one in found.values()) == found[f"static:{sl}"].speedup
    assert metrics.static_opt(replace(run, chains={})) is None


@settings(max_examples=25)
@given(seed=st.integers(0, 10**6), match=st.floats(0.55, 1.0), n_tokens=st.integers(1, 60))
def test_invariants(seed, match, n_tokens):
    run = make_run(seed=seed, match=match, n_tokens=n_tokens, alternatives=1)
    for trace in run.lanes:
        found = counts(trace)
        assert found.accepted + found.thrown_away == found.drafted == found.draft_passes
        assert found.verification_rate == pytest.approx(1 / found.block_efficiency)
        assert 1 <= found.block_efficiency <= found.tokens_per_target_pass + 1e-12
        if trace.policy == "oracle":
            assert found.thrown_away == 0
            assert found.target_passes <= min(counts(other).target_passes for other in run.lanes)
            assert [it.n_drafted for it in trace.iterations][:-1] == metrics.oracle_sls(run.chains["shallow"])[:-1]


@given(st.floats(0, 1), st.integers(0, 64))
def test_expected_tokens_is_the_geometric_sum(alpha, gamma):
    assert expected_tokens(alpha, gamma) == pytest.approx(sum(alpha**k for k in range(gamma + 1)), rel=1e-6)


# -- a run's own costs: what its iterations took replaces what its curves say, and lanes are simulated at that

RECORDINGS = sorted(Path(__file__).parent.parent.glob("recordings/showcase-*.json"))
recorded = pytest.mark.parametrize("path", RECORDINGS, ids=[path.stem for path in RECORDINGS])
CHANGED = 0.15  # by which a shared machine's costs of an iteration differed within the minutes of one recording
SIZE = 0.05  # of an iteration's cost: drafting is a straight line, and few iterations have the larger sizes

load = cache(load_run)


def static_lanes(run: Run) -> Iterator[tuple[Trace, int]]:
    """The lanes of a static SL, with it."""
    for trace in run.lanes:
        if trace.policy == "static":
            yield trace, int(trace.lane.rpartition(":")[2])


@recorded
def test_a_static_lane_of_a_recording_is_simulated_as_it_was_measured(path):
    assert_simulated_as_measured(load(path))


def assert_simulated_as_measured(run: Run) -> None:
    for trace, _ in static_lanes(run):
        if trace.draft in run.chains:
            assert simulate_lane(run, trace.lane).speedup == pytest.approx(speedup(run, trace).median), trace.lane


@recorded
def test_the_curves_in_a_recording_are_near_its_iterations(path):
    """Those that were measured before it, at which its policies decided: a machine that changed since shows here."""
    run = load(path)
    own = run_costs(run)
    for trace, sl in static_lanes(run):
        said, took = (costs.iteration(sl, trace.draft) / costs.iteration(0, None) for costs in (run.costs, own))
        assert abs(said / took - 1) <= CHANGED, (
            f"{path.stem}: by its cost curves an iteration of {trace.lane} takes {said:.2f} plain passes, by its own "
            f"iterations {took:.2f}. Record it again: python -m decoding recordings --only {path.stem}"
        )


@recorded
def test_the_own_curves_of_a_recording_are_those_of_its_iterations(path):
    """A whole iteration of a static SL: what the curves say lies within what its means over the repeats were."""
    run = load(path)
    own, plain = run_costs(run), run.baseline
    for trace, sl in static_lanes(run):
        whole = [at for at, it in enumerate(trace.iterations) if it.n_drafted == sl]
        clock = [
            fmean(ours.draft_s[at] + ours.verify_s[at] for at in whole) / (theirs.decode_s / len(plain.iterations))
            for ours, theirs in zip(trace.repeats, plain.repeats)
        ]
        costs = own.iteration(sl, trace.draft) / own.iteration(0, None)
        assert min(clock) * (1 - SIZE) <= costs <= max(clock) * (1 + SIZE), trace.lane


def test_a_run_that_no_clock_timed_keeps_its_curves():
    run = untimed(make_run())
    assert run_costs(run) is run.costs
    alone = make_run(lanes=("static:5",))
    assert run_costs(alone) is alone.costs


def slowed(run: Run, draft: float, check: float) -> Run:
    """``run`` with exact times: the curves', drafting and verifying each so many times as slow as they say."""
    costs, unit = run.costs, run.costs.target_s

    def times(iterations: list[Iteration]):
        sizes = [it.n_drafted for it in iterations]
        return {
            "draft_s": [unit * draft * (costs.start(n, "shallow") + n * costs.draft_step["shallow"]) for n in sizes],
            "verify_s": [unit * (check if n else 1.0) * costs.verify(n + 1) for n in sizes],
            "policy_s": [0.0] * len(sizes),
            "rest_s": [unit * costs.overhead] * len(sizes),
        }

    lanes = [replace(one, repeats=[replace(r, **times(one.iterations)) for r in one.repeats]) for one in run.lanes]
    return replace(run, lanes=lanes)


@pytest.mark.parametrize("lanes", [("autoregressive", "static:5"), ("autoregressive", "static:2", "static:9")])
def test_what_was_slower_than_its_curves_is_corrected_at_every_size(lanes):
    run = slowed(make_run(lanes=lanes), draft=1.5, check=1.2)
    own = run_costs(run)
    assert own.draft_step["shallow"] == pytest.approx(1.5 * run.costs.draft_step["shallow"])
    assert own.verify_curve[0] == run.costs.verify_curve[0]
    assert own.verify_curve[1:] == pytest.approx([1.2 * cost for cost in run.costs.verify_curve[1:]])
    assert own.iteration(0, None) == run.costs.iteration(0, None)
    assert_simulated_as_measured(run)


def test_static_lanes_of_two_drafts_and_one_sl_are_both_met():
    run = make_run(lanes=("autoregressive", "static:5", "static:2", "disco:0.6"))
    add_draft(run, "wide", match=0.6, c=0.3)
    assert_simulated_as_measured(run)


def test_a_size_that_hardly_ran_does_not_correct_the_curve():
    run = slowed(make_run(lanes=("autoregressive", "static:5"), seed=4), draft=1.0, check=1.2)
    last = run.lanes[1].iterations[-1].n_drafted
    assert 0 < last < 5  # one iteration, cut off by the end of the text
    run.lanes[1].repeats[0].verify_s[-1] *= 50
    own = run_costs(run)
    assert own.verify_curve[1:] == pytest.approx([1.2 * cost for cost in run.costs.verify_curve[1:]])


def test_a_lane_that_hardly_guesses_says_nothing_of_what_guesses_cost():
    """As n-grams in a text without repetitions: its plain iterations take another time than those of plain decoding."""
    run = slowed(make_run(lanes=("autoregressive", "static:5")), draft=1.0, check=1.0)
    trace = run.lanes[1]
    for iteration in trace.iterations[1:]:
        iteration.drafted = []
    for repeat in trace.repeats:
        repeat.rest_s = [second - 0.1 * run.costs.target_s for second in repeat.rest_s]
    assert run_costs(run).verify_curve == run.costs.verify_curve


@pytest.mark.parametrize("lane", ["static:5", "disco:0.6"])
def test_slow_moments_count_as_far_as_they_are_in_the_time_of_every_repeat(lane):
    """Each repeat has one, in another iteration, so that the medians over the repeats have none."""
    run = slowed(make_run(lanes=("autoregressive", lane)), draft=1.0, check=1.0)
    costs, trace = run.costs, run.lanes[1]
    for at, repeat in enumerate(trace.repeats):
        repeat.verify_s[at] += 0.5 * repeat.decode_s
    alone = predicted_cost(costs, trace)
    assert predicted_cost(run_costs(run), trace) == pytest.approx(1.5 * alone, rel=0.02)
    trace.repeats[0].verify_s[0] += 100.0  # one repeat of three: neither the medians nor the lane's own
    assert predicted_cost(run_costs(run), trace) == pytest.approx(1.5 * alone, rel=0.02)


def test_decisions_weigh_the_curves_of_the_run_file_whatever_its_iterations_took():
    run = make_run(match=0.7)
    dear = slowed(run, draft=9.0, check=1.0)
    for lane, found in sweep(run, "oracle:best,static:5,oracle").items():
        again = simulate_lane(dear, lane)
        assert again.iterations == found.iterations, lane
        assert again.speedup < found.speedup
    trace = next(trace for trace in dear.lanes if trace.lane == "oracle")
    assert simulate_lane(dear, "oracle").cost == pytest.approx(predicted_cost(run_costs(dear), trace))


def test_another_c_replaces_the_one_of_this_run():
    dear = slowed(make_run(), draft=3.0, check=1.0)
    assert simulate_lane(dear, "static:5", cost_ratio=0.11).cost == pytest.approx(
        simulate_lane(untimed(dear), "static:5").cost, rel=1e-6
    )
    for none in (-0.1, float("nan"), 1e9):
        with pytest.raises(UserError, match="cost ratio must be a number from 0 to 1,000,000"):
            simulate_lane(dear, "static:5", cost_ratio=none)
    assert simulate_lane(dear, "oracle:best", cost_ratio=5.0).counts.drafted == 0, "the policy weighs it, too"


def test_odd_times_make_no_cost_negative():
    """Three iterations of a size are enough, and many count more; a line that starts below zero is none."""
    run = make_run()
    costs, times = run.costs, {1: [0.3] * 3, 2: [0.6] * 30, 3: [0.5] * 3}
    assert _met(costs, [(run.lane("static:5"), 1e-9)]) is costs
    assert _line(costs, "shallow", times) == pytest.approx((0.36667, 0.1), abs=1e-4)
    assert _line(costs, "shallow", {2: [0.1] * 3, 4: [0.4] * 3}) == pytest.approx((0.0, 1.5 / 18))


def test_a_draft_that_guesses_at_once_takes_one_pass_for_each_iteration_with_guesses():
    run = make_run(lanes=("autoregressive", "static:5"))
    trace = run.lanes[1]

    def passes():
        return next(one.value for one in lane_figures(run, trace) if one.key == "draft_passes")

    assert passes() == sum(it.n_drafted for it in trace.iterations)
    run.costs.draft_step["shallow"], run.costs.first_step["shallow"] = 0.001, 0.05
    assert passes() == sum(it.n_drafted > 0 for it in trace.iterations) < len(trace.output)
