/* What if the draft were cheaper, the SL longer, checks free? Computed by replay and by the closed form. */

import { aria, button, el, range, select } from "../../core/js/dom.js";
import { clamp, count, fixed, percent, small, times } from "../../core/js/format.js";
import { speedupChart } from "../../core/js/charts.js";
import { Confidence } from "../../core/js/policies.js";
import { bestOf } from "../../core/js/run.js";
import { SL_CAP, breakEven, guessCost, guessesAtOnce, modelSpeedup, withCosts } from "../../core/js/replay.js";
import { HeatMap, speedBars } from "./charts.js";

const rate = (x) => (x < 10 ? Number(x.toPrecision(2)) : Math.round(x));

const CHECKS = {
  measured: ["as measured", (costs) => costs.v],
  free: ["free: any number of tokens for the price of one", () => [1, 1]],
  quarter: ["a quarter of a pass for each further token", () => [1, 1.25]],
  full: ["a whole pass for each token", () => [1, 2]],
};
const PRESETS = {
  measured: ["as measured", (c) => ({ c, checks: "measured" })],
  twice: ["a draft twice as fast", (c) => ({ c: c / 2, checks: "measured" })],
  slow: ["a draft as slow as the target", () => ({ c: 1, checks: "measured" })],
  free: ["checks are free", (c) => ({ c, checks: "free" })],
  costly: ["checks are not free", (c) => ({ c, checks: "quarter" })],
};
const MATCHES = Array.from({ length: 20 }, (_, i) => 0.05 * (i + 1)), COSTS = [0, 0.01, 0.02, 0.03, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1]; // closer where drafts are

export class WhatIf {
  constructor() {
    this.node = aria(el("section", "sl-whatif"), { label: "What if" });
  }

  open(model) {
    this.model = model;
    this.calculator ??= new Calculator().node;
    this.draft = model.draft;
    if (!this.draft) {
      this.node.replaceChildren(el("p", "sl-empty", model.no_chain), this.calculator);
      return;
    }
    this.measured = guessCost(model.costs, this.draft);
    const redraw = () => this.draw();
    this.cost = this.measured; // exact; the slider has steps
    this.c = slider("Cost of a guess, c (target passes)", { min: 0, max: Math.max(1.2, Math.ceil(1.2 * this.measured * 10) / 10), step: 0.001, value: this.measured, shown: small },
      (c) => { this.cost = c; this.draw(); });
    this.sl = slider("SL (guesses per check)", { min: 1, max: SL_CAP, step: 1, value: 5 }, redraw);
    this.threshold = slider("Confidence threshold", { min: 0, max: 1, step: 0.01, value: 0.4, shown: fixed }, redraw);
    this.checks = select("What a check costs", Object.entries(CHECKS).map(([key, [text]]) => [key, text]), "measured", redraw);
    this.presets = el("p", "sl-bar", el("span", "sd-mute", "Presets"), ...Object.entries(PRESETS).map(([key, [text]]) => button(text, () => this.preset(key))));
    const drafts = model.drafts;
    const choice = drafts.length > 1 ? el("label", "sl-field", el("span", "", "Draft"), this.by = select("Draft", drafts.map((name) => [name, name]), this.draft, (name) => this.changeDraft(name))) : null;
    this.out = el("div", "sl-whatif-out");
    this.byMatch = new HeatMap("match rate", MATCHES);
    this.byCost = new HeatMap("c", COSTS);
    this.maps = el("div", "sl-maps", this.byMatch.node, this.byCost.node);
    this.node.replaceChildren(this.presets, el("div", "sl-sliders", this.c.node, this.sl.node, this.threshold.node, el("label", "sl-field", el("span", "", "Checks"), this.checks), choice),
      this.out, this.maps, this.calculator, this.questions());
    this.draw();
  }

  get link() {
    const { draft, model } = this;
    return draft ? { ...(model.drafts.length > 1 && { by: draft }), c: fixed(this.cost, 4), sl: this.sl.value, threshold: this.threshold.value, checks: this.checks.value } : {};
  }

  follow(query) {
    if (!this.draft) return;
    const by = query.get("by");
    if (this.model.drafts.length > 1 && this.model.drafts.includes(by)) {
      this.by.value = by;
      this.changeDraft(by);
    }
    for (const [name, one] of [["c", this.c], ["sl", this.sl], ["threshold", this.threshold]]) {
      const value = parseFloat(query.get(name));
      if (Number.isFinite(value)) one.set(value);
    }
    const c = parseFloat(query.get("c"));
    this.cost = !Number.isFinite(c) || Math.abs(c - this.measured) < 0.0001 ? this.measured : this.c.value;
    if (Object.hasOwn(CHECKS, query.get("checks"))) this.checks.value = query.get("checks");
    this.draw();
  }

  changeDraft(name) {
    this.draft = name;
    this.measured = guessCost(this.model.costs, name);
    this.preset("measured");
  }

  preset(key) {
    if (!this.draft) return;
    const { c, checks } = PRESETS[key] ? PRESETS[key][1](this.measured) : PRESETS.measured[1](this.measured);
    this.cost = c;
    this.c.set(c);
    this.checks.value = checks;
    this.draw();
  }

  costsAt(c) { return withCosts(this.model.costs, this.draft, { c, v: CHECKS[this.checks.value][1](this.model.costs) }); }

  draw() {
    const by = `${this.draft} ${this.checks.value}`;
    if (by !== this.judgedBy) for (const { clear } of this.asked) clear();
    this.judgedBy = by;
    const { model, draft } = this, costs = this.costsAt(this.cost), alpha = model.matchRate(draft), sweep = model.sweep(costs, draft), sl = this.sl.value;
    const best = bestOf(sweep), chosen = sweep[sl - 1];
    const confidence = model.simulated("", new Confidence(this.threshold.value), { draft, costs });
    const mean = confidence.iterations.reduce((sum, it) => sum + it.drafted, 0) / confidence.iterations.length;
    const closed = sweep.map((one) => [one.sl, modelSpeedup(alpha, one.sl, costs, draft)]);
    const asConfident = `Confidence ${fixed(this.threshold.value)}`, reached = confidence.speedup.median;
    const chart = speedupChart("Speed relative to plain decoding over the SL", model, draft, sweep, {
      simulated: "simulated: the recorded guesses at these costs", ran: "measured on the clock, at the measured costs",
      more: [{ name: `model: every guess holds with probability ${percent(alpha)}`, kind: "dash", cls: "sd-s1", points: closed },
        { name: `${asConfident}, at its mean SL`, kind: "dots", cls: "sd-s3", points: [[clamp(mean, 1, SL_CAP), reached, `${asConfident}: ${times(reached)}`]] }],
    });
    const said = el("p", "sl-sentence", `SL ${sl} at c = ${small(this.cost)}: ${times(chosen.speedup)}${chosen.speedup < 1 ? ", slower than plain decoding" : ""}. `
      + (best.speedup > 1 ? `With hindsight, the best SL is ${best.sl}, ${times(best.speedup)}.` : `No SL gains anything: plain decoding is best from c = ${small(this.turningPoint())} on.`));
    aria(said, { role: "status" });
    this.out.replaceChildren(...[model.warning && el("p", "sl-note sl-missing", model.warning), said, el("p", "sl-more", `${asConfident} would reach ${times(reached)} with ${fixed(mean, 1)} guesses on average. ${model.drafts.map((name) => this.aboutDraft(name)).join(" ")}`), chart, this.recorded(costs)].filter(Boolean));
    this.presets.querySelectorAll("button").forEach((node, i) => aria(node, { pressed: this.isAt(Object.values(PRESETS)[i][1](this.measured)) }));
    cancelAnimationFrame(this.later);
    this.later = requestAnimationFrame(() => this.drawMaps(alpha, costs, sl));
  }

  isAt({ c, checks }) { return c === this.cost && checks === this.checks.value; }

  /** A draft's two figures, and what they come to. */
  aboutDraft(name) {
    const best = this.model.bestStatic(undefined, name), { costs } = this.model;
    const cost = guessesAtOnce(costs, name) ? `makes all guesses of an iteration for ${small(costs.first[name])} passes` : `has a measured c of ${small(costs.c[name])}`;
    return `On this text ${name} is right at ${percent(this.model.matchRate(name))} of the places and ${cost}; at the measured costs its best SL with hindsight, ${best.sl}, decodes ${times(best.speedup)} as fast as plain decoding.`;
  }

  /** The c from which on no static SL gains, at the chosen cost of checks. */
  turningPoint() { return breakEven((c) => this.model.bestStatic(this.costsAt(c), this.draft).speedup); }

  /** The run's own lanes at these costs, with their recorded decisions: so every policy is here, with or without JavaScript. */
  recorded(costs) {
    const { model, draft } = this, measured = this.cost === this.measured && this.checks.value === "measured";
    const rows = model.lanes.filter((lane) => lane.policy !== "autoregressive" && lane.draft === draft)
      .map((lane) => ({ name: lane.name, speedup: model.atCosts(lane, costs), cls: "sl-simulated" }));
    if (!rows.length) return null;
    return el("div", "", speedBars("This run's lanes at these costs, with their recorded SLs (a policy that reads the costs might choose others)", rows),
      el("p", "sl-more", measured ? model.rankedOtherwise(draft) : ""));
  }

  /** Closed form over (match rate, SL) and (c, SL); the cell of the sliders' values is outlined. */
  drawMaps(alpha, costs, sl) {
    const { draft } = this, nearest = (list, value) => list.reduce((best, one, i) => (Math.abs(one - value) < Math.abs(list[best] - value) ? i : best), 0);
    const priced = new Map(COSTS.map((c) => [c, this.costsAt(c)]));
    this.byMatch.update("Model: speed over the match rate and the SL, at this c", (match, n) => modelSpeedup(match, n, costs, draft), [nearest(MATCHES, alpha), sl - 1]);
    this.byCost.update(`Model: speed over c and the SL, at a match rate of ${percent(alpha)}`, (c, n) => modelSpeedup(alpha, n, priced.get(c), draft), [nearest(COSTS, this.cost), sl - 1]);
  }

  /** Questions whose answers are found with the sliders. */
  questions() {
    const { model } = this;
    const rows = [
      ["Above which c is every static SL a loss on this text?", () => this.turningPoint(), 0.05, fixed],
      ["Which SL would be best if the draft were twice as fast?", () => model.bestStatic(this.costsAt(this.measured / 2), this.draft).sl, 0, String],
      ["If the draft were as slow as the target (c = 1), how fast would SL 1 be, relative to plain decoding?", () => model.sweep(this.costsAt(1), this.draft)[0].speedup, 0.03, times],
    ];
    this.asked = rows.map((row) => numberQuestion(...row));
    return el("div", "sl-card", el("h2", "", "Find out with the sliders"), el("p", "sl-note", "Checks cost what is chosen above."), ...this.asked.map(({ node }) => node));
  }
}

// ---------------------------------------------------------------- fields

/** A labelled slider: {node, value, set}. */
function slider(label, { min, max, step, value, shown = String }, act) {
  const output = el("output", "sl-value"), input = range(label, { min, max, step, value }, (x) => { say(); act(x); });
  const say = () => { output.textContent = shown(Number(input.value)); aria(input, { valuetext: output.textContent }); };
  say();
  return { node: el("label", "sl-slide", el("span", "", label), input, output), get value() { return Number(input.value); },
    set(x) { input.value = x; say(); } };
}

/** A number field: {node, value}; value is null, and the field marked invalid, for anything but a number in range. */
function numberField(label, value, { min = 0, max = 1e6, step = "any" } = {}, act = () => {}) {
  const input = el("input", "sl-number");
  Object.assign(input, { type: "number", min, max, step, value, inputMode: "decimal" });
  const read = () => (input.value !== "" && input.checkValidity() ? Number(input.value) : null);
  input.addEventListener("input", () => { aria(input, { invalid: read() == null }); act(); });
  return { node: el("label", "sl-field", el("span", "", label), input), get value() { return read(); } };
}

/** {node, clear}; ``clear``: what it was judged by has changed. */
function numberQuestion(text, answer, tolerance, shown) {
  const clear = () => { verdict.textContent = ""; };
  const verdict = aria(el("span", "sl-verdict"), { role: "status" }), field = numberField("your answer", "", { max: 100 }, clear);
  const check = () => {
    const right = answer(), given = field.value;
    if (given == null) { verdict.textContent = "Type a number from 0 to 100 first."; return; }
    if (right == null) { verdict.textContent = "There is no such c: some SL gains at every c up to 20."; return; }
    const near = Math.abs(given - right) <= tolerance * Math.max(1, right) + 1e-9;
    verdict.textContent = `${near ? "✓ Right" : "✕ Wrong"}: it is ${shown(right)} here.`;
  };
  return { node: el("div", "sl-ask", el("p", "", text), el("p", "sl-bar", field.node, button("Check", check), verdict)), clear };
}

/** Tokens per second from the times of a guess and a check, the SL and the guesses that hold; and plain decoding's. */
export class Calculator {
  constructor({ guess = 1, check = 10, sl = 4, held = 3 } = {}) {
    const redraw = () => this.draw();
    this.guess = numberField("a guess takes (ms)", guess, {}, redraw);
    this.check = numberField("a check takes (ms)", check, { min: 0.001 }, redraw);
    this.sl = numberField("guesses per check, SL", sl, { max: 1000, step: 1 }, redraw);
    this.held = numberField("guesses that hold, on average", held, { max: 1000 }, redraw);
    this.out = aria(el("div", ""), { role: "status" });
    this.node = el("div", "sl-card sl-calculator", el("h2", "", "Calculator, in milliseconds"), el("div", "sl-fields", this.guess.node, this.check.node, this.sl.node, this.held.node), this.out);
    this.draw();
  }

  draw() {
    const [guess, check, sl, held] = [this.guess, this.check, this.sl, this.held].map((field) => field.value);
    if ([guess, check, sl, held].includes(null)) { this.out.replaceChildren(el("p", "sl-fault", "Times go up to 1,000,000 ms, a check takes at least 0.001 ms; the SL is a whole number up to 1,000, and no more guesses can hold.")); return; }
    if (held > sl) { this.out.replaceChildren(el("p", "sl-fault", `At most ${sl} can hold: there are no more guesses.`)); return; }
    const spent = sl * guess + check, tokens = held + 1, speed = 1000 * tokens / spent, plain = 1000 / check, ratio = speed / plain;
    this.out.replaceChildren(
      el("p", "", `One iteration: ${sl} × ${guess} ms + ${check} ms = ${Number(spent.toFixed(3))} ms for ${held} + 1 = ${count(tokens, "token")} (the check always gives one of its own).`),
      el("p", "sl-sentence", `${rate(speed)} tokens a second; plain decoding ${rate(plain)}: ${ratio > 1.005 ? `${times(ratio)}, faster` : ratio < 0.995 ? `${times(ratio)}, slower` : "no difference"}.`));
  }
}
