"""fit: data, training, calibration and tuning, from prompts to loadable files; and its sentences."""

import json
import random
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from decoding.analysis.tuning import choose
from decoding.analysis.validation import read_validation
from decoding.analysis.whatif import Replay
from decoding.comparison.chain import record_chain
from decoding.comparison.prepare import ALL_FEATURES, make_draft
from decoding.engines.inputs import FINAL, EncodedPrompt
from decoding.engines.pair import load_pair
from decoding.errors import Cancelled, UserError
from decoding.fit import calibration, candidates
from decoding.fit import data as data_module
from decoding.fit.calibration import Platt, calibration_error, figures, fit_chance, fit_platt, judged
from decoding.fit.candidates import fitter_of, head_of
from decoding.fit.costaware import flatten, recent_along, train_network, train_table
from decoding.fit.data import FitOptions, Positions, greedy_texts, positions_along
from decoding.fit.disco import train_disco
from decoding.fit.run import fit
from decoding.fit.training import Trained
from decoding.lookahead.base import SL_CAP, DraftState
from decoding.lookahead.costaware import chance, updated
from decoding.lookahead.costaware_heads import repetition_inputs
from decoding.lookahead.fitted import load_heads, make_policy, read_policy
from decoding.lookahead.lanes import parse_lane
from decoding.lookahead.ngrams import CELLS, N_LEVELS, Ngrams
from decoding.lookahead.repetition import LONGEST, N_EVIDENCE
from decoding.loop.acceptance import Greedy
from decoding.loop.limits import Limits
from decoding.records.suites import Prompt
from decoding.records.trace import Chain, Guesses

from .commands import command
from .feature_pair import WIDTH, load_feature_pair
from .learned_heads import make_architecture, make_features, make_heads, make_weights
from .runs import make_chain, make_costs
from .tiny_models import make_tiny_pair
from .toy import quick_run

OPTIONS = FitOptions("code", n_train=22, n_validation=3, max_new_tokens=24, epochs=1)


@pytest.fixture(autouse=True)
def few_tries(monkeypatch, tmp_path):
    """What costs least is chosen from few heads, settings and timings: what wins does not matter here."""
    monkeypatch.setenv("SPECULOSCOPE_CACHE", str(tmp_path))  # texts are kept only in this folder
    monkeypatch.setattr("decoding.comparison.costs.ROUNDS", (2, 2))
    monkeypatch.setattr("decoding.fit.run.COST_PROMPTS", 1)
    monkeypatch.setattr("decoding.fit.run.DECISION_PROMPTS", 1)
    monkeypatch.setattr("decoding.fit.candidates.CAPS", (8, SL_CAP))
    monkeypatch.setattr("decoding.fit.specdecpp.VARIANTS", [(3, None), (0, "margin"), (1, "p")])
    monkeypatch.setattr("decoding.fit.costaware.FLAT_FROM", (8, LONGEST + 1))


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    return make_tiny_pair(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def pair(places):
    return load_pair(target=places[0], draft=places[1], dtype="float32", threads=1)


@pytest.fixture
def prompts(monkeypatch):
    """A suite of invented prompts, which a test may change."""
    found = {"text": lambda n: f"def f{n}(x): return x + {n * 7}"}

    def load_suite(name, split=None, limit=None):
        texts = (found["text"](n if split == "train" else 1000 + n) for n in range(limit))
        return [Prompt(f"{split}-{n}", name, split, text, "test") for n, text in enumerate(texts)]

    monkeypatch.setattr(data_module, "load_suite", load_suite)
    return found


def test_the_command_writes_policies_that_load_and_decide(places, pair, prompts):
    asked = "--suite code --train 22 --validation 3 --max-new-tokens 24 --epochs 1 --json"
    rows = json.loads(command("fit", "--target", places[0], "--draft", places[1], *asked.split()).out)
    assert [row["policy"] for row in rows] == ["disco", "specdecpp", "costaware"]
    assert all(row["latency"] > 0 for row in rows)
    folder = pair.draft_folders[pair.default_draft] / "policies"
    heads = load_heads(folder, pair.target.info.fingerprint, pair.draft().info.fingerprint)
    assert set(heads) == {"disco", "specdecpp", "costaware"} and not heads.faults
    for lane in ("disco", "disco:0.7", "specdecpp", "specdecpp:auto", "costaware"):
        make_policy(parse_lane(lane), heads)
    policy = read_policy(folder, "disco")
    assert policy.features == ["entropy", "top10"] and len(policy.normalisation["mean"]) == 12
    assert policy.rule == "greedy" and policy.temperature == 0.0
    assert policy.data["train_texts"] == 22 and policy.data["train_positions"] > 500
    assert {"auc", "f1", "f1_always_accept", "latency", "calibration_error"} <= set(policy.metrics["validation"])
    (shipped,) = folder.glob("validation.*")
    stamp = (folder / "disco.json").stat().st_mtime_ns
    shipped.unlink()
    messages: list[str] = []
    note = lambda message, share: messages.append(message)  # noqa: E731
    (again,) = fit(pair, [pair.default_draft], OPTIONS, note, only_chains=True)
    assert any("validation texts" in message for message in messages)
    recorded = read_validation(folder, pair.default_draft, pair.target.info.fingerprint, pair.draft().info.fingerprint)
    assert again.policies == [] and stamp == (folder / "disco.json").stat().st_mtime_ns
    assert len(recorded) == OPTIONS.n_validation and set(recorded[0].chain.along.scores) == set(heads)


def test_a_cancelled_fit_writes_nothing(pair, prompts):
    def written() -> dict:
        return {path: path.stat().st_mtime_ns for path in pair.draft_folders["draft"].rglob("*")}

    before = written()
    with pytest.raises(Cancelled):
        fit(pair, ["draft"], OPTIONS, cancelled=lambda: True)
    assert written() == before


@pytest.mark.parametrize(
    "draft, prompt, options, words",
    [
        ("draft", "x" * 5000, OPTIONS, "has no usable prompt in its train split"),
        ("draft", "x", replace(OPTIONS, n_train=2, max_new_tokens=16), "Only 32 positions to train on"),
        ("draft", "x", replace(OPTIONS, max_new_tokens=7), "ends every train text immediately"),
        ("ngram", "x", OPTIONS, "fit a model draft"),
    ],
)
def test_what_cannot_be_fitted_is_reported(pair, prompts, draft, prompt, options, words):
    prompts["text"] = lambda n: f"{n}{prompt}"
    with pytest.raises(UserError, match=words):
        fit(pair, [draft], options)


def test_texts_from_which_nothing_can_be_learnt_are_reported(places, prompts, monkeypatch):
    itself = load_pair(target=places[0], draft=places[0], dtype="float32", threads=1)
    with pytest.raises(UserError, match="always right or always wrong on these texts: there is nothing to learn"):
        fit(itself, [itself.default_draft], OPTIONS)
    monkeypatch.setattr(data_module, "greedy_texts", lambda pair, draft, prompts, *rest: [[1]] * len(prompts))
    with pytest.raises(UserError, match="ends every train text immediately: there is nothing to fit on"):
        fit(itself, [itself.default_draft], OPTIONS)


def test_a_calibration_that_does_not_converge_is_reported(monkeypatch):
    hasty = partial(calibration.LogisticRegression, max_iter=1)
    monkeypatch.setattr(calibration, "LogisticRegression", lambda **options: hasty(C=options["C"]))
    with pytest.raises(UserError, match="Calibration did not converge: fit again with more prompts"):
        fit_platt(np.array([0.1, 0.4, 0.3, 0.9]), np.array([0.0, 1.0, 0.0, 1.0]))


def test_training_that_diverges_is_reported():
    positions = _positions(600)
    positions.entropy[5] = np.nan
    with pytest.raises(UserError, match="Training the policy disco diverged"):
        train_disco(positions, 4, "probabilities", 1, 0)


def _positions(n: int) -> Positions:
    rng = np.random.default_rng(0)
    p = rng.random(n).astype(np.float32)
    return Positions(
        position=np.tile(np.arange(20), n // 20),
        p=p,
        entropy=(1 - p) * 3,
        top10=np.repeat(p[:, None], 10, 1),
        margin=5 * p,
        evidence=np.zeros(n, dtype=int),
        levels=np.zeros((n, N_LEVELS), dtype=np.uint8),
        match=(rng.random(n) < p).astype(np.float32),
        hidden=np.zeros((n, 4), dtype=np.float16),
    )


# -- the parts


def test_texts_are_the_targets_own_and_those_that_are_there_are_not_written_again(pair, monkeypatch):
    prompts = [[5, 6, 7], [9] * 11, [3, 4], [8, 7, 6, 5, 4]]
    expected, shares = [_greedy(pair.target, prompt, 12) for prompt in prompts], []
    assert greedy_texts(pair, pair.default_draft, prompts[:1], 12) == expected[:1]
    assert greedy_texts(pair, pair.default_draft, prompts, 12, shares.append) == expected
    assert shares == [0.0, 0.25, 0.5, 0.75]
    monkeypatch.setattr("decoding.comparison.kept_texts.LaneRun", lambda *a: pytest.fail("it was there"))
    assert greedy_texts(pair, pair.default_draft, prompts, 12) == expected


def test_collected_guesses_are_the_live_drafts(pair):
    prompt, n = [5, 6, 7, 8, 9, 10], 20
    target, draft = pair.target, pair.draft()
    text = _greedy(target, prompt, n)
    found = positions_along(target, make_draft(pair, pair.default_draft, Greedy(257), ALL_FEATURES), prompt, text)
    assert found.position.tolist() == [*range(n)] and 0 < found.match.sum() < n
    draft.kept_layers = FINAL
    for at in range(n):
        row = draft.prefill(prompt + text[:at])[-1].softmax(-1)
        guess = int(row.argmax())
        assert found.match[at] == float(guess == text[at])
        assert found.p[at] == pytest.approx(float(row.max()), rel=1e-4)
        first, second = row.topk(2).values.log().tolist()
        assert found.margin[at] == pytest.approx(first - second, rel=1e-3, abs=1e-4)
        draft.extend([guess])
        np.testing.assert_allclose(found.hidden[at], draft.last_states[0][-1].numpy(), rtol=2e-3, atol=2e-3)
    draft.kept_layers = ()


def _greedy(model, prompt: list[int], n: int) -> list[int]:
    text = [int(model.prefill(prompt)[-1].argmax())]
    while len(text) < n:
        text.append(int(model.extend(text[-1:])[-1].argmax()))
    return text


# -- a draft that reads hidden states


@pytest.fixture(scope="module")
def reading(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        yield load_feature_pair(tmp_path_factory.mktemp("models"), patch)


@pytest.mark.parametrize("draft", ["feature", "heads"])
def test_what_is_collected_of_its_iterations_is_what_its_policies_see(reading, draft):
    prompt = reading.encode_prompt("def f(x):\n    return").ids
    text = _greedy(reading.target, prompt, 40)
    source, heads = make_draft(reading, draft, Greedy(257), ALL_FEATURES), make_heads(hidden_size=WIDTH)
    one, encoded = positions_along(reading.target, source, prompt, text), EncodedPrompt(prompt)
    chain = record_chain(source, encoded, text, Limits(50), heads=heads, target=reading.target)
    seen = {start + index: (guesses, index) for start, guesses, index in _iterations(chain)}
    assert one.position.tolist() == list(seen) and 1 in {index for _, index in seen.values()}
    assert 5 < one.match.sum() < 35
    choices: list[int | None] = [None] * len(text)
    for place, (guesses, index) in seen.items():
        choices[place] = guesses.choice[index]
    assert one.match.tolist() == [float(choices[place] == text[place]) for place in seen]
    np.testing.assert_allclose(one.p, [guesses.p[index] for guesses, index in seen.values()], rtol=1e-4)
    if draft == "feature":
        assert [guesses.choice[index] for guesses, index in judged(chain)] == choices != chain.along.choice
        for row, (place, (guesses, index)) in enumerate(seen.items()):
            state = DraftState(guesses.choice[: index + 1], start=place - index, text=prompt + text[: place - index])
            for name in ("p", "entropy", "top10", "margin"):
                getattr(state, name).extend(getattr(one, name)[row - index : row + 1])
            state.hidden.extend(one.hidden[row - index : row + 1].astype(np.float32))
            for name, head in heads.items():
                assert head.score_chain(state)[-1] == pytest.approx(guesses.scores[name][index], abs=5e-3), name


def _iterations(chain: Chain) -> Iterator[tuple[int, Guesses, int]]:
    """(start, guesses, index) of each guess up to the mistakes, where iterations follow one another; of those that
    another guess can follow.
    """
    start = 0
    while start < len(chain.target):
        guesses, held = chain.starts[start], chain.holds(start)
        for index in range(min(held + 1, len(chain.target) - start, len(guesses.choice) - 1)):
            yield start, guesses, index
        start += held + 1


def test_policies_are_fitted_for_it_and_decode(reading, prompts):
    few = replace(OPTIONS, n_validation=2)
    (one,) = fit(reading, ["feature"], few)
    assert [policy.policy for policy in one.policies] == ["disco", "specdecpp", "costaware"]
    lanes = ["autoregressive", *(f"feature/{policy.policy}" for policy in one.policies)]
    run = quick_run(lanes, reading, prompts["text"](3), max_new_tokens=16)
    assert all(trace.verdict.same for trace in run.lanes)
    assert set(run.chains["feature"].starts[0].scores) == {"disco", "specdecpp", "costaware"}
    folder = reading.draft_folders["feature"] / "policies"
    recorded, heads = read_validation(folder, "feature"), load_heads(folder, None, None)
    assert len(recorded) == few.n_validation and all(one.chain.starts for one in recorded)
    assert set(choose(recorded, heads, run.costs).arguments) == set(heads)


def test_platt_scaling_mends_overconfidence():
    rng = np.random.default_rng(0)
    true = rng.random(20_000)
    outcome = (rng.random(20_000) < true).astype(float)
    logits = 3.0 * np.log(true / (1 - true)) + 0.5  # three times too sure
    said = 1 / (1 + np.exp(-logits))
    platt = fit_platt(said, outcome)
    assert platt.slope == pytest.approx(1 / 3, abs=0.03)
    assert calibration_error(platt.apply(said), outcome) < 0.02 < calibration_error(said, outcome)
    assert figures(platt.apply(said), outcome)["auc"] == pytest.approx(figures(said, outcome)["auc"], abs=1e-4)


def test_outcomes_of_one_kind_or_the_wrong_way_round_leave_probabilities_alone():
    assert fit_platt(np.array([0.2, 0.3, 0.8, 0.9]), np.array([1.0, 1.0, 0.0, 0.0])) == Platt(1.0, 0.0)
    assert fit_platt(np.array([0.2, 0.9]), np.ones(2)) == Platt(1.0, 0.0)
    alpha, beta, gamma = fit_chance(np.array([0.2, 0.9]), np.array([0.5, 0.6]), np.ones(2))
    assert beta == gamma == 0.0 and alpha > 5


def test_a_chance_is_fitted_to_what_was_judged_and_to_what_held_lately():
    rng = np.random.default_rng(0)
    judged, recent = rng.uniform(0.05, 0.95, 40_000), rng.random(40_000)
    wanted = (-0.5, 0.8, 1.5)
    likely = np.array([chance(wanted, h, r) for h, r in zip(judged, recent)])
    found = fit_chance(judged, recent, (rng.random(40_000) < likely).astype(float))
    assert found == pytest.approx(wanted, abs=0.1)


def test_the_recent_match_rate_is_that_before_each_guess():
    right = np.array([1.0, 1.0, 0.0, 1.0])
    rates = recent_along(right, 0.6)
    rate = 0.6
    for one, before in zip(right, rates, strict=True):
        assert before == pytest.approx(rate)
        rate = updated(rate, bool(one))
    assert 0.6 < rates[2] < 1.0 and rates[3] < rates[2]


@pytest.mark.parametrize(("policy", "seed"), [("disco", 0), ("specdecpp", 0), ("costaware", 0), ("costaware", 2)])
def test_calibration_is_folded_into_the_heads_last_layer(policy, seed):
    trained = Trained(make_weights(policy, seed), 0.0, make_architecture(), {})
    platt, features = Platt(0.5, 0.3), make_features(6)
    calibrated = replace(trained, weights=fitter_of(policy).calibrate(trained.weights, platt))
    before, after = (head_of(policy, one).score_chain(features) for one in (trained, calibrated))
    np.testing.assert_allclose(after, platt.apply(before), rtol=1e-4)


def test_a_draft_whose_further_guesses_are_free_is_fitted_too():
    trained = Trained(make_weights("disco"), 0.0, make_architecture(), {})
    candidate = candidates.Candidate("disco", "disco", trained, head_of("disco", trained))
    recorded = [Replay(make_chain(random.Random(0), 40, 60, 0.8), 40)]
    free = make_costs(0.0, first_step={"shallow": 0.3}, decision={"disco": 0.03})
    assert candidates.choose("disco", [candidate], recorded, free).figures["decision_over_c"] == 0.1


def test_of_a_flattened_table_long_repetitions_have_their_own_chance():
    alone, table = np.arange(LONGEST + 1.0), np.zeros((N_EVIDENCE, 3))
    found = flatten(Trained({"alone": alone, "table": table}, 0.0, {}, {}), 8).weights["table"]
    assert found[8 : LONGEST + 1, 0].tolist() == alone[8:].tolist() and not found[:8].any()


def test_evidence_becomes_inputs():
    run = np.log1p(3)
    assert repetition_inputs(0, 1.0) == (0, 0, 0, 0)
    assert repetition_inputs(3, 1.0) == pytest.approx((run, 1, run, 1))
    assert repetition_inputs(LONGEST + 3, 2.0) == pytest.approx((run, -1, -run, -2))


def test_the_network_learns_what_only_the_counts_tell():
    """Guesses of frequent sequences hold, and nothing else tells them apart."""
    positions = _positions(2000)
    rng = np.random.default_rng(1)
    positions.levels[:, 4] = rng.integers(0, 5, 2000)
    positions.match[:] = positions.levels[:, 4] > 1
    ngrams = Ngrams(np.zeros(CELLS // 2, dtype=np.uint8))
    losses = [
        train_network(positions, ngrams, ["p"], 8, 100, 0).loss,
        train_table(positions, "p", 8, 100, 0).loss,
    ]
    assert losses[0] < 0.3 < 0.5 < losses[1]
