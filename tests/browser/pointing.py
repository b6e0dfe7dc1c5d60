"""What the browser tests do with a page: fill in its form, take and open runs, point at a token, ask axe."""

from collections.abc import Callable

from axe_playwright_python.base import AXE_SCRIPT
from playwright.sync_api import Locator, Page, expect

from decoding.records.run_file import run_to_json
from decoding.records.trace import Run

RACE = "[...document.querySelectorAll('#race *')].map((node) => node.speculoscope).find(Boolean)"
TRIES = 15


def ready(page: Page) -> Page:
    """``page``, standing still, once strips and form are there: the form comes after the strips of the first paint."""
    page.locator("#race .sd-strip").first.wait_for()
    page.locator("#run").wait_for()
    stand_still(page)
    return page


def fill(field: Locator, value: object) -> None:
    """Type ``value`` and leave the field, with which Gradio takes it."""
    field.fill(str(value))
    if field.input_value() != str(value):  # Gradio drew the field between the selecting and the typing
        field.fill(str(value))
    field.blur()


def run_box(page: Page, prompt: str, tokens: float = 30) -> None:
    """Fill in the form by hand and press Run."""
    settled(page)  # see unfold
    page.locator("#prompt textarea").fill(prompt)
    fill(page.locator("#max-new-tokens input"), tokens)
    page.locator("#run").click()


def finished(page: Page) -> None:
    """Return when the run has begun and all its repeats are timed; its replay then stands still."""
    expect(page.locator(".sd-badge")).to_contain_text("live")  # with Stop in Run's place
    expect(page.locator("#stop")).to_be_hidden()
    expect(page.locator(".sd-sentence")).to_contain_text("Here:")
    stand_still(page)


def stand_still(page: Page) -> None:
    """Pause the player: a replay that nobody looks at would cost a third of a processor."""
    page.evaluate(f"{RACE}.player.pause()")


def download(page: Page, label: str, name: str = "") -> str:
    """The text of the file that the button ``label`` gives, which is called ``name``."""
    with page.expect_download() as waiting:
        page.get_by_role("button", name=label).click()
    assert name in waiting.value.suggested_filename
    with open(waiting.value.path(), encoding="utf-8") as file:
        return file.read()


def open_text(field: Locator, text: str | bytes | Run, name: str = "mine.json") -> None:
    """Choose a file with this text, or the file of this run."""
    text = run_to_json(text) if isinstance(text, Run) else text
    content = text.encode() if isinstance(text, str) else text
    field.set_input_files({"name": name, "mimeType": "application/json", "buffer": content})


def point_at(page: Page, token: Locator) -> None:
    """Hover ``token`` until its details are shown, as a visitor does: a text that still scrolls closes them."""
    _until_shown(page, token.hover, page.locator(".sd-pop"))


def explain(page: Page, token: Locator) -> None:
    """Open ``token`` in the Learn tab, once its run is a result (no other is explained). Clicked until the way there is
    shown: a click on a text that still scrolls misses its token.
    """
    page.wait_for_function(f"!{RACE}.player.live")
    point_at(page, token)
    way = page.get_by_role("button", name="Explain this token")
    _until_shown(page, token.click, way)
    way.click()


def _until_shown(page: Page, act: Callable[[], None], wanted: Locator) -> None:
    """Repeat ``act`` with the mouse, from elsewhere, until ``wanted`` is shown."""
    for _ in range(TRIES):
        act()
        try:
            expect(wanted).to_be_visible(timeout=2_000)
            return
        except AssertionError:
            page.mouse.move(2, 2)
    raise AssertionError("What the mouse should show was never shown.")


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
    if not page.evaluate("'axe' in window"):
        page.evaluate(AXE_SCRIPT)
    options = {"resultTypes": ["violations"], **({"runOnly": list(rules)} if rules else {})}
    found = page.evaluate("([scope, options]) => axe.run(scope ?? document, options)", [scope, options])["violations"]
    return [
        f"{one['id']}: {one['nodes'][0]['html'][:160]}" for one in found if one["impact"] in ("serious", "critical")
    ]


def serious_light_or_dark(page: Page) -> list[str]:
    """``serious`` of a page that follows the system's colours, in both: only colours differ."""
    page.emulate_media(color_scheme="light")
    found = serious(page)
    page.emulate_media(color_scheme="dark")
    return found + serious(page, None, "color-contrast")
