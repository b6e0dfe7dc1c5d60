"""The decode loop on toy models, with chains and trees of guesses: lossless, within its limits, recorded correctly."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from decoding.comparison.annotate import fate_of
from decoding.comparison.lane_run import LaneRun
from decoding.comparison.prepare import prepare
from decoding.engines.compiled.readout import Reading
from decoding.engines.inputs import EncodedPrompt
from decoding.errors import UserError
from decoding.lookahead.base import DraftState
from decoding.loop.acceptance import Greedy, Sampling, make_rule
from decoding.loop.clock import DRAFT, POLICY, REST, VERIFY
from decoding.loop.drafting import NgramDraft
from decoding.loop.growing import in_order_of_text
from decoding.loop.sampling import Shaping, gumbel_row
from decoding.records.proposal import SHARPNESS, Proposal, path_to
from decoding.records.request import CompareRequest
from decoding.records.run_file import run_from_json, run_to_json

from .runs import make_costs, simulate_lane
from .toy import ToyModel, ToyPair, quick_run, shape_of

COSTS = make_costs(drafts=("small", "weak", "ngram"))


def prepared_for(pair, lane="static:5", prompt="abcabc", n=40, **more):
    """For that lane alone."""
    return prepare(CompareRequest(prompt, lanes=[lane], max_new_tokens=n, **more), pair)


def decode(prepared, costs=COSTS):
    return LaneRun(prepared, prepared.lanes[0], costs).run()


def test_after_full_acceptance_the_draft_reads_two_tokens():
    pair = ToyPair(agree=1.0)
    run = decode(prepared_for(pair, "static:3", n=12))
    assert [it.n_accepted for it in run.iterations] == [3, 3, 3]
    assert pair.draft().passes == [1, 1, 1, 2, 1, 1, 2, 1, 1]
    assert pair.target.passes == [4, 4, 4]


def test_the_last_iteration_drafts_one_less_than_wanted():
    run = decode(prepared_for(ToyPair(agree=1.0), "static:5", n=8))
    assert [(it.start, len(it.drafted), it.stop) for it in run.iterations] == [(0, 5, "policy"), (6, 1, "limit")]
    assert decode(prepared_for(ToyPair(agree=1.0), "static:5", n=6)).iterations[0].stop == "policy"
    assert run.finish == "length" and len(run.output) == 8
    assert [it.stop for it in decode(prepared_for(ToyPair(), "tree:6", n=1)).iterations] == ["limit"]


def test_end_of_sequence_within_the_draft():
    pair = ToyPair(agree=1.0)
    text = decode(prepared_for(pair, n=30)).output
    eos = next(token for token in text[2:] if token not in text[:2])
    at = text.index(eos)
    pair = ToyPair(agree=1.0, eos=eos)
    run = decode(prepared_for(pair, "static:20", n=30))
    assert run.output == text[: at + 1] and run.finish == "eos"
    last = run.iterations[-1]
    assert last.stop == "eos" and last.emitted is None and last.drafted == text[: at + 1]
    assert decode(prepared_for(pair, "static:20", n=30, ignore_eos=True)).output == text


def test_a_stop_string_across_tokens_within_the_draft():
    pair = ToyPair(agree=1.0)
    text = decode(prepared_for(pair, n=30)).output
    string = pair.tokenizer.decode(text[4:7])
    whole = pair.tokenizer.decode(text)
    run = decode(prepared_for(pair, "static:20", n=30, stop=[string]))
    assert pair.tokenizer.decode(run.output) == whole[: whole.index(string) + 3]
    last = run.iterations[-1]
    assert run.finish == "stop" and last.emitted is None and last.n_accepted < len(last.drafted)
    assert {fate_of(last, index) for index in range(last.n_accepted, len(last.drafted))} == {"dropped"}


def test_a_draft_with_a_smaller_context_stops_guessing():
    pair = ToyPair(agree=1.0, draft_length=14)
    run, plain = (decode(prepared_for(pair, lane, "abcdef", n=30)) for lane in ("static:5", "autoregressive"))
    assert run.output == plain.output
    assert run.iterations[1].stop == "context" and not run.iterations[-1].drafted
    # after 6 + 5 + 1 tokens it can still read two proposals of three: 14 in all
    assert [len(it.drafted) for it in run.iterations[:3]] == [5, 3, 0]


@pytest.mark.parametrize("lane", ["static:3", "confidence:0.4"])
def test_each_pass_falls_into_its_phase(lane, monkeypatch):
    """By a clock on which a pass of the draft takes a second, one of the target a thousand, a reader a million."""
    pair, seen = ToyPair(agree=0.8), []
    draft, target = pair.draft().passes, pair.target.passes
    monkeypatch.setattr("decoding.loop.clock.perf_counter", lambda: len(draft) + 1e3 * len(target) + 1e6 * len(seen))
    prepared = prepared_for(pair, lane, n=30)
    run = LaneRun(prepared, prepared.lanes[0], COSTS)
    for it in run.decode():
        seen.append(it)  # for whoever reads it, the clock stands still
        assert (it.times[DRAFT], it.times[VERIFY]) == (len(it.drafted), 1000.0)
        assert it.times[POLICY] == it.times[REST] == 0.0
    assert run.decode_s == len(draft) + 1000.0 * len(seen)


def test_cancel_comes_between_iterations():
    prepared, seen = prepared_for(ToyPair(), "static:2"), []
    lane = LaneRun(prepared, prepared.lanes[0], COSTS)
    for iteration in lane.decode(cancelled=lambda: len(seen) == 3):
        seen.append(iteration)
    assert len(seen) == 3 and lane.finish == "cancelled"


def test_decisions_stand_beside_what_they_were_about():
    run = decode(prepared_for(ToyPair(agree=0.9), "confidence:0.6"))
    for it in run.iterations:
        if it.stop == "policy":
            assert len(it.decisions) == len(it.drafted) + 1 and it.decisions[-1][0] < 0.6
        assert all(score is None or score >= 0.6 for score, _ in it.decisions[:-1])


RULES = [{}, {"temperature": 0.8, "rule": "coupling"}, {"temperature": 3.0, "rule": "sampling"}]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("lane", ["static:4", "tree:6"])
def test_the_same_seed_is_the_same_repeat_and_above_temperature_0_another_one_is_not(lane, rule):
    prepared = prepared_for(ToyPair(), lane, seed=5, **rule)
    one, two, other = decode(prepared), decode(prepared), decode(prepared_for(ToyPair(), lane, seed=6, **rule))
    assert one.output == two.output and (one.output == other.output) == (rule == {})
    one, two = ([(it.drafted, it.parents) for it in run.iterations] for run in (one, two))
    assert one == two


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("lane", ["static:5", "tree:6"])
@pytest.mark.parametrize("whose", ["target", "draft"])
def test_a_padded_vocabulary_never_shows(whose, lane, rule):
    pair = ToyPair(padded=5 * (whose == "target"))
    if whose == "draft":
        pair._drafts["small"] = ToyModel("small", agree=0.8, padded=5)
    padded, plain = (decode(prepared_for(one, lane, n=60, **rule)) for one in (pair, ToyPair()))
    assert padded.output == plain.output and shape_of(padded) == shape_of(plain) and max(padded.output) < 16


@given(st.lists(st.integers(0, 3), min_size=1, max_size=30), st.integers(1, 6))
def test_ngram_equals_its_plain_definition(text, n):
    def look_up(seq):
        for size in (3, 2, 1):
            if len(seq) > size - 1:
                suffix = seq[-size:]
                for end in range(len(seq) - 1, size - 1, -1):
                    if seq[end - size : end] == suffix:
                        return seq[end]
        return None

    source, state = NgramDraft(make_rule(CompareRequest("x"), 9, 9)), DraftState()
    source.start(EncodedPrompt(text[:1]))
    expected = list(text)
    source.propose(text, state, n, frozenset())
    for _ in range(n):
        token = look_up(expected)
        if token is None:
            break
        expected.append(token)
    assert state.tokens == expected[len(text) :]


# -- trees

FREE, DEAR = (make_costs(0.02, rise, drafts=["small"], length=65, overhead=0.0) for rise in (0.0, 0.3))


def test_a_tree_holds_the_likeliest_paths():
    """By brute force over all paths of up to four guesses, by the toy draft's chances for them."""
    pair = ToyPair(agree=0.6)
    prepared = prepared_for(pair, "tree:6", n=30)
    run = decode(prepared)
    draft, text = pair.draft(), [*prepared.prompt.ids, *run.output]

    def chances(context):
        draft.prefill(context[:-1])
        row = (SHARPNESS * draft.extend(context[-1:])[-1].double()).softmax(-1)
        return sorted(((float(p), token) for token, p in enumerate(row)), reverse=True)[:6]

    def paths(context, chance, deepest):
        for p, token in chances(context):
            yield chance * p, (*context[len(base) :], token)
            if deepest > 1 and chance * p > 0.001:
                yield from paths([*context, token], chance * p, deepest - 1)

    it = run.iterations[1]
    base = text[: len(prepared.prompt) + it.start]
    best = {path for _, path in sorted(paths(base, 1.0, 4), reverse=True)[:6]}
    drafted = {tuple(it.drafted[node] for node in path_to(it.parents, last)) for last in range(6)}
    assert max(map(len, drafted)) <= 4, "the brute force covers all of them"
    assert drafted == best


@pytest.mark.parametrize("q", [[0.7, 0.1, 0.1, 0.1], [0.25] * 4, [0.0, 0.5, 0.5, 0.0], [1.0, 0.0, 0.0, 0.0]])
@pytest.mark.parametrize("ids", [None, [0, 2, 3, 4]])
@pytest.mark.parametrize("n_siblings", [1, 2, 3])
def test_siblings_without_replacement_leave_the_target_s_distribution(q, ids, n_siblings):
    """One place: the emitted token has the target's distribution, however many siblings are tried."""
    p = np.array([0.4, 0.3, 0.2, 0.06, 0.04])
    with np.errstate(divide="ignore"):
        row, target = np.log(np.array(q, dtype=np.float32)), np.log(p).astype(np.float32)
    if ids is None:
        row = np.append(row, np.float32(-np.inf))
    rule, seen, draws = Sampling(5, Shaping(), 3), np.zeros(5), 3000
    head, rows = None if ids is None else np.array(ids), np.stack([target] * (n_siblings + 1))
    for _ in range(draws):
        siblings = rule.siblings(row, 0, -1, head)
        tokens = []
        while siblings.chance > 0.0 and len(tokens) < n_siblings:
            tokens.append(siblings.draw()[0])
        assert len(set(tokens)) == len(tokens)
        tree = Proposal(tokens, [-1] * len(tokens))
        path, emitted = rule.verify(rows[: len(tokens) + 1], tree, 0)
        seen[tokens[path[0]] if path else emitted] += 1
        assert len(rule.draws) == len(tokens)
    chi_square = ((seen - draws * p) ** 2 / (draws * p)).sum()
    assert chi_square < 20.0  # 4 degrees of freedom: p = 0.0005


@given(st.lists(st.floats(-20, 20, width=32), min_size=1, max_size=12, unique=True), st.booleans())
def test_siblings_after_a_token_that_the_engine_has_read_are_those_of_the_row(logits, reduced):
    """Tokens beyond REACH are in the sum of one side only."""
    row, ids = np.array(logits, dtype=np.float32), np.arange(100, 112)[: len(logits)] if reduced else None
    below, first = row - row.max(), int(row.argmax())
    order, falling = (-row).argsort(kind="stable"), -np.sort(-np.append(below, [-np.inf, -np.inf]))
    sums = 0.0, 0.0, float(np.exp(SHARPNESS * below).sum())
    known = Reading(first, 0.0, -falling[1], *sums, order[1 % len(row)], -falling[2])
    rule = Greedy(len(row))
    whole, one = rule.siblings(row, 0, -1, ids), rule.siblings(row, 0, -1, ids, known)
    while whole.chance > 0.0 and one.chance > 0.0:
        assert one.chance == pytest.approx(whole.chance, rel=1e-3)
        (token, held), (expected, chance) = one.draw(), whole.draw()
        assert token == expected and held == pytest.approx(chance, rel=1e-3)
    assert max(one.chance, whole.chance) < 1e-5


def test_a_reduced_head_s_choices_are_made_with_the_noise_of_its_tokens():
    ids, row = np.array([1, 4, 6, 7]), np.zeros(4, dtype=np.float32)
    rule = make_rule(CompareRequest("x", rule="coupling", temperature=1.0), 8, 20)
    for position in range(20):
        likeliest = int(ids[gumbel_row(0, position, 8)[ids].argmax()])
        assert int(ids[rule.propose(row, position, ids)[0]]) == likeliest
        assert rule.siblings(row, position, -1, ids).draw()[0] == likeliest


def test_more_siblings_are_accepted_more_often():
    """The second sibling is worth something: it is not merely harmless."""
    rate, rule = [], {"rule": "sampling", "temperature": 1.0}
    for lane in ("tree:1", "tree:3"):
        runs = [decode(prepared_for(ToyPair(agree=0.5), lane, n=30, seed=seed, **rule)) for seed in range(8)]
        rate.append(np.mean([it.n_accepted > 0 for run in runs for it in run.iterations if it.drafted]))
    assert rate[1] > rate[0] + 0.05


@pytest.mark.parametrize(("target_length", "draft_length"), [(16, 14), (14, 16)])
def test_the_context_ends_a_tree(target_length, draft_length):
    pair = ToyPair(agree=0.9, target_length=target_length, draft_length=draft_length)
    plain, run = (decode(prepared_for(pair, lane, "abcdef", 500)) for lane in ("autoregressive", "tree:20"))
    assert run.output == plain.output and run.finish == "context"
    assert run.iterations[0].stop == "context"


def test_what_was_decided_and_drawn_moves_with_the_guess():
    state = DraftState(tokens=[5, 6, 7], parents=[-1, -1, 1])
    decisions, draws = [(n / 10, 0.5) for n in range(4)], [(0.1, 0.9), (0.8, 0.2), (0.7, 0.3)]
    found = in_order_of_text(state, [1, 2], decisions, draws)
    assert found[:2] == ([6, 7, 5], [-1, 0, -1])
    assert found[2:] == ([decisions[at] for at in (0, 2, 3, 1)], [draws[at] for at in (1, 2, 0)])


def test_a_run_with_trees_is_a_file_that_can_be_read_again():
    run = quick_run(["autoregressive", "tree:6", "costtree", "static:3"], ToyPair(agree=0.7), repeats=2)
    again = run_from_json(run_to_json(run))
    assert again == run and all(trace.verdict.same for trace in again.lanes)
    tree = again.lane("tree:6")
    assert all(len(trace.repeats) == 2 for trace in again.lanes), "repeats take the same iterations"
    for it in tree.iterations:
        assert it.n_steps <= it.n_drafted and it.deepest <= it.n_drafted
        for token, parent in zip(it.drafted, it.parents):
            assert (token.fate == "rejected") == (
                token.fate != "accepted" and parent < it.n_accepted and it.emitted is not None
            )
            assert token.p_draft is not None and token.p_target is not None
            if token.fate == "rejected":
                assert token.target_choice != token.id
    assert all(it.parents is None for it in again.lane("static:3").iterations)


def follow_itself(it) -> None:
    it.parents[5], it.drafted[5].fate = 5, "dropped"


BREAKS = [lambda it: it.parents.append(0), lambda it: it.parents.__setitem__(1, 5), follow_itself]


@pytest.mark.parametrize("change", BREAKS)
def test_a_broken_tree_is_refused(change):
    run = quick_run(["tree:6"], ToyPair(agree=0.7))
    change(run.lanes[0].iterations[0])
    with pytest.raises(UserError, match="does not follow"):
        run_from_json(run_to_json(run))


def test_dear_rows_make_costtree_narrow_and_free_ones_wide():
    sizes = []
    for costs in (DEAR, FREE):
        run = decode(prepared_for(ToyPair(agree=0.6), "costtree", n=60), costs=costs)
        sizes.append(np.mean([len(it.drafted) for it in run.iterations]))
    assert sizes[0] < 3.0 < 8.0 < sizes[1]


def test_what_a_tree_cannot_have_is_a_sentence():
    pair = ToyPair()
    pair.target.can_branch = False
    with pytest.raises(UserError, match="these models cannot read"):
        prepared_for(pair, "tree:4")
    with pytest.raises(UserError, match="the chain of a run does not hold"):
        simulate_lane(quick_run(["static:3"]), "tree:4")
