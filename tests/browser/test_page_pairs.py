"""The form over pairs that chat, see scenes, read photographs or continue texts: labels, commands, pictures."""

import re
from dataclasses import replace

import pytest
from PIL import Image
from playwright.sync_api import expect

from decoding.pictures.photo import START
from decoding.records.request import CompareRequest
from decoding.records.trace import Run
from tests.fakes import fake_pair
from tests.page_fakes import ScriptedBackend
from tests.page_server import LANES, first_run, page_at, write_recordings
from tests.runs import make_run
from tests.waiting import wait_until
from viz.picture_form import SCENES

from .opening import let_gradio_begin
from .pointing import fill, ready, settled, unfold


class Pairs(ScriptedBackend):
    def pairs(self):
        chats = replace(fake_pair(), name="talks", title="Big Chat", chat=True)
        photographs = replace(chats, name="photos", title="Reads photographs", photographs=True)
        card = {"card": "https://example.org/card", "licence": "Apache-2.0"}
        return [replace(chats, pictures="pictures", **card), photographs, fake_pair()]


@pytest.fixture(scope="module")
def backend():
    return Pairs(pause_s=0.002)


@pytest.fixture(scope="module")
def url(backend, tmp_path_factory):
    with page_at(backend, write_recordings(tmp_path_factory.mktemp("recordings"), first_run(), run_of_toy())) as url:
        yield url


def run_of_toy() -> Run:
    run = make_run(identifier="second", lanes=LANES, prompt="what the toy pair writes")
    return replace(run, settings=replace(run.settings, pair="toy"), pair=replace(run.pair, name="toy"))


@pytest.fixture
def page(url, shared_page):
    page = ready(shared_page(url))
    if not page.locator("#pair").is_visible():
        unfold(page.locator("#settings > button"), page.locator("#pair"))
    return page


def choose_pair(page, title: str) -> None:
    field = page.locator("#pair input")
    field.scroll_into_view_if_needed()
    settled(page)  # Gradio places the list where the field is when it opens: on a page that scrolls, out of sight
    field.click()
    page.get_by_role("option", name=title).click()


def choose_file(page, path) -> None:
    with page.expect_file_chooser() as chooser:
        page.locator("#upload").click()
    chooser.value.set_files(path)


def asked_for(page, backend) -> CompareRequest:
    """What pressing Run asks the backend for."""
    before = len(backend.requests)
    page.locator("#run").click()
    wait_until(lambda: len(backend.requests) > before)
    expect(page.locator("#stop")).to_be_hidden()
    return backend.requests[-1]


def test_the_box_s_label_follows_pair_and_switch(page):
    label = page.locator("#prompt label span").first
    choose_pair(page, "Toy pair")
    expect(label).to_have_text("Continue this text")
    choose_pair(page, "Big Chat")
    expect(label).to_have_text("Ask the model")
    page.get_by_label("a text to continue").check()
    expect(label).to_have_text("Continue this text")
    page.get_by_label("a question to the model").check()
    expect(label).to_have_text("Ask the model")
    card = page.locator("#pair-cards")
    expect(card).to_contain_text("Big Chat: model card, Apache-2.0.")
    expect(card.get_by_role("link")).to_have_attribute("href", "https://example.org/card")


@pytest.mark.parametrize(
    ("switch", "system", "chat"),
    [("a text to continue", "", False), ("a question to the model", "Answer in rhyme.", True)],
)
def test_what_a_run_asks_for_is_what_the_form_shows(page, backend, switch, system, chat):
    """As a command and as a link: tests/test_page_form.py."""
    choose_pair(page, "Big Chat")
    page.get_by_label(switch).check()
    page.locator("#system textarea").fill(system)
    page.locator("#prompt textarea").fill("What is <|im_end|>?")
    fill(page.locator("#max-new-tokens input"), 21)
    asked = asked_for(page, backend)
    assert (asked.prompt, asked.pair, asked.chat, asked.system) == ("What is <|im_end|>?", "talks", chat, system)
    assert asked.max_new_tokens == 21


def test_a_link_to_a_pair_opens_that_pairs_first_example_and_no_other_before(visit, url):
    page, prompt = visit(f"{url}?pair=toy&max_new_tokens=33", gradio=False), run_of_toy().settings.prompt
    settled(page)
    assert page.locator(".sp-early").count() == 0
    let_gradio_begin(page)
    expect(page.locator("#prompt textarea")).to_have_value(prompt)
    expect(page.locator(".sd-prompt").first).to_contain_text(prompt)
    expect(page.locator("#max-new-tokens input")).to_have_value("33")
    expect(page.get_by_label("Examples")).to_have_value(prompt)  # its title


def test_a_scene_is_picked_typed_rearranged_and_asked_about(page, backend):
    choose_pair(page, "Big Chat")
    unfold(page.locator("#picture-box > button"), page.locator("#picture"))
    page.locator("#scenes .thumbnail-item").nth(2).click()
    field = page.locator("#picture input, #picture textarea").first
    expect(field).to_have_value(SCENES[2][0])
    expect(page.locator("#prompt textarea")).to_have_value(SCENES[2][1])
    expect(page.locator("#picture-preview img")).to_be_visible()
    page.locator("#arrange").click()
    expect(field).to_have_value("🚗 🌲 #6")
    field.fill("🐱 <b>")
    expect(page.locator("#picture-fault textarea")).to_have_value(re.compile("^'<b>' is neither one"))
    field.fill("🐱 red-star #3")
    expect(page.locator("#picture-fault")).to_be_hidden()
    assert asked_for(page, backend).picture == "🐱 red-star #3"


def test_a_picture_that_a_link_adds_to_the_prompt_is_in_sight(visit, url):
    page = visit(f"{url}?prompt=What+is+it&picture=🐱")
    expect(page.locator("#picture-preview img")).to_be_visible()
    scenes = page.locator("#scenes .grid-wrap")
    assert scenes.evaluate("(node) => node.offsetWidth === node.clientWidth"), "without a bar to scroll them"


def test_photographs_are_for_the_pairs_that_read_them(page, backend, tmp_path):
    expect(page.locator("#upload")).to_be_hidden()
    choose_pair(page, "Toy pair")
    expect(page.locator("#picture-box")).to_be_hidden()
    choose_pair(page, "Reads photographs")
    expect(page.locator("#upload")).to_be_visible()
    expect(page.locator("#scenes")).to_be_hidden()
    (tmp_path / "bad.png").write_bytes(b"<svg onload='window.hacked=1'>")
    Image.new("RGB", (30, 20), "green").save(tmp_path / "good.png")
    choose_file(page, tmp_path / "bad.png")
    expect(page.locator("#picture-fault textarea")).to_have_value(re.compile("^This picture is not a picture"))
    choose_file(page, tmp_path / "good.png")
    field = page.locator("#picture input, #picture textarea").first
    expect(field).to_have_value(re.compile("^photograph [0-9a-f]{16}$"))
    expect(page.locator("#picture-preview img")).to_be_visible()
    assert asked_for(page, backend).picture.startswith(START)
