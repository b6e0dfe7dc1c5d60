// Keyboard: the small buttons of one place share one Tab stop, and arrow keys lead from one to the next.

import { Player } from "./player.js";

const PLACES = ".sd-words, .sd-legend, .sd-strips, .sd-sim-under, .sd-bar, .sd-col, .sd-panel";
const SHARING = ".sd-term, .sd-fig, .sd-chip, button.sd-name";
const AHEAD = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };

const Roving = {
  /** Makes the first button of every place within `node` its Tab stop; of the lanes' names, the selected one. */
  shareStops(node = this.root) {
    const seen = new Set();
    for (const one of node.querySelectorAll(SHARING)) {
      const place = one.closest(PLACES), waits = one.getAttribute("aria-pressed") === "false" && one.classList.contains("sd-name");
      if (!place) continue;
      one.tabIndex = seen.has(place) || waits ? -1 : 0;
      if (!waits) seen.add(place);
    }
  },

  /** Moves the focus among the buttons of a place. Returns whether the key was meant for that. */
  rove({ key, target }) {
    const node = target.closest && target.closest(SHARING), place = node && node.closest(PLACES);
    const sideways = key === "ArrowLeft" || key === "ArrowRight";
    if (!place || !AHEAD[key] || (sideways && node.classList.contains("sd-name"))) return false;  // these step the lane
    const all = [...place.querySelectorAll(SHARING)].filter((one) => one.offsetParent && one.closest(PLACES) === place);
    const next = all[all.indexOf(node) + AHEAD[key]];
    if (next) {
      node.tabIndex = -1;
      next.tabIndex = 0;
      next.focus();
    }
    return true;
  },
};

Object.assign(Player.prototype, Roving);
