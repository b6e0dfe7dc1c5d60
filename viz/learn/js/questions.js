/* A question with answers in shuffled order; a chosen answer is explained with the numbers of the run on screen. */

import { aria, button, el, keepingFocus, keyed } from "../../core/js/dom.js";
import { fill, isRight } from "./facts.js";

/** A seed from a text, the same on every machine, so that everyone in a class sees the same order. */
function seedOf(text) {
  let seed = 2166136261;
  for (const letter of text) seed = Math.imul(seed ^ letter.codePointAt(0), 16777619) >>> 0;
  return seed;
}

function mixed(list, seed) {
  const order = [...list];
  for (let i = order.length - 1; i > 0; i--) {
    seed = (Math.imul(seed, 1664525) + 1013904223) >>> 0;
    const j = seed % (i + 1);
    [order[i], order[j]] = [order[j], order[i]];
  }
  return order;
}

/** The answers for these facts, filled in. Wrong answers with the same text as a right one are left out. */
export function answersOf(question, facts, key) {
  const answers = question.answers.map((answer) => ({ text: fill(answer.text, facts), why: fill(answer.why, facts), right: isRight(answer.right, facts) }));
  const right = new Set(answers.filter((answer) => answer.right).map((answer) => answer.text)), kept = new Map();
  for (const answer of answers) {
    if (!kept.has(answer.text) && (answer.right || !right.has(answer.text))) kept.set(answer.text, answer);
  }
  return mixed([...kept.values()], seedOf(key));
}

export class Question {
  /** options: hidden (show the answers on request only), answered(text, right), chosen (text of an earlier choice). */
  constructor(question, facts, key, { hidden = false, chosen = null, answered = () => {} } = {}) {
    const answers = answersOf(question, facts, key);
    Object.assign(this, { answers: answers.some(({ right }) => right) ? answers : [], answered, chosen, hidden }); // [] where facts are missing
    this.node = el("fieldset", "sl-question", el("legend", "", fill(question.text, facts)));
    this.list = el("div", "sl-answers");
    this.feedback = aria(el("div", "sl-feedback"), { role: "status" });
    this.node.append(this.list, this.feedback);
    this.build();
  }

  build() { keepingFocus(this.node, () => this.draw()); }

  draw() {
    if (!this.answers.length) { this.list.replaceChildren(el("p", "sl-note", "This run does not contain the numbers for this question: choose another run above.")); return; }
    if (this.hidden) {
      this.list.replaceChildren(keyed(0, button("Show the answers (a)", () => this.reveal())));
      return;
    }
    this.list.replaceChildren(...this.answers.map((answer, i) => {
      const chosen = this.chosen === answer.text, judged = this.chosen != null && (chosen || answer.right);
      const node = keyed(i, button("", () => this.choose(answer.text), { cls: `sl-answer${judged ? (answer.right ? " sl-right" : " sl-wrong") : ""}`, pressed: chosen }));
      node.append(el("b", "", i + 1), el("span", "", answer.text), judged ? el("i", "", answer.right ? "✓ right" : "✕ wrong") : "");
      return node;
    }));
    const picked = this.answers.find((answer) => answer.text === this.chosen);
    const right = this.answers.find((answer) => answer.right);
    this.feedback.replaceChildren(...(picked ? [el("p", "", picked.why),
      ...(picked.right ? [] : [el("p", "", `The right answer is “${right.text}”: ${right.why}`)])] : []));
  }

  reveal() { this.hidden = false; this.build(); }

  choose(text) {
    this.chosen = text;
    this.build();
    this.answered(text, this.answers.find((answer) => answer.text === text).right);
  }
}
