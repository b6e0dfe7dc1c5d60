"""Small fitted heads with random weights, for tests of the learned policies."""

import numpy as np

from decoding.lookahead.base import DraftState
from decoding.lookahead.costaware_heads import FEATURES_OF_NETWORKS, N_POINTS, n_inputs
from decoding.lookahead.disco import N_INPUTS
from decoding.lookahead.fitted import PolicyFile
from decoding.lookahead.ngrams import CELLS
from decoding.lookahead.repetition import LONGEST, N_EVIDENCE
from decoding.lookahead.spec import all_specs
from decoding.lookahead.specdecpp import HINGES

FLAT_FROM = 3  # repetitions of this many tokens need no lead
LEDGER = [[0.2, 100, [0, 0, 2, 4, 6, 8]], [0.5, 100, [0, 2, 10, 10, 10]], [0.8, 100, [60, 15, 5]]]
TUNED = {
    "disco": {"threshold": 0.5, "sl_max": 8, "sure_at": [[0.5, 0.6]]},
    "specdecpp": {"threshold": 0.5},
    "costaware": {
        "this": [0.05, 1.1, -0.2],
        "next": [0.1, 0.9, 0.4],
        "recent": 0.6,
        "caution": 1.0,
        "first": {"start": 0.8, "held": 0.9, "missed": 0.7},
        "sl_max": 12,
        "ledger": LEDGER,
    },
}


def make_weights(policy: str, seed: int = 0, hidden_size: int = 4) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)

    def some(*shape: int) -> np.ndarray:
        return rng.normal(size=shape).astype(np.float32)

    if policy == "disco":
        return {"first": some(5, N_INPUTS + 1), "second": some(6)}
    if policy == "specdecpp":
        block = some(hidden_size, hidden_size) * 0.3
        return {
            "block": block,
            "bias": some(hidden_size),
            "out": some(hidden_size + 1),
            "scale": np.array([3.0], dtype=np.float32),
            "lead": np.abs(some(len(HINGES))),
        }
    if seed % 4 > 1:
        levels = rng.integers(0, 256, CELLS // 2, dtype=np.uint8)
        first, last = some(6, n_inputs(FEATURES_OF_NETWORKS[seed % 2]) + 1) * 0.05, some(7)
        alone = some(LONGEST + 1 - FLAT_FROM)
        return {"first": first, "last": last, "alone": alone, "ngrams": levels}
    table = some(N_EVIDENCE, N_POINTS) + 1.0
    table[FLAT_FROM : LONGEST + 1] = table[FLAT_FROM : LONGEST + 1, :1]
    return {"table": table}


def make_head(policy: str, seed: int = 0, hidden_size: int = 4, plain: bool = False):
    """Of four seeds in succession costaware's head is a table over p, one over the margin, a network on p, and one on
    both; odd seeds read SpecDec++'s lead from the margin. ``plain``: DISCO's head reads probabilities, not logarithms,
    and SpecDec++'s no lead.
    """
    weights, architecture = make_weights(policy, seed, hidden_size), make_architecture(seed)
    if plain and policy != "costaware":
        architecture |= {"inputs": "probabilities", "feature": None}
    return all_specs()[policy].head_from(weights, architecture, TUNED[policy])


def make_architecture(seed: int = 0) -> dict:
    """That of all three."""
    features = FEATURES_OF_NETWORKS[seed % 2]
    return {"depth": 2, "inputs": "logarithms", "feature": "margin" if seed % 2 else "p", "features": features}


def make_heads(seed: int = 0, hidden_size: int = 4, plain: bool = False) -> dict:
    return {policy: make_head(policy, seed, hidden_size, plain) for policy in TUNED}


def make_features(n: int, seed: int = 0) -> DraftState:
    """Random features of ``n`` guesses that repeat two tokens in turn."""
    rng, guesses = np.random.default_rng(seed), [1 + index % 2 for index in range(n)]
    return DraftState(
        tokens=guesses,
        text=[3],
        p=rng.random(n).tolist(),
        entropy=rng.random(n).tolist(),
        top10=list(rng.random((n, 10)).astype(np.float32)),
        margin=(rng.random(n) * 5).tolist(),
        hidden=list(rng.normal(size=(n, 4)).astype(np.float32)),
    )


def make_file(policy: str, seed: int = 0) -> PolicyFile:
    return PolicyFile(
        policy=policy,
        draft="small",
        target_fingerprint="t" * 16,
        draft_fingerprint="d" * 16,
        features=sorted(make_head(policy, seed).needs),
        architecture=make_architecture(seed),
        normalisation={},
        tuned=TUNED[policy],
        data={},
        metrics={},
        created="2026-01-01T00:00:00+00:00",
        weights=make_weights(policy, seed),
    )
