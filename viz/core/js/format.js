/* Numbers and texts as the page writes them. */

export const clamp = (x, low, high) => Math.min(high, Math.max(low, x));
export const fixed = (x, digits = 2) => Number(x).toFixed(digits);
export const small = (x) => fixed(x, x > 0 && x < 0.1 ? 3 : 2);
export const times = (x) => `${fixed(x)}×`;
export const count = (n, one, many = `${one}s`) => `${n === 0 ? "no" : n.toLocaleString("en")} ${n === 1 ? one : many}`;
/** The nearest whole number; of two equally near the even one, as Python writes it. */
export const nearest = (x) => (x % 1 === 0.5 && Math.floor(x) % 2 === 0 ? Math.floor(x) : Math.round(x));
export const percent = (p) => (p >= 0.995 && p < 1 ? "over 99%" : p < 0.005 ? "under 1%" : `${nearest(100 * p)}%`);
export const clockText = (seconds, total) => (total < 0.5 ? `${(seconds * 1000).toFixed(0)} ms` : `${seconds.toFixed(2)} s`);

/** `text` with visible blanks, since most tokens begin with one. */
export const visible = (text) => text.replace(/\n/g, "↵").replace(/\t/g, "⇥").replace(/ /g, "·");
export const quoted = (text) => `“${text === "" ? "∅" : visible(text)}”`;
