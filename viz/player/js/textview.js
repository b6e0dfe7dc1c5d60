// The text of one lane, following the clock.

import { aria, el, svg } from "../../core/js/dom.js";
import { clamp } from "../../core/js/format.js";

/** A token's nodes in the plain text: discarded tokens take no space, and spaces are not marked. */
function plainNodes(text, fate, number) {
  const node = el("span", `sd-tk sd-${fate}`, fate === "r" || fate === "d" ? "" : text);
  node.sdToken = number;
  node.hidden = !node.firstChild;
  return ["", node, ""];
}

/**
 * A token's nodes: the spaces of marked tokens become dots, and newlines are shown as a symbol before they break. The dots
 * are characters, preceded by a place to wrap, because thousands of painted dots make frames slow; Pointing.copy restores
 * the spaces. A final newline is outside the token's node, which would otherwise continue, empty, in the next line.
 */
function tokenNodes(text, fate, number) {
  const node = el("span", `sd-tk sd-${fate}`);
  node.sdToken = number;
  const marked = fate !== "a" && fate !== "p";
  const thrown = fate === "r" || fate === "d";
  const breaks = text.endsWith("\n") && !thrown;
  for (const part of text.split(/(\n|[^\S\n]+)/)) {
    if (part === "\n") node.append(el("i", "sd-nl"), thrown ? "" : "\n");
    else if (marked && part && !part.trim()) node.append(el("i", "sd-sp", dots(part)));
    else if (part) node.append(part);
  }
  if (breaks) node.lastChild.remove();
  return [marked && /^[^\S\n]/.test(text) ? MAY_WRAP : "", node, breaks ? "\n" : ""];
}

const FORK = "M1 6H5L9 2H13M5 6L9 10H13";

/** What stands in a text for the guesses of an iteration that branched off it. */
function forkButton(it, number) {
  const thrown = it.drafted - it.accepted, sign = svg("svg", { viewBox: "0 0 14 12", "aria-hidden": "true" }, svg("path", { d: FORK }));
  const node = el("button", "sd-fork", sign, String(thrown));
  Object.assign(node, { type: "button", tabIndex: -1, sdFork: number, title: "Guesses beside the text: show the tree" });
  return aria(node, { label: `Iteration ${number + 1}: ${thrown} of ${it.drafted} guesses beside the text; show the tree` });
}

const MAY_WRAP = "\u200b";
const dots = (blanks) => blanks.replace(/\t/g, "⇥").replace(/[^⇥]/g, "·");

const LINE = 24; // px, as in player.css
const BLOCK = 24; // tokens of a block of text, at least

/**
 * One lane's text. It is laid out once and whole; two covers hide what has not been decoded yet. The visible tokens
 * are always the first ones of the text, so a frame moves two boxes instead of restyling thousands of tokens. The text
 * is cut into blocks at line ends, which looks the same: only the block where something changes is repainted.
 */
export class TextView {
  constructor(lane, prompt, number) {
    this.lane = lane;
    this.scroller = aria(el("div", "sd-text"), { role: "group", label: `Text of ${lane.name}; arrow keys walk through its tokens` });
    this.scroller.tabIndex = 0;
    this.scroller.dataset.lane = number;
    this.body = el("div", "sd-body");
    this.prompt = prompt;
    this.empty();
    this.lineCover = el("div", "sd-cover sd-cover-line");
    this.restCover = el("div", "sd-cover sd-cover-rest");
    this.lineCover.hidden = this.restCover.hidden = true;
    this.scroller.append(el("div", "sd-inner", this.body, this.lineCover, this.restCover));
    this.current = -1;
    this.visible = 0; // tokens
    this.finalOnly = false;
    this.forgetLayout();
  }

  /** Shows only the prompt. */
  empty() {
    this.body.replaceChildren();
    this.built = 0;
    this.openBlock(0);
    if (this.prompt) this.block.append(el("span", "sd-prompt", this.prompt));
  }

  /** Appends the iterations that are not yet on the page. */
  build() {
    for (; this.built < this.lane.iterations.length; this.built++) {
      const it = this.lane.iterations[this.built];
      it.nodes = [];
      let node = null;
      for (let k = it.first; k < it.first + it.fates.length; k++) {
        if (this.blockEnds(k)) { this.openBlock(k); node = null; }
        if (!node) {
          node = el("span", this.built % 2 ? "sd-band" : "");
          it.nodes.push(node);
          this.block.append(node);
        }
        const token = this.lane.tokens[k];
        const nodes = (this.finalOnly ? plainNodes : tokenNodes)(token.text, token.fate, k);
        token.node = nodes[1];
        if (token.ends && !this.finalOnly) token.node.classList.add("sd-end");
        const branches = it.parents && !this.finalOnly;
        if (branches && token.thrown) token.node.hidden = true; // the tree shows it
        if (branches && k === it.first + it.accepted && it.drafted > it.accepted) node.append(forkButton(it, this.built));
        node.append(...nodes);
      }
    }
    this.forgetLayout();
  }

  /** Whether token k begins a new block: after a line end, once the block has some tokens. */
  blockEnds(k) {
    if (k - this.blockFirst < BLOCK) return false;
    const { text, thrown } = this.lane.tokens[k - 1];
    return text.endsWith("\n") && !thrown;
  }

  openBlock(first) {
    this.block = el("div", "sd-block-in");
    this.blockFirst = first;
    this.body.append(el("div", "sd-block", this.block));
  }

  forgetLayout() { this.places = []; this.height = 0; this.painted = undefined; }

  /** The text alone, or every guess with its fate; the nodes are rebuilt, so that no symbol for a space remains. */
  setFinalOnly(on) {
    if (this.finalOnly === on) return;
    this.finalOnly = on;
    this.current = -1;
    this.empty();
    this.build();
  }

  /** Computes what is visible at time t; reads the layout but writes nothing. */
  plan(t) {
    const its = this.lane.iterations;
    const at = this.lane.at(t);
    const done = this.lane.doneAt(t);
    const under = done === at ? its[at] : null;
    this.planned = { current: under ? at : -1, visible: this.visibleTokens(done, under, t) };
    if (!this.hidden) this.planned.place = this.place(this.planned.visible);
    if (!this.hidden && !this.height) {
      this.height = this.scroller.clientHeight;
      this.scrolled = this.scroller.scrollTop;
    }
  }

  visibleTokens(done, under, t) {
    const its = this.lane.iterations;
    if (!under) return done < its.length ? its[done].first : this.lane.tokens.length;
    if (this.finalOnly) return under.first;
    const share = under.draftEnd > under.t0 ? (t - under.t0) / (under.draftEnd - under.t0) : 1;
    return under.first + clamp(Math.floor(share * under.drafted), 0, under.drafted);
  }

  /** Where token k begins: {x, line}; read once per layout. Past the end: nothing is covered. */
  place(k) {
    while (this.lane.tokens[k]?.node.hidden) k++;
    if (k >= this.lane.tokens.length) return null;
    if (!this.places[k]) {
      const home = this.body.getBoundingClientRect();
      const at = this.lane.tokens[k].node.getClientRects()[0] || home;
      this.places[k] = { x: Math.round(at.left - home.left), line: Math.floor((at.top - home.top + LINE / 3) / LINE) };
    }
    return this.places[k];
  }

  setNow(iteration, on) {
    for (const node of this.lane.iterations[iteration].nodes) node.classList.toggle("sd-now", on);
  }

  /** Applies the result of plan(); `follow` keeps the head of the text visible. */
  paint(follow) {
    const { current, visible, place } = this.planned;
    if (this.current !== current) {
      if (this.current >= 0) this.setNow(this.current, false);
      if (current >= 0) this.setNow(current, true);
      this.current = current;
    }
    this.visible = visible;
    if (this.painted === place) return;
    this.painted = place;
    if (follow) this.follow(place);
    this.lineCover.hidden = this.restCover.hidden = !place;
    if (!place) return;
    this.lineCover.style.transform = `translate(${place.x}px, ${place.line * LINE}px)`;
    this.restCover.style.transform = `translateY(${(place.line + 1) * LINE}px)`;
  }

  follow(place) {
    const head = place || (this.lane.tokens.length && this.place(this.lane.tokens.length - 1));
    if (head) this.bring(head, 0.55);
  }

  /** Scrolls a token into view. */
  reveal(k) {
    Object.assign(this, { height: this.scroller.clientHeight, scrolled: this.scroller.scrollTop });
    this.bring(this.place(k) || { line: 0 }, 0.4);
  }

  /** Scrolls to a line that is out of sight: it stands at this share of the height, and no other is cut at the top. */
  bring({ line }, share) {
    const top = line * LINE;
    if (top >= this.scrolled && top <= this.scrolled + this.height - 2 * LINE) return;
    this.scrolled = LINE * Math.max(0, Math.round(line - share * this.height / LINE));
    this.scroller.scrollTop = this.scrolled;
  }
}
