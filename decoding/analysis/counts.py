"""What a lane did, in numbers, and the rates that follow from them; each docstring has its formula."""

from __future__ import annotations

from typing import NamedTuple

from ..records.trace import Trace


class Counts(NamedTuple):
    """Counts of a lane on one text or on several. ``target_passes`` are its iterations, those of the prefill left out;
    the truncated last one of a text (see :mod:`.metrics`) counts unchanged. A rate is None where nothing was decoded.
    """

    target_passes: int
    drafted: int  # tokens: sum of the SLs, or of the sizes of trees
    draft_passes: int  # one for each drafted token, or for each place of a tree
    accepted: int  # drafted tokens that became text
    tokens: int  # of text

    @property
    def thrown_away(self) -> int:
        """Drafted tokens that did not become text: rejected and dropped, ``drafted - accepted``."""
        return self.drafted - self.accepted

    @property
    def tokens_per_target_pass(self) -> float | None:
        """``1 + accepted / target passes``: vLLM's mean acceptance length.

        The target's own token counts in every iteration, even if the truncated last one emitted none.
        """
        return 1 + self.accepted / self.target_passes if self.target_passes else None

    @property
    def block_efficiency(self) -> float | None:
        """``tokens / target passes``, with the truncated last iteration unchanged."""
        return self.tokens / self.target_passes if self.target_passes else None

    @property
    def mean_sl(self) -> float | None:
        """``drafted / target passes``, the truncated last iteration included."""
        return self.drafted / self.target_passes if self.target_passes else None

    @property
    def acceptance_rate(self) -> float | None:
        """``accepted / drafted``; None if nothing was drafted.

        It measures the policy as much as the draft: a policy that stops sooner has a higher rate. Show it together with
        :func:`.metrics.first_guess_hit_rate` and :func:`.metrics.match_rate`.
        """
        return self.accepted / self.drafted if self.drafted else None

    @property
    def discard_rate(self) -> float | None:
        """SpecDec++'s ``N_discarded / N``: drafted tokens thrown away (the rejected one too) per token of text."""
        return self.thrown_away / self.tokens if self.tokens else None

    @property
    def verification_rate(self) -> float | None:
        """SpecDec++'s ``N_target / N``: target passes per token of text."""
        return self.target_passes / self.tokens if self.tokens else None


def counts(trace: Trace) -> Counts:
    """Those of a lane as it ran."""
    iterations = trace.iterations
    return Counts(
        target_passes=len(iterations),
        drafted=sum(one.n_drafted for one in iterations),
        draft_passes=sum(one.n_steps for one in iterations),
        accepted=sum(one.n_accepted for one in iterations),
        tokens=len(trace.output),
    )
