"""The worker's jobs without the seconds of measuring: for tests that start a worker process with real models."""

from __future__ import annotations

import time

from decoding.backends.jobs import Jobs


class QuickJobs(Jobs):
    def run(self, kind, options, run_id, cancel):
        from decoding.comparison import costs  # imports torch, as the job does

        costs.BUDGET_S = 0.02
        yield from super().run(kind, options, run_id, cancel)


class HeldEvaluation(QuickJobs):
    """An evaluation stands still as soon as it measures costs, until it is stopped."""

    def run(self, kind, options, run_id, cancel):
        for event in super().run(kind, options, run_id, cancel):
            yield event
            while kind == "evaluate" and "Measuring what" in str(event) and not cancel():
                time.sleep(0.02)
