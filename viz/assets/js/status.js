// The status line of a tab, and what the events of a long job say there.

import { aria, button, el } from "../../core/js/dom.js";

export class Status {
  constructor(node) {
    this.node = node;
    this.text = el("span", "sp-status-text");
    this.bar = aria(Object.assign(el("progress", "sp-bar"), { max: 1, hidden: true }), { label: "Progress" });
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

  /** Says why something cannot be done, on screen: the form before it may be long. */
  refuse(text) {
    this.say(text, "fault");
    this.node.scrollIntoView({ block: "nearest" });
  }

  /** A button beside what was said, until something else is said; it can be used when `ready` is settled. */
  offer(text, act, ready) {
    const offered = this.offered = button(text, act);
    offered.disabled = true;
    ready.then(() => { offered.disabled = false; });
    this.node.append(offered);
  }

  /** Handles one event of a long job. */
  hear({ kind, data }) {
    if (kind === "queued") this.say(placeInQueue(data.place), "busy");
    if (kind === "progress") this.say(data.message || data.stage, "busy", data.fraction);
    if (kind === "finished") this.say("");
    if (kind === "cancelled") this.say("Stopped.");
    if (kind === "failed") this.refuse(data.message);
  }
}

function placeInQueue(place) {
  if (!place) return "Starting.";
  return place === 1 ? "Waiting: one run is ahead of yours." : `Waiting: ${place} runs are ahead of yours.`;
}
