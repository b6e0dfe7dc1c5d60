/* The Race tab around the player: saving and opening of runs, and the connection between player and plots.
 *
 * Gradio renders only static templates; texts of models and users are set with textContent.
 */

import { RUN_FILE, ask, copied, memoryOfTab, opener, orSay, runId, save, unpackRun } from "../../core/js/files.js";
import { aria, button, el, isNarrow } from "../../core/js/dom.js";
import { mount } from "../../player/js/main.js";
import { asksForAnother, packedRun, reloaded, takeOver } from "./early.js";
import { unfold, whenFilledIn } from "./form.js";
import { carry, explain } from "./learn.js";
import { Plots } from "./plots.js";
import { Status } from "./status.js";

const AWAY_MS = 20000; // how long the page is out of sight before no further timings are made

// ---------------------------------------------------------------- the race

class Race {
  constructor(element, props, server, trigger) {
    Object.assign(this, { server, trigger });
    this.status = new Status(element.querySelector(".sp-status"));
    this.run = this.last = null; // the id of the finished run on screen; of the last one
    const early = takeOver(element.querySelector(".sp-player"));
    this.root = element.querySelector(".sp-player");
    this.player = early ?? mount(this.root);
    this.player.options.details = (lane, it, at) => this.details(lane, it, at);
    this.player.options.explain = (where) => { if (this.run) explain({ ...this.made, ...where }); };
    this.take = new TakeAlong(element.querySelector(".sp-take"), this);
    this.plots = new Plots(element.querySelector(".sp-plots"), {
      fetch: (run) => ask(server.figures({ run })),
      player: this.root,
      stands: () => this.player.t >= this.player.total,
    });
    this.queue = Promise.resolve();
    this.left = new Set();
    document.addEventListener("visibilitychange", () => this.lookAway());
    this.begin(props.value);
  }

  /** The first run on screen: the link's run, or after a reload the one before, else the recorded one of the page. */
  begin(value) {
    const query = new URLSearchParams(window.location.search), packed = packedRun(), before = reloaded(query);
    const run = query.has("learn") ? null : query.get("run") ?? before.run, t = parseFloat(query.get("t"));
    if (this.player.payload) { // of the first paint
      this.run = this.last = this.player.payload.id;
      this.shown();
    } else if (packed || run != null) {
      this.root.hidden = Boolean(packed);
      const opening = packed ? unpackRun(packed).then((text) => this.openText(text)) : this.open(run);
      this.queue = opening.then(() => this.seek(t)).catch((error) => { // which is said after what comes in its place is shown
        if (value) this.receive(value);
        this.queue = this.queue.then(() => this.status.refuse(error.message));
      });
    } else if (asksForAnother(query)) {
      this.root.hidden = true;  // until there is a run to show: an unrelated one must not play meanwhile
      this.status.say("The form is filled in from this link: press Run.");
      unfold();
    } else if (value) this.receive(value);
    else {
      this.status.say("There is no recorded run here: press Run to make one.");
      unfold();
    }
    if (before.underway) this.queue = this.queue.then(() => this.offerAgain(before.timed));
    this.queue.then(() => { this.opened = true; });
  }

  /** A run ends with the page that asked for it; the server keeps the timings that were made by then. */
  offerAgain(timed) {
    this.status.say(`The run in progress ended when this page was left or reloaded.${timed ? " The timings made by then are shown." : ""}`);
    this.status.offer("Start again", () => document.getElementById("run").click(), whenFilledIn("race"));
  }

  /** The run on screen as it is by now. */
  get made() { return { run: this.run, version: this.player.payload?.version }; }

  /** Opens the content of a run file, which also fills in the form. */
  async openText(text) {
    const { payload } = await ask(this.server.open_file({ text }));
    this.show(payload);
    this.trigger("select", { run: payload.id });
  }

  async open(run) {
    const { payload } = await ask(this.server.open_run({ run: runId(run) }));
    this.show(payload);
  }

  /** The moment that a link names, in seconds; NaN: none. */
  seek(t) {
    if (!Number.isFinite(t)) return;
    this.player.pause();
    this.player.seek(Math.max(0, t));
  }

  /** A run under way ends where another is opened, and does not come back over it. */
  leave() {
    this.left.add(this.racing);
    this.racing = null;
    document.getElementById("stop")?.click();
  }

  /** What is still on its way of the run that was under way before, ended or not, is not shown. */
  begun(run) {
    if (this.latest && this.latest !== run) this.left.add(this.latest);
    this.latest = this.racing = run;
  }

  show(payload) {
    if (this.racing && this.racing !== payload.id) this.leave();
    if (this.opened && navigator.userActivation?.hasBeenActive) leaveLink(); // for an example or a file that the visitor chose
    this.root.hidden = false;
    this.run = payload.id;
    this.status.say("");
    this.player.load(payload);
    this.remember(false);
    this.shown();
  }

  shown() {
    if (this.player.payload && this.player.payload.badge.kind !== "recorded") carry(this.made);
    this.take.offer(this.run);
    this.plots.show(this.run);
  }

  /** Handles a delta from the server, as JSON text. Deltas are applied in order; missing ones are fetched. */
  receive(text) {
    this.queue = this.queue.then(() => this.accept(JSON.parse(text))).catch((error) => {
      console.error(error);
      this.status.refuse(error.message);
    });
  }

  /** A delta has the events from number ``seq`` to before ``next``; those between the last one and it were missed. */
  async accept({ run, seq, next, events }) {
    if (this.left.has(run)) return;
    if (run !== this.live) Object.assign(this, { live: run, wanted: 0, started: false });
    if (next <= this.wanted) return;
    if (seq > this.wanted) {
      const missed = await ask(this.server.missed({ run, first: this.wanted, after: seq }));
      events = missed.events.concat(events);
    }
    this.wanted = next;
    for (const event of events) this.hear(event);
    this.remember(!["finished", "cancelled", "failed"].includes(events.at(-1)?.kind));
  }

  /** What a reload shows again, and whether it ends a run: until that has a result, the run before it. */
  remember(underway) {
    this.last = this.run ?? this.last;
    memoryOfTab.write("race", { run: this.last, underway, timed: this.run != null && this.run === this.live });
  }

  /** The run on screen stays until the new one has started. */
  hear(event) {
    if (event.kind === "started") this.startLive();
    if (event.kind === "finished") return this.finish(event);
    if (!this.started || event.kind === "failed") this.status.hear(event);
    if (this.started) this.toPlayer(event);
    if (this.started && event.kind === "replay") this.offerReplay(event.data.payload.id);
    if (this.started && ["cancelled", "failed"].includes(event.kind)) this.keep();
  }

  /** Shows the whole run; if its replay is already on screen, the replay continues. */
  finish(event) {
    const { payload } = event.data;
    if (this.racing === payload.id) this.racing = null;
    if (!this.started || this.run !== payload.id) return this.show(payload);
    this.toPlayer(event);
    this.shown();
  }

  /** After the first repeat there is a run to inspect and to save; its plots follow when all repeats are timed. */
  offerReplay(run) {
    if (this.player.settling) this.run = run;
    if (this.run === run) this.take.offer(run);
  }

  /** The run was stopped or failed. */
  keep() {
    this.racing = null;
    if (this.run == null) {
      this.take.say("A run that was stopped or failed cannot be saved.");
      this.plots.abandon();
    }
    else if (this.run === this.live) this.shown();
  }

  /** A run has a result after its first timing; further ones are made only while somebody looks. */
  lookAway() {
    clearTimeout(this.away);
    if (!document.hidden) return;
    this.away = setTimeout(() => {
      if (this.player.settling) document.getElementById("stop")?.click();
      this.lookAway();
    }, AWAY_MS);
  }

  startLive() {
    this.root.hidden = false;
    if (isNarrow() || this.root.getBoundingClientRect().top > innerHeight) this.root.scrollIntoView({ block: "start" });
    this.started = true;
    leaveLink();
    this.begun(this.live);
    this.run = null;
    this.status.say("");
    this.take.offer(null);
    this.plots.show(null);
  }

  toPlayer({ kind, data }) {
    const shown = kind === "failed" ? { message: "The part that was decoded is shown." } : data;
    this.player.hear({ kind, data: shown });
  }

  details(lane, iteration, index) {
    if (this.run == null) return Promise.reject(new Error("Details are available when the run has ended."));
    return ask(this.server.details({ run: this.run, lane, iteration, index }));
  }
}

// ---------------------------------------------------------------- saving and opening

class TakeAlong {
  constructor(node, race) {
    this.race = race;
    this.note = aria(el("span", "sp-note"), { role: "status" });
    const keep = (kind) => () => this.fetch(kind, (file) => { this.shelf.replaceChildren(); this.say(save(file)); });
    const copy = (kind) => () => this.fetch(kind, (file) => this.copy(file));
    this.buttons = [
      button("Run file (JSON)", keep("json")), button("Table (CSV)", keep("csv")), button("Page (HTML)", keep("html")),
      button("Copy as command", copy("command")), button("Copy link", copy("link")),
    ];
    const open = opener("Open a run file…", RUN_FILE, (name, read) => this.read(name, read));
    this.shelf = el("div", "sp-shelf");
    node.replaceChildren(el("span", "sp-label", "Save or share"), ...this.buttons, ...open, this.note, this.shelf);
    this.offer(null);
  }

  /** A command stays until another run is on screen; a link, and the note on a saved file, go when the run has more
   * timings, which they lack. */
  offer(run) {
    const { version } = this.race.made;
    if (run !== this.run || (this.linked ?? version) !== version) this.shelf.replaceChildren();
    if (!this.shelf.children.length) this.note.textContent = "";
    this.run = run;
    for (const one of this.buttons) one.disabled = run == null;
  }

  say(text) { this.note.textContent = text; }

  fetch(kind, use) {
    return orSay((text) => this.say(text), async () => use(await ask(this.race.server.take({ run: this.run, kind, t: this.race.player.t }))));
  }

  /** Copies to the clipboard; the text is also shown, since the browser may refuse. */
  async copy({ name, text }) {
    const isLink = name === "link", until = isLink && new URLSearchParams(text).get("until");
    const full = isLink ? `${window.location.origin}${window.location.pathname}${text}` : text;
    const field = aria(el("textarea", "sp-copied", full), { label: isLink ? "Link" : "Command" });
    field.readOnly = true;
    field.rows = Math.min(4, 1 + Math.floor(full.length / 110));
    field.addEventListener("focus", () => field.select());
    this.linked = isLink ? this.race.made.version : null;
    this.shelf.replaceChildren(field);
    const done = await copied(full);
    if (!done) field.select();
    const kept = until ? ` This server keeps the run until ${until}.` : text.includes("#run=") ? " It carries the whole run." : "";
    this.say((done ? `The ${name} is in your clipboard.` : `Copy the ${name} from here:`) + kept);
  }

  read(name, read) {
    this.say(`Reading ${name}…`);
    return orSay((text) => this.say(text), async () => {
      await this.race.openText(await read());
      this.say(`${name} is on screen.`);
    });
  }
}

/** From now on a reload shows this run and its form, not what the address opened; what a Space has put there stays. */
function leaveLink() {
  const query = new URLSearchParams(window.location.search);
  for (const name of [...query.keys()]) if (!name.startsWith("__")) query.delete(name);
  window.history.replaceState(window.history.state, "", `${window.location.pathname}${query.size ? `?${query}` : ""}`);
}

export function race(element, props, watch, server, trigger) {
  document.head.append(document.getElementById("speculoscope-style")); // after Gradio's styles, to override them
  const shown = new Race(element, props, server, trigger);
  watch("value", () => { if (props.value) shown.receive(props.value); });
  element.speculoscope = shown;
}
