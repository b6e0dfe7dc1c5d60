"""The jobs of the process with the models; the last pair used stays loaded."""

from __future__ import annotations

import logging
import queue
import sys
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from ..errors import Cancelled, UserError
from ..records.events import Kind, RawEvents
from ..records.pairs import find_pair
from ..records.request import CompareRequest, number_formats
from ..records.run_file import to_plain

if TYPE_CHECKING:
    from ..comparison.kept_costs import KnownCosts
    from ..engines.pair import Pair
    from ..evaluation.options import EvaluationOptions
    from ..records.trace import Costs

log = logging.getLogger(__name__)

Cancel = Callable[[], bool]
Key = tuple[str, str, str, str, str]  # pair, target, draft, number format of the target and of drafts
POLL_S = 0.05  # interval at which idle work waits for a loading pair
PART = "part"  # the kind of a job that is a part of an evaluation; not for clients over HTTP


class Jobs:
    """Does the jobs of one process; made once in it.

    Imports torch only when a job needs it. ``device`` as in :func:`decoding.engines.pair.load_pair`. ``costs``: runs
    weigh these instead of this machine's. ``sets_lanes``: learned policies run with the thresholds chosen for this
    machine's costs; else as they were fitted, on every machine, for runs that ship, or are repeated.
    """

    def __init__(self, device: str = "auto", costs: Costs | None = None, sets_lanes: bool = True) -> None:
        self._device, self._costs, self._sets_lanes = device, costs, sets_lanes
        self._key: Key | None = None
        self._known: KnownCosts | None = None
        self._loading: Loading | None = None

    def run(self, kind: str, options: dict[str, Any], run_id: str, cancel: Cancel) -> RawEvents:
        """The events of a job, the last one ``finished``. Raises UserError, Cancelled."""
        if kind == "compare":
            from ..comparison.compare import compare

            request = CompareRequest(**options)  # checked by whoever took it from elsewhere
            known = yield from self._load(request, cancel)
            yield from compare(request, known, cancel, run_id)
        elif kind == "evaluate":
            yield from self._evaluate(options, None, cancel)
        elif kind == PART:
            yield from self._evaluate(options["evaluation"], options["part"], cancel)
        else:
            raise UserError(f"There is no job '{kind[:40]}': choose compare or evaluate.")

    def prepare(self) -> None:
        """Begin to load the default pair, before the first run is requested."""
        self._begin(_key_of(CompareRequest(prompt="")))

    def idle(self, busy: Callable[[], bool]) -> None:
        """Use idle time: finish loading, measure cost curves that are missing or old.

        Returns when there is nothing left to do, or as soon as ``busy()``.
        """
        if self._loading is None and self._known is None:
            return
        from ..comparison.kept_costs import measure_asked, prepare_usual, set_policies

        try:
            if self._loading is not None and self._loading.wait(busy):
                prepare_usual(self._take(self._loading), busy)
            if self._known is not None:
                measure_asked(self._known, busy)
                set_policies(self._known, busy)
        except UserError as error:  # the next run reports the same error
            log.warning("%s", error)
        except Exception:
            log.exception("the work in idle time failed")

    def has_lost_device(self) -> bool:
        """Whether the GPU has faulted, after which CUDA refuses all further work of this process. Lack of memory is no
        fault.
        """
        if self._device == "cpu" or (torch := sys.modules.get("torch")) is None or not torch.cuda.is_initialized():
            return False
        try:
            torch.cuda.synchronize()
        except RuntimeError:
            log.exception("the GPU has faulted")
            return True
        return False

    def preload(self) -> None:
        """Loads the default pair with all its drafts, for processes that are forked later.

        Runs in the calling thread, because ZeroGPU's stand-in for CUDA works in no other.
        """
        from ..engines.pair import load_pair

        key = _key_of(CompareRequest(prompt=""))
        pair = load_pair(*key, device=self._device)
        for name in pair.draft_names:
            pair.draft(name)
        self._know(pair, key)

    def _evaluate(self, options: dict[str, Any], part: dict[str, Any] | None, cancel: Cancel) -> RawEvents:
        """An evaluation, or a ``part`` of one that is spread over several devices."""
        from ..evaluation.options import options_from_dict
        from ..evaluation.parts import Part, run_part
        from ..evaluation.stages import open_evaluation

        asked = options_from_dict(options)
        pair = (yield from self._load(asked, cancel)).pair
        with TemporaryDirectory(prefix="speculoscope-") as name:
            if part is None:
                yield from _as_events(open_evaluation(asked, pair, Path(name), cancel).run())
            else:
                yield from _as_events(run_part(asked, Part(**part), pair, Path(name), cancel))

    def _load(
        self, request: CompareRequest | EvaluationOptions, cancel: Cancel
    ) -> Generator[tuple[Kind, dict[str, Any]], None, KnownCosts]:
        """Load the requested pair unless it is loaded, yielding progress; returns what is known of its costs, and with
        that the pair. Raises UserError, Cancelled.
        """
        key = _key_of(request)
        if self._known is not None and key == self._key:
            return self._known
        loading = self._loading
        if loading is None or loading.key != key:
            loading = self._begin(key)
        loading.cancelled = cancel
        while (step := loading.progress.get()) is not None:
            yield "progress", {"stage": "loading", "message": step[0], "fraction": step[1]}
        return self._take(loading)

    def _begin(self, key: Key) -> Loading:
        """Begin to load, after any current loading has ended."""
        if self._loading is not None:
            self._loading.end()
        self._key = self._known = None  # frees the memory of the last pair before the next one is allocated
        self._loading = Loading(key, self._device)
        return self._loading

    def _take(self, loading: Loading) -> KnownCosts:
        """Take over the pair that was being loaded. Raises what loading raised."""
        import torch

        self._loading = None
        pair = loading.future.result()
        torch.set_num_threads(pair.target.info.threads)  # torch keeps it per thread; this one decodes
        return self._know(pair, loading.key)

    def _know(self, pair: Pair, key: Key) -> KnownCosts:
        from ..comparison.kept_costs import KnownCosts

        self._key, self._known = key, KnownCosts(pair, sets_lanes=self._sets_lanes, given=self._costs)
        return self._known


class Loading:
    """Loads a pair in a separate thread, so that a long download can report progress and be stopped.

    Begins immediately. ``progress``: a queue of (message, share done or None), with None at the end; ``future``: of the
    pair.
    """

    def __init__(self, key: Key, device: str) -> None:
        from ..engines.pair import load_pair

        self.key = key
        self.cancelled: Callable[[], bool] = lambda: False
        self.progress: queue.SimpleQueue[tuple[str, float | None] | None] = queue.SimpleQueue()
        self.progress.put(("Loading the models", None))
        pool = ThreadPoolExecutor(1, thread_name_prefix="loading")
        self.future = pool.submit(load_pair, *key, device=device, progress=self._report)
        pool.shutdown(wait=False)
        self.future.add_done_callback(lambda done: self.progress.put(None))

    def _report(self, message: str, fraction: float | None) -> None:
        if self.cancelled():
            raise Cancelled
        self.progress.put((message, fraction))

    def wait(self, busy: Callable[[], bool]) -> bool:
        """Wait for the end (True), or until ``busy()`` (False)."""
        while not self.future.done():
            if busy():
                return False
            wait([self.future], POLL_S)
        return True

    def end(self) -> None:
        """The pair is no longer needed: loading stops at its next progress message."""
        self.cancelled = lambda: True
        self.future.exception()


def _key_of(request: CompareRequest | EvaluationOptions) -> Key:
    """The default pair has one key, by name or without: what is prepared is what the page asks for by name."""
    try:
        is_default = request.pair == find_pair().name
    except UserError:  # none is installed, as loading will say
        is_default = False
    draft = request.target and request.draft  # an evaluation without a target may name one of the pair's
    return "" if is_default else request.pair, request.target, draft, *number_formats(request)


def _as_events(steps: Iterator[Any]) -> RawEvents:
    """Progress of an evaluation as events, its result as the last one. Raises Cancelled if there is none."""
    from ..evaluation.results import Progress

    for step in steps:
        if not isinstance(step, Progress):
            yield "finished", {"result": to_plain(step)}
            return
        yield "progress", to_plain(step)
    raise Cancelled
