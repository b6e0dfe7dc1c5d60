// A live run: events arrive, lanes grow.

import { el } from "../../core/js/dom.js";
import { clamp, clockText, count } from "../../core/js/format.js";
import { Lane, countedFigures } from "../../core/js/lanes.js";
import { say } from "./glossary.js";
import { Player } from "./player.js";

const Live = {
  /** The next event of a live run; they come in order. */
  hear({ kind, data }) {
    const acts = {
      started: () => this.startLive(data),
      progress: () => (this.settling ? this.showSettling(data.message, data.fraction) : this.showStatus(data.message, data.fraction)),
      lane_started: () => this.startLane(data),
      iterations: () => this.addIterations(data),
      lane_finished: () => this.finishLane(data),
      replay: () => this.takeReplay(data),
      finished: () => this.takeWhole(data.payload),
      cancelled: () => this.endLive("Stopped"),
      failed: () => { this.endLive("Ended early"); this.showStatus(data.message); },
    };
    if (acts[kind]) acts[kind]();
  },

  /** The first repeat of all lanes is complete: it plays while further repeats are timed and the figures are updated. */
  takeReplay({ payload, timings, of }) {
    if (this.settling) this.exchange(payload);
    else if (this.replayed !== payload.id) this.load(payload);
    else return; // another run was opened in the meantime
    this.replayed = payload.id;
    this.settling = { run: payload.id, timings, of };
    this.showSettling("", (timings - 1) / of);
  },

  takeWhole(payload) {
    const { timings, of } = this.settling || { timings: 1, of: 1 }, stopped = timings < of && payload.timings < of;
    if (this.settling) this.exchange(payload);
    else this.load(payload);
    this.settling = null;
    if (stopped) this.showStatus(`Stopped after ${payload.timings} of ${of} timings. They are kept.`);
  },

  showSettling(text, fraction) {
    const { timings, of } = this.settling;
    this.showStatus(`${timings} of ${count(of, "timing")}.${text ? ` ${text}` : ""}`, fraction);
  },

  showStatus(text, fraction) {
    this.status.hidden = false;
    this.status.textContent = text;
    this.status.style.setProperty("--sd-share", fraction == null ? 0 : clamp(fraction, 0, 1));
  },

  startLive(data) {
    this.pause();
    this.unpin();
    this.payload = null;
    this.settling = null;
    this.partial = false;
    const vocab = {};
    say(this.look, "The same prompt in every lane; colours show which guesses held.");
    this.picture.replaceChildren();
    say(this.shows, "");  // what was to be noticed belonged to the run before
    this.sentence.textContent = "The lanes are decoded one after another; then the race replays them together.";
    this.fact.textContent = "Lanes that run at the same time would slow each other down.";
    this.verdict.textContent = "";
    this.verdict.className = "sd-verdict";
    this.badge.replaceChildren(el("span", "sd-pill sd-live", "live"));
    this.lanes = data.lanes.map((about) => new Lane(about, vocab));
    for (const lane of this.lanes) lane.figures = countedFigures(lane, " so far");
    this.live = { vocab };
    this.panels.replaceChildren();
    this.thresholds = [];
    this.race.classList.add("sd-live");
    this.buildLanes(data.prompt || "");
    this.select(0);
    this.shareStops();
  },

  startLane({ lane, repeat }) {
    if (this.settling) {
      const share = (repeat + lane / this.lanes.length) / this.settling.of;
      this.showSettling(`${this.lanes[lane].name} is being timed again; the replay shows one timing.`, share);
    }
    if (!this.live) return;
    for (const { row, number } of this.views) row.classList.toggle("sd-onclock", number === lane);
    this.showStatus(`On the clock: ${this.lanes[lane].name}.`, lane / this.lanes.length);
    this.flag(lane, "on the clock");
    this.tab = lane;
    const last = Math.max(lane, 2); // the lane on the clock is always one of the three visible ones
    for (const view of this.views) view.shown = view.number > last - 3 && view.number <= last;
    this.showColumns();
  },

  /** The text after a lane's strip: that it is on the clock, then its time. */
  flag(lane, text) {
    this.views[lane].strip.flag.lastChild.textContent = text;
  },

  finishLane({ lane, repeat, decode_s: seconds }) {
    if (!this.live) return;
    const model = this.lanes[lane];
    if (repeat === 0) model.decoded = clockText(seconds, seconds);
    this.flag(lane, model.decoded || "");
    this.views[lane].row.classList.add("sd-decoded");
  },

  addIterations({ lane, repeat, items, texts }) {
    if (!this.live) return;
    Object.assign(this.live.vocab, texts);
    if (repeat !== 0) return;
    const model = this.lanes[lane], view = this.views[lane];
    for (const item of items) {
      const { start, d: guesses, e: own, t: times, parents, reads } = item, tokens = [...guesses, ...(own ? [own] : [])];
      const fates = tokens.map(([, fate]) => fate[0]).join(""), ids = tokens.map(([id]) => id);
      model.add({ start, fates, ids, parents, reads, times });
    }
    view.grow();
    this.drawLookahead();
    view.sls.reach(model.iterations.length);
    view.showFigures(model.iterations.length, false);
    this.stretchAxis(lane);
  },

  /** The axis grows in steps, so that the strips do not shrink continually. */
  stretchAxis(lane) {
    const needed = Math.max(...this.lanes.map((one) => one.end));
    if (needed > this.total * 0.98) {
      this.total = needed * 1.25;
      for (const { strip } of this.views) strip.scale(this.total);
      this.buildAxis();
    } else this.views[lane].strip.scale(this.total);
  },

  /** The run was stopped or failed: the decoded part becomes a replay, without the figures of a complete run. */
  endLive(how) {
    if (!this.live) {
      const settled = this.settling ? ` after ${this.settling.timings} of ${this.settling.of} timings. They are kept` : "";
      this.settling = null;
      this.showStatus(`${how}${settled}.`);
      return;
    }
    for (const { row } of this.views) row.classList.remove("sd-onclock");
    const begun = this.lanes.filter((lane) => lane.iterations.length);
    if (!begun.length) {
      this.sentence.textContent = `${how} before the first token.`;
      this.fact.textContent = "";
      this.status.hidden = true;
      return;
    }
    this.live = null;
    this.partial = true;
    this.race.classList.remove("sd-live");
    this.status.hidden = true;
    this.sayPartial(how, begun);
    for (const view of this.views) this.closeLane(view);
    this.setTotal();
    this.fitSpeed(this.total);
    this.select(this.lanes.indexOf(begun[begun.length - 1]));
    this.seek(this.total);
  },

  sayPartial(how, begun) {
    const tokens = begun.reduce((sum, lane) => sum + lane.counts().kept, 0);
    const some = begun.length < this.lanes.length ? `${begun.length} of ` : "";
    this.sentence.textContent = `${how} after ${count(tokens, "token")} in ${some}${count(this.lanes.length, "lane")}.`;
    const whole = this.lanes.every((lane) => lane.decoded);
    this.fact.textContent = "The decoded part can be replayed. " + (whole
      ? "There are no speedups, because the repeats that measure them are missing."
      : "Unfinished lanes have no figures.");
  },

  closeLane({ lane, number, row, column, figures }) {
    row.classList.remove("sd-decoded");
    this.flag(number, lane.decoded || (lane.iterations.length ? "unfinished" : "not started"));
    const counted = lane.counted();
    for (const { figure, value } of figures) {
      if (lane.decoded) figure.text = counted[figure.key];
      else value.closest(".sd-fig").hidden = true;
    }
    if (lane.decoded) return;
    row.classList.add("sd-open");
    const note = lane.iterations.length ? `Unfinished: ended after ${count(lane.counts().kept, "token")}.` : "This lane was not started.";
    column.querySelector(".sd-figs").append(el("p", "sd-note", note));
  },
};

Object.assign(Player.prototype, Live);
