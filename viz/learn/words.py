"""The words of the field, each in a line, as the Learn place lists and prints them."""

from __future__ import annotations

WORDS: tuple[tuple[str, str], ...] = (
    ("token", "A piece of text, a word or part of one: what a model reads and writes at a time."),
    ("target, big model", "The model whose text is wanted. Every token of the final text is its own choice."),
    ("draft, small model", "A faster source of guesses: a small model, or a look-up in the text so far."),
    ("iteration", "One round: the draft proposes some tokens, the target checks all of them in one pass."),
    ("SL, speculation lookahead", "How many tokens the draft proposes before a check."),
    ("accepted", "A guess that passed the check: it stays."),
    ("rejected", "The first guess that failed the check: the target's own token takes its place."),
    ("dropped", "A guess after a rejected one: it was made on a text that is not to be, and is thrown away."),
    ("correction", "The target's own token at the place of a rejected guess."),
    ("bonus", "The target's own token after guesses that all held: the same pass tells it."),
    ("plain decoding", "The target alone, one token a pass (autoregressive)."),
    ("lane", "One run of one prompt under one policy with one draft."),
    (
        "policy",
        "What decides when to stop guessing: a fixed SL (static), or anew after each guess (dynamic).",
    ),
    ("rule", "What decides whether a guess is accepted: greedy, speculative sampling, or coupling."),
    ("greedy", "Both models always take their first choice; a guess holds where the two agree."),
    (
        "speculative sampling",
        "A guess is kept with probability min(1, p/q); else it is drawn anew from max(0, p - q).",
    ),
    ("coupling", "Both models draw with the same random numbers; a guess holds where the two draws agree."),
    ("p and q", "The probability that the target (p) and the draft (q) give to a token."),
    ("acceptance rate", "Accepted guesses over all guesses. It tells of the policy as much as of the draft."),
    (
        "match rate",
        "Share of the places at which the draft's guess is the target's token: of the draft alone.",
    ),
    ("c", "What a guess costs, over what a pass of the target over one token costs."),
    ("v(n)", "What a pass of the target over n tokens costs, over one over a single token."),
    ("speedup", "Time of plain decoding over time of the lane, for the same text on the same machine."),
    (
        "oracle",
        "A policy that is told beforehand where guesses fail: a ceiling. Nobody could deploy it.",
    ),
    ("static-opt", "The best fixed SL, chosen with hindsight."),
    (
        "DISCO, SpecDec++, cost-aware",
        "Learned policies: a small trained judge says after a guess whether to go on.",
    ),
    ("cache", "What a model remembers of the text read so far. It is cut back where guesses were thrown away."),
    ("prefill", "Reading the prompt, before the first new token. The speedup does not count it."),
)
