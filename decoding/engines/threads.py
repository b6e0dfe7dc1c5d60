"""How many CPU threads a model's passes take, found by trying.

A pass over one text has some two hundred parallel regions, and waking a sleeping thread in each of them can take longer
than its share of the work: on one machine two threads were twice as slow as one for a model of 135M parameters, though
its weights come from memory. A thread that spins instead makes passes a hundred times slower as soon as another process
is busy. So no rule by size or cores is right, and every model, target or draft, has a number of its own.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from statistics import median
from time import perf_counter

import torch

from .base import CachedModel

ROUNDS = 4
BUDGET_S = 1.5  # of one model, so that a large one is not tried for minutes
GAIN = 0.95  # more threads must bring at least this: they are taken from everyone else on the machine
_CONTEXT = 32


def use_threads(threads: int) -> None:
    """Sets the number of threads for passes of the calling thread; torch keeps it per calling thread."""
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)


def fixed_threads(threads: int | None) -> int | None:
    """The number requested by argument or OMP_NUM_THREADS; None if it is to be found by trial."""
    if threads is None and os.environ.get("OMP_NUM_THREADS"):
        return torch.get_num_threads()
    return threads


def thread_choices() -> tuple[int, ...]:
    """1, 2, 4, ... and all cores that this process may use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return tuple(sorted({1 << power for power in range(6) if 1 << power <= cores} | {min(cores, 32)}))


def choose_threads(model: CachedModel, rows: tuple[int, ...], choices: tuple[int, ...] | None = None) -> int:
    """The number of ``choices`` under which passes over each of ``rows`` tokens take the least time together. Empties
    the model's cache.
    """
    choices = thread_choices() if choices is None else choices
    if len(choices) < 2:
        return choices[0]
    return _fewest({threads: seconds for (_, threads), seconds in time_passes({"": model}, rows, choices).items()})


def time_passes(
    models: Mapping[str, CachedModel], rows: tuple[int, ...], choices: tuple[int, ...]
) -> dict[tuple[str, int], float]:
    """Seconds of passes over each of ``rows`` tokens together, for each of ``models`` by name, with each number of
    threads: medians over rounds in which they take turns, so that a slow moment of the machine hits all of them.
    Empties the models' caches.
    """
    before = {name: model.info.threads for name, model in models.items()}
    times: dict[tuple[str, int], list[float]] = {(name, threads): [] for name in models for threads in choices}
    begin = perf_counter()
    for number in range(1 + ROUNDS):
        for name, threads in times:
            models[name].info.threads = threads
            spent = _time_passes(models[name], rows)
            if number:  # the first round starts the threads
                times[name, threads].append(spent)
        if number and perf_counter() - begin > BUDGET_S * len(models):
            break
    for name, model in models.items():
        model.info.threads = before[name]
        model.rewind(0)
    return {which: median(seconds) for which, seconds in times.items()}


def _time_passes(model: CachedModel, rows: tuple[int, ...]) -> float:
    """Seconds of a pass over each number of ``rows``."""
    context = min(_CONTEXT, model.max_length - max(rows))
    if model.length != context:
        model.prefill([1] * context)
    spent = 0.0
    for n in rows:
        begin = perf_counter()
        model.extend([1] * n)
        spent += perf_counter() - begin
        model.rewind(context)
    return spent


def _fewest(typical: dict[int, float]) -> int:
    """The fastest number, or a smaller one that is nearly as fast."""
    best, *others = sorted(typical)
    for threads in others:
        if typical[threads] < GAIN * typical[best]:
            best = threads
    return best
