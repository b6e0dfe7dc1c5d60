// The passes of one lane on the time axis.

import { el, svg } from "../../core/js/dom.js";

const MICRO = 1e6;

/** One lane's passes on the common time axis, in microseconds. */
export class Strip {
  /** `lane` as far as it has decoded; its flag has a sign and a text. */
  constructor(lane, sign, text) {
    this.lane = lane;
    this.svg = svg("svg", { preserveAspectRatio: "none", "aria-hidden": "true", focusable: "false" });
    this.mark = el("div", "sd-mark");
    this.flag = el("div", "sd-flag", el("i", "sd-flag-sign", sign), el("b", "", text));
    this.node = el("div", "sd-strip", el("div", "sd-clip", this.svg, this.mark), this.flag);
    this.built = 0;
    this.build();
  }

  build() {
    let guesses = "", checks = "";
    for (; this.built < this.lane.iterations.length; this.built++) {
      const it = this.lane.iterations[this.built];
      const { steps } = it, step = (it.draftEnd - it.t0) / Math.max(1, steps) * MICRO;
      for (let j = 0; j < steps; j++) {
        guesses += bar(it.t0 * MICRO + j * step, step * it.draftShare * 0.88, 6.5, 5);
      }
      checks += bar(it.draftEnd * MICRO, (it.checkEnd - it.draftEnd) * MICRO, 2, 14);
    }
    if (guesses) this.svg.append(svg("path", { class: "sd-guess", d: guesses }));
    if (checks) this.svg.append(svg("path", { class: "sd-check", d: checks }));
  }

  /** Lays out the strip on an axis of `total` seconds. */
  scale(total) {
    this.total = total;
    const width = this.svg.clientWidth || 900;
    this.svg.setAttribute("viewBox", `0 0 ${Math.max(1, total * MICRO)} 18`);
    const narrowest = this.lane.end / Math.max(1, this.lane.iterations.length) / total * width;
    this.node.classList.toggle("sd-gaps", narrowest >= 6);
    this.flag.style.left = `${100 * this.lane.end / total}%`;
  }

  highlight(iteration) {
    const it = this.lane.iterations[iteration];
    this.mark.style.display = it ? "block" : "none";
    if (!it) return;
    this.mark.style.left = `${100 * it.t0 / this.total}%`;
    this.mark.style.width = `${100 * (it.end - it.t0) / this.total}%`;
  }
}

export const MEASURED = "⚑"; // the signs of flags
export const SIMULATED = "⚐";

function bar(x, width, y, height) {
  const w = Math.max(0, width).toFixed(1);
  return `M${x.toFixed(1)} ${y}h${w}v${height}h-${w}z`;
}
