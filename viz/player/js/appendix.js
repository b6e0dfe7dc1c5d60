// Below the player in an exported file: how fast every static SL would be, and how the run was made.

import { lineChart } from "../../core/js/charts.js";
import { el, table } from "../../core/js/dom.js";
import { times } from "../../core/js/format.js";
import { parseLane } from "../../core/js/policies.js";
import { SL_CAP } from "../../core/js/replay.js";
import { RunModel } from "../../core/js/run.js";

export function appendix(root, payload) {
  const model = new RunModel(payload);
  root.replaceChildren(...model.drafts.map((draft) => speedups(model, draft)), el("h2", "", "How the run was made"), table(["what", "value"], model.settings));
}

/** Speedup over the static SL: simulated as a line, the measured lanes of that draft as diamonds. */
function speedups(model, draft) {
  const best = model.bestStatic(undefined, draft), sl = (lane) => Number(parseLane(lane.lane).argument);
  const ran = model.lanes.filter((lane) => lane.policy === "static" && lane.draft === draft && lane.speedup && sl(lane) <= SL_CAP);
  const label = `Speed relative to plain decoding by static SL, draft ${draft}.`;
  const chart = lineChart({
    label, x: { min: 1, max: SL_CAP, label: "SL: guesses per check" },
    series: [
      { name: "simulated", kind: "line", cls: "sd-s0", points: model.sweep(undefined, draft).map((one) => [one.sl, one.speedup]) },
      { name: "measured", kind: "dots", cls: "sd-s2", points: ran.map((lane) => [sl(lane), lane.speedup.median, `SL ${sl(lane)}: ${times(lane.speedup.median)}`]) },
    ],
    marks: [{ x: best.sl, y: best.speedup, text: `best with hindsight: SL ${best.sl}, ${times(best.speedup)}` }],
  });
  chart.prepend(el("figcaption", "", label));
  return chart;
}
