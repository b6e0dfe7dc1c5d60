// The parts of the page that do not depend on the run: transport, legend, axis, columns.

import { niceStep } from "../../core/js/charts.js";
import { aria, button, el, isNarrow, range, select, svg } from "../../core/js/dom.js";
import { times } from "../../core/js/format.js";
import { FATES } from "../../core/js/words.js";
import { guide, termButton, termed } from "./glossary.js";
import { LaneView } from "./laneview.js";
import { Player, SPEEDS, fittingSpeed, speedText } from "./player.js";
import { MEASURED } from "./strip.js";

const Shell = {
  buildShell() {
    this.sentence = el("p", "sd-sentence");
    this.look = el("p", "sd-look");  // one line on what the page shows
    this.fact = el("p", "sd-fact");
    this.shows = el("p", "sd-shows");  // what to notice in an example
    this.badge = el("p", "sd-badge");
    this.picture = el("figure", "sd-picture");  // what the target read besides the prompt
    const head = el("div", "sd-say", el("div", "", this.look, this.sentence), this.badge);
    this.status = el("p", "sd-status");
    this.status.hidden = true;
    this.strip = el("div", "sd-strips");
    this.axis = aria(el("div", "sd-axis"), { hidden: true });
    this.race = el("div", "sd-card sd-race", this.status, this.buildTransport(), this.strip, this.axis, this.buildLegend());
    this.verdict = aria(el("p", "sd-verdict"), { live: "polite" });
    this.chips = aria(el("div", "sd-chips"), { role: "group", label: "Texts shown" });
    this.texts = el("div", "sd-texts");
    this.panels = el("div");
    this.guide = guide(this.buildLegend(true));
    const words = el("div", "sd-words", head, this.shows, this.picture, this.fact);
    this.root.replaceChildren(words, this.race, el("div", "sd-bar", this.verdict, this.chips), this.texts, this.panels, this.guide);
  },

  buildTransport() {
    const iconButton = (path, act, title, cls = "") => {
      const node = button(null, act, { title, cls });
      node.append(svg("svg", { viewBox: "0 0 16 16", "aria-hidden": "true" }, svg("path", { d: path })));
      return node;
    };
    this.playPath = ["M3.5 2v12l10-6z", "M3 2h3.6v12H3zM9.4 2H13v12H9.4z"];
    this.playButton = iconButton(this.playPath[0], () => this.toggle(), "Play", "sd-play");
    const back = iconButton("M3 2h2v12H3zM13 2v12L6 8z", () => this.step(-1), "Previous iteration (left arrow)");
    const next = iconButton("M11 2h2v12h-2zM3 2v12l7-6z", () => this.step(1), "Next iteration (right arrow)");
    this.now = el("span", "sd-clock");
    this.rail = range("Time", { min: 0, max: 1000, value: 0, cls: "sd-rail" }, (at) => { this.pause(); this.seek(at / 1000 * this.total); });
    this.ends = el("span", "sd-clock sd-mute");
    this.speeds = select("Speed of the replay", [], "", (speed) => { this.speed = Number(speed); }, "sd-speed");
    this.finalOnly = button("final text", () => this.setFinalOnly(!this.isFinalOnly), { cls: "sd-toggle", pressed: false });
    this.finalOnly.append(el("span", "sd-wide", " only"));
    const help = button("?", () => this.showGuide(), { title: "Guide: what you see, words, keys (?)", cls: "sd-help" });
    this.knob = el("i", "sd-knob"); // with the line up to it: seen in the slider's place, since a new value of that would cause a new layout
    const rail = el("span", "sd-rail-box", this.now, el("span", "sd-track", this.knob, this.rail), this.ends);
    return el("div", "sd-transport", this.playButton, back, next, rail, this.speeds, this.finalOnly, help);
  },

  /** The legend of bars, colours and shades; tapping an entry explains it. */
  buildLegend(whole) {
    const legend = el("div", whole ? "sd-legend sd-legend-whole" : "sd-legend");
    const entry = (mark, text) => legend.append(el("span", "sd-key", mark, el("span", "", ...termed(text))));
    entry(el("i", "sd-swatch sd-swatch-guess"), "a guess by the draft");
    entry(el("i", "sd-swatch"), "a pass of the target");
    for (const letter of "ardcbp") {
      const node = termButton(FATES[letter]);
      node.classList.add("sd-tk", `sd-${letter}`);
      legend.append(node);
    }
    entry(el("i", "sd-swatch sd-swatch-band"), "shaded, unshaded: one iteration each");
    if (whole) entry(el("i", "sd-swatch sd-swatch-sl"), "SL bars: guessed is outlined or pale, accepted is filled; in a tree, the line is its deepest guess");
    return legend;
  },

  addLane(lane, number, prompt) {
    const cls = `sd-lane sd-shape-${lane.look.symbol}`;
    const name = button(el("span", "sd-name-text", lane.name), () => this.select(number), { title: `Step through ${lane.name}`, cls: "sd-name", pressed: false });
    const view = this.addView(number, prompt, {
      name, row: el("div", `sd-row ${cls}`, name),
      column: el("article", `sd-card sd-col ${cls}${lane.policy === "autoregressive" ? " sd-plain" : ""}`),
      chip: button(lane.name, () => this.toggleColumn(number), { cls: `sd-chip ${cls}`, pressed: true }),
    });
    for (const node of [view.row, view.column, view.chip]) node.style.setProperty("--sd-k", `var(${lane.look.colour})`);
    view.draw(lane, MEASURED, lane.speedup ? times(lane.speedup.median) : "");
    view.write();
  },

  addView(number, prompt, nodes) {
    const view = new LaneView(this, number, prompt, nodes);
    this.strip.append(view.row);
    this.texts.append(view.column);
    this.chips.append(view.chip);
    this.views.push(view);
    return view;
  },

  /** Three texts: of the first sentence's lane, the fastest one, the fastest that can be used, and the first ones. */
  showDefaultColumns() {
    const numbers = this.lanes.map((_, i) => i).filter((i) => this.lanes[i].policy !== "autoregressive" || this.lanes.length < 3);
    const gain = (i) => this.lanes[i].speedup?.median ?? 0, byGain = [...numbers].sort((i, j) => gain(j) - gain(i));
    const lead = this.payload?.lead, usable = byGain.find((i) => this.lanes[i].policy !== "oracle");
    const open = [...new Set([lead, usable, byGain[0], ...numbers])].filter((i) => numbers.includes(i)).slice(0, 3);
    for (const view of this.views) view.shown = open.includes(view.number);
    this.tab = open[0] ?? 0;
    this.showColumns();
  },

  toggleColumn(number) {
    const view = this.views[number];
    if (isNarrow()) this.tab = number;
    else {
      view.shown = !view.shown || !this.views.some((one) => one !== view && one.shown);
      if (view.shown) this.tab = number;
    }
    this.showColumns();
    this.selectShown(number);
    this.render();
  },

  /** The arrow keys step through a lane with visible text: the one just opened, else the first. */
  selectShown(number) {
    const seen = (i) => this.lanes[i] && this.views[i].isVisible;
    if (seen(number)) this.select(number);
    else if (!seen(this.selected)) this.select(Math.max(0, this.lanes.findIndex((_, i) => seen(i))));
  },

  showColumns() {
    const narrow = isNarrow();
    if (!narrow && !this.views[this.tab]?.shown) this.tab = Math.max(0, this.views.findIndex((view) => view.shown));
    for (const view of this.views) view.setVisible(narrow ? view.number === this.tab : view.shown);
    const visible = this.views.filter((view) => view.isVisible).length;
    this.texts.style.setProperty("--columns", String(Math.min(visible, 4)));
  },

  buildAxis() {
    const width = this.axis.clientWidth || 900;
    const step = niceStep(this.total, Math.max(2, Math.min(5, Math.floor(width / 80))));  // so that labels do not touch on a phone
    const inner = el("div", "sd-axis-in");
    for (let t = 0; t <= this.total * 1.0001; t += step) {
      const tick = el("span", "", this.total < 0.5 ? `${Math.round(t * 1e5) / 100} ms` : `${Number(t.toPrecision(3))} s`);
      tick.style.left = `${100 * t / this.total}%`;
      inner.append(tick);
    }
    this.axis.replaceChildren(inner);
  },

  /** The speed at which `seconds` play in a fitting time, and the others that can be chosen. */
  fitSpeed(seconds) {
    this.speed = fittingSpeed(seconds);
    const all = SPEEDS.filter((s) => Math.abs(Math.log(s / this.speed)) > 0.01).concat(this.speed);
    all.sort((a, b) => a - b);
    this.speeds.replaceChildren(...all.map((speed) => Object.assign(el("option", "", speedText(speed)), { value: speed })));
    this.speeds.value = String(this.speed);
  },
};

Object.assign(Player.prototype, Shell);
