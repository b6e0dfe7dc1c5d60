"""What the browser tests do with a page: point at a token, unfold a form, wait until nothing is left to do, ask axe."""

from __future__ import annotations

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Locator, Page, expect

TRIES = 15


def point_at(page: Page, token: Locator) -> None:
    """Hover ``token`` until its details are shown, as a visitor does: a text that still scrolls closes them."""
    for _ in range(TRIES):
        token.hover()
        try:
            expect(page.locator(".sd-pop")).to_be_visible(timeout=2_000)
            return
        except AssertionError:
            page.mouse.move(2, 2)
    raise AssertionError("Pointing at the token never showed its details.")


def settled(page: Page) -> None:
    """Return when all that the page had to do by now is done and drawn."""
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestIdleCallback(() => done())))")


def unfold(fold: Locator, field: Locator) -> None:
    """Open a folded form, for typing in ``field``: a frame after Gradio shows fields it sets them to what they were."""
    fold.click()
    expect(field).to_be_visible()
    settled(fold.page)


def pictures_had_their_turn(page: Page) -> None:
    """Return when a picture that cannot be shown has failed: broken ones asked for earlier have failed by then, too."""
    page.evaluate(
        """() => new Promise((done) => {
          const picture = new Image();
          picture.onerror = () => done();
          picture.src = "data:image/png,broken";
        })"""
    )
    settled(page)


def serious(page: Page, scope: str | None = None, *rules: str) -> list[str]:
    """What axe finds of serious or critical impact: everywhere, or within ``scope``, a selector; by ``rules`` alone."""
    options = {"resultTypes": ["violations"], **({"runOnly": list(rules)} if rules else {})}
    found = Axe().run(page, context=scope, options=options).response["violations"]
    return [
        f"{one['id']}: {one['nodes'][0]['html'][:160]}" for one in found if one["impact"] in ("serious", "critical")
    ]


def serious_light_or_dark(page: Page) -> list[str]:
    """``serious`` of a page that follows the system's colours, in both: only colours differ."""
    page.emulate_media(color_scheme="light")
    found = serious(page)
    page.emulate_media(color_scheme="dark")
    return found + serious(page, None, "color-contrast")
