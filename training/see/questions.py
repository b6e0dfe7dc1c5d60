"""Questions about scenes and their answers, in plain sentences with set phrases around what the picture decides.

In an answer, braces stand around the words that only the picture can tell: "There are {two cats} in the picture."
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from decoding.pictures.scenes import COLORS, DIGITS, SHAPES, Scene, What, kinds

NUMBERS = ("no", "one", "two", "three", "four", "five", "six")
_PLURALS = {
    "mouse": "mice",
    "wolf": "wolves",
    "snowman": "snowmen",
    "fish": "fish",
    "sheep": "sheep",
    "deer": "deer",
    "squid": "squid",
    "leaf": "leaves",
    "die": "dice",
    "broccoli": "broccoli",
    "cactus": "cacti",
}


@dataclass(frozen=True, slots=True)
class Question:
    about: str
    """The kind of question: a key of QUESTIONS."""
    text: str
    marked: str
    """The answer with braces."""

    @property
    def answer(self) -> str:
        return self.marked.replace("{", "").replace("}", "")


def name_of(what: What) -> str:
    return f"{what.color} {what.kind}".strip()


def one(what: What) -> str:
    """The thing with its article."""
    name = name_of(what)
    return f"{'an' if name[0] in 'aeio' or name.startswith('umb') else 'a'} {name}"


def several(count: int, what: What) -> str:
    """``count`` of the thing: "no cats", "one cat", "two cats"."""
    return f"{NUMBERS[count]} {name_of(what) if count == 1 else plural(name_of(what))}"


def plural(name: str) -> str:
    if name in _PLURALS:
        return _PLURALS[name]
    if name.endswith(("s", "x", "ch", "sh")) or name in {"potato", "tomato", "volcano"}:
        return name + "es"
    if name.endswith("y") and name[-2] not in "aeo":
        return name[:-1] + "ies"
    return name + "s"


def listed(parts: Sequence[str]) -> str:
    """ "a, b and c", each part in braces."""
    marked = [f"{{{part}}}" for part in parts]
    return marked[0] if len(marked) == 1 else f"{', '.join(marked[:-1])} and {marked[-1]}"


def _what(scene: Scene, random: Random) -> Question:
    counts = Counter(thing.what for thing in scene.things)
    parts = [one(what) if count == 1 else several(count, what) for what, count in counts.items()]
    text = random.choice(("What is in the picture?", "What do you see in the picture?"))
    verb = "is" if counts[scene.things[0].what] == 1 else "are"
    return Question("what", text, f"There {verb} {listed(parts)} in the picture.")


def _describe(scene: Scene, random: Random) -> Question:
    text = random.choice(("Describe the picture.", "Describe what you see.", "Tell me about the picture."))
    parts = listed([one(thing.what) for thing in scene.things])
    if len(scene.things) == 1:
        return Question("describe", text, f"There is {{one}} thing in the picture. It is {parts}.")
    number = NUMBERS[len(scene.things)]
    return Question(
        "describe", text, f"There are {{{number}}} things in the picture. From left to right, they are {parts}."
    )


def _how_many(scene: Scene, random: Random) -> Question:
    text = random.choice(("How many things are in the picture?", "How many things do you see?"))
    number = NUMBERS[len(scene.things)]
    verb, noun = ("is", "thing") if number == "one" else ("are", "things")
    return Question("how many", text, f"There {verb} {{{number}}} {noun} in the picture.")


def _how_many_of(scene: Scene, random: Random) -> Question:
    what = random.choice(scene.things).what if random.random() < 0.8 else _absent(scene, random)
    count = sum(thing.what == what for thing in scene.things)
    verb = "is" if count == 1 else "are"
    text = f"How many {plural(name_of(what))} are in the picture?"
    return Question("how many of", text, f"There {verb} {{{several(count, what)}}} in the picture.")


def _is_there(scene: Scene, random: Random) -> Question:
    there = random.random() < 0.5
    what = random.choice(scene.things).what if there else _absent(scene, random)
    text = f"Is there {one(what)} in the picture?"
    if there:
        return Question("is there", text, f"{{Yes}}, there is {one(what)} in the picture.")
    return Question("is there", text, f"{{No}}, there is not {one(what)} in the picture.")


def _color(scene: Scene, random: Random) -> Question | None:
    signs = Counter(thing.what.kind for thing in scene.things if thing.what.color)
    whats = [thing.what for thing in scene.things if signs[thing.what.kind] == 1]
    if not whats:
        return None
    what = random.choice(whats)
    noun = f"number {what.kind}" if what.kind in DIGITS else what.kind
    return Question("color", f"What color is the {noun}?", f"The {noun} is {{{what.color}}}.")


def _beside(scene: Scene, random: Random) -> Question | None:
    counts = Counter(thing.what for thing in scene.things)
    places = [place for place, thing in enumerate(scene.things) if counts[thing.what] == 1]
    if not places or len(scene.things) == 1:
        return None
    place, (side, step) = random.choice(places), random.choice((("left", -1), ("right", 1)))
    there = 0 <= place + step < len(scene.things)
    found = one(scene.things[place + step].what) if there else "nothing"
    where = f"o the {side} of the {name_of(scene.things[place].what)}"
    return Question("beside", f"What is t{where}?", f"T{where}, there is {{{found}}}.")


def _absent(scene: Scene, random: Random) -> What:
    there = {thing.what for thing in scene.things}
    while True:
        kind = random.choice(kinds())
        what = What(kind, random.choice(tuple(COLORS)) if kind in SHAPES + DIGITS else "")
        if what not in there:
            return what


QUESTIONS: dict[str, Callable[[Scene, Random], Question | None]] = {
    "what": _what,
    "describe": _describe,
    "how many": _how_many,
    "how many of": _how_many_of,
    "is there": _is_there,
    "color": _color,
    "beside": _beside,
}

_SHARES = {"beside": 5, "what": 1.5, "color": 0.7, "how many": 0.7, "how many of": 1.5, "is there": 3, "describe": 0.3}
"""How often a kind of question is asked, over the others: more often where it is harder."""


def ask(scene: Scene, random: Random, count: int) -> list[Question]:
    """``count`` questions by their shares, or fewer where some are equal or the scene does not allow them."""
    abouts = random.choices(list(_SHARES), list(_SHARES.values()), k=count)
    found = (QUESTIONS[about](scene, random) for about in abouts)
    return list(dict.fromkeys(question for question in found if question)) or [_what(scene, random)]


SAMPLES = {
    "what": "what: the whole answer",
    "how many": "how many things",
    "how many of": "how many of a kind",
    "is there": "is there a ...",
    "color": "what color",
    "beside": "what is to the left or right of ...",
}
"""The kinds of questions that a report measures, with their titles."""
