"""The player in a real browser: clock, texts, strips, details, simulations."""

import pytest

from decoding.analysis import metrics
from decoding.records.text import whole_text
from tests.browser.opening import settle, stop_at, wait_until
from tests.page_server import LANES
from tests.runs import make_run, simulate_lane
from viz.player.details import token_details
from viz.player.names import lane_name


@pytest.fixture(scope="module")
def run():
    return make_run(lanes=LANES)


@pytest.fixture
def page(shown, run):
    """The run as it is just after its export has opened, playing."""
    return shown(run)


def clock(page) -> float:
    return page.evaluate("player.t")


def shown_where(page, iteration: int) -> str:
    """What lies on top at the middle of the iteration's first token: "token" or "cover"."""
    return page.evaluate(
        """(iteration) => {
          const node = player.lanes[1].tokens[player.lanes[1].iterations[iteration].first].node;
          node.scrollIntoView({block: "center"});
          const box = node.getClientRects()[0];
          const top = document.elementFromPoint(box.left + box.width / 2, box.top + box.height / 2);
          return top.closest(".sd-tk") ? "token" : top.closest(".sd-cover") ? "cover" : top.className;
        }""",
        iteration,
    )


def test_it_plays_by_itself_about_eight_seconds(page):
    wait_until(page, "player.t > 0")
    seconds = page.evaluate("player.total / player.speed")
    assert 5.5 < seconds < 11
    assert page.locator(".sd-speed option:checked").inner_text() in ("1/10 of real time", "1/12 of real time")
    assert "× as fast with" in page.locator(".sd-sentence").inner_text()
    assert "Compared with writing one token, checking 6 takes" in page.locator(".sd-fact").inner_text()
    assert page.locator(".sd-badge").inner_text().startswith("recorded")
    assert page.locator(".sd-verdict").inner_text() == "Same text in all four lanes."


def test_figures_appear_when_they_are_true(page):
    end = page.evaluate("player.lanes[1].end")
    page.evaluate("t => { player.pause(); player.seek(t); }", end * 0.98)
    flag, figure = page.locator(".sd-flag").nth(1), page.locator(".sd-col").nth(1).locator(".sd-fig b").first
    assert not flag.is_visible() and figure.inner_text() == "…"
    page.evaluate("t => player.seek(t)", end)
    settle(page)
    assert flag.is_visible() and "×" in flag.inner_text()
    assert figure.inner_text().startswith(f"median {page.evaluate('player.lanes[1].speedup.median'):.2f}×")


def test_flag_sentence_and_card_say_one_speed_and_the_card_that_of_the_bars_too(page, run):
    stop_at(page, 1)
    ends = page.evaluate("player.lanes.map((lane) => lane.end)")
    flags = page.locator(".sd-row .sd-flag b").all_inner_texts()
    assert flags[: len(ends)] == [f"{metrics.speedup(run, trace).median:.2f}×" for trace in run.lanes]
    first = max((1, 2), key=lambda lane: flags[lane])  # the oracle cannot be used in practice
    fastest = f"{flags[first]} as fast with {lane_name(run.lanes[first].lane)}"
    assert fastest in page.locator(".sd-sentence").inner_text()
    page.locator(".sd-col").nth(1).locator(".sd-fig").first.focus()
    one_of = f"one of {len(run.lanes[1].repeats)} repeats: {ends[0] / ends[1]:.2f}×"
    assert one_of in page.locator(".sd-pop").inner_text()


def test_the_words_explain_themselves_and_the_guide_has_all_of_them(page):
    stop_at(page, 1)
    assert "colours show which guesses held" in page.locator(".sd-look").inner_text()
    page.locator(".sd-fact .sd-term", has_text="token").click()
    assert "A piece of text that a model reads or writes as a unit" in page.locator(".sd-pop").inner_text()
    page.locator(".sd-legend .sd-term", has_text="dropped").first.click()
    assert "its check does not count" in page.locator(".sd-pop").inner_text()
    page.mouse.move(2, 2)  # otherwise the page scrolls something else under the pointer
    page.locator(".sd-col:visible .sd-fig", has_text="first-guess hit rate").first.focus()
    assert "How often the first guess of an iteration is accepted" in page.locator(".sd-pop").inner_text()
    page.get_by_role("button", name="Guide").click()
    guide = page.locator(".sd-guide")
    keys = ("What you see", "previous, next iteration", "Speculation lookahead")
    for known in ("token", "SL", "lane", "prefill", "hit rate", "DISCO", "oracle", "plain", "shaded, unshaded", *keys):
        assert known in guide.inner_text()
    guide.get_by_role("button", name="Close").click()
    assert not guide.is_visible()


def test_a_bar_of_the_sl_strip_leads_to_its_iteration(page, run):
    stop_at(page, 0.5)
    assert page.locator(".sd-sl-plot:visible").count() == 3
    box = page.locator(".sd-sl-plot:visible").first.bounding_box()
    it = run.lanes[1].iterations[3]
    share = (it.start + 0.5) / len(run.lanes[1].output)
    page.mouse.click(box["x"] + box["width"] * share, box["y"] + box["height"] - 3)
    assert clock(page) == pytest.approx(page.evaluate("player.lanes[1].iterations[3].end"))
    assert page.evaluate("player.marked.length") == len(LANES) and page.evaluate("player.selected") == 1
    assert page.evaluate("""() => {
      const box = (node) => node.getBoundingClientRect();
      const token = box(player.marked[1]), text = box(player.views[1].text.scroller);
      return token.top >= text.top - 1 && token.bottom <= text.bottom + 1 && text.bottom <= innerHeight + 1; }""")
    page.mouse.move(2, 2)
    assert page.locator(".sd-same").count() == len(LANES)  # it stays marked when the pointer leaves
    page.keyboard.press("Escape")


def test_only_what_is_decoded_is_seen(page):
    stop_at(page, 0.2)
    done = page.evaluate("player.lanes[1].doneAt(player.t)")
    assert shown_where(page, done - 1) == "token"
    assert shown_where(page, done + 2) == "cover"
    stop_at(page, 1)
    assert shown_where(page, done + 2) == "token"


def test_open_guesses_have_no_fate_yet(page):
    iteration = page.evaluate("""() => {
      const its = player.lanes[1].iterations, i = its.findIndex((it) => it.fates.includes("r"));
      player.pause(); player.seek((its[i].draftEnd + its[i].checkEnd) / 2); return i; }""")
    settle(page)
    struck = """i => { const lane = player.lanes[1], it = lane.iterations[i];
      return getComputedStyle(lane.tokens[it.first + it.fates.indexOf("r")].node).textDecorationColor; }"""
    assert page.evaluate(struck, iteration) == "rgba(0, 0, 0, 0)"
    page.evaluate("i => player.seek(player.lanes[1].iterations[i].end)", iteration)
    settle(page)
    assert page.evaluate(struck, iteration) != "rgba(0, 0, 0, 0)"


def test_keyboard_drives_the_clock(page):
    page.locator(".sd-play").focus()
    page.keyboard.press("Home")
    assert clock(page) == 0
    page.evaluate("player.select(1)")
    ends = page.evaluate("player.lanes[1].iterations.map((it) => it.end)")
    page.keyboard.press("ArrowRight")
    page.get_by_role("button", name="Next iteration (right arrow)").click()
    assert clock(page) == pytest.approx(ends[1])
    page.keyboard.press("ArrowLeft")
    assert clock(page) == pytest.approx(ends[0])
    page.keyboard.press("End")
    assert clock(page) == page.evaluate("player.total")
    page.locator(".sd-rail").focus()
    for plays in (True, False):
        page.keyboard.press(" ")
        assert page.evaluate("player.playing") == plays
    speed = page.evaluate("player.speed")
    page.keyboard.press("+")
    assert page.evaluate("player.speed") > speed
    page.keyboard.press("-")
    assert page.evaluate("player.speed") == speed
    page.locator(".sd-name").nth(1).focus()
    page.keyboard.press("?")
    assert page.locator(".sd-guide").is_visible()
    page.keyboard.press("Escape")
    assert not page.locator(".sd-guide").is_visible()
    page.evaluate("player.live = true")  # as while a run is under way
    page.evaluate("player.seek(0)")
    for key in ("End", "?"):
        page.keyboard.press(key)
    assert page.locator(".sd-guide").is_visible() and clock(page) == 0
    page.evaluate("player.live = false")
    page.keyboard.press("Escape")


def test_strips_and_rail_scrub(page):
    page.evaluate("player.pause()")
    strip = page.locator(".sd-clip").nth(2)
    strip.hover(position={"x": 9, "y": 8})  # once it stands still
    box = strip.bounding_box()
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 8)
    page.mouse.up()
    assert clock(page) == pytest.approx(page.evaluate("player.total") / 2, rel=0.01)
    page.locator(".sd-rail").fill("250")
    assert clock(page) == pytest.approx(page.evaluate("player.total") / 4, rel=0.01)


def test_hover_marks_the_same_position_in_every_lane_and_says_why(page, run):
    stop_at(page, 1)
    trace = run.lanes[1]
    i = next(k for k, it in enumerate(trace.iterations) if any(t.fate == "rejected" for t in it.drafted))
    index = trace.iterations[i].n_accepted
    position = trace.iterations[i].start + index
    node = page.evaluate_handle(
        "([i, k]) => player.lanes[1].tokens[player.lanes[1].iterations[i].first + k].node", [i, index]
    ).as_element()
    node.scroll_into_view_if_needed()
    node.hover()
    pop = page.locator(".sd-pop")
    pop.wait_for(state="visible")
    details = token_details(run, 1, i, index)
    assert details["why"] in pop.inner_text() and details["where"] in pop.inner_text()
    marked = page.evaluate("player.marked.map((n) => n.sdToken)")
    expected = page.evaluate("p => player.lanes.map((lane) => lane.keptAt[p])", position)
    expected[1] = page.evaluate("node => node.sdToken", node)  # in its own lane the rejected token itself
    assert marked == expected and len(marked) == len(LANES)
    page.mouse.move(2, 2)
    pop.wait_for(state="hidden")
    assert page.locator(".sd-same").count() == 0


def test_details_that_come_late_are_not_shown_over_another_run(page):
    stop_at(page, 1)
    hidden, held, shown = page.evaluate("""async () => {
      const { details } = player.options, first = () => player.tokenOf(player.lanes[1].tokens[0].node);
      let answer;
      player.options.details = () => new Promise((done) => { answer = done; });
      const asked = player.showToken(first());
      player.holdPopup(true);  // as a click does
      player.load(player.payload);
      answer({ text: "late", fate: "accepted", where: "in the run before" });
      await asked;
      player.options.details = details;
      const state = [player.popup.node.hidden, player.isHeld];
      await player.showToken(first());
      return [...state, player.popup.node.textContent]; }""")
    assert (hidden, held) == (True, False) and "output position 0" in shown and "in the run before" not in shown


def test_arrows_walk_through_a_text(page, run):
    stop_at(page, 1)
    page.locator(".sd-text:visible").first.focus()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.sdToken") == 2
    label = page.evaluate("document.activeElement.getAttribute('aria-label')")
    assert label.endswith(run.lanes[1].iterations[0].drafted[2].fate)
    page.locator(".sd-pop").wait_for(state="visible")
    page.keyboard.press("ArrowLeft")
    assert page.evaluate("document.activeElement.sdToken") == 1


def test_final_text_only_leaves_the_text(page):
    stop_at(page, 1)
    assert page.locator(".sd-text:visible .sd-r").first.is_visible()
    switch = page.get_by_role("button", name="final text only")
    switch.click()
    assert page.locator(".sd-text .sd-r:visible, .sd-text .sd-d:visible").count() == 0
    assert switch.get_attribute("aria-pressed") == "true"
    page.locator(".sd-chip").first.click()
    texts = page.locator(".sd-body:visible").all_inner_texts()
    assert len(texts) == 4 and len(set(texts)) == 1 and "·" not in texts[0]
    switch.click()
    assert page.locator(".sd-text:visible .sd-r").first.is_visible()


def test_copying_gives_the_text_itself(page, run):
    stop_at(page, 1)
    copied = page.evaluate("""() => {
      getSelection().selectAllChildren(player.views[1].text.body);
      const event = new ClipboardEvent("copy", {clipboardData: new DataTransfer(), bubbles: true, cancelable: true});
      player.views[1].text.body.dispatchEvent(event);
      return event.clipboardData.getData("text/plain"); }""")
    assert copied == whole_text(run.lanes[1].output, run.vocab)


def test_the_sl_slider_answers_from_the_what_if_and_the_simulated_lane_has_a_column(page, run):
    slider = page.get_by_label("SL of a simulated static lane")
    slider.fill("12")
    expected = simulate_lane(run, "static:12")
    note = page.locator(".sd-sim-note").inner_text()
    assert (
        f"Always guessing 12: {expected.speedup:.2f}× simulated, {expected.counts.target_passes} target passes" in note
    )
    assert "Measured" not in note
    slider.fill("5")  # a lane ran with it
    ran = next(trace for trace in run.lanes if trace.lane == "static:5")
    measured = page.locator(".sd-sim-note").inner_text()
    assert f"Measured: median {metrics.speedup(run, ran).median:.2f}×" in measured
    page.evaluate("Object.assign(player.payload, {doubtful: true}); player.simulation.made = []")
    slider.fill("12")
    doubtful = page.locator(".sd-sim-note").inner_text()
    page.evaluate("Object.assign(player.payload, {doubtful: false}); player.simulation.made = []")
    slider.fill("12")
    assert "×" not in doubtful and "Timings were unsteady, so no simulated speedup is given." in doubtful
    assert page.locator(".sd-sim-note").inner_text() == note
    assert "simulated" in page.locator(".sd-race .sd-sim").inner_text()
    assert page.evaluate("player.views.at(-1).lane.keptAt.length") == len(run.lanes[0].output)
    assert page.evaluate("player.total") >= page.evaluate("player.views.at(-1).lane.end") - 1e-9
    page.locator(".sd-chip-sim").click()
    for sl in (12, 2):
        slider.fill(str(sl))
        stop_at(page, 1)
        column = page.locator(".sd-col-sim")
        assert column.locator("h2").inner_text() == f"Static {sl}, simulated"
        misses = sum(held < n for _, n, held in simulate_lane(run, f"static:{sl}").iterations)
        assert column.locator(".sd-r").count() == misses


def test_the_threshold_slider_re_simulates(page, run):
    stop_at(page, 1)  # while texts grow, what stands below them moves away from a click
    page.locator(".sd-threshold summary").first.click()
    page.locator(".sd-threshold input").first.fill("3")  # 0.20
    expected = simulate_lane(run, "confidence:0.2")
    text = page.locator(".sd-threshold p").nth(1).inner_text()
    assert f"Simulated at 0.20: {expected.speedup:.2f}×, {expected.counts.target_passes} target passes" in text
    assert page.locator(".sd-threshold .sd-dot-a").first.get_attribute("d")
    assert "Best for this run, with hindsight: " in text
    page.evaluate("Object.assign(player.payload, {doubtful: true})")  # no speedup is given then
    page.locator(".sd-threshold input").first.fill("4")
    assert "×" not in page.locator(".sd-threshold p").nth(1).inner_text()
    page.evaluate("Object.assign(player.payload, {doubtful: false})")


def test_below_the_player_stand_every_static_sl_and_the_settings(page, run):
    speeds = {sl: simulate_lane(run, f"static:{sl}").speedup for sl in range(1, 21)}
    best = max(speeds, key=lambda sl: (speeds[sl], -sl))
    below = page.locator("#appendix")
    assert f"best with hindsight: SL {best}, {speeds[best]:.2f}×" in below.locator("svg").text_content()
    assert below.locator("svg title").text_content().startswith("SL 5: ")  # the measured lane
    assert "How the run was made" in below.inner_text() and "greedy" in below.locator("table").inner_text()


def test_the_page_is_linked_both_ways(page, run):
    page.evaluate("""() => { player.pause(); window.heard = [];
      player.root.addEventListener("sd:position", (event) => window.heard.push(event.detail));
      player.root.dispatchEvent(new CustomEvent("sd:goto", {detail: {lane: "static:5", position: 40}})); }""")
    token = page.evaluate("(() => { const l = player.lanes[1]; return l.tokens[l.keptAt[40]].iteration; })()")
    assert clock(page) == pytest.approx(page.evaluate("i => player.lanes[1].iterations[i].end", token))
    assert page.evaluate("window.heard.at(-1).lane") == "static:5"
    page.evaluate("player.goTo({lane: 'no such lane', position: 1e9})")
    page.evaluate("player.goTo({lane: 'oracle', iteration: 2})")
    assert clock(page) == pytest.approx(page.evaluate("player.lanes[3].iterations[2].end"))


def test_texts_can_be_chosen(page):
    chips = page.locator(".sd-chip")
    assert page.locator(".sd-col:visible").count() == 3
    chips.nth(0).click()
    assert page.locator(".sd-col:visible").count() == 4
    for number in range(4):
        chips.nth(number).click()
    assert page.locator(".sd-col:visible").count() == 1  # the last one stays selected
    shown = page.evaluate("player.views.findIndex((view) => view.isVisible)")
    assert page.evaluate("player.selected") == shown  # which the arrow keys then step


def test_a_swipe_that_scrolls_the_page_lets_go_of_the_clock(page):
    stop_at(page, 0.2)
    page.evaluate("""() => {
      const event = (type, clientX) => new PointerEvent(type, { bubbles: true, cancelable: true, clientX });
      const clip = document.querySelector(".sd-clip"), { left, width } = clip.getBoundingClientRect();
      clip.dispatchEvent(event("pointerdown", left + width / 2));
      clip.dispatchEvent(event("pointercancel", left + width / 2));
      document.body.dispatchEvent(event("pointermove", left + width));
    }""")
    assert page.evaluate("player.t / player.total") == pytest.approx(0.5, abs=0.01)
