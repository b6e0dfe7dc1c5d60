"""The contenders of a benchmark: our lanes, transformers' ways to generate, and llama.cpp."""

from __future__ import annotations

import importlib
import importlib.util
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any, Protocol

import torch

from ..comparison.lane_run import LaneRun
from ..comparison.prepare import prepare
from ..engines.inputs import EncodedPrompt
from ..engines.pair import Pair
from ..engines.threads import use_threads
from ..errors import UserError, first_line
from ..lookahead.lanes import parse_lane
from ..loop.clock import wait_for
from ..records.request import CompareRequest
from ..records.trace import Costs

NOTE = "llama.cpp rounds activations to eight bits, so its text may differ from ours."
MISSING = (
    "llama.cpp is not installed: pip install -r requirements-llamacpp.txt (compiling it takes some minutes and needs "
    "a C++ compiler), then run the same command again."
)


@dataclass(slots=True)
class Reading:
    """One timed text. ``decode_s`` excludes the prompt and is the time of ``n_timed`` tokens.

    ``shares``: seconds of draft, check, policy and rest.
    """

    output: list[int]
    decode_s: float
    n_timed: int
    total_s: float
    shares: tuple[float, float, float, float] | None = None

    @property
    def tokens_per_s(self) -> float:
        return self.n_timed / self.decode_s


class Contender(Protocol):
    """One way to continue a text. ``threads``: the CPU threads that it uses."""

    name: str
    threads: int

    def run(self, prompt: list[int], n: int) -> Reading:
        """Continues ``prompt`` greedily by ``n`` tokens, past any end-of-text token."""


@dataclass
class LaneContender:
    """One of our lanes on a loaded pair, on ``threads`` CPU threads."""

    name: str
    lane: str
    pair: Pair
    costs: Costs
    threads: int

    def run(self, prompt: list[int], n: int) -> Reading:
        use_threads(self.threads)
        request = CompareRequest(prompt="given as ids", lanes=[self.lane], max_new_tokens=n, ignore_eos=True)
        prepared = prepare(request, self.pair)
        prepared.prompt = EncodedPrompt(prompt)
        run = LaneRun(prepared, parse_lane(self.lane), self.costs).run()
        draft, check, policy, rest = map(sum, zip(*(iteration.times for iteration in run.iterations)))
        shares = draft, check, policy, rest
        decode_s = sum(shares)
        return Reading(run.output, decode_s, len(run.output), run.prefill_s + decode_s, shares)


@dataclass
class GenerateContender:
    """transformers' ``generate`` on its own modules: plain, or assisted if there is a ``draft``.

    Its decode time is the time of n tokens minus that of one, which excludes the prompt as ours does. ``settings`` go
    to the draft's generation config, the only place where transformers reads them. ``within``: a ``with`` block around
    each call.
    """

    name: str
    target: Any
    draft: Any = None
    settings: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    threads: int = 1
    within: Callable[[], AbstractContextManager] = nullcontext

    def run(self, prompt: list[int], n: int) -> Reading:
        use_threads(self.threads)
        first_s, _ = self._time(prompt, 1)
        total_s, output = self._time(prompt, n)
        return Reading(output, max(total_s - first_s, 1e-9), len(output) - 1, total_s)

    def _time(self, prompt: list[int], n: int) -> tuple[float, list[int]]:
        device = self.target.get_input_embeddings().weight.device
        ids = torch.tensor([prompt], device=device)
        options = dict(self.options, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=n)
        if self.draft is not None:
            options["assistant_model"] = self.draft
            for name, value in self.settings.items():
                setattr(self.draft.generation_config, name, value)
        wait_for(str(device))
        before = perf_counter()
        with torch.inference_mode(), warnings.catch_warnings(), self.within():
            warnings.simplefilter("ignore")
            output = self.target.generate(ids, **options)
        wait_for(str(device))
        return perf_counter() - before, output[0, len(prompt) :].tolist()

    def choose_threads(self, prompt: list[int], n: int, choices: tuple[int, ...]) -> None:
        """Gives transformers its best thread count on this machine."""
        speeds = {}
        for threads in choices:
            self.threads = threads
            self.run(prompt, n)  # warms up
            speeds[threads] = self.run(prompt, n).tokens_per_s
        self.threads = max(speeds, key=speeds.__getitem__)


def assisted_settings(hf_draft: Any) -> dict[str, Any]:
    """transformers' default settings for assisted generation."""
    config = hf_draft.generation_config
    names = ("num_assistant_tokens", "num_assistant_tokens_schedule", "assistant_confidence_threshold")
    return {name: getattr(config, name) for name in names}


def never_ending(hf_model: Any) -> Any:
    """``hf_model`` without an end-of-text token, so that all contenders write the same number of tokens, and without
    other settings that would change its text, such as a penalty on repetition.
    """
    from transformers import GenerationConfig

    hf_model.generation_config = GenerationConfig(pad_token_id=0, **assisted_settings(hf_model))
    return hf_model


class LlamaCppContender:
    """llama.cpp's plain greedy decoding of a GGUF file, through the optional package llama-cpp-python.

    Its decode time begins with the first new token, as ours does. llama.cpp multiplies the file's four-bit weights by
    activations rounded to eight bits, so its text may differ from ours.
    """

    name, threads = "llama.cpp", 1

    def __init__(self, file: Path, context: int) -> None:
        """``context``: tokens of its cache. Raises UserError if it cannot load ``file``."""
        options = {"n_threads": self.threads, "n_threads_batch": self.threads, "use_mmap": True, "verbose": False}
        try:
            self._model = importlib.import_module("llama_cpp").Llama(str(file), n_ctx=context, **options)
        except (ValueError, RuntimeError, OSError) as error:
            raise UserError(f"llama.cpp cannot load {file.name} ({first_line(error)}).") from error

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
