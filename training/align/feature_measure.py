"""How well drafts that read the target's hidden states guess, on texts that are not used for training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import numpy as np

from training.loop import last_of_log
from training.paths import DRAFTS, TEXTS

from .feature_run import RECIPES, TEXT_ONLY, FeatureRun, StateTexts, log_of
from .measure import difference, figures_of_steps, rates_of
from .teacher import model


def measure_trained(names: Sequence[str]) -> dict[str, dict]:
    """Figures of each named draft, trained here, its matrices in four bits, on the answers of the validation split;
    of those that read states also ``over``: its first guesses over those of the one that reads the text alone.
    """
    source, hits, found = StateTexts(model(), TEXTS), dict[str, list[np.ndarray]](), {}
    for name in names:
        run = FeatureRun(name, RECIPES[name], source)
        run.load(DRAFTS / name)
        hits[name] = run.rounded_hits(source.split("validation", run.head_ids))
        recipe = RECIPES[name]
        about = {"start": recipe.start if recipe.kept else "zero", "layers": list(recipe.layers)}
        found[name] = about | figures_of_steps(hits[name]) | {"match": asdict(rates_of(_firsts(hits[name])))}
        found[name] |= {key: value for key, value in last_of_log(log_of(name)).items() if key != "kept_back"}
    for name in hits.keys() - {TEXT_ONLY}:
        one, other = RECIPES[name], RECIPES[TEXT_ONLY]
        if TEXT_ONLY in hits and (one.start, one.plan) == (other.start, other.plan):
            found[name]["over"] = asdict(difference(_firsts(hits[name]), _firsts(hits[TEXT_ONLY])))
    return found


def _firsts(hits: Sequence[np.ndarray]) -> list[np.ndarray]:
    return [each[0] for each in hits]
