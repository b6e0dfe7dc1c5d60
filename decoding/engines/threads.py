"""How many CPU threads a model's passes use, found in a trial.

A pass over one text has some two hundred parallel regions, and waking a sleeping thread in each of them can take longer
than its share of the work: on one machine two threads were twice as slow as one for a model of 135M parameters, though
its weights come from memory. A thread that spins instead makes passes a hundred times slower as soon as another process
is busy. So no rule by size or cores is right, and every model, target or draft, has a number of its own.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from itertools import repeat
from statistics import median
from time import perf_counter
from typing import TypeVar

import torch

from .base import CachedModel

TARGET_ROWS, DRAFT_ROWS = (1, 2, 4, 6, 9), (1, 2)  # of usual passes: a plain one and checks; a step and the first one
MATCH = 0.65  # chance that a guess holds; the default draft's on chat prompts is 0.7
STEP = 0.07  # a draft step over the fastest plain pass; c on the machines that were measured is 0.02 to 0.13
ROUNDS = 4
BUDGET_S = 1.5  # of one model, so that a large one is not tried for minutes
GAIN = 0.95  # more threads must bring at least this: they are taken from everyone else on the machine
_CONTEXT = 32
Which = tuple[str, int]  # a model and a number of threads
T = TypeVar("T")


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


def best_use(found: Mapping[Which, Mapping[int, float]]) -> dict[Which, float]:
    """What counts when numbers of threads or formats are compared, from the seconds of passes by number of rows.

    For a target: seconds per token of text at its best static SL, SL 0 included, ``(pass over SL + 1 rows + SL draft
    steps) / expected tokens``, the latter 1 + MATCH + ... + MATCH^SL. So checks count for as much as a text gains by
    them: with passes of 10 milliseconds that double at two rows, plain decoding is best, and at 20 for any number of
    rows guessing is better than that. A draft step costs the same beside every candidate. For a draft: a step and the
    first one after a check, which reads two rows.
    """
    if any(tuple(passes) == DRAFT_ROWS for passes in found.values()):
        return {which: sum(passes.values()) for which, passes in found.items()}
    step = STEP * min(passes[1] for passes in found.values())
    return {which: min(map(_per_token, passes, passes.values(), repeat(step))) for which, passes in found.items()}


def _per_token(rows: int, pass_s: float, step_s: float) -> float:
    return (pass_s + (rows - 1) * step_s) / sum(MATCH**guess for guess in range(rows))


def choose_threads(model: CachedModel, rows: tuple[int, ...]) -> int:
    """The number of threads that is best for a model with passes over ``rows`` tokens (:func:`best_use`). Empties the
    model's cache.
    """
    choices = thread_choices()
    if len(choices) < 2:
        return choices[0]
    found = best_use(time_passes({"": model}, rows, choices))
    return nearly_fastest({threads: seconds for (_, threads), seconds in found.items()})


def time_passes(
    models: Mapping[str, CachedModel], rows: tuple[int, ...], choices: tuple[int, ...]
) -> dict[Which, dict[int, float]]:
    """Seconds of passes over each number of ``rows`` tokens, for each of ``models`` by name, with each number of
    threads: medians over rounds in which they take turns, so that a slow moment of the machine hits all of them.
    Empties the models' caches.
    """
    before = {name: model.info.threads for name, model in models.items()}
    times: dict[Which, list[list[float]]] = {(name, threads): [] for name in models for threads in choices}
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
    return {which: dict(zip(rows, map(median, zip(*rounds)))) for which, rounds in times.items()}


def _time_passes(model: CachedModel, rows: tuple[int, ...]) -> list[float]:
    """Seconds of a pass over each number of ``rows``."""
    context = min(_CONTEXT, model.max_length - max(rows))
    if model.length != context:
        model.prefill([1] * context)
    spent = []
    for n in rows:
        begin = perf_counter()
        model.extend([1] * n)
        spent.append(perf_counter() - begin)
        model.rewind(context)
    return spent


def nearly_fastest(seconds: Mapping[T, float]) -> T:
    """The fastest, or one before it that is nearly as fast (GAIN)."""
    best, *others = seconds
    for other in others:
        if seconds[other] < GAIN * seconds[best]:
            best = other
    return best
