/* What is read apart from the screen, too: a lesson's handout, the teacher's page with goals and answers, the glossary. */

import { aria, button, definitions, el, table } from "../../core/js/dom.js";
import { pictureFigure, tokenBox } from "../../core/js/tokens.js";
import { treeOf } from "../../core/js/tree.js";
import { FATES, GLOSSARY, MORE_WORDS } from "../../core/js/words.js";
import { checksChart, lanesChart } from "./charts.js";
import { factsOf, fill, iterationFacts } from "./facts.js";
import { answersOf } from "./questions.js";
import { Calculator, WhatIf } from "./whatif.js";

/** Print only one node. */
export function printNode(node) {
  const sheet = el("div", "speculoscope sl-print", node);
  document.body.append(sheet);
  document.body.classList.add("sl-printing");
  const done = () => { document.body.classList.remove("sl-printing"); sheet.remove(); };
  window.addEventListener("afterprint", done, { once: true });
  window.print();
}

/** All steps on their runs with their questions, and the answers at the end, for printing. */
export async function handout(lessons, lesson) {
  const models = [], page = el("div", "sl-handout", el("h1", "", lesson.title));
  for (const [i, step] of lesson.steps.entries()) {
    const model = await lessons.modelFor(step, lesson), part = printedStep(lessons, lesson, i, model);
    if (model && !models.includes(model)) {
      models.push(model);
      part.prepend(el("p", "", `${models.length > 1 ? "From here on, another run is shown. " : ""}${model.sentence}`), el("p", "sd-mute", model.badge.text));
    }
    page.append(part);
  }
  const answers = await answerKey(lessons, lesson);
  if (answers.children.length) page.append(el("section", "sl-solutions", el("h2", "", "Answers"), answers));
  models.forEach((model, i) => page.append(el("section", "", el("h2", "", `How the ${["", "second ", "third "][i] ?? "next "}run was made`), table(["what", "value"], model.settings))));
  return page;
}

/** The lane and the iteration of a step on a run, and the facts that its texts name. */
function shownBy(lessons, { show }, model) {
  const { lane, iteration } = model && show?.view === "steps" ? lessons.placeOf(show, model) : {};
  return { lane, iteration, facts: { ...(model ? factsOf(model) : {}), ...iterationFacts(model, lane, iteration) } };
}

function printedStep(lessons, lesson, i, model) {
  const step = lesson.steps[i], { lane, iteration, facts } = shownBy(lessons, step, model);
  const part = el("section", "", el("h2", "", `${i + 1}. ${step.title}`), ...step.text.map((one) => el("p", "", fill(one, facts))));
  if (step.show) part.append(printedStage(step.show, model, lane, iteration));
  if (!step.question) return part;
  const answers = answersOf(step.question, facts, `${lesson.id}/${i}`);
  part.append(el("p", "", el("b", "", fill(step.question.text, facts))), ...answers.map((one, k) => el("p", "sl-choice", `${"abcdef"[k]})  ${one.text}`)));
  return part;
}

/** What stands beside a step's text, on the screen and on paper, where it is one figure; null where it is not, or without a run for it. */
export function figureOf(show, model) {
  if (show.view === "calculator") return new Calculator(show).node;
  if (model && show.view === "checks") return checksChart(model);
  if (model && show.view === "lanes") return lanesChart(model);
  if (model && show.view === "picture") return model.picture ? el("figure", "sd-picture", ...pictureFigure(model)) : el("p", "sl-empty", "This run has no picture.");
  return null;
}

function printedStage(show, model, lane, iteration) {
  const figure = figureOf(show, model);
  if (figure || !model) return figure ?? "";
  if (show.view === "whatif") return printedWhatIf(model, show.preset);
  const it = lane?.iterations[iteration];
  return it ? printedIteration(it, show.hide) : "";
}

function printedWhatIf(model, preset) {
  const room = new WhatIf();
  room.open(model);
  room.preset(preset);
  return room.out ?? room.node;
}

/** hide: the guesses alone, before the verdict. */
function printedIteration(it, hide) {
  const boxes = hide ? it.guesses : it.tokens, fate = ({ outcome }) => (hide ? "waiting" : outcome);
  const row = it.parents ? treeOf(it, { chosen: -1, shown: (k) => k < boxes.length, fate: (k) => fate(it.tokens[k]) })
    : el("p", "sl-printed", ...boxes.map((token) => tokenBox(token.text, fate(token))));
  return hide ? row : el("div", "", el("p", "", it.sentence), row, el("p", "sd-mute", it.costSentence));
}

/** The right answer to each question, with its reason, on the lesson's runs. */
async function answerKey(lessons, lesson) {
  const list = el("ol", "");
  for (const [i, step] of lesson.steps.entries()) {
    if (!step.question) continue;
    const { facts } = shownBy(lessons, step, await lessons.modelFor(step, lesson)), answers = answersOf(step.question, facts, `${lesson.id}/${i}`);
    const right = answers.findIndex((one) => one.right);
    if (right >= 0) list.append(el("li", "", `Step ${i + 1}: ${fill(step.question.text, facts)} `, el("b", "", `${"abcdef"[right]}) ${answers[right].text}.`), ` ${answers[right].why}`));
  }
  return list;
}

/** For teachers: the path through the lessons, and each lesson's goals and answers. */
export async function teachersPage(lessons, all) {
  const path = all.filter((lesson) => lesson.path), minutes = path.reduce((sum, lesson) => sum + lesson.minutes, 0);
  const page = el("div", "sl-handout sl-teachers", el("h1", "", "For teachers"));
  if (path.length) {
    page.append(el("h2", "", `One path of ${minutes} minutes`), table(["lesson", "minutes", "after it, a learner can"],
      path.map((lesson, i) => [`${i + 1}. ${lesson.title}`, String(lesson.minutes), goalsOf(lesson)])));
  }
  page.append(el("p", "", "Presenter mode shows a lesson in large type, for a projector; answers stay hidden until you ask for them. Print a handout gives its steps on paper. "
    + "All figures below are from the runs that the lessons show here. Answers are in the same order for everyone."));
  for (const lesson of all) {
    page.append(el("section", "", el("h2", "", `${lesson.title} (${lesson.minutes} minutes)`), el("p", "", "Goals. After it, a learner can:"), goalsOf(lesson),
      el("p", "", "Answer key:"), await answerKey(lessons, lesson)));
  }
  return page;
}

export const goalsOf = ({ goals }) => el("ul", "sl-goals", ...goals.map((goal) => el("li", "", goal)));

/** The glossary, printable. */
export class Words {
  constructor() {
    this.node = aria(el("section"), { label: "Words" });
    const list = () => definitions(Object.entries({ ...GLOSSARY, ...MORE_WORDS }), "sl-glossary");
    const print = button("Print these words", () => printNode(el("div", "sl-handout", el("h1", "", "Words of speculative decoding"), list())));
    const marks = el("p", "sl-marks", ...Object.values(FATES).map((fate) => tokenBox(fate, fate)));
    this.node.append(el("div", "sl-card", el("h2", "", "Words"), marks, list(), print));
  }
}
