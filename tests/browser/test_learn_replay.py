"""The browser's replay equals the what-if module's, over all policies."""

import base64
import json
import random
import zlib
from types import SimpleNamespace

import pytest

from decoding.analysis import metrics
from decoding.lookahead.spec import all_specs
from decoding.lookahead.static import expected_tokens
from decoding.records.text import whole_text
from tests.learn_vectors import LANES, make_tuned, make_vectors
from tests.runs import add_draft, make_run, simulate_lane
from viz.player.names import lane_name
from viz.player.payload import run_payload
from viz.player.payload import tuned as page_tuned
from viz.scripts import learn_js

from .opening import result_of

LANES_RUN = ("autoregressive", "static:5", "confidence:0.5", "disco:0.6")
ITERATIONS = "lane.iterations.map((it) => [it.start, it.drafted, it.accepted])"

REPLAY = """(cases) => cases.map(({ chain, costs, paid, ending, tuned, lanes }) => {
  const { Replay, simulate, makePolicy, parseLane } = SpeculoscopeLearn;
  const replay = new Replay(chain);
  return Object.fromEntries(Object.keys(lanes).map((text) => {
    const done = simulate(replay, paid, makePolicy(parseLane(text), tuned), ending, costs);
    return [text, [done.iterations, done.cost, done.speedup]];
  }));
})"""


@pytest.fixture(scope="module")
def page(browser):
    page = browser.new_page()
    page.add_script_tag(content=learn_js())
    yield page
    page.close()


@pytest.fixture(scope="module")
def cases():
    """Chains and costs, each with what Python makes of them."""
    return make_vectors(0)


def test_every_policy_of_the_browser_is_among_the_vectors(page):
    """A policy need not be ported to JavaScript, but every port must be compared with the Python one."""
    ported = set(page.evaluate("Object.keys(SpeculoscopeLearn.POLICIES)"))
    assert ported == {lane.partition(":")[0] for lane in LANES}
    assert ported <= set(all_specs())


def test_the_replay_makes_the_iterations_that_python_makes(page, cases):
    for case, found in zip(cases, result_of(page, REPLAY, cases), strict=True):
        for lane, (iterations, cost, gain) in case["lanes"].items():
            assert found[lane][0] == iterations, lane
            assert found[lane][1:] == pytest.approx([cost, gain], rel=1e-12), lane


def test_costs_change_as_in_python(page, cases):
    cheaper = "cases => cases.map(({costs}) => SpeculoscopeLearn.withCosts(costs, 'toy', {c: 0.03}))"
    assert result_of(page, cheaper, cases) == [case["cheaper"] for case in cases]


@pytest.mark.parametrize("alpha", [0.0, 0.5, 0.93, 1.0])
def test_the_closed_form_is_python_s(page, alpha):
    costs = {"v": [1.0], "c": {"toy": 0.1}, "o": 0.0, "first": {}}
    found = page.evaluate("a => [0, 1, 7].map((n) => SpeculoscopeLearn.expectedTokens(a, n))", alpha)
    assert found == pytest.approx([expected_tokens(alpha, n) for n in (0, 1, 7)])
    speedups = page.evaluate(
        "([a, costs]) => Array.from({length: 65}, (_, n) => SpeculoscopeLearn.modelSpeedup(a, n, costs, 'toy'))",
        [alpha, costs],
    )
    assert speedups == pytest.approx([expected_tokens(alpha, n) / (n * 0.1 + 1) for n in range(65)])


def test_the_break_even_cost_is_found_where_there_is_one(page):
    found = page.evaluate("[2 - 0.3, 0.5, 2].map((at) => SpeculoscopeLearn.breakEven((c) => at === 1.7 ? 2 - c : at))")
    assert found == [pytest.approx(1.0), 0, None]


def test_a_chain_that_is_cut_is_that_of_a_shorter_text(page, cases):
    def cut(chain):
        return result_of(page, "chain => SpeculoscopeLearn.cutChain(chain, 5)", chain)

    for case in cases[:12]:
        chain, whole = cut(case["chain"]), case["chain"]
        assert chain["target"] == whole["target"][:5] and chain["along"]["choice"] == whole["along"]["choice"][:5]
        assert chain["starts"] == whole["starts"][:5]
        assert chain["tails"] == {at: tail for at, tail in whole["tails"].items() if int(at) < 5}
        assert cut(chain) == chain


# -- a run's payload as a model: measured and simulated lanes ------------------------------------------------


def model_of(page, run, expression: str, **options):
    """The value of ``expression`` about ``model``, the run's payload as the page has it."""
    payload = run_payload(run, **options)
    return result_of(
        page, f"payload => {{ const model = new SpeculoscopeLearn.RunModel(payload); return {expression}; }}", payload
    )


TEXT = "lane.tokens.filter((token) => !token.thrown).map((token) => token.text).join('')"


@pytest.mark.parametrize("seed", [3, 5])
def test_every_lane_measured_or_simulated_spells_the_text_with_split_characters_whole(page, seed):
    run = make_run(lanes=LANES_RUN, hostile=True, seed=seed)
    texts = model_of(page, run, f"[...model.lanes, model.staticLane(4), model.alwaysWrong(3)].map((lane) => {TEXT})")
    assert set(texts) == {whole_text(run.lanes[0].output, run.vocab)}


def test_a_run_slower_than_the_example_before_it_says_why_from_both(page):
    easy, hard = make_run(match=0.95, c=0.05), make_run(match=0.5, c=0.4, seed=1)
    both = [run_payload(hard), run_payload(easy)]
    models = "const [here, there] = both.map((one) => new SpeculoscopeLearn.RunModel(one))"
    of_both = "[here.whySlower(there), there.whySlower(here)]"
    sentence, none = result_of(page, f"both => {{ {models}; return {of_both}; }}", both)
    matched = [f"{100 * metrics.match_rate(run.chains['shallow']):.0f}%" for run in (hard, easy)]
    assert f"the draft matches {matched[0]} of the text, there {matched[1]}" in sentence
    assert "a guess costs" in sentence and "checking six" not in sentence  # that is alike in both
    assert none == "" and "on another machine" not in sentence
    doubtful = "here.doubtful = true; return here.whySlower(there)"
    assert result_of(page, f"both => {{ {models}; {doubtful}; }}", both) == ""
    both[1]["badge"]["place"] = "Another processor"
    elsewhere = result_of(page, f"both => {{ {models}; return here.whySlower(there); }}", both)
    assert "×, on another machine or in another number format)" in elsewhere


@pytest.mark.parametrize("repeats", [1, 3])
def test_a_what_if_that_ranks_lanes_otherwise_than_the_clock_says_so(page, repeats):
    run = make_run(lanes=("autoregressive", "confidence:0.5", "confidence:0.3"), repeats=repeats)
    first, second = sorted(run.lanes[1:], key=lambda trace: -metrics.speedup(run, trace).median)
    assert model_of(page, run, "model.rankedOtherwise()") == ""
    for repeat in first.repeats:  # rests, which no curve of drafting or checking explains
        repeat.rest_s = [s + repeat.decode_s / len(repeat.rest_s) for s in repeat.rest_s]
    said = model_of(page, run, "model.rankedOtherwise()")
    slow, fast = (metrics.speedup(run, trace).median for trace in (first, second))
    assert f"it was {lane_name(second.lane)} ({fast:.2f}× against {slow:.2f}×" in said, said
    assert ("timed once" if repeats == 1 else "medians of 3 timings") in said
    oracle = "model.lanes[1].policy = model.lanes[2].policy = 'oracle'"  # which nobody can use
    assert model_of(page, run, f"({oracle}, model.rankedOtherwise())") == ""


def test_simulated_plain_decoding_takes_as_long_as_the_measured_one(page):
    ends = model_of(page, make_run(lanes=LANES_RUN), "[model.plain.end, model.simulatedLane('autoregressive').end]")
    assert ends[0] == pytest.approx(ends[1], rel=1e-9)


def test_the_best_static_lane_of_each_draft_is_the_what_if_s(page):
    run = make_run(lanes=LANES_RUN)
    add_draft(run, "slow", match=0.6, c=0.4)
    for draft in ("shallow", "slow"):
        best = model_of(page, run, f"model.bestStatic(undefined, {draft!r})")
        assert (best["sl"], best["speedup"]) == pytest.approx(metrics.static_opt(run, draft), rel=1e-12)


def test_a_model_has_the_drafts_whose_guesses_and_costs_are_known(page):
    run = make_run(lanes=LANES_RUN)
    assert model_of(page, run, "model.otherDraft()") is None
    add_draft(run, "slow", match=0.6, c=0.4)
    assert model_of(page, run, "[model.otherDraft('shallow'), model.otherDraft('slow')]") == ["slow", "shallow"]
    assert model_of(page, run, "(delete model.costs.c.slow, model.drafts)") == ["shallow"]


def test_a_policy_weighs_what_it_weighed_and_pays_what_the_run_paid(page):
    """At other costs it weighs these."""
    steep = "const steep = { ...model.costs, v: model.costs.v.map((v, n) => 1 + 10 * n) }"
    own = f"model.simulatedLane('oracle:best').{ITERATIONS.removeprefix('lane.')}"
    at_steep = "model.simulated('', SpeculoscopeLearn.POLICIES.oracle('best'), { costs: steep })"
    shown = f"[{own}, (model.weighed = steep, {own}), {at_steep}.{ITERATIONS.removeprefix('lane.')}]"
    usual, weighed, changed = model_of(page, make_run(lanes=LANES_RUN), f"(() => {{ {steep}; return {shown}; }})()")
    assert usual != weighed == changed and not any(drafted for _, drafted, _ in changed)
    flat = "(model.weighed = steep, model.simulated('', SpeculoscopeLearn.POLICIES.oracle('best'), { costs: free }))"
    free = "const free = { ...model.costs, v: model.costs.v.map(() => 1) }"
    drafted = f"(() => {{ {steep}; {free}; return {flat}.{ITERATIONS.removeprefix('lane.')}; }})()"
    assert any(n for _, n, _ in model_of(page, make_run(lanes=LANES_RUN), drafted))


def test_a_lane_with_a_threshold_is_replayed_as_it_ran_and_at_other_thresholds(page):
    run = make_run(lanes=LANES_RUN)
    heads = {"disco": SimpleNamespace(name="disco", needs=frozenset(), tuned={"sl_max": 20, "threshold": 0.5})}
    for number, trace in enumerate(run.lanes[2:], start=2):
        policy, _, as_run = trace.lane.partition(":")
        for value in (float(as_run), 0.2, 0.85):
            lane = f"const lane = model.atThreshold(model.lanes[{number}], {value})"
            shown = f"[{ITERATIONS}, lane.speedup.median, lane.scores]"
            found = model_of(page, run, f"(() => {{ {lane}; return {shown}; }})()")
            expected = simulate_lane(run, f"{policy}:{value:g}", heads=heads)
            assert found[0] == [list(one) for one in expected.iterations]
            assert found[1] == pytest.approx(expected.speedup, rel=1e-12)
            if value == float(as_run):
                assert [row[1:] for row in found[0]] == [[it.n_drafted, it.n_accepted] for it in trace.iterations]
                for it, seen in zip(trace.iterations, found[2], strict=True):
                    for token, one in zip(it.drafted, seen, strict=True):
                        assert one is None or one == [token.score, value]


def test_the_cost_aware_policy_is_replayed_at_multiples_of_its_threshold(page):
    tuned = make_tuned(random.Random(0))["costaware"]
    run = make_run(lanes=("autoregressive", "static:5"))
    chain = run.chains["shallow"]
    for guesses in (chain.along, *chain.tails.values()):
        guesses.scores["costaware"] = list(guesses.p)
    heads = {"costaware": SimpleNamespace(name="costaware", needs=frozenset(), tuned=tuned)}
    expected = simulate_lane(run, "costaware", heads=heads)
    sent = page_tuned("costaware", tuned, run.costs, "shallow")
    lane = {"lane": "costaware", "draft": "shallow", "threshold": {"fixed": False, "longest": 20}}
    expression = f"""(model.tuned.shallow = {{ costaware: {json.dumps(sent)} }}, [0.3, 1, 3].map((factor) => {{
      const lane = model.atThreshold({json.dumps(lane)}, factor);
      return [{ITERATIONS}, lane.scores.flat().filter((one) => one && one[1] != null).map((one) => one[1])]; }}))"""
    low, own, high = model_of(page, run, expression, details=True)
    assert own[0] == [list(one) for one in expected.iterations]
    assert sum(n for _, n, _ in low[0]) > sum(n for _, n, _ in own[0]) > sum(n for _, n, _ in high[0])
    assert max(high[1]) == pytest.approx(3 * max(own[1]), rel=0.2)


def packed(data: bytes) -> str:
    """``data`` as the fragment of a link holds it."""
    return base64.urlsafe_b64encode(zlib.compress(data, 9)).decode().rstrip("=")


@pytest.mark.parametrize(
    ("fragment", "sentence"),
    [
        (f"'{packed(b'0' * 30_000_000)}'", "larger than a link may hold"),  # a bomb: 40 kB that unpack to 30 MB
        ("'A'.repeat(1e7)", "larger than a link may hold"),
        (f"'{packed(b'text')[:-2]}'", "cut or changed"),
        ("'AAAA'", "cut or changed"),
    ],
    ids=["bomb", "long", "cut", "nonsense"],
)
def test_a_run_in_a_link_is_unpacked_within_limits(page, fragment, sentence):
    said = page.evaluate(f"SpeculoscopeLearn.unpackRun({fragment}).catch((error) => error.message)")
    assert sentence in said


def write(page, source: str, case: dict):
    simulated = """([source, { chain, costs, ending }]) => {
      const { Replay, simulate, Written } = SpeculoscopeLearn;
      try { return simulate(new Replay(chain), costs, new Written(source), ending).iterations; }
      catch (error) { return String(error.message); }
    }"""
    return result_of(page, simulated, [source, case])


@pytest.mark.parametrize(
    ("source", "lane"),
    [
        ("guessed < 3", "static:3"),
        ("p >= 0.8", "confidence:0.8"),
        ("limit = 2 * 0.4\np >= limit # the same", "confidence:0.8"),
        ("sqrt(0.15 * entropy) <= 0.3", "entropy"),
        ("not (guessed >= 1 or false) and 1 < 2", "static:1"),
        ("guessed - -1 <= 2^0 * 3", "static:3"),
    ],
)
def test_a_written_policy_decides_as_the_condition_it_spells_out(page, source, lane, cases):
    for case in cases[:6]:
        assert write(page, source, case) == case["lanes"][lane][0]


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("", "Write a condition for guessing on"),
        ("p >", "too early"),
        ("window.alert(1)", "not understood"),
        ("constructor", "there is no “constructor”"),
        ("__proto__ > 0", "there is no “__proto__”"),
        ("toString(1)", "there is no “toString”"),
        ("p = 3\np > 1", "is already defined"),
        ("x = 3", "last line must be the condition"),
        ("p > 0.4\np > 0.5", "Line 1 has no effect: write name = "),
        ("min(1) > p", "min takes 2 values"),
        ("(" * 60 + "p", "nested too deeply"),
        ("p > 0.4 )", "unexpected"),
        ("p" * 700, "at most 600"),
    ],
)
def test_what_is_no_expression_is_refused_with_a_sentence(page, source, sentence, cases):
    assert sentence in write(page, source, cases[0])
