/* The entry to the Learn tab, which links and the race open: its script and styles are loaded when it is first opened. */
import { el, whenDrawn } from "../../core/js/dom.js";
import { memoryOfTab } from "../../core/js/files.js";
import { wantedOfLearn } from "./early.js";

const HOME = "speculoscope-learn";
let opened = null, carried = null;
const ready = Promise.withResolvers();

export async function learn(element, server) {
  const root = element.querySelector(".sp-learn");
  document.head.append(Object.assign(el("link"), { rel: "stylesheet", href: `${HOME}/learn.css` }));
  try {
    await import(`./${HOME}/learn.js`);
  } catch {
    root.textContent = "The lessons could not be loaded. Reload the page in a moment.";
    return;
  }
  opened = await window.SpeculoscopeLearn.mountPage(root, server, wanted);
  root.removeAttribute("aria-busy");
  ready.resolve(opened);
}

const tab = () => [...document.querySelectorAll(".sp-tabs button[role=tab]")].find((node) => node.textContent.trim() === "Learn");

/** Calls `act` with the Learn tab, now or when it is ready. */
function whenReady(act) {
  carried = null;
  ready.promise.then(act);
}

function toLearn(act) {
  whenReady(act);
  selectTab();
}

/** {run, version} of the visitor's own run, or of an opened one: the Learn tab shows it when it is next chosen. */
export function carry(run) { carried = run; }

document.addEventListener("click", ({ target }) => {
  if (!carried || target.closest?.("button[role=tab]") !== tab()) return;
  const { run, version } = carried;
  whenReady((there) => there.renew(there.openId(run, version)));
});

const selectTab = async () => (await whenDrawn(tab)).click();

/** Open the step that decides about a token of the race, whose run is of that version by now. */
export function explain({ run, version, lane, iteration, index }) {
  toLearn(async (there) => {
    if (!(await there.openId(run, version))) return; // it has said why
    there.goTo({ place: "steps", lane, iteration });
    there.places.steps.towards(index);
    document.querySelector(".sl-steps [data-key=next]")?.focus({ preventScroll: true }); // the token has left the screen
  });
}

/** The link to the first lesson opens it without loading the page again. */
document.addEventListener("click", (event) => {
  if (!event.target.closest?.(".sp-ten-steps") || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  toLearn(async (there) => {
    there.show("lessons");
    await there.places.lessons.openId("ten-steps", 0);
  });
});

const wanted = wantedOfLearn();
if (wanted) selectTab();

/** What a reload opens again; until the tab is loaded, what it is to open. */
const onScreen = () => (opened.isOnScreen ? String(opened.query()) : "");
window.addEventListener("pagehide", () => memoryOfTab.write("learn", opened ? onScreen() : wanted));
