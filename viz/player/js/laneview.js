// One lane on the page: its row on the time axis, its column with the text, its SLs and figures, and the chip that shows it.

import { aria, el } from "../../core/js/dom.js";
import { termed } from "./glossary.js";
import { SlStrip } from "./lookahead.js";
import { figureButton } from "./panels.js";
import { Strip } from "./strip.js";
import { TextView } from "./textview.js";

export class LaneView {
  /** name: the button of the row that selects the lane, null for a lane that cannot be selected. The column is hidden at first. */
  constructor(player, number, prompt, { row, column, chip, name = null }) {
    Object.assign(this, { player, number, prompt, row, column, chip, name, shown: false, figures: [] });
    column.hidden = true;
  }

  get isVisible() { return !this.column.hidden; }

  /** Draws `lane` in place of the one before; its flag has a sign and its speedup. The text is written once it is visible. */
  draw(lane, sign, speedup) {
    this.strip?.node.remove();
    Object.assign(this, { lane, strip: new Strip(lane, sign, speedup), sls: new SlStrip(lane), text: null, figures: [] });
    this.strip.node.dataset.lane = this.number;
    this.row.append(this.strip.node);
    this.done = this.finished = undefined; // what the figures and the flag show: iterations, and whether these are all
    if (this.isVisible) this.write();
  }

  write() {
    const { lane, column } = this, text = new TextView(lane, this.prompt, this.number);
    text.finalOnly = Boolean(this.player.isFinalOnly);
    text.hidden = !this.isVisible;
    text.build();
    this.text = text;
    column.replaceChildren(el("h2", "", ...termed(lane.name)), el("p", "sd-cap", ...termed(lane.caption)), this.sls.node, text.scroller, this.buildFigures());
    aria(column, { label: lane.name });
    this.player.shareStops(column);
    this.done = this.finished = undefined;
  }

  /** The figures: running counts while the lane decodes, the rest once it has finished. */
  buildFigures() {
    const { figures, note } = this.lane;
    this.figures = figures.map((figure) => {
      const node = Object.assign(figureButton(figure), { sdKnown: false });
      node.lastChild.textContent = "…";
      return { figure, node, value: node.lastChild };
    });
    return el("div", "sd-figs", ...this.figures.map(({ node }) => node), note && el("p", "sd-note", ...termed(note)));
  }

  setVisible(visible) {
    this.column.hidden = !visible;
    aria(this.chip, { pressed: visible });
    if (visible && !this.text) this.write();
    if (!this.text) return;
    this.text.hidden = !visible;
    this.text.forgetLayout();
  }

  /** Appends what a live lane has decoded since. */
  grow() {
    this.text.build();
    this.text.plan(Infinity);
    this.text.paint(true);
    this.strip.build();
  }

  /** Shows what has happened by time t; `early`: only whether the lane has finished. */
  follow(t, early) {
    const finished = t >= this.lane.end - 1e-9, done = this.lane.doneAt(t);
    if (this.finished !== finished) this.strip.node.classList.toggle("sd-fin", finished);
    else if (early || this.done === done) return;
    this.showFigures(done, finished);
    this.sls.reach(done);
    Object.assign(this, { done, finished });
  }

  showFigures(done, finished) {
    const running = this.figures.length ? this.lane.counted(done) : {};
    for (const { figure, value } of this.figures) {
      const text = finished ? figure.text : running[figure.key] ?? "…";
      if (value.textContent !== text) value.textContent = text;
    }
  }

  /** Marks an iteration on both strips; -1: none. */
  highlight(iteration) {
    this.strip.highlight(iteration);
    this.sls.highlight(iteration);
  }
}
