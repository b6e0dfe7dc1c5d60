/* Fields, and what the browser remembers. */

import { aria, el, range } from "../../core/js/dom.js";

/** A labelled slider: {node, value, set}. */
export function slider(label, { min, max, step, value, shown = String }, act) {
  const output = el("output", "sl-value"), input = range(label, { min, max, step, value, cls: "sl-slider" }, (x) => { say(); act(x); });
  const say = () => { output.textContent = shown(Number(input.value)); aria(input, { valuetext: output.textContent }); };
  say();
  return { node: el("label", "sl-slide", el("span", "sl-slider-name", label), input, output), input, get value() { return Number(input.value); },
    set(x) { input.value = x; say(); } };
}

/** A number field: {node, value}; value is null, and the field marked invalid, for anything but a number in range. */
export function numberField(label, value, { min = 0, max = 1e6, step = "any" } = {}, act = () => {}) {
  const input = el("input", "sl-number");
  Object.assign(input, { type: "number", min, max, step, value, inputMode: "decimal" });
  const read = () => (input.value !== "" && input.checkValidity() ? Number(input.value) : null);
  input.addEventListener("input", () => { aria(input, { invalid: read() == null }); act(); });
  return { node: el("label", "sl-field", el("span", "", label), input), input, get value() { return read(); }, set(x) { input.value = x; } };
}

/** Values kept in the browser's storage; everything else works without it. */
export const memory = {
  read(key, otherwise) {
    try { return JSON.parse(localStorage.getItem(`speculoscope-learn-${key}`)) ?? otherwise; } catch { return otherwise; }
  },
  write(key, value) {
    try { localStorage.setItem(`speculoscope-learn-${key}`, JSON.stringify(value)); } catch { /* kept for this visit only */ }
  },
};
