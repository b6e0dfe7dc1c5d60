// What a page may use of the player, and what an exported file has below it.

import { speedupChart } from "../../core/js/charts.js";
import { el, table } from "../../core/js/dom.js";
import { RunModel } from "../../core/js/run.js";
import "./live.js";
import "./lookahead.js";
import { Player } from "./player.js";
import "./pointing.js";
import "./shell.js";
import "./simulation.js";

export const mount = (root, options) => new Player(root, options);

/** How fast every static SL would be, and how the run was made. */
export function appendix(root, payload) {
  const model = new RunModel(payload);
  root.replaceChildren(...model.drafts.map((draft) => speedups(model, draft)), el("h2", "", "How the run was made"), table(["what", "value"], model.settings));
}

function speedups(model, draft) {
  const label = `Speed relative to plain decoding by static SL, draft ${draft}.`, chart = speedupChart(label, model, draft, model.sweep(undefined, draft));
  chart.prepend(el("figcaption", "", label, model.warning && ` ${model.warning}`));
  return chart;
}
