// The SL slider: a static lane that was never run, answered at once from the what-if.

const Simulation = {
  addSimulatedRow() {
    const source = this.payload.simulations.static;
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
    this.axis.after(note);
    this.simulation = { source, row, holder, text, slider, note };
    slider.addEventListener("input", () => this.simulate(Number(slider.value)));
    this.simulate(source.initial);
  },

  simulate(choice) {
    const sim = this.simulation;
    const option = sim.source.options[choice];
    const source = this.payload.simulations.sources[sim.source.draft];
    sim.lane = laneFromSimulation(source, option, this.payload.strings);
    sim.strip = simulatedStrip(sim.lane, option);
    sim.holder.replaceWith(sim.strip.node);
    sim.holder = sim.strip.node;
    sim.text.replaceChildren(el("span", "", `SL ${option.value}`), el("em", "", "simulated"));
    sim.slider.setAttribute("aria-valuetext", `SL ${option.value}, simulated ${times(option.speedup)}`);
    const best = sim.source.options[sim.source.best];
    const counts = sim.lane.counts(sim.lane.iterations.length);
    sim.note.textContent = `Always guessing ${option.value}: ${times(option.speedup)}, `
      + `${counts.passes} target passes, ${counts.thrown} of ${counts.drafted} guesses thrown away. `
      + (choice === sim.source.best ? "The best static SL of this run."
        : `Best static SL of this run: ${best.value}, ${times(best.speedup)}.`);
    this.setTotal();
    this.render();
  },
};

Object.assign(Player.prototype, Simulation);
