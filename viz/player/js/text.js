// The text of one lane, following the clock.

const BLANK = /[^\S\n]+|\n/;

/** Fill a token's node: blanks of marked tokens become visible, newlines show as a sign before they break. */
function fillToken(node, text, fate) {
  const marked = fate !== "a" && fate !== "p";
  if (!marked && !text.includes("\n")) { node.textContent = text; return; }
  let rest = text;
  while (rest) {
    const found = BLANK.exec(rest);
    const plain = found ? rest.slice(0, found.index) : rest;
    if (plain) node.append(plain);
    if (!found) break;
    const blank = found[0];
    if (blank === "\n") {
      node.append(el("i", "sd-nl"));
      if (fate !== "r" && fate !== "d") node.append("\n");
    } else if (marked) node.append(el("i", "sd-sp", blank));
    else node.append(blank);
    rest = rest.slice(found.index + blank.length);
  }
}

/** One lane's text: a scroller whose tokens become visible as the clock passes them. */
class TextView {
  constructor(lane, prompt, number) {
    this.lane = lane;
    this.scroller = el("div", "sd-text");
    this.scroller.tabIndex = 0;
    this.scroller.setAttribute("role", "group");
    this.scroller.setAttribute("aria-label", `Text of ${lane.name}; arrow keys walk through its tokens`);
    this.scroller.dataset.lane = number;
    this.body = el("div", "sd-body");
    if (prompt) this.body.append(el("span", "sd-prompt", prompt));
    this.scroller.append(this.body);
    this.reset();
  }

  reset() { this.built = 0; this.shown = 0; this.current = -1; this.currentTokens = 0; this.tops = null; }

  /** Append the iterations that are not on the page yet. */
  build() {
    const part = document.createDocumentFragment();
    for (; this.built < this.lane.iterations.length; this.built++) {
      const it = this.lane.iterations[this.built];
      const node = el("span", "sd-it");
      it.node = node;
      for (let k = it.first; k < it.first + it.fates.length; k++) {
        const token = this.lane.tokens[k];
        token.node = el("span", `sd-tk sd-${token.fate}`);
        token.node.sdToken = k;
        fillToken(token.node, token.text, token.fate);
        node.append(token.node);
      }
      part.append(node);
    }
    this.body.append(part);
    this.tops = null;
  }

  /** Show the state at time t. */
  show(t) {
    const its = this.lane.iterations;
    const at = this.lane.at(t);
    const done = at >= 0 && its[at].checkEnd <= t ? at + 1 : Math.max(at, 0);
    for (; this.shown < done; this.shown++) its[this.shown].node.classList.add("sd-done");
    for (; this.shown > done; this.shown--) its[this.shown - 1].node.classList.remove("sd-done");
    this.showCurrent(done === at ? at : -1, t);
    return done;
  }

  /** The iteration under way: its guesses appear one by one, their fates are still open. */
  showCurrent(current, t) {
    const its = this.lane.iterations;
    if (this.current !== current) {
      if (this.current >= 0) its[this.current].node.classList.remove("sd-now");
      if (current >= 0) {
        its[current].node.classList.add("sd-now");
        for (const node of its[current].node.children) node.classList.remove("sd-on");
      }
      this.current = current;
      this.currentTokens = 0;
    }
    if (current < 0) return;
    const it = its[current];
    const share = it.draftEnd > it.t0 ? (t - it.t0) / (it.draftEnd - it.t0) : 1;
    const wanted = clamp(Math.floor(share * it.drafted), 0, it.drafted);
    const nodes = it.node.children;
    for (; this.currentTokens < wanted; this.currentTokens++) nodes[this.currentTokens].classList.add("sd-on");
    for (; this.currentTokens > wanted; this.currentTokens--) nodes[this.currentTokens - 1].classList.remove("sd-on");
  }

  /** Tops are read once per layout, not once per frame. */
  measure() {
    if (!this.tops) {
      this.tops = this.lane.iterations.map((it) => it.node.offsetTop);
      this.height = this.scroller.clientHeight;
      this.scrolled = this.scroller.scrollTop;
    }
    if (!this.height) this.tops = null; // not on screen
    return this.tops !== null && this.tops.length > 0;
  }

  /** Keep the head of the text in sight. */
  follow(iteration) {
    if (!this.measure()) return;
    const top = this.tops[clamp(iteration, 0, this.tops.length - 1)];
    if (top > this.scrolled + this.height - 56 || top < this.scrolled) this.scrollTo(top - this.height * 0.45);
  }

  /** Bring an iteration into sight, wherever the reader has scrolled to. */
  reveal(iteration) {
    if (!this.measure()) return;
    const at = this.scroller.scrollTop;
    const top = this.tops[iteration];
    if (top > at + this.height - 48 || top < at) this.scrollTo(top - this.height * 0.4);
  }

  scrollTo(top) {
    this.scrolled = Math.max(0, top);
    this.scroller.scrollTop = this.scrolled;
  }
}
