"""The target's own greedy text over many prompts, by speculative decoding: the heads' training texts.

The loop is several times faster than plain decoding, and on a CPU batches of prompts are no faster. Its text is the
target's own, as in every lane. Texts are the target's alone, whatever draft helped: they are kept in the cache folder,
so that a fit that was stopped, or one for another draft, continues with them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ..comparison.kept_texts import KeptTexts
from ..comparison.prepare import make_draft, shared_vocabulary
from ..engines.inputs import EncodedPrompt
from ..lookahead.base import LaneContext
from ..lookahead.confidence import Confidence
from ..loop.acceptance import Greedy
from ..loop.clock import make_clock
from ..loop.drafting import start_text
from ..loop.limits import Limits
from ..loop.speculative import speculative_decode
from ..records.trace import Costs

if TYPE_CHECKING:
    from ..engines.pair import Pair

Report = Callable[[float], None]  # called with the share done, 0 to 1
UNUSED_COSTS = Costs(target_s=1.0, v=[1.0], c={}, o=0.0)  # the policy that drafts here needs none


def greedy_texts(
    pair: Pair, draft: str, prompts: Sequence[list[int]], n_tokens: int, report: Report = lambda share: None
) -> list[list[int]]:
    """The target's greedy continuations of ``prompts`` (token ids), each ``n_tokens`` long or up to its end."""
    rule = Greedy(shared_vocabulary(pair, [draft]))
    policy = Confidence()
    source = make_draft(pair, draft, rule, policy.needs)
    limits = Limits(n_tokens, frozenset(pair.tokenizer.eos_ids))
    kept = KeptTexts(pair, n_tokens)
    texts: list[list[int]] = []
    for number, prompt in enumerate(prompts):
        report(number / len(prompts))
        known = kept.get(prompt)
        if known is not None:
            texts.append(known)
            continue
        policy.reset(LaneContext(draft, UNUSED_COSTS, n_tokens))
        start_text(pair.target, [source], EncodedPrompt(prompt))
        clock = make_clock(pair.target.info.device)
        decode = speculative_decode(pair.target, source, policy, rule, EncodedPrompt(prompt), limits, clock)
        texts.append([token for iteration in decode for token in iteration.tokens])
        kept.add(prompt, texts[-1])
    kept.close()
    return texts
