"""Trees beside chains: from which growth of v(n) on trees win.

A tree costs the target more rows for the same text, so that trees win where verification is nearly free, as on a GPU.
The costs tried here keep all that was measured but v(n), of whose growth they leave a part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from ..analysis.bootstrap import Bootstrap
from ..lookahead.base import TREE_CAP
from ..lookahead.heads import Head
from ..lookahead.lanes import is_usable
from ..records.trace import Costs
from .choices import best_of, chain_candidates, is_tree, tuned_lanes
from .results import ALL, EvaluationResult, Figure
from .samples import Sample, replay_lane
from .table import Cell, Column, Table, make_table, percent_interval, times

FLAT = 16  # tokens up to which v(n) is 1 on a curve that grows as measured from there on
GROWTHS = {  # the curves that are tried, by their names in the metrics
    "1": "as measured",
    "0.5": "half of its growth",
    "0.25": "a quarter",
    "0.1": "a tenth",
    "flat": f"none up to {FLAT} tokens",
    "0": "none",
}
TITLE = "Trees and chains, by the growth of v(n)"


def grown(costs: Costs, growth: str) -> Costs:
    """``costs`` with the curve of that name in GROWTHS."""
    sizes = range(1, 2 * TREE_CAP + 1)
    if growth == "flat":
        curve = [1.0 + max(0.0, costs.verify(n) - costs.verify(FLAT)) if n > FLAT else 1.0 for n in sizes]
    else:
        curve = [1.0 + float(growth) * (costs.verify(n) - 1.0) for n in sizes]
    return replace(costs, verify_curve=curve)


def tree_figures(
    lanes: Mapping[str, str],
    validation: Sequence[Sample],
    samples: Sequence[Sample],
    costs: Costs,
    heads: Mapping[str, Head] | None,
) -> Iterator[Figure]:
    """``best_chain@growth``: the speedup of the chain policy that ``validation`` finds best at these costs.

    ``tree_speedup@growth``: of each policy for trees; ``tree_cut@growth``: the share by which its time is below that of
    the best chain policy.
    """
    draft, bootstrap, n = samples[0].chain.draft, Bootstrap(len(samples)), len(samples)
    trees = [label for label in lanes if is_tree(label)]
    chains = chain_candidates([lane for label, lane in lanes.items() if is_usable(lane) and label not in trees])
    for growth in GROWTHS:
        there = grown(costs, growth)
        best = best_of(chains, validation, there, heads)
        chain = replay_lane(best, samples, there, heads)
        yield chain.speedup_figure(metric=f"best_chain@{growth}")
        for label, lane in tuned_lanes(trees, validation, there).items():
            tree = replay_lane(lane, samples, there)
            yield Figure(draft, label, ALL, f"tree_speedup@{growth}", *bootstrap.ratio(tree.plain, tree.cost), n)
            yield Figure(draft, label, ALL, f"tree_cut@{growth}", *bootstrap.cut(tree.cost, chain.cost), n)


def trees_table(result: EvaluationResult) -> Table | None:
    """The speedups of :func:`tree_figures`; None if no trees were evaluated."""
    best = {one.metric.partition("@")[2]: one for one in result.figures if one.metric.startswith("best_chain@")}
    if not best:
        return None
    curves = {growth: grown(result.setting.costs, growth) for growth in best}

    def v(n: int) -> Column:
        return Column(f"v({n})", lambda growth: Cell(f"{curves[growth].verify(n):.2f}", curves[growth].verify(n)))

    def of(metric: str, label: str) -> Callable[[str], Figure | None]:
        return lambda growth: result.find(f"{metric}@{growth}", label)

    columns = [
        *map(v, (6, 9, 17)),
        Column("best chain", lambda growth: Cell(best[growth].policy)),
        Column("its speedup", best.get, times),
    ]
    for label in filter(is_tree, result.lanes):
        columns.append(Column(label, of("tree_speedup", label), times))
        columns.append(Column("ahead of the best chain", of("tree_cut", label), percent_interval))
    note = (
        "Simulated on the test prompts at costs that were not measured: of v(n), the time of a target pass over n "
        "tokens, only a part of the growth is left, as on processors that verify several tokens in the time of one. "
        "All other costs are as measured. At each of them validation chooses the best chain policy, with its "
        "number, and the best budget of a tree."
    )
    return make_table(TITLE, note, "growth of v(n)", ((GROWTHS[name], name) for name in best), columns)
