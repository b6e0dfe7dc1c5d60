"""A loaded target with its drafts, on which every comparison runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from ..errors import UserError
from ..records.pairs import BLOCK, FEATURE, HEADS, MODEL_FREE, TEXT_MODEL, DraftKind, find_pair, name_pair
from .base import DEFAULT_MAX_LENGTH, CachedModel
from .checks import check_memory, estimate_memory, free_memory, stored_dtype, weight_files
from .choosing import draft_formats, target_formats
from .hub import HuggingFaceHub, Report
from .huge_pages import use_huge_pages
from .inputs import EncodedPrompt
from .loading import choose_device, load_model, read_config, reads_photographs
from .seeing import PhotoEyes, SceneEyes
from .sources import Size, Sources, existing
from .threads import DRAFT_ROWS, fixed_threads
from .tokenizer import Tokenizer, load_tokenizer
from .transformers_engine import TransformersModel

LARGE = 50_000_000  # parameters: the weights of a smaller target stay in the processor's cache


@dataclass(eq=False)
class Pair:
    """One target, one tokenizer, and drafts that are loaded on first use, by ``load_draft``."""

    name: str
    tokenizer: Tokenizer
    target: CachedModel
    default_draft: str
    draft_names: list[str]
    load_draft: Callable[[str], CachedModel]
    chat: bool = False
    target_folder: Path | None = None
    draft_folders: dict[str, Path] = field(default_factory=dict)  # of the drafts in a folder on this machine
    draft_kinds: dict[str, DraftKind] = field(default_factory=dict)  # of the drafts that are not models of text alone
    eyes: SceneEyes | PhotoEyes | None = None  # with which the target reads pictures
    _drafts: dict[str, CachedModel] = field(default_factory=dict, init=False)

    def draft(self, name: str = "") -> CachedModel:
        """The draft of that name ("" is the default one), loaded once. Raises UserError for an unknown name."""
        name = name or self.default_draft
        if name not in self._drafts:
            if name not in self.draft_names:
                known = ", ".join([*self.draft_names, *MODEL_FREE])
                raise UserError(f"The pair {self.name} has no draft {name}. It has: {known}.")
            self._drafts[name] = self.load_draft(name)
        return self._drafts[name]

    @property
    def loaded_drafts(self) -> dict[str, CachedModel]:
        """The drafts that have been loaded so far, by name."""
        return dict(self._drafts)

    @property
    def can_fork(self) -> bool:
        """Whether the engines of target and loaded drafts can share weights between caches (only the lean one on a CPU
        can).
        """
        return all(model.can_fork for model in (self.target, *self._drafts.values()))

    def fork(self) -> Pair:
        """The same models with separate caches, so that two texts can be decoded in turns; see ``can_fork``."""
        return replace(self, target=self.target.fork(), load_draft=lambda name: self.draft(name).fork())

    def encode_prompt(self, text: str, chat: bool | None = None, system: str = "", picture: str = "") -> EncodedPrompt:
        """A visitor's prompt in tokens.

        ``chat``: as a message under the target's chat template, after the ``system`` message ("" is the template's
        own); None: where the pair is meant for that. The name of a special token in ``text`` or ``system`` is read as
        letters, so that no prompt can end the message or begin another. ``picture``: as in a request; it stands before
        ``text`` in the message. Raises UserError if there is no template, and for a picture that cannot be read.
        """
        if picture:
            return self._encode_with(picture, text, chat, system)
        if not (self.chat if chat is None else chat):
            if system:
                raise UserError("This pair continues texts and takes no system message: leave it out, or ask for chat.")
            return EncodedPrompt(self.tokenizer.encode_typed(text))
        if not self.tokenizer.has_chat_template:
            raise UserError(f"The target of {self.name} has no chat template: let it continue the text instead.")
        return EncodedPrompt(self.tokenizer.encode_chat(text, system))

    def _encode_with(self, picture: str, text: str, chat: bool | None, system: str) -> EncodedPrompt:
        if self.eyes is None:
            raise UserError(f"The target of {self.name} reads no pictures: choose another, or leave the picture out.")
        if not (self.chat if chat is None else chat):
            raise UserError("A picture is part of a chat: ask the model (chat), or leave the picture out.")
        return self.eyes.encode(self.tokenizer, text, system, picture)


def load_pair(
    name: str = "",
    target: str = "",
    draft: str = "",
    dtype: str = "auto",
    draft_dtype: str = "auto",
    device: str = "auto",
    threads: int | None = None,
    progress: Report | None = None,
    hub: HuggingFaceHub | None = None,
) -> Pair:
    """Loads a pair by ``name`` ("" is the default one), or any ``target`` with any ``draft`` (folders or Hub ids).

    ``dtype``: a number format (formats/) of the target, and of drafts if it rounds nothing; ``draft_dtype``: that of
    drafts, or "trial"; "auto": for each model the fastest that it may run in, found in a trial.
    ``threads``: CPU threads of every model; None: as OMP_NUM_THREADS says, else the best for each, found in a trial.
    ``progress(message, fraction)`` is called while loading; ``hub`` gives access to the Hub. Raises UserError.
    """
    described = name_pair(target, draft) if target or draft else find_pair(name)
    report = progress or (lambda message, fraction: None)
    device = choose_device(device)
    target_formats(dtype, device, "float32")  # refused before anything is fetched
    sources = Sources(described, hub or HuggingFaceHub(), report)
    places = described.target, described.drafts[described.default_draft]
    check_fit(described.name, sources.known_sizes(places), dtype, device)  # before a byte of weights is downloaded
    first, default = map(sources.fetch, places)
    threads = fixed_threads(threads)
    spread = check_fit(described.name, [size_of(first.folder), size_of(default.folder)], dtype, device)

    def load_draft(which: str) -> CachedModel:
        kind = described.kind_of(which)
        if kind.kind not in (TEXT_MODEL.kind, FEATURE, HEADS, BLOCK):
            raise UserError(
                f"The draft {which} is of the kind {kind.kind}, which this version cannot load: choose another draft."
            )
        if (deepest := max(kind.layers, default=0)) > model.info.layers:
            raise UserError(
                f"The draft {which} reads layer {deepest} of a target that has {model.info.layers}: correct its layers "
                "in pair.json."
            )
        place = sources.fetch(described.drafts[which])
        stored, rounded_to = stored_dtype(read_config(place.folder)), described.weights_of(which)
        formats = draft_formats(dtype, draft_dtype, rounded_to, device, stored)
        state_layers = 0 if kind.kind == TEXT_MODEL.kind else len(kind.layers)
        report(f"Loading {which}", None)
        draft = load_model(
            place, which, formats, device=device, threads=threads, rows=DRAFT_ROWS, state_layers=state_layers
        )
        if kind.sees and draft.hidden_size != model.hidden_size:
            raise UserError(f"The draft {which} cannot read pictures: it is not as wide as the target.")
        return draft

    tokenizer = load_tokenizer(first.folder)
    if described.chat and described.kind == "embedded" and not tokenizer.has_chat_template:
        raise UserError(
            f'The pair.json of {described.name} says "chat": true, and its target has no chat template: leave that '
            "out, or give the tokenizer a template."
        )
    config = read_config(first.folder)
    formats = target_formats(dtype, device, stored_dtype(config))
    report(f"Loading {first.name}", None)
    model = load_model(first, first.name, formats, device=device, threads=threads, spread=spread)
    tokenizer.eos_ids = frozenset(id for id in tokenizer.eos_ids if id < model.vocab_size)  # others are never written
    eyes: SceneEyes | PhotoEyes | None = None
    if isinstance(model, TransformersModel) and reads_photographs(config):
        eyes = PhotoEyes(first.folder, model.module)
    elif described.pictures:
        eyes = SceneEyes(Path(described.pictures), model.hidden_size)
    pair = Pair(
        described.name,
        tokenizer,
        model,
        described.default_draft,
        list(described.drafts),
        load_draft,
        described.chat and tokenizer.has_chat_template,
        first.folder,
        {which: folder for which, place in described.drafts.items() if (folder := existing(place, Path.is_dir))},
        described.draft_kinds,
        eyes,
    )
    pair.draft()
    if device == "cpu" and model.info.parameters >= LARGE:
        use_huge_pages()
    return pair


def size_of(folder: Path) -> Size:
    """The size of the model in ``folder``. Raises UserError."""
    config = read_config(folder)
    files = weight_files(path.name for path in folder.iterdir())
    return Size(config, sum((folder / name).stat().st_size for name in files))


def check_fit(name: str, sizes: Sequence[Size], dtype: str, device: str) -> bool:
    """Raises UserError for a pair that will not fit in memory; returns whether its target needs several GPUs.

    ``sizes``: of target and draft, as far as known.
    """
    if not sizes:
        return False
    needs = [_least_memory(one, dtype, device) for one in sizes]
    free = free_memory(device)
    if device != "cpu" and free is not None and sum(needs) > free and torch.cuda.device_count() > 1:
        total = sum(free_memory(f"cuda:{index}") or 0 for index in range(torch.cuda.device_count()))
        check_memory(name, sum(needs), total, device)
        return True
    # on the CPU the target's second copy of the weights is freed before the draft is loaded
    check_memory(name, max(needs) if device == "cpu" else sum(needs), free, device)
    return False


def _least_memory(size: Size, dtype: str, device: str) -> int:
    """Peak bytes of a model in the smallest format that it may run in."""
    formats = target_formats(dtype, device, stored_dtype(size.config))
    return min(estimate_memory(size.config, size.weight_bytes, one, device, DEFAULT_MAX_LENGTH) for one in formats)
