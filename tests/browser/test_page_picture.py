"""A scene beside the prompt: gallery, typed emoji, another arrangement; photographs for the pairs that read them."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from PIL import Image
from playwright.sync_api import expect

from decoding.pictures.photo import START
from decoding.records.request import CompareRequest
from tests.page_fakes import ScriptedBackend, fake_pair
from tests.page_server import page_at, write_recordings
from tests.waiting import wait_until
from viz.picture_form import SCENES

from .pointing import unfold

WAIT = 120_000


class Seeing(ScriptedBackend):
    def pairs(self):
        chats = replace(fake_pair(), chat=True)
        photographs = replace(chats, name="photos", title="Reads photographs", photographs=True)
        return [replace(chats, pictures="pictures"), photographs, replace(chats, name="blind", title="Reads text")]


@pytest.fixture(scope="module")
def backend():
    return Seeing(pause_s=0.002)


@pytest.fixture(scope="module")
def url(backend, tmp_path_factory):
    with page_at(backend, write_recordings(tmp_path_factory.mktemp("recordings"))) as url:
        yield url


@pytest.fixture
def page(shared_page, url):
    page = shared_page(url)
    expect(page.locator("#run")).to_be_visible(timeout=WAIT)
    for box, field in (("#picture-box", "#picture"), ("#settings", "#pair")):
        if not page.locator(field).is_visible():
            unfold(page.locator(f"{box} > button"), page.locator(field))
    yield page
    assert page.faults == []


def choose_pair(page, title: str) -> None:
    page.locator("#pair input").click()
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
    expect(page.locator("#stop")).to_be_hidden(timeout=WAIT)
    return backend.requests[-1]


def test_a_scene_is_picked_typed_rearranged_and_asked_about(page, backend):
    page.locator("#scenes .thumbnail-item").nth(2).click()
    field = page.locator("#picture input, #picture textarea").first
    expect(field).to_have_value(SCENES[2][0], timeout=WAIT)
    expect(page.locator("#prompt textarea")).to_have_value(SCENES[2][1])
    expect(page.locator("#picture-preview img")).to_be_visible(timeout=WAIT)
    page.locator("#arrange").click()
    expect(field).to_have_value("🚗 🌲 #6", timeout=WAIT)
    field.fill("🐱 <b>")
    expect(page.locator("#picture-fault textarea")).to_have_value(re.compile("^'<b>' is neither one"), timeout=WAIT)
    field.fill("🐱 red-star #3")
    expect(page.locator("#picture-fault")).to_be_hidden(timeout=WAIT)
    assert asked_for(page, backend).picture == "🐱 red-star #3"


def test_photographs_are_for_the_pairs_that_read_them(page, backend, tmp_path):
    expect(page.locator("#upload")).to_be_hidden()
    choose_pair(page, "Reads text")
    expect(page.locator("#picture-box")).to_be_hidden(timeout=WAIT)
    choose_pair(page, "Reads photographs")
    expect(page.locator("#upload")).to_be_visible(timeout=WAIT)
    expect(page.locator("#scenes")).to_be_hidden()
    (tmp_path / "bad.png").write_bytes(b"<svg onload='window.hacked=1'>")
    Image.new("RGB", (30, 20), "green").save(tmp_path / "good.png")
    choose_file(page, tmp_path / "bad.png")
    expect(page.locator("#picture-fault textarea")).to_have_value(
        re.compile("^This picture is not a picture"), timeout=WAIT
    )
    choose_file(page, tmp_path / "good.png")
    field = page.locator("#picture input, #picture textarea").first
    expect(field).to_have_value(re.compile("^photograph [0-9a-f]{16}$"), timeout=WAIT)
    expect(page.locator("#picture-preview img")).to_be_visible(timeout=WAIT)
    assert asked_for(page, backend).picture.startswith(START)
