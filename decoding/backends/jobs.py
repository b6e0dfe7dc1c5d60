"""The jobs that the process with the models can do; the last pair used stays loaded."""

from __future__ import annotations

import logging
import queue
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from ..errors import Cancelled, UserError
from ..records.events import Told
from ..records.request import CompareRequest, request_from_dict

if TYPE_CHECKING:
    from ..engines.pair import Pair
    from ..evaluation.options import EvaluationOptions

log = logging.getLogger(__name__)

Cancel = Callable[[], bool]


class Jobs:
    """Runs a job and tells ``(kind, data)`` pairs, the last one ``finished``. Raises UserError, Cancelled.

    Imports torch only when a job needs it. ``device`` as in :func:`decoding.engines.pair.load_pair`.
    """

    def __init__(self, device: str = "auto") -> None:
        self._device = device
        self._key: tuple[str, ...] | None = None
        self._pair: Pair | None = None

    def run(self, kind: str, options: dict[str, Any], run_id: str, cancel: Cancel) -> Told:
        jobs = {"compare": self._compare, "evaluate": self._evaluate, "drafts": self._evaluate}
        job = jobs.get(kind)
        if job is None:
            raise UserError(f"There is no job '{kind[:40]}': choose one of {', '.join(jobs)}.")
        yield from job(options, run_id, cancel)

    def has_lost_device(self) -> bool:
        """Has the GPU faulted? CUDA then refuses all further work of this process. Lack of memory is no such fault."""
        if self._device == "cpu" or (torch := sys.modules.get("torch")) is None or not torch.cuda.is_initialized():
            return False
        try:
            torch.cuda.synchronize()
        except RuntimeError:
            log.exception("the GPU has faulted")
            return True
        return False

    def preload(self, request: CompareRequest) -> None:
        """Load the pair of ``request`` with all its drafts, for processes that are forked later.

        In the calling thread: ZeroGPU's stand-in for CUDA works in no other.
        """
        from ..engines.pair import load_pair

        key = self._key_of(request)
        pair = load_pair(*key, device=self._device)
        for name in pair.draft_names:
            pair.draft(name)
        self._pair, self._key = pair, key

    def _compare(self, options: dict[str, Any], run_id: str, cancel: Cancel) -> Told:
        from ..comparison.compare import compare

        request = request_from_dict(options)
        yield from self._load(request, cancel)
        yield from compare(request, self._pair, cancel, run_id)

    def _evaluate(self, options: dict[str, Any], run_id: str, cancel: Cancel) -> Told:
        """Policies with one draft, or all drafts where the options ask for them."""
        from ..evaluation.drafts import evaluate_drafts
        from ..evaluation.options import options_from_dict
        from ..evaluation.policies import evaluate
        from ..evaluation.progress import Progress

        asked = options_from_dict(options)
        yield from self._load(asked, cancel)
        run = evaluate_drafts if asked.drafts else evaluate
        with TemporaryDirectory(prefix="speculoscope-") as folder:
            for told in run(asked, self._pair, Path(folder), cancel):
                if isinstance(told, Progress):
                    yield "progress", asdict(told)
                else:
                    yield "finished", {"result": asdict(told)}
                    return
        raise Cancelled

    @staticmethod
    def _key_of(request: CompareRequest | EvaluationOptions) -> tuple[str, ...]:
        return request.pair, request.target, request.draft, request.dtype

    def _load(self, request: CompareRequest | EvaluationOptions, cancel: Cancel) -> Told:
        """Make the pair asked for the loaded one, telling how it goes. Raises UserError, Cancelled.

        Loading runs in a thread of its own, so that a long download can be told of and stopped.
        """
        from ..engines.pair import load_pair

        key = self._key_of(request)
        if self._pair is not None and key == self._key:
            return
        self._pair = self._key = None  # frees the memory of the last pair before the next one takes its own
        told: queue.SimpleQueue[tuple[str, float | None] | None] = queue.SimpleQueue()

        def tell(message: str, fraction: float | None) -> None:
            if cancel():
                raise Cancelled
            told.put((message, fraction))

        tell("Loading the models", None)
        with ThreadPoolExecutor(1) as pool:
            loading = pool.submit(load_pair, *key, device=self._device, progress=tell)
            loading.add_done_callback(lambda done: told.put(None))
            while (step := told.get()) is not None:
                yield "progress", {"stage": "loading", "message": step[0], "fraction": step[1]}
            self._pair = loading.result()
        self._key = key
