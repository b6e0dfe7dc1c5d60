"""Pages as visitors open them, watched for errors and requests to other hosts; exported runs for the player's tests."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

from decoding.records.trace import Run
from tests.fakes import scripted_events
from viz.export import export_html
from viz.player.names import lane_heading
from viz.player.payload import run_payload

WAIT = 120_000  # ms for whatever must come: on a busy machine the page takes many times as long
LAPTOP = {"viewport": {"width": 1280, "height": 800}}
PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
LEAVING = "addEventListener('beforeunload', () => { console.error = () => {}; })"
"""Gradio's client reports the streams that it cuts as its page is left: no fault of the page."""
SEEN = "localStorage.setItem('speculoscope-opening-seen', 'true')"  # a visitor who comes again
GRADIO = "**/assets/index-*.js"  # the script that loads all others


def blank_page(browser, **options: Any):
    """A tab of its own; ``errors`` and ``asked`` collect what its page reports and every address that it asks."""
    context = browser.new_context(**{**LAPTOP, **options})
    context.set_default_timeout(WAIT)
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = context.new_page()
    page.add_init_script(LEAVING)
    page.home, page.size = "", page.viewport_size
    page.errors, page.asked = [], []
    page.on("pageerror", lambda error: page.errors.append(str(error)))
    page.on("console", lambda message: message.type == "error" and page.errors.append(message.text))
    page.on("request", lambda request: page.asked.append(request.url))
    return page


def leave(page) -> None:
    if page.home:
        begin_at(page, "about:blank", home="")


def begin_at(page, url: str, home: str) -> None:
    """``page`` at ``url``, with nothing to report yet."""
    page.goto(url)
    page.home = home
    page.errors.clear()
    page.asked.clear()


def prepare(page, url: str, seen: bool = True) -> None:
    """``page`` as the tab of somebody whose browser has kept nothing of ``url``, but that it was ``seen``."""
    page.unroute_all()
    page.set_viewport_size(page.size)
    begin_at(page, urljoin(url, "robots.txt"), home=url)  # a small one of the same origin
    page.evaluate(f"localStorage.clear(); sessionStorage.clear(); {SEEN if seen else ''}")


def open_page(page, url: str, gradio: bool = True):
    """``page`` at ``url`` for a visitor who comes again; without ``gradio``, as in open_held."""
    prepare(page, url)
    if gradio:
        page.goto(url)
        return await_gradio(page)
    return open_held(page, url)


def open_held(page, url: str):
    """``page`` at ``url`` once its first paint has begun, if it has one; Gradio waits for let_gradio_begin."""
    page.held = []
    page.route(GRADIO, lambda route: page.held.append(route))
    page.goto(url, wait_until="commit")
    page.wait_for_selector("gradio-app", state="attached")  # it follows our script
    return page


def let_gradio_begin(page):
    for route in page.held:
        route.continue_()
    page.unroute(GRADIO)
    return await_gradio(page)


def await_gradio(page):
    """``page`` once Gradio has drawn it. ``expect`` would take much of a processor for the same: each time that it does
    not find an element, it describes the whole page for its message.
    """
    page.wait_for_selector("[role=tabpanel]", state="attached")
    return page


def reload(page):
    page.reload()
    return await_gradio(page)


def open_file(page, folder: Path, html: str):
    """A page that is one file, opened from disk."""
    file = folder / "page.html"
    file.write_text(html, encoding="utf-8")
    (folder / "robots.txt").touch()
    prepare(page, file.as_uri())
    page.goto(file.as_uri())
    return page


def faults(pages: Iterable[Any]) -> list[str]:
    """The errors of ``pages`` and their requests to other hosts than their own."""
    return [fault for page in pages for fault in (*page.errors, *_elsewhere(page))]


def _elsewhere(page) -> list[str]:
    home = urlsplit(page.home).netloc
    return [url for url in page.asked if url.startswith("http") and urlsplit(url).netloc != home]


def result_of(page, function: str, value: Any) -> Any:
    """What the JavaScript ``function`` makes of ``value``. Both travel as text, since Playwright would wrap each number
    of large ones.
    """
    return json.loads(
        page.evaluate(f"text => JSON.stringify(({function})(JSON.parse(text)) ?? null)", json.dumps(value))
    )


# -- exported runs


def open_export(page, folder, run: Run):
    """The page of ``run``'s export."""
    open_file(page, folder, export_html(run))
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
    result_of(page, "events => events.forEach((event) => player.hear(event))", events)


def lane_text(page, lane: int) -> str:
    """The kept text of a lane, as a reader would copy it."""
    return page.evaluate(
        "lane => player.lanes[lane].tokens.filter(t => !'rd'.includes(t.fate)).map(t => t.text).join('')", lane
    )
