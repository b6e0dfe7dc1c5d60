/* Elements. Texts of models, users and lessons reach the page only through textContent and text nodes. */

const SVG = "http://www.w3.org/2000/svg";
export const NARROW = "(max-width: 760px)"; // as in the stylesheets: a phone
export const isNarrow = () => window.matchMedia(NARROW).matches;

/** An element with children: nodes and texts; null and "" are left out. */
export function el(tag, cls, ...children) {
  const node = document.createElement(tag);
  if (cls) node.className = cls;
  node.append(...children.filter((child) => child != null && child !== ""));
  return node;
}

/** Sets what assistive technology reads: a role, and the aria attributes of these names. Returns the node. */
export function aria(node, { role, ...states }) {
  if (role) node.setAttribute("role", role);
  for (const [name, value] of Object.entries(states)) node.setAttribute(`aria-${name}`, String(value));
  return node;
}

export function svg(tag, attributes, ...children) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) if (value != null) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

export function button(text, act, { title, cls = "sd-button", pressed } = {}) {
  const node = el("button", cls, text);
  node.type = "button";
  if (title) node.title = title;
  if (title && !/[a-z0-9]/i.test(text || "")) aria(node, { label: title }); // a symbol alone has no name
  if (pressed != null) aria(node, { pressed });
  node.addEventListener("click", act);
  return node;
}

/** A part of a bar that takes this share of its holder's width. */
export function part(share, cls = "") {
  const node = el("i", cls);
  node.style.width = `${100 * share}%`;
  return node;
}

/** A choice among options [[value, text]]. */
export function select(label, options, value, act, cls = "sd-select") {
  const node = aria(el("select", cls), { label });
  for (const [key, text] of options) node.append(Object.assign(el("option", "", text), { value: key }));
  node.value = value;
  node.addEventListener("change", () => act(node.value));
  return node;
}

/** A list of words and their meanings. */
export function definitions(rows, cls) {
  return el("dl", cls, ...rows.flatMap(([word, meaning]) => [el("dt", "", word), el("dd", "", meaning)]));
}

/** A slider without a visible label. */
export function range(label, { min, max, step = 1, value, cls }, act) {
  const node = aria(Object.assign(el("input", cls), { type: "range", min, max, step, value }), { label });
  node.addEventListener("input", () => act(Number(node.value)));
  return node;
}

/** A table of rows of cells (texts or nodes), which scrolls by itself; the first column is the row header. */
export function table(columns, rows, { label, cls = "" } = {}) {
  const head = el("tr"), body = el("tbody");
  for (const content of columns) head.append(Object.assign(el("th", "", ...[content].flat()), { scope: "col" }));
  for (const cells of rows) {
    const [first, ...others] = cells.map((content, i) => el(i ? "td" : "th", "", ...[content].flat()));
    first.scope = "row";
    body.append(el("tr", "", first, ...others));
  }
  const holder = el("div", "sd-scroll", el("table", `sd-table ${cls}`, el("thead", "", head), body));
  holder.tabIndex = 0;
  return label ? aria(holder, { role: "group", label }) : holder;
}

/** Replaces what is in `root`; the element with the focused one's data-key has the focus then. */
export function keepingFocus(root, build) {
  const focused = root.contains(document.activeElement) ? document.activeElement.dataset.key : null;
  build();
  if (focused) root.querySelector(`[data-key="${focused}"]`)?.focus({ preventScroll: true });
}

/** `node` with the key by which the focus finds it again. */
export function keyed(key, node) {
  node.dataset.key = key;
  return node;
}

/** What `find` gives, as soon as there is such a thing: Gradio draws the parts of its page one after another. */
export async function whenDrawn(find) {
  while (!find()) await new Promise(requestAnimationFrame);
  return find();
}
