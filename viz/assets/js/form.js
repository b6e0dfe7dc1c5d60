// The form of the Race tab: hints below its fields, the lines of the list of lanes, and its keys.

import { aria, button, el, whenDrawn } from "../../core/js/dom.js";
import { memory, memoryOfTab } from "../../core/js/files.js";

const filled = new Map(); // by the id of a form's view

function filling(view) {
  if (!filled.has(view)) filled.set(view, Promise.withResolvers());
  return filled.get(view);
}

/** The form of that view now has what a link or the browser's memory says. */
export const filledIn = (view) => filling(view).resolve();

/** A promise, settled when it has. */
export const whenFilledIn = (view) => filling(view).promise;

const before = new Map(); // by the id of a form's view: its values when this page was loaded

/** The form of that view as this browser's tab had kept it, otherwise as it was left last; {} at the first visit. */
export function keptForm(view) {
  if (!before.has(view)) before.set(view, memoryOfTab.read(`form-${view}`, null) ?? memory.read(`form-${view}`, {}));
  return before.get(view);
}

/** The form of that view, now with these values: this browser's tab keeps them apart from its other tabs. What it was
 * refused for may be right by now; what is said of a link stays, which fills the form in before anything is pressed. */
export function keepForm(view, values) {
  keptForm(view); // a field may change before the form is filled in
  for (const kept of [memoryOfTab, memory]) kept.write(`form-${view}`, values);
  if (navigator.userActivation?.hasBeenActive) document.querySelector(`#${view} .sp-fault`)?.setAttribute("hidden", "");
}

/** Below the prompt, when Enter has added a line break: what Enter does, and its effect on the model. */
export function hint(text, goesOn, typed) {
  const box = document.getElementById("prompt");
  if (!box) return;
  const all = text || "", kept = all.trimEnd();
  const fits = kept && all.includes("\n", kept.length) && !goesOn;
  let node = box.querySelector(".sp-hint");
  if (!node && fits && typed) {
    node = aria(el("p", "speculoscope sp-hint", "Enter adds a line break, after which the model may end its text immediately; Shift+Enter runs. ",
      button("Remove it", () => trimEnd(box.querySelector("textarea")))), { role: "status" });
    box.append(node);
  }
  if (node) node.hidden = !fits || (node.hidden && !typed);
}

function trimEnd(field) {
  field.value = field.value.trimEnd();
  field.dispatchEvent(new Event("input", { bubbles: true }));
  field.focus();
}

const PHOTOGRAPH_SIDE = 768; // pixels, as the server makes it at most

/** Lets the visitor choose a picture file; a small JPEG of it as a data URL, "" if none was chosen. No file is uploaded. */
export function photograph() {
  const input = Object.assign(el("input"), { type: "file", accept: "image/png,image/jpeg,image/webp" });
  return new Promise((done) => {
    input.addEventListener("cancel", () => done(""));
    input.addEventListener("change", () => drawnSmall(input.files[0]).then(done, () => done("unreadable")));
    input.click();
  });
}

async function drawnSmall(file) {
  const image = await createImageBitmap(file), scale = Math.min(1, PHOTOGRAPH_SIDE / Math.max(image.width, image.height));
  const canvas = Object.assign(el("canvas"), { width: Math.max(1, image.width * scale), height: Math.max(1, image.height * scale) });
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  return canvas.toDataURL("image/jpeg", 0.88);
}

/** On phones the form is collapsed, so that the race is on the first screen. */
document.addEventListener("click", (event) => {
  const fold = event.target.closest?.(".sp-unfold");
  if (fold) aria(fold, { expanded: fold.closest(".sp-form").classList.toggle("sp-open") });
});

/** Opens the form on phones, as soon as Gradio has drawn it. */
export async function unfold() {
  const fold = await whenDrawn(() => document.querySelector(".sp-unfold"));
  if (fold.getAttribute("aria-expanded") === "false") fold.click();
}

/** Run and Stop take each other's place: the focus goes along, so that a key can press the other one. */
const RUN_OR_STOP = "button.primary, button.stop";
let focused; // the one of them that had the focus last
const swaps = new MutationObserver(([{ target: row }]) => {
  const other = focused.isConnected ? null : row.querySelector(RUN_OR_STOP);
  if (other && document.activeElement === document.body) other.focus({ preventScroll: true });
});
document.addEventListener("focusin", ({ target }) => {
  swaps.disconnect();
  if (!target.matches(RUN_OR_STOP)) return;
  focused = target;
  swaps.observe(target.parentElement, { childList: true });
});

/** Gradio opens a list at any key in its field, at Tab after the focus has gone: the list would stay, over the page. */
document.addEventListener("keydown", (event) => {
  if (event.key === "Tab" && event.target.getAttribute("role") === "combobox") event.stopPropagation();
}, true);

// ---------------------------------------------------------------- the list of lanes

/** The cross of a chosen lane says which one it removes; Gradio calls it by a number. */
function nameCross({ target }) {
  const cross = target.closest?.("#lanes .token .token-remove");
  if (!cross) return;
  cross.title = `Remove ${cross.closest(".token").textContent.trim()}`;
  aria(cross, { label: cross.title });
}
for (const reached of ["pointerover", "focusin"]) document.addEventListener(reached, nameCross);

let known = {}; // label -> [group, line]; for a label with a number after a colon, what stands before it

/** Keeps what the list says of each lane; Gradio draws the list anew whenever it is opened or filtered. */
export function lines(about) {
  if (!Object.keys(known).length) new MutationObserver(showLines).observe(document.body, { childList: true, subtree: true, characterData: true });
  known = about;
  showLines();
}

/** Each option gets its line, and the first one of a group the group's name, which the stylesheet shows. */
function showLines() {
  let before = null;
  for (const option of document.querySelectorAll("#lanes [role=option], [role=listbox][id^=dropdown] [role=option]")) {
    const label = option.getAttribute("aria-label") || "", [group, line] = known[label] || known[label.split(":")[0]] || [];
    set(option, "about", line);
    set(option, "group", group === before ? null : group);
    before = group;
  }
}

function set(node, name, text) {
  if (text && node.dataset[name] !== text) node.dataset[name] = text;
  if (!text && name in node.dataset) delete node.dataset[name];
}

/** Above the lanes, where their list does not cover it: why what was typed is none. It stays until another choice is made. */
export function laneFault(text) {
  const box = document.getElementById("lanes");
  if (!box) return;
  box.querySelector(".sp-hint")?.remove();
  if (text) box.prepend(aria(el("p", "speculoscope sp-hint", text), { role: "alert" }));
  window.dispatchEvent(new Event("scroll")); // Gradio's list follows its field
}
