"""What the page fills in when it opens: a link's settings, or what the browser has kept of the forms."""

from dataclasses import replace

from playwright.sync_api import expect

from tests.page_fakes import ScriptedBackend, fake_pair
from tests.page_server import page_at, write_recordings

from .pointing import fill, finished, run_box, settled, unfold


def test_a_link_restores_the_settings_the_browser_keeps_them_and_the_next_link_replaces_them(visit, page_url):
    query = "prompt=Once+upon&lanes=autoregressive,static:3&max_new_tokens=33&seed=7&temperature=0.5&rule=coupling"
    page = visit(f"{page_url}?{query}")
    expect(page.locator("#prompt textarea")).to_have_value("Once upon")
    expect(page.locator(".sp-status")).to_contain_text("press Run")
    expect(page.locator(".sd-race")).to_be_hidden()  # no unrelated run plays meanwhile
    expect(page.locator("#lanes .token")).to_have_text(["Plain", "Static 3"])
    expect(page.locator("#max-new-tokens input")).to_have_value("33")
    page.wait_for_function("(localStorage.getItem('speculoscope-settings') || '').length > 20")
    settled(page)
    held = []
    page.route("**/queue/join*", lambda route: held.append(route))  # the page's questions to the server wait
    with page.expect_request(lambda request: "Once upon" in (request.post_data or "")):
        page.goto(page_url)
    fill(page.locator("#max-new-tokens input"), 30)  # before the kept settings come
    for route in held:
        route.continue_()
    page.unroute("**/queue/join*")
    expect(page.locator("#prompt textarea")).to_have_value("Once upon")
    expect(page.locator("#max-new-tokens input")).to_have_value("30")
    query = "pair=nope&temperature=5&repeats=40&top_p=0&max_new_tokens=10000&seed=-1&lanes=static:5,autoregressive"
    page.goto(f"{page_url}?{query}")
    for name in ("pair", "temperature", "repeats", "top_p", "max_new_tokens", "seed"):
        expect(page.locator(".sp-fault")).to_contain_text(f"The link's {name} was left out")
    expect(page.locator("#max-new-tokens input")).to_have_value("128")  # a link is complete: nothing kept is mixed in
    run_box(page, "def link():", tokens=20)
    finished(page)


class Measured(ScriptedBackend):
    """Measures what its machine's costs choose between two visits."""

    chosen = ""

    def pairs(self):
        chosen = {"shallow": self.chosen} if self.chosen else {}
        return [replace(fake_pair(), set_here=chosen, best_sl=dict.fromkeys(chosen, 3))]


def test_the_next_visit_shows_what_was_chosen_meanwhile_and_that_a_measurement_ended(visit, tmp_path):
    backend = Measured(pause_s=0.1)  # 50 steps, 5 s
    with page_at(backend, write_recordings(tmp_path)) as url:
        page = visit(f"{url}?prompt=Once&lanes=autoregressive,static:3")
        expect(page.locator("#lanes .token")).to_have_text(["Plain", "Static 3"])
        expect(page.locator("#set-here")).to_be_hidden()
        panel = drafts_tab(page)
        prompts = panel.get_by_role("spinbutton", name="Test prompts")
        unfold(panel.get_by_text("Measure again here"), prompts)
        fill(prompts, 7)
        panel.get_by_role("button", name="Run here").click()
        expect(panel.locator(".sp-status")).to_contain_text("of 50")
        backend.chosen = "Set for this machine on validation prompts: best fixed SL 3."

        page.reload()
        expect(page.locator("#set-here")).to_have_text(backend.chosen)
        expect(page.locator("#lanes .token")).to_have_text(["Plain", "Best fixed SL here: 3"])
        page.locator("#lanes input").click()
        expect(page.get_by_role("option", name="Best fixed SL here: 3")).to_be_visible()
        page.keyboard.press("Escape")
        panel = drafts_tab(page)
        expect(panel.locator(".sp-status")).to_contain_text("ended when this page was left")
        panel.get_by_text("Measure again here").click()
        expect(panel.get_by_role("spinbutton", name="Test prompts")).to_have_value("7")
        panel.get_by_role("button", name="Start again").click()
        expect(panel.locator(".sp-status")).to_contain_text("of 50")
        # the shipped results may arrive late: what is under way is not said to have ended
        open_again = "(n) => { while (!n.speculoscope) n = n.parentNode; return n.speculoscope.open(true) }"
        panel.locator(".sp-status").evaluate(open_again)
        assert panel.get_by_role("button", name="Start again").count() == 0
        panel.get_by_role("button", name="Stop", exact=True).click()
        expect(panel.locator(".sp-status")).to_have_text("Stopped.")
        backend.pause_s = 0.0
        panel.get_by_role("button", name="Run here").click()
        expect(panel.locator(".sp-status")).to_contain_text("has no evaluation")

        page.reload()
        expect(drafts_tab(page).locator(".sp-status")).to_contain_text("No results are shipped")


def drafts_tab(page):
    page.get_by_role("tab", name="Drafts").click()
    return page.locator("[role=tabpanel]:visible")
