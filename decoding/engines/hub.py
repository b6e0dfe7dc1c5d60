"""Models from the Hugging Face Hub, inspected before they are downloaded.

All traffic goes through one interface, :class:`Hub`, so that everything else is tested without a network.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ..errors import UserError
from .checks import INDEX_FILE, check_config

MAX_DOWNLOAD_BYTES = 160 * 10**9  # a 70B model in bfloat16 has 141 GB
_HUB_ID = re.compile(r"^[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}$")
_SMALL_FILES = (
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

Report = Callable[[str, float | None], None]


@dataclass(slots=True)
class Repository:
    """The Hub's information on a model, before anything is downloaded."""

    name: str
    revision: str  # commit hash
    files: dict[str, int]  # name -> bytes

    @property
    def weights(self) -> dict[str, int]:
        """The safetensors files of the model itself (without other formats in subfolders)."""
        return {name: size for name, size in self.files.items() if name.endswith(".safetensors") and "/" not in name}


class Hub(Protocol):
    def look(self, name: str) -> Repository:
        """Raises UserError if the model does not exist or is gated, or the Hub cannot be reached."""

    def fetch(self, repository: Repository, file: str, on_bytes: Callable[[int], None]) -> Path:
        """Downloads ``file`` and returns its path in the local snapshot. Raises UserError."""


def is_hub_id(place: str) -> bool:
    return bool(_HUB_ID.match(place)) and not Path(place).expanduser().exists()


@dataclass(slots=True)
class Found:
    """A model that may be downloaded: the repository, its config, and the folder of its small files."""

    repository: Repository
    config: dict[str, Any]
    folder: Path

    @property
    def weight_bytes(self) -> int:
        return sum(self.repository.weights.values())

    @property
    def mark(self) -> str:
        """Used as the fingerprint of the weights, since hashing them would take minutes."""
        return f"hub-{self.repository.revision[:16]}"


def inspect(hub: Hub, name: str, report: Report) -> Found:
    """Fetches the small files of ``name``. Raises UserError for a model that cannot be loaded, before its weights are
    fetched.
    """
    report(f"Looking at {name}", None)
    repository = hub.look(name)
    if not repository.weights:
        raise UserError(f"{name} has no safetensors weights, the only kind that is loaded: choose another model.")
    size = sum(repository.weights.values())
    if size > MAX_DOWNLOAD_BYTES:
        raise UserError(
            f"{name} has {size / 1e9:.0f} GB of weights; at most {MAX_DOWNLOAD_BYTES / 1e9:.0f} GB are downloaded."
        )
    if "config.json" not in repository.files:
        raise UserError(f"{name} is not a transformers model: it has no config.json.")
    for file in _SMALL_FILES:
        if file in repository.files:
            folder = hub.fetch(repository, file, lambda n: None).parent
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{name} contains a broken model: its config.json is not JSON.") from error
    check_config(config, name)
    return Found(repository, config, folder)


def download(hub: Hub, found: Found, report: Report) -> Path:
    """Fetches the weights of ``found``; returns the folder of the whole model. Raises UserError."""
    files = dict(found.repository.weights)
    if INDEX_FILE in found.repository.files:
        files[INDEX_FILE] = found.repository.files[INDEX_FILE]
    total, done = sum(files.values()), 0
    _check_disk(found, total)
    name = found.repository.name

    def count(n: int) -> None:
        nonlocal done
        done += n
        share = min(done / total, 1.0)
        report(f"Downloading {name}: {min(done, total) / 1e9:.1f} of {total / 1e9:.1f} GB", share)

    for file in files:
        hub.fetch(found.repository, file, count)
    return found.folder


def _check_disk(found: Found, total: int) -> None:
    missing = sum(size for file, size in found.repository.weights.items() if not (found.folder / file).exists())
    free = shutil.disk_usage(found.folder).free
    if missing > 0.95 * free:
        raise UserError(
            f"{found.repository.name} needs {missing / 1e9:.1f} GB on the disk; {free / 1e9:.1f} GB are "
            "free. Free some space or choose a smaller model."
        )


class HuggingFaceHub:
    """The real Hub, through huggingface_hub; its own cache, token and settings apply."""

    def look(self, name: str) -> Repository:
        from huggingface_hub import HfApi

        info = self._ask(name, lambda: HfApi().model_info(name, files_metadata=True, timeout=20.0))
        files = {one.rfilename: one.size or 0 for one in info.siblings or []}
        return Repository(name, info.sha or "main", files)

    def fetch(self, repository: Repository, file: str, on_bytes: Callable[[int], None]) -> Path:
        from huggingface_hub import hf_hub_download
        from tqdm.auto import tqdm

        class Counter(tqdm):
            """A progress bar that reports bytes to ``on_bytes`` instead of drawing."""

            def __init__(self, *args: Any, **kwargs: Any) -> None:
                kwargs["disable"] = False
                kwargs["file"] = _Nowhere()
                kwargs.pop("name", None)
                super().__init__(*args, **kwargs)

            def update(self, n: float | None = 1) -> bool | None:
                on_bytes(int(n or 0))
                return super().update(n)

        return Path(
            self._ask(
                repository.name,
                lambda: hf_hub_download(repository.name, file, revision=repository.revision, tqdm_class=Counter),
            )
        )

    def _ask(self, name: str, question: Callable[[], Any]) -> Any:
        from huggingface_hub import errors

        try:
            return question()
        except errors.GatedRepoError as error:
            raise UserError(
                f"{name} is gated: accept its licence at https://huggingface.co/{name}, then log in on "
                "this machine (hf auth login, or set HF_TOKEN) and try again."
            ) from error
        except errors.RepositoryNotFoundError as error:
            raise UserError(
                f"There is no model {name} on the Hub (or it is private and you are not logged in): check its spelling."
            ) from error
        except errors.LocalEntryNotFoundError as error:
            raise UserError(
                f"{name} is not on this machine and the Hub cannot be reached: check the network."
            ) from error
        except (errors.HTTPError, errors.HfHubHTTPError, OSError) as error:
            # HTTPError: the base class of errors of the HTTP library that the Hub's client uses
            raise UserError(
                f"{name} could not be loaded from the Hub: {type(error).__name__}. Check the network and try again."
            ) from error


class _Nowhere:
    def write(self, text: str) -> None: ...

    def flush(self) -> None: ...
