/* The Learn tab: which run, which of its five parts, links, presenter mode.
 *
 *   const learn = SpeculoscopeLearn.mount(root, { server, index, payloads, exported })
 *   server: functions of viz/server_functions.py, each (query) -> Promise of an answer or {error: sentence}; null in a file
 *   payloads: the runs of a saved file, {id: result of run_payload with details}
 *   learn.openRun(payload) · learn.goTo({ place, ... }) · learn.say(sentence)
 */

import { aria, button, el, select } from "../../core/js/dom.js";
import { RUN_FILE, ask, copied, numberIn, opener, orSay, runId, unpackRun } from "../../core/js/files.js";
import { RunModel } from "../../core/js/run.js";
import { factsOf, ruleOf } from "./facts.js";
import { Lessons } from "./lessons.js";
import { Words } from "./papers.js";
import { Play } from "./play.js";
import { Steps } from "./steps.js";
import { WhatIf } from "./whatif.js";

const PLACES = [["lessons", "Lessons"], ["steps", "Step by step"], ["play", "Be the policy"], ["whatif", "What if"], ["words", "Words"]];
const OF_A_RUN = ["steps", "play", "whatif"];
const KEYS = { lessons: "→ or space: next · ←: back · a: the answers · ", steps: "→ or space: next · ←: back · " }; // of presenter mode

export class Learn {
  constructor(root, { server = null, index = { recordings: [], lessons: [] }, payloads = {}, exported = false } = {}) {
    Object.assign(this, { root, server, index, exported, model: null, place: "lessons" });
    this.payloads = new Map(Object.entries(payloads));
    this.own = new Map(); // the visitor's own runs: id -> title
    this.mine = null; // the one that was opened last: lessons show others in between
    aria(root, { role: "region", label: "Learn" }).classList.add("speculoscope", "sl-root");
    this.places = { lessons: new Lessons(this), steps: new Steps(this), play: new Play(this), whatif: new WhatIf(), words: new Words() };
    this.others = {};
    this.asked = null; // the run that was asked for last
    this.build();
    document.addEventListener("keydown", (event) => this.key(event));
  }

  build() {
    this.status = aria(el("p", "sl-status"), { role: "status" });
    this.runLine = el("p", "sl-run-line");
    this.picker = el("span", "sl-group");
    this.nav = aria(el("div", "sl-nav"), { role: "tablist", label: "Ways to learn" });
    for (const [name, title] of PLACES) {
      const tab = aria(button(title, () => this.choose(name), { cls: "sl-tab" }), { role: "tab" });
      tab.dataset.place = name;
      tab.id = `sl-tab-${name}`;
      this.nav.append(tab);
    }
    this.nav.addEventListener("keydown", (event) => this.alongTabs(event));
    this.present = button("Presenter mode", () => this.setPresenting(true), { title: "Large type, operated by keys" });
    this.onwards = el("span", "sl-group", button("← Back", () => this.onward(-1)), button("Next →", () => this.onward(1), { cls: "sd-button sl-main" }));
    this.keys = el("span", "sl-keys");
    this.stand = el("div", "sl-stand", this.onwards, this.keys, button("Exit presenter mode", () => this.setPresenting(false)));
    const tools = el("span", "sl-group sl-tools", this.exported ? null : button("Copy link", () => this.copyLink()), this.present);
    this.body = aria(el("div", "sl-body"), { role: "tabpanel" });
    this.body.id = "sl-body";
    this.head = el("div", "sl-head", this.nav, tools);
    this.root.replaceChildren(this.head, el("div", "sl-runs", this.picker, this.runLine), this.status, this.body, this.stand);
    this.fillPicker();
  }

  alongTabs(event) {
    const direction = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!direction) return;
    const tabs = [...this.nav.children], at = tabs.indexOf(document.activeElement);
    const next = tabs[(at + direction + tabs.length) % tabs.length];
    event.preventDefault();
    event.stopPropagation();
    next.focus();
    next.click();
  }

  say(text, fault = false) {
    this.status.textContent = text || "";
    this.status.classList.toggle("sl-fault", fault);
  }

  // -------------------------------------------------------------- runs

  fillPicker() {
    const options = [...[...this.own].reverse(), ...this.index.recordings.map(({ id, title }) => [id, title])];
    this.picker.replaceChildren();
    if (this.exported || options.length === 0) return;
    const choose = select("Run", options, this.model ? this.model.id : options[0][0], (id) => { this.mine = null; this.renew(this.openId(id)); });
    this.picker.append(el("span", "sd-mute", "Run"), choose, ...opener("Open a run file…", RUN_FILE, (name, read) => this.renew(this.openFile(read))));
  }

  /** Another run was chosen: an open lesson says what it says of that one. The list names the run on screen, also where it is refused. */
  async renew(opened) {
    if (!(await opened)) this.fillPicker();
    if (this.places.lessons.lesson) this.places.lessons.refresh();
  }

  async ask(name, query = {}) {
    if (!this.server) throw new Error("This works on the dashboard, not in a saved file.");
    return ask(this.server[name](query));
  }

  /** Run something that may fail, and show the error's sentence if it does. */
  attempt(act) {
    this.say("");
    return orSay((text) => this.say(text, true), act);
  }

  /** Shows the run of that id. `version`: which it is by now; another one was read before the run's end, and it is read again. */
  openId(id, version = null) {
    const isShown = () => this.model?.id === runId(id) && (version ?? this.model.version) === this.model.version;
    return this.open(async () => (isShown() ? null : this.payloadOf(id)));
  }

  /** Shows the run whose data `fetch` gives (null: the one on screen), unless another is asked for meanwhile. Gives its model; null if it is not shown. */
  open(fetch) {
    const asked = (this.asked = {});
    return this.attempt(async () => {
      const payload = await fetch();
      if (this.asked !== asked) return null;
      if (payload) this.openRun(payload);
      return this.model;
    });
  }

  /** The data of a run: in a saved file its own, else the server's. */
  async payloadOf(id) { return this.payloads.get(id) ?? (await this.ask("open_run", { run: id, kind: "learn" })).payload; }

  /** The run of that id without showing it; null is the run on screen. */
  async modelOf(id) { return !id || this.model?.id === id ? this.model : (this.others[id] ??= new RunModel(await this.payloadOf(id))); }

  openFile(read) {
    return this.open(async () => (await this.ask("open_file", { text: await read(), kind: "learn" })).payload);
  }

  isOwn(id) { return !this.index.recordings.some((one) => one.id === id); }

  openRun(payload) {
    this.model = new RunModel(payload);
    if (this.isOwn(payload.id)) {
      this.own.set(payload.id, payload.title);
      this.mine = payload.id;
    }
    this.facts = null;
    this.fillPicker();
    this.runLine.replaceChildren(el("span", "", payload.sentence + payload.doubt), el("span", "sd-mute", payload.badge.text + (payload.temperature ? ` · ${ruleOf(payload)} at temperature ${payload.temperature}` : "")));
    this.places.steps.open(this.model);
    for (const name of ["play", "whatif"]) this.places[name].model = null;
    if (this.place !== "lessons") this.show(this.place);
  }

  get known() { return (this.facts ??= factsOf(this.model)); }

  // -------------------------------------------------------------- places

  /** The tab of the list of lessons also leads back to it out of a lesson; those of a run to the visitor's own. */
  async choose(place) {
    this.say("");
    if (place === "lessons" && this.place === place) this.places.lessons.leave();
    this.wanted = place;
    if (OF_A_RUN.includes(place) && this.mine) await this.openId(this.mine); // where it is refused, the sentence stays
    if (this.wanted === place) this.show(place); // else another one was chosen while the run was fetched
  }

  goTo({ place = this.place, ...where } = {}) {
    this.say("");
    this.show(place);
    if (place === "steps" && Object.keys(where).length) this.places.steps.goTo(where);
  }

  show(place) {
    this.place = place;
    for (const tab of this.nav.children) {
      const chosen = tab.dataset.place === place;
      aria(tab, { selected: chosen });
      tab.tabIndex = chosen ? 0 : -1;
    }
    aria(this.body, { labelledby: `sl-tab-${place}` });
    const room = this.places[place];
    if (["play", "whatif"].includes(place) && this.model && room.model !== this.model) room.open(this.model);
    if (["lessons", "steps"].includes(place)) room.refresh(); // both show the same steps
    this.onwards.hidden = !KEYS[place];
    this.keys.textContent = `${KEYS[place] ?? ""}Esc: exit`;
    this.body.replaceChildren(OF_A_RUN.includes(place) && !this.model ? el("p", "sl-empty", "Choose a run above.") : room.node);
  }

  /** Called by the steps after each move: the lesson may be waiting for it. */
  moved(steps) { if (this.place === "lessons") this.places.lessons.moved(steps); }

  key(event) {
    const { target } = event, inside = this.root.contains(target) || target === document.body;
    if (!inside || !this.root.isConnected || !this.isOnScreen) return;
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
    if (event.key === "Escape" && this.presenting) { this.setPresenting(false); return; }
    if (/^(INPUT|SELECT|TEXTAREA)$/.test(target.tagName)) return;
    if (target.tagName === "BUTTON" && [" ", "Enter"].includes(event.key)) return;
    if (target.getAttribute("role") === "tab") return;
    const room = this.places[this.place];
    if (event.key === "p" && !event.shiftKey && this.place === "lessons") this.setPresenting(!this.presenting);
    else if (!room.key || !room.key(event)) return;
    event.preventDefault();
  }

  setPresenting(on) {
    this.presenting = on;
    this.root.classList.toggle("sl-presenting", on);
    document.documentElement.classList.toggle("sl-presented", on);
    if (this.place === "lessons") this.places.lessons.refresh();
    this.root.scrollTop = 0;
    if (!on) return;
    this.root.tabIndex = -1;
    this.root.focus(); // it scrolls by keys
  }

  get isOnScreen() { return this.root.offsetParent !== null || this.presenting; }

  onward(direction) {
    const { lessons, steps } = this.places;
    if (this.place === "lessons") lessons.onward(direction); else steps.move(direction);
  }

  // -------------------------------------------------------------- links

  /** The query of a link that opens what is on screen. */
  query() {
    const lessons = this.places.lessons, query = new URLSearchParams();
    if (this.place === "lessons" && lessons.lesson) { query.set("lesson", lessons.lesson.id); query.set("step", String(lessons.at + 1)); return query; }
    query.set("learn", this.place);
    if (this.model) query.set("run", this.model.id);
    for (const [name, value] of Object.entries(this.places[this.place].link || {})) query.set(name, String(value));
    return query;
  }

  copyLink() {
    return this.attempt(async () => {
      const query = this.query(), own = this.model && this.isOwn(this.model.id);
      let fragment = "";
      if (own && query.has("run")) {
        const found = new URL((await this.ask("take", { run: this.model.id, kind: "link" })).text, location.origin);
        query.delete("run"); // it may be in the link itself
        for (const [name, value] of found.searchParams) query.set(name, value);
        fragment = found.hash;
      }
      const link = `${location.origin}${location.pathname}?${query}${fragment}`;
      this.say((await copied(link)) ? "The link is in your clipboard." : `Copy this link: ${link}`);
    });
  }

  /** Open what a link names; returns whether it names anything on this tab. */
  async follow(search, fragment = "") {
    const query = new URLSearchParams(search), place = query.get("learn");
    if (query.has("lesson")) {
      this.show("lessons");
      aria(this.body, { busy: true });
      await this.places.lessons.openId(query.get("lesson"), numberIn(query, "step") - 1);
      this.body.removeAttribute("aria-busy");
      return true;
    }
    if (!PLACES.some(([name]) => name === place)) return false;
    const packed = /^#run=([A-Za-z0-9_-]+)$/.exec(fragment);
    if (packed) await this.openFile(() => unpackRun(packed[1]));
    else if (query.get("run")) await this.openId(query.get("run"));
    if (!this.model && this.index.recordings.length) {
      const { textContent: said } = this.status;
      await this.openFirst();
      if (said) this.say(said, true);
    }
    this.show(place);
    if (!this.model) return true;
    if (this.places[place].follow) this.places[place].follow(query);
    return true;
  }

  /** Shows the first lesson's recording, or where there is none the first one of all. */
  openFirst() {
    const { recordings, lessons } = this.index, wanted = lessons[0]?.recording;
    return this.openId((recordings.find(({ id }) => id === wanted) || recordings[0]).id);
  }
}

/** Mount in the dashboard: loads the index, then follows the link whose query is `search`, or shows the list of lessons. */
export async function mountPage(root, server, search) {
  const learn = new Learn(root, { server });
  root.speculoscopeLearn = learn;
  await learn.attempt(async () => {
    learn.index = await learn.ask("learn_index");
    learn.fillPicker();
    if (await learn.follow(search, location.hash)) return;
    learn.show("lessons");
    await learn.openFirst();
  });
  root.dispatchEvent(new CustomEvent("sl:ready", { bubbles: true }));
  return learn;
}
