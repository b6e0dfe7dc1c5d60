// Selection, highlighting and details, by mouse, touch and keyboard.

import { NARROW, aria, button, el } from "../../core/js/dom.js";
import { visible } from "../../core/js/format.js";
import { treeOf } from "../../core/js/tree.js";
import { GLOSSARY } from "../../core/js/words.js";
import { explanation, termOf } from "./glossary.js";
import { Player } from "./player.js";
import { detailNodes } from "./popup.js";

// The small buttons of one place share one Tab stop, and arrow keys lead from one to the next.
const PLACES = ".sd-words, .sd-legend, .sd-strips, .sd-sim-under, .sd-bar, .sd-col, .sd-panel";
const SHARING = ".sd-term, .sd-fig, .sd-chip, button.sd-name";
const AHEAD = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };

const Pointing = {
  select(number) {
    this.selected = number;
    this.reported = null;
    for (const view of this.views) if (view.name) aria(view.name, { pressed: view.number === number }).tabIndex = view.number === number ? 0 : -1;
  },

  laneNumber(lane) {
    const found = typeof lane === "number" ? lane : this.lanes.findIndex((one) => one.lane === lane);
    return this.lanes[found] ? found : this.selected;
  },

  /** Shows an output position (or an iteration) of a lane: the clock moves to its decision. */
  goTo({ lane, position, iteration }) {
    const number = this.laneNumber(lane);
    const model = this.lanes[number];
    if (!model || this.live) return;
    const token = model.tokens[model.keptAt[position]];
    const it = model.iterations[iteration ?? (token ? token.iteration : 0)];
    if (!it) return;
    this.pause();
    this.select(number);
    if (!this.views[number].isVisible) this.toggleColumn(number);
    this.seek(it.end);
    this.pinned = position ?? it.start;
    this.mark(this.pinned);
    this.bringIntoView(number);
  },

  /** Scrolls the race and the lane's text into view. */
  bringIntoView(number) {
    const out = ({ top, bottom }) => top < 0 || bottom > window.innerHeight;
    const { column, text: { scroller } } = this.views[number];
    if (out(scroller.getBoundingClientRect()) || this.race.getBoundingClientRect().bottom < 60) this.race.scrollIntoView({ block: "start" });
    if (out(scroller.getBoundingClientRect())) column.scrollIntoView({ block: "nearest" });
  },

  /**
   * Marks the same output position in every lane; in lane `from` the token `chosen`, which may have been thrown away.
   * While the replay is paused, the other texts scroll to it, except with `still`.
   */
  mark(position, { from, chosen, still } = {}) {
    for (const node of this.marked) node.classList.remove("sd-same");
    this.marked = [];
    for (const view of this.views) {
      const { lane, number } = view, kept = position == null ? null : lane.tokens[lane.keptAt[position]];
      const token = number === from && chosen ? chosen : kept;
      view.highlight(token ? token.iteration : -1);
      if (!token?.node) continue;
      token.node.classList.add("sd-same");
      this.marked.push(token.node);
      if (number !== from && !still && !this.playing && view.isVisible) view.text.reveal(lane.keptAt[position]);
    }
  },

  tokenOf(node) {
    const token = node.closest(".sd-text .sd-tk");
    if (token?.sdToken == null) return null;
    const lane = Number(token.closest(".sd-text").dataset.lane);
    return { lane, node: token, token: this.laneAt(lane).tokens[token.sdToken] };
  },

  /** Shows what is known of a token, of one in a tree in the `holder` under that. */
  async showToken({ lane, node, token }, holder = null) {
    this.wanted = token;
    this.wantedIn = lane;
    this.mark(token.position, { from: lane, chosen: token });
    this.emit(lane, token.position);
    const details = await this.fetchDetails(lane, token);
    if (this.wanted !== token) return;
    const { costs, iterations } = this.laneAt(lane), cost = holder && costs && el("p", "sd-mute", iterations[token.iteration].costSentence);
    const nodes = [...detailNodes(details), cost, this.wayToExplain(lane, token)].filter(Boolean);
    if (!holder) { this.popup.show(node, nodes); return; }
    holder.replaceChildren(...nodes);
    this.popup.place(node);
  },

  isBranching({ lane, token }) { return Boolean(this.laneAt(lane).iterations[token.iteration].parents); },

  /** The token after the guesses that a button in the text stands for. */
  ownTokenOf(fork) {
    const lane = Number(fork.closest(".sd-text").dataset.lane), it = this.laneAt(lane).iterations[fork.sdFork];
    return { lane, node: fork, token: it.own ?? it.guesses[it.accepted] };
  },

  /** The tree of a token's iteration, from the keyboard (`focus`) with that token in focus. */
  openTree({ lane, node, token }, focus) {
    const it = this.laneAt(lane).iterations[token.iteration], details = el("div", "sd-tree-details");
    const choose = (k) => this.showToken({ lane, node, token: it.tokens[k] }, details);
    const tree = treeOf(it, { choose, chosen: token.index });
    this.pause();
    this.holdPopup(true);
    this.popup.show(node, [el("p", "sd-tree-about", it.sentence), tree, details]);
    choose(token.index);
    const chosen = tree.querySelector("[aria-pressed=true]");
    chosen.scrollIntoView({ block: "nearest", inline: "nearest" });
    if (focus) chosen.focus({ preventScroll: true });
  },

  /** Whether more is recorded of the lane's tokens than is on the page. */
  isRecorded(lane) { return Boolean(this.lanes[lane]) && !this.live && !this.partial; },

  /** A button, or a hint, that leads to the Learn tab's explanation of the token's iteration, where there is one. */
  wayToExplain(lane, token) {
    if (!this.options.explain || !this.isRecorded(lane)) return null;
    const act = this.isHeld || this.popup.sheet ? "Explain this token" : "Click the token, or press e, for a step-by-step explanation";
    if (!this.isHeld && !this.popup.sheet) return el("p", "sd-mute", `${act}.`);
    return button(act, () => this.explain({ lane, token }), { cls: "sd-explain" });
  },

  explain({ lane, token }) {
    this.forget();
    this.options.explain({ lane, iteration: token.iteration, index: token.index });
  },

  async fetchDetails(lane, token) {
    const basic = {
      text: token.text, fate: token.outcome,
      where: `${this.laneAt(lane).name} · output position ${token.position} · iteration ${token.iteration + 1}`,
    };
    if (!this.options.details || !this.isRecorded(lane)) return basic;
    if (!this.cache.has(token)) {
      try {
        this.cache.set(token, (await this.options.details(lane, token.iteration, token.index)) || basic);
      } catch (error) {
        return { ...basic, why: "The details of this token could not be loaded; try again." };
      }
    }
    return this.cache.get(token);
  },

  /** Removes the highlight of the pointer; the current position stays marked. */
  forget() {
    clearTimeout(this.timer);
    this.holdPopup(false);
    this.wanted = null;
    this.mark(this.pinned, { still: true });
    this.popup.hide();
  },

  unpin() {
    this.pinned = null;
    this.forget();
  },

  /** A clicked token keeps its pop-up, so that the pointer can move there. */
  holdPopup(on) {
    this.isHeld = on;
    this.popup.node.classList.toggle("sd-held", on);
    aria(this.popup.node, { role: on ? "group" : "tooltip", ...(on && { label: "About this token" }) });
    if (!on) this.popup.node.removeAttribute("aria-label"); // it would be read in place of the text
  },

  showFigure(node) {
    this.wanted = null;
    const { label, formula, text } = node.sdFigure;
    const view = this.views.find(({ figures }) => figures.some(({ figure }) => figure === node.sdFigure));
    const known = node.sdKnown || view?.finished;
    const head = el("div", "sd-pop-head", el("b", "", label), el("span", "sd-mute", known ? text : "available when the lane has finished"));
    const meaning = GLOSSARY[termOf(label)];
    this.popup.show(node, [head, ...(meaning ? [el("p", "", meaning)] : []), el("p", "sd-mute", formula)]);
  },

  showGuide() {
    this.forget();
    this.guide.showModal();
  },

  showTerm(node) {
    this.wanted = null;
    this.popup.show(node, explanation(node.sdTerm));
  },

  setFinalOnly(on) {
    this.isFinalOnly = on;
    this.root.classList.toggle("sd-final", on);
    aria(this.finalOnly, { pressed: on });
    for (const { text } of this.views) text?.setFinalOnly(on);
    this.render();
  },

  // ------------------------------------------------------------ listening

  listen() {
    this.root.addEventListener("pointerover", (event) => this.hover(event));
    this.root.addEventListener("pointerout", (event) => {
      if (event.pointerType === "mouse" && !this.isHeld) this.forget();
    });
    this.texts.addEventListener("pointerenter", () => { this.hovering = !this.playing; });
    this.texts.addEventListener("pointerleave", () => { this.hovering = false; });
    this.root.addEventListener("click", (event) => this.tap(event));
    document.addEventListener("click", (event) => { if (this.isHeld && !this.root.contains(event.target)) this.unpin(); });
    this.root.addEventListener("focusin", (event) => this.focused(event));
    this.root.addEventListener("focusout", (event) => {
      if (!this.popup.sheet && !this.popup.node.contains(event.relatedTarget) && !this.isHeld) this.forget();
    });
    this.strip.addEventListener("pointerdown", (event) => this.grab(event));
    this.root.addEventListener("sd:goto", (event) => this.goTo(event.detail || {}));
    this.texts.addEventListener("copy", (event) => this.copy(event));
    document.addEventListener("keydown", (event) => this.key(event));
    window.matchMedia(NARROW).addEventListener("change", () => { if (this.views.length) { this.showColumns(); this.render(); } });
    new ResizeObserver(() => { for (const { text } of this.views) text?.forgetLayout(); }).observe(this.texts);
  },

  hover(event) {
    if (event.pointerType !== "mouse" || this.isHeld) return;
    const figure = event.target.closest(".sd-fig"), term = event.target.closest(".sd-term");
    if (figure) { this.showFigure(figure); return; }
    if (term) { this.showTerm(term); return; }
    if (!this.live && event.target.closest(".sd-sl-plot")) { this.hoverLookahead(event); return; }
    const found = this.tokenOf(event.target);
    if (!found) return;
    this.mark(found.token.position, { from: found.lane, chosen: found.token });
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.showToken(found), 140);
  },

  tap(event) {
    if (event.target.closest(".sd-pop .sd-close")) { this.unpin(); return; }
    if (!event.target.closest(".sd-pop")) this.holdPopup(false);
    const found = this.tokenOf(event.target);
    const figure = event.target.closest(".sd-fig");
    const term = event.target.closest(".sd-term");
    const fork = event.target.closest(".sd-fork");
    if (fork) { this.openTree(this.ownTokenOf(fork)); return; }
    if (found && this.isBranching(found)) this.openTree(found);
    else if (found) { this.pause(); this.holdPopup(Boolean(this.options.explain)); this.focusToken(found); } else if (figure) this.showFigure(figure);
    else if (term) this.showTerm(term);
    else if (this.tapLookahead(event)) return;
    else if (!event.target.closest(".sd-pop, button, input, select, label")) this.unpin();
  },

  focused(event) {
    if (event.target.classList.contains("sd-fig")) this.showFigure(event.target);
    if (event.target.sdToken != null) this.showToken(this.tokenOf(event.target));
  },

  /** Dragging or clicking on the strips moves the clock, until a swipe turns out to scroll the page. */
  grab(event) {
    const clip = event.target.closest(".sd-clip");
    if (!clip || this.live) return;
    event.preventDefault();
    const box = clip.getBoundingClientRect();
    const lane = Number(clip.parentNode.dataset.lane);
    if (this.lanes[lane]) this.select(lane);
    const move = (at) => { this.pause(); this.seek((at.clientX - box.left) / box.width * this.total); };
    const held = new AbortController(), { signal } = held;
    document.addEventListener("pointermove", move, { signal });
    for (const end of ["pointerup", "pointercancel"]) document.addEventListener(end, () => held.abort(), { signal });
    move(event);
  },

  isOnScreen() {
    const { top, bottom, height } = this.root.getBoundingClientRect();
    return height > 0 && top < window.innerHeight && bottom > 0;
  },

  key(event) {
    const target = event.target;
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
    const here = this.root.contains(target);
    if (!here && !(target === document.body && this.isOnScreen())) return;
    if (event.key === "Escape") {
      if (this.popup.node.contains(target)) this.popup.anchor.focus(); // before what has the focus is closed
      this.unpin();
      return;
    }
    if (here && this.rove(event)) { event.preventDefault(); return; }
    if (this.guide.open) return;
    if (target.closest(".sd-text") && this.walk(event)) { event.preventDefault(); return; }
    const tag = target.tagName;
    const ranged = tag === "INPUT" && target !== this.rail;
    if (ranged || tag === "SELECT" || tag === "TEXTAREA") return;
    if (event.key === " " && (tag === "BUTTON" || tag === "SUMMARY")) return;
    if (event.key === "e" && this.explainShown(target)) { event.preventDefault(); return; }
    const acts = {
      " ": () => this.toggle(), ArrowLeft: () => this.step(-1), ArrowRight: () => this.step(1),
      Home: () => { this.pause(); this.seek(0); }, End: () => { this.pause(); this.seek(this.total); },
      "+": () => this.changeSpeed(1), "=": () => this.changeSpeed(1), "-": () => this.changeSpeed(-1),
      "?": () => this.showGuide(), f: () => this.setFinalOnly(!this.isFinalOnly),
    };
    if (!acts[event.key] || (this.live && event.key !== "?")) return;
    event.preventDefault();
    acts[event.key]();
  },

  /** Copies the text without symbols for spaces and without discarded tokens. */
  copy(event) {
    const selection = window.getSelection();
    const scroller = event.target.closest?.(".sd-text");
    if (!scroller || !selection.rangeCount) return;
    const range = selection.getRangeAt(0);
    const kept = this.laneAt(Number(scroller.dataset.lane)).tokens
      .filter(({ node, thrown }) => !thrown && range.intersectsNode(node));
    if (!kept.length) return;
    event.preventDefault();
    event.clipboardData.setData("text/plain", kept.map(({ text }) => text).join(""));
  },

  /** Shows a token from which the arrow keys go on. */
  focusToken(found) {
    const { node, token: { text, outcome, ends } } = found;
    node.tabIndex = -1;
    aria(node, { role: "button", label: `${ends ? "end of the text" : visible(text)}, ${outcome}`, describedby: this.popup.node.id });
    if (document.activeElement === node) this.showToken(found); else node.focus({ preventScroll: false });
  },

  /** "e" explains the token that is shown, or has the focus. Returns whether there is one. */
  explainShown(target) {
    const shown = this.wanted ? { lane: this.wantedIn, token: this.wanted } : this.tokenOf(target);
    if (!shown || !this.options.explain || !this.isRecorded(shown.lane)) return false;
    this.explain(shown);
    return true;
  },

  /** Arrow keys in a text move from token to token. */
  walk({ key, target }) {
    const direction = { ArrowRight: 1, ArrowLeft: -1 }[key], here = this.tokenOf(target);
    if (key === "Enter" && here && this.isBranching(here)) { this.openTree(here, true); return true; }
    if (!direction) return false;
    const { lane, text: { visible: end } } = this.views[target.closest(".sd-text").dataset.lane];
    for (let k = (target.sdToken ?? -1) + direction; k >= 0 && k < end; k += direction) {
      const { node } = lane.tokens[k];
      if (node.offsetParent === null) continue; // final text only
      this.focusToken(this.tokenOf(node));
      break;
    }
    return true;
  },

  /** Makes the first button of every place within `node` its Tab stop; of the lanes' names, the selected one. */
  shareStops(node = this.root) {
    const seen = new Set();
    for (const one of node.querySelectorAll(SHARING)) {
      const place = one.closest(PLACES), waits = one.getAttribute("aria-pressed") === "false" && one.classList.contains("sd-name");
      if (!place) continue;
      one.tabIndex = seen.has(place) || waits ? -1 : 0;
      if (!waits) seen.add(place);
    }
  },

  /** Moves the focus among the buttons of a place. Returns whether the key was meant for that. */
  rove({ key, target }) {
    const node = target.closest(SHARING), place = node?.closest(PLACES);
    const sideways = key === "ArrowLeft" || key === "ArrowRight";
    if (!place || !AHEAD[key] || (sideways && node.classList.contains("sd-name"))) return false;  // these step the lane
    const all = [...place.querySelectorAll(SHARING)].filter((one) => one.offsetParent && one.closest(PLACES) === place);
    const next = all[all.indexOf(node) + AHEAD[key]];
    if (next) {
      node.tabIndex = -1;
      next.tabIndex = 0;
      next.focus();
    }
    return true;
  },
};

Object.assign(Player.prototype, Pointing);
