"""Presenter mode in a real browser: large type, operated by keys."""

import json

from viz.lessons import shipped_lessons

from .conftest import LEARN
from .opening import wait_until


def test_a_presenter_needs_keys_only_and_answers_wait(there):
    page = there("?lesson=ten-steps&step=4")
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("p")
    page.wait_for_selector(".sl-presenting")
    assert page.locator(".sl-answer").count() == 0
    page.keyboard.press("a")
    assert page.locator(".sl-answer").count() == 4
    assert not page.locator(".sl-runs").is_visible()
    title = page.locator(".sl-lesson-text h2").inner_text()
    for _ in range(40):
        page.keyboard.press("ArrowRight")
        if page.locator(".sl-lesson-text h2").inner_text() != title:
            break
    assert page.locator(".sl-lesson-text h2").inner_text() == "When all guesses hold: the bonus"
    page.set_viewport_size({"width": 640, "height": 360})
    wait_until(page, "document.querySelector('.sl-presenting').scrollHeight > innerHeight")
    page.keyboard.press("End")
    wait_until(page, "document.querySelector('.sl-presenting').scrollTop > 0")
    page.set_viewport_size({"width": 1280, "height": 800})
    while not page.locator(".sl-end").count():
        page.keyboard.press("PageDown")
    last = next(one for one in shipped_lessons() if one["id"] == "ten-steps")["steps"][-1]["title"]
    page.keyboard.press("ArrowLeft")
    wait_until(page, f"document.querySelector('.sl-lesson-text h2')?.textContent === {json.dumps(last)}")
    page.keyboard.press("Escape")
    assert page.locator(".sl-presenting").count() == 0


def test_keys_make_the_bet_for_which_the_steps_wait_and_lead_to_the_next_iteration(there):
    page = there("?lesson=ten-steps&step=2")
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("p")
    page.wait_for_selector(".sl-presenting .sl-bet")
    for key in ("ArrowRight", "9"):  # of five guesses, nine cannot hold
        page.keyboard.press(key)
        assert page.locator(".sl-bet [aria-pressed=true]").count() == 0
    page.keyboard.press("2")
    assert page.locator(".sl-bet [aria-pressed=true]").inner_text() == "2"
    page.keyboard.press("ArrowRight")
    assert page.locator(".sl-bet").count() == 0
    at = page.evaluate(f"{LEARN}.places.steps.at.iteration")
    page.keyboard.press("n")
    assert page.locator(".sl-caption .sl-where").inner_text().startswith(f"Iteration {at + 2} ")
    page.keyboard.press("Escape")


def test_presenter_mode_names_only_keys_that_act(there):
    for query, keys in (
        ("?learn=steps&run=first", "→ or space: next · ←: back · Esc: exit"),
        ("?learn=words", "Esc: exit"),
    ):
        page = there(query)
        page.get_by_role("button", name="Presenter mode").click()
        assert page.locator(".sl-keys").inner_text() == keys
        if "space" in keys:
            before = page.locator(".sl-caption .sl-where").inner_text()
            page.keyboard.press(" ")
            assert page.locator(".sl-caption .sl-where").inner_text() != before
        page.keyboard.press("Escape")
        assert page.locator(".sl-presenting").count() == 0
