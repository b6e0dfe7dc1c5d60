/* Speculoscope's player: replays one run, several lanes on one clock. Framework-free, no build step.
 *
 *   const player = Speculoscope.mount(root, {details, autoplay, globalKeys});
 *   details: async (lane index, iteration, index) => dict of payload.py's token_details
 *   player.load(payload)        payload.py's player_payload, as an object
 *   player.apply({run, seq, events: [{kind, data}]})   live: events of decoding/records/events.py. "iterations" data also
 *                               carries texts {id: [text, hex bytes | null]}; "finished" data carries {payload}.
 *   player.seek(seconds) · player.goTo({lane, position | iteration}) · player.play() · player.pause() · player.destroy()
 *   root listens for 'sd:goto' {lane, position | iteration} and fires 'sd:position' {lane, position, t}, and 'sd:end' when
 *   a replay has ended.
 *
 * Texts of models and users reach the page only through textContent. The layout does not change while the clock runs:
 * tokens are laid out once and only become visible, so that frames are short and the text does not move.
 */

const global = window;
const TICK = 1e-7; // payload times are whole multiples of this many seconds
const FATES = { a: "accepted", r: "rejected", d: "dropped", c: "correction", b: "bonus", p: "plain" };
const LETTERS = { accepted: "a", rejected: "r", dropped: "d", correction: "c", bonus: "b", plain: "p" };
const SPEEDS = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 4];
const DENOMINATORS = [1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 25, 30, 40, 50, 60, 80, 100];
const REPLAY_SECONDS = 8;  // default duration of the slowest lane
const SVG = "http://www.w3.org/2000/svg";
const NARROW = "(max-width: 760px)";

function el(tag, cls, text) {
  const node = document.createElement(tag);
  if (cls) node.className = cls;
  if (text != null) node.textContent = text;
  return node;
}

function svg(tag, attributes) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes || {})) node.setAttribute(name, value);
  return node;
}

function button(cls, label, title, act) {
  const node = el("button", cls, label);
  node.type = "button";
  if (title) { node.title = title; node.setAttribute("aria-label", title); }
  node.addEventListener("click", act);
  return node;
}

const clamp = (x, low, high) => Math.min(high, Math.max(low, x));
const times = (x) => `${x.toFixed(2)}×`;

function clockText(seconds, total) {
  return total < 0.5 ? `${(seconds * 1000).toFixed(0)} ms` : `${seconds.toFixed(2)} s`;
}

function speedText(speed) {
  if (speed === 1) return "real time";
  return speed > 1 ? `${speed}× real time` : `1/${Math.round(1 / speed)} of real time`;
}

/** The speed at which `seconds` take about REPLAY_SECONDS, rounded to a simple number. */
function fittingSpeed(seconds) {
  const wanted = REPLAY_SECONDS / Math.max(seconds, 1e-6);
  if (wanted <= 0.75) return wanted < 0.375 ? 4 : 2;
  const near = (best, d) => (Math.abs(Math.log(d / wanted)) < Math.abs(Math.log(best / wanted)) ? d : best);
  return 1 / DENOMINATORS.reduce(near);
}

const SHAPES = ["square", "circle", "triangle-up", "diamond", "triangle-down", "circle-open", "square-open", "cross"];

/** Colour and shape of a lane: those that it has everywhere, or, if unknown, those of its number. */
function laneLook(lane, number) {
  const { colour, symbol } = lane.look || { colour: `--sd-l${number % 8}`, symbol: SHAPES[number % 8] };
  return { cls: `sd-lane sd-shape-${symbol}`, ink: `var(${colour})` };
}
