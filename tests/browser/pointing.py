"""Pointing at a token as a visitor does: again, if the text still moved under the pointer."""

from __future__ import annotations

from playwright.sync_api import Locator, Page, expect

TRIES = 15


def point_at(page: Page, token: Locator) -> None:
    """Hover ``token`` until its details are shown; a text that scrolls while a seek settles closes them."""
    for _ in range(TRIES):
        token.hover()
        try:
            expect(page.locator(".sd-pop")).to_be_visible(timeout=2_000)
            return
        except AssertionError:
            page.mouse.move(2, 2)
    raise AssertionError("Pointing at the token never showed its details.")
