"""What passes cost measured in a moment, here or in a worker process: for tests to which it does not matter."""

import os
import time
from collections.abc import Callable
from pathlib import Path

from decoding.backends.jobs import Jobs


def measure_little(change: Callable[[object, str, object], None] = setattr) -> None:
    """Has the cost curves measured in a moment; ``change`` may be the setattr of a MonkeyPatch."""
    from decoding.comparison import costs  # imports torch, as a job does

    change(costs, "BUDGET_S", 1e-9)
    change(costs, "ROUNDS", (1, 1))
    change(costs, "SPARSE", (1, costs.SL_CAP))
    change(costs, "LONG", ())


class HeldJobs(Jobs):
    """Measurements stand still as soon as they measure costs, until the file HOLD_UNTIL exists."""

    def run(self, kind, options, run_id, cancel):
        measure_little()
        go = Path(os.environ["HOLD_UNTIL"])
        for event in super().run(kind, options, run_id, cancel):
            yield event
            while "Measuring what" in str(event) and not cancel() and not go.exists():
                time.sleep(0.02)
