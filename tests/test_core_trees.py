"""Trees of guesses: lossless with every rule and engine, within their limits, and recorded as they were drafted."""

import numpy as np
import pytest

from decoding.analysis.whatif import simulate_lane
from decoding.errors import UserError
from decoding.loop.acceptance import SHARPNESS, Sampling
from decoding.loop.sampling import Shaping
from decoding.records.proposal import Proposal, path_to
from decoding.records.run_file import run_from_json, run_to_json
from tests.runs import make_costs
from tests.test_core_loop import decode, prepared_for
from tests.toy import ToyPair, quick_run, shape_of

FREE, DEAR = (make_costs(0.02, rise, drafts=["small"], length=65, overhead=0.0) for rise in (0.0, 0.3))


def test_a_tree_of_one_guess_is_a_chain_of_one():
    pair = ToyPair(agree=0.7)
    tree, chain = decode(prepared_for(pair, "tree:1")), decode(prepared_for(pair, "static:1"))
    assert tree.output == chain.output and shape_of(tree) == shape_of(chain)


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
    for _ in range(draws):
        siblings = rule.siblings(row, 0, -1, None if ids is None else np.array(ids))
        tokens = []
        while siblings.chance > 0.0 and len(tokens) < n_siblings:
            tokens.append(siblings.draw()[0])
        assert len(set(tokens)) == len(tokens)
        tree = Proposal(tokens, [-1] * len(tokens))
        path, emitted = rule.verify_tree(np.stack([target] * (len(tokens) + 1)), tree, 0)
        seen[tokens[path[0]] if path else emitted] += 1
        assert len(rule.draws) == len(tokens)
    chi_square = ((seen - draws * p) ** 2 / (draws * p)).sum()
    assert chi_square < 20.0  # 4 degrees of freedom: p = 0.0005


def test_more_siblings_are_accepted_more_often():
    """The second sibling is worth something: it is not merely harmless."""
    rate, rule = [], {"rule": "sampling", "temperature": 1.0}
    for lane in ("tree:1", "tree:3"):
        runs = [decode(prepared_for(ToyPair(agree=0.5), lane, n=30, seed=seed, **rule)) for seed in range(8)]
        rate.append(np.mean([it.n_accepted > 0 for run in runs for it in run.iterations if it.drafted]))
    assert rate[1] > rate[0] + 0.05


def test_the_context_ends_a_tree():
    pair = ToyPair(agree=0.9, target_length=16, draft_length=14)
    plain, run = (decode(prepared_for(pair, lane, "abcdef", 500)) for lane in ("autoregressive", "tree:20"))
    assert run.output == plain.output and run.finish == "context"
    assert run.iterations[0].stop == "context"


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


@pytest.mark.parametrize("change", [lambda it: it.parents.append(0), lambda it: it.parents.__setitem__(1, 5)])
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
