/* Small helpers. Texts of models, users and lessons reach the page only through textContent. */

const SVG_NS = "http://www.w3.org/2000/svg";

function el(tag, cls, ...children) {
  const node = document.createElement(tag);
  if (cls) node.className = cls;
  node.append(...children.filter((child) => child != null && child !== ""));
  return node;
}

function svg(tag, attributes, ...children) {
  const node = document.createElementNS(SVG_NS, tag);
  for (const [name, value] of Object.entries(attributes || {})) if (value != null) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

function button(text, act, { title, cls = "sl-button", pressed } = {}) {
  const node = el("button", cls, text);
  node.type = "button";
  if (title) node.title = title;
  if (title && (!text || !/[a-z0-9]/i.test(text))) node.setAttribute("aria-label", title); // a symbol alone has no name
  if (pressed != null) node.setAttribute("aria-pressed", String(pressed));
  node.addEventListener("click", act);
  return node;
}

function select(label, options, value, act) {
  const node = el("select", "sl-select");
  node.setAttribute("aria-label", label);
  for (const [key, text] of options) {
    const option = el("option", "", text);
    option.value = key;
    node.append(option);
  }
  node.value = value;
  node.addEventListener("change", () => act(node.value));
  return node;
}

/** A labelled slider: {node, value, set}. */
function slider(label, { min, max, step, value, shown = String }, act) {
  const input = el("input", "sl-slider"), output = el("output", "sl-value");
  Object.assign(input, { type: "range", min, max, step, value });
  const say = () => { output.textContent = shown(Number(input.value)); input.setAttribute("aria-valuetext", output.textContent); };
  input.addEventListener("input", () => { say(); act(Number(input.value)); });
  input.setAttribute("aria-label", label);
  say();
  const name = el("span", "sl-slider-name", label);
  return { node: el("label", "sl-slide", name, input, output), input, get value() { return Number(input.value); },
    set(x) { input.value = x; say(); } };
}

/** A number field: {node, value}; value is null, and the field marked invalid, for anything but a number in range. */
function numberField(label, value, { min = 0, max = 1e6, step = "any" } = {}, act = () => {}) {
  const input = el("input", "sl-number");
  Object.assign(input, { type: "number", min, max, step, value, inputMode: "decimal" });
  const read = () => (input.value !== "" && input.checkValidity() ? Number(input.value) : null);
  input.addEventListener("input", () => { input.setAttribute("aria-invalid", String(read() == null)); act(); });
  return { node: el("label", "sl-field", el("span", "", label), input), input, get value() { return read(); }, set(x) { input.value = x; } };
}

const MARKS = { accepted: "✓", rejected: "✕", dropped: "–", correction: "↻", bonus: "+", plain: "•", waiting: "?" };

/** A token in its box: border, mark and colour show its fate. */
function tokenBox(text, fate, { title } = {}) {
  const node = el("span", `sl-token sl-${fate}`, el("span", "sl-token-text", visible(text)));
  const mark = el("i", "sl-mark", MARKS[fate] || "");
  mark.setAttribute("aria-hidden", "true");
  node.append(mark, el("span", "sl-hidden", `, ${fate}`));
  if (title) node.title = title;
  return node;
}

/** A table from rows of text; the first column is the row header. */
function table(columns, rows, caption) {
  const node = el("table", "sl-table"), head = el("tr"), body = el("tbody");
  if (caption) node.append(el("caption", "", caption));
  for (const text of columns) { const cell = el("th", "", text); cell.scope = "col"; head.append(cell); }
  for (const cells of rows) {
    const row = el("tr");
    cells.forEach((content, i) => {
      const cell = el(i ? "td" : "th", "", content);
      if (!i) cell.scope = "row";
      row.append(cell);
    });
    body.append(row);
  }
  node.append(el("thead", "", head), body);
  const holder = el("div", "sl-scroll", node);
  holder.tabIndex = 0;
  return holder;
}

const clamp = (x, low, high) => Math.min(high, Math.max(low, x));

/** Values kept in the browser's storage; everything else works without it. */
const memory = {
  read(key, otherwise) {
    try { return JSON.parse(localStorage.getItem(`speculoscope-learn-${key}`)) ?? otherwise; } catch { return otherwise; }
  },
  write(key, value) {
    try { localStorage.setItem(`speculoscope-learn-${key}`, JSON.stringify(value)); } catch { /* kept for this visit only */ }
  },
};
