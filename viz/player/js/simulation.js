// The SL slider: a simulated static lane, computed in advance by what-if.

const REPLAYED = "simulated: the recorded guesses replayed with this SL, at the cost curves of the run";

const Simulation = {
  addSimulatedRow(prompt) {
    const { draft, static: sweeps } = this.payload.simulations;
    const source = sweeps[draft];
    const row = el("div", "sd-row sd-sim");
    const label = el("label", "sd-name");
    const slider = el("input", "sd-slider");
    const options = source.options;
    Object.assign(slider, { type: "range", min: 0, max: options.length - 1, step: 1, value: source.initial });
    slider.setAttribute("aria-label", "SL of a simulated static lane");
    const text = el("span", "sd-sim-name");
    label.append(text, slider);
    const holder = el("div", "sd-strip");
    row.append(label, holder);
    this.strip.append(row);
    const note = el("p", "sd-sim-note");
    const under = el("div", "sd-sim-under");
    under.append(note);
    this.axis.after(under);
    this.simulation = { source, draft, prompt, made: [], number: this.lanes.length, row, holder, text, slider, note, under };
    this.offerDrafts(Object.keys(sweeps));
    this.addSimulatedColumn();
    slider.addEventListener("input", () => this.simulate(Number(slider.value)));
    this.simulate(source.initial);
  },

  /** The choice of the simulated lane's draft, if the run has several. */
  offerDrafts(drafts) {
    if (drafts.length < 2) return;
    const choice = el("select", "sd-speed");
    choice.setAttribute("aria-label", "Draft of the simulated lane");
    for (const name of drafts) choice.append(el("option", "", name));
    choice.value = this.simulation.draft;
    choice.addEventListener("change", () => this.useDraft(choice.value));
    this.simulation.under.prepend(choice);
  },

  useDraft(draft) {
    const sim = this.simulation;
    Object.assign(sim, { draft, source: this.payload.simulations.static[draft], made: [] });
    sim.slider.max = sim.source.options.length - 1;
    sim.slider.value = sim.source.initial;
    this.simulate(sim.source.initial);
  },

  /** A simulated speedup as text; "unsteady" if the measured costs contradict each other. */
  simulatedTimes(speedup) {
    return this.payload.simulations.doubtful ? "unsteady" : times(speedup);
  },

  /** Its text is built only when it is visible. */
  addSimulatedColumn() {
    const { number } = this.simulation;
    const column = el("article", "sd-card sd-col sd-col-sim");
    this.columns.push(column);
    this.views.push(new TextView(new Lane({}), "", number));
    this.sls.push(new SlStrip(this.simulation.lane || new Lane({})));
    this.texts.append(column);
    this.shown.push(false);
    this.simulation.chip = button("sd-chip sd-chip-sim", "", "", () => this.toggleColumn(number));
    this.chips.append(this.simulation.chip);
    this.showColumns();
  },

  simulate(choice) {
    const sim = this.simulation;
    const option = sim.source.options[choice];
    const { lane, strip } = (sim.made[choice] ??= this.simulated(option));
    Object.assign(sim, { lane, strip });
    this.sls[sim.number] = new SlStrip(lane);
    strip.highlight(-1);
    lane.wasFinished = undefined;
    sim.holder.replaceWith(sim.strip.node);
    sim.holder = sim.strip.node;
    sim.text.replaceChildren(el("span", "", `SL ${option.value}`), el("em", "", "simulated"));
    sim.chip.textContent = sim.lane.name;
    sim.slider.setAttribute("aria-valuetext", `SL ${option.value}, simulated ${this.simulatedTimes(option.speedup)}`);
    say(sim.note, this.simulatedNote(option, choice));
    this.shareStops(sim.under);
    sim.stale = true;
    this.setTotal();
    this.refreshSimulatedText();
    this.render();
  },

  /** Lane and strip of one SL, created on first use. */
  simulated(option) {
    const lane = laneFromSimulation(this.payload.simulations.sources[this.simulation.draft], option, this.payload.strings);
    lane.figures = simulatedFigures(lane, this.simulatedTimes(option.speedup));
    lane.caption = `the result of always guessing ${option.value}${this.withDraft()}, simulated`;
    return { lane, strip: simulatedStrip(lane, this.simulatedTimes(option.speedup)) };
  },

  /** Names the simulated lane's draft if the run has several. */
  withDraft() {
    const { draft } = this.simulation;
    return Object.keys(this.payload.simulations.sources).length > 1 ? ` with ${draft}` : "";
  },

  simulatedNote(option, choice) {
    const { source, lane } = this.simulation;
    const best = source.options[source.best];
    const counts = lane.counts(lane.iterations.length);
    const made = `${counts.passes} target passes, ${counts.thrown} of ${counts.drafted} guesses thrown away.`;
    const head = `Always guessing ${option.value}${this.withDraft()}: `;
    if (this.payload.simulations.doubtful) return `${head}${made} Timings were unsteady, so no simulated speedup is given.`;
    const ran = option.measured ? ` Measured: ${option.measured}.` : "";
    return `${head}${times(option.speedup)} simulated, ${made}${ran} ` + (choice === source.best
      ? `The best static SL of this run${this.withDraft()}.`
      : `Best static SL of this run${this.withDraft()}: ${best.value}, ${times(best.speedup)}.`);
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

/** `speedup` as text. */
function simulatedFigures(lane, speedup) {
  const { passes, drafted, thrown, kept } = lane.counts(lane.iterations.length);
  const figure = (key, label, text, formula) => ({ key, label, text: String(text), formula });
  return [
    figure("speedup", "speedup", speedup, REPLAYED),
    figure("tokens_per_target_pass", "tokens per target pass", (kept / passes).toFixed(2),
      `tokens / target passes = ${kept} / ${passes}; ${REPLAYED}`),
    figure("target_passes", "target passes", passes, REPLAYED),
    figure("draft_passes", "draft passes", drafted, REPLAYED),
    figure("thrown_away", "thrown away", `${thrown} (${Math.round(100 * thrown / Math.max(1, drafted))}%)`,
      `rejected and dropped, of ${drafted} drafted; ${REPLAYED}`),
  ];
}
