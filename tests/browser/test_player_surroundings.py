"""The player where it lives: live runs, hostile texts, phones, themes, reduced motion, assistive technology."""

import pytest

from decoding.analysis.metrics import speedup
from decoding.records.text import whole_text
from decoding.records.trace import TokenText
from tests.browser.opening import PHONE, hear_events, lane_text, live_events, stop_at, wait_until
from tests.browser.pointing import serious_light_or_dark
from tests.page_server import LANES
from tests.runs import make_run
from viz.player.names import lane_name


def test_a_live_run_shows_who_is_on_the_clock_and_then_races(shown):
    run = make_run(lanes=LANES, n_tokens=40, repeats=2)
    page = shown(run)
    events = live_events(run)
    start = next(i for i, e in enumerate(events) if e["kind"] == "lane_started" and e["data"]["lane"] == 1)
    page.evaluate("player.shows.textContent = 'Notice: what another run shows'")
    hear_events(page, events[: start + 4])
    assert page.evaluate("player.shows.textContent") == ""
    assert "On the clock: Static 5" in page.locator(".sd-status").inner_text()
    assert page.locator(".sd-onclock").inner_text().startswith("Static 5")
    assert page.evaluate("player.lanes.map((lane) => lane.iterations.length)") == [40, 3, 0, 0]
    plain, static, *others = [flag.inner_text() for flag in page.locator(".sd-row:not(.sd-sim) .sd-flag").all()]
    assert plain.endswith("ms") and static == "on the clock" and others == ["", ""]  # no speedup before it is measured
    drafted = sum(it.n_drafted for it in run.lanes[1].iterations[:3])
    assert f"draft passes {drafted}" in page.locator(".sd-col").nth(1).inner_text().replace("\n", " ")
    assert page.locator(".sd-col:visible .sd-prompt").last.is_visible()
    hear_events(page, events[start + 4 :])
    wait_until(page, "player.playing && player.t > 0")
    assert page.locator(".sd-badge").inner_text().startswith("live")
    assert not page.locator(".sd-status").is_visible()


def test_live_texts_join_split_characters(shown):
    run = make_run(lanes=LANES, n_tokens=80, repeats=1, hostile=True, seed=5)
    page = shown(run)
    hear_events(page, live_events(run)[:-1])
    for lane, trace in enumerate(run.lanes):
        shown = lane_text(page, lane)
        whole = whole_text(trace.output, run.vocab)
        assert shown in (whole, whole[:-1])


SENTENCE = "The worker ran out of memory: choose a smaller pair."


@pytest.mark.parametrize(("kind", "how"), [("cancelled", "Stopped"), ("failed", "Ended early")])
def test_what_a_stopped_run_had_decoded_can_be_replayed(shown, kind, how):
    run = make_run(lanes=LANES, n_tokens=30, repeats=1)
    page = shown(run)
    events = live_events(run)
    static = next(i for i, e in enumerate(events) if e["kind"] == "lane_started" and e["data"]["lane"] == 1)
    hear_events(page, [*events[: static + 4], {"kind": kind, "data": {"message": SENTENCE}}])
    decoded = run.lanes[1].iterations[:3]
    tokens = sum(len(iteration.tokens) for iteration in decoded)
    assert page.locator(".sd-sentence").inner_text() == f"{how} after {30 + tokens} tokens in 2 of 4 lanes."
    assert "Unfinished lanes have no figures." in page.locator(".sd-fact").inner_text()
    assert page.locator(".sd-status").is_visible() == (kind == "failed")
    flags = [flag.inner_text() for flag in page.locator(".sd-row .sd-flag").all()]
    assert flags[1:] == ["unfinished", "not started", "not started"]
    page.locator(".sd-chip").nth(0).click()
    assert "target passes30" in page.locator(".sd-col").nth(0).inner_text().replace("\n", "")
    column = page.locator(".sd-col").nth(1).inner_text()
    assert "passes" not in column and f"Unfinished: ended after {tokens} token" in column
    page.locator(".sd-rail").focus()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")  # to the end of the first iteration of the selected lane, the last that started
    assert page.evaluate("player.t - player.lanes[1].iterations[0].end") == pytest.approx(0)
    page.evaluate("player.seek(0.95 * player.total)")
    page.get_by_role("button", name="Play (space)").click()
    wait_until(page, "player.t >= player.total")
    hear_events(page, live_events(run))
    wait_until(page, "player.playing")
    assert page.locator(".sd-sentence").inner_text().startswith("Here:")


def test_a_run_stopped_before_its_first_token_says_so(shown):
    page = shown(make_run(lanes=LANES))
    events = live_events(make_run(lanes=LANES, n_tokens=30))
    hear_events(page, [*events[:1], {"kind": "cancelled", "data": {}}])
    assert page.locator(".sd-sentence").inner_text() == "Stopped before the first token."


def test_hostile_texts_are_shown_and_never_run(opened):
    run = make_run(lanes=LANES, hostile=True, n_tokens=120)
    run.machine.processor = "<svg/onload=window.hacked=1>"
    page = opened(run)
    stop_at(page, 1)
    assert whole_text(run.lanes[1].output, run.vocab) == lane_text(page, 1)
    assert "<script>window.hacked=1</script>" in page.locator(".sd-col:visible .sd-prompt").first.inner_text()
    page.evaluate("""async () => {
      const byText = new Map(player.lanes[1].tokens.map((token) => [token.text, token]));
      for (const token of byText.values()) await player.showToken(player.tokenOf(token.node)); }""")
    assert page.locator(".sd-pop").is_visible()
    assert "<svg/onload=window.hacked=1>" in page.locator("#appendix").inner_text()
    hear_events(page, live_events(run))
    assert page.evaluate("window.hacked") is None
    assert page.locator("#player :is(img, script)").count() == 0


def test_a_run_without_chains_has_neither_simulations_nor_plots(opened):
    run = make_run(lanes=LANES)
    run.chains.clear()
    page = opened(run)
    assert page.locator(".sd-sim, .sd-threshold, #appendix svg").count() == 0
    assert "How the run was made" in page.locator("#appendix").inner_text()


def test_reduced_motion_starts_at_the_end_and_stands_still(opened):
    page = opened(make_run(lanes=LANES), reduced_motion="reduce")
    assert page.evaluate("[player.playing, player.t === player.total]") == [False, True]


def test_strips_and_the_tops_of_three_texts_fit_a_laptop(shown):
    page = shown(make_run(lanes=LANES))
    tops = [box.bounding_box()["y"] for box in page.locator(".sd-text:visible").all()]
    assert len(tops) == 3 and max(tops) < 560
    assert page.evaluate("document.documentElement.scrollWidth") == 1280


def test_a_phone_has_tabs_and_a_sheet(shown):
    page = shown(make_run(lanes=LANES), **PHONE)
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    stop_at(page, 1)
    assert page.locator(".sd-col:visible").count() == 1
    page.locator(".sd-chip").nth(3).tap()
    assert page.locator(".sd-col:visible h2").inner_text() == "Oracle"
    page.locator(".sd-col:visible .sd-tk").nth(6).tap()
    sheet = page.locator(".sd-pop.sd-sheet")
    sheet.wait_for(state="visible")
    box = sheet.bounding_box()
    assert box["x"] == 0 and box["width"] == 390 and round(box["y"] + box["height"]) == 844
    page.get_by_role("button", name="Close").tap()
    assert not sheet.is_visible() and page.locator(".sd-same").count() == 0
    rail, play = page.locator(".sd-rail").bounding_box(), page.locator(".sd-play").bounding_box()
    assert rail["y"] > play["y"] + play["height"] - 1  # a row of its own


FLAG_ENDS = "Math.max(...[...document.querySelectorAll('.sd-flag b')].map((b) => b.getBoundingClientRect().right))"


@pytest.mark.parametrize("ended", [False, True], ids=["live", "stopped"])
def test_on_a_phone_what_stands_behind_a_strip_stays_in_its_box(shown, ended):
    run = make_run(lanes=LANES, n_tokens=40, repeats=1)
    page = shown(run, **PHONE)
    events = live_events(run)
    last = next(i for i, event in enumerate(events) if event["kind"] == "lane_finished")  # the longest strip so far
    stopped = [{"kind": "cancelled", "data": {"message": ""}}] if ended else []
    hear_events(page, [*events[:last], *stopped])
    box = page.locator(".sd-race").bounding_box()
    assert page.evaluate(FLAG_ENDS) <= box["x"] + box["width"] - 1
    assert page.locator(".sd-row .sd-flag").first.is_visible() == ended  # live, the status says who is on the clock


@pytest.mark.parametrize("size", [{}, PHONE], ids=["laptop", "phone"])
def test_axe_finds_nothing_serious_light_or_dark(opened, size):
    page = opened(make_run(lanes=LANES, n_tokens=40), bypass_csp=True, **size)
    stop_at(page, 0.7)
    for summary in page.locator("summary").all():
        summary.click()
    assert serious_light_or_dark(page) == []


STOPS = """() => [...document.querySelectorAll('.speculoscope :is(button, input, select, summary, [tabindex])')].filter(
  (node) => node.tabIndex >= 0 && node.checkVisibility({visibilityProperty: true}) && !node.closest('dialog'))"""


def test_buttons_of_one_place_share_a_tab_stop_and_arrow_keys_lead_through_them(shown):
    page = shown(make_run(lanes=LANES, n_tokens=40))
    stop_at(page, 1.0)
    assert page.evaluate(f"({STOPS})().length") < 35
    assert page.evaluate(f"({STOPS})().filter((node) => node.matches('.sd-legend .sd-term')).length") == 1
    page.locator(".sd-race .sd-legend .sd-term").first.focus()
    words = page.locator(".sd-race .sd-legend .sd-term").all_inner_texts()
    reached = [page.evaluate("document.activeElement.innerText")]
    for _ in words[1:]:
        page.keyboard.press("ArrowRight")
        reached.append(page.evaluate("document.activeElement.innerText"))
    assert reached == words and len(words) > 6
    assert page.evaluate("player.t === player.total")  # the arrows did not step the lane
    page.locator("button.sd-name[tabindex='0']").focus()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("player.t > 0 && player.t < player.total")  # here they do
    page.locator("button.sd-name").first.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    assert page.evaluate("player.selected") == 1
    assert page.locator("button.sd-name[tabindex='0']").count() == 1


def test_the_end_of_a_text_is_marked_and_what_the_target_read_is_shown_on_demand(shown):
    run = make_run(lanes=LANES, n_tokens=40)
    end = max(run.vocab) + 1
    run.vocab[end] = TokenText("<|im_end|>", special=True)
    run.prompt_ids = [end, *run.lanes[0].output[:3], end]
    for trace in run.lanes:
        trace.finish = "eos"
    page = shown(run)
    stop_at(page, 1.0)
    assert page.locator(".sd-col:visible .sd-end").count() == page.locator(".sd-col:visible").count()
    panel = page.locator(".sd-panel", has_text="What the target read")
    assert not panel.locator(".sd-special").first.is_visible()
    panel.locator("summary").click()
    assert panel.locator(".sd-special").all_inner_texts() == ["<|im_end|>"] * 2
    page.keyboard.press("f")
    assert page.locator(".sd-end").count() == 0  # the text alone


def test_bars_above_the_scale_say_how_high_they_are(shown):
    run = make_run(lanes=("autoregressive", "static:3", "oracle"))
    page = shown(run)
    top = int(page.locator(".sd-sl-top").last.inner_text())
    oracle = run.lanes[2]
    cut = [it.n_drafted for it in oracle.iterations if it.n_drafted > top]
    signs = page.locator(".sd-sl").nth(2).locator(".sd-sl-over span").all_text_contents()
    assert cut and len(signs) == len(cut)
    assert all(sign in ("↑", f"↑ {height}") for sign, height in zip(signs, cut, strict=True))
    assert any("↑ " in sign for sign in signs)


def test_the_fastest_lane_is_bold_and_its_text_is_shown(shown):
    lanes = ("autoregressive", "static:15", "static:20", "static:12", "static:10", "oracle", "static:1")
    run = make_run(lanes=lanes)
    usable = [trace for trace in run.lanes if trace.lane not in ("autoregressive", "oracle")]
    fastest = max(usable, key=lambda trace: speedup(run, trace).median)
    page = shown(run)
    name = lane_name(fastest.lane)
    assert page.locator(".sd-name[aria-pressed=true]").inner_text() == name
    assert f"with {name}" in page.locator(".sd-sentence").inner_text()
    shown = page.locator(".sd-col:visible h2").all_inner_texts()
    assert len(shown) == 3 and name in shown and "Oracle" in shown


@pytest.mark.parametrize("options", [{}, PHONE], ids=["laptop", "phone"])
def test_a_text_that_has_scrolled_begins_with_a_whole_line(shown, options):
    page = shown(make_run(n_tokens=400), **options)
    for share in (0.3, 0.7, 1):
        stop_at(page, share)
        visible = "[...document.querySelectorAll('.sd-text')].filter((node) => node.offsetParent)"
        tops = page.evaluate(f"{visible}.map((node) => node.scrollTop)")
        assert any(tops) and all(top % 24 == 0 for top in tops)
