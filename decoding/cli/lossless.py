"""``python -m decoding lossless``: greedy text of every policy against transformers' own, token for token."""

from __future__ import annotations

from dataclasses import asdict
from math import inf
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import UserError
from .console import err, out, print_json, progress_bar
from .options import AsJson, Draft, PairName, Target

if TYPE_CHECKING:
    from ..bench.lossless import Counts
    from ..engines.pair import Pair
    from ..records.json_lines import Lines


def lossless(
    pair: PairName = "",
    target: Target = "",
    draft: Draft = "",
    suite: Annotated[str, typer.Option(help="Prompts of this suite; all: interleaved over the suites.")] = "all",
    limit: Annotated[int, typer.Option(help="Number of prompts.", min=1)] = 100,
    skip: Annotated[int, typer.Option(help="Skip this many of them, which were compared before.", min=0)] = 0,
    max_new_tokens: Annotated[int, typer.Option(help="The token limit.", min=1)] = 32,
    longest: Annotated[int, typer.Option(help="SL caps from 1 up to this one.", min=1, max=20)] = 16,
    minutes: Annotated[float | None, typer.Option(help="Start no further prompt after this many minutes.")] = None,
    kept: Annotated[
        Path | None, typer.Option("--out", help="Keep the counts in this file; the same command continues from it.")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda or auto; the reference runs on the CPU.")] = "cpu",
    dtype: Annotated[
        str, typer.Option(help="float32: against generate. bfloat16: against the target's own plain decoding.")
    ] = "float32",
    weights: Annotated[
        str, typer.Option(help="int4: the target in four bits, against its own plain decoding.")
    ] = "auto",
    as_json: AsJson = False,
) -> None:
    """Compare every policy with SL 1..16 with transformers' generate(do_sample=False), in float32.

    In another number format transformers' kernels round otherwise: there the reference is the target's plain decoding.
    """
    from ..bench.lossless import check_lossless, plain_reference, transformers_reference
    from ..engines.pair import load_pair
    from ..records.suites import load_suite, suites_for

    loaded = load_pair(pair, target, draft, dtype=dtype if weights == "auto" else weights, device=device)
    suite = suites_for(suite, loaded.chat)
    texts = [prompt.prompt for prompt in load_suite(suite, "test", limit)[skip:]]
    if not texts:
        raise UserError(f"No prompt is left: at most {limit}, of which {skip} are skipped. Skip fewer.")
    prompts = [loaded.encode_prompt(text).ids for text in texts]
    lines = _lines(kept, loaded, {"suite": suite, "skip": skip, "tokens": max_new_tokens, "longest": longest})
    counts = _kept_counts(lines)
    deadline = monotonic() + 60 * minutes if minutes is not None else inf
    with progress_bar() as progress:
        bar = progress.add_task("Comparing", total=len(prompts), completed=counts.prompts)
        exact = loaded.target.info.dtype == "float32"
        reference = transformers_reference(loaded.target_folder) if exact else plain_reference(loaded)
        for _ in check_lossless(loaded, reference, prompts, max_new_tokens, range(1, longest + 1), counts):
            status = f"{counts.equal} of {counts.compared} texts equal"
            progress.update(bar, completed=counts.prompts, description=status)
            if lines is not None:
                lines.add(asdict(counts))
            if monotonic() > deadline:
                break
    if as_json:
        print_json(asdict(counts))
    else:
        out.print(
            f"{counts.prompts} prompts, {counts.compared} texts compared: {counts.equal} equal, "
            f"{counts.near_ties} differ at a near tie (top-2 gap under 1e-4), {len(counts.different)} differ."
        )
    for number, policy, cap, at, gap in counts.different:
        err.print(f"prompt {number}, {policy}, SL up to {cap}: first difference at {at}, top-2 gap {gap:.2g}")
    raise typer.Exit(1 if counts.different else 0)


def _lines(path: Path | None, pair: Pair, setting: dict[str, object]) -> Lines | None:
    """The file of an earlier part of the same check, or a new one. Raises UserError for one of another check."""
    from ..records.json_lines import Lines

    if path is None:
        return None
    target, draft = pair.target.info, pair.draft().info
    models = {"target": [target.fingerprint, target.dtype], "draft": [draft.fingerprint, draft.dtype]}
    return Lines(path, models | setting)


def _kept_counts(lines: Lines | None) -> Counts:
    """The counts over all prompts that an earlier part compared."""
    from ..bench.lossless import Counts

    if lines is None or not lines.records:
        return Counts()
    last = lines.records[-1]
    return Counts(**last | {"different": [tuple(one) for one in last["different"]]})
