// Below the player in an exported file: how fast every static SL would be, and how the run was made.

import { speedupChart } from "../../core/js/charts.js";
import { el, table } from "../../core/js/dom.js";
import { RunModel } from "../../core/js/run.js";

export function appendix(root, payload) {
  const model = new RunModel(payload);
  root.replaceChildren(...model.drafts.map((draft) => speedups(model, draft)), el("h2", "", "How the run was made"), table(["what", "value"], model.settings));
}

function speedups(model, draft) {
  const label = `Speed relative to plain decoding by static SL, draft ${draft}.`, chart = speedupChart(label, model, draft, model.sweep(undefined, draft));
  chart.prepend(el("figcaption", "", label));
  return chart;
}
