"""Every policy writes the target's own text, in iterations that what-if simulates one by one, also from a file."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decoding.analysis import metrics
from decoding.analysis.lane_figures import lane_figures
from decoding.analysis.run_costs import run_costs
from decoding.analysis.trees import simulate_trees
from decoding.analysis.whatif import Replay, sweep, with_draft_step
from decoding.comparison.chain import chain_of, grow_along
from decoding.comparison.compare import Comparison
from decoding.comparison.lane_run import LaneRun
from decoding.comparison.prepare import prepare
from decoding.errors import UserError
from decoding.lookahead.base import SL_CAP, TREE_CAP
from decoding.lookahead.fitted import make_policy
from decoding.lookahead.lanes import parse_lane
from decoding.lookahead.spec import evaluated_lanes
from decoding.lookahead.static import Static
from decoding.records.proposal import depths_of
from decoding.records.request import CompareRequest
from decoding.records.run_file import run_from_json, run_to_json
from decoding.records.trace import Chain, Guesses, Run

from .learned_heads import make_heads
from .runs import make_costs, make_run, simulate_lane
from .toy import ToyPair, quick_run, shape_of, unknown

COSTS = make_costs(rise=0.03, draft_step={"small": 0.12, "ngram": 0.0, "weak": 0.1})
LANES = [
    *(lane for lane in evaluated_lanes() if not (parse_lane(lane).is_learned or parse_lane(lane).is_plain)),
    *(f"static:{n}" for n in (1, 2, 4, 7, 20)),
    *("confidence:0.3", "confidence:0.6", "entropy:0.5", "adaedl:0.5", "oracle:3", "weak/static:3", "weak/oracle:best"),
    *(f"ngram/{policy}" for policy in ("static:4", "oracle", "heuristic", "throughput", "bandit")),
]
LEARNED = ["disco:0.4", "disco", "specdecpp:0.6", "specdecpp:auto", "specdecpp", "costaware"]


@settings(max_examples=200)
@given(
    agree=st.sampled_from([0.0, 0.3, 0.6, 0.9, 1.0]),
    seed=st.integers(0, 8),
    lane=st.sampled_from(LANES + LEARNED),
    prompt=st.text("abcdefgh", min_size=1, max_size=6),
    n=st.integers(1, 60),
    eos=st.sampled_from([None, 3, 7, 11]),
    stop=st.sampled_from([[], ["abc"], ["c", "fgh"], ["a"]]),
    rule=st.sampled_from([("greedy", 0.0), ("coupling", 0.7)]),
    short=st.booleans(),
    plain=st.booleans(),
)
def test_every_policy_writes_the_target_s_own_text_in_the_iterations_that_what_if_simulates(
    agree, seed, lane, prompt, n, eos, stop, rule, short, plain
):
    pair = ToyPair(agree=agree, seed=seed, eos=eos, **({"target_length": 30} if short else {}))
    settings = dict(max_new_tokens=n, rule=rule[0], temperature=rule[1], stop=stop, seed=seed)
    prepared = prepare(CompareRequest(prompt, lanes=["autoregressive"], **settings), pair)
    lane, heads = parse_lane(lane), make_heads(seed, plain=plain) if lane in LEARNED else {}
    prepared.heads = {"small": heads}
    reference = LaneRun(prepared, parse_lane("autoregressive"), COSTS).run()
    chain = chain_of(prepared, prepared.draft_of(lane), reference.output)
    live = LaneRun(prepared, lane, COSTS, chain).run()
    assert (live.output, live.finish) == (reference.output, reference.finish)
    limit = prepared.limits.max_new_tokens  # n, or fewer if the context is full
    assert all(it.start + len(it.drafted) <= limit - 1 for it in live.iterations), "SL exceeds tokens wanted - 1"
    assert lane.is_learned or lane.is_oracle or all(len(it.drafted) <= SL_CAP for it in live.iterations)
    simulated = Replay(chain, limit, reference.finish).simulate(COSTS, make_policy(lane, heads))
    assert simulated.iterations == shape_of(live)


# Where checks are free a guess must save something: else trees grow beyond what is recorded.
FREE = make_costs(0.02, 0.0, drafts=("small", "weak"), length=65, decision={"costtree": 0.04})
DEAR = make_costs(0.1, 0.2, drafts=("small", "weak"), length=65)


@settings(max_examples=40)
@given(
    agree=st.sampled_from([0.0, 0.6, 0.9, 1.0]),
    seed=st.integers(0, 5),
    lane=st.sampled_from(["tree:1", "tree:2", "tree:7", "tree:32", "weak/tree:5", "costtree", "weak/costtree"]),
    n=st.integers(1, 40),
    eos=st.sampled_from([None, 3, 7]),
    stop=st.sampled_from([[], ["ab"], ["c", "fgh"], ["a"]]),
    rule=st.sampled_from([("greedy", 0.0), ("coupling", 0.8)]),
    costs=st.sampled_from([COSTS, DEAR, FREE]),
    short=st.booleans(),
    head=st.booleans(),
)
def test_trees_write_the_target_s_own_text_and_follow_from_how_one_grows_at_each_place(
    agree, seed, lane, n, eos, stop, rule, costs, short, head
):
    """Whatever policy watches: draft passes included."""
    pair = ToyPair(agree=agree, seed=seed, eos=eos, **({"target_length": 60} if short else {}))
    if head:
        pair.draft().frequent = range(1, 16, 4)
    settings = dict(max_new_tokens=n, rule=rule[0], temperature=rule[1], stop=stop, seed=seed)
    prepared = prepare(CompareRequest("abcabc", lanes=[lane], **settings), pair)
    draft = prepared.draft_of(prepared.lanes[0])
    reference = LaneRun(prepared, parse_lane("autoregressive"), costs).run()
    lane_run, reads = LaneRun(prepared, prepared.lanes[0], costs), []
    read_node = lane_run.source.read_node
    lane_run.source.read_node = lambda *words: (reads.append(words), read_node(*words))[1]
    live = lane_run.run()
    assert (live.output, live.finish) == (reference.output, reference.finish)
    limit = prepared.limits.max_new_tokens
    budget = int(lane.partition(":")[2] or 8 * TREE_CAP)  # costtree may leave out many
    for it in live.iterations:
        parents = it.parents
        assert len(parents) == len(it.drafted) <= budget
        assert all(-1 <= parent < node for node, parent in enumerate(parents))
        assert parents[: it.n_accepted] == list(range(-1, it.n_accepted - 1)), "the accepted path comes first"
        assert all(depth + it.start <= limit - 2 for depth in depths_of(parents)), "no guess beyond the tokens wanted"
        assert len(set(zip(parents, it.drafted))) == len(parents), "siblings differ"
        assert eos not in [it.drafted[parent] for parent in parents if parent >= 0], "no guess after an end"
        assert it.stop != "eos", "other guesses could follow"
    if short and lane.endswith("costtree"):
        return  # it leaves out reads, and a full context may cut what is recorded before that
    growths = grow_along(prepared, draft, reference.output, cap=max(budget, TREE_CAP))
    chain = chain_of(prepared, draft, reference.output)
    simulated = simulate_trees(chain, growths, costs, make_policy(prepared.lanes[0]), limit)
    assert simulated.iterations == shape_of(live)
    assert simulated.counts.draft_passes == len(reads) == sum(it.reads for it in live.iterations)


def test_trees_beyond_what_was_recorded_are_refused():
    chain = Chain("small", [1], Guesses([1], [0.5], [0.1]), {})
    with pytest.raises(UserError, match="recorded up to 32 guesses"):
        simulate_trees(chain, [], COSTS, make_policy(parse_lane("tree:33")), 9)


FEW = ["autoregressive", "static:4", "heuristic", "confidence:0.4", "ngram/static:3", "oracle", "oracle:best"]


def assert_reproduced_from_its_file(run: Run) -> None:
    again = run_from_json(run_to_json(run))
    assert again == run and all(trace.verdict.same for trace in run.lanes)
    at_own_costs = replace(again, costs=run_costs(again))
    for trace in again.lanes:
        simulated = simulate_lane(again, trace.lane)
        assert simulated.iterations == shape_of(trace), trace.lane
        assert simulated.speedup == pytest.approx(metrics.predicted_speedup(at_own_costs, trace))
        assert lane_figures(again, trace)[0].key == "speedup"


@pytest.mark.parametrize("seed, eos", [(4, 7), (11, 3), (15, 3), (26, 3)])
def test_a_run_remembers_the_limit_that_the_context_left(seed, eos):
    """The end-of-sequence token is exactly at the end of the context: nothing is drafted there."""
    settings = dict(prompt="abcdabc", max_new_tokens=60)
    length = len(quick_run(["autoregressive"], ToyPair(0.6, seed=seed, eos=eos), **settings).lanes[0].output)
    assert 25 <= length < 60, "long enough to measure cost curves in"
    run = quick_run([*FEW, "static:1"], ToyPair(0.6, seed=seed, eos=eos, target_length=7 + length - 1), **settings)
    assert run.lanes[0].finish == "eos" and run.token_limit == length
    assert_reproduced_from_its_file(run)


@pytest.mark.parametrize(
    "options, eos, agree",
    [
        ({"max_new_tokens": 40}, None, 0.9),
        ({"max_new_tokens": 40}, 3, 0.8),
        ({"max_new_tokens": 30, "stop": ["ab"]}, None, 0.8),
        ({"max_new_tokens": 30, "rule": "coupling", "temperature": 0.8, "seed": 4}, 7, 0.6),
        ({"max_new_tokens": 1}, None, 0.9),
    ],
)
def test_a_real_run_is_reproduced_from_its_file(options, eos, agree):
    assert_reproduced_from_its_file(quick_run(FEW, ToyPair(agree=agree, eos=eos), "abcdabcd", repeats=2, **options))


def test_policies_that_plan_are_not_asked_step_by_step(monkeypatch):
    """Forty lanes on 256 tokens take about 15 ms because static lanes do no work per drafted token."""
    monkeypatch.setattr(Static, "should_draft", lambda self, state: pytest.fail("asked step by step"))
    assert len(sweep(make_run(n_tokens=256), "static:1..20,confidence:0.05..1.0/0.05")) == 40


def test_beyond_its_end_a_curve_goes_on_as_it_rose_and_never_falls():
    def verify(curve, n):
        return replace(make_costs(0.1), verify_curve=curve).verify(n)

    assert verify([1.0, 1.2, 1.4], 5) == pytest.approx(1.8)
    assert verify([1.0, 1.2, 0.4], 50) == 0.4


@pytest.mark.parametrize(
    "known, first, c, changed",
    [
        (0.11, 0.0, 0.0, (0.0, 0.0)),
        (0.05, 0.04, 0.1, (0.1, 0.08)),
        (0.001, 0.09, 0.1, (0.001, 0.1)),
        (0.0, 0.09, 0.1, (0.0, 0.1)),
    ],
)
def test_with_another_c_the_first_step_scales_or_makes_all_guesses(known, first, c, changed):
    given = replace(make_costs(known), first_step={"shallow": first})
    found = with_draft_step(given, "shallow", c)
    assert (found.draft_step["shallow"], found.first_step["shallow"]) == pytest.approx(changed)
    steps = {"draft_step": found.draft_step, "first_step": found.first_step}
    assert found == replace(given, **steps), "all else stays"


@pytest.mark.parametrize(
    "lanes, more, stopped, why",
    [
        (["static:2"], {"rule": "sampling", "temperature": 1.0}, False, "plain speculative sampling records none"),
        (["autoregressive"], {}, False, "none of its lanes guesses: add a lane such as static:5"),
        (["autoregressive", "static:2"], {}, True, "If this run was stopped before, run it again"),
    ],
)
def test_a_run_without_a_chain_says_why(lanes, more, stopped, why):
    pair = ToyPair()
    prepared = prepare(CompareRequest("abcabc", lanes=lanes, max_new_tokens=30, repeats=2, **more), pair)
    comparison = Comparison(prepared, unknown(pair), lambda: stopped and hasattr(comparison, "run"), "run")
    assert [kind for kind, _ in comparison.events()][-1] == "finished" and not comparison.run.chains
    with pytest.raises(UserError, match=f"holds no chain to replay.*{why}"):
        simulate_lane(comparison.run, "static:4")
