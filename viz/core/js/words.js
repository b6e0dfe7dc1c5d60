// The words of the race and the Learn tab.

export const FATES = { a: "accepted", r: "rejected", d: "dropped", c: "correction", b: "bonus", p: "plain" };
export const LETTERS = Object.fromEntries(Object.entries(FATES).map(([letter, fate]) => [fate, letter]));

export const GLOSSARY = {
  token: "A piece of text that a model reads or writes as a unit: a short word, part of a longer one, punctuation or a space.",
  target: "The big model, whose text we want. One pass of it checks many tokens at once.",
  draft: "The small model that guesses what the target will write. It can also be a lookup in the text so far.",
  "target pass": "One forward pass of the big model: it writes one token, or checks several guesses and writes one more.",
  "draft pass": "One forward pass of the draft; it guesses one token.",
  SL: "Speculation lookahead: how many tokens the draft guesses in one iteration before the target checks them.",
  "static SL": "The same SL in every iteration, whatever the text.",
  iteration: "One round: the draft guesses some tokens, the target checks all of them in one pass.",
  lane: "One run of the prompt with one policy and one draft. All lanes start from the same prompt.",
  policy: "The rule that decides, after each guess, whether the draft keeps guessing or the target checks.",
  speedup: "How many times as fast as plain decoding: plain decoding's time divided by the lane's, in the same repeat.",
  prefill: "Reading the prompt, before the first new token. It does not count towards the speedup; a draft reads the prompt, too.",
  repeat: "One timing of a lane. Every lane is timed several times, in turn with the others; the text is the same each time.",
  simulated: "Not run: the recorded guesses are replayed with another policy, at the costs of this run's iterations.",
  "thrown away": "Guesses that did not become text: the rejected one and those dropped after it.",
  "hit rate": "How often the first guess of an iteration is accepted.",
  "match rate": "How often the draft's first choice is the target's own token, along the final text.",
  "acceptance rate": "Accepted guesses divided by all guesses. It tends to be higher for a policy that stops earlier.",
  Plain: "The target alone: one pass per token, no draft. Also called autoregressive decoding.",
  Static: "Always guesses the same number of tokens, then checks.",
  Heuristic: "transformers' schedule: two more guesses after an iteration in which all held, one fewer otherwise.",
  DISCO: "A policy (Mamou et al. 2024): a small classifier looks at each guess and decides whether to keep guessing.",
  "SpecDec++": "A policy (Huang et al. 2024): stops guessing when the chance that a guess has failed is high enough.",
  Confidence: "transformers' dynamic lookahead with a fixed threshold: keeps guessing while the draft is at least that sure.",
  Entropy: "A policy (SVIP): keeps guessing while the draft's choice is clear (low entropy).",
  AdaEDL: "A policy (Agrawal et al. 2024): keeps guessing while the draft is sure, and learns how sure it must be.",
  Throughput: "SGLang's policy: uses the SL with the most expected tokens per second, from how often guesses held recently.",
  Bandit: "A policy (after BanditSpec and TapOut, 2025): learns from each check which SL would have been best.",
  "Cost-aware": "A policy of this project: keeps guessing exactly while one more guess saves more time than it costs.",
  oracle: "Knows in advance which guesses will hold, so it never makes one too many. An upper bound for comparison; it cannot be used in practice.",
  "static-opt": "The best static SL: of this run or, in an evaluation, the one chosen on other prompts than the test prompts.",
  accepted: "A guess that passed the check: it becomes text.",
  rejected: "A guess that failed the check: the target's token is a different one or, with speculative sampling, the draw fell against it.",
  dropped: "A guess after a rejected one: it follows a wrong token, so its check does not count.",
  correction: "The target's own token in place of a rejected guess; with speculative sampling drawn from max(0, p − q).",
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
