"""llama.cpp as a contender, through llama-cpp-python: plain greedy decoding of the same GGUF file.

The package is optional (requirements-llamacpp.txt) and imported here only. llama.cpp multiplies the file's four-bit
weights by activations rounded to eight bits, so its text may part from ours.
"""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from time import perf_counter
from typing import Any

from ..errors import UserError
from .contenders import Reading

NAME = "llama.cpp"
NOTE = "llama.cpp rounds activations to eight bits, so its text may part from ours."
MISSING = (
    "llama.cpp is not here: pip install -r requirements-llamacpp.txt (its compilation takes some minutes and needs a "
    "C++ compiler), then run the same command again."
)


class LlamaCppContender:
    """Plain decoding on ``threads`` CPU threads; its decode time begins with the first new token, as ours does."""

    def __init__(self, file: Path, context: int, threads: int = 1) -> None:
        """``context``: tokens of its cache. Raises UserError without the package, or if it cannot load ``file``."""
        self.name, self.threads = NAME, threads
        self._model = _load(file, context, threads)

    def run(self, prompt: list[int], n: int) -> Reading:
        self._model.reset()  # otherwise it would keep the part of the cache that fits
        begin = perf_counter()
        tokens = self._model.generate(prompt, temp=0.0, repeat_penalty=1.0)
        output = [next(tokens)]
        first = perf_counter()
        while len(output) < n:
            output.append(next(tokens))
        end = perf_counter()
        tokens.close()
        return Reading(output, max(end - first, 1e-9), n - 1, end - begin)


def check_installed() -> None:
    """Raises UserError without llama-cpp-python."""
    if importlib.util.find_spec("llama_cpp") is None:
        raise UserError(MISSING)


def _load(file: Path, context: int, threads: int) -> Any:
    check_installed()
    llama_cpp = importlib.import_module("llama_cpp")
    try:
        return llama_cpp.Llama(
            str(file), n_ctx=context, n_threads=threads, n_threads_batch=threads, use_mmap=True, verbose=False
        )
    except (ValueError, RuntimeError, OSError) as error:
        why = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise UserError(f"llama.cpp cannot load {file.name} ({why}).") from error
