/* The guesses of an iteration that branch, as a small tree: depth to the right, siblings below each other.
 *
 * The accepted guesses and, after them, the target's own token are joined by a thick line: the first row, or, where the verdict is
 * still to come, wherever the draft's probabilities put them.
 */

import { aria, button, el, svg } from "./dom.js";
import { tokenBox } from "./tokens.js";

const HIGH = 30, GAP = 24, TEXT = 20; // px: a row, the space before a column, the place of the text before all
const LETTER = 7.6, FRAME = 34, WIDEST = 104; // px: a letter in its box, what the box adds, the widest box

/** {row, column, parent, children} of each token of the iteration, and in the last place of the text before them. byChance: guesses
 * for one place by the draft's probability, the target's own token after them; else what is kept comes first. withOwn: whether that
 * token has a place at all. */
function layOut(it, byChance, withOwn) {
  const parents = [...it.parents, ...(withOwn ? [it.accepted - 1] : [])], text = parents.length;
  const nodes = [...parents, null].map((parent, index) => ({ parent: parent === -1 ? text : parent, column: index === text ? -1 : it.tokens[index].depth, children: [] }));
  const own = withOwn ? [it.drafted] : [], guesses = [...it.parents.keys()]; // accepted ones are the first
  const inOrder = byChance ? [...guesses.sort((a, b) => (it.tokens[b].p ?? 0) - (it.tokens[a].p ?? 0)), ...own] : [...own, ...guesses];
  for (const index of inOrder) nodes[nodes[index].parent].children.push(index);
  let last = 0;
  const place = (index) => {
    nodes[index].row = last;
    nodes[index].children.forEach((child, i) => {
      if (i) last += 1;
      place(child);
    });
  };
  place(text);
  const widths = [];
  it.tokens.slice(0, text).forEach((token, k) => {
    const { column } = nodes[k], wide = Math.min(WIDEST, FRAME + LETTER * Math.max(1, token.text.length));
    widths[column] = Math.max(widths[column] ?? 0, wide);
  });
  const lefts = [TEXT];
  widths.forEach((wide, column) => lefts.push(lefts[column] + wide + GAP));
  return { nodes, text, width: lefts.pop() - GAP, height: (last + 1) * HIGH, left: (column) => (column < 0 ? 6 : lefts[column]) };
}

/** The tree as an element. fate(k), shown(k): what is known of token k; choose(k): called when it is chosen; chosen: the first
 * one; byChance: see layOut. Arrow keys lead to the guess before or after, and to the one above or below. */
export function treeOf(it, { fate = (k) => it.tokens[k].outcome, shown = () => true, choose = () => {}, chosen = 0, byChance = false } = {}) {
  const { nodes, text, width, height, left } = layOut(it, byChance, Boolean(it.own) && shown(it.drafted));
  const press = (k) => buttons.forEach((node, i) => { aria(node, { pressed: i === k }).tabIndex = i === k ? 0 : -1; });
  const pick = (k) => { press(k); choose(k); };
  const buttons = it.tokens.slice(0, text).map((token, k) => nodeButton(it, k, fate(k), shown(k), nodes[k], left, () => pick(k)));
  const lines = nodes.slice(0, text).flatMap((node, k) => (shown(k) ? [line(node, nodes[node.parent], isKept(fate(k)), left)] : []));
  const inner = el("div", "sd-tree-in", svg("svg", { width, height, "aria-hidden": "true" }, ...lines, svg("circle", { cx: 6, cy: HIGH / 2, r: 4 })), ...buttons);
  Object.assign(inner.style, { width: `${width}px`, height: `${height}px` });
  inner.addEventListener("keydown", (event) => {
    const from = buttons.indexOf(event.target), to = from < 0 ? null : neighbour(nodes, from, event.key);
    if (to === null) return;
    event.preventDefault(); // arrow keys also step through the lane
    if (!buttons[to] || !shown(to)) return;
    pick(to);
    buttons[to].focus();
  });
  press(chosen);
  return aria(el("div", "sd-tree", inner), { role: "group", label: "Guesses of this iteration as a tree; arrow keys lead through it" });
}

const isKept = (fate) => ["accepted", "correction", "bonus"].includes(fate);

function nodeButton(it, k, fate, shown, { row, column }, left, act) {
  const { text, depth } = it.tokens[k], node = button(tokenBox(text, fate), act, { title: text, cls: "" });
  node.hidden = !shown;
  Object.assign(node.style, { left: `${left(column)}px`, top: `${row * HIGH + 2}px` });
  const siblings = k < it.drafted ? it.parents.filter((parent) => parent === it.parents[k]).length : 0;
  return aria(node, { label: `${text}, ${fate}, place ${depth + 1}${siblings > 1 ? `, one of ${siblings} guesses for it` : ""}` });
}

/** From the parent, along its row, then down to the child's; boxes cover what lies below them. */
function line({ row, column }, parent, kept, left) {
  const y = (at) => at * HIGH + HIGH / 2, end = left(column);
  return svg("path", { class: kept ? "sd-tree-kept" : "", d: `M${left(parent.column)} ${y(parent.row)}H${end - GAP / 2 + 2}V${y(row)}H${end}` });
}

/** The node that an arrow key leads to; undefined if there is none, null for another key. */
function neighbour(nodes, from, key) {
  const { row, column, parent, children } = nodes[from];
  const beside = nodes.map((node, k) => k).filter((k) => nodes[k].column === column).sort((a, b) => nodes[a].row - nodes[b].row);
  const ways = { ArrowRight: () => children[0], ArrowLeft: () => parent, ArrowUp: () => beside[beside.indexOf(from) - 1], ArrowDown: () => beside[beside.indexOf(from) + 1] };
  return ways[key] ? ways[key]() : null;
}
