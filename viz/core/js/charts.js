/* A small chart in SVG, redrawn within a frame. Colours come from the page's variables and are never the only mark. */

import { el, isNarrow, svg } from "./dom.js";
import { clamp, times } from "./format.js";
import { SL_CAP } from "./replay.js";

/** In the units of the viewBox: a smaller drawing on a phone, so that its letters stay readable. */
export function chartSize() {
  const narrow = isNarrow();
  return { width: narrow ? 360 : 640, height: narrow ? 260 : 300, left: 40, right: 12, top: 16, bottom: 36 };
}

/** A round step that divides `range` into about `wanted` parts. */
export function niceStep(range, wanted = 5) {
  const rough = range / wanted, power = 10 ** Math.floor(Math.log10(rough || 1));
  return [1, 2, 2.5, 5, 10].map((k) => k * power).find((step) => step >= rough);
}

/** Lines and points over a numeric axis. series: {name, points: [[x, y, title]], kind: "line" | "dash" | "dots", cls}; marks: {x, y, text}. */
function lineChart({ label, x, series, marks = [] }) {
  const { width, height, left, right, top, bottom } = chartSize(), room = marks.length ? 1.2 : 1.06; // a mark's text stands above all curves
  const high = room * Math.max(1.2, ...series.flatMap((one) => one.points.map(([, value]) => value)));
  const sx = (value) => left + (value - x.min) / (x.max - x.min) * (width - left - right);
  const sy = (value) => height - bottom - value / high * (height - top - bottom);
  const chart = svg("svg", { viewBox: `0 0 ${width} ${height}`, class: "sd-chart", role: "img", "aria-label": label });
  const across = (value, cls) => svg("line", { x1: left, x2: width - right, y1: sy(value), y2: sy(value), class: cls });
  const text = (px, py, cls, words) => svg("text", { x: px, y: py, class: `sd-tick ${cls}` }, words);
  for (let value = 0, step = niceStep(high); value <= high; value += step) {
    chart.append(across(value, "sd-grid"), text(left - 6, sy(value) + 4, "sd-at-end", `${Number(value.toFixed(2))}×`));
  }
  chart.append(across(1, "sd-one"));
  for (let value = Math.ceil(x.min), step = Math.ceil((x.max - x.min) / (width > 400 ? 10 : 6)); value <= x.max; value += step) {
    chart.append(text(sx(value), height - bottom + 16, "sd-middle", String(value)));
  }
  chart.append(text((left + width - right) / 2, height - 4, "sd-middle", x.label), ...series.flatMap((one) => drawSeries(one, sx, sy)));
  for (const mark of marks) {
    chart.append(svg("circle", { cx: sx(mark.x), cy: sy(mark.y), r: 8, class: "sd-optimum" }),
      text(clamp(sx(mark.x), left + 4 * mark.text.length, width - 4 * mark.text.length), top + 12, "sd-middle sd-strong", mark.text)); // 8 a letter
  }
  const drawn = series.filter((one) => one.points.length);
  return el("figure", "sd-figure", chart, el("p", "sd-chart-legend", ...drawn.map((one) => el("span", `sd-chart-${one.kind} ${one.cls}`, one.name))));
}

function drawSeries({ points, kind, cls }, sx, sy) {
  const diamond = ([x, y, title]) => svg("rect", { x: sx(x) - 5, y: sy(y) - 5, width: 10, height: 10, class: cls,
    transform: `rotate(45 ${sx(x)} ${sy(y)})` }, svg("title", {}, title || ""));
  if (kind === "dots") return points.map(diamond);
  const path = points.map(([x, y], i) => `${i ? "L" : "M"}${sx(x).toFixed(1)} ${sy(y).toFixed(1)}`).join("");
  return [svg("path", { d: path, class: `sd-line sd-chart-${kind} ${cls}` })];
}

/** Speedup over the static SL: `sweep` is simulated, `ran` are the model's lanes with this draft; further series follow. */
export function speedupChart(label, model, draft, sweep, { simulated = "simulated", ran = "measured", more = [] } = {}) {
  const best = sweep.reduce((a, b) => (b.speedup > a.speedup ? b : a));
  return lineChart({
    label, x: { min: 1, max: SL_CAP, label: "SL: guesses per check" },
    series: [
      { name: simulated, kind: "line", cls: "sd-s0", points: sweep.map((one) => [one.sl, one.speedup]) },
      { name: ran, kind: "dots", cls: "sd-s2", points: model.timedStatics(draft).map(([sl, speed]) => [sl, speed, `SL ${sl}: ${times(speed)} on the clock`]) },
      ...more,
    ],
    marks: [{ x: best.sl, y: best.speedup, text: `best with hindsight: SL ${best.sl}, ${times(best.speedup)}` }],
  });
}
