"""The spec of a policy, which lanes, page, command line, what-if, evaluation, fit and README read; and all of them:
the modules of this package with a ``SPEC``. There is no other list.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from ..errors import UserError

if TYPE_CHECKING:
    from ..records.trace import Guesses
    from .base import LookaheadPolicy
    from .heads import Architecture, Head, Weights

Value = float | str | None  # of an argument: a number (an int if it is whole), a word, or None

_WHOLE = re.compile(r"0|[1-9]\d{0,7}", re.ASCII)  # one spelling of each, which names a lane
_DECIMAL = re.compile(r"\d{0,8}\.?\d{1,20}(?:e-?\d{1,2})?", re.ASCII)  # what Python and JavaScript read alike
TWENTIETHS = tuple(k / 20 for k in range(1, 20))  # sweep of a threshold from 0 to 1


@dataclass(frozen=True, slots=True)
class Argument:
    """What may follow the colon of a lane: a number from ``low`` to ``high``, or one of ``words``.

    ``default``: the number of a lane without an argument; None leaves it to the policy. ``sweep``: the numbers that
    evaluations and the page try. ``tuned``: those among which ``fit`` and then every machine chooses, and ``effect``
    what the chosen one does ("stops below {}"). ``refused``: sentences for invalid numbers that a user is likely to
    type.
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
    tuned: tuple[float, ...] = ()
    effect: str = ""
    refused: Mapping[str, str] = field(default_factory=dict)

    def value(self, text: str | None) -> Value:
        """``text`` as the policy's argument. Raises UserError with a sentence that says what to write instead."""
        if text is None:
            if self.required:
                raise UserError(self._sentence())
            return self.default
        if text in self.words:
            return text
        if text in self.refused:
            raise UserError(self.refused[text])
        if (_WHOLE if self.whole else _DECIMAL).fullmatch(text):
            number = int(text) if self.whole else float(text)
            if self.low <= number <= self.high:
                return number
        raise UserError(self._sentence())

    def _sentence(self) -> str:
        kind = "a whole number" if self.whole else "a number"
        words = "".join(f", or the word {word}" for word in self.words)
        return (
            f"The {self.meaning} must be {kind} from {self.low:g} to {self.high:g}{words}: "
            f"write for instance {self.example}."
        )


@dataclass(frozen=True, slots=True)
class Score:
    """The score of a policy that compares each drafted token with a threshold.

    ``explanation``: the page's text for the scores. ``along``: the score of every guess of a chain, higher for guesses
    that are likelier to hold; by default the score of the policy's head. ``judges_last``: a stop predicts that the
    token just drafted fails. ``fixed``: the threshold is the lane's argument; otherwise the policy computes it, and the
    page tries multiples of it.
    """

    explanation: str
    along: Callable[[Guesses], Sequence[float]] | None = None
    judges_last: bool = True
    fixed: bool = True


@dataclass(frozen=True, slots=True)
class PolicySpec:
    """One policy. Every module of this package with a ``SPEC`` is found automatically (:func:`all_specs`).

    ``policy`` is made with the lane's argument (if ``argument`` is set) and then the fitted head (if ``head_from`` is
    set). For a learned lane that names no number the argument is the one that ``fit`` chose: the head's ``tuned``
    setting of the argument's ``meaning``.
    ``head_from``: of a learned policy: its head, of the weights, the architecture and the settings that ``fit`` found;
    given others, it or ``policy`` may raise what indexing, reshaping and float() do.
    ``caption`` describes a lane in one line for a newcomer: a text with ``{argument}`` for the lane's argument, or a
    function of that argument (None if absent).
    """

    policy: type[LookaheadPolicy]
    title: str  # on the page
    caption: str | Callable[[str | None], str]
    source: str  # a paper, a library, or "ours"
    order: int  # position in lists, lowest first
    argument: Argument | None = None
    spelled: str = ""  # what the title abbreviates
    offered: tuple[str, ...] = ()  # lanes in the form's list and in the README; by default its name
    evaluated: tuple[str, ...] = ()  # lanes that an evaluation runs by default; those that are offered, but no trees
    score: Score | None = None
    head_from: Callable[[Weights, Architecture, dict[str, Any]], Head] | None = None
    plain: bool = False  # never drafts
    branches: bool = False  # guesses trees: a chain does not hold what they would guess (analysis/trees.py does)
    foresees: bool = False  # knows in advance where guesses fail: not usable

    def __post_init__(self) -> None:
        offered = self.offered or (self.name,)
        object.__setattr__(self, "offered", offered)
        object.__setattr__(self, "evaluated", self.evaluated or (() if self.branches else offered))

    @property
    def name(self) -> str:
        """In lanes, tables and files."""
        return self.policy.name

    @property
    def learned(self) -> bool:
        """Whether it needs a head fitted for the lane's draft."""
        return self.head_from is not None

    @property
    def adapts(self) -> bool:
        """Whether it is usable and varies the SL of its chains."""
        return not (
            self.plain or self.foresees or self.branches or (self.argument is not None and self.argument.required)
        )

    @property
    def looks_at_guesses(self) -> bool:
        """Whether it decides by features of each guess, which prompt lookup lacks."""
        return self.learned or bool(self.policy.needs)

    def check(self, argument: str | None) -> None:
        """Raises UserError if ``argument`` is not valid for the policy."""
        if self.argument is not None:
            self.argument.value(argument)
        elif argument is not None:
            raise UserError(f"The policy {self.name} takes no value: write just {self.name}.")

    def build(self, argument: str | None, head: Head | None = None) -> LookaheadPolicy:
        """A new policy. ``argument`` has been checked; ``head`` is given for a learned policy."""
        make: Callable[..., LookaheadPolicy] = self.policy
        given: list[object] = [] if self.argument is None else [self.argument.value(argument)]
        if head is None:
            return make(*given)
        if self.argument is not None and not isinstance(given[0], int | float):
            given = [head.tuned[self.argument.meaning]]
        return make(*given, head)

    def describe(self, argument: str | None) -> str:
        """The caption of a lane with this argument."""
        if callable(self.caption):
            return self.caption(argument)
        if argument is None and self.argument is not None and self.argument.default is not None:
            argument = f"{self.argument.default:g}"
        return self.caption.replace("{argument}", argument or "")

    def scores_along(self, guesses: Guesses) -> Sequence[float]:
        """The policy's score of each guess, higher if it is likelier to hold; empty if it has none."""
        if self.score is not None and self.score.along is not None:
            return self.score.along(guesses)
        return guesses.scores.get(self.name, [])


@cache
def all_specs() -> Mapping[str, PolicySpec]:
    """The policies by name, in display order."""
    package = import_module(__package__)
    modules = [import_module(f"{__package__}.{module.name}") for module in iter_modules(package.__path__)]
    specs = sorted((m.SPEC for m in modules if hasattr(m, "SPEC")), key=lambda spec: (spec.order, spec.name))
    twice = [name for name, count in Counter(spec.name for spec in specs).items() if count > 1]
    assert not twice, f"several policies are called {', '.join(twice)}: every SPEC needs a name of its own"
    return MappingProxyType({spec.name: spec for spec in specs})


def learned_policies() -> tuple[str, ...]:
    """Names of the policies that ``fit`` trains."""
    return tuple(name for name, spec in all_specs().items() if spec.learned)


def offered_lanes() -> list[str]:
    """The lanes in the form's list, in display order."""
    return [lane for spec in all_specs().values() for lane in spec.offered]


def evaluated_lanes() -> list[str]:
    """The default lanes of an evaluation, in display order."""
    return [lane for spec in all_specs().values() for lane in spec.evaluated]
