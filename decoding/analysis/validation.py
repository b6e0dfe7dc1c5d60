"""The validation prompts' chains beside a draft's policies: what thresholds are chosen on, on every machine.

``fit`` writes FILE into the folder of the policies. A chain holds no times, so that it serves any machine; and no text:
whether each guess holds is all that a replay needs.

Of the guesses after a mistake, chains with those of an iteration from every place keep the first FOLLOWED; the others
repeat the last of these. That changed no threshold that was chosen at the costs tried, and takes no room.
"""

from __future__ import annotations

import lzma
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from ..errors import UserError
from ..files import digest_of_files, write_whole
from ..lookahead.fitted import AGAIN, weights_digest
from ..records.run_file import check_chain
from ..records.trace import Chain, Guesses
from .whatif import Replay

FILE = "validation.json.xz"
SCHEMA = "speculoscope.validation/2"
MAX_BYTES = 64 * 2**20  # of the JSON
FOLLOWED = 6  # guesses kept after the first that does not hold
STEPS = 10_000  # a probability becomes the middle of its step, on the same side of every threshold


@dataclass(slots=True)
class Validation:
    """The content of the file. ``target``, ``draft``: their fingerprints; ``heads``: digests of the weights of the
    policies whose scores the chains have.
    """

    schema: str
    target: str
    draft: str
    heads: dict[str, str]
    texts: list[Replay]


_ADAPTER = TypeAdapter(Validation)


def write_validation(
    folder: Path, fingerprints: tuple[str, str], policies: Sequence[str], recorded: Sequence[Replay]
) -> None:
    """Writes the chains of a draft with the scores of ``policies``, whose files are in ``folder``.

    Args:
        fingerprints: of the target and of the draft.

    Raises:
        OSError.
    """
    heads = {name: weights_digest(folder, name) for name in policies}
    texts = [replace(one, chain=_without_text(one.chain, policies)) for one in recorded]
    content = _ADAPTER.dump_json(Validation(SCHEMA, *fingerprints, heads, texts), by_alias=True)
    write_whole(folder / FILE, lzma.compress(content))


def _without_text(chain: Chain, policies: Sequence[str]) -> Chain:
    """The chain with token ids that are made up: a guess that holds is 0, and so is the target's token."""
    pairs = zip(chain.along.choice, chain.target, strict=True)
    outcomes = [None if guess is None else int(guess != token) for guess, token in pairs]
    tails = {at: _anonymous(tail, [1] * len(tail.choice), policies) for at, tail in chain.tails.items()}
    starts = []
    for start, guesses in enumerate(chain.starts):
        held = chain.holds(start)
        choices = [int(index >= held) for index in range(len(guesses.choice))]
        starts.append(_anonymous(guesses, choices, policies, held + 1 + FOLLOWED))
    return Chain("", [0] * len(chain.target), _anonymous(chain.along, outcomes, policies), tails, starts)


def _anonymous(
    guesses: Guesses, choices: Sequence[int | None], policies: Sequence[str], kept: int | None = None
) -> Guesses:
    """The guesses with these choices; the last of those that are ``kept`` (None: all) stands for the others."""

    def column(values: list[float]) -> list[float]:
        first = [(min(int(value * STEPS), STEPS - 1) + 0.5) / STEPS for value in values[:kept]]
        return first + first[-1:] * (len(values) - len(first))

    scores = {name: column(guesses.scores[name]) for name in policies}
    return Guesses(list(choices), column(guesses.p), [0.0] * len(choices), scores)


def read_validation(
    folder: Path, draft: str, target_fingerprint: str | None = None, draft_fingerprint: str | None = None
) -> list[Replay]:
    """The chains of ``draft`` beside its policies in ``folder``, with the scores of those whose weights are still the
    same.

    Token ids are made up: a guess that holds is 0, and so is the target's token. [] if there is no file.
    Raises UserError if it is damaged or of other models.
    """
    path, these = folder / FILE, f"The validation chains of the draft {draft}"
    if not path.is_file():
        return []
    try:
        with lzma.open(path) as file:
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise UserError(f"{these} are too large: {AGAIN}.")
        found = _ADAPTER.validate_json(content)
    except (OSError, EOFError, lzma.LZMAError, ValidationError) as error:
        raise UserError(f"{these} are damaged: {AGAIN}.") from error
    if found.schema != SCHEMA:
        raise UserError(f"{these} are of another version: {AGAIN}.")
    for want, got in ((target_fingerprint, found.target), (draft_fingerprint, found.draft)):
        if want is not None and want != got:
            raise UserError(f"{these} are of other models: {AGAIN}.")
    current = [name for name, digest in found.heads.items() if weights_digest(folder, name) == digest]
    for one in found.texts:
        one.chain.draft = draft
        try:
            check_chain(one.chain)
        except UserError as error:
            raise UserError(f"{these} are damaged ({str(error).removesuffix('.')}): {AGAIN}.") from error
        for guesses in (one.chain.along, *one.chain.lists()):
            guesses.scores = {name: column for name, column in guesses.scores.items() if name in current}
    return found.texts


def policies_digest(folder: Path) -> str:
    """The digest of a draft's policies and validation chains: another one after they were fitted again."""
    return digest_of_files(sorted([*folder.glob("*.json"), *folder.glob(FILE)]))
