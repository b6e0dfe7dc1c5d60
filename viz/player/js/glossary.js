// The page's words, each explained one tap away; and the guide behind "?".

const GLOSSARY = {
  token: "A piece of text that a model reads or writes at once: a short word, part of a longer one, a sign or a blank.",
  target: "The big model, whose text we want. One pass of it checks many tokens at once.",
  draft: "The small model (or a lookup in the text so far) that guesses what the target will write.",
  "target pass": "One run of the big model over the tokens it is given: it writes one token, or checks several guesses.",
  "draft pass": "One run of the draft; it guesses one token.",
  SL: "Speculation lookahead: how many tokens the draft guesses in one iteration before the target checks them.",
  "static SL": "The same SL in every iteration, whatever the text.",
  iteration: "One round: the draft guesses some tokens, the target checks all of them in one pass.",
  lane: "One run of the prompt under one policy and with one draft. All lanes start at the same text.",
  policy: "What decides, guess by guess, whether to guess on or to have the target check.",
  speedup: "How many times faster than plain decoding: its decode time over that of the lane, in the same repeat.",
  prefill: "Reading the prompt, before the first new token. It is the same work in every lane and not part of the speedup.",
  repeat: "Every lane is timed several times, in turns; the text is the same each time.",
  simulated: "Not run: the recorded guesses are replayed under another policy, at the costs measured with the run.",
  "thrown away": "Guesses that did not become text: the rejected one and those dropped after it.",
  "hit rate": "How often the first guess of an iteration is accepted.",
  "match rate": "How often the draft's first choice is the target's own token, along the final text.",
  "acceptance rate": "Accepted guesses over all guesses. A policy that stops sooner has a higher one.",
  Plain: "The target alone: one pass a token, no draft. Also called autoregressive decoding.",
  Static: "Always guesses the same number of tokens, then checks.",
  Heuristic: "transformers' schedule: two guesses more after an iteration in which all held, one fewer otherwise.",
  DISCO: "A policy (Mamou et al. 2024): a small classifier looks at each guess and decides whether to guess on.",
  "SpecDec++": "A policy (Huang et al. 2024): stops guessing when the chance that some guess has failed is high enough.",
  "Cost-aware": "A policy of this project: guesses on exactly while one more guess gains more time than it costs.",
  oracle: "Told beforehand which guesses hold, so it never guesses one too many. A bound to compare with, not a policy to use.",
  "static-opt": "The best static SL: of this run, or, in an evaluation, the one chosen on other prompts than it is tested on.",
  accepted: "A guess that passed the check: it becomes text.",
  rejected: "The first guess of an iteration that failed the check.",
  dropped: "A guess after a rejected one: it was made on a text that is not to be, so its check is void.",
  correction: "The target's own token in the place of a rejected guess.",
  bonus: "The target's extra token after an iteration in which every guess held.",
  plain: "The target's own token in an iteration in which nothing was guessed.",
};
const SPELLINGS = {
  tokens: "token", lanes: "lane", iterations: "iteration", policies: "policy", repeats: "repeat", drafts: "draft",
  "target passes": "target pass", "draft passes": "draft pass", Simulated: "simulated", Prefill: "prefill",
  "first-guess hit rate": "hit rate", Oracle: "oracle", "the oracle": "oracle", "match rate of the draft": "match rate",
  "static SLs": "static SL", SLs: "SL",
};
const WORDS = [...Object.keys(GLOSSARY), ...Object.keys(SPELLINGS)].sort((a, b) => b.length - a.length);
const ESCAPED = WORDS.map((word) => word.replace(/[+]/g, "\\+"));
const TERM = new RegExp(`(?<![\\w-])(?:${ESCAPED.join("|")})(?![\\w-]|\\+\\+)`, "g");

/** The word of the glossary that `text` is, "" for none. */
const termOf = (text) => (text in GLOSSARY ? text : SPELLINGS[text] || "");

function termButton(text) {
  const node = el("button", "sd-term", text);
  node.type = "button";
  node.sdTerm = termOf(text);
  return node;
}

/** `text` as nodes; the words of the glossary are buttons, each where it first stands. */
function termed(text) {
  const nodes = [], known = new Set();
  let from = 0;
  for (const found of String(text).matchAll(TERM)) {
    const term = termOf(found[0]);
    if (known.has(term)) continue;
    known.add(term);
    nodes.push(text.slice(from, found.index), termButton(found[0]));
    from = found.index + found[0].length;
  }
  nodes.push(text.slice(from));
  return nodes.filter((node) => node !== "");
}

/** Write `text` into `node`, its words one tap away from what they mean. */
function say(node, text) { node.replaceChildren(...termed(text || "")); }

function explanation(term) {
  const head = el("div", "sd-pop-head");
  head.append(el("b", "", term));
  return [head, el("p", "", GLOSSARY[term])];
}

/** Words outside of a player, such as those of a report: their explanations come up in a pop-up of `root`. */
function explainTerms(root) {
  const popup = new Popup(root);
  root.addEventListener("click", (event) => {
    const term = event.target.closest(".sd-term");
    if (term) popup.show(term, explanation(term.sdTerm));
    else if (!event.target.closest(".sd-pop")) popup.hide();
  });
  root.addEventListener("keydown", (event) => { if (event.key === "Escape") popup.hide(); });
}

const KEYS = [["space", "play or pause"], ["← →", "previous, next iteration of the chosen lane"], ["home end", "start, end"],
  ["+ −", "faster, slower"], ["f", "final text only"], ["?", "this guide"], ["esc", "close it"],
  ["in a text: ← →", "token by token, with what decided each"]];

function definitions(cls, rows) {
  const list = el("dl", cls);
  for (const [word, meaning] of rows) list.append(el("dt", "", word), el("dd", "", meaning));
  return list;
}

/** What one looks at, what the colours mean, every word, the keys. */
function guide(legend) {
  const dialog = el("dialog", "sd-guide");
  dialog.setAttribute("aria-label", "Guide: what one sees, words, keys");
  const close = button("sd-close", "✕", "Close", () => dialog.close());
  dialog.append(close, el("h2", "", "What you see"), el("p", "",
    "The same text is written several times, each lane under another policy. On the time axis, a dark bar is a pass of the "
    + "target and a thin one a guess of the draft: long guesses save passes where they hold and waste time where they "
    + "fail. Below, every token is coloured by its fate; shaded and unshaded stretches are iterations, one after the other."));
  dialog.append(legend, el("h2", "", "Words"), definitions("sd-words", Object.entries(GLOSSARY)));
  dialog.append(el("h2", "", "Keyboard"), definitions("sd-keys", KEYS));
  dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
  return dialog;
}
