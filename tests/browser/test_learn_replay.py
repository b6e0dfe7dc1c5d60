"""The browser's replay equals the what-if module's, over all policies."""

from __future__ import annotations

import base64
import zlib

import pytest

from decoding.analysis import theory
from decoding.lookahead.specs import all_specs
from tests.learn_vectors import LANES, make_vectors
from viz.learn.assets import learn_js

REPLAY = """(cases) => cases.map(({ chain, costs, ending, tuned, lanes }) => {
  const { Replay, simulate, makePolicy, parseLane } = SpeculoscopeLearn;
  const replay = new Replay(chain);
  return Object.fromEntries(Object.keys(lanes).map((text) => {
    const done = simulate(replay, costs, makePolicy(parseLane(text), tuned), ending);
    return [text, [done.iterations, done.cost, done.speedup]];
  }));
})"""


@pytest.fixture(scope="module")
def page(browser):
    page = browser.new_page()
    page.add_script_tag(content=learn_js())
    yield page
    page.close()


def test_every_policy_of_the_browser_is_among_the_vectors(page):
    """A policy need not be ported to JavaScript, but every port must be compared with the Python one."""
    ported = set(page.evaluate("Object.keys(SpeculoscopeLearn.POLICIES)"))
    assert ported == {lane.partition(":")[0] for lane in LANES}
    assert ported <= set(all_specs())


@pytest.mark.parametrize("seed", range(4))
def test_the_replay_makes_the_iterations_that_python_makes(page, seed):
    cases = make_vectors(seed)
    for case, found in zip(cases, page.evaluate(REPLAY, cases), strict=True):
        for lane, (iterations, cost, gain) in case["lanes"].items():
            assert found[lane][0] == iterations, lane
            assert found[lane][1:] == pytest.approx([cost, gain], rel=1e-12), lane


def test_costs_change_as_in_python(page):
    for case in make_vectors(11):
        found = page.evaluate("({costs}) => SpeculoscopeLearn.withCosts(costs, 'toy', {c: 0.03})", case)
        assert found == case["cheaper"]


@pytest.mark.parametrize("alpha", [0.0, 0.5, 0.93, 1.0])
def test_the_closed_form_is_the_theory_module_s(page, alpha):
    costs = {"v": [1.0], "c": {"toy": 0.1}, "o": 0.0, "first": {}}
    found = page.evaluate("a => [0, 1, 7].map((n) => SpeculoscopeLearn.expectedTokens(a, n))", alpha)
    assert found == pytest.approx([theory.expected_tokens(alpha, n) for n in (0, 1, 7)])
    speedups = page.evaluate(
        "([a, costs]) => Array.from({length: 65}, (_, n) => SpeculoscopeLearn.modelSpeedup(a, n, costs, 'toy'))",
        [alpha, costs],
    )
    assert speedups == pytest.approx([theory.speedup(alpha, n, 0.1) for n in range(65)])


def packed(data: bytes) -> str:
    """``data`` as the fragment of a link holds it."""
    return base64.urlsafe_b64encode(zlib.compress(data, 9, -zlib.MAX_WBITS)).decode().rstrip("=")


@pytest.mark.parametrize(
    ("fragment", "sentence"),
    [
        (packed(b"0" * 30_000_000), "larger than a link may hold"),  # a bomb: 40 kB that unpack to 30 MB
        ("A" * 10_000_000, "larger than a link may hold"),
        (packed(b"text")[:-2], "cut or changed"),
        ("AAAA", "cut or changed"),
    ],
    ids=["bomb", "long", "cut", "nonsense"],
)
def test_a_run_in_a_link_is_unpacked_within_limits(page, fragment, sentence):
    said = page.evaluate("packed => SpeculoscopeLearn.unpackRun(packed).catch((error) => error.message)", fragment)
    assert sentence in said


def write(page, source: str, case: dict):
    return page.evaluate(
        """([source, { chain, costs, ending }]) => {
          const { Replay, simulate, Written } = SpeculoscopeLearn;
          try { return simulate(new Replay(chain), costs, new Written(source), ending).iterations; }
          catch (error) { return String(error.message); }
        }""",
        [source, case],
    )


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
def test_a_written_policy_decides_as_the_condition_it_spells_out(page, source, lane):
    for case in make_vectors(5, rounds=3):
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
        ("min(1) > p", "min takes 2 values"),
        ("(" * 60 + "p", "nested too deeply"),
        ("p > 0.4 )", "unexpected"),
        ("p" * 700, "at most 600"),
    ],
)
def test_what_is_no_expression_is_refused_with_a_sentence(page, source, sentence):
    assert sentence in write(page, source, make_vectors(5, rounds=1)[0])
