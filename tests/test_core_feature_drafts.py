"""Drafts that read the target's hidden states, on tiny random models."""

from contextlib import nullcontext
from functools import cache
from pathlib import Path
from shutil import copyfile, copytree
from typing import NamedTuple

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaForCausalLM

from decoding.analysis.trees import Growth, simulate_trees
from decoding.analysis.whatif import Replay
from decoding.comparison.chain import chain_of, grow_along
from decoding.comparison.costs import measure_costs
from decoding.comparison.lane_run import LaneRun
from decoding.comparison.prepare import Prepared, prepare
from decoding.engines import loading
from decoding.engines.inputs import EncodedPrompt
from decoding.engines.slim import FEATURE_FILE
from decoding.errors import UserError
from decoding.lookahead.fitted import make_policy
from decoding.lookahead.lanes import Lane, parse_lane
from decoding.records import pairs
from decoding.records.request import CompareRequest
from decoding.records.trace import Chain, Token
from training.feature import BlockDraft, FeatureDraft

from .commands import command
from .fake_cuda import fake_cuda, recording
from .feature_pair import LAYERS, N_BLOCK, N_HEADS, PROMPT, WIDTH, load_feature_pair, make_feature_pair
from .lean_models import fixed
from .learned_heads import make_heads
from .runs import make_costs
from .toy import quick_run, shape_of

DRAFTS = ("feature", "heads", "block")
COSTS = make_costs(0.1, 0.1, drafts=DRAFTS, overhead=0.0)  # a tree stays within what is recorded
ENGINES = ("lean", "transformers", "cuda")
LENGTH, LARGEST_TREE = 32, 16
READING = ["specdecpp", "tree:5"]  # the states of guesses, and their own tokens
WATCHING = ["static:1", "static:6", "confidence:0.4", "disco", "costaware", "oracle", "oracle:best", "costtree"]
THRESHOLDS = (0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.97, 0.99)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    make_feature_pair(folder)
    return folder


@pytest.fixture
def own_models(models, tmp_path) -> Path:
    """A copy of ``models`` to change."""
    return Path(copytree(models, tmp_path / "models"))


@pytest.fixture(scope="module", params=ENGINES)
def pair(request, models):
    """The pair on each engine; CUDA's runs on the CPU, its passes recorded and replayed by the stand-in."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "transformers":
            patch.setattr(loading, "is_lean", lambda config: False)
        pair = load_feature_pair(models, patch)
    with pytest.MonkeyPatch.context() as patch, fake_cuda(patch) if request.param == "cuda" else nullcontext():
        if request.param == "cuda":
            pair.target = recording(fixed(loading.load_hf_model(pair.target_folder, torch.float32)))
            for name in DRAFTS:
                folder, n_layers = pair.draft_folders[name], 1 if name == "heads" else len(LAYERS)
                pair._drafts[name] = recording(fixed(loading.load_hf_model(folder, torch.float32)))
                pair._drafts[name].take_projections(load_file(folder / FEATURE_FILE), n_layers)
        yield pair


@pytest.fixture(scope="module")
def lean(models):
    with pytest.MonkeyPatch.context() as patch:
        return load_feature_pair(models, patch)


def run_lane(pair, lane, tokens=32, prompt=None) -> tuple[EncodedPrompt, LaneRun]:
    prepared = prepare(CompareRequest(PROMPT, lanes=[lane], max_new_tokens=tokens, ignore_eos=True), pair)
    prepared.prompt = prompt or prepared.prompt
    return prepared.prompt, LaneRun(prepared, prepared.lanes[0], COSTS).run()


@cache
def text_of_generate(models, prompt: tuple[int, ...], tokens: int) -> list[int]:
    model = LlamaForCausalLM.from_pretrained(models / "tiny" / "target", dtype=torch.float32)
    ids = torch.tensor([list(prompt)])
    out = model.generate(ids, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False, eos_token_id=None)
    return out[0, len(prompt) :].tolist()


@torch.no_grad()
def guesses_of_training(models, text: list[int], steps: int, name: str = "feature") -> np.ndarray:
    """[steps, length]: the guess of each step at each position of ``text`` as training computes it."""
    target, trunk = (
        LlamaForCausalLM.from_pretrained(models / "tiny" / which, dtype=torch.float32) for which in ("target", "draft")
    )
    draft = BlockDraft(trunk, LAYERS, N_BLOCK) if name == "block" else FeatureDraft(trunk, LAYERS)
    draft.take(load_file(models / "tiny" / ("block" if name == "block" else "draft") / FEATURE_FILE))
    ids = torch.tensor([text])
    found = target(ids, output_hidden_states=True).hidden_states
    states = torch.stack([found[layer] for layer in LAYERS], 2)
    before = torch.cat([torch.zeros_like(states[:, :1]), states[:, :-1]], 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("training.drafts.multiplies_bfloat16", lambda: False)
        return np.stack([trunk.lm_head(last)[0].argmax(-1).numpy() for last in draft.unroll(ids, before, steps)])


@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize("lane", ["static:4", "confidence:0.2", "tree:5"])
def test_it_writes_the_text_of_generate(pair, models, lane, draft):
    if not pair.draft(draft).can_branch and "tree" in lane:
        with pytest.raises(UserError, match="guesses trees, which these models cannot read"):
            run_lane(pair, f"{draft}/{lane}")
        return
    prompt, run = run_lane(pair, f"{draft}/{lane}")
    assert run.output == text_of_generate(models, tuple(prompt.ids), 32)
    assert any(iteration.n_accepted for iteration in run.iterations)


def test_the_command_compares_any_draft_of_a_pair(models, monkeypatch):
    monkeypatch.setattr(pairs, "MODELS", models)
    asked = ["lossless", "--pair=tiny", "--limit=1", "--longest=2", "--max-new-tokens=8"]
    for draft in DRAFTS:
        assert "0 differ." in command(*asked, f"--draft={draft}").out
    assert "no draft" in command(*asked, "--draft=other").err


@pytest.mark.parametrize("draft", ["feature", "block"])
def test_its_guesses_are_those_of_training(pair, models, draft):
    """As long as they hold, since training reads the text, and with the first that does not; of a block all."""
    prompt, run = run_lane(pair, f"{draft}/static:4")
    text = [*prompt.ids, *run.output]
    expected, compared = guesses_of_training(models, text, 4, draft), []
    for iteration in run.iterations:
        last = len(prompt) + iteration.start - 1
        guesses = iteration.drafted if draft == "block" else iteration.drafted[: iteration.n_accepted + 1]
        for step, guess in enumerate(guesses[: len(text) - last]):
            assert guess == expected[step, last + step]
            compared.append(step)
    assert set(compared) == {0, 1, 2, 3}


def test_a_block_ends_with_the_context(models, monkeypatch):
    pair = load_feature_pair(models, monkeypatch)
    model, prompt = pair.draft("block"), pair.encode_prompt(PROMPT)
    model.max_length = len(prompt) + 8
    _, run = run_lane(pair, "block/static:4")
    assert run.output == text_of_generate(models, tuple(prompt.ids), 32)
    longest = [len(iteration.drafted) for iteration in run.iterations if iteration.start >= 6]
    assert max(longest[:2]) < N_BLOCK and not any(longest[3:])
    explained = quick_run(["block/static:4"], pair, PROMPT, max_new_tokens=32, ignore_eos=True).lanes[0]
    assert shape_of(explained) == shape_of(run)
    assert all(token.draft_choice == token.id for it in explained.iterations for token in it.drafted)


def test_heads_guess_at_once_and_no_more_than_they_are(pair):
    """From the target's last state before the text's last token."""
    prompt, run = run_lane(pair, "heads/static:8")
    assert {len(iteration.drafted) for iteration in run.iterations[:-2]} == {N_HEADS}
    assert "exhausted" in {iteration.stop for iteration in run.iterations}
    assert {iteration.n_accepted for iteration in run.iterations} >= {1, N_HEADS}
    model, target, text = pair.draft("heads"), pair.target, [*prompt.ids, *run.output]
    for iteration in run.iterations[1:4]:
        target.kept_layers = (-1,)
        target.prefill(text[: len(prompt) + iteration.start - 1])
        logits, _ = model.parallel_heads.guess(target.last_states[0][-1:])
        assert iteration.drafted == logits.argmax(-1).tolist()


def test_a_lane_that_asks_for_more_guesses_than_its_draft_makes_at_once_says_so(lean):
    lanes = ["heads/static:8", f"heads/static:{N_HEADS}", "feature/static:8"]
    note = f"This draft makes {N_HEADS} guesses at once and then no further ones."
    assert [note in trace.notes for trace in quick_run(lanes, lean, PROMPT).lanes] == [True, False, False]


def test_an_iteration_without_guesses_loses_no_states(pair, models, monkeypatch):
    """The next one reads all tokens since the last guess with their states."""
    prompt, run = run_lane(pair, "feature/static:3")
    expected = guesses_of_training(models, [*prompt.ids, *run.output], 1)[0]
    turns = iter([2, 0, 0, 3, *[0] * 10, 1] * 20)
    monkeypatch.setattr("decoding.lookahead.static.Static.planned", lambda self, start: next(turns))
    _, mixed = run_lane(pair, "feature/static:3")
    assert mixed.output == run.output
    drafting = [iteration for iteration in mixed.iterations if iteration.drafted]
    assert len(drafting) < len(mixed.iterations)
    for iteration in drafting:
        assert iteration.drafted[0] == expected[len(prompt) + iteration.start - 1]


def test_a_prompt_of_one_token_and_one_that_shows_more(lean):
    shown = EncodedPrompt([40, 0, 0, 50, 60], torch.full((2, lean.target.hidden_size), 0.1), 1, "picture")
    for prompt in (EncodedPrompt([40]), shown):
        _, run = run_lane(lean, "feature/static:3", 12, prompt)
        assert run.output == run_lane(lean, "autoregressive", 12, prompt)[1].output
    assert lean.draft("feature").length <= lean.target.length - 2


class Recorded(NamedTuple):
    """Plain decoding's text and what the drafts would guess along it; of those that can branch, how trees grow."""

    prepared: Prepared
    output: list[int]
    chains: dict[str, Chain]
    growths: dict[str, list[Growth]]


@pytest.fixture(scope="module")
def recorded(pair) -> Recorded:
    lanes = [f"{draft}/static:1" for draft in DRAFTS]
    prepared = prepare(CompareRequest(PROMPT, lanes=lanes, max_new_tokens=LENGTH, ignore_eos=True), pair)
    prepared.heads = {draft: make_heads(4, hidden_size=WIDTH) for draft in DRAFTS}
    output = LaneRun(prepared, parse_lane("autoregressive"), COSTS).run().output
    chains = {draft: chain_of(prepared, draft, output) for draft in DRAFTS}
    branching = [draft for draft in DRAFTS if pair.draft(draft).can_branch]
    growths = {draft: grow_along(prepared, draft, output, cap=LARGEST_TREE) for draft in branching}
    return Recorded(prepared, output, chains, growths)


def lengths(iterations) -> set[int]:
    """The SLs but for those that the end of the text shortens."""
    return {n for start, n, _ in iterations if start < LENGTH - 10}


def lane_of(name: str, draft: str, recorded: Recorded) -> Lane:
    """A learned threshold is chosen so that the SL varies most: each kind of CPU trains other drafts here."""
    if name not in ("disco", "specdecpp"):
        return parse_lane(f"{draft}/{name}")
    replay, heads = Replay(recorded.chains[draft], LENGTH), recorded.prepared.heads[draft]

    def n_lengths(lane: Lane) -> int:
        return len(lengths(replay.simulate(COSTS, make_policy(lane, heads)).iterations))

    return max((parse_lane(f"{draft}/{name}:{threshold}") for threshold in THRESHOLDS), key=n_lengths)


@pytest.mark.parametrize("draft", DRAFTS)
def test_a_replay_of_its_chain_is_the_live_lane(pair, recorded, draft):
    """On the lean engine with every kind of policy; what engines do differently is what a guess reads and gives."""
    prepared, output, chains, growths = recorded
    for name in [*READING, *(WATCHING if pair.target.info.engine == "lean" else ())]:
        lane, chain = lane_of(name, draft, recorded), chains[draft]
        if lane.spec.branches and draft not in growths:
            continue
        live, policy = LaneRun(prepared, lane, COSTS, chain).run(), make_policy(lane, prepared.heads[draft])
        if lane.spec.branches:
            found = simulate_trees(chain, growths[draft], COSTS, policy, LENGTH)
        else:
            found = Replay(chain, LENGTH).simulate(COSTS, policy)
        assert found.iterations == shape_of(live), name
        assert live.output == output and (not lane.is_learned or len(lengths(found.iterations)) > 1), name


def test_its_costs_are_measured(lean):
    prompt = lean.encode_prompt(PROMPT).ids
    costs = measure_costs(lean, ["feature", "text", "heads"], prompt)
    assert costs.draft_step["feature"] > 0 and costs.draft_step["text"] > 0
    alone = measure_costs(lean, ["heads"], prompt)  # whose guesses are too few to measure all verifications with
    assert len(alone.verify_curve) >= 21 and max(alone.draft_step["heads"], alone.first_step["heads"]) > 0


def test_all_lanes_agree_in_bfloat16(models, monkeypatch):
    pair = load_feature_pair(models, monkeypatch, "bfloat16")
    own = ["feature/static:3", "feature/confidence:0.4", "heads/static:3"]
    run = quick_run(["autoregressive", *own, "text/static:3", "text/oracle", "ngram/static:3"], pair, PROMPT)
    assert all(trace.verdict.same or trace.verdict.near_tie for trace in run.lanes)
    assert set(run.chains) == {"feature", "heads", "text", "ngram"}
    drafted = [token for iteration in run.lanes[1].iterations for token in iteration.drafted]
    assert all(token.draft_top and token.draft_choice == token.id for token in drafted)


def test_coupled_lanes_write_one_text_above_temperature_zero(lean):
    lanes = ["autoregressive", "feature/static:3", "feature/confidence:0.2"]
    lanes += ["heads/static:3", "heads/tree:4", "block/static:3", "block/tree:4"]
    run = quick_run(lanes, lean, PROMPT, max_new_tokens=16, temperature=0.8, rule="coupling")
    assert all(trace.verdict.same for trace in run.lanes)


@pytest.mark.parametrize(
    "damage, words",
    [
        (
            lambda file, weights: save_file(weights | {"own.weight": weights["own.weight"][:4]}, file),
            r"does not hold the projections of 2 layers of 32 \(own.weight\)",
        ),
        (lambda file, weights: file.write_bytes(b"nonsense"), "missing or damaged"),
        (lambda file, weights: file.unlink(), "missing or damaged"),
        (
            lambda file, weights: copyfile(file.parents[1] / "block" / FEATURE_FILE, file),
            "has no projections of hidden states for its kind",
        ),
    ],
)
def test_a_draft_without_its_projections_is_a_sentence(own_models, monkeypatch, damage, words):
    file = own_models / "tiny" / "draft" / FEATURE_FILE
    damage(file, load_file(file))
    with pytest.raises(UserError, match=words):
        run_lane(load_feature_pair(own_models, monkeypatch), "feature/static:2")


def lanes_of(pair, draft: str, lanes: list[str], **settings) -> list[tuple[str, list[Token]]]:
    """(policy, guesses) of these lanes with ``draft`` in one run, beside plain decoding."""
    run = quick_run(["autoregressive", *(f"{draft}/{lane}" for lane in lanes)], pair, PROMPT, **settings)
    return [(trace.policy, [token for it in trace.iterations for token in it.drafted]) for trace in run.lanes[1:]]


@pytest.mark.parametrize("draft", DRAFTS)
def test_a_token_says_what_the_draft_that_guessed_it_saw(lean, draft):
    for policy, guesses in lanes_of(lean, draft, ["static:3", "tree:6", "confidence:0.2"], ignore_eos=True):
        assert len(guesses) > 20
        for token in guesses:
            assert token.p_draft == pytest.approx(dict(token.draft_top).get(token.id, token.p_draft), abs=1e-5)
            assert 0 < token.p_draft <= 1 and token.draft_choice == token.draft_top[0][0] and token.entropy >= 0
            if policy != "tree":
                assert token.draft_choice == token.id
            if policy == "confidence" and token.score is not None:
                assert token.score == pytest.approx(token.p_draft, abs=1e-4)


@pytest.mark.parametrize("draft", DRAFTS)
def test_with_dice_a_guess_is_kept_by_what_both_models_saw(lean, draft):
    lanes, dice = ["static:4", "confidence:0.2", "tree:4"], dict(rule="sampling", temperature=0.9, seed=3)
    for policy, guesses in lanes_of(lean, draft, lanes, **dice):
        checked = [token for token in guesses if token.accept_probability is not None]
        assert len(checked) > 10 and any(token.accept_probability < 1 for token in checked)
        for token in checked if policy != "tree" else ():  # a sibling is also judged by those before it
            ratio = min(1, token.p_target / token.p_draft)
            assert token.accept_probability == pytest.approx(ratio, rel=0.02, abs=2e-3)
