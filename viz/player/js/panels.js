// The panels below the texts: scores against a threshold, the table of times, and simulated strips.

function simulatedStrip(lane, speedup) {
  const strip = new Strip(lane);
  strip.build();
  strip.flag.append(el("i", "sd-flag-sign", "⚐"), el("b", "", speedup));
  return strip;
}

function figureButton(figure) {
  const node = el("button", "sd-fig");
  node.type = "button";
  node.append(el("span", "", figure.label), el("b", "", figure.text));
  node.sdFigure = figure;
  node.sdKnown = true;
  return node;
}

function tablePanel(table) {
  const panel = el("details", "sd-card sd-panel");
  panel.append(el("summary", "", table.title));
  const body = el("table");
  const head = el("tr");
  for (const title of table.columns) {
    const th = el("th");
    say(th, title);
    th.scope = "col";
    head.append(th);
  }
  const thead = el("thead");
  thead.append(head);
  const rows = el("tbody");
  for (const cells of table.rows) {
    const row = el("tr");
    cells.forEach((cell, i) => {
      const node = el(i ? "td" : "th", "", Array.isArray(cell) ? null : cell);
      if (!i) node.scope = "row";
      if (Array.isArray(cell)) node.append(...cell.map(figureButton));
      row.append(node);
    });
    rows.append(row);
  }
  body.append(thead, rows);
  const holder = el("div", "sd-scroll");
  holder.tabIndex = 0;
  holder.setAttribute("role", "group");
  holder.setAttribute("aria-label", table.title);
  holder.append(body);
  panel.append(holder, el("p", "sd-mute", table.note));
  return panel;
}

/** The prompt as the target read it: [text, is it a special token]. */
function readPanel(parts) {
  const panel = el("details", "sd-card sd-panel"), text = el("p", "sd-read");
  panel.append(el("summary", "", "What the target read"));
  for (const [part, special] of parts) text.append(special ? el("code", "sd-special", part) : part);
  panel.append(text, el("p", "sd-mute", "Framed: special tokens, which say where a message begins and ends. They have no text of "
    + "their own, and one that a visitor types is read as letters."));
  return panel;
}

const CROSS = "m-3.4-3.4l6.8 6.8m0-6.8l-6.8 6.8";
const RING = "m-3 0a3 3 0 1 0 6 0a3 3 0 1 0-6 0";

function plotLegend() {
  const legend = el("div", "sd-plot-legend");
  const entries = [["a", RING, "accepted"], ["r", CROSS, "rejected"], ["d", RING, "dropped"]];
  for (const [fate, shape, text] of entries) {
    const mark = svg("svg", { viewBox: "0 0 18 12", "aria-hidden": "true" });
    mark.append(svg("path", { class: `sd-dot sd-dot-${fate}`, d: `M9 6${shape}` }));
    const entry = el("span", "", text);
    entry.prepend(mark);
    legend.append(entry);
  }
  const mark = svg("svg", { viewBox: "0 0 18 12", "aria-hidden": "true" });
  mark.append(svg("path", { class: "sd-bar-line", d: "M0 6H18" }));
  const entry = el("span", "", "threshold");
  entry.prepend(mark);
  legend.append(entry);
  return legend;
}

/** Each guess's score against the threshold, with its fate; the slider re-simulates from the payload's sweep. */
class ThresholdPanel {
  constructor(data, player) {
    this.data = data;
    this.player = player;
    this.source = player.payload.simulations.sources[data.draft];
    this.node = el("details", "sd-card sd-panel sd-threshold");
    this.node.open = Boolean(data.open);
    this.node.append(el("summary", "", data.title), el("p", "sd-mute"));
    say(this.node.lastChild, data.explanation);
    this.plot = el("div", "sd-plot");
    this.plot.setAttribute("role", "group"); // scrolls on phones, so it must take the focus
    this.plot.tabIndex = 0;
    const label = el("label", "sd-threshold-label");
    this.value = el("span");
    this.slider = el("input", "sd-slider");
    Object.assign(this.slider, { type: "range", min: 0, max: data.options.length - 1, step: 1, value: data.initial });
    this.slider.setAttribute("aria-label", `Threshold of ${data.name}, simulated`);
    this.slider.addEventListener("input", () => this.choose(Number(this.slider.value)));
    label.append(this.value, this.slider);
    this.holder = el("div", "sd-strip");
    const row = el("div", "sd-row sd-sim");
    row.append(el("em", "sd-mute", "simulated"), this.holder);
    this.sentence = el("p");
    this.node.append(label, this.sentence, row, this.plot, plotLegend());
    this.choose(data.initial);
  }

  choose(index) {
    const option = this.data.options[index];
    this.lane = laneFromSimulation(this.source, option, this.player.payload.strings);
    this.strip = simulatedStrip(this.lane, this.player.simulatedTimes(option.speedup));
    this.strip.node.classList.add("sd-fin");
    this.holder.replaceWith(this.strip.node);
    this.holder = this.strip.node;
    this.scale(this.player.total);
    const counts = this.lane.counts(this.lane.iterations.length);
    const words = option.words || option.value.toFixed(2);
    this.value.textContent = option.words ? `threshold × ${option.value}` : `threshold ${words}`;
    this.sentence.textContent = `Simulated at ${words}: ${this.player.simulatedTimes(option.speedup)}, ${counts.passes} target `
      + `passes, ${counts.thrown} of ${counts.drafted} guesses thrown away. ${this.data.best_text}`;
    this.slider.setAttribute("aria-valuetext", this.sentence.textContent);
    this.plot.setAttribute("aria-label", `Scores of ${counts.drafted} guesses against the threshold: ${words}`);
    this.draw(option);
  }

  scale(total) { this.strip.scale(total); }

  /** Markers by fate: disc accepted, cross rejected, ring dropped. */
  draw(option) {
    const width = 1000, height = 170, left = 34, top = 8, bottom = 22;
    const n = Math.max(1, this.source.target.length);
    const x = (position) => left + (width - left - 6) * position / n;
    const y = (score) => top + (height - top - bottom) * (1 - clamp(score, 0, 1));
    const paths = { a: "", r: "", d: "" };
    let k = 0, bars = option.thresholds ? "" : `M${left} ${y(option.value)}H${width}`;
    for (const it of this.lane.iterations) {
      for (let j = 0; j < it.drafted; j++, k++) {
        const score = option.scores[k];
        if (score == null) continue;
        const [px, py] = [x(it.start + j).toFixed(1), y(score / 100).toFixed(1)];
        paths[it.fates[j]] += `M${px} ${py}${it.fates[j] === "r" ? CROSS : RING}`;
        if (option.thresholds) bars += `M${x(it.start + j - 0.5).toFixed(1)} ${y(option.thresholds[k] / 100).toFixed(1)}H${x(it.start + j + 0.5).toFixed(1)}`;
      }
    }
    const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true", focusable: "false" });
    for (const score of [0, 0.5, 1]) {
      picture.append(svg("path", { class: "sd-grid", d: `M${left} ${y(score)}H${width}` }));
      picture.append(label(score.toString(), 26, y(score) + 4, "end"));
    }
    const bar = svg("path", { class: option.thresholds ? "sd-bar-line sd-bar-steps" : "sd-bar-line", d: bars });
    for (const fate of "adr") picture.append(svg("path", { class: `sd-dot sd-dot-${fate}`, d: paths[fate] }));
    picture.append(bar, label("output position", width - 6, height - 4, "end"), label("0", left, height - 4, "start"));
    this.plot.replaceChildren(picture);
  }
}

function label(text, x, y, anchor) {
  const node = svg("text", { x, y, "text-anchor": anchor });
  node.textContent = text;
  return node;
}
