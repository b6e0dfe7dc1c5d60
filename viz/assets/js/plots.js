/* Plotly figures: drawn when the replay has ended or they come into sight, in the theme's colours, linked with the player both ways.
 *
 * Figures name their colours as CSS variables, "var(--name)"; they are resolved here, again when the theme changes.
 */
import { aria, button, el, isNarrow } from "../../core/js/dom.js";

const CONFIG = { displaylogo: false, displayModeBar: false };
let plotly = null;

/** Loads Plotly from our own server on first use. */
export function load() {
  plotly ??= new Promise((done, failed) => {
    document.head.append(Object.assign(el("script"), {
      src: `${(window.gradio_config || {}).root || ""}/speculoscope/plotly.min.js`,
      onload: () => done(window.Plotly),
      onerror: () => { plotly = null; failed(new Error("The plots could not be loaded. Reload the page to try again.")); },
    }));
  });
  return plotly;
}

/** A copy of `figure` with every "var(--x)" replaced by its value in `style`. */
function resolved(figure, style) {
  const valueOf = (_, name) => JSON.stringify(style.getPropertyValue(name).trim() || "#808080");
  return JSON.parse(JSON.stringify(figure).replace(/"var\((--[\w-]+)\)"/g, valueOf));
}

/** The figure in the theme's colours, with light grids; the rest of the layout is that of viz/figures/drawing.py. */
function themed(figure, node) {
  const style = getComputedStyle(node), line = style.getPropertyValue("--sd-line").trim();
  const { data, layout } = resolved(figure, style);
  delete layout.template;
  layout.autosize = true;
  for (const key of Object.keys(layout).filter((name) => /^[xy]axis\d*$/.test(name))) {
    layout[key] = { gridcolor: line, zerolinecolor: line, linecolor: line, automargin: true, ...layout[key] };
  }
  if (isNarrow()) narrowed(data, layout);
  return { data, layout };
}

const LEGEND_ROW = 20; // px
const TITLE_LINE = 19;
const TITLE_PARTS = /\S.{0,21}(?= |$)|\S+/g; // as long as fits under a plot on a phone, beside the names of lanes

/** Breaks a long axis title into lines; the height of those beyond the second, for which there is no room yet. */
function shortTitle(title) {
  const lines = (title?.text || "").match(TITLE_PARTS) || [];
  if (lines.length > 1) Object.assign(title, { text: lines.join("<br>"), standoff: 4 });
  return TITLE_LINE * Math.max(0, lines.length - 2);
}

/** On phones the legend is below the plot, one entry per row: above, it would cover the first lane's name. */
function narrowed(data, layout) {
  const entries = data.filter((trace) => trace.showlegend !== false && trace.name).length;
  const rows = layout.showlegend === false || entries < 2 ? 0 : entries * LEGEND_ROW;
  const titles = Object.keys(layout).filter((name) => /^xaxis\d*$/.test(name)).map((name) => shortTitle(layout[name].title));
  const below = rows + Math.max(0, ...titles), margin = layout.margin || {};
  layout.margin = { ...margin, l: 44, r: 6, b: (margin.b ?? 44) + below };
  layout.legend = { orientation: "v", x: 0, xanchor: "left", yref: "container", y: 0, yanchor: "bottom" };
  if (layout.height) layout.height += below;
}

/** Calls `act` when the theme may have changed. */
export function onTheme(act) {
  new MutationObserver(act).observe(document.body, { attributes: true, attributeFilter: ["class"] });
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", act);
}

/** One figure with its title and its sentence. */
export class Drawing {
  constructor(about) {
    this.about = about;
    this.canvas = aria(el("div", "sp-canvas"), { role: "img", label: `${about.title}. ${about.sentence}` });
    if (about.figure.layout.height) this.canvas.style.minHeight = `${about.figure.layout.height}px`;
    this.node = el("figure", "sp-figure", el("h3", "", about.title), about.sentence && el("p", "", about.sentence), this.canvas);
  }

  async draw(library) {
    const { data, layout } = themed(this.about.figure, this.canvas);
    await library.react(this.canvas, data, layout, CONFIG);
    this.drawn = true;
    this.width = this.canvas.clientWidth;
    this.sizes ??= new ResizeObserver(() => { // also where the window's width has changed while the figure was out of sight
      if (this.canvas.clientWidth && this.canvas.clientWidth !== this.width) this.draw(library);
    });
    this.sizes.observe(this.canvas);
  }

  /** Calls `act` on clicks on points whose customdata begins with (lane, position). */
  onPoint(act) {
    this.canvas.on("plotly_click", ({ points }) => {
      const [lane, position] = points[0].customdata || [];
      if (Number.isInteger(lane)) act({ lane, position });
    });
  }

  /** Marks an output position with a line through all rows, which share the position axis. */
  follow(position) {
    this.place = position;
    if (this.drawn && !this.frame) this.frame = requestAnimationFrame(() => this.mark());
  }

  mark() {
    this.frame = null;
    const layout = this.canvas._fullLayout;
    if (!layout || !layout.xaxis || this.place == null) return;
    if (!this.line || !this.line.isConnected) {
      this.line = el("i", "sp-now");
      this.canvas.append(this.line);
    }
    const { xaxis, height } = layout, top = layout._size.t;
    const at = Math.min(Math.max(xaxis.l2p(this.place), 0), xaxis._length);
    this.line.style.top = `${top}px`;
    this.line.style.height = `${height - top - layout._size.b}px`;
    this.line.style.transform = `translateX(${(xaxis._offset + at).toFixed(1)}px)`;
  }
}

/** The figures of the run on screen. */
export class Plots {
  /** fetch(run) => {figures}; player: the player's root element; stands() => whether its clock is at the end. */
  constructor(node, { fetch, player, stands }) {
    Object.assign(this, { node, fetch, player, stands, drawings: [], run: null, fetched: null, visible: false, ended: false });
    this.note = aria(el("p", "sp-note"), { role: "status" });
    this.body = el("div");
    node.replaceChildren(this.note, this.body);
    this.sight = new IntersectionObserver((seen) => {
      this.visible = seen[seen.length - 1].isIntersecting;
      this.refresh();
    }, { rootMargin: "150px 0px" });  // shortly before they become visible
    player.addEventListener("sd:end", () => {  // not earlier: drawing would take time from the replay's frames
      this.ended = true;
      this.refresh();
    });
    player.addEventListener("sd:position", (event) => {
      this.position(event.detail);
      if (this.ended || !this.stands()) return;
      this.ended = true;  // by seeking
      this.refresh();
    });
    onTheme(() => this.redraw());
  }

  /** Draw `run` when its replay has ended or the plots are visible; visibility is observed again, because the player
   * above may have grown. null: a run that has just started. */
  show(run) {
    if (run !== this.fetched) this.forget();
    if (run == null) this.note.textContent = "The plots appear when the run has ended; one that is stopped before its first timing has none.";
    else if (run !== this.fetched) this.note.textContent = "The plots appear when the replay ends, or when you scroll to them.";
    this.run = run;
    this.visible = false;
    this.ended = run != null && this.stands();  // nothing plays with reduced motion
    if (this.ended) this.refresh();
    this.sight.disconnect();
    requestAnimationFrame(() => requestAnimationFrame(() => this.sight.observe(this.node)));
  }

  /** Removes another run's plots, which must not appear below this one; their space stays, so that nothing jumps. */
  forget() {
    this.fetched = null;
    if (!this.drawings.length) return;
    this.body.style.minHeight = `${this.body.offsetHeight}px`;
    for (const old of this.drawings) window.Plotly.purge(old.canvas);
    this.drawings = [];
    this.body.replaceChildren();
  }

  /** The run that has just started will have no plots. */
  abandon() {
    this.body.style.minHeight = "";
  }

  async refresh() {
    if (!(this.visible || this.ended) || this.run == null || this.fetched === this.run) return;
    const run = (this.fetched = this.run);
    if (!this.drawings.length) this.note.textContent = "Drawing the plots…";
    try {
      const [library, { figures }] = await Promise.all([load(), this.fetch(run)]);
      if (run !== this.run) return;
      await this.draw(library, figures);
      if (run === this.run) this.note.textContent = figures.length ? "" : "No lane of this run drafted anything, so there is nothing to plot.";
    } catch (error) {
      if (run !== this.fetched) return; // another run is on screen
      this.fetched = null;
      this.note.textContent = error.message;
    }
  }

  async draw(library, figures) {
    for (const old of this.drawings) library.purge(old.canvas);
    this.drawings = figures.map((about) => new Drawing(about));
    this.body.replaceChildren(...this.drawings.map((one) => one.node));
    this.offerChoices(library);
    for (const one of this.drawings) if (!one.node.hidden) await this.drawOne(one, library);
    this.body.style.minHeight = "";
  }

  async drawOne(one, library) {
    const first = !one.drawn;
    await one.draw(library);
    if (!first) return;
    one.onPoint((goal) => {
      this.player.dispatchEvent(new CustomEvent("sd:goto", { detail: goal }));
      this.position(goal); // the player's own event names the iteration at its clock, which is the next one
    });
  }

  /** Drawings with a `choice` share one place, with buttons to switch between them. */
  offerChoices(library) {
    const several = this.drawings.filter((one) => one.about.choice);
    for (const shown of several) {
      const choose = async (other) => {
        for (const one of several) one.node.hidden = one !== other;
        await this.drawOne(other, library);
        other.node.querySelector("[aria-pressed=true]").focus();
      };
      const row = el("div", "sp-choices", ...several.map((other) => button(other.about.choice, () => choose(other), { pressed: other === shown })));
      shown.node.prepend(aria(row, { role: "group", label: "Form of this plot" }));
      shown.node.hidden = shown !== several[0];
    }
  }

  async redraw() {
    if (!this.drawings.length) return;
    const library = await load();
    for (const one of this.drawings) if (!one.node.hidden) await one.draw(library);
  }

  position({ position }) {
    for (const one of this.drawings) if (one.about.follow) one.follow(position);
  }
}
