"""What a policy says of itself: lanes, page, command line, what-if, evaluation, fit and README all read it here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..errors import UserError

if TYPE_CHECKING:
    from ..records.trace import Guesses
    from .base import LookaheadPolicy
    from .heads import Head
    from .policy_files import PolicyFile

Value = float | str | None  # of an argument: a number (an int where it is whole), a word, or None where there is none

TWENTIETHS = tuple(k / 20 for k in range(1, 20))  # where a threshold from 0 to 1 is swept


@dataclass(frozen=True, slots=True)
class Argument:
    """What may follow the colon of a lane: a number from ``low`` to ``high``, or one of ``words``.

    ``default``: the number of a lane that gives none; None leaves it to the policy. ``sweep``: the numbers at which
    evaluations and the page try the policy. ``refused``: a sentence for a number that is no number of this policy but
    that somebody may well type.
    """

    meaning: str  # "threshold"
    low: float
    high: float
    example: str  # a whole lane, for sentences: "static:5"
    whole: bool = False
    required: bool = False
    default: float | None = None
    words: tuple[str, ...] = ()
    sweep: tuple[float, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)

    def value(self, text: str | None) -> Value:
        """``text`` as the policy takes it. Raises UserError with a sentence that says what to write instead."""
        if text is None and not self.required:
            return self.default
        if text in self.words:
            return text
        if text in self.refused:
            raise UserError(self.refused[text])
        number = self._number(text or "")
        if number is None or not self.low <= number <= self.high:  # NaN is refused: it compares false
            raise UserError(self._sentence())
        return number

    def _number(self, text: str) -> float | None:
        if self.whole:
            return int(text) if text.isascii() and text.isdigit() and len(text) < 9 else None
        try:
            return float(text)
        except ValueError:
            return None

    def _sentence(self) -> str:
        kind = "a whole number" if self.whole else "a number"
        words = "".join(f", or the word {word}" for word in self.words)
        return (
            f"The {self.meaning} must be {kind} from {self.low:g} to {self.high:g}{words}: "
            f"write for instance {self.example}."
        )


@dataclass(frozen=True, slots=True)
class Score:
    """For policies that compare a score of each drafted token with a threshold.

    ``explanation``: what the page says beside the scores. ``along``: the score of every guess of a chain, the higher
    the likelier it holds; by default what the policy's head said. ``judges_last``: the policy stops because it doubts
    the token just drafted, so that a stop predicts this token to fail. ``fixed``: its threshold is the lane's argument;
    otherwise the policy makes one of its own, and the page tries multiples of it.
    """

    explanation: str
    along: Callable[[Guesses], Sequence[float]] | None = None
    judges_last: bool = True
    fixed: bool = True


@dataclass(frozen=True, slots=True)
class PolicySpec:
    """One policy. A module of this package that holds one as ``SPEC`` is known everywhere; see :mod:`.specs`.

    ``make`` gets the lane's argument (if ``argument`` is set) and then the fitted head (if ``head_from`` is set).
    ``caption`` describes a lane in one line for someone who sees it for the first time: a text in which
    ``{argument}`` stands for the lane's argument, or a function of that argument (None where there is none).
    """

    name: str  # as lanes, tables and files write it
    title: str  # as the page writes it
    caption: str | Callable[[str | None], str]
    source: str  # where it comes from: a paper, a library, or "ours"
    make: Callable[..., LookaheadPolicy]
    order: int  # place in lists, the lowest first
    argument: Argument | None = None
    offered: tuple[str, ...] = ()  # lanes in the form's list and in the README
    evaluated: tuple[str, ...] = ()  # lanes that an evaluation runs unless it is told which
    score: Score | None = None
    head_from: Callable[[PolicyFile], Head] | None = None  # a learned policy: from what ``fit`` wrote to its head
    plain: bool = False  # it never drafts
    foresees: bool = False  # it is told beforehand where guesses fail: a bound, not usable

    @property
    def learned(self) -> bool:
        """It needs a head that was fitted for the lane's draft."""
        return self.head_from is not None

    @property
    def adapts(self) -> bool:
        """It can be used, and does not draft the same number every time."""
        return not (self.plain or self.foresees or (self.argument is not None and self.argument.required))

    @property
    def looks_at_guesses(self) -> bool:
        """It decides by what the draft computed for each guess, which prompt lookup has not."""
        example = None if self.argument is None else self.argument.example.rpartition(":")[2]
        return self.learned or bool(self.build(example).needs)

    def check(self, argument: str | None) -> None:
        """Raises UserError where ``argument`` cannot follow the policy's name."""
        if self.argument is not None:
            self.argument.value(argument)
        elif argument is not None:
            raise UserError(f"The policy {self.name} takes no value: write just {self.name}.")

    def build(self, argument: str | None, head: Head | None = None) -> LookaheadPolicy:
        """The policy, new. ``argument`` has been checked; ``head`` is there for a learned policy."""
        given: list[object] = [] if self.argument is None else [self.argument.value(argument)]
        return self.make(*given, head) if self.learned else self.make(*given)

    def describe(self, argument: str | None) -> str:
        """The caption of a lane with this argument."""
        if callable(self.caption):
            return self.caption(argument)
        default = None if self.argument is None else self.argument.default
        shown = argument if argument is not None else "" if default is None else f"{default:g}"
        return self.caption.replace("{argument}", shown)

    def scores_along(self, guesses: Guesses) -> Sequence[float]:
        """The policy's score of each guess, the higher the likelier it holds; empty where it has none."""
        if self.score is not None and self.score.along is not None:
            return self.score.along(guesses)
        return guesses.scores.get(self.name, [])
