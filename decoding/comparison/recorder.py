"""Records what transformers' ``generate`` does, assisted or plain, as a run.

    with Recorder(tokenizer) as recorder:
        model.generate(**inputs, assistant_model=draft)
    recorder.run

Within the block the methods of ``SEAM`` pass through the recorder: what chooses tokens goes on unchanged. It reads the
proposals of the object that drafts (``get_candidates``), the target's scores after each check
(``update_candidate_strategy``), and in plain decoding the scores that the logits processors leave.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial, wraps
from importlib import import_module
from time import perf_counter
from typing import Any

import torch
import transformers
from transformers import GenerationMixin, LogitsProcessor, LogitsProcessorList
from transformers.generation.candidate_generator import CandidateGenerator
from transformers.utils import is_sklearn_available

from ..engines.tokenizer import Tokenizer
from ..errors import UserError
from ..loop.clock import DRAFT, POLICY, REST, VERIFY
from ..loop.speculative import RawIteration
from ..records.trace import Run, StopReason
from .annotate import View
from .recorder_run import Recorded, assemble_calls, settings_of

WRITTEN_FOR = "5.23"
SEAM = {
    (GenerationMixin, "_sample"): ("input_ids", "logits_processor", "generation_config"),
    (GenerationMixin, "_assisted_decoding"): ("input_ids", "generation_config"),
    (GenerationMixin, "_beam_search"): ("input_ids",),
    (GenerationMixin, "_get_candidate_generator"): ("generation_config",),
    (CandidateGenerator, "get_candidates"): ("input_ids",),
    (CandidateGenerator, "update_candidate_strategy"): ("input_ids", "scores", "num_matches"),
}
TOP = 5  # alternatives kept per token
NO_BATCH = "The recorder follows one text at a time: call generate with one prompt and num_return_sequences=1."
NO_BEAMS = "The recorder follows one text at a time: call generate without beams (num_beams=1)."
ONE_RECORDER = "Another recorder is watching generate: end its block first, or both would time each other's reading."
NO_IDS = "The recorder needs the prompt's token ids: give generate input_ids, not inputs_embeds alone."
_watching = threading.Lock()  # held by the recorder whose block is open


class Recorder:
    """A ``with`` block whose calls of ``generate`` are recorded; see :attr:`run`."""

    def __init__(self, tokenizer: Any) -> None:
        """``tokenizer``: the target's, of transformers or of a pair. Raises UserError for another object."""
        is_a_pairs = isinstance(tokenizer, Tokenizer)
        if not is_a_pairs and not hasattr(tokenizer, "eos_token_id"):
            raise UserError(f"The recorder takes the target's tokenizer, not a {type(tokenizer).__name__}.")
        self._tokenizer = tokenizer if is_a_pairs else Tokenizer(tokenizer)
        self._calls: list[Recorded] = []
        self._here = threading.local()  # a streamer's generate runs in another thread
        self._undo = ExitStack()

    def __enter__(self) -> Recorder:
        """Raises UserError within another recorder's block, and where transformers has other methods than the recorder
        is written for.
        """
        _check_seam()
        if not _watching.acquire(blocking=False):
            raise UserError(ONE_RECORDER)
        self._undo.callback(_watching.release)
        if is_sklearn_available():  # which transformers imports in its first check: a second of that call's time
            import_module("sklearn.metrics")
        self._replace("_sample", self._plain)
        self._replace("_assisted_decoding", self._assisted)
        self._replace("_beam_search", _refuse_beams)
        self._replace("_get_candidate_generator", self._drafting)
        return self

    def __exit__(self, *error: object) -> None:
        self._undo.close()

    @property
    def run(self) -> Run:
        """The calls of the block as one run: a lane each, the first plain one the baseline. Raises UserError if there
        were none, or if they are several runs.
        """
        runs = self.runs
        if len(runs) != 1:
            many = f"{len(runs)} runs were recorded"
            had = many if runs else "No call of generate was recorded in this block"
            kind = "the calls of one model with one prompt, all greedy or all sampled alike"
            raise UserError(f"{had}: a run holds {kind} (recorder.runs has each run).")
        return runs[0]

    @property
    def runs(self) -> list[Run]:
        """A run for each model, prompt and way to choose tokens. Raises UserError where a run file cannot hold it."""
        together: dict[tuple, list[Recorded]] = {}
        for call in self._calls:
            together.setdefault((id(call.model), *call.choosing.values(), *call.prompt), []).append(call)
        return [assemble_calls(calls, self._tokenizer) for calls in together.values()]

    def _replace(self, name: str, method: Callable) -> None:
        original = getattr(GenerationMixin, name)

        @wraps(original)  # transformers reads its signature
        def through(*args: Any, **kwargs: Any) -> Any:
            return method(original, *args, **kwargs)

        setattr(GenerationMixin, name, through)
        self._undo.callback(setattr, GenerationMixin, name, original)

    def _plain(self, original: Callable, *args: Any, **kwargs: Any) -> Any:
        given = inspect.signature(original).bind(*args, **kwargs)
        if self._watched is not None:  # a draft that writes by itself
            return original(*args, **kwargs)
        watch = _Watch(given.arguments)
        processors = [*given.arguments["logits_processor"], _Reader(watch)]
        given.arguments["logits_processor"] = LogitsProcessorList(processors)
        return self._record(watch, original, given)

    def _assisted(self, original: Callable, *args: Any, **kwargs: Any) -> Any:
        given = inspect.signature(original).bind(*args, **kwargs)
        return self._record(_Watch(given.arguments), original, given)

    def _record(self, watch: _Watch, original: Callable, given: inspect.BoundArguments) -> Any:
        self._here.watch = watch
        try:
            watch.go()
            output = original(*given.args, **given.kwargs)
            self._calls.append(watch.end(output))
        finally:
            self._here.watch = None
        return output

    def _drafting(self, original: Callable, *args: Any, **kwargs: Any) -> Any:
        generator = original(*args, **kwargs)
        if self._watched is not None:
            self._watched.follow(generator)
        return generator

    @property
    def _watched(self) -> _Watch | None:
        return getattr(self._here, "watch", None)


class _Watch:
    """One call of ``generate`` while it runs. Its clock stops while the recorder reads."""

    def __init__(self, given: dict[str, Any]) -> None:
        input_ids: torch.Tensor = given["input_ids"]
        if len(input_ids) > 1:
            raise UserError(NO_BATCH)
        if not input_ids.shape[1]:
            raise UserError(NO_IDS)
        self._call = Recorded(given["self"], given["generation_config"], input_ids[0].tolist())
        self._proposed: list[int] = []
        self._logits: torch.Tensor | None = None  # the draft's, or those of the plain token that is chosen next
        self._since = 0.0

    # -- the clock

    def go(self) -> None:
        """Starts the clock."""
        self._since = self._now()

    def _stop(self) -> float:
        """Seconds since the clock was started."""
        return self._now() - self._since

    def _now(self) -> float:
        if self._call.model.device.type != "cpu":
            torch.accelerator.synchronize(self._call.model.device)
        return perf_counter()

    def _begin(self) -> None:
        """A new iteration; what passed since the last check belongs to the one before."""
        if self._call.seconds:
            self._call.seconds[-1][REST] += self._stop()
        else:
            self._call.before_s = self._stop()
        self._call.seconds.append([0.0] * 4)

    # -- assisted

    def follow(self, generator: Any) -> None:
        """Reads what ``generator`` drafts in this call, and what the target makes of it."""
        self._call.generator = generator
        self._call.settings = settings_of(self._call)
        generator.get_candidates = partial(self._drafted, generator.get_candidates)
        generator.update_candidate_strategy = partial(self._verified, generator.update_candidate_strategy)

    def _drafted(self, original: Callable, input_ids: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        self._begin()
        self.go()
        candidates, logits = original(input_ids, *args, **kwargs)
        self._call.seconds[-1][DRAFT] = self._stop()
        self._proposed = candidates[0, input_ids.shape[1] :].tolist()
        self._logits = logits
        self.go()
        return candidates, logits

    def _verified(self, original: Callable, input_ids: torch.Tensor, scores: torch.Tensor, num_matches: Any) -> Any:
        self._call.seconds[-1][VERIFY] = self._stop()
        self._keep(input_ids[0, len(self._call.prompt) + self._written :].tolist(), scores[0])
        self.go()
        result = original(input_ids, scores, num_matches)
        self._call.seconds[-1][POLICY] = self._stop()
        self.go()
        return result

    # -- plain

    def read(self, input_ids: torch.Tensor, scores: torch.Tensor) -> None:
        """A pass of plain decoding: the scores after ``input_ids``."""
        passed = self._stop()
        self._choose(int(input_ids[0, -1]))
        self._call.seconds.append([0.0, passed, 0.0, 0.0])
        self._logits = scores
        self.go()

    def _choose(self, token: int) -> None:
        """The token that followed the last scores."""
        if self._logits is not None:
            self._keep([token], self._logits)

    # -- both

    @property
    def _written(self) -> int:
        """New tokens so far."""
        raw = self._call.raw
        return raw[-1].start + len(raw[-1].tokens) if raw else 0

    def _keep(self, new: list[int], scores: torch.Tensor) -> None:
        """One iteration: the text takes the tokens ``new``; ``scores``: the target's, a row for each guess and one."""
        start, drafted = self._written, self._proposed
        n_accepted = next((i for i, (one, other) in enumerate(zip(new, drafted)) if one != other), len(drafted))
        n_accepted = min(n_accepted, len(new))
        emitted = new[n_accepted] if len(new) > n_accepted else None
        wanted = [[token] for token in drafted] + [[]]
        if emitted is not None:
            wanted[n_accepted].append(emitted)
        keys = [(start + index, tuple(drafted[n_accepted:index])) for index in range(len(wanted))]
        self._call.target |= zip(keys, _views_of(scores, wanted))
        if self._call.generator is not None and self._logits is not None:
            self._call.seen |= zip(keys, _views_of(self._logits[0], wanted))
        stop = self._why(drafted, start)
        self._call.raw.append(RawIteration(start, drafted, n_accepted, emitted, stop, [], None, (0.0,) * 4, None))

    def _why(self, drafted: list[int], start: int) -> StopReason:
        if drafted and drafted[-1] in self._call.ends:
            return "eos"
        if len(drafted) + 1 >= self._call.limit - start:
            return "limit"
        return "policy" if drafted else "exhausted"

    def end(self, output: Any) -> Recorded:
        """What was recorded, after the call returned ``output``. Raises UserError if that is another text."""
        rest, call = self._stop(), self._call
        ids = output if isinstance(output, torch.Tensor) else output.sequences
        text: list[int] = ids[0, len(call.prompt) :].tolist()
        if call.generator is None and text:
            self._choose(text[-1])
            del call.raw[len(text) :], call.seconds[len(text) :]  # passes beyond the end, on a GPU
        if call.output != text:
            raise UserError(_moved("its generate returned other tokens than it verified"))
        if call.seconds:
            call.seconds[-1][REST] += rest
        return call


class _Reader(LogitsProcessor):
    """The last logits processor: it hands the scores on as they are."""

    def __init__(self, watch: _Watch) -> None:
        self._watch = watch

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        self._watch.read(input_ids, scores)
        return scores


def _views_of(logits: torch.Tensor, wanted: list[list[int]]) -> list[View]:
    """What the rows of ``logits`` (n, vocab) say, with the probabilities of the tokens ``wanted`` in each."""
    p = logits.float().softmax(-1)
    best = p.topk(min(TOP, p.shape[-1]))
    columns = (p.argmax(-1), torch.special.entr(p).sum(-1), best.indices, best.values)
    choices, entropies, tops, values = (column.tolist() for column in columns)
    rows = [row for row, tokens in enumerate(wanted[: len(p)]) for _ in tokens]
    flat = [token for tokens in wanted[: len(p)] for token in tokens]
    found = iter(p[rows, flat].tolist())
    return [
        View(
            choice=choices[row],
            entropy=round(entropies[row], 6),
            top=[(token, round(value, 6)) for token, value in zip(tops[row], values[row]) if value > 0],
            p={token: round(next(found), 6) for token in wanted[row]},
        )
        for row in range(len(choices))
    ]


def _refuse_beams(original: Callable, *args: Any, **kwargs: Any) -> Any:
    raise UserError(NO_BEAMS)


def _check_seam() -> None:
    for (owner, name), parameters in SEAM.items():
        method = vars(owner).get(name)
        if method is None:
            raise UserError(_moved(f"it has no {owner.__name__}.{name}"))
        missing = set(parameters) - inspect.signature(method).parameters.keys()
        if missing:
            raise UserError(_moved(f"its {owner.__name__}.{name} takes no {', '.join(sorted(missing))}"))


def _moved(what: str) -> str:
    return (
        f"transformers {transformers.__version__} generates differently from {WRITTEN_FOR}, which the recorder is "
        f"written for ({what}): nothing was recorded."
    )
