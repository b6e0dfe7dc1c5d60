// The page's glossary, which explains words on a tap, and the guide behind "?".

import { aria, definitions, el } from "../../core/js/dom.js";
import { GLOSSARY } from "../../core/js/words.js";
import { Popup, closeButton } from "./popup.js";

const SPELLINGS = {
  tokens: "token", lanes: "lane", iterations: "iteration", policies: "policy", repeats: "repeat", drafts: "draft",
  "target passes": "target pass", "draft passes": "draft pass", Simulated: "simulated", Prefill: "prefill",
  "first-guess hit rate": "hit rate", Oracle: "oracle", "the oracle": "oracle", "match rate of the draft": "match rate",
  "static SLs": "static SL", SLs: "SL",
};
const WORDS = [...Object.keys(GLOSSARY), ...Object.keys(SPELLINGS)].sort((a, b) => b.length - a.length);
const ESCAPED = WORDS.map((word) => word.replace(/[+]/g, "\\+"));
const TERM = new RegExp(`(?<![\\w-])(?:${ESCAPED.join("|")})(?![\\w-]|\\+\\+)`, "g");

/** The glossary's word for `text`, "" if there is none. */
export const termOf = (text) => (text in GLOSSARY ? text : SPELLINGS[text] || "");

export function termButton(text) {
  return Object.assign(el("button", "sd-term", text), { type: "button", sdTerm: termOf(text) });
}

/** `text` as nodes; the first occurrence of each glossary word is a button. */
export function termed(text) {
  const nodes = [], known = new Set();
  let from = 0;
  for (const found of String(text).matchAll(TERM)) {
    const term = termOf(found[0]);
    if (known.has(term)) continue;
    known.add(term);
    nodes.push(text.slice(from, found.index), termButton(found[0]));
    from = found.index + found[0].length;
  }
  nodes.push(text.slice(from));
  return nodes.filter((node) => node !== "");
}

/** Writes `text` into `node` with buttons for glossary words. */
export function say(node, text) { node.replaceChildren(...termed(text || "")); }

export function explanation(term) {
  return [el("div", "sd-pop-head", el("b", "", term)), el("p", "", GLOSSARY[term])];
}

/** Words outside a player, such as in a report: a pop-up of `root` shows their explanations. */
export function explainTerms(root) {
  const popup = new Popup(root);
  root.addEventListener("click", (event) => {
    const term = event.target.closest(".sd-term");
    if (term) popup.show(term, explanation(term.sdTerm));
    else if (!event.target.closest(".sd-pop")) popup.hide();
  });
  root.addEventListener("keydown", (event) => { if (event.key === "Escape") popup.hide(); });
}

const KEYS = [["space", "play or pause"], ["← →", "previous, next iteration of the selected lane"], ["home end", "start, end"],
  ["+ −", "faster, slower"], ["f", "final text only"], ["?", "this guide"], ["esc", "close it"],
  ["on a word, figure or lane: ↑ ↓", "the next one of that place"],
  ["in a text: ← →", "token by token, each with the reason for its fate"], ["in a text: e", "explain the token step by step"],
  ["in a text: enter", "open the tree, where guesses branched; arrow keys lead through it, esc closes it"]];

/** The guide: what the page shows, the colours, every word, the keys. */
export function guide(legend) {
  const dialog = el("dialog", "sd-guide", closeButton(() => dialog.close()), el("h2", "", "What you see"), el("p", "",
    "The same text is written several times, in each lane with another policy. On the time axis, a tall bar is a pass of the "
    + "target and a low bar is a guess of the draft: guessing far ahead saves passes if the guesses hold, and wastes time if "
    + "they fail. In the texts below, every token is coloured by its fate; shaded and unshaded parts are successive iterations."),
  legend, el("h2", "", "Words"), definitions(Object.entries(GLOSSARY)), el("h2", "", "Keyboard"), definitions(KEYS));
  aria(dialog, { label: "Guide: what you see, words, keys" });
  dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
  return dialog;
}
