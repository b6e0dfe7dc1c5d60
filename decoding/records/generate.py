"""Runs that were recorded from transformers' ``generate``: the names of its ways to draft, and what it does not show.

Imports no torch; the recorder is in ``decoding.comparison.recorder``.
"""

from __future__ import annotations

from dataclasses import dataclass

from .trace import Run

PLAIN = "autoregressive"  # the policy of a call without a draft
ENGINE = "transformers.generate"  # the target's engine in such a run
_SHOWS = "This run was recorded from transformers' generate, which shows only the tokens that it proposed"
NOT_AGAIN = f"{_SHOWS} and not how to load its models: give compare the prompt, and --target and --draft."
_REPLAYS_NONE = "This run holds no chain to replay"


@dataclass(frozen=True, slots=True)
class Way:
    """One way to draft: its policy's name, its title and a caption for newcomers."""

    name: str
    title: str
    caption: str


_UNIVERSAL = Way("universal", "Universal", "transformers' assistant with another tokenizer than the target's")
WAYS = {  # by the class that drafts; a class of another name is the nearest one that it extends
    "CandidateGenerator": Way("other", "Another way", "a way to guess that this version does not know"),
    "AssistedCandidateGenerator": Way("assisted", "Assisted", "transformers' assisted generation with a smaller model"),
    "AssistedCandidateGeneratorDifferentTokenizers": _UNIVERSAL,
    "UniversalSpeculativeDecodingGenerator": _UNIVERSAL,
    "PromptLookupCandidateGenerator": Way("lookup", "Prompt lookup", "no small model: it copies from the text so far"),
    "EarlyExitCandidateGenerator": Way("early-exit", "Early exit", "the target's own first layers guess"),
    "MTPCandidateGenerator": Way("mtp", "MTP heads", "the target's own heads for later tokens guess"),
    "SinglePositionMultiTokenCandidateGenerator": Way(
        "multi-token", "Multi-token", "a smaller model guesses from the target's keys and values"
    ),
    "DFlashTokenCandidateGenerator": Way("dflash", "DFlash", "a smaller model guesses a block of tokens in one pass"),
}
TITLES = {PLAIN: "Plain"} | {way.name: way.title for way in WAYS.values()}
CAPTIONS = {PLAIN: "the target alone"} | {way.name: way.caption for way in WAYS.values()}


@dataclass(frozen=True, slots=True)
class Call:
    """A lane of such a run: ``draft/way#number``. Without a draft it is the run's default one."""

    draft: str | None
    way: str
    number: int = 1

    @property
    def lane(self) -> str:
        """As a lane of the run file."""
        return (f"{self.draft}/" if self.draft else "") + self.way + (f"#{self.number}" if self.number > 1 else "")

    @property
    def name(self) -> str:
        """As the page calls it."""
        title = TITLES[self.way] + (f", call {self.number}" if self.number > 1 else "")
        return f"{title} · {self.draft}" if self.draft else title


def call_of(lane: str) -> Call | None:
    """The call that ``lane`` names; None if it is a lane of this program's own loop."""
    draft, _, rest = lane.rpartition("/")
    way, _, number = rest.partition("#")
    return Call(draft or None, way, int(number) if number.isdecimal() else 1) if way in TITLES else None


def is_recorded(run: Run) -> bool:
    return run.pair.target.engine == ENGINE


def why_no_chain(run: Run) -> str:
    """Why ``run`` holds no chain, and what to do, as a sentence."""
    if is_recorded(run):
        return f"{_SHOWS}: to simulate other lanes, run its prompt here, with compare."
    if run.settings.rule == "sampling":
        return f"{_REPLAYS_NONE} (plain speculative sampling records none): record one with another acceptance rule."
    if not run.pair.drafts:
        return f"{_REPLAYS_NONE}, since none of its lanes guesses: add a lane such as static:5."
    return f"{_REPLAYS_NONE}: it is recorded after the first timing. If this run was stopped before, run it again."
