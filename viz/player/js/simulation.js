// The SL slider: a simulated static lane.

import { aria, button, el, range, select } from "../../core/js/dom.js";
import { times } from "../../core/js/format.js";
import { Lane, countedFigures } from "../../core/js/lanes.js";
import { SL_CAP } from "../../core/js/replay.js";
import { say } from "./glossary.js";
import { SlStrip } from "./lookahead.js";
import { Player } from "./player.js";
import { simulatedStrip } from "./strip.js";
import { TextView } from "./textview.js";

const REPLAYED = "simulated: the recorded guesses replayed with this SL, at what iterations cost in this run";

const Simulation = {
  addSimulatedRow(prompt) {
    const { draft, drafts } = this.model, text = el("span", "sd-sim-name"), holder = el("div", "sd-strip");
    const slider = range("SL of a simulated static lane", { min: 1, max: SL_CAP, cls: "sd-slider" }, (sl) => this.simulate(sl));
    const row = el("div", "sd-row sd-sim", el("label", "sd-name", text, slider), holder);
    const note = el("p", "sd-sim-note"), under = el("div", "sd-sim-under", note);
    this.strip.append(row);
    this.axis.after(under);
    this.simulation = { draft, prompt, made: [], number: this.lanes.length, row, holder, text, slider, note, under };
    if (drafts.length > 1) {
      under.prepend(select("Draft of the simulated lane", drafts.map((name) => [name, name]), draft, (name) => this.useDraft(name), "sd-speed"));
    }
    this.addSimulatedColumn();
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

  /** Its text is built only when it is visible. */
  addSimulatedColumn() {
    const { number } = this.simulation, column = el("article", "sd-card sd-col sd-col-sim"), none = new Lane({});
    this.columns.push(column);
    this.views.push(new TextView(none, "", number));
    this.sls.push(new SlStrip(none));
    this.texts.append(column);
    this.shown.push(false);
    this.simulation.chip = button("", () => this.toggleColumn(number), { cls: "sd-chip sd-chip-sim" });
    this.chips.append(this.simulation.chip);
    this.simulation.lane = none;
    this.showColumns();
  },

  simulate(sl) {
    const sim = this.simulation;
    const { lane, strip } = (sim.made[sl] ??= this.simulated(sl));
    Object.assign(sim, { lane, strip });
    this.sls[sim.number] = new SlStrip(lane);
    strip.highlight(-1);
    lane.wasFinished = undefined;
    sim.holder.replaceWith(sim.strip.node);
    sim.holder = sim.strip.node;
    sim.text.replaceChildren(el("span", "", `SL ${sl}`), el("em", "", "simulated"));
    sim.chip.textContent = sim.lane.name;
    aria(sim.slider, { valuetext: `SL ${sl}, simulated ${this.simulatedTimes(lane)}` });
    say(sim.note, this.simulatedNote(sl));
    this.shareStops(sim.under);
    sim.stale = true;
    this.setTotal();
    this.refreshSimulatedText();
    this.render();
  },

  /** Lane and strip of one SL, created on first use. */
  simulated(sl) {
    const lane = this.model.staticLane(sl, this.simulation.draft), speedup = this.simulatedTimes(lane);
    lane.name = `${lane.name}, simulated`;
    lane.figures = [{ key: "speedup", label: "speedup", text: speedup, formula: REPLAYED }, ...countedFigures(lane, `; ${REPLAYED}`)];
    lane.caption = `the result of always guessing ${sl}${this.withDraft()}, simulated`;
    return { lane, strip: simulatedStrip(lane, speedup) };
  },

  /** Names the simulated lane's draft if the run has several. */
  withDraft() {
    return this.model.drafts.length > 1 ? ` with ${this.simulation.draft}` : "";
  },

  simulatedNote(sl) {
    const { lane, best } = this.simulation, { passes, thrown, drafted } = lane.counts();
    const made = `${passes} target passes, ${thrown} of ${drafted} guesses thrown away.`;
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
    return ` Measured: median ${times(median)} (${low.toFixed(2)} to ${high.toFixed(2)}).`;
  },

  refreshSimulatedText() {
    const sim = this.simulation;
    if (!sim || !sim.stale || this.columns[sim.number].hidden) return;
    sim.stale = false;
    const view = new TextView(sim.lane, sim.prompt, sim.number);
    view.finalOnly = Boolean(this.isFinalOnly);
    view.build();
    this.views[sim.number] = view;
    this.fillColumn(this.columns[sim.number], sim.lane, view, this.sls[sim.number]);
    this.shareStops();
  },
};

Object.assign(Player.prototype, Simulation);
