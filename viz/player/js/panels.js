// The panels below the texts: scores against a threshold, the table of times, what the target read.

import { aria, el, range, svg, table } from "../../core/js/dom.js";
import { clamp, count, times } from "../../core/js/format.js";
import { termed } from "./glossary.js";
import { SIMULATED, Strip } from "./strip.js";

export function figureButton(figure) {
  const node = el("button", "sd-fig", el("span", "", figure.label), el("b", "", figure.text));
  return Object.assign(node, { type: "button", sdFigure: figure, sdKnown: true });
}

function panel(title, ...content) {
  return el("details", "sd-card sd-panel", el("summary", "", title), ...content);
}

export function timePanel({ title, columns, rows, note }) {
  const cells = rows.map((row) => row.map((cell) => (Array.isArray(cell) ? cell.map(figureButton) : cell)));
  return panel(title, table(columns.map(termed), cells, { label: title }), el("p", "sd-mute", note));
}

/** The prompt as the target read it: [text, is it a special token]. */
export function readPanel(parts) {
  return panel("What the target read", el("p", "sd-read", ...parts.map(([part, special]) => (special ? el("code", "sd-special", part) : part))),
    el("p", "sd-mute", "Framed: special tokens, which mark where a message begins and ends. They have no text; "
      + "if a visitor types the name of one, it is read as letters."));
}

const CROSS = "m-3.4-3.4l6.8 6.8m0-6.8l-6.8 6.8";
const RING = "m-3 0a3 3 0 1 0 6 0a3 3 0 1 0-6 0";

function plotLegend() {
  const entry = (cls, path, text) => el("span", "",
    svg("svg", { viewBox: "0 0 18 12", "aria-hidden": "true" }, svg("path", { class: cls, d: path })), text);
  return el("div", "sd-plot-legend", entry("sd-dot sd-dot-a", `M9 6${RING}`, "accepted"), entry("sd-dot sd-dot-r", `M9 6${CROSS}`, "rejected"),
    entry("sd-dot sd-dot-d", `M9 6${RING}`, "dropped"), entry("sd-bar-line", "M0 6H18", "threshold"));
}

const MOST = 4; // panels

/** The panels of the lanes whose policy compares a score with a threshold, where the replay does what the lane did. */
export function thresholdPanels(player) {
  const { model } = player, found = [];
  for (const lane of model.lanes) {
    if (!lane.threshold || !model.replay(lane.draft) || found.length === MOST) continue;
    const { as_run: asRun, fixed, values } = lane.threshold, at = asRun ?? values[0];
    const again = model.atThreshold(lane, at);
    if (again && (fixed || again.iterations.every((it, i) => it.drafted === lane.iterations[i]?.drafted))) found.push(new ThresholdPanel(lane, player));
  }
  return found;
}

/** Each guess's score against the threshold, with its fate; the slider replays the lane at other thresholds. */
class ThresholdPanel {
  constructor(lane, player) {
    Object.assign(this, { run: lane, player, model: player.model, made: new Map() });
    const { values, explanation } = lane.threshold;
    this.plot = aria(el("div", "sd-plot"), { role: "group" }); // scrolls on phones, so it must take the focus
    this.plot.tabIndex = 0;
    this.value = el("span");
    this.slider = range(`Threshold of ${lane.name}, simulated`, { min: 0, max: values.length - 1, value: 0, cls: "sd-slider" }, (at) => this.choose(values[at]));
    this.holder = el("div", "sd-strip");
    this.sentence = el("p");
    this.node = panel(`${lane.name}: each guess's score against the threshold`, el("p", "sd-mute", ...termed(explanation)),
      el("label", "sd-threshold-label", this.value, this.slider), this.sentence,
      el("div", "sd-row sd-sim", el("em", "sd-mute", "simulated"), this.holder), this.plot, plotLegend());
    this.node.classList.add("sd-threshold");
    this.node.addEventListener("toggle", () => { if (!this.strip) this.begin(); }); // not before anyone looks
  }

  /** Replays at all thresholds, and shows the one that the lane ran with, else the best. */
  begin() {
    const { values, as_run: asRun } = this.run.threshold, initial = asRun ?? this.best;
    this.slider.value = values.indexOf(initial);
    this.choose(initial);
  }

  /** The fastest threshold; the slider may ask for it before the panel has begun. */
  get best() {
    const gain = (value) => this.at(value).speedup.median;
    return (this.fastest ??= this.run.threshold.values.reduce((best, value) => (gain(value) > gain(best) ? value : best)));
  }

  at(value) {
    if (!this.made.has(value)) this.made.set(value, this.model.atThreshold(this.run, value));
    return this.made.get(value);
  }

  nameOf(value) {
    if (this.run.threshold.fixed) return value.toFixed(2);
    return value === 1 ? "its own threshold" : `${value} times its threshold`;
  }

  choose(value) {
    const lane = this.at(value), { fixed, as_run: asRun } = this.run.threshold, { passes, thrown, drafted } = lane.counts();
    this.strip = new Strip(lane, SIMULATED, this.player.simulatedTimes(lane));
    this.strip.node.classList.add("sd-fin");
    this.holder.replaceWith(this.strip.node);
    this.holder = this.strip.node;
    this.scale(this.player.total);
    this.value.textContent = fixed ? `threshold ${value.toFixed(2)}` : `threshold × ${value}`;
    const ran = fixed && asRun != null ? ` It ran with ${asRun.toFixed(2)}.` : "";
    const best = this.player.payload.doubtful ? "" : ` Best for this run, with hindsight: ${this.nameOf(this.best)}, ${times(this.at(this.best).speedup.median)}.`;
    this.sentence.textContent = `Simulated at ${this.nameOf(value)}: ${this.player.simulatedTimes(lane)}, ${passes} target `
      + `passes, ${thrown} of ${drafted} guesses thrown away.${best}${ran}`;
    aria(this.slider, { valuetext: this.sentence.textContent });
    aria(this.plot, { label: `Scores of ${count(drafted, "guess", "guesses")} against the threshold: ${this.nameOf(value)}` });
    this.draw(lane);
  }

  scale(total) { this.strip?.scale(total); }

  /** Markers by fate: disc accepted, cross rejected, ring dropped; a line at the threshold of each guess. */
  draw(lane) {
    const width = 1000, height = 170, left = 34, top = 8, bottom = 22, { fixed } = this.run.threshold;
    const x = (position) => left + (width - left - 6) * position / Math.max(1, lane.output.length);
    const y = (score) => top + (height - top - bottom) * (1 - clamp(score, 0, 1));
    const paths = { a: "", r: "", d: "" };
    let lines = "";
    lane.iterations.forEach((it, i) => lane.scores[i].forEach((seen, k) => {
      if (!seen || seen[0] == null) return;
      const [score, threshold] = seen, at = it.start + k, fate = it.fates[k];
      paths[fate] += `M${x(at).toFixed(1)} ${y(score).toFixed(1)}${fate === "r" ? CROSS : RING}`;
      lines = fixed ? `M${left} ${y(threshold)}H${width}` : `${lines}M${x(at - 0.5).toFixed(1)} ${y(threshold).toFixed(1)}H${x(at + 0.5).toFixed(1)}`;
    }));
    const label = (text, px, py, anchor) => svg("text", { x: px, y: py, "text-anchor": anchor }, text);
    const grid = [0, 0.5, 1].flatMap((score) => [svg("path", { class: "sd-grid", d: `M${left} ${y(score)}H${width}` }), label(String(score), 26, y(score) + 4, "end")]);
    this.plot.replaceChildren(svg("svg", { viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true", focusable: "false" }, ...grid,
      ...Object.entries(paths).map(([fate, d]) => svg("path", { class: `sd-dot sd-dot-${fate}`, d })),
      svg("path", { class: fixed ? "sd-bar-line" : "sd-bar-line sd-bar-steps", d: lines }),
      label("output position", width - 6, height - 4, "end"), label("0", left, height - 4, "start")));
  }
}
