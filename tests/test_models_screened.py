"""A draft's head whose logits are rough but for the best of each group (engines/formats/int8.py)."""

import pytest
import torch
from safetensors.torch import save_file
from transformers import LlamaConfig

from decoding.bench.against import floor_bytes
from decoding.engines.compiled import this_cpu
from decoding.engines.compiled.readout import GROUPS
from decoding.engines.formats.int8 import ScreenedLinear, round_rows, screened_linear
from decoding.engines.inputs import FINAL
from decoding.engines.invariance import keeps_bits
from decoding.engines.linears import CompiledLinear
from decoding.engines.pair import load_pair
from decoding.engines.slim import HEAD_FILE, SCREEN_FILE, Screen, read_screen
from decoding.errors import UserError
from decoding.fit.data import FitOptions
from decoding.records import pairs
from tests.feature_pair import load_feature_pair, make_feature_pair
from tests.lean_models import compiled, lean, on_threads, random_model
from tests.tiny_models import tiny_config
from training.screen import fit_screen, make_screen

SIZE, NARROW, IDS = 64, 32, 3 * GROUPS
SHAPE = dict(hidden_size=SIZE, intermediate_size=96, head_dim=32, num_attention_heads=2, num_key_value_heads=1)
CONFIG = tiny_config(IDS + 9, LlamaConfig, **SHAPE)
HEAD = torch.arange(5, 5 + IDS)


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def rounded(weight: torch.Tensor) -> torch.Tensor:
    levels, scales = round_rows(weight)
    return levels * scales[:, None]


def screen() -> Screen:
    return fit_screen(random(400, SIZE, seed=1) * torch.linspace(0.01, 2, SIZE), random(IDS, SIZE), NARROW)


def model(**options):
    return lean(random_model(CONFIG), "int8", **{"head_ids": HEAD, "screen": screen(), **options})


@compiled
def test_of_each_group_only_the_best_token_gets_its_exact_logit():
    weight, x, fitted = random(IDS, SIZE), random(5, SIZE, seed=2), screen()
    rough = x @ rounded(fitted.down).t() @ rounded(weight @ fitted.up.t()).t()
    best = rough.view(5, -1, GROUPS).argmax(1) * GROUPS + torch.arange(GROUPS)
    expected = rough.scatter(1, best, (x @ rounded(weight).t()).gather(1, best))
    head = screened_linear(weight, fitted)
    found = head(x)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(found, x @ rounded(weight).t(), rtol=0.01)
    for rows in range(1, 5):
        assert torch.equal(head(x[:rows]), found[:rows])


@compiled
def test_one_call_and_the_head_by_itself_give_the_same_bits():
    for threads in on_threads(1, 2):
        one = model()
        one.set_threads(threads)
        assert isinstance(one.head.linear, ScreenedLinear) and one._joined is not None and keeps_bits(one)
        one.kept_layers = FINAL
        one.prefill([3, 7, 1])
        for ids in ([5], [9, 2, 4], list(range(40))):
            assert torch.equal(one.extend(ids)[:, :IDS], one.head(one.last_states[0]))


@compiled
def test_a_screen_of_full_size_changes_little():
    even = fit_screen(random(400, SIZE, seed=1), random(IDS, SIZE), SIZE)  # no direction is rounded more than another
    full, whole = model(screen=even), model(screen=None)
    rows = []
    for each in (full, whole):
        each.prefill([3, 7, 1])
        rows.append(each.extend(list(range(20)))[:, :IDS])
    assert torch.nn.functional.cosine_similarity(*rows).min() > 0.999


@compiled
def test_fewer_numbers_are_read_than_of_a_whole_head():
    one, whole = model(), model(screen=None)
    one.info.dtype = whole.info.dtype = "int8"
    assert one.head.linear.numbers == NARROW * (SIZE + IDS) + GROUPS * SIZE
    assert floor_bytes(whole, 0) - floor_bytes(one, 0) == IDS * SIZE - one.head.linear.numbers


@compiled
@pytest.mark.parametrize(
    "options",
    [
        {"head_ids": None},
        {"head_ids": HEAD[:-1]},
        {"screen": Screen(random(NARROW, 48), random(NARROW, 48))},
        {"screen": Screen(random(NARROW + 1, SIZE), random(NARROW + 1, SIZE))},
        {"screen": Screen(random(2 * SIZE, SIZE), random(2 * SIZE, SIZE))},
    ],
    ids=["all ids", "no whole groups", "another width", "no whole blocks", "wider than a state"],
)
def test_a_head_that_cannot_be_screened_stays_whole(options):
    assert isinstance(model(**options).head.linear, CompiledLinear)


def test_a_format_of_more_bytes_and_a_cpu_without_compiled_code_keep_the_whole_head(monkeypatch):
    in_floats = lean(random_model(CONFIG), "float32", head_ids=HEAD, screen=screen())
    assert not isinstance(in_floats.head.linear, ScreenedLinear)
    monkeypatch.setattr("decoding.engines.formats.int8.refinement", lambda: None)
    assert not isinstance(model().head.linear, ScreenedLinear)


def test_the_fitted_screen_is_the_best_of_its_size():
    states, weight = random(500, SIZE) * torch.linspace(0.01, 2, SIZE), random(IDS, SIZE, seed=3)
    whole = states @ weight.t()

    def error(one: Screen) -> float:
        return float((states @ one.down.t() @ (weight @ one.up.t()).t() - whole).norm() / whole.norm())

    _, axes = torch.linalg.eigh(weight.t() @ weight)
    of_the_weight_alone = axes[:, -NARROW:].t()
    fitted = [error(fit_screen(states, weight, size)) for size in (16, NARROW, SIZE)]
    assert 1 > fitted[0] > fitted[1] > fitted[2] and fitted[2] < 1e-4
    assert fitted[1] < 0.9 * error(Screen(of_the_weight_alone, of_the_weight_alone))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\x10", "has a damaged screen/screen.safetensors .*: fetch it again"),
        ({"down": random(2, 4)}, "has no screen in its"),
        ({"down": random(2, 4), "up": random(3, 4)}, "has no screen in its"),
    ],
)
def test_a_broken_screen_is_a_sentence(content, words, tmp_path):
    file = tmp_path / SCREEN_FILE
    file.parent.mkdir()
    file.write_bytes(content) if isinstance(content, bytes) else save_file(content, file)
    with pytest.raises(UserError, match=words):
        read_screen(tmp_path)
    assert read_screen(tmp_path / "screen") is None  # of a draft without


def test_a_screen_is_made_for_a_draft_and_used_where_it_can_be(tmp_path, monkeypatch):
    folder = make_feature_pair(tmp_path)
    pair = load_feature_pair(tmp_path, monkeypatch)
    said: list[str] = []
    with pytest.raises(UserError, match="text is no draft with a reduced head"):
        make_screen(pair, "text", lambda message, share: said.append(message))
    (folder / "draft" / HEAD_FILE).write_text(str(list(range(1, 257))))
    pair = load_feature_pair(tmp_path, monkeypatch)
    options = FitOptions("code", n_train=4, max_new_tokens=24)
    assert make_screen(pair, "feature", lambda message, share: said.append(message), options, size=32) > 40
    assert "Reading the texts" in said
    monkeypatch.setattr(pairs, "MODELS", tmp_path)
    rounded = load_pair("tiny", device="cpu", draft_dtype="int8")
    screened = [isinstance(rounded.draft(name).head.linear, ScreenedLinear) for name in ("feature", "heads")]
    assert screened == [this_cpu() is not None, False]
    assert not isinstance(load_feature_pair(tmp_path, monkeypatch).draft().head.linear, ScreenedLinear)  # in float32
