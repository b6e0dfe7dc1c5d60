"""A target and its drafts, loaded: what every comparison runs on."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable

from ..errors import UserError
from ..pairs import PairDescription, find_pair
from .base import CachedModel
from .loading import choose_device, choose_weights, load_model, set_threads, weight_bytes
from .tokenizer import Tokenizer

Progress = Callable[[str, float | None], None]  # a sentence, and the fraction done where it is known


class Pair:
    """One target, one tokenizer, and drafts that are loaded when they are first asked for."""

    def __init__(self, name: str, tokenizer: Tokenizer, target: CachedModel, default_draft: str,
                 draft_names: list[str], load_draft: Callable[[str], CachedModel], chat: bool = False) -> None:
        self.name, self.tokenizer, self.target = name, tokenizer, target
        self.default_draft, self.draft_names = default_draft, draft_names
        self.chat = chat
        self.draft_folders: dict[str, Path] = {}  # of the drafts that lie in a folder of this machine
        self._load_draft = load_draft
        self._drafts: dict[str, CachedModel] = {}

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the target's weights; a draft's stands in its ``info``."""
        return self.target.info.fingerprint

    def draft(self, name: str = "") -> CachedModel:
        """The draft of that name ("" is the default one), loaded once. Raises UserError for an unknown name."""
        name = name or self.default_draft
        if name not in self._drafts:
            if name not in self.draft_names:
                raise UserError(f"The pair {self.name} has no draft {name}. "
                                f"It has: {', '.join(self.draft_names)}, ngram.")
            self._drafts[name] = self._load_draft(name)
        return self._drafts[name]

    @property
    def loaded_drafts(self) -> dict[str, CachedModel]:
        return dict(self._drafts)

    def encode_prompt(self, text: str) -> list[int]:
        """Token ids of a visitor's prompt, under the chat template where the pair has one."""
        return self.tokenizer.encode(self.tokenizer.chat(text) if self.chat else text)


def load_pair(name: str = "", target: str = "", draft: str = "", dtype: str = "auto", device: str = "auto",
              threads: int | None = None, progress: Progress | None = None) -> Pair:
    """Load a pair by ``name`` ("" is the default one), or any ``target`` with any ``draft`` (folders or Hub ids).

    ``dtype``: "auto", "float32", "bfloat16"; "auto" gives int8 weights to the drafts that the pair marks so (CPU).
    ``progress(message, fraction)`` is called on the way. Raises UserError.
    """
    described = _describe(name, target, draft)
    device = choose_device(device)
    threads = set_threads(threads, weight_bytes(_folder(described.target)))
    tell = progress or (lambda message, fraction: None)
    weights = choose_weights(dtype, device)

    def load(which: str, place: str, form: str) -> CachedModel:
        tell(f"Loading {which}", None)
        return load_model(_folder(place), name=which, source=_source(described, place), weights=form,
                          device=device, threads=threads)

    def load_draft(which: str) -> CachedModel:
        form = "int8" if dtype == "auto" and weights == "bfloat16" and described.is_int8(which) else weights
        return load(which, described.drafts[which], form)

    tokenizer = load_tokenizer(_folder(described.target))
    model = load(Path(described.target).name, described.target, weights)
    pair = Pair(described.name, tokenizer, model, described.default_draft, list(described.drafts), load_draft,
                described.chat)
    pair.draft_folders = {which: Path(place) for which, place in described.drafts.items() if Path(place).is_dir()}
    pair.draft()
    return pair


def _describe(name: str, target: str, draft: str) -> PairDescription:
    if not target and not draft:
        return find_pair(name)
    if not (target and draft):
        raise UserError("Name both a target and a draft, or neither to use a pair by its name.")
    short = Path(draft).name
    return PairDescription(name=f"{Path(target).name} + {short}", title="", kind="named", target=target,
                           drafts={short: draft}, default_draft=short)


def _folder(place: str) -> Path:
    folder = Path(place).expanduser()
    if not folder.is_dir():
        raise UserError(f"There is no folder {place}.")
    return folder


def _source(described: PairDescription, place: str) -> str:
    """Where a model came from, without this machine's paths."""
    return f"{described.name}/{Path(place).name}" if described.kind == "embedded" else Path(place).name


def load_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer in ``folder`` with the end-of-text ids of its generation config. Raises UserError."""
    from transformers import AutoTokenizer

    try:
        hf_tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"{folder.name} has no tokenizer that loads: {str(error).splitlines()[0][:200]}") from error
    return Tokenizer(hf_tokenizer, _eos_ids(folder))


def _eos_ids(folder: Path) -> frozenset[int]:
    import json

    found: Any = None
    for name in ("generation_config.json", "config.json"):
        path = folder / name
        if found is None and path.exists():
            found = json.loads(path.read_text(encoding="utf-8")).get("eos_token_id")
    if found is None:
        return frozenset()
    return frozenset(found if isinstance(found, list) else [found])
