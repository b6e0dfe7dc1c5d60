/* What enters and leaves the page: the server's answers, files, the clipboard, links, the browser's storage. */

import { button, el } from "./dom.js";

/** The server's answer; refusals ({error: sentence}) and broken connections become exceptions with a sentence. */
export async function ask(promise) {
  let answer;
  try {
    answer = await promise;
  } catch (error) {
    throw new Error("The page cannot reach its server. Try again in a moment.", { cause: error });
  }
  if (answer && answer.error) throw new Error(answer.error);
  return answer;
}

/** What `act` gives; null if it is refused or fails, and say(sentence) hears why. */
export async function orSay(say, act) {
  try {
    return await act();
  } catch (error) {
    say(error.message);
    return null;
  }
}

/** Saves a file to the visitor's downloads; returns a sentence that says so. */
export function save({ name, mime, text }) {
  const link = el("a");
  link.href = URL.createObjectURL(new Blob([text], { type: mime }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  return `${name} is in your downloads.`;
}

/** Whether `text` is in the clipboard now; the browser may refuse. */
export function copied(text) {
  return Promise.resolve().then(() => navigator.clipboard.writeText(text)).then(() => true, () => false);
}

/** `id`, if it can be the name of a run; throws a sentence. */
export function runId(id) {
  if (!/^[A-Za-z0-9_-]{1,64}$/.test(id)) throw new Error("This link does not name a run: names consist of letters, digits, - and _.");
  return id;
}

/** The number of that name in a link, from 0 on. */
export const numberIn = (query, name) => Math.max(0, parseInt(query.get(name), 10) || 0);

export const RUN_FILE = { most: 40 * 2 ** 20, limit: "40 MB, the limit of this page" };

/** A button, and its hidden field, for a file of JSON: act(name, read), where read() gives the text or throws a sentence. */
export function opener(title, { most, limit }, act) {
  const field = Object.assign(el("input", "sp-file"), { type: "file", accept: ".json,application/json", hidden: true });
  field.addEventListener("change", () => {
    const [file] = field.files;
    if (file) {
      act(file.name, async () => {
        if (file.size > most) throw new Error(`${file.name} is larger than ${limit}.`);
        return fileText(file);
      });
    }
    field.value = "";
  });
  return [button(title, () => field.click()), field];
}

/** The text of a file; an error for one that holds none, whose substitutes would be longer than it is. */
async function fileText(file) {
  const bytes = await file.arrayBuffer();
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(bytes);
  } catch (error) {
    throw new Error(`${file.name} is not a text file: open a JSON file.`, { cause: error });
  }
}

const MAX_PACKED = 60000, MAX_UNPACKED = 8 * 2 ** 20; // characters of a fragment; bytes of a run

/** The run file that a link carries after "#run=": deflated, in base64 for addresses. */
export async function unpackRun(packed) {
  const tooLarge = new Error("The run in this link is larger than a link may hold: ask for its file.");
  if (packed.length > MAX_PACKED) throw tooLarge;
  try {
    const letters = atob(packed.replace(/-/g, "+").replace(/_/g, "/"));
    const bytes = Uint8Array.from(letters, (letter) => letter.charCodeAt(0));
    const reader = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate")).getReader();
    const parts = [];
    for (let size = 0, part = await reader.read(); !part.done; part = await reader.read()) {
      parts.push(part.value);
      size += part.value.length;
      if (size > MAX_UNPACKED) throw tooLarge; // a small link can unpack to gigabytes
    }
    return await new Blob(parts).text();
  } catch (error) {
    throw error === tooLarge ? error : new Error("The run in this link cannot be read: the link was cut or changed.", { cause: error });
  }
}

/** Values kept in a storage of the browser; everything else works without it. */
const keptIn = (storage) => ({
  read(key, otherwise) {
    try { return JSON.parse(storage().getItem(`speculoscope-${key}`)) ?? otherwise; } catch { return otherwise; }
  },
  write(key, value) {
    try { storage().setItem(`speculoscope-${key}`, JSON.stringify(value)); } catch { /* kept for this visit only */ }
  },
});
export const memory = keptIn(() => localStorage);
export const memoryOfTab = keptIn(() => sessionStorage); // until the browser's tab is closed
