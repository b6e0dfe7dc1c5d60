"""Training the picture reader: scenes, questions, rows of questions, steps that resume, and the card."""

import json
from itertools import islice
from random import Random

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from typer.testing import CliRunner

from decoding.engines.picture_encoder import TOKENS, WEIGHTS, Cells, PictureReader, slots_of
from decoding.engines.slim import own_weights, read_head_ids
from decoding.errors import UserError
from decoding.pictures.scenes import COLORS, SHAPES, What, kinds, layout
from training import loop
from training.align.draft_folder import save_slim
from training.align.recipes import Recipe, start_draft
from training.align.teacher import ChatModel
from training.see import find, install, reading, report
from training.see.chat import Chat
from training.see.commands import app
from training.see.drafts import CAPTIONS, DraftTrainer
from training.see.find import ENCODER, finding_loss, train_encoder, truth
from training.see.questions import QUESTIONS, SAMPLES, ask, plural
from training.see.reading import PROJECTOR, newest_reader, start_from_words, train_projector, true_slots
from training.see.report import kinds_named, shares_right
from training.see.scenes import RARE, held_out_scenes, is_held_out, training_scenes

from .tiny_chat import make_tiny_chat


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> ChatModel:
    return make_tiny_chat(tmp_path_factory.mktemp("chat"))


@pytest.fixture(autouse=True)
def small(monkeypatch, tmp_path):
    monkeypatch.setattr(find, "BATCH", 2)
    monkeypatch.setattr(reading, "SCENES", 2)
    monkeypatch.setattr(reading, "_COMMON", 8)
    monkeypatch.setattr(loop, "CHECKPOINT_EVERY", 0.0)
    monkeypatch.setattr(loop, "LOGS", tmp_path / "logs")


def test_training_and_test_scenes_share_no_layout_and_rare_emoji_train_alone():
    trained, tested = list(islice(training_scenes(1), 300)), list(held_out_scenes(1, 30, 2, 3, RARE))
    assert not any(map(is_held_out, trained)) and all(map(is_held_out, tested))
    assert all(len(scene.things) == 1 for scene in trained if {thing.what.kind for thing in scene.things} & set(RARE))
    assert all(2 <= len(scene.things) <= 3 for scene in tested)
    assert {thing.what.kind for scene in tested for thing in scene.things} <= {*RARE, *SHAPES, *"0123456789"}


CAT, DOG, STAR = What("cat"), What("dog"), What("star", "red")


@pytest.mark.parametrize(
    "about, whats, answers",
    [
        ("what", [CAT], {"There is a cat in the picture."}),
        ("how many", [CAT, CAT, STAR], {"There are three things in the picture."}),
        ("how many", [CAT], {"There is one thing in the picture."}),
        ("color", [STAR, CAT], {"The star is red."}),
        ("describe", [STAR], {"There is one thing in the picture. It is a red star."}),
    ],
)
def test_answers(about, whats, answers):
    scene = layout(whats, 3)
    assert {QUESTIONS[about](scene, Random(seed)).answer for seed in range(20)} == answers


def test_a_question_of_the_side_is_answered_by_the_next_thing_there_or_nothing():
    scene = layout([CAT, DOG, STAR], 8)
    names = [f"a {thing.what.color} {thing.what.kind}".replace("  ", " ") for thing in scene.things]
    said = {QUESTIONS["beside"](scene, Random(seed)).answer for seed in range(60)}
    beside = [(name[2:], names[place - 1] if place else "nothing", "left") for place, name in enumerate(names)]
    beside += [(name[2:], [*names, "nothing"][place + 1], "right") for place, name in enumerate(names)]
    assert said == {f"To the {side} of the {name}, there is {found}." for name, found, side in beside}


def test_there_is_no_question_of_the_side_of_one_thing_nor_of_the_colour_of_an_emoji():
    assert QUESTIONS["beside"](layout([CAT], 1), Random(1)) is None
    assert QUESTIONS["color"](layout([CAT, DOG], 1), Random(1)) is None
    found = {question.about for question in ask(layout([CAT], 1), Random(1), 200)}
    assert found == set(QUESTIONS) - {"beside", "color"}


def test_names_are_found_in_answers_longest_first_in_singular_and_plural():
    assert kinds_named("The picture shows two hot dogs, three mice and a red 7.") == {"hot dog", "mouse", "7"}
    assert all(kinds_named(f"two {plural(kind)}") == {kind} for kind in kinds())


def test_shares_count_sentences_to_the_letter_but_kinds_by_name():
    scene = layout([CAT, DOG], 1)
    asked = [(scene, QUESTIONS[about](scene, Random(1))) for about in ("what", "how many")]
    shares = shares_right(asked, ["There is a dog and a cat.", asked[1][1].answer], lambda line: None)
    assert shares == {"what": 0.0, "right kinds": 1.0, "how many": 1.0}


def true_cells(scenes) -> Cells:
    """What a faultless encoder says of ``scenes``."""
    true = truth(scenes)
    picture, cell, kind, color = true[:, :4].long().T
    cells = Cells(*(torch.zeros(len(scenes), 36, *size) for size in ((), (len(kinds()),), (1 + len(COLORS),), (2,))))
    cells.thing.fill_(-30)[picture, cell] = 30
    cells.kind[picture, cell, kind] = 60
    cells.color[picture, cell, color] = 60
    cells.place[picture, cell] = true[:, 4:]
    return cells


def test_a_faultless_encoder_has_no_loss_and_gives_the_true_slots():
    scenes = list(islice(training_scenes(5), 20))
    cells, wanted = true_cells(scenes), true_slots(scenes)
    assert finding_loss(cells, truth(scenes)) < 1e-5
    found = slots_of(cells)
    for name in ("filled", "kind", "color"):
        torch.testing.assert_close(getattr(found, name), getattr(wanted, name))


@torch.no_grad()
def test_a_question_in_a_row_of_questions_sees_the_picture_and_itself_alone(model):
    chat = Chat(model, torch.float32)
    reader = PictureReader(chat.width)
    start_from_words(reader, chat)
    scenes = list(islice(training_scenes(2), 2))
    asked = [ask(scene, Random(0), 3) for scene in scenes]
    tokens, rows = reader.projector(true_slots(scenes)) + torch.randn(2, TOKENS, chat.width), chat.rows(asked)
    hidden = chat.hidden(tokens, rows)
    before = F.embedding(torch.tensor(chat.turns.before), chat.embeddings)
    for row in range(2):
        for number in range(len(asked[row])):
            its = rows.segment[row] == number
            text = F.embedding(rows.ids[row, its], chat.embeddings)
            alone = chat.model.model(inputs_embeds=torch.cat([before, tokens[row], text])[None]).last_hidden_state[0]
            torch.testing.assert_close(hidden[row, its], alone[-int(its.sum()) :], rtol=1e-3, atol=1e-4)


def test_steps_resume_and_the_chat_model_stays_as_it_is(model, tmp_path, capsys):
    with pytest.raises(UserError, match="see encoder"):
        newest_reader(tmp_path, tmp_path / "shipped", 64)
    frozen = Chat(model).model.state_dict()
    steps = {ENCODER: (0, 0.0), PROJECTOR: (0, 0.0)}
    for _ in range(2):
        train_encoder(tmp_path, steps[ENCODER][1] / 60 + 0.001, tmp_path / "shipped")
        train_projector(model, tmp_path, steps[PROJECTOR][1] / 60 + 0.001)
        before, (_, steps) = steps, newest_reader(tmp_path, tmp_path / "shipped", 64)
        assert all(steps[name][0] > before[name][0] for name in before)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("step")]
    numbers = [int(line.split()[1]) for line in lines if "others" in line]
    assert numbers == list(range(1, len(numbers) + 1)), "the second run goes on where the first stopped"
    reader, steps = newest_reader(tmp_path, tmp_path / "shipped", 64)
    assert steps[PROJECTOR][0] == numbers[-1] and steps[ENCODER][0] > 0
    assert not torch.equal(reader.projector.begin, torch.zeros(64))
    after = Chat(model).model.state_dict()
    assert all(torch.equal(after[name], value) for name, value in frozen.items())


def test_what_ships_is_in_bfloat16_measured_and_trained_further(model, tmp_path, monkeypatch, capsys):
    kept, shipped = tmp_path / "states", tmp_path / "shipped"
    train_encoder(kept, 0.001, kept)
    train_projector(model, kept, 0.001)
    assert "MB" in install.install(kept, shipped, model)
    assert {tensor.dtype for name in WEIGHTS for tensor in load_file(shipped / name).values()} == {torch.bfloat16}
    monkeypatch.setattr(report, "MOST_TOKENS", 2)
    install.write_report(shipped, model, 2, lambda line: None)
    groups = json.loads((shipped / "report.json").read_text())["groups"]
    assert all({"encoder", "right kinds", "how many"} <= set(shares) for shares in groups.values())
    card = (shipped / "README.md").read_text()
    assert "Aims missed" in card and all(title in card for title in SAMPLES.values())
    before, _ = newest_reader(tmp_path / "none", shipped, 64)
    monkeypatch.setattr(reading, "WARM_UP", 1)
    reading.train_reader(model, tmp_path / "none", 0.001, shipped)
    after, steps = newest_reader(tmp_path / "none", shipped, 64)
    assert "others" in capsys.readouterr().out and list(steps) == [reading.READER]
    moved = [not torch.equal(a, b) for a, b in zip(before.parameters(), after.parameters(), strict=True)]
    assert any(moved), "training starts from the shipped weights and changes them"


def test_a_draft_for_captions_trains_on_from_a_draft_of_text(model, tmp_path):
    base, _ = start_draft(Recipe((0,), 20, "one"), model.load(torch.float32))
    save_slim(base, tmp_path / "base", torch.arange(20))
    trainer = DraftTrainer(model, tmp_path / "base", None)
    trainer.train(tmp_path / "states", CAPTIONS, 0.001)
    trainer.save(tmp_path / CAPTIONS)
    before, after = own_weights(tmp_path / "base"), own_weights(tmp_path / CAPTIONS)
    assert any(not torch.equal(before[name], after[name]) for name in before)
    assert read_head_ids(tmp_path / CAPTIONS).tolist() == trainer.head_ids.tolist()
    again = DraftTrainer(model, tmp_path / "base", None)
    again.train(tmp_path / "states", CAPTIONS, 0.001)  # it is done: its weights are those that were reached
    for one, other in zip(again.own.parameters(), trainer.own.parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_report_without_weights_says_what_to_do(model, tmp_path):
    with pytest.raises(UserError, match="see install"):
        install.write_report(tmp_path, model, 1, print)


def test_every_command_has_help():
    for name in ("sprites", "encoder", "projector", "reader", "install", "report", "all"):
        assert CliRunner().invoke(app, [name, "--help"]).exit_code == 0
