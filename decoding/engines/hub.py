"""The Hugging Face Hub.

All traffic goes through one class, for which tests put another, so that everything else is tested without a network.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from errno import EACCES, EDQUOT, ENOSPC, EROFS
from io import StringIO
from pathlib import Path
from typing import Any

from ..errors import UserError
from .checks import weight_files

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)
OF_THE_DISK = (EACCES, EDQUOT, ENOSPC, EROFS)
Report = Callable[[str, float | None], None]


@dataclass(slots=True)
class Repository:
    """The Hub's information on a model, before anything is downloaded."""

    name: str
    revision: str  # commit hash
    files: dict[str, int]  # name -> bytes

    @property
    def weights(self) -> dict[str, int]:
        """The safetensors files that are loaded, and their bytes."""
        return {name: self.files[name] for name in weight_files(self.files)}


def is_hub_id(place: str) -> bool:
    return bool(_HUB_ID.fullmatch(place)) and not Path(place).expanduser().exists()


class HuggingFaceHub:
    """The Hub, through huggingface_hub; its own cache, token and settings apply."""

    def look(self, name: str) -> Repository:
        """Raises UserError if the model does not exist or is gated, or the Hub cannot be reached."""
        from huggingface_hub import HfApi

        info = self._ask(name, lambda: HfApi().model_info(name, files_metadata=True, timeout=20.0))
        files = {one.rfilename: one.size or 0 for one in info.siblings or []}
        return Repository(name, info.sha or "main", files)

    def fetch(self, repository: Repository, file: str, on_bytes: Callable[[int], None]) -> Path:
        """Downloads ``file`` and returns its path in the local snapshot. Raises UserError."""
        from huggingface_hub import hf_hub_download
        from tqdm.auto import tqdm

        class Counter(tqdm):
            """A progress bar that reports bytes to ``on_bytes`` instead of drawing."""

            def __init__(self, *args: Any, **kwargs: Any) -> None:
                kwargs["disable"] = False
                kwargs["file"] = StringIO()
                kwargs.pop("name", None)
                super().__init__(*args, **kwargs)

            def update(self, n: float | None = 1) -> bool | None:
                on_bytes(int(n or 0))
                return super().update(n)

            def update_transfer(self, n: float) -> None:
                """Bytes of Xet storage on the network. Those that it writes come to ``update``; without this method it
                would make a second bar of this class, and each byte would count twice.
                """

            def set_transfer_postfix_str(self, *args: Any, **kwargs: Any) -> None:
                """How fast they come."""

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
        except (errors.RepositoryNotFoundError, errors.HFValidationError) as error:
            raise UserError(
                f"There is no model {name} on the Hub (or it is private and you are not logged in): check its spelling."
            ) from error
        except errors.LocalEntryNotFoundError as error:
            raise UserError(
                f"{name} is not on this machine and the Hub cannot be reached: check the network."
            ) from error
        except (errors.HTTPError, errors.HfHubHTTPError, OSError, RuntimeError) as error:
            if isinstance(error, OSError) and error.errno in OF_THE_DISK:
                raise UserError(
                    f"{name} could not be kept on this machine ({error.strerror}): free some space, or set "
                    "HF_HOME to a folder that can be written."
                ) from error
            # HTTPError: the base class of errors of the HTTP library that the Hub's client uses; RuntimeError: of Xet
            raise UserError(
                f"{name} could not be loaded from the Hub: {type(error).__name__}. Check the network and try again."
            ) from error
