/* What a run shows in small: tokens in boxes, a model's most probable tokens, the picture in its prompt. */

import { aria, el, part } from "./dom.js";
import { clamp, percent, visible } from "./format.js";

const MARKS = { accepted: "✓", rejected: "✕", dropped: "–", correction: "↻", bonus: "+", plain: "•", waiting: "?" };

/** A token in its box: border, mark and colour show its fate. */
export function tokenBox(text, fate) {
  const node = el("span", `sd-token sd-is-${fate}`, el("span", "sd-token-text", visible(text) || "∅"));
  node.append(aria(el("i", "sd-fate-mark", MARKS[fate] || ""), { hidden: true }), el("span", "sd-hidden", `, ${fate}`));
  return node;
}

/** A probability as a bar and a text. */
export function meter(p, shown = percent) {
  const node = el("span", "sd-meter", el("span", "sd-meter-bar", part(clamp(p, 0.01, 1))), el("span", "", shown(p)));
  node.title = p.toFixed(3);
  return node;
}

/** What the draft and the target would say, rows of [text, probability]; lists without rows are left out. */
export function tops(draft = [], target = [], shown = percent) {
  const entry = ([text, p]) => el("li", "", el("code", "", visible(text ?? "")), meter(p, shown));
  const list = (title, rows) => (rows.length ? el("div", "sd-top", el("p", "sd-mute", title), el("ol", "", ...rows.slice(0, 5).map(entry))) : null);
  return el("div", "sd-tops", list("The draft would say", draft), list("The target would say", target));
}

/** The picture with what it decided, in a run's payload or model; nothing for a run without one. */
export function pictureFigure({ picture, seen }) {
  if (!picture) return [];
  const image = Object.assign(document.createElement("img"), { src: picture.src, alt: picture.alt, width: 96, height: 96 });
  return [image, el("figcaption", "", el("b", "", seen), el("span", "", picture.caption))];
}
