// The pop-up that explains a token's fate or a figure.

import { aria, button, definitions, el, isNarrow } from "../../core/js/dom.js";
import { clamp, visible } from "../../core/js/format.js";
import { meter, tops } from "../../core/js/tokens.js";
import { GLOSSARY } from "../../core/js/words.js";

/** One shared element: next to the token on wide screens, a sheet at the bottom on phones. */
export class Popup {
  constructor(root) {
    this.root = root;
    this.node = aria(el("div", "sd-pop"), { role: "tooltip" });
    this.node.id = `sd-pop-${Math.random().toString(36).slice(2)}`;
    this.node.hidden = true;
    root.append(this.node);
  }

  show(anchor, parts) {
    this.anchor = anchor;
    this.node.replaceChildren(...parts);
    if (this.sheet) this.node.prepend(closeButton(() => this.hide()));
    this.node.hidden = false;
    this.place(anchor);
  }

  get sheet() { return isNarrow(); }

  place(anchor) {
    this.node.classList.toggle("sd-sheet", this.sheet);
    const at = anchor.getClientRects()[0] || anchor.getBoundingClientRect();
    if (this.sheet) {
      this.node.style.left = this.node.style.top = "";
      const covered = at.bottom + 12 - this.node.getBoundingClientRect().top;
      if (covered > 0) window.scrollBy(0, covered);
      return;
    }
    const home = this.root.getBoundingClientRect();
    const size = this.node.getBoundingClientRect();
    const left = clamp(at.left - home.left - 12, 0, Math.max(0, home.width - size.width));
    const below = at.bottom + 8 + size.height < window.innerHeight || at.top - size.height - 8 < 0;
    const lowest = Math.max(8, window.innerHeight - size.height - 8); // a large one stays in sight, over its anchor
    this.node.style.left = `${left}px`;
    this.node.style.top = `${(below ? Math.min(at.bottom + 8, lowest) : at.top - size.height - 8) - home.top}px`;
  }

  hide() { this.node.hidden = true; }
}

export const closeButton = (act) => button("✕", act, { title: "Close", cls: "sd-close" });

/** The target's log-probability of the token with the picture and with a grey one, as bars. */
function pictureNodes({ text, rows }) {
  const bars = rows.map(([label, value, share]) => [label, meter(share, () => `ln p = ${value.toFixed(2)}`)]);
  return [el("p", "", text), definitions(bars, "sd-by-picture")];
}

/** The explanation of a token's fate, as nodes. */
export function detailNodes({ text, fate, where, why, policy, rows, picture, draft_top, target_top }) {
  const alternatives = tops(draft_top, target_top, (p) => (p >= 0.0005 ? p.toFixed(3) : "<0.001"));
  return [
    el("div", "sd-pop-head", el("span", `sd-tk sd-${fate[0]}`, visible(text)), el("b", "", fate), el("span", "sd-mute", GLOSSARY[fate])),
    el("p", "sd-mute", where), why && el("p", "", why), policy && el("p", "", policy), rows?.length && definitions(rows),
    ...(picture ? pictureNodes(picture) : []), alternatives.hasChildNodes() && alternatives,
  ].filter(Boolean);
}
