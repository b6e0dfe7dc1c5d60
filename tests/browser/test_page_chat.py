"""A page over a pair that chats and one that continues texts: form and commands."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace

import pytest
from playwright.sync_api import expect

from tests.page_fakes import ScriptedBackend, fake_pair
from tests.page_server import page_at, write_recordings

from .pointing import unfold

WAIT = 120_000  # ms; the tests' machine may be busy


def chatting():
    return replace(
        fake_pair(), name="talks", title="Big Chat", chat=True, card="https://example.org/card", licence="Apache-2.0"
    )


class TwoPairs(ScriptedBackend):
    def pairs(self):
        return [chatting(), fake_pair()]


@pytest.fixture(scope="module")
def backend():
    return TwoPairs(pause_s=0.002)


@pytest.fixture(scope="module")
def url(backend, tmp_path_factory):
    with page_at(backend, write_recordings(tmp_path_factory.mktemp("recordings"))) as url:
        yield url


@pytest.fixture
def page(shared_page, url):
    page = shared_page(url)
    expect(page.locator("#run")).to_be_visible(timeout=WAIT)
    if not page.locator("#chat").is_visible():
        unfold(page.locator("#settings > button"), page.locator("#chat"))
    yield page
    assert page.faults == []


def choose_pair(page, title: str) -> None:
    page.locator("#pair input").click()
    page.get_by_role("option", name=title).click()


def test_the_box_s_label_follows_pair_and_switch(page):
    label = page.locator("#prompt label span").first
    choose_pair(page, "Toy pair")
    expect(label).to_have_text("Continue this text", timeout=WAIT)
    choose_pair(page, "Big Chat")
    expect(label).to_have_text("Ask the model", timeout=WAIT)
    page.get_by_label("a text to continue").check()
    expect(label).to_have_text("Continue this text", timeout=WAIT)
    page.get_by_label("a question to the model").check()
    expect(label).to_have_text("Ask the model", timeout=WAIT)
    card = page.locator("#pair-cards")
    expect(card).to_contain_text("Big Chat: model card, Apache-2.0.")
    expect(card.get_by_role("link")).to_have_attribute("href", "https://example.org/card")


@pytest.mark.parametrize(
    ("switch", "system", "chat", "tokens"),
    [("a question to the model", "Answer in rhyme.", True, 21), ("a text to continue", "", False, 22)],
)
def test_the_run_the_link_and_the_copied_command_carry_the_chat(page, backend, switch, system, chat, tokens):
    choose_pair(page, "Big Chat")
    page.get_by_label(switch).check()
    page.locator("#system textarea").fill(system)
    page.locator("#prompt textarea").fill("What is <|im_end|>?")
    page.locator("#max-new-tokens input").fill(str(tokens))
    page.locator("#max-new-tokens input").blur()
    page.locator("#run").click()
    expect(page.locator(".sd-sentence")).to_contain_text(f"Here: the same {tokens} tokens", timeout=WAIT)
    expect(page.locator("#stop")).to_be_hidden(timeout=WAIT)  # all repeats are timed: nothing on the page is replaced
    asked = backend.requests[-1]
    assert (asked.prompt, asked.pair, asked.chat, asked.system) == ("What is <|im_end|>?", "talks", chat, system)
    page.get_by_role("button", name="Copy as command").click()
    expect(page.get_by_label("Command")).to_have_value(re.compile(f"--max-new-tokens={tokens}"), timeout=WAIT)
    words = shlex.split(page.get_by_label("Command").input_value())
    assert {"--prompt=What is <|im_end|>?", "--chat" if chat else "--no-chat"} <= set(words)
    assert (f"--system={system}" in words) == bool(system) and not any(word == "--system=" for word in words)
