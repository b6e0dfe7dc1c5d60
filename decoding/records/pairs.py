"""The available pairs: embedded ones on disk and presets from the Hub. Imports no torch."""

from __future__ import annotations

import functools
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import UserError
from .gguf_record import read_record

MODELS = Path(__file__).resolve().parents[2] / "models"
DRAFT_WEIGHTS = ("auto", "int8", "int4")


@dataclass(frozen=True, slots=True)
class DraftKind:
    """What guesses, as pair.json says it: the ``kind`` of draft, the ``layers`` of the target whose hidden states it
    reads (counted as in transformers' ``hidden_states``; -1 is the input of the head), and whether it ``sees`` the
    picture tokens of a prompt.
    """

    kind: str = "model"
    layers: tuple[int, ...] = ()
    sees: bool = False


TEXT_MODEL = DraftKind()  # a language model that reads the text


@dataclass(slots=True)
class PairDescription:
    """A pair before anything is loaded."""

    name: str
    title: str
    kind: str  # "embedded", "preset"
    target: str  # folder or Hub id
    drafts: dict[str, str]  # name -> folder or Hub id, in the order of presentation
    default_draft: str
    description: str = ""
    draft_weights: dict[str, str] = field(default_factory=dict)  # see weights_of
    draft_kinds: dict[str, DraftKind] = field(default_factory=dict)  # see kind_of
    loadable: bool = True
    reason: str = ""  # a sentence: why it cannot load, or what it needs
    chat: bool = False  # prompts go through the chat template
    fitted: dict[str, list[str]] = field(default_factory=dict)  # draft name -> its fitted policies
    note: str = ""  # a sentence: why this pair replaces the default one
    card: str = ""  # address of the target's model card
    licence: str = ""  # of the target
    best_sl: dict[str, int] = field(default_factory=dict)  # draft name -> the best fixed SL for this machine's costs
    set_here: dict[str, str] = field(default_factory=dict)  # draft name -> a sentence on all that those costs chose
    about: str = ""  # what the target can do, in a few words shown next to its name
    pictures: str = ""  # folder of the picture reader with which the target reads scenes

    def weights_of(self, draft: str) -> str:
        """How the draft's weights are held on a CPU unless a dtype is requested: "auto", "int8" or "int4"."""
        return self.draft_weights.get(draft, "auto")

    def kind_of(self, draft: str) -> DraftKind:
        """The draft's kind; a language model unless pair.json says otherwise."""
        return self.draft_kinds.get(draft, TEXT_MODEL)


def _preset(
    name: str,
    title: str,
    target: str,
    draft: str,
    description: str,
    *,
    gated: bool = False,
    chat: bool = False,
    refused: str = "",
) -> PairDescription:
    short = draft.rsplit("/", 1)[-1]
    reason = refused or (f"Gated: accept the licence at https://huggingface.co/{target} and log in." if gated else "")
    return PairDescription(
        name,
        title,
        "preset",
        target,
        {short: draft},
        short,
        description,
        loadable=not refused,
        reason=reason,
        chat=chat,
    )


_PICKLES = "Its weights are published as pickles only, and only safetensors are loaded."

PRESETS: tuple[PairDescription, ...] = (
    _preset(
        "smollm2",
        "SmolLM2 1.7B with 135M",
        "HuggingFaceTB/SmolLM2-1.7B-Instruct",
        "HuggingFaceTB/SmolLM2-135M-Instruct",
        "The smallest common pair; runs on a CPU.",
        chat=True,
    ),
    _preset(
        "qwen2.5-7b",
        "Qwen2.5 7B with 0.5B",
        "Qwen/Qwen2.5-7B-Instruct",
        "Qwen/Qwen2.5-0.5B-Instruct",
        "A common pair.",
        chat=True,
    ),
    _preset(
        "qwen2.5-coder-7b",
        "Qwen2.5-Coder 7B with 0.5B",
        "Qwen/Qwen2.5-Coder-7B-Instruct",
        "Qwen/Qwen2.5-Coder-0.5B-Instruct",
        "A common pair for code.",
        chat=True,
    ),
    _preset(
        "llama-3.1-8b",
        "Llama 3.1 8B with Llama 3.2 1B",
        "meta-llama/Llama-3.1-8B-Instruct",
        "meta-llama/Llama-3.2-1B-Instruct",
        "A common pair.",
        gated=True,
        chat=True,
    ),
    _preset(
        "starcoder",
        "StarCoder 15B with tiny_starcoder_py",
        "bigcode/starcoder",
        "bigcode/tiny_starcoder_py",
        "From the DISCO paper (Mamou et al. 2024).",
        gated=True,
    ),
    _preset(
        "llama-2-70b",
        "Llama 2 70B chat with 7B chat",
        "meta-llama/Llama-2-70b-chat-hf",
        "meta-llama/Llama-2-7b-chat-hf",
        "From the SpecDec++ paper (Huang et al. 2024).",
        gated=True,
        chat=True,
    ),
    _preset(
        "vicuna-13b",
        "Vicuna 13B v1.3 with vicuna-68m",
        "lmsys/vicuna-13b-v1.3",
        "double7/vicuna-68m",
        "From the DISCO paper (Mamou et al. 2024).",
        chat=True,
        refused=_PICKLES,
    ),
)


def is_public() -> bool:
    """Whether this is a public deployment (a Space, or SPECULOSCOPE_PUBLIC=1), where only known pairs load."""
    return bool(os.environ.get("SPACE_ID")) or os.environ.get("SPECULOSCOPE_PUBLIC", "") not in ("", "0")


def describe_pairs(models: Path | None = None) -> list[PairDescription]:
    """All named pairs: the embedded ones, default first, then the presets from the Hub."""
    return [*embedded_pairs(models), *PRESETS]


def name_pair(target: str, draft: str) -> PairDescription:
    """The pair of any ``target`` and ``draft``, folders or Hub ids. Raises UserError if that is not allowed."""
    if not (target and draft):
        raise UserError("Name both a target and a draft, or neither to use a pair by its name.")
    if is_public():
        names = ", ".join(pair.name for pair in describe_pairs() if pair.loadable)
        raise UserError(
            f"This public page loads known pairs only: {names}. To use your own, run Speculoscope yourself."
        )
    short = Path(draft).name
    return PairDescription(
        name=f"{Path(target).name} + {short}",
        title="",
        kind="named",
        target=target,
        drafts={short: draft},
        default_draft=short,
    )


def embedded_pairs(models: Path | None = None) -> list[PairDescription]:
    """The pairs that ``models`` describes (models/*/pair.json): the one that is used by default first.

    That is the default pair or, if its target is not available here, another one with a note that says so.
    """
    models = models or MODELS
    pairs = [_read_or_say_why(path.parent) for path in sorted(models.glob("*/pair.json"))]
    default = default_name(models)
    pairs.sort(key=lambda pair: (not pair.loadable, pair.name != default))
    missing = next((pair for pair in pairs if pair.name == default and not pair.loadable), None)
    if missing and pairs[0].loadable:
        pairs[0].note = f"{missing.reason} Until then {pairs[0].title} is used instead."
    return pairs


def default_name(models: Path | None = None) -> str | None:
    """Name of the default pair in models/index.json, or None."""
    path = (models or MODELS) / "index.json"
    return _read_json(path).get("default") if path.exists() else None


def _read_or_say_why(folder: Path) -> PairDescription:
    """The pair in ``folder``. One broken description costs only itself: it cannot be loaded, for the reason given."""
    try:
        return read_pair(folder)
    except UserError as error:
        name = folder.name
        return PairDescription(name, name, "embedded", str(folder), {}, "", loadable=False, reason=str(error))


def read_pair(folder: Path) -> PairDescription:
    """The pair that ``folder``/pair.json describes. Raises UserError if the file is broken."""
    data = _read_json(folder / "pair.json")
    try:
        entries = {str(name): _draft_entry(str(name), given) for name, given in data["drafts"].items()}
        drafts = {name: str(folder / place) for name, (place, _) in entries.items()}
        record = read_record(folder / data["target"])
        missing = record.why_missing() if record else ""
        fitted = {name: _fitted(Path(place)) for name, place in drafts.items()}
        pair = PairDescription(
            name=data.get("name", folder.name),
            title=data.get("title", folder.name),
            kind="embedded",
            target=str(folder / data["target"]),
            drafts=drafts,
            default_draft=data["default_draft"],
            description=data.get("description", ""),
            draft_weights=_draft_weights(data.get("draft_weights", "auto"), drafts),
            draft_kinds={name: kind for name, (_, kind) in entries.items() if kind != TEXT_MODEL},
            loadable=not missing,
            reason=missing,
            chat=bool(data.get("chat", False)),
            fitted=fitted,
            card=record.card if record else "",
            licence=record.licence if record else "",
            about=data.get("about", ""),
            pictures=str(folder / data["pictures"]) if "pictures" in data else "",
        )
    except (KeyError, AttributeError, TypeError) as error:
        raise UserError(f"{folder.name}/pair.json does not describe a pair: {error} is missing or wrong.") from error
    if pair.default_draft not in pair.drafts:
        raise UserError(f"{folder.name}/pair.json: its default draft {pair.default_draft} is not among its drafts.")
    return pair


def _draft_entry(name: str, given: Any) -> tuple[str, DraftKind]:
    """The folder and kind of a draft: ``given`` is a folder, or an object with "folder", "kind", "layers" and "sees".
    Raises KeyError, TypeError.
    """
    if isinstance(given, str):
        return given, TEXT_MODEL
    if not isinstance(given, dict):
        raise TypeError(f"the draft {name}, a folder or an object with folder, kind and layers,")
    folder, kind, layers = given["folder"], given.get("kind", TEXT_MODEL.kind), given.get("layers", [])
    numbers = isinstance(layers, list) and all(isinstance(layer, int) and layer >= -1 for layer in layers)
    if not (isinstance(folder, str) and isinstance(kind, str) and numbers):
        raise TypeError(f"the draft {name}, whose folder and kind are texts and whose layers are numbers from -1 up,")
    return folder, DraftKind(kind, tuple(layers), bool(given.get("sees", False)))


def _draft_weights(given: Any, drafts: dict[str, str]) -> dict[str, str]:
    """Draft -> one of DRAFT_WEIGHTS. ``given``: the same for some of ``drafts``, or one for all. Raises TypeError."""
    by_name = given if isinstance(given, dict) else dict.fromkeys(drafts, given)
    if by_name.keys() <= drafts.keys() and all(weights in DRAFT_WEIGHTS for weights in by_name.values()):
        return by_name
    raise TypeError(f"draft_weights, for each draft one of {', '.join(DRAFT_WEIGHTS)},")


def _described(name: str, models: Path | None) -> dict[str, Any] | None:
    """The pair.json of the embedded pair ``name``, which may come from a run file: no path is made of it."""
    for path in (models or MODELS).glob("*/pair.json"):
        try:
            data = _read_json(path)
        except UserError:
            continue
        if data.get("name", path.parent.name) == name:
            return data
    return None


@functools.cache
def about_pair(name: str, models: Path | None = None) -> str:
    """What the target of the embedded pair ``name`` can do, in a few words; "" for a pair that is not embedded."""
    return str((_described(name, models) or {}).get("about", ""))


@functools.lru_cache(maxsize=64)
def is_asked(chat: bool | None, pair: str, models: Path | None = None) -> bool:
    """Whether a run's prompt is a message under the chat template; ``chat`` as in its request (None: as meant).

    A pair that is unknown here is taken as one that continues texts.
    """
    if chat is not None:
        return chat
    described = _described(pair, models)
    if described:
        return bool(described.get("chat", False))
    return any(preset.chat for preset in PRESETS if preset.name == pair)


def _fitted(draft: Path) -> list[str]:
    return sorted(path.stem for path in (draft / "policies").glob("*.json"))


def find_pair(name: str = "", models: Path | None = None) -> PairDescription:
    """The pair of that name; "" is the default one. Raises UserError with the known names."""
    pairs = describe_pairs(models)
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
    raise UserError(f"There is no pair {name}. There are: {names}. Or name a target and a draft.")


def _read_json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"Cannot read {path.parent.name}/{path.name}: {error}.") from error
    if not isinstance(data, dict):
        raise UserError(f"{path.parent.name}/{path.name} does not contain a JSON object.")
    return data
