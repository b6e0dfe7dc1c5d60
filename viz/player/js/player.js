/* Speculoscope's player: replays one run, several lanes on one clock. Framework-free, no build step.
 *
 *   const player = Speculoscope.mount(root, {details, explain});
 *   details: async (lane index, iteration, index) => what token_details of details.py gives; null where nothing is known of a token
 *   explain: ({lane index, iteration, index}) => leads to a step-by-step explanation of a token; null where there is none
 *   player.load(payload)        payload.py's run_payload, as an object
 *   player.hear({kind, data})   live: the next event, of decoding/records/events.py. "iterations" data also
 *                               carries the texts of new tokens, {id: [text, hex bytes | null]}; "finished" data carries {payload}.
 *   player.seek(seconds) · player.goTo({lane, position | iteration}) · player.play() · player.pause()
 *   root listens for 'sd:goto' {lane, position | iteration} and fires 'sd:position' {lane, position}, and 'sd:end' when a
 *   replay has ended.
 *
 * Texts of models and users reach the page only through textContent. The layout does not change while the clock runs:
 * tokens are laid out once and only become visible, so that frames are short and the text does not move.
 */

import { aria, el } from "../../core/js/dom.js";
import { clamp, clockText } from "../../core/js/format.js";
import { lastAtMost } from "../../core/js/lanes.js";
import { RunModel } from "../../core/js/run.js";
import { pictureFigure } from "../../core/js/tokens.js";
import { say } from "./glossary.js";
import { readPanel, thresholdPanels, timePanel } from "./panels.js";
import { Popup } from "./popup.js";

export const SPEEDS = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 4];
const DENOMINATORS = [1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 25, 30, 40, 50, 60, 80, 100];
const REPLAY_SECONDS = 8; // default duration of the slowest lane

export function speedText(speed) {
  if (speed === 1) return "real time";
  return speed > 1 ? `${speed}× real time` : `1/${Math.round(1 / speed)} of real time`;
}

/** The speed at which `seconds` take about REPLAY_SECONDS, rounded to a simple number. */
export function fittingSpeed(seconds) {
  const wanted = REPLAY_SECONDS / Math.max(seconds, 1e-6);
  if (wanted <= 0.75) return wanted < 0.375 ? 4 : 2;
  const near = (best, d) => (Math.abs(Math.log(d / wanted)) < Math.abs(Math.log(best / wanted)) ? d : best);
  return 1 / DENOMINATORS.reduce(near);
}

/** One clock for all lanes. */
export class Player {
  constructor(root, options) {
    this.root = root;
    this.options = { details: null, explain: null, ...options };
    this.lanes = []; // those that ran
    this.views = []; // of these lanes and, last, of the simulated one
    this.t = 0; this.total = 1; this.speed = 1; this.playing = false; this.live = null;
    this.selected = 0; this.turn = 0; this.later = 0; this.waiting = []; this.marked = []; this.cache = new WeakMap(); // token -> its details
    aria(root, { role: "region", label: "Race of decoding policies" }).classList.add("speculoscope");
    this.buildShell();
    this.popup = new Popup(root);
    this.listen();
  }

  // ------------------------------------------------------------ loading a run

  load(payload) {
    this.settling = null; // {run, timings, of}: the run plays while further repeats are timed
    this.build(payload);
    this.fitSpeed(Math.max(...this.lanes.map((lane) => lane.end), 1e-6));
    this.select(Math.max(0, payload.lead ?? 0));
    const still = window.matchMedia("(prefers-reduced-motion: reduce)").matches;
    this.seek(still ? this.total : 0);
    if (!still) this.play();
  }

  /** Replaces the run on screen by the same run with more repeats; the replay continues where it is. */
  exchange(payload) {
    const { t, total, playing, tab, views: before } = this, selected = this.selected === this.payload.lead ? payload.lead : this.selected;
    const focused = before.findIndex(({ row }) => row.contains(document.activeElement));
    this.build(payload);
    for (const view of this.views) view.shown = before[view.number]?.shown ?? view.shown;
    this.tab = tab;
    this.showColumns();
    this.select(selected);
    this.seek(t >= total ? this.total : t);
    if (playing) this.play();
    this.views[focused]?.name?.focus({ preventScroll: true });
  }

  build(payload) {
    this.pause();
    this.unpin();
    this.live = null;
    this.partial = false;  // whether it is a stopped run, for which no details are kept
    this.payload = payload;
    this.model = new RunModel(payload);
    this.lanes = this.model.lanes;
    this.status.hidden = true;
    this.race.classList.remove("sd-live");
    say(this.look, payload.look);
    this.sentence.textContent = payload.sentence;
    say(this.shows, payload.shows && `Notice: ${payload.shows}`);
    if (payload.badge.kind === "recorded") this.example = this.model;
    say(this.fact, payload.fact + (payload.badge.kind === "live" && this.example ? this.model.whySlower(this.example) : ""));
    this.picture.replaceChildren(...pictureFigure(payload));
    this.badge.replaceChildren(el("span", `sd-pill sd-${payload.badge.kind}`, payload.badge.kind),
      el("span", "", payload.badge.text), el("span", "sd-place", payload.badge.place));
    this.buildLanes(payload.prompt);
    this.thresholds = thresholdPanels(this);
    this.panels.replaceChildren(...this.thresholds.map(({ node }) => node), timePanel(payload.time_table), payload.read.length ? readPanel(payload.read) : "");
    this.setTotal();
    say(this.verdict, payload.verdict.text);
    this.verdict.className = `sd-verdict sd-verdict-${payload.verdict.kind}`;
    this.shareStops();
  }

  buildLanes(prompt) {
    this.simulation?.under.remove();
    for (const holder of [this.strip, this.texts, this.chips]) holder.replaceChildren();
    Object.assign(this, { views: [], waiting: [], marked: [], thresholds: [], simulation: null, total: 0 });
    this.lanes.forEach((lane, number) => this.addLane(lane, number, prompt));
    this.showDefaultColumns();
    this.playhead = el("div", "sd-playhead");
    this.strip.append(el("div", "sd-overlay", this.playhead));
    if (this.payload && this.model.replay()) this.addSimulatedLane(prompt);
  }

  /** The common axis ends with the slowest lane; the strips are rescaled only if that end has moved. */
  setTotal() {
    this.drawLookahead();
    const total = Math.max(...this.views.map(({ lane }) => lane.end), 1e-6);
    this.simulation?.view.strip.scale(total);
    if (total === this.total) return;
    this.total = total;
    for (const { strip } of this.views) strip.scale(this.total);
    for (const panel of this.thresholds) panel.scale(this.total);
    this.ends.textContent = clockText(this.total, this.total);
    this.now.style.setProperty("--sd-chars", this.ends.textContent.length);
    this.buildAxis();
  }

  // ------------------------------------------------------------ clock

  play() {
    if (this.live || this.playing) return;
    this.pinned = null;
    if (this.t >= this.total) this.seek(0);
    this.playing = true;
    this.showPlaying();
    let last = null;
    const frame = (now) => {
      if (!this.playing) return;
      if (last !== null) this.t = Math.min(this.total, this.t + (now - last) / 1000 * this.speed);
      last = now;
      this.render();
      if (this.t >= this.total) { this.pause(); this.root.dispatchEvent(new CustomEvent("sd:end", { bubbles: true })); }
      else this.frame = window.requestAnimationFrame(frame);
    };
    this.frame = window.requestAnimationFrame(frame);
  }

  pause() {
    if (this.playing) {
      this.playing = false;
      this.paintWaiting(this.waiting.length);
      this.renderFigures();
    }
    if (this.frame) window.cancelAnimationFrame(this.frame);
    this.frame = 0;
    this.showPlaying();
  }

  toggle() { if (this.playing) this.pause(); else this.play(); }

  showPlaying() {
    const label = this.playing ? "Pause (space)" : "Play (space)";
    this.playButton.querySelector("path").setAttribute("d", this.playPath[this.playing ? 1 : 0]);
    this.playButton.title = label;
    aria(this.playButton, { label });
  }

  seek(seconds) {
    this.t = clamp(Number(seconds) || 0, 0, this.total);
    this.render();
  }

  /** Moves to the next (1) or previous (-1) end of an iteration of the selected lane. */
  step(direction) {
    this.pause();
    const its = this.lanes[this.selected] ? this.lanes[this.selected].iterations : [];
    const margin = 1e-9;
    const target = direction > 0 ? its.find((it) => it.end > this.t + margin)
      : its[lastAtMost(its, this.t - margin, (it) => it.end)];
    this.seek(target ? target.end : direction > 0 ? this.total : 0);
  }

  changeSpeed(direction) {
    this.speeds.selectedIndex = clamp(this.speeds.selectedIndex + direction, 0, this.speeds.length - 1);
    this.speed = Number(this.speeds.value);
  }

  render() {
    if (this.live) return;
    this.paintTexts();
    this.moveTo(this.t / this.total);
    this.renderFigures();
    this.report();
  }

  /** Updates all texts after a pause; while the clock runs or is dragged, one text per frame in turn. */
  paintTexts() {
    const now = performance.now();
    const moving = this.playing || now - (this.paintedAt || 0) < 250;
    this.paintedAt = now;
    this.waiting = this.views.filter((view) => view.isVisible).map(({ text }) => text);
    for (let i = this.turn++ % Math.max(1, this.waiting.length); i > 0; i--) this.waiting.push(this.waiting.shift());
    this.paintWaiting(moving ? 1 : this.waiting.length);
  }

  paintWaiting(count) {
    const texts = this.waiting.splice(0, count);
    for (const text of texts) text.plan(this.t);  // read all of the layout before the first write
    for (const text of texts) text.paint(!this.hovering);
    window.cancelAnimationFrame(this.later);
    if (this.waiting.length && !this.playing) this.later = window.requestAnimationFrame(() => this.paintWaiting(1));
  }

  /** Only two boxes show the time, because each moving layer adds to the cost of every frame. */
  moveTo(share) {
    const shift = `translateX(${(share * 100).toFixed(3)}%)`;
    this.playhead.style.transform = shift;
    this.knob.style.transform = shift;
  }

  /** Updates flags, clock and running counts; all but the flags at most ten times a second, to stay readable. */
  renderFigures() {
    const now = performance.now();
    const early = this.playing && now - (this.figuresAt || 0) < 100;
    if (!early) { this.figuresAt = now; this.showClock(); }
    for (const view of this.views) view.follow(this.t, early);
  }

  showClock() {
    const now = clockText(this.t, this.total);
    this.rail.value = Math.round(this.t / this.total * 1000);
    if (this.now.textContent === now) return;
    this.now.textContent = now;
    aria(this.rail, { valuetext: now });
  }

  laneAt(number) { return this.views[number].lane; }

  report() {
    const lane = this.selected;
    const model = this.lanes[lane];
    if (!model) return;
    const at = model.at(this.t);
    if (this.reported === at) return;
    this.reported = at;
    this.emit(lane, at < 0 ? 0 : model.iterations[at].start);
  }

  emit(lane, position) {
    this.root.dispatchEvent(new CustomEvent("sd:position", { bubbles: true, detail: { lane: this.laneAt(lane).lane, position } }));
  }
}
