// The words of the race and the Learn tab.

export const FATES = { a: "accepted", r: "rejected", d: "dropped", c: "correction", b: "bonus", p: "plain" };
export const LETTERS = Object.fromEntries(Object.entries(FATES).map(([letter, fate]) => [fate, letter]));

export const GLOSSARY = {
  token: "A piece of text that a model reads or writes as a unit: a short word, part of a longer one, punctuation or a space.",
  target: "The big model, whose text we want. One pass of it checks many tokens at once.",
  draft: "The small model (or a lookup in the text so far) that guesses what the target will write.",
  "target pass": "One forward pass of the big model: it writes one token, or checks several guesses and writes one more.",
  "draft pass": "One forward pass of the draft; it guesses one token.",
  SL: "Speculation lookahead: how many tokens the draft guesses in one iteration before the target checks them.",
  "static SL": "The same SL in every iteration, whatever the text.",
  iteration: "One round: the draft guesses some tokens, the target checks all of them in one pass.",
  lane: "One run of the prompt with one policy and one draft. All lanes start from the same prompt.",
  policy: "It decides, guess by guess, whether the draft guesses on or the target checks.",
  speedup: "How many times as fast as plain decoding: its decode time over that of the lane, in the same repeat.",
  prefill: "Reading the prompt, before the first new token. It is the same work in every lane and not part of the speedup.",
  repeat: "Every lane is timed several times, alternating with the others; the text is the same each time.",
  simulated: "Not run: the recorded guesses are replayed with another policy, at what iterations cost in this run.",
  "thrown away": "Guesses that did not become text: the rejected one and those dropped after it.",
  "hit rate": "How often the first guess of an iteration is accepted.",
  "match rate": "How often the draft's first choice is the target's own token, along the final text.",
  "acceptance rate": "Accepted guesses over all guesses. It tends to be higher for a policy that stops earlier.",
  Plain: "The target alone: one pass per token, no draft. Also called autoregressive decoding.",
  Static: "Always guesses the same number of tokens, then checks.",
  Heuristic: "transformers' schedule: two guesses more after an iteration in which all held, one fewer otherwise.",
  DISCO: "A policy (Mamou et al. 2024): a small classifier looks at each guess and decides whether to guess on.",
  "SpecDec++": "A policy (Huang et al. 2024): stops guessing when the chance that some guess has failed is high enough.",
  Confidence: "transformers' dynamic lookahead with a fixed threshold: guesses on while the draft is at least that sure.",
  Entropy: "A policy (SVIP): guesses on while the draft's own choice is clear, that is, of low entropy.",
  AdaEDL: "A policy (Agrawal et al. 2024): guesses on while the draft is sure, and learns how sure it must be.",
  Throughput: "SGLang's policy: as many guesses as gave the most text per second lately.",
  Bandit: "A policy (after BanditSpec and TapOut, 2025): learns from each check which SL would have paid best.",
  "Cost-aware": "A policy of this project: guesses on exactly while one more guess gains more time than it costs.",
  oracle: "Knows in advance which guesses will hold, so it never guesses one too many. A bound for comparison; it cannot be used in practice.",
  "static-opt": "The best static SL: of this run, or, in an evaluation, the one chosen on other prompts than it is tested on.",
  accepted: "A guess that passed the check: it becomes text.",
  rejected: "A guess that failed the check: the target's token is another one.",
  dropped: "A guess after a rejected one: it continued a wrong token, so its check is void.",
  correction: "The target's own token in place of a rejected guess.",
  bonus: "The target's extra token after an iteration in which every guess held.",
  plain: "The target's own token in an iteration in which nothing was guessed.",
};

/** Words only in the Learn tab's glossary: too short or too common to be marked in every text. */
export const MORE_WORDS = {
  rule: "The acceptance rule decides whether a guess is accepted: greedy, speculative sampling, or coupling.",
  greedy: "Both models always take their first choice; a guess holds if the two agree.",
  "speculative sampling": "A guess is kept with probability min(1, p/q); otherwise a token is drawn from max(0, p − q).",
  coupling: "Both models draw with the same random numbers; a guess holds if the two draws agree.",
  "p and q": "The probabilities that the target (p) and the draft (q) give to a token.",
  c: "The time of a guess, divided by that of a target pass over one token.",
  "v(n)": "The time of a target pass over n tokens, divided by that of a pass over one token.",
  cache: "A model's memory of the text read so far (keys and values). It is cut back when guesses are thrown away.",
};
