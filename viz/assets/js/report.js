/* Evaluation and Drafts tabs: sentences, tables, figures and code from plain data, filled in by textContent. */
import { ask, copied, memory, memoryOfTab, orSay, save } from "../../core/js/files.js";
import { aria, button, el, table, whenDrawn } from "../../core/js/dom.js";
import { explainTerms, termed } from "../../player/js/glossary.js";
import { whenFilledIn } from "./form.js";
import { Drawing, load, onTheme } from "./plots.js";
import { Status } from "./status.js";

/** Cells are [text, number or null]; a column with any number is one of figures. */
function sortableTable({ title, note, columns, rows }) {
  const figures = columns.map((_, i) => rows.some((cells) => cells[i][1] !== null));
  const holder = table(columns.map(termed), rows.map((cells) => cells.map(([text], i) => (i ? text : termed(text)))), { label: title, cls: "sp-table" });
  for (const line of holder.querySelectorAll("tr")) [...line.cells].forEach((cell, i) => cell.classList.toggle("sp-words", !figures[i]));
  if (!figures[1]) stackable(holder, columns);
  if (rows.length > 1) offerSorting(holder, columns, rows, figures);
  return el("div", "sp-tabled", el("h3", "", title), holder, el("p", "sp-note", ...termed(note)));
}

/** Rows with a name of several columns are too wide for a phone: there each becomes a list, and each cell names its column. */
function stackable(holder, columns) {
  holder.classList.add("sp-stackable");
  for (const line of holder.querySelectorAll("tbody tr")) [...line.cells].forEach((cell, i) => {
    cell.dataset.column = columns[i];
    if (i) cell.textContent = cell.textContent.replace(/\[.*?\]/g, (interval) => interval.replaceAll(" ", "\u00a0"));
  });
}

/** Figures: largest first, then smallest first, then as it came; words the other way round. Empty cells are last. */
function offerSorting(holder, columns, rows, figures) {
  const heads = [...holder.querySelectorAll("thead th")], body = holder.querySelector("tbody"), lines = [...body.rows];
  const sortBy = (i) => {
    const turns = figures[i] ? ["descending", "ascending", null] : ["ascending", "descending", null];
    const next = turns[(turns.indexOf(heads[i].getAttribute("aria-sort")) + 1) % 3];
    for (const cell of heads) cell.removeAttribute("aria-sort");
    if (next) aria(heads[i], { sort: next });
    const key = (n) => (figures[i] ? rows[n][i][1] : rows[n][i][0] || null), sign = next === "ascending" ? 1 : -1;
    const compare = (m, n) => (key(m) === null || key(n) === null ? (key(m) === null) - (key(n) === null)
      : sign * (figures[i] ? key(m) - key(n) : key(m).localeCompare(key(n))));
    const order = lines.map((_, n) => n);
    body.append(...(next ? order.sort(compare) : order).map((n) => lines[n]));
  };
  heads.forEach((cell, i) => cell.append(" ", aria(button("", () => sortBy(i), { cls: "sp-sort" }), { label: `Sort by ${columns[i]}` })));
}

function code([title, text]) {
  const note = aria(el("span", "sp-note"), { role: "status" });
  const copy = button("Copy", async () => { note.textContent = (await copied(text)) ? "Copied." : "Select the text and copy it."; });
  const block = aria(el("pre", "sp-code", text), { label: title });
  block.tabIndex = 0;
  return el("div", "sp-snippet", el("p", "sp-note", title, " ", copy, " ", note), block);
}

class Report {
  constructor(element, server) {
    this.status = new Status(element.querySelector(".sp-status"));
    this.content = element.querySelector(".sp-content");
    Object.assign(this, { server, element, drawings: [], name: element.closest("[id^='report-']").id });
    this.going = `${this.name}-going`; // in the tab's own memory: a measurement is under way
    explainTerms(element);
    onTheme(() => this.drawAll());
    this.started = false; // on this page, a measurement
    this.open(memoryOfTab.read(this.going, false));
  }

  /** Shows this visitor's last measurement if the server still has it, else the shipped results. */
  async open(ended = false) { // ended: by a reload
    const shipped = await orSay((text) => this.status.say(text), () => ask(this.server.shipped({ id: memory.read(this.name, null) })));
    if (shipped) this.show(shipped.report);
    if (ended && !this.started) this.offerAgain();
  }

  /** A measurement ends with the page that asked for it; the server keeps the texts that the target had written. */
  offerAgain() {
    memoryOfTab.write(this.going, false);
    this.status.say("The measurement in progress ended when this page was left or reloaded. "
      + "Its texts are kept: if you start it again with the same settings, only the rest is measured again.");
    this.status.offer("Start again", () => this.start(), whenFilledIn(this.name));
  }

  /** Presses Run; while its form is folded, the button is not there. */
  async start() {
    const panel = this.element.closest("[role=tabpanel]"), run = () => panel.querySelector(".sp-run-here");
    if (!run()) panel.querySelector(".sp-settings > button").click();
    (await whenDrawn(run)).click();
  }

  receive(text) {
    this.started = true;
    for (const event of JSON.parse(text).events) {
      this.status.hear(event);
      if (["queued", "progress"].includes(event.kind)) memoryOfTab.write(this.going, true);
      else if (["finished", "cancelled", "failed"].includes(event.kind)) memoryOfTab.write(this.going, false);
      if (event.kind === "finished") this.show(event.data.report);
    }
  }

  show(report) {
    this.drawings = [];
    this.id = report.id ?? null;
    if (report.id) memory.write(this.name, report.id);
    this.content.replaceChildren(el("p", "sp-note sp-stamp", report.stamp), this.takeAlong(report.papers));
    const answers = el("div", "sp-answers");
    const nodes = report.sections.map((one) => [one.kind, this.section(one)]);
    answers.append(...nodes.filter(([kind]) => kind === "answer").map(([, node]) => node));
    this.content.append(answers, ...nodes.filter(([kind]) => kind !== "answer").map(([, node]) => node));
    this.shareStops();
    this.drawAll();
  }

  /** A word that comes again can still be tapped, but is no further Tab stop. */
  shareStops() {
    const seen = new Set();
    for (const term of this.content.querySelectorAll(".sd-term")) {
      term.tabIndex = seen.has(term.sdTerm) ? -1 : 0;
      seen.add(term.sdTerm);
    }
  }

  takeAlong(papers) {
    const note = aria(el("span", "sp-note"), { role: "status" });
    const kinds = [["html", "Page (HTML)"], ["csv", "Tables (CSV)"], ["json", "Result (JSON)"]];
    if (papers) kinds.push(["papers", "Papers' data sets (JSON)"]);
    const say = (text) => { note.textContent = text; };
    const take = (kind) => orSay(say, async () => say(save(await ask(this.server.take({ kind, id: this.id })))));
    const back = this.id ? button("Back to the shipped results", () => this.forget()) : null;
    return el("div", "sp-take", el("span", "sp-label", "Save"), ...kinds.map(([kind, text]) => button(text, () => take(kind))), back, note);
  }

  forget() {
    memory.write(this.name, null);
    this.open();
  }

  /** The answers stand side by side; what is folded draws its figures when it is opened, for until then it has no width. */
  section({ title, sentences, tables, drawings, code: snippets, kind }) {
    const drawn = drawings.map((about) => new Drawing(about)), folded = kind === "folded";
    this.drawings.push(...drawn);
    const node = el(folded ? "details" : "section", folded ? "sp-fold" : kind === "answer" ? "sp-answer" : "",
      folded ? el("summary", "", title) : el("h2", "", title), ...sentences.map((text) => el("p", "", ...termed(text))),
      ...snippets.map(code), ...tables.map(sortableTable), ...drawn.map((one) => one.node));
    if (folded) node.addEventListener("toggle", () => this.drawAll());
    return node;
  }

  async drawAll() {
    const seen = this.drawings.filter((one) => !one.node.closest("details:not([open])"));
    if (!seen.length) return;
    await orSay((text) => this.status.say(text, "fault"), async () => {
      const library = await load();
      for (const one of seen) await one.draw(library);
    });
  }
}

export function report(element, props, watch, server) {
  const shown = new Report(element, server);
  element.speculoscope = shown;
  watch("value", () => { if (props.value) shown.receive(props.value); });
}
