"""Cost curves from several measurements. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from .trace import Costs


def smooth_costs(measured: Sequence[Costs]) -> Costs:
    """Medians of several measurements; v made to grow, by isotonic regression.

    One run's v(n) is good to some percent, and the tuning of static-opt would pick the SL whose v happened to be
    measured low. Reading more tokens never takes a pass less work.
    """
    from sklearn.isotonic import isotonic_regression

    v = [median(column) for column in zip(*(costs.v for costs in measured))]
    grown = [float(value) for value in isotonic_regression(v)]
    return Costs(
        target_s=median(costs.target_s for costs in measured),
        v=[value / grown[0] for value in grown],
        c={name: median(costs.c[name] for costs in measured) for name in measured[0].c},
        first={name: median(costs.first[name] for costs in measured) for name in measured[0].first},
        o=median(costs.o for costs in measured),
    )
