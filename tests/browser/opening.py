"""Pages as visitors open them, watched for errors and requests to other hosts; exported runs for the player's tests."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from decoding.records.trace import Run
from tests.fakes import scripted_events
from viz.export import export_html
from viz.player.names import lane_heading
from viz.player.payload import run_payload

WAIT = 120_000  # ms for whatever must come: on a busy machine the page takes many times as long
PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
LEAVING = "addEventListener('beforeunload', () => { console.error = () => {}; })"
"""Gradio's client reports the streams that it cuts as its page is left: no fault of the page."""
SEEN = "localStorage.setItem('speculoscope-opening-seen', 'true')"  # a visitor who comes again
GRADIO = "**/assets/index-*.js"  # the script that loads all others


def blank_page(browser, **options: Any):
    """A page of its own; ``errors`` and ``asked`` collect what it reports and every address that it asks."""
    context = browser.new_context(**{"viewport": {"width": 1280, "height": 800}, **options})
    context.set_default_timeout(WAIT)
    page = context.new_page()
    page.errors, page.asked = [], []
    page.on("pageerror", lambda error: page.errors.append(str(error)))
    page.on("console", lambda message: message.type == "error" and page.errors.append(message.text))
    page.on("request", lambda request: page.asked.append(request.url))
    return page


def open_page(browser, url: str, gradio: bool = True, **options: Any):
    """The page at ``url`` for a visitor who comes again; without ``gradio``, Gradio's scripts do nothing."""
    page = blank_page(browser, **options)
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.add_init_script(LEAVING)
    page.add_init_script(SEEN)
    if not gradio:
        disable_gradio(page)
    page.goto(url)
    return page


def disable_gradio(page) -> None:
    page.route(GRADIO, lambda route: route.fulfill(body="", content_type="text/javascript"))


def open_file(browser, folder: Path, html: str, **options: Any):
    """A page that is one file, opened from disk."""
    file = folder / "page.html"
    file.write_text(html, encoding="utf-8")
    page = blank_page(browser, **options)
    page.goto(file.as_uri())
    return page


def faults(pages: Iterable[Any]) -> list[str]:
    """The errors of ``pages`` and their requests to other hosts than their own."""
    return [fault for page in pages for fault in (*page.errors, *_elsewhere(page))]


def _elsewhere(page) -> list[str]:
    home = page.url.split("/")[2]
    return [url for url in page.asked if url.startswith("http") and url.split("/")[2] != home]


# -- exported runs


def open_export(browser, folder, run: Run, **options: Any):
    """The page of ``run``'s export."""
    page = open_file(browser, folder, export_html(run), **options)
    page.wait_for_selector(".sd-text:visible")
    return page


def stop_at(page, share: float) -> None:
    page.evaluate("share => { player.pause(); player.seek(share * player.total); }", share)
    settle(page)


def settle(page) -> None:
    """Texts follow a few frames later where one seek comes soon after another."""
    wait_until(page, "player.waiting.length === 0")


def wait_until(page, expression: str) -> None:
    """As page.wait_for_function, which the export's content policy forbids."""
    found = page.evaluate(f"""async () => {{
      const there = () => Boolean({expression});
      for (const end = Date.now() + 60_000; !there() && Date.now() < end; )
        await new Promise((frame) => requestAnimationFrame(frame));
      return there();
    }}""")
    assert found, f"never true: {expression}"


def live_events(run: Run) -> list[dict[str, Any]]:
    """The events of ``run`` as the page's session hands them to the player."""
    events = []
    for kind, data in scripted_events(run):
        if kind == "started":
            data = {"lanes": [lane_heading(lane) for lane in data["lanes"]], "prompt": run.settings.prompt}
        if kind == "finished":
            data = {"payload": run_payload(run, origin="live")}
        events.append({"kind": kind, "data": data})
    return events


def hear_events(page, events: list[dict[str, Any]]) -> None:
    page.evaluate("events => events.forEach((event) => player.hear(event))", events)


def lane_text(page, lane: int) -> str:
    """The kept text of a lane, as a reader would copy it."""
    return page.evaluate(
        "lane => player.lanes[lane].tokens.filter(t => !'rd'.includes(t.fate)).map(t => t.text).join('')", lane
    )
