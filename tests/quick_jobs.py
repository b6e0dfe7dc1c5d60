"""The worker's jobs without the seconds of measuring: for tests that start a worker process with real models."""

from __future__ import annotations

import os
import time
from pathlib import Path

from decoding.backends.jobs import Jobs


class QuickJobs(Jobs):
    def run(self, kind, options, run_id, cancel):
        from decoding.comparison import costs  # imports torch, as the job does

        costs.BUDGET_S = 0.02
        yield from super().run(kind, options, run_id, cancel)


class HeldJobs(QuickJobs):
    """Measurements stand still as soon as they measure costs: of drafts until the file HOLD_UNTIL exists, of policies
    until they are stopped.
    """

    def run(self, kind, options, run_id, cancel):
        go = Path(os.environ["HOLD_UNTIL"])
        for event in super().run(kind, options, run_id, cancel):
            yield event
            while "Measuring what" in str(event) and not cancel() and not (kind == "drafts" and go.exists()):
                time.sleep(0.02)
