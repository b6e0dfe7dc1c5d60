"""Exported runs opened in the browser, for the player's tests."""

from typing import Any

from decoding.records.trace import Run
from tests.fakes import scripted_events
from viz.export import export_html
from viz.player.names import lane_heading
from viz.player.payload import run_payload

from .opening import open_file


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
