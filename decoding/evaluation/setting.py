"""The setting of an evaluation: machine, time, models and costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timezone

from ..comparison.prepare import model_info
from ..engines.loading import gpu_name
from ..records.machine import describe_machine
from .collect import Collector
from .options import EvaluationOptions
from .results import Setting
from .samples import Sample


def describe_setting(
    options: EvaluationOptions,
    collector: Collector,
    draft: str,
    samples: Sequence[Sample],
    validation_prompts: int,
    notes: Sequence[str],
) -> Setting:
    """The setting of the evaluation of ``draft``; ``samples`` are its test prompts."""
    pair = collector.pair
    target, guesser = pair.target.info, model_info(pair, draft)
    return Setting(
        pair=pair.name,
        draft=draft,
        target_fingerprint=target.fingerprint,
        draft_fingerprint=guesser.fingerprint,
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        machine=describe_machine(gpu_name(target.device)),
        target_dtype=target.dtype,
        draft_dtype=guesser.dtype,
        threads=target.threads,
        split=options.split,
        max_new_tokens=options.max_new_tokens,
        prompts=dict(Counter(sample.suite for sample in samples)),
        validation_prompts=validation_prompts,
        clock_repeats=options.repeats,
        costs=replace(collector.costs),
        notes=list(notes),
    )
