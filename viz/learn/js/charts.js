/* Charts of the Learn tab. */

import { aria, el, isNarrow, part, svg } from "../../core/js/dom.js";
import { clamp, count, fixed, percent, times } from "../../core/js/format.js";
import { SL_CAP, checkCost } from "../../core/js/replay.js";

const SLS = Array.from({ length: SL_CAP }, (_, i) => i + 1);

/** Speedups over the SL and the numbers `columns`, as cells, which are built once and then only recoloured. The run's cell is outlined. */
export class HeatMap {
  constructor(label, columns) {
    Object.assign(this, { label, columns, w: isNarrow() ? 360 : 460, h: 250, left: 34, top: 8, bottom: 34 });
    this.cw = (this.w - this.left - 6) / columns.length;
    this.ch = (this.h - this.top - this.bottom) / SLS.length;
    this.chart = svg("svg", { viewBox: `0 0 ${this.w} ${this.h}`, class: "sd-chart sl-heat", role: "img" });
    this.cells = SLS.map((_, j) => columns.map((__, i) => this.cell(i, j)));
    this.chart.append(...this.cells.flat(), ...this.ticks(), this.outline = svg("rect", { width: this.cw, height: this.ch, class: "sl-here" }));
    this.title = el("figcaption");
    this.readout = el("p", "sl-note", "");
    this.chart.addEventListener("pointermove", (event) => this.point(event));
    this.chart.addEventListener("pointerleave", () => { this.readout.textContent = this.resting; });
    this.node = el("figure", "sd-figure", this.title, this.chart, key(), this.readout);
  }

  x(i) { return this.left + i * this.cw; }
  y(j) { return this.top + (SLS.length - 1 - j) * this.ch; }
  cell(i, j) { return svg("rect", { x: this.x(i), y: this.y(j), width: this.cw, height: this.ch }); }

  ticks() {
    const { columns, left, w, h, bottom } = this, text = (x, y, cls, what) => svg("text", { x, y, class: `sd-tick ${cls}` }, what);
    const across = columns.map((column, i) => i % Math.ceil(columns.length / 8) === 0 && text(this.x(i) + this.cw / 2, h - bottom + 14, "sd-middle", fixed(column)));
    const up = SLS.map((sl, j) => j % Math.ceil(SLS.length / 6) === 0 && text(left - 5, this.y(j) + this.ch / 2 + 4, "sd-at-end", String(sl)));
    return [...across, ...up, text((left + w) / 2, h - 4, "sd-middle", this.label), text(0, h - bottom + 14, "", "SL")].filter(Boolean);
  }

  say(i, j) { return `${this.label} ${fixed(this.columns[i])}, SL ${SLS[j]}: ${times(this.values[j][i])}`; }

  /** value(column, SL) -> speedup; [i, j]: the run's own cell. One colour marks speedups below 1, another those above. */
  update(title, value, [i, j]) {
    this.title.textContent = title;
    aria(this.chart, { label: title });
    this.values = SLS.map((sl) => this.columns.map((column) => value(column, sl)));
    this.values.forEach((line, r) => line.forEach((speed, k) => {
      const cell = this.cells[r][k];
      cell.setAttribute("class", speed >= 1 ? "sl-gain" : "sl-loss");
      cell.setAttribute("fill-opacity", (0.08 + 0.84 * clamp(Math.abs(Math.log2(Math.max(speed, 0.05))) / 2, 0, 1)).toFixed(2));
    }));
    this.outline.setAttribute("x", this.x(i));
    this.outline.setAttribute("y", this.y(j));
    this.resting = `Outlined (next to the sliders' values): ${this.say(i, j)}`;
    this.readout.textContent = this.resting;
  }

  point(event) {
    const box = this.chart.getBoundingClientRect(), scale = this.w / box.width;
    const i = Math.floor(((event.clientX - box.left) * scale - this.left) / this.cw);
    const j = SLS.length - 1 - Math.floor(((event.clientY - box.top) * scale - this.top) / this.ch);
    if (this.columns[i] != null && SLS[j] != null) this.readout.textContent = this.say(i, j);
  }
}

/** What the two colours of a heat map mean. */
function key() {
  const one = (kind, text) => el("span", "sd-key", svg("svg", { viewBox: "0 0 12 12", width: 12, height: 12 }, svg("rect", { width: 12, height: 12, class: kind })), text);
  return el("p", "sd-legend", one("sl-gain", "faster than plain decoding"), one("sl-loss", "slower"), "the stronger the colour, the more so");
}

/** Bars in one figure: rows of {name, parts: what fills the track, text, note}. */
function bars(caption, rows) {
  const row = ({ name, parts, text, note }) => el("li", "", el("span", "", name), el("span", "sl-bar-track", ...parts), el("b", "", text), note && el("span", "sd-mute", note));
  return el("figure", "sd-figure", el("figcaption", "", caption), el("ol", "sl-bars", ...rows.map(row)));
}

/** Bars of speedup, one per lane; 1 is plain decoding. */
export function speedBars(caption, rows) {
  const most = Math.max(1, ...rows.map((row) => row.speedup || 0));
  const one = () => Object.assign(el("i", "sl-bar-one"), { style: `left: ${100 / most}%` });
  return bars(caption, rows.map(({ speedup, cls, ...row }) => ({ ...row, parts: [part((speedup || 0) / most, cls), one()], text: speedup ? times(speedup) : "–" })));
}

/** The measured lanes of the run as bars, with the draft that is always wrong. */
export function lanesChart(model) {
  const rows = model.lanes.map((lane) => ({ name: lane.name, speedup: lane.speedup ? lane.speedup.median : lane.policy === "autoregressive" ? 1 : null,
    note: passesOf(lane) }));
  const wrong = model.alwaysWrong(5);
  if (wrong) rows.push({ name: wrong.name, speedup: wrong.speedup.median, note: `${wrong.iterations.length} passes; an invented draft, simulated`, cls: "sl-simulated" });
  return speedBars("Speed relative to plain decoding (the line), as measured and as the race replays it", rows);
}

/** "39 passes of the target, 195 of the draft; 29% of its guesses accepted" */
function passesOf(lane) {
  const { passes, steps, drafted } = lane.counts();
  return count(passes, "pass", "passes") + " of the target" + (drafted ? `, ${steps} of the draft; ${percent(lane.acceptance)} of its guesses accepted` : "");
}

/** What a pass over several tokens costs, as measured, against as many passes over one. */
export function checksChart(model) {
  const most = 21, cost = (n) => checkCost(model.costs, n);
  return bars("What one pass over several tokens costs, by the cost curve of this run", [1, 2, 4, 6, 9, most].map((n) => ({
    name: count(n, "token"), parts: [part(n / most, "sl-simulated"), part(cost(n) / most, "sl-part-check")], text: fixed(cost(n)),
    note: n === 1 ? "the unit: one pass over one token" : `in one pass; one by one: ${n} passes (striped)`,
  })));
}
