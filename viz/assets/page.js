/* The page around the player: status line, saving and opening of runs, and the connection between player and plots.
 *
 * Gradio renders only static templates; texts of models and users are set with textContent.
 */
(function (global) {
  "use strict";

  const RUN_ID = /^[A-Za-z0-9_-]{1,64}$/;

  const { el } = global.Speculoscope, button = (cls, text, act) => global.Speculoscope.button(text, act, { cls });

  /** Calls the server; refusals ({error: sentence}) and broken connections become exceptions with a sentence. */
  async function ask(promise) {
    let answer;
    try {
      answer = await promise;
    } catch (error) {
      throw new Error("The page cannot reach its server. Try again in a moment.", { cause: error });
    }
    if (answer && answer.error) throw new Error(answer.error);
    return answer;
  }

  // ---------------------------------------------------------------- the status line

  class Status {
    constructor(node) {
      this.node = node;
      this.text = el("span", "sp-status-text");
      this.bar = el("progress", "sp-bar");
      this.bar.max = 1;
      this.bar.hidden = true;
      this.bar.setAttribute("aria-label", "Progress");
      node.replaceChildren(this.text, this.bar);
      node.hidden = true;
    }

    say(text, kind = "", fraction = null) {
      this.offered?.remove();
      this.node.hidden = !text;
      this.node.className = `sp-status ${kind ? "sp-" + kind : ""}`;
      if (this.text.textContent !== text) this.text.textContent = text;
      this.bar.hidden = fraction == null;
      if (fraction != null) this.bar.value = fraction;
    }

    /** A button beside what was said, until something else is said. */
    offer(text, act) {
      this.offered = button("sp-button", text, act);
      this.node.append(this.offered);
    }

    /** Handles one event of a long job. */
    hear({ kind, data }) {
      if (kind === "queued") this.say(placeInQueue(data.place), "busy");
      if (kind === "progress") this.say(data.message || data.stage, "busy", data.fraction);
      if (kind === "finished") this.say("");
      if (kind === "cancelled") this.say("Stopped.");
      if (kind === "failed") this.say(data.message, "fault");
    }
  }

  function placeInQueue(place) {
    if (!place) return "Starting.";
    return place === 1 ? "Waiting: one run is ahead of yours." : `Waiting: ${place} runs are ahead of yours.`;
  }

  // ---------------------------------------------------------------- the form

  /** Below the prompt, when Enter has added a line break: what Enter does, and its effect on the model. */
  function hint(text, goesOn, typed) {
    const box = document.getElementById("prompt");
    if (!box) return;
    const all = text || "", kept = all.trimEnd();
    const fits = kept && all.includes("\n", kept.length) && !goesOn;
    let node = box.querySelector(".sp-hint");
    if (!node && fits && typed) {
      node = el("p", "speculoscope sp-hint", "Enter adds a line break, after which the model may end its text immediately; Shift+Enter runs. ");
      node.setAttribute("role", "status");
      node.append(button("sp-button", "Remove it", () => trimEnd(box.querySelector("textarea"))));
      box.append(node);
    }
    if (node) node.hidden = !fits || (node.hidden && !typed);
  }

  function trimEnd(field) {
    field.value = field.value.trimEnd();
    field.dispatchEvent(new Event("input", { bubbles: true }));
    field.focus();
  }

  /** On phones the form is collapsed, so that the race is on the first screen. */
  document.addEventListener("click", (event) => {
    const fold = event.target.closest && event.target.closest(".sp-unfold");
    if (fold) fold.setAttribute("aria-expanded", String(fold.closest(".sp-form").classList.toggle("sp-open")));
  });

  /** Gradio opens a list at any key in its field, at Tab after the focus has gone: the list would stay, over the page. */
  document.addEventListener("keydown", (event) => {
    if (event.key === "Tab" && event.target.getAttribute("role") === "combobox") event.stopPropagation();
  }, true);

  // ---------------------------------------------------------------- the race

  /** Whether a link's settings differ from those of the page's first run. */
  const asksForAnother = (query) => query.has("prompt") || query.has("lanes");

  class Race {
    constructor(element, props, server, trigger) {
      Object.assign(this, { server, trigger });
      this.status = new Status(element.querySelector(".sp-status"));
      this.run = null; // the id of the finished run on screen
      this.t = 0;
      this.early = global.SpeculoscopePage.early.takeOver(element.querySelector(".sp-player"));
      this.root = element.querySelector(".sp-player");
      this.player = this.early ? this.early.player : global.Speculoscope.mount(this.root, { globalKeys: true });
      this.player.options.details = (lane, it, at) => this.details(lane, it, at);
      this.player.options.explain = (where) => { if (this.run) global.SpeculoscopePage.explain({ run: this.run, ...where }); };
      this.root.addEventListener("sd:position", (event) => { this.t = event.detail.t; });
      this.take = new TakeAlong(element.querySelector(".sp-take"), this);
      this.plots = new global.SpeculoscopePlots.Plots(element.querySelector(".sp-plots"), {
        fetch: (run) => ask(server.figures({ run })),
        player: this.root,
        stands: () => this.player.t >= this.player.total,
      });
      this.queue = Promise.resolve();
      this.begin(props.value);
    }

    /** The first run on screen: the link's run, else the recorded one of the page. */
    begin(value) {
      const query = new URLSearchParams(global.location.search);
      const run = query.has("learn") ? null : query.get("run"), t = parseFloat(query.get("t"));
      if (this.early) {
        this.run = this.early.run;
        this.shown();
        return;
      }
      if (run == null) {
        if (asksForAnother(query)) {
          this.root.hidden = true;  // until there is a run to show: an unrelated one must not play meanwhile
          this.status.say("The form is filled in from this link: press Run.");
        } else if (value) this.receive(value);
        else this.status.say("There is no recorded run here: press Run to make one.");
        return;
      }
      this.open(run, Number.isFinite(t) ? t : null).catch((error) => {
        if (value) this.receive(value);
        this.queue = this.queue.then(() => this.status.say(error.message, "fault"));
      });
    }

    async open(run, t = null) {
      if (!RUN_ID.test(run)) throw new Error("This link does not name a run: names consist of letters, digits, - and _.");
      const { payload } = await ask(this.server.open_run({ run }));
      this.show(payload);
      if (t != null) { this.player.pause(); this.player.seek(Math.max(0, t)); }
    }

    show(payload) {
      this.root.hidden = false;
      this.run = payload.id;
      this.status.say("");
      this.player.load(payload);
      this.shown();
    }

    shown() {
      this.take.offer(this.run);
      this.plots.show(this.run);
    }

    /** Handles a delta from the server, as JSON text. Deltas are applied in order; missing ones are fetched. */
    receive(text) {
      this.queue = this.queue.then(() => this.accept(JSON.parse(text))).catch((error) => {
        console.error(error);
        this.status.say(error.message, "fault");
      });
    }

    /** A delta has the events from number ``seq`` to before ``next``; those between the last one and it were missed. */
    async accept({ run, seq, next, events }) {
      if (run !== this.live) Object.assign(this, { live: run, wanted: 0, started: false });
      if (next <= this.wanted) return;
      if (seq > this.wanted) {
        const missed = await ask(this.server.missed({ run, first: this.wanted, after: seq }));
        events = missed.events.concat(events);
      }
      this.wanted = next;
      for (const event of events) this.hear(event);
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
      if (this.run == null) {
        this.take.refuse();
        this.plots.abandon();
      }
      else if (this.run === this.live) this.shown();
    }

    startLive() {
      this.root.hidden = false;
      if (global.matchMedia("(max-width: 760px)").matches) this.root.scrollIntoView({ block: "start" });
      this.started = true;
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

  /** Saves a file to the visitor's downloads; returns a sentence that says so. */
  function save({ name, mime, text }) {
    const link = el("a");
    link.href = URL.createObjectURL(new Blob([text], { type: mime }));
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
    return `${name} is in your downloads.`;
  }

  class TakeAlong {
    constructor(node, race) {
      this.race = race;
      this.note = el("span", "sp-note");
      this.note.setAttribute("role", "status");
      this.picker = el("input", "sp-file");
      Object.assign(this.picker, { type: "file", accept: ".json,application/json", hidden: true });
      this.picker.addEventListener("change", () => this.read(this.picker.files[0]));
      const keep = (kind) => () => this.fetch(kind, (file) => { this.shelf.replaceChildren(); this.note.textContent = save(file); });
      const copy = (kind) => () => this.fetch(kind, (file) => this.copy(file));
      this.buttons = [
        button("sp-button", "Run file (JSON)", keep("json")),
        button("sp-button", "Table (CSV)", keep("csv")),
        button("sp-button", "Page (HTML)", keep("html")),
        button("sp-button", "Copy as command", copy("command")),
        button("sp-button", "Copy link", copy("link")),
      ];
      const open = button("sp-button", "Open a run file…", () => this.picker.click());
      this.shelf = el("div", "sp-shelf");
      node.replaceChildren(el("span", "sp-label", "Save or share"), ...this.buttons, open, this.picker, this.note, this.shelf);
      this.offer(null);
    }

    /** What was copied stays until another run is on screen, for the last timings change neither command nor link; the
     * note on a saved file goes, since that file lacks them. */
    offer(run) {
      if (run !== this.run) this.shelf.replaceChildren();
      if (!this.shelf.children.length) this.note.textContent = "";
      this.run = run;
      for (const one of this.buttons) one.disabled = run == null;
    }

    refuse() {
      this.note.textContent = "A run that was stopped or failed cannot be saved.";
    }

    async fetch(kind, use) {
      try {
        use(await ask(this.race.server.take({ run: this.run, kind, t: this.race.t })));
      } catch (error) {
        this.note.textContent = error.message;
      }
    }

    /** Copies to the clipboard; the text is also shown, since the browser may refuse. */
    async copy({ name, text }) {
      const full = name === "link" ? `${global.location.origin}${global.location.pathname}?${text}` : text;
      const field = el("textarea", "sp-copied", full);
      field.readOnly = true;
      field.rows = Math.min(4, 1 + Math.floor(full.length / 110));
      field.setAttribute("aria-label", name === "link" ? "Link" : "Command");
      field.addEventListener("focus", () => field.select());
      this.shelf.replaceChildren(field);
      try {
        await navigator.clipboard.writeText(full);
        this.note.textContent = `The ${name} is in your clipboard.`;
      } catch {
        field.select();
        this.note.textContent = `Copy the ${name} from here:`;
      }
    }

    async read(file) {
      this.picker.value = "";
      if (!file) return;
      this.note.textContent = `Reading ${file.name}…`;
      try {
        if (file.size > 8 * 2 ** 20) throw new Error(`${file.name} is larger than 8 MB, the limit of this page.`);
        const { payload } = await ask(this.race.server.open_file({ text: await file.text() }));
        this.race.show(payload);
        this.race.trigger("select", { run: payload.id }); // fills in the form
        this.note.textContent = `${file.name} is on screen.`;
      } catch (error) {
        this.note.textContent = error.message;
      }
    }
  }

  global.SpeculoscopePage = {
    ask, el, button, hint, asksForAnother, save, Status,
    race(element, props, watch, server, trigger) {
      document.head.append(document.getElementById("speculoscope-style")); // after Gradio's styles, to override them
      const race = new Race(element, props, server, trigger);
      watch("value", () => { if (props.value) race.receive(props.value); });
      element.speculoscope = race;
    },
  };
})(window);
