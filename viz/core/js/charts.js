/* A small chart in SVG, redrawn within a frame. Colours come from the page's variables and are never the only mark. */

import { el, isNarrow, svg } from "./dom.js";
import { clamp } from "./format.js";

/** In the units of the viewBox: a smaller drawing on a phone, so that its letters stay readable. */
export function chartSize() {
  const narrow = isNarrow();
  return { width: narrow ? 360 : 640, height: narrow ? 260 : 300, left: 40, right: 12, top: 16, bottom: 36 };
}

function niceStep(range, wanted = 5) {
  const rough = range / wanted, power = 10 ** Math.floor(Math.log10(rough || 1));
  return [1, 2, 2.5, 5, 10].map((k) => k * power).find((step) => step >= rough);
}

/** Lines and points over a numeric axis. series: {name, points: [[x, y]], kind: "line" | "dash" | "dots", cls}. */
export function lineChart({ label, x, series, marks = [] }) {
  const { width, height, left, right, top, bottom } = chartSize();
  const all = series.flatMap((one) => one.points.map(([, value]) => value)), high = Math.max(1.2, ...all) * (marks.length ? 1.2 : 1.06);  // the text of a mark stands above all curves
  const sx = (value) => left + (value - x.min) / (x.max - x.min) * (width - left - right);
  const sy = (value) => height - bottom - value / high * (height - top - bottom);
  const chart = svg("svg", { viewBox: `0 0 ${width} ${height}`, class: "sd-chart", role: "img", "aria-label": label });
  const step = niceStep(high);
  for (let value = 0; value <= high; value += step) {
    chart.append(svg("line", { x1: left, x2: width - right, y1: sy(value), y2: sy(value), class: Math.abs(value - 1) < 1e-9 ? "sd-one" : "sd-grid" }),
      svg("text", { x: left - 6, y: sy(value) + 4, class: "sd-tick sd-at-end" }, `${Number(value.toFixed(2))}×`));
  }
  chart.append(svg("line", { x1: left, x2: width - right, y1: sy(1), y2: sy(1), class: "sd-one" }));
  for (let value = Math.ceil(x.min); value <= x.max; value += Math.ceil((x.max - x.min) / (width > 400 ? 10 : 6))) chart.append(svg("text", { x: sx(value), y: height - bottom + 16, class: "sd-tick sd-middle" }, String(value)));
  chart.append(svg("text", { x: (left + width - right) / 2, y: height - 4, class: "sd-tick sd-middle" }, x.label));
  for (const one of series) chart.append(...drawSeries(one, sx, sy));
  for (const mark of marks) chart.append(svg("circle", { cx: sx(mark.x), cy: sy(mark.y), r: 8, class: "sd-optimum" }), svg("text", { x: clamp(sx(mark.x), left + 60, width - 90), y: top + 12, class: "sd-tick sd-middle sd-strong" }, mark.text));
  const legend = el("p", "sd-chart-legend", ...series.filter((one) => one.points.length).map((one) => el("span", `sd-chart-${one.kind} ${one.cls}`, one.name)));
  return el("figure", "sd-figure", chart, legend);
}

function drawSeries({ points, kind, cls }, sx, sy) {
  if (kind === "dots") return points.map(([x, y, title]) => svg("rect", { x: sx(x) - 5, y: sy(y) - 5, width: 10, height: 10, class: `sd-dotted ${cls}`, transform: `rotate(45 ${sx(x)} ${sy(y)})` }, svg("title", {}, title || "")));
  const path = points.map(([x, y], i) => `${i ? "L" : "M"}${sx(x).toFixed(1)} ${sy(y).toFixed(1)}`).join("");
  return [svg("path", { d: path, class: `sd-line sd-chart-${kind} ${cls}` })];
}
