/* Small charts in SVG, redrawn within a frame. Colours come from the player's variables and are never the only mark. */

import { el, isNarrow, svg } from "../../core/js/dom.js";
import { clamp, count, fixed, times } from "../../core/js/format.js";
import { checkCost } from "../../core/js/replay.js";

/** In the units of the viewBox: a smaller drawing on a phone, so that its letters stay readable. */
function chartSize() {
  const narrow = isNarrow();
  return { width: narrow ? 360 : 640, height: narrow ? 260 : 300, left: 40, right: 12, top: 16, bottom: 36 };
}

function niceStep(range, wanted = 5) {
  const rough = range / wanted, power = 10 ** Math.floor(Math.log10(rough || 1));
  return [1, 2, 2.5, 5, 10].map((k) => k * power).find((step) => step >= rough);
}

/** Lines and points over a numeric axis. series: {name, points: [[x, y]], kind: "line" | "dash" | "dots", cls}. */
export function lineChart({ label, x, y, series, marks = [] }) {
  const { width, height, left, right, top, bottom } = chartSize();
  const all = series.flatMap((one) => one.points.map(([, value]) => value)), high = Math.max(y.least || 1.2, ...all) * (marks.length ? 1.2 : 1.06);  // the text of a mark stands above all curves
  const sx = (value) => left + (value - x.min) / (x.max - x.min) * (width - left - right);
  const sy = (value) => height - bottom - value / high * (height - top - bottom);
  const chart = svg("svg", { viewBox: `0 0 ${width} ${height}`, class: "sl-chart", role: "img", "aria-label": label });
  const step = niceStep(high);
  for (let value = 0; value <= high; value += step) {
    chart.append(svg("line", { x1: left, x2: width - right, y1: sy(value), y2: sy(value), class: Math.abs(value - 1) < 1e-9 ? "sl-one" : "sl-grid" }),
      svg("text", { x: left - 6, y: sy(value) + 4, class: "sl-tick sl-end" }, `${Number(value.toFixed(2))}×`));
  }
  chart.append(svg("line", { x1: left, x2: width - right, y1: sy(1), y2: sy(1), class: "sl-one" }));
  for (let value = Math.ceil(x.min); value <= x.max; value += Math.ceil((x.max - x.min) / (width > 400 ? 10 : 6))) chart.append(svg("text", { x: sx(value), y: height - bottom + 16, class: "sl-tick sl-middle" }, String(value)));
  chart.append(svg("text", { x: (left + width - right) / 2, y: height - 4, class: "sl-tick sl-middle" }, x.label));
  for (const one of series) chart.append(...drawSeries(one, sx, sy));
  for (const mark of marks) chart.append(svg("circle", { cx: sx(mark.x), cy: sy(mark.y), r: 8, class: "sl-optimum" }), svg("text", { x: clamp(sx(mark.x), left + 60, width - 90), y: top + 12, class: "sl-tick sl-middle sl-strong" }, mark.text));
  const legend = el("p", "sl-legend", ...series.filter((one) => one.points.length).map((one) => el("span", `sl-legend-${one.kind} ${one.cls}`, one.name)));
  return el("figure", "sl-figure", chart, legend);
}

function drawSeries({ points, kind, cls }, sx, sy) {
  if (kind === "dots") return points.map(([x, y, title]) => svg("rect", { x: sx(x) - 5, y: sy(y) - 5, width: 10, height: 10, class: `sl-dotted ${cls}`, transform: `rotate(45 ${sx(x)} ${sy(y)})` }, svg("title", {}, title || "")));
  const path = points.map(([x, y], i) => `${i ? "L" : "M"}${sx(x).toFixed(1)} ${sy(y).toFixed(1)}`).join("");
  return [svg("path", { d: path, class: `sl-line sl-${kind} ${cls}` })];
}

/** Speedups as cells, which are built once and then only recoloured. The run's cell is outlined. */
export class HeatMap {
  constructor({ columns, rows, xLabel, yLabel, xText = String, yText = String }) {
    Object.assign(this, { columns, rows, xLabel, yLabel, xText, yText, w: chartSize().width === 360 ? 360 : 460, h: 250, left: 34, top: 8, bottom: 34 });
    this.cw = (this.w - this.left - 6) / columns.length;
    this.ch = (this.h - this.top - this.bottom) / rows.length;
    this.chart = svg("svg", { viewBox: `0 0 ${this.w} ${this.h}`, class: "sl-chart sl-heat", role: "img" });
    this.cells = rows.map((_, j) => columns.map((__, i) => this.cell(i, j)));
    this.chart.append(...this.cells.flat(), ...this.ticks(), this.outline = svg("rect", { width: this.cw, height: this.ch, class: "sl-here" }));
    this.title = el("figcaption");
    this.readout = el("p", "sl-note", "");
    this.chart.addEventListener("pointermove", (event) => this.point(event));
    this.chart.addEventListener("pointerleave", () => { this.readout.textContent = this.resting; });
    this.node = el("figure", "sl-figure", this.title, this.chart, this.readout);
  }

  x(i) { return this.left + i * this.cw; }
  y(j) { return this.top + (this.rows.length - 1 - j) * this.ch; }
  cell(i, j) { return svg("rect", { x: this.x(i), y: this.y(j), width: this.cw, height: this.ch }); }

  ticks() {
    const { columns, rows, left, w, h, bottom } = this, text = (x, y, cls, what) => svg("text", { x, y, class: `sl-tick ${cls}` }, what);
    const across = columns.map((column, i) => i % Math.ceil(columns.length / 8) === 0 && text(this.x(i) + this.cw / 2, h - bottom + 14, "sl-middle", this.xText(column)));
    const up = rows.map((row, j) => j % Math.ceil(rows.length / 6) === 0 && text(left - 5, this.y(j) + this.ch / 2 + 4, "sl-end", this.yText(row)));
    return [...across, ...up, text((left + w) / 2, h - 4, "sl-middle", this.xLabel)].filter(Boolean);
  }

  say(i, j) { return `${this.xLabel} ${this.xText(this.columns[i])}, ${this.yLabel} ${this.yText(this.rows[j])}: ${times(this.values[j][i])}`; }

  /** value(column, row) -> speedup; [i, j]: the run's own cell. One colour marks speedups below 1, another those above. */
  update(title, value, [i, j]) {
    this.title.textContent = title;
    this.chart.setAttribute("aria-label", title);
    this.values = this.rows.map((row) => this.columns.map((column) => value(column, row)));
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
    const j = this.rows.length - 1 - Math.floor(((event.clientY - box.top) * scale - this.top) / this.ch);
    if (this.columns[i] != null && this.rows[j] != null) this.readout.textContent = this.say(i, j);
  }
}

/** Bars of speedup, one per lane; 1 is plain decoding. */
export function speedBars(rows, { caption } = {}) {
  const most = Math.max(1, ...rows.map((row) => row.speedup || 0)), list = el("ol", "sl-bars");
  for (const { name, speedup, note, cls } of rows) {
    const fill = el("i", cls || "");
    fill.style.width = `${100 * (speedup || 0) / most}%`;
    const one = el("i", "sl-bar-one");
    one.style.left = `${100 / most}%`;
    list.append(el("li", "", el("span", "sl-bar-name", name), el("span", "sl-bar-track", fill, one), el("b", "", speedup ? times(speedup) : "–"), note ? el("span", "sd-mute", note) : null));
  }
  return el("figure", "sl-figure", caption ? el("figcaption", "", caption) : null, list);
}

/** The measured lanes of the run as bars, with the draft that is always wrong. */
export function lanesChart(model) {
  const rows = model.lanes.map((lane) => ({ name: lane.name, speedup: lane.speedup ? lane.speedup.replayed : lane.policy === "autoregressive" ? 1 : null,
    note: `${lane.iterations.length} passes of the target`, cls: "sl-measured" }));
  const wrong = model.alwaysWrong(5);
  if (wrong) rows.push({ name: wrong.name, speedup: wrong.speedup.replayed, note: `${wrong.iterations.length} passes; an invented draft, simulated`, cls: "sl-simulated" });
  return speedBars(rows, { caption: "Speed relative to plain decoding (the line), as measured and as the race replays it" });
}

/** What a pass over several tokens costs, as measured, against as many passes over one. */
export function checksChart(model) {
  const { costs } = model, sizes = [1, 2, 4, 6, 11, 21], list = el("ol", "sl-bars sl-checks"), most = sizes[sizes.length - 1];
  for (const n of sizes) {
    const one = el("i", "sl-simulated"), all = el("i", "sl-part-check");
    one.style.width = `${100 * n / most}%`;
    all.style.width = `${100 * checkCost(costs, n) / most}%`;
    list.append(el("li", "", el("span", "sl-bar-name", count(n, "token")), el("span", "sl-bar-track", one, all), el("b", "", fixed(checkCost(costs, n))),
      el("span", "sd-mute", n === 1 ? "the unit: one pass over one token" : `in one pass; one by one: ${n} passes (striped)`)));
  }
  return el("figure", "sl-figure", el("figcaption", "", "What one pass over several tokens costs, by the cost curve of this run"), list);
}
