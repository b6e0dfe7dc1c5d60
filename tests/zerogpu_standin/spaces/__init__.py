"""In place of the package ``spaces`` where there is no ZeroGPU: models stay on the CPU, and the quota is soon used up.

For rehearsals (tests/space_rehearsal.py); what crosses the border to the GPU's process is pickled, as there.
"""

import inspect
import os
import pickle
import pkgutil

from decoding.engines import pair

__path__ = pkgutil.extend_path(__path__, __name__)  # Gradio also imports modules of the real package
RUNS = int(os.environ.get("ZEROGPU_STANDIN_RUNS", "1"))  # that a visitor's quota is enough for
_load_pair, _calls = pair.load_pair, iter(range(10**9))
pair.load_pair = lambda *names, device="auto", **options: _load_pair(*names, device="cpu", **options)


class QuotaError(Exception):
    """As the error of Gradio that the package raises."""

    def __init__(self, title: str, message: str) -> None:
        super().__init__(message)
        self.title, self.message = title, message


def GPU(duration):
    def decorate(task):
        assert inspect.isgeneratorfunction(task)

        def lent(*args):
            if next(_calls) >= RUNS:
                seconds = duration(*args)
                raise QuotaError("ZeroGPU quota exceeded", f"You have exceeded your quota ({seconds:.0f}s requested).")
            for item in task(*pickle.loads(pickle.dumps(args))):
                yield pickle.loads(pickle.dumps(item))

        return lent

    return decorate


def gradio_auto_wrap(function):
    """Gradio asks it about each of its event functions. The real one wraps those that are GPU functions themselves."""
    return function
