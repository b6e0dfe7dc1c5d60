"""A draft's fitted heads, by policy, from the ``policies`` folder next to its weights, and the policies made with them.

Loads no model.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ..errors import UserError, first_line
from ..files import digest_of_files
from ..records.pairs import PairDescription, find_pair
from ..records.trace import Run
from .base import SL_CAP_LEARNED, LookaheadPolicy
from .heads import Head
from .lanes import Lane
from .policy_files import AGAIN, read_policy
from .spec import PolicySpec, all_specs

FOLDER = "policies"


def digest_of_policies(draft: Path) -> str:
    """Of what was fitted for the draft in that folder."""
    return digest_of_files(sorted(filter(Path.is_file, (draft / FOLDER).glob("*"))))


class Heads(dict[str, Head]):
    """Heads by policy name. ``faults``: a sentence for each policy whose files cannot be used."""

    def __init__(self) -> None:
        super().__init__()
        self.faults: dict[str, str] = {}


def load_heads(folder: Path, target_fingerprint: str | None, draft_fingerprint: str | None) -> Heads:
    """The heads in ``folder`` by policy name; empty if nothing was fitted.

    Damaged files and those fitted for other weights become ``faults``, reported when their lane is requested; a
    fingerprint of None is not checked.
    """
    heads = Heads()
    for name, spec in all_specs().items():
        if spec.head_from is None or not (folder / f"{name}.json").is_file():
            continue
        try:
            policy = read_policy(folder, name, target_fingerprint, draft_fingerprint)
            head = spec.head_from(policy.weights, policy.architecture, policy.tuned)
            _check_bounds(spec, head)
            heads[name] = head
        except UserError as error:
            heads.faults[name] = str(error)
        except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
            heads.faults[name] = f"The file of the policy {name} is damaged ({first_line(error)}): {AGAIN}."
    return heads


def _check_bounds(spec: PolicySpec, head: Head) -> None:
    """Makes the policy once, which reads all settings. Raises ValueError for an SL_max or an argument out of range."""
    cap, argument = spec.build(None, head).cap, spec.argument
    if cap is None or not 1 <= cap <= SL_CAP_LEARNED:
        raise ValueError(f"its SL_max is {cap}")
    if argument is not None:
        number = head.tuned[argument.meaning]
        if not argument.low <= number <= argument.high:
            raise ValueError(f"its {argument.meaning} is {number}")


def need_head(name: str, heads: Mapping[str, Head] | None) -> Head:
    """The head of policy ``name``. Raises UserError that says how to fit one."""
    if heads and name in heads:
        return heads[name]
    if isinstance(heads, Heads) and name in heads.faults:
        raise UserError(heads.faults[name])
    raise UserError(
        f"The policy {name} is not fitted for this pair and draft yet: leave this lane out, or fit it first with "
        "python -m decoding fit --pair PAIR --draft DRAFT (own models: --target FOLDER --draft FOLDER)."
    )


def heads_of(run: Run, draft: str | None = None) -> dict[str, Head]:
    """The heads of ``draft`` (None: the pair's default) by policy name; {} if the draft is not installed.

    Those fitted for other weights than the run's are left out. Raises UserError for an unknown pair.
    """
    name = draft or run.pair.default_draft
    known, pair = run.pair.drafts.get(name), _find(run.pair.name)
    if known is None or name not in pair.drafts:
        return {}
    return load_heads(Path(pair.drafts[name]) / FOLDER, run.pair.target.fingerprint, known.fingerprint)


def _find(name: str) -> PairDescription:
    try:
        return find_pair(name)
    except UserError as error:
        raise UserError(
            f"Fitted policies are found by the name of their pair, and {name} is none that can be loaded here: leave "
            "learned lanes out."
        ) from error


def make_policy(lane: Lane, heads: Mapping[str, Head] | None = None) -> LookaheadPolicy:
    """A new policy for ``lane``.

    Args:
        lane: as parsed by :func:`decoding.lookahead.lanes.parse_lane`.
        heads: the heads fitted for the lane's draft, by policy name; required for learned policies.

    Raises:
        UserError: a learned policy without its head ("fit first").
    """
    head = need_head(lane.policy, heads) if lane.is_learned else None
    return lane.spec.build(lane.argument, head)
