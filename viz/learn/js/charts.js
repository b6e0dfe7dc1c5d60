/* Small charts in SVG, redrawn within a frame. Colours come from the player's variables; a shape says it as well. */

const CHART = { width: 640, height: 300, left: 46, right: 14, top: 14, bottom: 36 };

function niceStep(range, wanted = 5) {
  const rough = range / wanted, power = 10 ** Math.floor(Math.log10(rough || 1));
  return [1, 2, 2.5, 5, 10].map((k) => k * power).find((step) => step >= rough);
}

/** Lines and points over one axis of numbers. series: {name, points: [[x, y]], kind: "line" | "dash" | "dots", cls}. */
function lineChart({ label, x, y, series, marks = [] }) {
  const { width, height, left, right, top, bottom } = CHART;
  const all = series.flatMap((one) => one.points.map(([, value]) => value)), high = Math.max(y.least || 1.2, ...all) * 1.06;
  const sx = (value) => left + (value - x.min) / (x.max - x.min) * (width - left - right);
  const sy = (value) => height - bottom - value / high * (height - top - bottom);
  const chart = svg("svg", { viewBox: `0 0 ${width} ${height}`, class: "sl-chart", role: "img", "aria-label": label });
  const step = niceStep(high);
  for (let value = 0; value <= high; value += step) {
    chart.append(svg("line", { x1: left, x2: width - right, y1: sy(value), y2: sy(value), class: Math.abs(value - 1) < 1e-9 ? "sl-one" : "sl-grid" }),
      svg("text", { x: left - 6, y: sy(value) + 4, class: "sl-tick sl-end" }, `${Number(value.toFixed(2))}×`));
  }
  chart.append(svg("line", { x1: left, x2: width - right, y1: sy(1), y2: sy(1), class: "sl-one" }));
  for (let value = Math.ceil(x.min); value <= x.max; value += Math.ceil((x.max - x.min) / 10)) chart.append(svg("text", { x: sx(value), y: height - bottom + 16, class: "sl-tick sl-middle" }, String(value)));
  chart.append(svg("text", { x: (left + width - right) / 2, y: height - 4, class: "sl-tick sl-middle" }, x.label));
  for (const one of series) chart.append(...drawSeries(one, sx, sy));
  for (const mark of marks) chart.append(svg("circle", { cx: sx(mark.x), cy: sy(mark.y), r: 8, class: "sl-optimum" }), svg("text", { x: clamp(sx(mark.x), left + 60, width - 90), y: Math.max(12, sy(mark.y) - 13), class: "sl-tick sl-middle sl-strong" }, mark.text));
  const legend = el("p", "sl-legend", ...series.filter((one) => one.points.length).map((one) => el("span", `sl-legend-${one.kind} ${one.cls}`, one.name)));
  return el("figure", "sl-figure", chart, legend);
}

function drawSeries({ points, kind, cls }, sx, sy) {
  if (kind === "dots") return points.map(([x, y, title]) => svg("rect", { x: sx(x) - 5, y: sy(y) - 5, width: 10, height: 10, class: `sl-dotted ${cls}`, transform: `rotate(45 ${sx(x)} ${sy(y)})` }, svg("title", {}, title || "")));
  const path = points.map(([x, y], i) => `${i ? "L" : "M"}${sx(x).toFixed(1)} ${sy(y).toFixed(1)}`).join("");
  return [svg("path", { d: path, class: `sl-line sl-${kind} ${cls}` })];
}

/** Speedups as cells; value(column, row) -> number. The cell of the run is outlined. */
function heatMap({ title, columns, rows, value, xLabel, yLabel, here, xText = String, yText = String }) {
  const size = { w: 460, h: 250, left: 46, top: 8, bottom: 34 };
  const cw = (size.w - size.left - 6) / columns.length, ch = (size.h - size.top - size.bottom) / rows.length;
  const chart = svg("svg", { viewBox: `0 0 ${size.w} ${size.h}`, class: "sl-chart sl-heat", role: "img", "aria-label": title });
  const readout = el("p", "sl-note", " ");
  rows.forEach((row, j) => columns.forEach((column, i) => {
    const speed = value(column, row), cell = svg("rect", { x: size.left + i * cw, y: size.top + (rows.length - 1 - j) * ch, width: cw + 0.5, height: ch + 0.5, fill: heatColour(speed) });
    const text = `${xLabel} ${xText(column)}, ${yLabel} ${yText(row)}: ${times(speed)}`;
    cell.append(svg("title", {}, text));
    cell.addEventListener("pointerenter", () => { readout.textContent = text; });
    chart.append(cell);
    if (here && here.i === i && here.j === j) here.text = text;
  }));
  const every = Math.ceil(columns.length / 8);
  columns.forEach((column, i) => { if (i % every === 0) chart.append(svg("text", { x: size.left + (i + 0.5) * cw, y: size.h - size.bottom + 14, class: "sl-tick sl-middle" }, xText(column))); });
  rows.forEach((row, j) => { if (j % Math.ceil(rows.length / 6) === 0) chart.append(svg("text", { x: size.left - 5, y: size.top + (rows.length - 0.5 - j) * ch + 4, class: "sl-tick sl-end" }, yText(row))); });
  chart.append(svg("text", { x: (size.left + size.w) / 2, y: size.h - 4, class: "sl-tick sl-middle" }, xLabel));
  if (here) chart.append(svg("rect", { x: size.left + here.i * cw, y: size.top + (rows.length - 1 - here.j) * ch, width: cw, height: ch, class: "sl-here" }));
  readout.textContent = here && here.text ? `Outlined, this run: ${here.text}` : "Point at a cell to read it.";
  return el("figure", "sl-figure", el("figcaption", "", title), chart, readout);
}

/** Below 1 (slower) orange, at 1 the paper's colour, above it green; lightness falls away from 1 on both sides. */
function heatColour(speed) {
  const share = clamp(speed >= 1 ? Math.log2(speed) / 2 : -Math.log2(Math.max(speed, 0.05)) / 2, 0, 1);
  return `color-mix(in srgb, var(${speed >= 1 ? "--sd-acc" : "--sd-rej"}) ${Math.round(10 + 82 * share)}%, var(--sd-card))`;
}

/** Bars of speedup, one a lane; 1 is plain decoding. */
function speedBars(rows, { caption } = {}) {
  const most = Math.max(1, ...rows.map((row) => row.speedup || 0)), list = el("ol", "sl-bars");
  for (const { name, speedup, note, cls } of rows) {
    const fill = el("i", cls || "");
    fill.style.width = `${100 * (speedup || 0) / most}%`;
    const one = el("i", "sl-bar-one");
    one.style.left = `${100 / most}%`;
    list.append(el("li", "", el("span", "sl-bar-name", name), el("span", "sl-bar-track", fill, one), el("b", "", speedup ? times(speedup) : "–"), note ? el("span", "sl-mute", note) : null));
  }
  return el("figure", "sl-figure", caption ? el("figcaption", "", caption) : null, list);
}

/** The measured lanes of the run as bars, the always-wrong draft beside them. */
function lanesChart(model) {
  const rows = model.measured.map((lane) => ({ name: lane.name, speedup: lane.speedup ? lane.speedup.median : lane.policy === "autoregressive" ? 1 : null,
    note: `${lane.iterations.length} passes of the big model`, cls: "sl-measured" }));
  const wrong = model.alwaysWrong(5);
  if (wrong) rows.push({ name: wrong.name, speedup: wrong.speedup.median, note: `${wrong.iterations.length} passes; made up, simulated`, cls: "sl-simulated" });
  return speedBars(rows, { caption: "Speed against plain decoding (the line): measured, median of the repeats" });
}
