"""The worker's jobs without the seconds of measuring: for tests that start a worker process with real models."""

from __future__ import annotations

from decoding.backends.jobs import Jobs


class QuickJobs(Jobs):
    at_length: tuple[str, ...] = ()  # kinds of jobs that measure for as long as usual

    def __init__(self) -> None:
        super().__init__()
        self._usual_s: float | None = None

    def run(self, kind, options, run_id, cancel):
        from decoding.comparison import costs  # imports torch, as the job does

        if self._usual_s is None:
            self._usual_s = costs.BUDGET_S
        costs.BUDGET_S = self._usual_s if kind in self.at_length else 0.02
        yield from super().run(kind, options, run_id, cancel)


class StoppedEvaluation(QuickJobs):
    """An evaluation measures long enough to be stopped meanwhile."""

    at_length = ("evaluate",)
