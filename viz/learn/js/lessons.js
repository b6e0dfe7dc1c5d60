/* Lessons: the texts of lessons/*.json, next to the run that they describe. */

import { aria, button, el, keepingFocus, keyed } from "../../core/js/dom.js";
import { memory, opener, save } from "../../core/js/files.js";
import { clamp, count } from "../../core/js/format.js";
import { FACTS, chanceAt, factsOf, fill, iterationFacts } from "./facts.js";
import { KINDS, exampleOf } from "./kinds.js";
import { figureOf, goalsOf, handout, printNode, teachersPage } from "./papers.js";
import { Question } from "./questions.js";

const LESSON_FILE = { most: 200_000, limit: "200 kB, the limit for a lesson" };
const LANE_WORDS = {
  fast: (model) => model.lanes.find((lane) => lane.name === factsOf(model).fast_name),
  slow: (model) => model.lanes.find((lane) => lane.name === factsOf(model).slow_name),
  wrong: (model) => model.alwaysWrong(5),
  plain: (model) => model.plain,
};

export class Lessons {
  constructor(learn) {
    Object.assign(this, { learn, lesson: null, at: 0, results: new Map(), away: null });
    this.node = aria(el("section"), { label: "Lessons" });
    this.progress = memory.read("learn-progress", {});
  }

  get model() { return this.learn.model; }
  get step() { return this.lesson.steps[this.at]; }
  get showsSteps() { return this.step.show?.view === "steps"; }

  // -------------------------------------------------------------- which lesson

  async openId(id, step = 0) {
    this.node.replaceChildren(el("p", "sl-empty", "Opening the lesson…"));
    const lesson = this.learn.index.lessons.find((one) => one.id === id);
    if (!lesson) {
      if (!this.model) await this.learn.openFirst();
      this.leave();
      this.learn.say(`There is no lesson “${String(id).slice(0, 60)}” here. Choose one below, or open its file.`, true);
      return;
    }
    await this.open(lesson, step);
  }

  async open(lesson, step = 0) {
    this.node.replaceChildren(el("p", "sl-empty", "Opening the lesson…"));
    this.lesson = lesson;
    this.ended = false;
    this.results.clear();
    this.question = null;
    await this.toStep(clamp(step, 0, lesson.steps.length - 1));
  }

  leave() { this.lesson = null; this.refresh(); }

  /** The recording for a step; id null: the run on screen. */
  runFor(step, lesson = this.lesson) {
    const wanted = step.recording || lesson.recording, { index, payloads, exported } = this.learn;
    if (payloads.has(wanted) || index.recordings.some(({ id }) => id === wanted)) return { id: wanted };
    if (exported) return { id: null };
    const id = this.model ? null : index.recordings[0]?.id || null;
    return { id, note: `This lesson was written for the recording “${wanted}”. It is not here, so the run on screen is used.` };
  }

  modelFor(step, lesson) { return this.learn.modelOf(this.runFor(step, lesson).id); }

  async toStep(at) {
    Object.assign(this, { at, ended: false });
    const { lesson, step } = this, { id, note } = this.runFor(step);
    if (id) await this.learn.openId(id);
    if (this.lesson !== lesson || this.step !== step) return; // the reader has gone on, or has left
    this.refresh();
    if (note) this.learn.say(note);
    this.mark("read");
  }

  move(direction) {
    const at = this.ended && direction < 0 ? this.at : this.at + direction; // from the end back to the last step
    if (!this.lesson || at < 0) return;
    this.ended = at >= this.lesson.steps.length;
    if (this.ended) this.refresh(); else this.toStep(at);
  }

  /** A step is done when it was read, answered or stepped through, as its file says. */
  mark(what) {
    if (this.step.done !== what) return;
    const done = new Set(this.progress[this.lesson.id] || []);
    done.add(this.at);
    this.progress[this.lesson.id] = [...done];
    memory.write("learn-progress", this.progress);
    if (this.dots) keepingFocus(this.node, () => this.dots.replaceWith(this.dots = this.buildDots()));
  }

  moved(steps) {
    if (!this.lesson || this.ended || !this.showsSteps || this.placing) return;
    if (["cost", "own"].includes(steps.steps[steps.at.step].kind)) this.mark("stepped");
    if (this.away) this.away.hidden = steps.lane === this.shown.lane && steps.at.iteration === this.shown.iteration;
  }

  key(event) {
    if (!this.lesson) return false;
    const acts = { PageDown: () => this.move(1), PageUp: () => this.move(-1), ".": () => this.move(1), ",": () => this.move(-1),
      a: () => this.question?.reveal() };
    if (this.learn.presenting) Object.assign(acts, { ArrowRight: () => this.onward(1), ArrowLeft: () => this.onward(-1), " ": () => this.onward(1) });
    const answer = /^[1-6]$/.test(event.key) && !this.question?.hidden && this.question?.answers[event.key - 1];
    if (answer) acts[event.key] = () => this.question.choose(answer.text);
    if (!acts[event.key]) return Boolean(this.model && this.showsSteps && !this.ended && this.learn.places.steps.key(event));
    acts[event.key]();
    return true;
  }

  /** For presenters, one key goes through the iteration first and then to the next step of the lesson. */
  onward(direction) {
    if (!this.lesson) return;
    const { steps } = this.learn.places, staged = this.showsSteps && !this.ended && steps.lane;
    const last = staged && steps.at.step === steps.steps.length - 1;
    if (staged && direction > 0 && !last) steps.move(1);
    else if (staged && direction < 0 && steps.at.step > 0) steps.move(-1);
    else this.move(direction);
  }

  // -------------------------------------------------------------- drawing

  refresh() {
    if (this.learn.place !== "lessons") return;
    this.question = null;
    keepingFocus(this.node, () => this.node.replaceChildren(!this.lesson ? this.shelf() : this.ended ? this.end() : this.page()));
    if (this.node.getBoundingClientRect().top < 0) this.node.scrollIntoView({ block: "start" }); // the new step begins at its title
  }

  shelf() {
    const cards = this.learn.index.lessons.map((lesson) => {
      const done = this.progress[lesson.id] || [], total = lesson.steps.length, next = lesson.steps.findIndex((_, at) => !done.includes(at)); // -1: all are done
      const state = next < 0 ? "done" : done.length ? `${done.length} of ${total} steps done` : `${total} steps`;
      const open = button(done.length && next >= 0 ? "Continue" : "Start", () => this.learn.attempt(() => this.open(lesson, Math.max(0, next))),
        { cls: "sd-button sl-main", title: `${lesson.title}: open` });
      return el("article", "sl-card", el("h2", "", lesson.title), el("p", "", lesson.about), el("p", "sd-mute", `About ${lesson.minutes} minutes · ${state}`), open);
    });
    const box = el("div", "sl-shelf", el("p", "sl-intro", "A small model, the draft, guesses ahead; a big one, the target, checks all guesses in one pass. Each lesson shows it on a real run and asks about it."),
      el("div", "sl-cards", ...cards), ...(this.learn.index.faults || []).map((fault) => el("p", "sl-fault", fault)));
    if (this.learn.exported) return box;
    const open = opener("Open a lesson file…", LESSON_FILE, (name, read) => this.openFile(read));
    box.append(el("p", "sl-bar", button("For teachers: goals, answers, a path", () => this.learn.attempt(() => this.showTeachers()))));
    box.append(el("p", "sl-note", ...open, " A lesson is one JSON file and needs no code; the folder lessons has examples."));
    return box;
  }

  async showTeachers() {
    const paper = () => teachersPage(this, this.learn.index.lessons);
    this.node.replaceChildren(el("p", "sl-empty", "Reading the lessons' runs…"));
    const page = await paper();
    if (this.lesson) return; // the reader has opened one meanwhile
    this.node.replaceChildren(el("p", "sl-bar", button("All lessons", () => this.leave()), button("Print", () => this.learn.attempt(async () => printNode(await paper())))), page);
  }

  openFile(read) {
    return this.learn.attempt(async () => {
      const { lesson } = await this.learn.ask("learn_lesson", { text: await read() });
      this.learn.index.lessons = [...this.learn.index.lessons.filter((one) => one.id !== lesson.id), lesson];
      await this.open(lesson);
    });
  }

  buildDots() {
    const done = new Set(this.progress[this.lesson.id] || []), dots = el("div", "sl-dots");
    this.lesson.steps.forEach((step, i) => {
      const dot = keyed(`step ${i}`, button(String(i + 1), () => this.toStep(i), { cls: `sl-dot${done.has(i) ? " sl-done" : ""}`, title: `Step ${i + 1}: ${step.title}${done.has(i) ? " (done)" : ""}` }));
      if (i === this.at) aria(dot, { current: "step" });
      dots.append(dot);
    });
    return dots;
  }

  page() {
    this.missed = "";
    const { lesson, step } = this, stage = this.stage(), facts = this.facts();
    this.dots = this.buildDots();
    const last = this.at === lesson.steps.length - 1;
    const text = el("div", "sl-lesson-text", el("p", "sl-where", `${lesson.title} · step ${this.at + 1} of ${lesson.steps.length}`), el("h2", "", step.title),
      ...step.text.map((one) => el("p", "", fill(one, facts))));
    const missing = step.needs.filter((name) => facts[name] == null);
    if (missing.length) text.append(el("p", "sl-note sl-missing", `This run does not contain what this step shows (${missing.map((name) => FACTS[name][0]).join("; ")}). Choose another run above, or continue.`));
    if (this.missed) text.append(el("p", "sl-note sl-missing", this.missed));
    if (stage && this.showsSteps) text.append(this.away = this.buildAway());
    const rest = el("div", "sl-lesson-rest", step.question ? this.ask(step.question, facts) : null);
    rest.append(el("div", "sl-bar sl-turn", keyed("lesson back", button("← Back", () => this.move(-1), { title: "Previous step of the lesson (page up)" })),
      keyed("lesson on", button(last ? "Finish" : "Next step →", () => this.move(1), { cls: "sd-button sl-main", title: "Next step of the lesson (page down)" }))), this.dots, this.tools());
    return el("div", `sl-lesson${stage ? "" : " sl-alone"}`, text, stage ? el("div", "sl-stage", stage) : null, rest);
  }

  /** A lesson's text is about one iteration; from another one that the reader has gone to, this leads back. */
  buildAway() {
    const { lane, iteration } = this.shown, { steps } = this.learn.places;
    const node = el("p", "sl-note", `This step is about iteration ${iteration + 1} of ${lane.name}; another one is on screen. `, button("Back to it", () => steps.goTo(this.shown)));
    node.hidden = true;
    return node;
  }

  /** After the last step: the score, what was learned, what comes next. */
  end() {
    const { lesson, results } = this, asked = lesson.steps.filter((step) => step.question).length, { lessons } = this.learn.index;
    const missed = [...results].filter(([, { first }]) => !first), next = lessons[lessons.findIndex(({ id }) => id === lesson.id) + 1];
    const done = this.progress[lesson.id] || [], left = [...lesson.steps.keys()].filter((at) => !done.includes(at));
    const stepsOf = (places) => el("ul", "sl-again", ...places.map((at) => el("li", "", button(`Step ${at + 1}: ${lesson.steps[at].title}`, () => this.toStep(at)))));
    const score = `You answered ${results.size} of ${count(asked, "question")}${results.size ? `, ${results.size - missed.length} of them correctly at the first try` : ""}.`;
    return el("div", "sl-card sl-end", el("p", "sl-where", lesson.title), el("h2", "", left.length ? "The end of this lesson" : "You have finished this lesson"), asked ? el("p", "", score) : null,
      ...(missed.length ? [el("p", "", "Worth another look:"), stepsOf(missed.map(([at]) => at))] : []),
      ...(left.length ? [el("p", "", "Not done yet (read, answer or step through each):"), stepsOf(left)] : []),
      lesson.goals.length ? el("h3", "", left.length ? "What it teaches" : "You can now") : null, goalsOf(lesson), el("h3", "", "What next"),
      el("p", "sl-bar", next ? keyed("lesson on", button(`${next.title} (${next.minutes} minutes)`, () => this.learn.attempt(() => this.open(next)), { cls: "sd-button sl-main" })) : null,
        button("Be the policy", () => this.learn.choose("play")), button("All lessons", () => this.leave())));
  }

  tools() {
    const save = button("Save as one HTML file", () => this.save(), { title: "The lesson and its runs in one file that needs no network" });
    return el("p", "sl-tools", button("All lessons", () => this.leave()), button("Print a handout", () => this.learn.attempt(async () => printNode(await handout(this, this.lesson)))), this.learn.exported ? null : save);
  }

  ask(question, facts) {
    const key = `${this.lesson.id}/${this.at}`;
    this.question = new Question(question, facts, key, {
      hidden: Boolean(this.learn.presenting), chosen: this.results.get(this.at)?.text ?? null,
      answered: (text, right) => { this.results.set(this.at, { text, first: this.results.get(this.at)?.first ?? right }); this.mark("answered"); },
    });
    return this.question.node;
  }

  facts() {
    const { lane, at } = this.learn.places.steps;
    return { ...this.learn.known, ...(this.showsSteps && lane ? iterationFacts(this.model, lane, at.iteration) : {}) };
  }

  /** What is shown next to the text. */
  stage() {
    const { show } = this.step, figure = show && figureOf(show, this.model);
    if (figure || !show || !this.model) return figure;
    if (show.view === "whatif") {
      const room = this.learn.places.whatif;
      if (room.model !== this.model) room.open(this.model);
      room.preset(show.preset);
      return room.node;
    }
    this.placing = true;
    const { lane, found, iteration } = this.placeOf(show, this.model), { steps } = this.learn.places;
    const another = lane && !lane.simulated && lane.lane !== show.lane && !LANE_WORDS[show.lane];
    this.missed = [
      another && `The lane ${this.model.nameOf(show.lane)} did not run here and cannot be simulated in the browser. ${lane.name} is shown instead.`,
      found < 0 && `This run has no such iteration (${KINDS[show.find].label}). Its first iteration is shown.`,
    ].filter(Boolean).join(" ");
    steps.hides = show.hide;
    steps.goTo({ lane, iteration, step: show.at === "chance" ? { verdictOn: chanceAt } : show.at || 0 });
    this.placing = false;
    this.shown = { lane: steps.lane, iteration: steps.at.iteration };
    steps.node.dataset.highlight = this.step.highlight.join(" ");
    return steps.node;
  }

  /** The lane and the iteration of a run that a step shows; found: -1 where none is of the kind that it looks for. */
  placeOf({ lane: text, find, iteration }, model) {
    const lane = this.laneFor(text, model), found = find && lane ? exampleOf(model, lane, find) : 0;
    return { lane, found, iteration: clamp(Math.max(0, found) + iteration, 0, (lane?.iterations.length ?? 1) - 1) };
  }

  laneFor(text, model) {
    if (LANE_WORDS[text]) return LANE_WORDS[text](model) || model.lanes[0];
    const measured = model.lanes.find((lane) => lane.lane === text);
    return measured || model.simulatedLane(text) || model.lanes.find((lane) => lane.policy === "static") || model.lanes[model.lanes.length - 1];
  }

  // -------------------------------------------------------------- saving and printing

  save() {
    return this.learn.attempt(async () => {
      const { name, text } = await this.learn.ask("learn_export", { lesson: JSON.stringify(this.lesson), run: this.model.id });
      this.learn.say(save({ name, mime: "text/html", text }));
    });
  }
}
