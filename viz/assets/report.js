/* Evaluation and Drafts tabs: sentences, tables, figures and code from plain data, filled in by textContent. */
(function (global) {
  "use strict";

  const { ask, el, button, save, Status } = global.SpeculoscopePage;
  const { termed, explainTerms } = global.Speculoscope;

  function say(tag, cls, text) {
    const node = el(tag, cls);
    node.append(...termed(text));
    return node;
  }

  /** Cells are [text, number or null]; a column with any number is one of figures. */
  function table({ title, note, columns, rows }) {
    const node = el("table", "sp-table"), head = el("tr"), body = el("tbody"), top = el("thead");
    const figures = columns.map((_, i) => rows.some((cells) => cells[i][1] !== null));
    const lines = rows.map((cells) => {
      const row = el("tr");
      cells.forEach(([text], i) => {
        const cell = i ? el("td", figures[i] ? "" : "sp-words", text) : say("th", "sp-words", text);
        if (!i) cell.scope = "row";
        row.append(cell);
      });
      return row;
    });
    const heads = columns.map((text, i) => {
      const cell = say("th", figures[i] ? "" : "sp-words", text);
      cell.scope = "col";
      if (rows.length > 1) cell.append(" ", sorter(text, () => sortBy(i)));
      return cell;
    });
    /** Figures: largest first, then smallest first, then as it came; words the other way round. Empty cells are last. */
    function sortBy(i) {
      const turns = figures[i] ? ["descending", "ascending", null] : ["ascending", "descending", null];
      const next = turns[(turns.indexOf(heads[i].getAttribute("aria-sort")) + 1) % 3];
      for (const cell of heads) cell.removeAttribute("aria-sort");
      if (next) heads[i].setAttribute("aria-sort", next);
      const key = (n) => (figures[i] ? rows[n][i][1] : rows[n][i][0] || null), sign = next === "ascending" ? 1 : -1;
      const compare = (m, n) => (key(m) === null || key(n) === null ? (key(m) === null) - (key(n) === null)
        : sign * (figures[i] ? key(m) - key(n) : key(m).localeCompare(key(n))));
      const order = lines.map((_, n) => n);
      body.append(...(next ? order.sort(compare) : order).map((n) => lines[n]));
    }
    head.append(...heads);
    body.append(...lines);
    top.append(head);
    node.append(top, body);
    const holder = el("div", "sp-scroll");
    holder.tabIndex = 0;
    holder.setAttribute("role", "group");
    holder.setAttribute("aria-label", title);
    holder.append(node);
    const whole = el("div", "sp-tabled");
    whole.append(el("h3", "", title), holder, say("p", "sp-note", note));
    return whole;
  }

  function sorter(column, sort) {
    const node = button("sp-sort", "", sort);
    node.setAttribute("aria-label", `Sort by ${column}`);
    return node;
  }

  function code([title, text]) {
    const node = el("div", "sp-snippet"), head = el("p", "sp-note", title), note = el("span", "sp-note");
    note.setAttribute("role", "status");
    const copy = button("sp-button", "Copy", async () => {
      try {
        await navigator.clipboard.writeText(text);
        note.textContent = "Copied.";
      } catch {
        note.textContent = "Select the text and copy it.";
      }
    });
    const block = el("pre", "sp-code", text);
    block.tabIndex = 0;
    block.setAttribute("aria-label", title);
    head.append(" ", copy, " ", note);
    node.append(head, block);
    return node;
  }

  class Report {
    constructor(element, server) {
      this.status = new Status(element.querySelector(".sp-status"));
      this.content = element.querySelector(".sp-content");
      Object.assign(this, { server, element, drawings: [], memory: `speculoscope-${element.closest("[id^='report-']").id}` });
      this.going = `${this.memory}-going`; // in the tab's own memory: a measurement is under way
      explainTerms(element);
      global.SpeculoscopePlots.onTheme(() => this.drawAll());
      this.started = false; // on this page, a measurement
      this.open(sessionStorage.getItem(this.going) !== null);
    }

    /** Shows this visitor's last measurement if the server still has it, else the shipped results. */
    async open(ended = false) { // ended: by a reload
      try {
        this.show((await ask(this.server.shipped({ id: localStorage.getItem(this.memory) }))).report);
      } catch (error) {
        this.status.say(error.message);
      }
      if (ended && !this.started) this.offerAgain();
    }

    /** A measurement ends with the page that asked for it; the server keeps the texts that the target had written. */
    offerAgain() {
      sessionStorage.removeItem(this.going);
      this.status.say("The measurement that was under way ended when this page was left or reloaded. "
        + "The texts that it had written are kept: started again with the same settings, it measures the rest anew.");
      this.status.offer("Start again", () => this.element.closest("[role=tabpanel]").querySelector(".sp-run-here").click());
    }

    receive(text) {
      this.started = true;
      for (const event of JSON.parse(text).events) {
        this.status.hear(event);
        if (["queued", "progress"].includes(event.kind)) sessionStorage.setItem(this.going, "yes");
        else if (["finished", "cancelled", "failed"].includes(event.kind)) sessionStorage.removeItem(this.going);
        if (event.kind === "finished") this.show(event.data.report);
      }
    }

    show(report) {
      this.drawings = [];
      this.id = report.id ?? null;
      if (report.id) localStorage.setItem(this.memory, report.id);
      this.content.replaceChildren(el("p", "sp-note sp-stamp", report.stamp), this.takeAlong(report.papers), ...report.sections.map((one) => this.section(one)));
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
      const row = el("div", "sp-take"), note = el("span", "sp-note");
      note.setAttribute("role", "status");
      row.append(el("span", "sp-label", "Save"));
      const kinds = [["html", "Page (HTML)"], ["csv", "Tables (CSV)"], ["json", "Result (JSON)"]];
      if (papers) kinds.push(["papers", "Papers' data sets (JSON)"]);
      for (const [kind, text] of kinds) {
        row.append(button("sp-button", text, async () => {
          try {
            note.textContent = save(await ask(this.server.take({ kind, id: this.id })));
          } catch (error) {
            note.textContent = error.message;
          }
        }));
      }
      if (this.id) row.append(button("sp-button", "Back to the shipped results", () => this.forget()));
      row.append(note);
      return row;
    }

    forget() {
      localStorage.removeItem(this.memory);
      this.open();
    }

    section({ title, sentences, tables, drawings, code: snippets }) {
      const node = el("section");
      node.append(el("h2", "", title), ...sentences.map((text) => say("p", "", text)));
      node.append(...snippets.map(code), ...tables.map(table));
      for (const about of drawings) {
        const drawing = new global.SpeculoscopePlots.Drawing(about);
        this.drawings.push(drawing);
        node.append(drawing.node);
      }
      return node;
    }

    async drawAll() {
      if (!this.drawings.length) return;
      try {
        const library = await global.SpeculoscopePlots.load();
        for (const one of this.drawings) await one.draw(library);
      } catch (error) {
        this.status.say(error.message, "fault");
      }
    }
  }

  global.SpeculoscopePage.report = (element, props, watch, server) => {
    const report = new Report(element, server);
    element.speculoscope = report;
    watch("value", () => { if (props.value) report.receive(props.value); });
  };
})(window);
