/* First paint: the recorded run that is shipped with the page plays before Gradio is ready.
 *
 * Gradio loads some sixty files before it shows anything, but the run is already in the document, in the configuration of
 * the Race tab's view. A player plays it on a cover over the page; when the view is ready, it takes over that player.
 */
import { aria, el } from "../../core/js/dom.js";
import { memory, memoryOfTab } from "../../core/js/files.js";
import { tokenBox } from "../../core/js/tokens.js";
import { mount } from "../../player/js/main.js";

let cover = null, player = null;

/** Whether a link's settings differ from those of the page's first run; a pair that the form does not offer counts as none. */
export const asksForAnother = (query) => Boolean(query.get("prompt") || query.get("lanes") || offers(query.get("pair")));

const offers = (pair) => pair && component("pair")?.props.choices?.some(([, value]) => value === pair);
const component = (name) => (window.gradio_config?.components || []).find(({ props }) => props && props.elem_id === name);

/** The run that the link itself carries, after "#"; null if there is none. */
export const packedRun = () => new URLSearchParams(window.location.hash.slice(1)).get("run");

/** The theme, decided as by Gradio. */
function isDark(theme) {
  return theme === "dark" || (theme !== "light" && window.matchMedia("(prefers-color-scheme: dark)").matches);
}

/** Whether the page was reloaded, or is on the way back. */
const isAgain = () => ["reload", "back_forward"].includes(performance.getEntriesByType("navigation")[0]?.type);

/** After a reload, what the Race tab had on screen: {run, underway, timed}; {} without one, or where the link names a run itself. */
export const reloaded = (query) => (!isAgain() || packedRun() || ["run", "learn"].some((name) => query.has(name)) ? {} : memoryOfTab.read("race", {}));

/** The query of what the Learn tab is to open: after a reload what it had on screen, else what the link names; "" where another tab is to be open. */
export function wantedOfLearn() {
  const { search } = window.location, query = new URLSearchParams(search), named = query.has("lesson") || query.has("learn") ? search : "";
  return isAgain() && !packedRun() ? memoryOfTab.read("learn", named) : named;
}

/** Plays it, unless the link names another run or a lesson, or the tab had another on screen. */
export function begin() {
  const query = new URLSearchParams(window.location.search), value = component("race")?.props.value; // a delta as JSON text; "" where no run is shipped
  if (!value || query.has("run") || wantedOfLearn() || asksForAnother(query) || packedRun()) return;
  const { payload } = JSON.parse(value).events[0].data, before = reloaded(query).run;
  if (before && before !== payload.id) return;
  cover = el("div", `sp-early${isDark(query.get("__theme")) ? " dark" : ""}`);
  const root = el("div", "sp-player");
  cover.append(el("div", "speculoscope sp-early-head", el("b", "", "Speculoscope"), el("p", "", document.querySelector("meta[name=description]").content),
    el("p", "sp-note", "A recorded run plays while the rest of the page loads.")), root);
  document.body.prepend(cover);
  player = mount(root);
  player.load(payload);
  open(player);
  requestAnimationFrame(() => performance.mark("speculoscope-first-run"));
}

/** The player of the first paint, its root moved to the place of `node`; null if there was none. */
export function takeOver(node) {
  if (!cover) return null;
  const { root } = player, parent = node.parentNode;
  if (parent.moveBefore) parent.moveBefore(root, node); // keeps focus and scroll positions
  else parent.insertBefore(root, node);
  node.remove();
  cover.remove();
  cover = null;
  return player;
}

// ---------------------------------------------------------------- the opening
// On a first visit one iteration of the run on screen, slowly and with captions, before the replay begins.

const NUMBERS = ["no", "one", "two", "three", "four", "five", "six", "seven", "eight"];
const GUESS_MS = 900, CHECK_MS = 2600, READ_MS = 4200; // per guess; for the check; for the last caption

/** Whether this browser has not shown it yet; where nothing can be remembered, it is not shown. */
function isFirstVisit() {
  const seen = memory.read("opening-seen", false);
  memory.write("opening-seen", true);
  return !seen && memory.read("opening-seen", false);
}

/** The iteration of the run that is nearest to three guesses of which two hold; null if none shows a guess that fails. */
function exampleIn({ lanes }) {
  const far = (it) => Math.abs(it.drafted - 3) + Math.abs(it.accepted - 2);
  const shown = lanes.flatMap((lane) => lane.iterations).filter((it) => !it.parents && it.accepted && it.accepted < it.drafted && it.own && it.drafted < NUMBERS.length);
  return shown.reduce((best, it) => (!best || far(it) < far(best) ? it : best), null);
}

const word = (n, noun = "") => `${NUMBERS[n]}${noun && ` ${noun}${n === 1 ? "" : "s"}`}`;

/** Shows it over the player's race, whose replay waits for its end: by itself, or at any click or key. */
function open(player) {
  const it = isFirstVisit() && exampleIn(player.model), still = window.matchMedia("(prefers-reduced-motion: reduce)").matches;
  if (!it) return;
  const said = aria(el("ol", "sp-opening-said"), { live: "polite" }), row = el("p", "sp-opening-row");
  const node = aria(el("div", "sp-opening", row, said, el("p", "sd-mute", "Any tap, click or key ends this.")), { role: "region", label: "What speculative decoding is" });
  const boxes = it.guesses.map(({ text }) => tokenBox(text, "waiting"));
  const acts = [
    ...boxes.map((box, k) => [k ? GUESS_MS : 0, () => { row.append(box); if (!k) say(`The small model guesses ${word(it.drafted, "token")} ahead: words, or pieces of words.`); }]),
    [GUESS_MS, () => { row.classList.add("sp-opening-check"); say("The big model checks them all in one pass."); }],
    [CHECK_MS, () => {
      row.classList.remove("sp-opening-check");
      row.replaceChildren(...it.guesses.map(({ text, outcome }) => tokenBox(text, outcome)), tokenBox(it.own.text, it.own.outcome));
      say(`${word(it.accepted)[0].toUpperCase()}${word(it.accepted).slice(1)} ${it.accepted === 1 ? "holds" : "hold"}; then the big model adds its own token. That pass gave ${word(it.gives, "token")} instead of one.`);
    }],
    [READ_MS, end],
  ];
  function say(text) { said.append(el("li", "", text)); }
  let timer = 0;
  function next() {
    const [wait, act] = acts.shift() ?? [];
    if (act) timer = setTimeout(() => { act(); next(); }, wait);
  }
  function end() {
    clearTimeout(timer);
    for (const kind of ["click", "keydown"]) document.removeEventListener(kind, end, true);
    node.remove();
    if (!still) setTimeout(() => { if (player.t === 0) player.play(); }); // after what the click or key itself does
  }
  for (const kind of ["click", "keydown"]) document.addEventListener(kind, end, true);
  player.race.append(node);
  if (still) { for (const [, act] of acts.slice(0, -1)) act(); return; }
  player.pause();
  player.seek(0);
  next();
}
