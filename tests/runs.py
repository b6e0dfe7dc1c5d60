"""Synthetic runs for tests: plausible, valid, deterministic, made without a model.

``make_run()`` draws a random chain (what a draft would say along a text), replays each lane's policy on it
with ``decoding.analysis.whatif`` and dresses the iterations as a run file: tokens with fates, texts, alternatives,
times of every repeat. ``hostile=True`` takes texts that try to escape from a page.
"""

import math
import random
from dataclasses import replace

from decoding.analysis.whatif import Replay, Simulated, sweep
from decoding.lookahead.base import LookaheadPolicy
from decoding.lookahead.fitted import make_policy
from decoding.lookahead.lanes import parse_lane
from decoding.records.request import CompareRequest
from decoding.records.trace import (
    Chain,
    Costs,
    Guesses,
    Iteration,
    Machine,
    ModelInfo,
    PairInfo,
    Repeat,
    Run,
    Token,
    TokenText,
    Trace,
    Verdict,
)

LANES = ("autoregressive", "static:5", "disco:0.6", "oracle")
PIECES = (  # noqa: SIM905
    "def| fibonacci|(|n|)|:|\n|    |if| n| <| 2| return| None| self|.|value| =| [|]| for| in| range|len|(self"
    "|):\n|        |\n\n| +| -| 1| 0|,| and| or| not| else|:\n|import| numpy| as| np| is| the| sum| of| a| list"
    '| """|Return| True| False|print|f|\'|_|__init__| class| Node| left| right|\t|  # | x| y| **| %| ==| raise'
    "| ValueError| try| except| with| open| path| file| str| int| float| dict|{|}|items|()| key| while| yield"
).split("|")
HOSTILE = (
    "<script>window.hacked=1</script>",
    "<img src=x onerror=window.hacked=1>",
    "${window.hacked=1}",
    "{{7*7}}",
    "`${1}`",
    "</script><script>window.hacked=1</script>",
    "<!--",
    "]]>",
    "\u202eright to left",
    "\u2028",
    "\u2029",
    "👩‍👩‍👧‍👦",
    "&lt;b&gt;",
    '" onmouseover="window.hacked=1',
    "\x07",
    "a\u0301\u0302\u0303",
    "<svg/onload=window.hacked=1>",
    "%3Cscript%3E",
    "\\u003cscript\\u003e",
    "' OR 1=1 --",
    "\u0000",
    "🏳️‍🌈",
    "مرحبا",
    "javascript:window.hacked=1",
)
SPLIT_UTF8 = ("c3", "a9", "f09f", "9880", "e282", "ac")  # é, a smiley and the euro sign in two tokens each


def make_run(
    *,
    lanes: tuple[str, ...] = LANES,
    n_tokens: int = 88,
    repeats: int = 3,
    seed: int = 0,
    match: float = 0.85,
    c: float = 0.11,
    hostile: bool = False,
    prompt: str = "def fibonacci(n):\n",
    finish: str = "length",
    rule: str = "greedy",
    alternatives: int = 5,
    identifier: str = "synthetic",
) -> Run:
    """A run with one draft, "shallow". Lanes: autoregressive, static:N, heuristic, confidence:T, disco:T, oracle."""
    random_ = random.Random(seed)
    vocab = make_vocab(hostile)
    costs = make_costs(c)
    chain = make_chain(random_, n_tokens, len(vocab), match)
    settings = CompareRequest(
        prompt=HOSTILE[0] + prompt if hostile else prompt,
        lanes=list(lanes),
        max_new_tokens=n_tokens + 5 * (finish == "eos"),
        repeats=repeats,
        rule=rule,
        temperature=0.0 if rule == "greedy" else 0.8,
    )
    traces = [make_trace(lane, chain, costs, settings, finish, random_, alternatives) for lane in lanes]
    prompt_ids = [random_.randrange(len(PIECES)) for _ in range(12)]
    return Run(
        id=identifier,
        created="2026-11-21T12:00:00+00:00",
        machine=make_machine(),
        pair=make_pair(len(vocab)),
        settings=settings,
        prompt_ids=prompt_ids,
        costs=costs,
        chains={"shallow": chain},
        lanes=traces,
        vocab=vocab,
    )


def untimed(run: Run) -> Run:
    """``run`` without the times of its lanes: only its cost curves say what an iteration costs."""
    return replace(run, lanes=[replace(trace, repeats=[]) for trace in run.lanes])


def add_draft(run: Run, name: str, *, match: float, c: float) -> None:
    """Adds to ``run`` (of seed 0) the draft ``name``, its guesses along the same text, and its lane static:5."""
    other = make_run(lanes=("static:5",), n_tokens=len(run.chains["shallow"].target), match=match, c=c)
    run.pair.drafts[name] = replace(run.pair.drafts["shallow"], name=name)
    run.costs.draft_step[name] = c
    run.chains[name] = replace(other.chains["shallow"], draft=name)
    run.lanes.append(replace(other.lanes[0], lane=f"{name}/static:5", draft=name))


def make_vocab(hostile: bool = False) -> dict[int, TokenText]:
    texts = [TokenText(piece) for piece in PIECES]
    if hostile:
        texts = [TokenText(piece) for piece in HOSTILE * 3]
    texts += [TokenText("\ufffd", bytes=half) for half in SPLIT_UTF8]
    return dict(enumerate(texts))


def make_costs(c: float = 0.11, rise: float = 0.016, *, drafts=("shallow",), length: int = 21, **more) -> Costs:
    """In shares of a plain pass: ``c`` for each step of a draft, ``rise`` for each further token of a check."""
    fields = {"target_s": 0.0085, "overhead": 0.02, "decision": {"disco": 0.01, "confidence": 0.001}}
    fields |= {"verify_curve": [1.0 + rise * n for n in range(length)], "draft_step": dict.fromkeys(drafts, c)}
    return Costs(**fields | more)


def make_chain(random_: random.Random, n_tokens: int, n_vocab: int, match: float, draft: str = "shallow") -> Chain:
    """Easy and hard parts alternate; the draft's confidence separates right guesses from wrong ones, imperfectly."""
    target = [random_.randrange(n_vocab) for _ in range(n_tokens)]
    along, tails, easy = _empty_guesses(), {}, True
    for at in range(n_tokens):
        easy = easy if random_.random() < 0.93 else not easy
        right = random_.random() < (1 - (1 - match) * 0.4 if easy else 1 - (1 - match) * 2.2)
        _guess(
            along, random_, target[at] if right else (target[at] + 1 + random_.randrange(n_vocab - 1)) % n_vocab, right
        )
        if not right:
            tails[at] = _empty_guesses()
            for _ in range(20):
                _guess(tails[at], random_, random_.randrange(n_vocab), False)
    return Chain(draft=draft, target=target, along=along, tails=tails)


def _empty_guesses() -> Guesses:
    return Guesses(choice=[], p=[], entropy=[], scores={"disco": []})


def _guess(guesses: Guesses, random_: random.Random, choice: int, right: bool) -> None:
    p = round(random_.betavariate(6, 1.2) if right else random_.betavariate(2, 2.5), 4)
    guesses.choice.append(choice)
    guesses.p.append(p)
    guesses.entropy.append(round(-math.log(max(p, 0.02)) + random_.random() * (1 - p), 4))
    guesses.scores["disco"].append(round(min(1.0, max(0.0, p + random_.gauss(0.05, 0.08))), 4))


class _Disco(LookaheadPolicy):
    """Stops when the last token's recorded score is below the threshold; the real one needs a fitted classifier."""

    name = "disco"

    def __init__(self, threshold: float) -> None:
        self.threshold = threshold

    def should_draft(self, state) -> bool:
        return not state.known or state.known[-1] >= self.threshold


def simulate_lane(run: Run, lane: str, **more) -> Simulated:
    """``lane`` on the text of ``run``; ``more``: other arguments of ``sweep``."""
    (found,) = sweep(run, lane, **more).values()
    return found


def policy_of(lane: str) -> LookaheadPolicy:
    name, _, argument = lane.partition(":")
    return _Disco(float(argument or 0.4)) if name == "disco" else make_policy(parse_lane(lane))


def make_trace(
    lane: str,
    chain: Chain,
    costs: Costs,
    settings: CompareRequest,
    finish: str,
    random_: random.Random,
    alternatives: int,
) -> Trace:
    policy = policy_of(lane)
    plain = policy.name == "autoregressive"
    replay = Replay(chain, settings.max_new_tokens, finish)
    simulated = replay.simulate(costs, policy)
    iterations = [
        _iteration(replay, policy, start, n, accepted, random_, alternatives, settings.rule)
        for start, n, accepted in simulated.iterations
    ]
    return Trace(
        lane=lane,
        policy=policy.name,
        draft=None if plain else chain.draft,
        output=list(chain.target),
        iterations=iterations,
        repeats=[_repeat(simulated, costs, plain, random_) for _ in range(settings.repeats)],
        finish=finish,
        verdict=Verdict(same=True),
    )


def _iteration(replay, policy, start, n, accepted, random_, alternatives, rule) -> Iteration:
    drafted, chain = [], replay.chain
    for index in range(min(n, replay.reach[start])):
        guesses, at = replay.guess(start, index)
        said, p, entropy = guesses.choice[at], guesses.p[at], guesses.entropy[at]
        fate = "accepted" if index < accepted else "rejected" if index == accepted else "dropped"
        scored = policy.name in ("disco", "confidence")
        choice = chain.target[start + index] if index <= accepted else random_.randrange(len(PIECES))
        drafted.append(
            Token(
                id=said,
                fate=fate,
                draft_choice=said,
                target_choice=choice,
                p_draft=p,
                p_target=round(random_.random(), 4),
                entropy=entropy,
                score=(guesses.scores["disco"][at] if policy.name == "disco" else p) if scored else None,
                threshold=policy.threshold if scored else None,
                draft_top=_top(said, p, random_, alternatives),
                target_top=_top(choice, 0.8, random_, alternatives),
            )
        )
    emitted = None
    if start + accepted < len(chain.target):
        own = chain.target[start + accepted]
        fate = "plain" if n == 0 else "bonus" if accepted == n else "correction"
        emitted = Token(
            id=own, fate=fate, target_choice=own, p_target=0.7, target_top=_top(own, 0.7, random_, alternatives)
        )
    return Iteration(start=start, drafted=drafted, emitted=emitted, stop="policy", holds=replay.holds[start])


def _top(first: int, p: float, random_: random.Random, n: int) -> list[tuple[int, float]]:
    if not n:
        return []
    others = random_.sample([i for i in range(len(PIECES)) if i != first], n - 1)
    return [(first, p), *((other, round((1 - p) / 2 ** (i + 1), 4)) for i, other in enumerate(others))]


def _repeat(simulated, costs: Costs, plain: bool, random_: random.Random) -> Repeat:
    unit = costs.target_s * random_.uniform(0.97, 1.05)
    draft_s = [
        round(n * costs.draft_step["shallow"] * unit * random_.uniform(0.95, 1.1), 6)
        for _, n, _ in simulated.iterations
    ]
    verify_s = [round(costs.verify(n + 1) * unit * random_.uniform(0.97, 1.06), 6) for _, n, _ in simulated.iterations]
    policy_s = [round(n * 0.004 * unit, 6) for _, n, _ in simulated.iterations]
    rest_s = [round(costs.overhead * unit * random_.uniform(0.8, 1.4), 6) for _ in simulated.iterations]
    return Repeat(0.031 if plain else 0.036, draft_s, verify_s, policy_s, rest_s)


def make_machine() -> Machine:
    return Machine("Test processor", 2, 8.0, None, "Linux", "3.11.2", "2.13.0", "5.23.0")


def make_pair(n_vocab: int) -> PairInfo:
    def model(name: str, layers: int, parameters: int, dtype: str) -> ModelInfo:
        return ModelInfo(name, name, "0" * 16, parameters, layers, 256, n_vocab, "lean", dtype, "cpu", 2)

    return PairInfo(
        "synthetic",
        model("target", 16, 15_000_000, "bfloat16"),
        {"shallow": model("shallow", 2, 3_600_000, "int8")},
        "shallow",
    )
