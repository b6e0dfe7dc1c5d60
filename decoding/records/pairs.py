"""The available pairs: embedded ones on disk and presets from the Hub (models/presets.json). Imports no torch."""

from __future__ import annotations

import functools
import json
import os
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from ..errors import UserError, first_fault
from .weights import read_record

MODELS = Path(__file__).resolve().parents[2] / "models"
DraftWeights = Literal["auto", "int8", "int4"]


@dataclass(frozen=True, slots=True)
class ModelFree:
    """A draft that every pair has because it needs no model (its code: ``decoding.loop.drafting``): ``source`` names
    what guesses; ``caption`` explains it to newcomers.
    """

    name: str
    source: str
    caption: str


PROMPT_LOOKUP = ModelFree("ngram", "prompt lookup", "no small model: it copies from the text so far")
LONGEST_MATCH = 3  # tokens at the end of the text that prompt lookup finds again
MODEL_FREE = {one.name: one for one in (PROMPT_LOOKUP,)}
DRAFT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]*")  # what a lane can begin with


@dataclass(frozen=True, slots=True)
class DraftKind:
    """What guesses, as pair.json says it: the ``kind`` of draft, the ``layers`` of the target whose hidden states it
    reads (counted as in transformers' ``hidden_states``; -1 is the input of the head), and whether it ``sees`` the
    picture tokens of a prompt. ``purpose``: the only kind of prompt that it was made for; it is not compared on others.
    """

    kind: str = "model"
    layers: tuple[int, ...] = ()
    sees: bool = False
    purpose: str = ""


TEXT_MODEL = DraftKind()  # a language model that reads the text
FEATURE = "feature"  # the kind of a draft that also reads hidden states of the target (EAGLE-3, Li et al. 2025)
HEADS = "heads"  # the kind of parallel heads on the target's last hidden state (Medusa-1, Cai et al. 2024)
BLOCK = "block"  # the kind of a feature draft that guesses a block in one pass (as DFlash, Chen et al. 2026)


class _DraftEntry(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")
    folder: str
    kind: str = TEXT_MODEL.kind
    layers: list[Annotated[int, Field(ge=-1)]] = []
    sees: bool = False
    purpose: str = ""


def _with_folder(given: Any) -> Any:
    return {"folder": given} if isinstance(given, str) else given


class _PairFile(BaseModel):
    """The content of a pair.json; a draft is a folder, or an object that also says what it is."""

    model_config = ConfigDict(strict=True, extra="forbid")
    target: str
    drafts: dict[str, Annotated[_DraftEntry, BeforeValidator(_with_folder)]]
    default_draft: str
    draft_weights: DraftWeights | dict[str, DraftWeights] = "auto"  # of all drafts, or of some
    name: Annotated[str, Field(pattern=r"^([A-Za-z0-9][\w.-]*)?$")] = ""
    title: str = ""
    description: str = ""
    about: str = ""
    pictures: str = ""
    chat: bool = False

    @model_validator(mode="after")
    def _names_its_drafts(self) -> _PairFile:
        for name in (self.default_draft, *self.weights()):
            if name not in self.drafts:
                raise ValueError(f"{name} is not among its drafts")
        for name in MODEL_FREE.keys() & self.drafts.keys():
            raise ValueError(f"{name} is the name of a draft that every pair has")
        for name, entry in self.drafts.items():
            if not DRAFT_NAME.fullmatch(name):
                raise ValueError(f"{name!r} cannot be the name of a draft, which lanes begin with")
            if entry.layers and entry.kind == TEXT_MODEL.kind:
                raise ValueError(f"{name} has layers of the target to read, and no kind of draft that reads them")
        return self

    def weights(self) -> dict[str, DraftWeights]:
        given = self.draft_weights
        return given if isinstance(given, dict) else dict.fromkeys(self.drafts, given)


@dataclass(slots=True)
class PairDescription:
    """A pair before anything is loaded."""

    name: str
    title: str
    kind: str  # "embedded", "preset"
    target: str  # folder or Hub id
    drafts: dict[str, str]  # name -> folder or Hub id, in the order of presentation
    default_draft: str
    billions: float = 0.0  # parameters of a preset's target; 0: not said, and for those that ship
    description: str = ""
    draft_weights: dict[str, DraftWeights] = field(default_factory=dict)  # see weights_of
    draft_kinds: dict[str, DraftKind] = field(default_factory=dict)  # see kind_of
    loadable: bool = True
    reason: str = ""  # a sentence: why it cannot load, or what it needs
    chat: bool = False  # prompts go through the chat template
    fitted: dict[str, list[str]] = field(default_factory=dict)  # draft name -> its fitted policies
    note: str = ""  # a sentence: why this pair replaces the default one
    card: str = ""  # address of the target's model card
    licence: str = ""  # of the target
    best_sl: dict[str, int] = field(default_factory=dict)  # draft name -> the best static SL for this machine's costs
    set_here: dict[str, str] = field(default_factory=dict)  # draft name -> what those costs and trials chose, in words
    curves: dict[str, dict[str, Any]] = field(default_factory=dict)  # draft name -> what is kept of its costs here
    about: str = ""  # what the target can do, in a few words shown next to its name
    pictures: str = ""  # folder of the picture reader with which the target reads scenes
    photographs: bool = False  # the target reads photographs

    def weights_of(self, draft: str) -> str:
        """How the draft's weights are held on a CPU unless a dtype is requested: "auto", "int8" or "int4"."""
        return self.draft_weights.get(draft, "auto")

    def shown(self, place: str) -> str:
        """An embedded model by its folder's name, another one by its Hub id."""
        return Path(place).name if self.kind == "embedded" else place

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready, without this machine's paths."""
        drafts = {name: self.shown(place) for name, place in self.drafts.items()}
        return asdict(self) | {
            "target": self.shown(self.target),
            "drafts": drafts,
            "pictures": self.shown(self.pictures),
        }

    @property
    def text_draft(self) -> str:
        """The default draft, or if that reads more than the text, the first draft that other engines know."""
        names = self.default_draft, *self.drafts
        return next((name for name in names if self.kind_of(name) == TEXT_MODEL), self.default_draft)

    def kind_of(self, draft: str) -> DraftKind:
        """The draft's kind; a language model unless pair.json says otherwise."""
        return self.draft_kinds.get(draft, TEXT_MODEL)


PRESETS = tuple(TypeAdapter(list[PairDescription]).validate_json((MODELS / "presets.json").read_bytes()))


def is_public() -> bool:
    """Whether this is a public deployment (a Space, or SPECULOSCOPE_PUBLIC=1), where only known pairs load."""
    return bool(os.environ.get("SPACE_ID")) or os.environ.get("SPECULOSCOPE_PUBLIC", "") not in ("", "0")


def describe_pairs() -> list[PairDescription]:
    """All named pairs: the embedded ones, default first, then the presets from the Hub."""
    return [*embedded_pairs(), *PRESETS]


def name_pair(target: str, draft: str) -> PairDescription:
    """The pair of any ``target`` and ``draft``, folders or Hub ids. Raises UserError if that is not allowed."""
    if not (target and draft):
        raise UserError("Name both a target and a draft, or neither to use a pair by its name.")
    if is_public():
        names = ", ".join(pair.name for pair in describe_pairs() if pair.loadable)
        raise UserError(
            f"This public page loads known pairs only: {names}. To use your own, run Speculoscope yourself."
        )
    short = re.sub(r"[^\w.-]", "_", Path(draft).absolute().name, flags=re.ASCII).lstrip("_.-") or "draft"
    if short in MODEL_FREE:
        raise UserError(f"{short} is the name of a draft that every pair has: rename the folder {draft}.")
    return PairDescription(
        name=f"{Path(target).absolute().name} + {short}",
        title="",
        kind="named",
        target=target,
        drafts={short: draft},
        default_draft=short,
    )


def embedded_pairs() -> list[PairDescription]:
    """The pairs that models/*/pair.json describe: the one that is used by default first.

    That is the default pair or, if its target is not available here, another one with a note that says so.
    """
    pairs = _in_models()
    index = MODELS / "index.json"
    default = _read_json(index).get("default") if index.exists() else None
    pairs.sort(key=lambda pair: (not pair.loadable, pair.name != default))
    missing = next((pair for pair in pairs if pair.name == default and not pair.loadable), None)
    if missing and pairs[0].loadable:
        pairs[0].note = f"{missing.reason} Until then {pairs[0].title} is used instead."
    return pairs


def _in_models() -> list[PairDescription]:
    """The pairs in models/. One broken description costs only itself: it cannot be loaded, for the reason given. Of two
    of one name, only that in the folder of this name can load, else the first.
    """
    folders, pairs = [path.parent for path in sorted(MODELS.glob("*/pair.json"))], []
    owners: dict[str, Path] = {}
    for folder in folders:
        try:
            pair = read_pair(folder)
        except UserError as error:
            pair = _unloadable(folder, str(error))
        pairs.append(pair)
        if pair.name not in owners or folder.name == pair.name:
            owners[pair.name] = folder
    same = "has the name of the pair in"
    return [
        pair
        if (owner := owners[pair.name]) is folder
        else _unloadable(folder, f"{folder.name}/pair.json {same} {owner.name}: give it another one.")
        for pair, folder in zip(pairs, folders)
    ]


def _unloadable(folder: Path, reason: str) -> PairDescription:
    name = folder.name
    return PairDescription(name, name, "embedded", str(folder), {}, "", loadable=False, reason=reason)


def read_pair(folder: Path) -> PairDescription:
    """The pair that ``folder``/pair.json describes. Raises UserError if the file is broken."""
    data = _read_json(folder / "pair.json")
    try:
        file = _PairFile.model_validate(data)
    except ValidationError as error:
        raise UserError(f"{folder.name}/pair.json does not describe a pair: {first_fault(error)}") from error
    drafts = {name: str(folder / entry.folder) for name, entry in file.drafts.items()}
    kinds = {
        name: DraftKind(entry.kind, tuple(entry.layers), entry.sees, entry.purpose)
        for name, entry in file.drafts.items()
    }
    record = read_record(folder / file.target)
    missing = record.why_missing() if record else ""
    return PairDescription(
        name=file.name or folder.name,
        title=file.title or folder.name,
        kind="embedded",
        target=str(folder / file.target),
        drafts=drafts,
        default_draft=file.default_draft,
        description=file.description,
        draft_weights=file.weights(),
        draft_kinds={name: kind for name, kind in kinds.items() if kind != TEXT_MODEL},
        loadable=not missing,
        reason=missing,
        chat=file.chat,
        fitted={name: sorted(one.stem for one in Path(at, "policies").glob("*.json")) for name, at in drafts.items()},
        card=record.card if record else "",
        licence=record.licence if record else "",
        about=file.about,
        pictures=str(folder / file.pictures) if file.pictures else "",
    )


@functools.lru_cache(maxsize=64)
def _described(name: str) -> PairDescription | None:
    """The embedded pair ``name``, or the preset; None if it is unknown here. The name may come from a run file: no path
    is made of it.
    """
    return next((pair for pair in (*_in_models(), *PRESETS) if pair.name == name), None)


def about_pair(name: str) -> str:
    """What the target of the pair ``name`` can do, in a few words; "" for a pair that does not say."""
    described = _described(name)
    return described.about if described else ""


def is_asked(chat: bool | None, pair: str) -> bool:
    """Whether a run's prompt is a message under the chat template; ``chat`` as in its request (None: as meant).

    A pair that is unknown here is taken as one that continues texts.
    """
    if chat is not None:
        return chat
    described = _described(pair)
    return described is not None and described.chat


def find_pair(name: str = "") -> PairDescription:
    """The pair of that name; "" is the default one. Raises UserError with the known names."""
    pairs = describe_pairs()
    if not name:
        if not pairs or pairs[0].kind != "embedded" or not pairs[0].loadable:
            raise UserError("No pair is installed: name a target and a draft (folders or Hub ids).")
        return pairs[0]
    for pair in pairs:
        if pair.name == name:
            if not pair.loadable:
                raise UserError(f"The pair {name} cannot be loaded: {pair.reason}")
            return pair
    names = ", ".join(pair.name for pair in pairs) or "none"
    raise UserError(f"There is no pair {name}. Choose one of these: {names}.")


def _read_json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"Cannot read {path.parent.name}/{path.name}: {error}.") from error
    if not isinstance(data, dict):
        raise UserError(f"{path.parent.name}/{path.name} does not contain a JSON object.")
    return data
