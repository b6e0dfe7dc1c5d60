/* First paint: the recorded run that is shipped with the page plays before Gradio is ready.
 *
 * Gradio loads some sixty files before it shows anything, but the run is already in the document, in the configuration of
 * the Race tab's view. A player plays it on a cover over the page; when the view is ready, it takes over that player.
 */
import { el } from "../../core/js/dom.js";
import { mount } from "../../player/js/main.js";
import { open } from "./opening.js";

let cover = null, player = null, run = null;

/** Whether a link's settings differ from those of the page's first run; a pair that the form does not offer counts as none. */
export const asksForAnother = (query) => Boolean(query.get("prompt") || query.get("lanes") || offers(query.get("pair")));

const offers = (pair) => pair && component("pair")?.props.choices?.some(([, value]) => value === pair);
const component = (name) => (window.gradio_config?.components || []).find(({ props }) => props && props.elem_id === name);

/** The run that the link itself carries, after "#"; null if there is none. */
export const packedRun = () => new URLSearchParams(window.location.hash.slice(1)).get("run");

/** The value of the Race tab's view, JSON text of a delta; "" where no run is shipped. */
function firstValue() {
  const view = component("race");
  return view && typeof view.props.value === "string" ? view.props.value : "";
}

/** The theme, decided as by Gradio. */
function isDark(theme) {
  return theme === "dark" || (theme !== "light" && window.matchMedia("(prefers-color-scheme: dark)").matches);
}

/** Plays it, unless the link names another run or a lesson. */
export function begin() {
  const query = new URLSearchParams(window.location.search), value = firstValue();
  if (!value || ["run", "lesson", "learn"].some((name) => query.has(name)) || asksForAnother(query) || packedRun()) return;
  cover = el("div", `sp-early${isDark(query.get("__theme")) ? " dark" : ""}`);
  const root = el("div", "sp-player");
  cover.append(el("div", "speculoscope sp-early-head", el("b", "", "Speculoscope"), el("p", "", document.querySelector("meta[name=description]").content),
    el("p", "sp-note", "A recorded run plays while the rest of the page loads.")), root);
  document.body.prepend(cover);
  player = mount(root, { globalKeys: true });
  const { payload } = JSON.parse(value).events[0].data;
  run = payload.id;
  player.load(payload);
  open(player);
  requestAnimationFrame(() => performance.mark("speculoscope-first-run"));
}

/** {player, run} of the first paint, with its root moved to the place of `node`; null if there was none. */
export function takeOver(node) {
  if (!cover) return null;
  const { root } = player, parent = node.parentNode;
  if (parent.moveBefore) parent.moveBefore(root, node); // keeps focus and scroll positions
  else parent.insertBefore(root, node);
  node.remove();
  cover.remove();
  cover = null;
  return { player, run };
}
