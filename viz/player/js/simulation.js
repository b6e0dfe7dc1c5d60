// The SL slider: a simulated static lane.

import { aria, button, el, range, select } from "../../core/js/dom.js";
import { count, times } from "../../core/js/format.js";
import { countedFigures } from "../../core/js/lanes.js";
import { SL_CAP } from "../../core/js/replay.js";
import { say } from "./glossary.js";
import { Player } from "./player.js";
import { SIMULATED } from "./strip.js";

const REPLAYED = "simulated: the recorded guesses replayed with this SL, at what iterations cost in this run";

const Simulation = {
  addSimulatedLane(prompt) {
    const { draft, drafts } = this.model, number = this.lanes.length, text = el("span", "sd-sim-name");
    const slider = range("SL of a simulated static lane", { min: 1, max: SL_CAP, cls: "sd-slider" }, (sl) => this.simulate(sl));
    const view = this.addView(number, prompt, {
      row: el("div", "sd-row sd-sim", el("label", "sd-name", text, slider)), column: el("article", "sd-card sd-col sd-col-sim"),
      chip: button("", () => this.toggleColumn(number), { cls: "sd-chip sd-chip-sim", pressed: false }),
    });
    const note = el("p", "sd-sim-note"), under = el("div", "sd-sim-under", note);
    this.axis.after(under);
    this.simulation = { view, text, slider, note, under };
    if (drafts.length > 1) {
      under.prepend(select("Draft of the simulated lane", drafts.map((name) => [name, name]), draft, (name) => this.useDraft(name), "sd-speed"));
    }
    this.useDraft(draft);
  },

  /** Simulates with this draft, first at its best SL. */
  useDraft(draft) {
    const sim = Object.assign(this.simulation, { draft, made: [], best: this.model.bestStatic(undefined, draft) });
    sim.slider.value = sim.best.sl;
    this.simulate(sim.best.sl);
  },

  /** A simulated speedup as text; "unsteady" if the measured costs contradict each other. */
  simulatedTimes(lane) {
    return this.payload.doubtful ? "unsteady" : times(lane.speedup.median);
  },

  simulate(sl) {
    const { view, text, slider, note, under, made } = this.simulation, lane = (made[sl] ??= this.simulated(sl));
    view.draw(lane, SIMULATED, this.simulatedTimes(lane));
    text.replaceChildren(el("span", "", `SL ${sl}`), el("em", "", "simulated"));
    view.chip.textContent = lane.name;
    aria(slider, { valuetext: `SL ${sl}, simulated ${this.simulatedTimes(lane)}` });
    say(note, this.simulatedNote(sl));
    this.shareStops(under);
    this.setTotal();
    this.render();
  },

  /** The lane of one SL, created on first use. */
  simulated(sl) {
    const lane = this.model.staticLane(sl, this.simulation.draft), speedup = this.simulatedTimes(lane);
    lane.name = `${lane.name}, simulated`;
    lane.figures = [{ key: "speedup", label: "speedup", text: speedup, formula: REPLAYED }, ...countedFigures(lane, `; ${REPLAYED}`)];
    lane.caption = `the result of always guessing ${sl}${this.withDraft()}, simulated`;
    return lane;
  },

  /** Names the simulated lane's draft if the run has several. */
  withDraft() {
    return this.model.drafts.length > 1 ? ` with ${this.simulation.draft}` : "";
  },

  simulatedNote(sl) {
    const { view: { lane }, best } = this.simulation, { passes, thrown, drafted } = lane.counts();
    const made = `${count(passes, "target pass", "target passes")}, ${thrown} of ${drafted} guesses thrown away.`;
    const head = `Always guessing ${sl}${this.withDraft()}: `;
    if (this.payload.doubtful) return `${head}${made} Timings were unsteady, so no simulated speedup is given.`;
    return `${head}${this.simulatedTimes(lane)} simulated, ${made}${this.measuredAt(sl)} ` + (sl === best.sl
      ? `The best static SL of this run${this.withDraft()}, with hindsight.`
      : `Best static SL of this run${this.withDraft()}, with hindsight: ${best.sl}, ${times(best.speedup)}.`);
  },

  /** The speedup of the lane that ran with this SL and draft, as on its card; "" if none did. */
  measuredAt(sl) {
    const ran = this.lanes.find(({ policy, draft, lane }) => policy === "static" && draft === this.simulation.draft && lane.endsWith(`:${sl}`));
    if (!ran?.speedup) return "";
    const { median, low, high } = ran.speedup;
    return ` Measured: ${low < high ? `median ${times(median)} (${low.toFixed(2)} to ${high.toFixed(2)})` : times(median)}.`;
  },
};

Object.assign(Player.prototype, Simulation);
