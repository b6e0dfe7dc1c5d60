"""Which number format a model runs in: the requested one, or the fastest allowed one, found in a trial.

The processor's name does not determine which format is fast: this depends on its instructions, on how libraries use
them and on the speed of memory. So when a model is first loaded on a machine, its first layers are built in every
allowed format, and passes over the usual numbers of rows are timed, in turns. A format in which a row's bits depend on
the other rows of its pass is left out. The format with the least expected time per token of text is used (``best_use``
in threads.py). The result is kept (kept_trials.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from ..cpu import imitated
from ..errors import UserError
from ..records.trace import ModelInfo
from .formats import WeightFormat, all_formats, find_format
from .kept_trials import usual
from .lean import LeanModel
from .threads import Which, best_use, nearly_fastest, time_passes, use_threads

TRIAL_WEIGHTS = 48_000_000  # at least so many in the layers of a trial: more than a processor's cache holds


def target_formats(dtype: str, device: str, stored: str) -> list[WeightFormat]:
    """The formats that a target may run in: the one asked for, or those that hold a checkpoint of dtype ``stored``,
    the smallest first.

    On a GPU "auto" is bfloat16. Raises UserError.
    """
    if dtype != "auto":
        return [_asked_for(dtype, device)]
    return _unasked(device, stored)


def draft_formats(dtype: str, asked: str, rounded_to: str, device: str, stored: str) -> list[WeightFormat]:
    """The formats that a draft may run in: the one ``asked`` for, where it runs on ``device``; else, unless a "trial"
    is, the target's ``dtype``, if it is an exact one; else as its target may, and on a CPU the format ``rounded_to``
    that its pair names, too ("auto": none), which comes first.

    A draft of rounded weights guesses a little worse, and no text depends on it. Raises UserError.
    """
    if asked not in ("auto", "trial") and (device == "cpu" or find_format(asked).general):
        return [find_format(asked)]
    if dtype != "auto" and asked != "trial" and _asked_for(dtype, device).exact:
        return [find_format(dtype)]
    formats = _unasked(device, stored)
    if device != "cpu" or rounded_to == "auto":
        return formats
    rounded = [find_format(rounded_to), *(one for one in all_formats().values() if not one.exact)]
    smaller = [one for one in dict.fromkeys(rounded) if one.layer_bytes >= rounded[0].layer_bytes]
    return [one for one in smaller if one.is_fast_here()] + formats


def _asked_for(dtype: str, device: str) -> WeightFormat:
    found = find_format(dtype)
    if device != "cpu" and not found.general:
        raise UserError(f"{found.name} runs on a CPU only, not on {device}: leave the number format at auto here.")
    return found


def _unasked(device: str, stored: str) -> list[WeightFormat]:
    if device != "cpu":
        return [find_format("bfloat16")]
    able = (one for one in all_formats().values() if stored in one.holds and one.is_fast_here())
    return sorted(able, key=lambda one: (one.layer_bytes, one.name))


def fastest(
    formats: Sequence[WeightFormat],
    hf_model: Any,
    info: ModelInfo,
    rows: tuple[int, ...],
    threads: tuple[int, ...],
    head_ids: Any = None,
    screen: Any = None,
) -> WeightFormat:
    """The one of ``formats`` that is best for a model with passes over ``rows`` tokens, with whichever number of
    ``threads`` suits it; kept per model and machine. A later one must be faster than an earlier one by the GAIN that
    threads must bring.
    """
    if len(formats) == 1:
        return formats[0]

    def trial() -> tuple[str, dict[str, float]]:
        models = {one.name: _first_layers(one, hf_model, info, head_ids, screen) for one in formats}
        able = {name: model for name, model in models.items() if model is not None}
        passes = time_passes(able, rows, threads)
        chosen = nearly_fastest(_best_of(best_use(passes)))
        return chosen, _best_of({which: by_rows[rows[0]] for which, by_rows in passes.items()})

    subject = replace(info, dtype="auto", threads=0)
    return find_format(str(usual("format", subject, tuple(one.name for one in formats), rows, trial)))


def _best_of(seconds: Mapping[Which, float]) -> dict[str, float]:
    """By format, in the same order, with the number of threads that suits it best."""
    return {name: min(s for (which, _), s in seconds.items() if which == name) for name, _ in seconds}


def _first_layers(one: WeightFormat, hf_model: Any, info: ModelInfo, head_ids: Any, screen: Any) -> LeanModel | None:
    """The model's first layers in a format; None where it cannot hold them, or where rows depend on their company."""
    layer = sum(weight.numel() for weight in hf_model.model.layers[:1].parameters()) or TRIAL_WEIGHTS
    use_threads(1)  # rows are padded for them as the model is built
    try:
        model = LeanModel(
            hf_model,
            replace(info, dtype=one.name),
            one.name,
            head_ids=head_ids,
            screen=screen,
            layers=-(-TRIAL_WEIGHTS // layer),
        )
    except UserError:
        return None
    model.set_threads(1)
    return model if model.note is None or one.name == "float32" else None


def general_format(formats: Sequence[WeightFormat]) -> WeightFormat:
    """The first of ``formats`` that transformers' own modules run in. Raises UserError."""
    able = [one for one in formats if one.general]
    if not able:
        raise UserError(
            f"Only Llama-shaped models run in {formats[0].name}: leave the number format at auto for this one."
        )
    return able[0]


def multiplies_bfloat16() -> bool:
    """Whether this CPU, or the one that is imitated, multiplies bfloat16 in hardware (AVX512-BF16 or AMX)."""
    return not imitated() and bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


def plain_dtype(device: str) -> str:
    """The half or single precision in which plain products are fast here: what transformers is compared in."""
    return "bfloat16" if device != "cpu" or multiplies_bfloat16() else "float32"
