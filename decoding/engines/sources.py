"""The sources of a model: a folder, the Hub, a GGUF file, or a draft that shares weights with its target.

Every source yields a folder that transformers can load. ``inspect`` refuses bad models before their weights are
fetched.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ..errors import UserError
from ..records.pairs import PairDescription
from ..records.weights import GgufRecord, fingerprint, read_record, whole_draft
from .checks import INDEX_FILE, check_same_tokenizer
from .gguf import file_of, record_of, unpack
from .hub import HuggingFaceHub, Report, Repository, is_hub_id
from .loading import LocalModel, config_in, read_config
from .slim import is_slim, materialise
from .tokenizer import load_tokenizer

MAX_DOWNLOAD_BYTES = 160 * 10**9  # a 70B model in bfloat16 has 141 GB
SMALL_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "vocab.json",
    "merges.txt",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "processor_config.json",
    "preprocessor_config.json",
)


class Source(Protocol):
    """``inspect`` gives a folder with configuration and tokenizer, ``fetch`` the whole model. Both raise UserError."""

    def inspect(self, report: Report) -> Path: ...

    def fetch(self, report: Report) -> LocalModel: ...


@dataclass(frozen=True, slots=True)
class Size:
    """The figures that determine how much memory a model needs."""

    config: dict[str, Any]
    weight_bytes: int  # as stored


class FolderSource:
    """A folder with config.json, a tokenizer and safetensors."""

    def __init__(self, folder: Path, source: str) -> None:
        self._model = LocalModel(folder, folder.name, source)

    def inspect(self, report: Report) -> Path:
        read_config(self._model.folder)  # refuses bad configurations before the tokenizer loads
        return self._model.folder

    def fetch(self, report: Report) -> LocalModel:
        return self._model


class HubSource:
    """A repository of the Hub: its small files are inspected before its weights are downloaded."""

    _repository: Repository
    _folder: Path

    def __init__(self, name: str, hub: HuggingFaceHub) -> None:
        self._name, self._hub = name, hub
        self._config: dict[str, Any] | None = None  # once the small files are here

    def inspect(self, report: Report) -> Path:
        if self._config is None:
            report(f"Looking at {self._name}", None)
            self._repository = self._hub.look(self._name)
            self._check_files()
            for file in SMALL_FILES:
                if file in self._repository.files:
                    self._folder = self._hub.fetch(self._repository, file, lambda n: None).parent
            self._config = config_in(self._folder, self._name)
        return self._folder

    def size(self, report: Report) -> Size:
        """Known before the weights are fetched. Raises UserError."""
        self.inspect(report)
        return Size(self._config or {}, sum(self._repository.weights.values()))

    def fetch(self, report: Report) -> LocalModel:
        folder, repository = self.inspect(report), self._repository
        files = {file: size for file, size in repository.files.items() if file in (*repository.weights, INDEX_FILE)}
        total, done = sum(files.values()), 0
        self._check_disk()

        def count(n: int) -> None:
            nonlocal done
            done += n
            message = f"Downloading {self._name}: {min(done, total) / 1e9:.1f} of {total / 1e9:.1f} GB"
            report(message, min(done / max(total, 1), 1.0))

        for file in files:
            count(0)  # a report may end the work, but not from within Xet, which calls from a thread of its own
            self._hub.fetch(repository, file, count)
        mark = f"hub-{repository.revision[:16]}"  # hashing the weights would take minutes
        return LocalModel(folder, self._name.rsplit("/", 1)[-1], self._name, mark)

    def _check_files(self) -> None:
        """Raises UserError for a repository whose weights cannot be loaded or are too large."""
        name, size = self._name, sum(self._repository.weights.values())
        if not self._repository.weights:
            raise UserError(f"{name} has no safetensors weights, the only kind that is loaded: choose another model.")
        if size > MAX_DOWNLOAD_BYTES:
            raise UserError(
                f"{name} has {size / 1e9:.0f} GB of weights; at most {MAX_DOWNLOAD_BYTES / 1e9:.0f} GB are downloaded."
            )
        if "config.json" not in self._repository.files:
            raise UserError(f"{name} is not a transformers model: it has no config.json.")

    def _check_disk(self) -> None:
        weights = self._repository.weights
        missing = sum(size for file, size in weights.items() if not (self._folder / file).exists())
        free = shutil.disk_usage(self._folder).free
        if missing > 0.95 * free:
            raise UserError(
                f"{self._name} needs {missing / 1e9:.1f} GB on the disk; {free / 1e9:.1f} GB are "
                "free. Free some space or choose a smaller model."
            )


class GgufSource:
    """A GGUF file, which is unpacked into the cache once. ``file``: its path, if known."""

    def __init__(self, record: GgufRecord, hub: HuggingFaceHub, file: Path | None = None) -> None:
        self._record, self._hub, self._file = record, hub, file
        self._folder: Path | None = None

    def inspect(self, report: Report) -> Path:
        self._folder = self._folder or unpack(self._record, self._hub, report, self._file)
        return self._folder

    def fetch(self, report: Report) -> LocalModel:
        record = self._record
        folder = self.inspect(report)
        return LocalModel(
            folder, record.name, record.shown, record.mark, lambda: file_of(record, self._hub, report, self._file)
        )


class SlimSource:
    """A draft stored without the weights that it shares with its target (slim.py)."""

    def __init__(self, folder: Path, source: str, target: Source) -> None:
        self._folder, self._source, self._target = folder, source, target

    def inspect(self, report: Report) -> Path:
        return self._target.inspect(report)  # it has the target's tokens

    def fetch(self, report: Report) -> LocalModel:
        target = self._target.fetch(report)
        whole = whole_draft(self._folder, target.mark or fingerprint(target.folder))
        materialise(self._folder, target.folder, whole)
        return LocalModel(whole, self._folder.name, self._source, fingerprint(self._folder))


def make_source(place: str, source: str, hub: HuggingFaceHub, target: Source | None = None) -> Source:
    """The source of ``place``: a Hub id, a GGUF file, or any kind of folder. Raises UserError.

    ``source``: the name to show for a folder; ``target``: the source of the target with which a draft may share
    weights.
    """
    if is_hub_id(place):
        return HubSource(place, hub)
    path = existing(place, Path.is_file) if place.endswith(".gguf") else None
    if path is not None:
        return GgufSource(record_of(path), hub, path)
    folder = local_folder(place)
    record = read_record(folder)
    if record is not None:
        return GgufSource(record, hub)
    if target is not None and is_slim(folder):
        return SlimSource(folder, source, target)
    return FolderSource(folder, source)


class Sources:
    """The sources of a pair: all are checked before any weights are fetched, then fetched one by one."""

    def __init__(self, described: PairDescription, hub: HuggingFaceHub, report: Report) -> None:
        """Raises UserError. The drafts of an embedded pair were checked when they were made."""
        self._report = report
        target = make_source(described.target, _shown(described, described.target), hub)
        self._sources = {described.target: target}
        for place in described.drafts.values():
            self._sources.setdefault(place, make_source(place, _shown(described, place), hub, target))
        for place, source in self._sources.items():
            if is_hub_id(place):
                source.inspect(report)
        if described.kind != "embedded":
            self._check_tokenizers(described)
        self._places: dict[str, LocalModel] = {}

    def known_sizes(self, places: Iterable[str]) -> list[Size]:
        """Sizes of the models at ``places`` that would have to be downloaded. Raises UserError."""
        sources = [self._sources[place] for place in places]
        return [source.size(self._report) for source in sources if isinstance(source, HubSource)]

    def fetch(self, place: str) -> LocalModel:
        """Fetches the model of ``place`` in the description to this machine. Raises UserError."""
        if place not in self._places:
            self._places[place] = self._sources[place].fetch(self._report)
        return self._places[place]

    def _check_tokenizers(self, described: PairDescription) -> None:
        first = load_tokenizer(self._sources[described.target].inspect(self._report))
        for place in described.drafts.values():
            other = load_tokenizer(self._sources[place].inspect(self._report))
            check_same_tokenizer(first, other, show(described.target), show(place))


def local_folder(place: str) -> Path:
    """The folder ``place``. Raises UserError if it does not exist."""
    folder = existing(place, Path.is_dir)
    if folder is None:
        raise UserError(f"There is no folder {place}, and it is not a Hub id (owner/name) either.")
    return folder


def existing(place: str, is_right: Callable[[Path], bool]) -> Path | None:
    """The path ``place``, which may begin with ~, if it exists and ``is_right``."""
    try:
        path = Path(place).expanduser()
        return path if is_right(path) else None
    except (RuntimeError, OSError, ValueError):  # an unknown user's home, a name that is too long, a NUL in it
        return None


def show(place: str) -> str:
    """A model's name without this machine's paths."""
    return place if is_hub_id(place) else Path(place).name


def _shown(described: PairDescription, place: str) -> str:
    return f"{described.name}/{Path(place).name}" if described.kind == "embedded" else show(place)
