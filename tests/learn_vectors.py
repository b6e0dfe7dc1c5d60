"""Chains and costs for which the browser's replay must equal the what-if module, lane for lane."""

import json
import random
from types import SimpleNamespace
from typing import Any

from decoding.analysis.whatif import Replay, with_draft_step
from decoding.lookahead.fitted import make_policy
from decoding.lookahead.lanes import parse_lane
from decoding.records.run_file import to_plain
from decoding.records.trace import Chain, Costs, Guesses
from viz.player.payload import tuned as page_tuned

from .learned_heads import TUNED

HEADS = ("disco", "specdecpp", "costaware")
LANES = (  # noqa: SIM905
    "autoregressive static:1 static:3 static:20 confidence confidence:0.8 entropy entropy:0.1 oracle oracle:3 "
    "oracle:best disco disco:0.7 specdecpp specdecpp:0.8 specdecpp:auto costaware costaware:1.3 adaedl adaedl:0.6"
).split()


def make_vectors(seed: int) -> list[dict[str, Any]]:
    """Cases of {chain, costs (weighed), paid, ending, tuned, lanes: {lane: [iterations, cost, speedup]}}, as JSON."""
    random_ = random.Random(seed)
    return [_vector(random_) for _ in range(60)]


def _vector(random_: random.Random) -> dict[str, Any]:
    make = random_.choice((make_chain, make_chain_from_every_start))
    chain = make(random_, random_.randrange(1, 90), random_.choice((0.0, 0.5, 0.8, 0.95, 1.0)))
    costs, paid = make_costs(random_), make_costs(random_)
    tuned = make_tuned(random_)
    tuned["costaware"]["first"] = {last: random_.random() for last in ("start", "held", "missed")}
    limit, finish = random_.choice(((0, "length"), (0, "eos"), (len(chain.target) + 7, "eos")))
    replay = Replay(chain, limit, finish)
    heads = {name: SimpleNamespace(name=name, needs=frozenset(), tuned=tuned[name]) for name in HEADS}
    lanes = {}
    for text in LANES:
        done = replay.simulate(costs, make_policy(parse_lane(text), heads), paid)
        lanes[text] = [done.iterations, done.cost, done.speedup]
    case = {
        "chain": to_plain(chain),
        "costs": to_plain(costs),
        "paid": to_plain(paid),
        "cheaper": to_plain(with_draft_step(costs, chain.draft, 0.03)),
        "ending": {"finish": finish, "maxNewTokens": limit or None},
        "tuned": {name: page_tuned(name, tuned[name], costs, chain.draft) for name in HEADS},
        "lanes": lanes,
    }
    return json.loads(json.dumps(case))


def make_chain(random_: random.Random, n: int, match: float) -> Chain:
    """A text of ``n`` tokens, guesses that hold with probability ``match``, and drafts that may stop proposing."""
    target = [random_.randrange(50) for _ in range(n)]
    along, tails = _guesses(), {}
    for at, token in enumerate(target):
        right = random_.random() < match
        choice = token if right else None if random_.random() < 0.1 else (token + 1) % 50
        _say(along, random_, choice)
        if choice is not None and (not right or at == n - 1):
            tails[at] = _guesses()
            for _ in range(random_.choice((0, 3, 20))):
                _say(tails[at], random_, None if random_.random() < 0.03 else random_.randrange(50))
    return Chain("toy", target, along, tails)


def make_chain_from_every_start(random_: random.Random, n: int, match: float) -> Chain:
    """As :func:`make_chain`, where what is guessed for a place depends on where the iteration began."""
    target = [random_.randrange(50) for _ in range(n)]
    along, starts = _guesses(), []
    for start in range(n):
        starts.append(_guesses())
        for at in range(start, start + random_.choice((0, 3, 20))):
            _say(starts[-1], random_, target[at] if at < n and random_.random() < match else 50)
        choice = starts[-1].choice
        _say(along, random_, choice[0] if choice else None)
    return Chain("toy", target, along, {}, starts)


def _guesses() -> Guesses:
    return Guesses([], [], [], {name: [] for name in HEADS})


def _say(guesses: Guesses, random_: random.Random, choice: int | None) -> None:
    guesses.choice.append(choice)
    guesses.p.append(random_.choice((0.4, 0.8, random_.random())))  # also at the thresholds of LANES, as below
    guesses.entropy.append(random_.choice((0.0, 4 * random_.random() ** 3)))
    for column in guesses.scores.values():
        column.append(random_.choice((0.0, 0.55, 0.7, 1.0, 1.0 - random_.random() ** 3)))


def make_costs(random_: random.Random) -> Costs:
    slope = random_.choice((0.0, 0.01, 0.05, -0.01))  # the last as a busy moment leaves it
    v = [1.0 + slope * n * random_.uniform(0.9, 1.1) for n in range(random_.choice((1, 9, 65)))]
    return Costs(
        target_s=0.004,
        verify_curve=[1.0, *v[1:]],
        draft_step={"toy": random_.choice((0.0, 0.08, 0.5, 1.2))},
        overhead=random_.choice((0.0, 0.02)),
        decision={"disco": 0.01, "specdecpp": 0.02, "costaware": 0.003},
        first_step={"toy": random_.choice((0.0, 0.06, 0.2, 1.0))},
    )


def make_tuned(random_: random.Random) -> dict[str, dict[str, Any]]:
    """Fitted parameters of the learned policies, drawn at random."""
    ledger = [[t / 10, 1000, [random_.randrange(40) for _ in range(1, 24)]] for t in range(1, 10)]
    return {
        "disco": {
            "threshold": 0.55,
            "sl_max": random_.choice((8, 30)),
            "sure_at": random_.choice(([], [[0.6, 0.8]], [[0.6, 0.7], [0.7, 0.85], [0.9, 0.95]])),
        },
        "specdecpp": {"threshold": 0.4, "sl_max": 24},
        "costaware": TUNED["costaware"] | {"sl_max": 40, "ledger": ledger},
    }
