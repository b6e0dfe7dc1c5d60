// A lane's lookahead along its text: a bar per iteration, guessed as outline (of many bars pale), accepted as fill.

import { aria, el, svg } from "../../core/js/dom.js";
import { clamp, count } from "../../core/js/format.js";
import { lastAtMost } from "../../core/js/lanes.js";
import { termButton } from "./glossary.js";
import { Player } from "./player.js";

/** One lane's SLs over output positions; all lanes share both axes, so that the bars can be compared. */
export class SlStrip {
  constructor(lane) {
    this.lane = lane;
    this.svg = svg("svg", { preserveAspectRatio: "none", "aria-hidden": "true", focusable: "false" });
    this.cover = el("div", "sd-sl-cover");
    this.mark = el("i", "sd-sl-mark");
    this.top = el("span", "sd-sl-top");
    this.over = el("div", "sd-sl-over");
    this.plot = aria(el("div", "sd-sl-plot", this.svg, this.over, this.cover, this.mark), { role: "img" });
    this.node = el("div", "sd-sl", this.top, termButton("SL"), el("span", "sd-sl-zero", "0"), this.plot);
    this.mark.hidden = true;
  }

  /** Draws on axes of `length` positions and `top` guesses. */
  draw(length, top) {
    Object.assign(this, { length: Math.max(1, length), most: top });
    let guessed = "", accepted = "", deepest = "";
    for (const it of this.lane.iterations) {
      const width = Math.max(1, it.gives) - 0.12;
      if (it.drafted) guessed += column(it.start, width, Math.min(it.drafted, top) / top);
      if (it.accepted) accepted += column(it.start, width, Math.min(it.accepted, top) / top);
      if (it.parents) deepest += `M${it.start} ${(1 - Math.min(it.deepest, top) / top).toFixed(3)}h${width.toFixed(2)}`;
    }
    this.svg.setAttribute("viewBox", `0 0 ${this.length} 1`);
    this.svg.classList.toggle("sd-sl-many", this.lane.iterations.length > MOST_OUTLINES);
    this.svg.replaceChildren(svg("path", { class: "sd-sl-accepted", d: accepted }), svg("path", { class: "sd-sl-guessed", d: guessed }), svg("path", { class: "sd-sl-deepest", d: deepest }));
    this.top.textContent = String(top);
    this.over.replaceChildren(...this.lane.iterations.filter((it) => it.drafted > top).map((it) => this.cut(it)));
    const most = Math.max(0, ...this.lane.iterations.map((it) => it.drafted));
    aria(this.plot, { label:
      `SL of ${this.lane.name} along the text: ${this.lane.iterations.length} iterations, at most ${count(most, "guess", "guesses")} in one` });
  }

  /** A bar that is higher than the axis says so, and its height where there is room for it. */
  cut(it) {
    const share = Math.max(1, it.gives) / this.length, node = el("span", "", share < 0.08 ? "↑" : `↑ ${it.drafted}`);
    node.style.left = `${100 * (it.start / this.length + share / 2)}%`;
    return node;
  }

  /** Hides everything after the first `done` iterations. */
  reach(done) {
    const last = this.lane.iterations[done - 1];
    const share = last ? (last.start + last.gives) / this.length : 0;
    this.cover.style.transform = `translateX(${(100 * clamp(share, 0, 1)).toFixed(2)}%)`;
  }

  highlight(iteration) {
    const it = this.lane.iterations[iteration];
    this.mark.hidden = !it;
    if (!it) return;
    this.mark.style.left = `${100 * it.start / this.length}%`;
    this.mark.style.width = `${100 * Math.max(1, it.gives) / this.length}%`;
  }

  /** The iteration whose bar lies under a pointer. */
  at(event) {
    const box = this.plot.getBoundingClientRect();
    const position = (event.clientX - box.left) / box.width * this.length;
    return lastAtMost(this.lane.iterations, position, (it) => it.start);
  }
}

function column(x, width, share) {
  return `M${x} 1v-${share.toFixed(3)}h${width.toFixed(2)}V1z`;
}

const MOST_OUTLINES = 100; // the outlines of more bars would merge into a fill
const CLIP = 1.3; // the oracle's longest bars are cut at this multiple of the usable policies' highest SL

/** The height of all strips: the highest SL of the usable lanes, plus some room for the oracle. */
function commonTop(lanes) {
  const most = (some) => Math.max(0, ...some.flatMap((lane) => lane.iterations.map((it) => it.drafted)));
  const usable = most(lanes.filter((lane) => lane.policy !== "oracle"));
  const all = most(lanes);
  return Math.max(4, usable ? Math.min(all, Math.ceil(usable * CLIP)) : all);
}

const Lookahead = {
  /** Draws all strips on common axes; called again whenever a lane has grown. */
  drawLookahead() {
    const lanes = this.views.map(({ lane }) => lane);
    const length = Math.max(1, ...lanes.map((lane) => lane.keptAt.length)), top = commonTop(lanes);
    for (const { sls } of this.views) sls.draw(length, top);
  },

  tapLookahead(event) {
    const plot = event.target.closest(".sd-sl-plot");
    const number = this.views.findIndex(({ sls }) => sls.plot === plot);
    if (number < 0 || this.live || !this.lanes[number]) return false;
    this.goTo({ lane: number, iteration: Math.max(0, this.views[number].sls.at(event)) });
    return true;
  },

  hoverLookahead(event) {
    const strip = this.views.map(({ sls }) => sls).find(({ node }) => node.contains(event.target));
    if (!strip) return false;
    const number = strip.at(event), it = strip.lane.iterations[number];
    if (!it) return false;
    const head = el("div", "sd-pop-head", el("b", "", `Iteration ${number + 1}`), el("span", "sd-mute", `from position ${it.start}`));
    this.popup.show(strip.node, [head, el("p", "", `${it.drafted} guessed${it.parents ? `, ${it.deepest} of them one after another` : ""}, ${it.accepted} accepted.`)]);
    return true;
  },
};

Object.assign(Player.prototype, Lookahead);
