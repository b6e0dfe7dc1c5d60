/* A small chart in SVG, redrawn within a frame. Colours come from the page's variables and are never the only mark. */

import { el, isNarrow, svg } from "./dom.js";
import { clamp, times } from "./format.js";
import { SL_CAP } from "./replay.js";
import { bestOf } from "./run.js";

/** A round step that divides `range` into about `wanted` parts. */
export function niceStep(range, wanted = 5) {
  const rough = range / wanted, power = 10 ** Math.floor(Math.log10(rough || 1));
  return [1, 2, 2.5, 5, 10].map((k) => k * power).find((step) => step >= rough);
}

/** Speedup over the static SL: `sweep` is simulated, `ran` are the model's lanes with this draft; further series follow:
 * {name, points: [[SL, speedup, title]], kind: "line" | "dash" | "dots", cls}. In the units of the viewBox, a drawing on a phone is
 * smaller, so that its letters stay readable. */
export function speedupChart(label, model, draft, sweep, { simulated = "simulated", ran = "measured", more = [] } = {}) {
  const series = [
    { name: simulated, kind: "line", cls: "sd-s0", points: sweep.map((one) => [one.sl, one.speedup]) },
    { name: ran, kind: "dots", cls: "sd-s2", points: model.timedStatics(draft).map(([sl, speed]) => [sl, speed, `SL ${sl}: ${times(speed)} on the clock`]) },
    ...more,
  ].filter((one) => one.points.length);
  const narrow = isNarrow(), width = narrow ? 360 : 640, height = narrow ? 260 : 300, left = 40, right = 12, top = 16, bottom = 36;
  const high = 1.2 * Math.max(1.2, ...series.flatMap((one) => one.points.map(([, speed]) => speed))); // the mark's text stands above all curves
  const sx = (sl) => left + (sl - 1) / (SL_CAP - 1) * (width - left - right);
  const sy = (speed) => height - bottom - speed / high * (height - top - bottom);
  const chart = svg("svg", { viewBox: `0 0 ${width} ${height}`, class: "sd-chart", role: "img", "aria-label": label });
  const across = (speed, cls) => svg("line", { x1: left, x2: width - right, y1: sy(speed), y2: sy(speed), class: cls });
  const text = (px, py, cls, words) => svg("text", { x: px, y: py, class: `sd-tick ${cls}` }, words);
  for (let speed = 0, step = niceStep(high); speed <= high; speed += step) {
    chart.append(across(speed, "sd-grid"), text(left - 6, sy(speed) + 4, "sd-at-end", `${Number(speed.toFixed(2))}×`));
  }
  chart.append(across(1, "sd-one"));
  for (let sl = 1; sl <= SL_CAP; sl += narrow ? 4 : 2) chart.append(text(sx(sl), height - bottom + 16, "sd-middle", String(sl)));
  chart.append(text((left + width - right) / 2, height - 4, "sd-middle", "SL: guesses per check"), ...series.flatMap((one) => drawSeries(one, sx, sy)));
  const best = bestOf(sweep), mark = `best with hindsight: SL ${best.sl}, ${times(best.speedup)}`, half = 4 * mark.length; // 8 a letter
  chart.append(svg("circle", { cx: sx(best.sl), cy: sy(best.speedup), r: 8, class: "sd-optimum" }),
    text(clamp(sx(best.sl), left + half, width - half), top + 12, "sd-middle sd-strong", mark));
  return el("figure", "sd-figure", chart, el("p", "sd-chart-legend", ...series.map((one) => el("span", `sd-chart-${one.kind} ${one.cls}`, one.name))));
}

function drawSeries({ points, kind, cls }, sx, sy) {
  const diamond = ([x, y, title]) => svg("rect", { x: sx(x) - 5, y: sy(y) - 5, width: 10, height: 10, class: cls,
    transform: `rotate(45 ${sx(x)} ${sy(y)})` }, svg("title", {}, title || ""));
  if (kind === "dots") return points.map(diamond);
  const path = points.map(([x, y], i) => `${i ? "L" : "M"}${sx(x).toFixed(1)} ${sy(y).toFixed(1)}`).join("");
  return [svg("path", { d: path, class: `sd-line sd-chart-${kind} ${cls}` })];
}
