"""Iterations whose guesses branch, in the player and step by step in the Learn tab."""

import json
import re
from copy import deepcopy
from dataclasses import replace

import pytest

from decoding.analysis.run_costs import run_costs
from decoding.records.proposal import depths_of, path_to
from decoding.records.run_file import to_plain
from decoding.records.text import whole_text
from tests.browser.opening import PHONE, hear_events, lane_text, live_events, stop_at, wait_until
from tests.browser.pointing import serious_light_or_dark
from tests.toy import ToyPair, quick_run
from viz.export import export_lesson
from viz.lessons import read_lesson
from viz.player.details import token_details
from viz.player.payload import run_payload

LANES = ["autoregressive", "tree:8", "static:3"]
TREE = 1  # its lane


@pytest.fixture(scope="module")
def run():
    return quick_run(LANES, ToyPair(agree=0.6), "abcabc", max_new_tokens=60, repeats=2)


def branching(run) -> int:
    """An iteration with accepted, rejected and dropped guesses."""
    fates = [{token.fate for token in it.drafted} for it in run.lanes[TREE].iterations]
    return next(i for i, found in enumerate(fates) if found >= {"accepted", "rejected", "dropped"})


@pytest.fixture
def page(shown, run):
    """The run's export at its end."""
    page = shown(run)
    stop_at(page, 1)
    return page


def fork(page, iteration: int):
    return page.locator(f".sd-text[data-lane='{TREE}'] .sd-fork[aria-label^='Iteration {iteration + 1}:']")


def boxes(page) -> list[dict]:
    """Place, text and fate of each token of the tree on screen, in the order of the run file."""
    return page.locator(".sd-tree button").evaluate_all(
        """nodes => nodes.map((node) => { const box = node.getBoundingClientRect(), token = node.firstChild;
          return { x: Math.round(box.left), y: Math.round(box.top), text: token.firstChild.textContent,
                   fate: [...token.classList].find((name) => name.startsWith("sd-is-")).slice(6) }; })"""
    )


def test_a_tree_shows_what_the_run_file_says_of_it(page, run):
    number = branching(run)
    it = run.lanes[TREE].iterations[number]
    button = fork(page, number)
    assert button.inner_text() == str(it.n_drafted - it.n_accepted)
    button.click()
    found, tokens = boxes(page), [*it.drafted, it.emitted]
    assert [one["text"] for one in found] == [run.vocab[token.id].text for token in tokens]
    assert [one["fate"] for one in found] == [token.fate for token in tokens]
    kept = [*range(it.n_accepted), it.n_drafted]
    assert len({found[k]["y"] for k in kept}) == 1, "the accepted path is one line"
    for node, parent in enumerate(it.parents):
        above = [] if parent < 0 else path_to(it.parents, parent)
        assert all(found[k]["x"] < found[node]["x"] and found[k]["y"] <= found[node]["y"] for k in above)
        siblings = [k for k in range(node) if it.parents[k] == parent]
        assert all(found[k]["x"] == found[node]["x"] and found[k]["y"] < found[node]["y"] for k in siblings)
        label = page.locator(".sd-tree button").nth(node).get_attribute("aria-label")
        alike = it.parents.count(parent)
        assert ("guesses for it" in label) == (alike > 1) and (
            alike == 1 or label.endswith(f"one of {alike} guesses for it")
        )
    assert page.locator(".sd-tree .sd-tree-kept").count() == it.n_accepted + 1
    rejected = next(k for k, token in enumerate(it.drafted) if token.fate == "rejected")
    page.locator(".sd-tree button").nth(rejected).click()
    wait_until(page, f"document.querySelector('.sd-tree-details b').textContent === {'rejected'!r}")
    pop, details = page.locator(".sd-pop").inner_text(), token_details(run, TREE, number, rejected)
    assert details["why"] in pop and details["where"] in pop and "probability, draft" in pop and "draft passes" in pop
    page.keyboard.press("Escape")
    assert not page.locator(".sd-pop").is_visible()


def test_keys_open_a_tree_and_lead_through_it(page, run):
    number = branching(run)
    it = run.lanes[TREE].iterations[number]
    page.evaluate(
        """([lane, i]) => { const it = player.lanes[lane].iterations[i];
          player.views[lane].text.reveal(it.first); it.tokens[0].node.tabIndex = -1; it.tokens[0].node.focus(); }""",
        [TREE, number],
    )
    page.keyboard.press("Enter")
    focused = "[...document.querySelectorAll('.sd-tree button')].indexOf(document.activeElement)"
    assert page.evaluate(focused) == 0
    page.keyboard.press("ArrowRight")
    assert page.evaluate(focused) == (1 if it.n_accepted > 1 else it.n_drafted)
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowDown")
    beside = page.evaluate(focused)
    assert it.parents[beside] == -1 and beside > 0
    assert page.evaluate("document.activeElement.getAttribute('aria-label')").split(", ")[1] == it.drafted[beside].fate
    assert page.evaluate("player.t === player.total"), "the arrows did not step the lane"
    page.keyboard.press("Escape")
    assert not page.locator(".sd-pop").is_visible()
    assert page.evaluate(f"document.activeElement === player.lanes[{TREE}].iterations[{number}].tokens[0].node")


def test_the_text_and_the_counts_of_a_tree_lane_are_the_runs(page, run):
    trace = run.lanes[TREE]
    assert lane_text(page, TREE) == whole_text(trace.output, run.vocab)
    costs = replace(run_costs(run), decision={"tree": 0.01})
    spent = sum(costs.iteration(it.n_drafted, trace.draft, "tree", it.n_steps) for it in trace.iterations)
    gain = page.evaluate("([at, costs]) => player.model.atCosts(player.lanes[at], costs)", [TREE, to_plain(costs)])
    assert gain == pytest.approx(len(trace.output) * costs.iteration(0, None) / spent)
    column = page.locator(".sd-col").nth(TREE)
    passes = sum(it.n_steps for it in trace.iterations)
    assert f"draft passes {passes}" in column.inner_text().replace("\n", " ")
    for kind in ("guessed", "deepest", "accepted"):
        assert page.locator(f".sd-col >> nth={TREE} >> .sd-sl-{kind}").get_attribute("d")
    hear_events(page, live_events(run)[:-1])
    assert page.evaluate(f"player.lanes[{TREE}].counted().draft_passes") == str(passes)
    assert page.locator(f".sd-text[data-lane='{TREE}'] .sd-fork").count()


def test_a_tree_fits_a_phone_and_axe_finds_nothing_serious(opened, run):
    page, number = opened(run, bypass_csp=True, **PHONE), branching(run)
    stop_at(page, 1)
    page.locator(".sd-chip").nth(TREE).tap()
    fork(page, number).tap()
    page.locator(".sd-pop.sd-sheet .sd-tree").wait_for(state="visible")
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    assert serious_light_or_dark(page) == []


def test_step_by_step_shows_a_place_after_the_other(opened, run):
    run, number = deepcopy(run), branching(run)
    it = run.lanes[TREE].iterations[number]
    first = [k for k, parent in enumerate(it.parents) if parent < 0]
    it.drafted[first[1]].p_draft = it.drafted[0].p_draft + 0.01  # the accepted guess is not the likeliest one
    show = {"view": "steps", "lane": "tree:8", "iteration": number}
    lesson = {"id": "tree", "title": "T", "about": "a", "minutes": 1, "recording": "tree"}
    steps = [{"title": "One", "text": ["Text."], "show": show}]
    page = opened(export_lesson(read_lesson(json.dumps({**lesson, "steps": steps})), run_payload(run, details=True)))
    said, seen, spent = [], [], []
    for _ in range(40):
        said.append(page.locator(".sl-caption .sl-sentence").inner_text())
        seen.append(page.locator(".sd-tree button:visible").count())
        if said[-1].startswith("Check:"):  # before the verdict nothing tells which guess holds
            found = boxes(page)
            assert len(found) == it.n_drafted
            assert sorted(first, key=lambda k: found[k]["y"]) == sorted(first, key=lambda k: -it.drafted[k].p_draft)
        spent.append(float(page.locator(".sl-cost-row .sl-value").first.inner_text()))
        if said[-1].startswith("Iteration"):
            break
        page.locator("[data-key=next]").click()
    assert seen == sorted(seen) and seen[0] >= 1  # what the check has read stays in sight
    assert spent == sorted(spent)
    assert re.search(rf"[=≈] {spent[-1]:.2f} passes", page.locator(".sl-caption").inner_text())  # its parts are rounded
    assert sum("proposes" in one for one in said) == it.deepest
    assert sum("Accepted." in one for one in said) == it.n_accepted
    assert sum(one.startswith("Check:") for one in said) == 1
    assert f"guessed {it.n_drafted} as a tree of depth {it.deepest}, {it.n_accepted} held" in said[-1]
    assert [one["fate"] for one in boxes(page)] == [token.fate for token in [*it.drafted, it.emitted]]
    before = page.locator(".sl-caption .sl-sentence").inner_text()
    page.locator(".sd-tree button").first.focus()
    for _ in range(it.deepest + 1):  # leads through the tree to its end, not to another step
        page.keyboard.press("ArrowRight")
    assert page.locator(".sl-caption .sl-sentence").inner_text() == before
    page.locator(".sd-tree button").nth(it.n_drafted - 1).click()
    assert "the draft gave it" in page.locator(".sl-numbers").inner_text()
    page.evaluate("void (window.print = () => {})")
    page.get_by_role("button", name="Print a handout").click()
    page.locator(".sl-handout").wait_for(state="attached")
    assert f"Iteration {number + 1}: guessed {it.n_drafted} as a tree" in page.locator(".sl-handout").text_content()
    for index, token in enumerate(it.drafted):  # as the race does that explains one
        page.evaluate("index => learn.places.steps.towards(index)", index)
        place = depths_of(it.parents)[index] + 1
        said = page.locator(".sl-caption .sl-sentence").inner_text()
        assert ("thrown away" in said) if token.fate == "dropped" else said.startswith(f"Place {place}: ")
