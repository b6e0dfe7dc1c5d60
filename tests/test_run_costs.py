"""A run's own costs: what its iterations took replaces what its curves say, and lanes are simulated at that."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import fmean

import pytest

from decoding.analysis.metrics import predicted_cost, speedup
from decoding.analysis.run_costs import run_costs
from decoding.analysis.whatif import simulate_lane, sweep
from decoding.records.run_file import load_run
from decoding.records.trace import Iteration, Run, Trace

from .runs import add_draft, make_run, untimed

RECORDINGS = sorted(Path(__file__).parent.parent.glob("recordings/showcase-*.json"))
recorded = pytest.mark.parametrize("path", RECORDINGS, ids=[path.stem for path in RECORDINGS])
CHANGED = 0.15  # by which a shared machine's costs of an iteration differed within the minutes of one recording
SIZE = 0.05  # of an iteration's cost: drafting is a straight line, and few iterations have the larger sizes

load = cache(load_run)


def static_lanes(run: Run) -> Iterator[tuple[Trace, int]]:
    """The lanes of a fixed SL, with it."""
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
    """A whole iteration of a fixed SL: what the curves say lies within what its means over the repeats were."""
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
