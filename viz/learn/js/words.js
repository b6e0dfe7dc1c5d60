/* The glossary, printable. */

import { aria, button, definitions, el } from "../../core/js/dom.js";
import { printNode } from "../../core/js/files.js";
import { GLOSSARY, MORE_WORDS } from "../../core/js/words.js";
import { tokenBox } from "../../core/js/tokens.js";

export class Words {
  constructor(learn) {
    this.learn = learn;
    this.node = aria(el("section", "sl-words"), { label: "Words" });
  }

  refresh() {}

  build() {
    if (this.node.children.length) return;
    const list = () => definitions(Object.entries({ ...GLOSSARY, ...MORE_WORDS }), "sl-glossary");
    const print = button("Print these words", () => printNode(el("div", "sl-handout", el("h1", "", "Words of speculative decoding"), list())));
    const marks = el("p", "sl-marks", ...["accepted", "rejected", "dropped", "correction", "bonus", "plain"].map((fate) => tokenBox(fate, fate)));
    this.node.append(el("div", "sl-card", el("h2", "", "Words"), marks, list(), print));
  }
}
