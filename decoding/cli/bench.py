"""``bench``, ``lossless`` and ``gpu-day``: our lanes against other engines, on this machine."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from enum import Enum
from math import inf
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markdown import Markdown
from rich.text import Text

from ..analysis.validation import policies_digest
from ..errors import Cancelled, UserError, explained
from ..files import Lines, digest_of, write_whole
from ..lookahead.fitted import FOLDER
from ..records.pairs import MODEL_FREE
from ..records.text import counted
from .console import (
    CANCELLED,
    AsJson,
    Draft,
    Dtype,
    PairName,
    Target,
    cancel_on_interrupt,
    err,
    make_folder,
    out,
    print_json,
    progress_bar,
)

if TYPE_CHECKING:
    from ..bench.lossless import Counts
    from ..engines.pair import Pair
    from ..records.suites import Prompt

TIMED_OUT = 124
Device = Annotated[str, typer.Option(help="cpu, cuda or auto.")]
Limit = Annotated[int, typer.Option(help="Number of prompts.", min=1)]


class Engine(str, Enum):
    """What our lanes are compared with."""

    transformers = "transformers"
    llamacpp = "llamacpp"
    recorder = "recorder"  # transformers with the recorder of its calls, against itself


def bench(
    against: Annotated[Engine, typer.Option(help="The other engine.")] = Engine.transformers,
    pair: Annotated[str, typer.Option(help="The name of a pair; default: every embedded pair.")] = "",
    target: Target = "",
    draft: Draft = "",
    limit: Limit = 4,
    repeats: Annotated[int, typer.Option(help="Runs of each contender on each prompt.", min=1)] = 3,
    max_new_tokens: Annotated[int, typer.Option(help="The length of each text, in tokens.", min=8)] = 128,
    device: Device = "cpu",
    dtype: Dtype = "auto",
    compiled: Annotated[
        bool, typer.Option(help="On a GPU, also transformers' static cache, whose compilation takes minutes.")
    ] = True,
    folder: Annotated[Path | None, typer.Option("--out", help="Write bench.json and bench.md here.")] = None,
    as_json: AsJson = False,
) -> None:
    """Tokens per second of our lanes and of another engine, interleaved: medians, ranges, ratios."""
    from ..bench.against import Work, as_markdown
    from ..bench.runs import bench_against_llamacpp, bench_all

    if folder is not None:
        make_folder(folder)
    data: list[dict[str, Any]] = []
    cancelled = False
    with progress_bar("Starting") as progress, cancel_on_interrupt() as cancel:

        def tell(message: str, fraction: float | None) -> None:
            if cancel.is_set():
                raise Cancelled
            progress(message, fraction)

        work = Work(limit, repeats, max_new_tokens, device, dtype, os.cpu_count() or 1, compiled, tell)
        if against is Engine.llamacpp:
            reports = bench_against_llamacpp(pair, target, draft, work)
        else:
            reports = bench_all(pair, target, draft, work, against is Engine.recorder)
        try:
            for report in reports:
                data.append(asdict(report))
        except Cancelled:
            cancelled = True
    if data and folder is not None:
        _write(data, folder)
    if data and as_json:
        print_json(data)
    elif data:
        for one in data:
            out.print(Markdown(as_markdown(one)))
    if cancelled:
        err.print("Cancelled: the report that was being measured is left out.")
        raise typer.Exit(CANCELLED)


def _write(data: list[dict[str, Any]], folder: Path) -> None:
    """bench.json, and bench.md with the machine and the command. Raises UserError."""
    from ..bench.against import as_document
    from ..engines.loading import machine_of

    command = shlex.join(["python", "-m", "decoding", *sys.argv[1:]])
    with explained(f"The report could not be written into {folder}"):
        write_whole(folder / "bench.json", json.dumps(data, indent=1) + "\n")
        write_whole(folder / "bench.md", as_document(data, command, machine_of(data[0]["device"])))
    err.print(Text(f"Wrote {folder / 'bench.json'}, {folder / 'bench.md'}"))


def lossless(
    pair: PairName = "",
    target: Target = "",
    draft: Annotated[str, typer.Option(help="Which draft of the pair; with --target, its folder or Hub id.")] = "",
    suite: Annotated[str, typer.Option(help="Prompts of this suite; all: of every suite in turn.")] = "all",
    limit: Annotated[int, typer.Option(help="Number of prompts.", min=1)] = 100,
    skip: Annotated[int, typer.Option(help="Skip this many prompts that were compared before.", min=0)] = 0,
    max_new_tokens: Annotated[int, typer.Option(help="The token limit.", min=1)] = 32,
    longest: Annotated[int, typer.Option(help="SL caps from 1 up to this one.", min=1, max=20)] = 16,
    minutes: Annotated[float | None, typer.Option(help="Start no new prompt after this many minutes.")] = None,
    kept: Annotated[
        Path | None, typer.Option("--out", help="Keep the counts in this file; the same command continues from it.")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda or auto; the reference runs on the CPU.")] = "cpu",
    dtype: Annotated[
        str, typer.Option(help="float32: against generate. Another format: against the target's own plain decoding.")
    ] = "float32",
    as_json: AsJson = False,
) -> None:
    """Compare every policy with SL 1..16 with transformers' generate(do_sample=False), in float32.

    In another number format transformers' kernels round otherwise: there the reference is the target's plain decoding.
    """
    from ..bench.lossless import check_lossless, plain_reference, transformers_reference
    from ..engines.pair import load_pair
    from ..evaluation.options import check_minutes
    from ..records.suites import load_suite, suites_for

    check_minutes(minutes)
    if draft in MODEL_FREE and not target:
        raise UserError(f"{draft} is no model, and this compares drafts that are: leave --draft out, or name another.")
    loaded = load_pair(pair, target, draft if target else "", dtype=dtype, device=device)
    if draft and not target:
        loaded.draft(draft)  # raises UserError for an unknown name
        loaded.default_draft = draft
    suite = suites_for(suite, loaded.chat)
    room = loaded.target.max_length - max_new_tokens + 1
    asked = load_suite(suite, "test", limit)[skip:]
    encoded = [(one, loaded.encode_prompt(one.prompt, picture=one.picture)) for one in asked]
    chosen = [(one, prompt) for one, prompt in encoded if len(prompt) <= room]
    if not chosen:
        raise UserError(
            f"No prompt is left: of at most {limit}, {skip} are skipped, and the others need room for "
            f"{max_new_tokens:,} new tokens in the target's context of {loaded.target.max_length:,}. Skip fewer, or "
            "ask for fewer tokens."
        )
    read, prompts = zip(*chosen)
    lines = _lines(
        kept, loaded, {"suite": suite, "skip": skip, "tokens": max_new_tokens, "longest": longest, "draft": draft}
    )
    counts = _kept_counts(lines, read)
    deadline = monotonic() + 60 * minutes if minutes is not None else inf
    with progress_bar("Comparing") as progress, cancel_on_interrupt() as cancel:
        folder = loaded.target_folder if loaded.target.info.dtype == "float32" else None
        reference = transformers_reference(folder) if folder is not None else plain_reference(loaded)
        for _ in check_lossless(loaded, reference, prompts, max_new_tokens, range(1, longest + 1), counts):
            progress(f"{counts.equal} of {counts.compared} texts equal", counts.prompts / len(prompts))
            if lines is not None:
                lines.add(asdict(counts) | {"of": _digest(read[: counts.prompts])})
            if cancel.is_set() or monotonic() > deadline:
                break
    if cancel.is_set() and lines is not None:
        err.print("Stopped. The same command continues.")
    if as_json:
        print_json(asdict(counts))
    else:
        out.print(
            f"{counted(counts.prompts, 'prompt')}, {counts.compared} texts compared: {counts.equal} equal, "
            f"{counts.near_ties} differ at a near tie (top-2 gap under 1e-4), {len(counts.different)} differ."
        )
    for number, policy, cap, at, gap in counts.different:
        err.print(f"prompt {number}, {policy}, SL up to {cap}: first difference at {at}, top-2 gap {gap:.2g}")
    raise typer.Exit(1 if counts.different else CANCELLED if cancel.is_set() else 0)


def _lines(path: Path | None, pair: Pair, setting: dict[str, object]) -> Lines | None:
    """The file of an earlier part of the same check, or a new one. Raises UserError for one of another check."""
    if path is None:
        return None
    target, draft = pair.target.info, pair.draft().info
    models: dict[str, object] = {
        name: [info.fingerprint, info.dtype, info.engine, info.device]
        for name, info in (("target", target), ("draft", draft))
    }
    folder = pair.draft_folders.get(pair.default_draft)
    return Lines(path, models | {"policies": policies_digest(folder / FOLDER) if folder else ""} | setting)


def _kept_counts(lines: Lines | None, prompts: Sequence[Prompt]) -> Counts:
    """The counts over all prompts that an earlier part compared. Raises UserError if ``prompts`` begin with others."""
    from ..bench.lossless import Counts

    if lines is None or not lines.records:
        return Counts()
    last = dict(lines.records[-1])
    try:
        of = last.pop("of")
        counts = Counts(**last | {"different": [tuple(one) for one in last["different"]]})
        if counts.prompts <= len(prompts) and of == _digest(prompts[: counts.prompts]):
            return counts
    except (KeyError, TypeError):  # no counts
        pass
    raise UserError(f"{lines.path} has the counts of other prompts: choose another file, or delete it.")


def _digest(prompts: Sequence[Prompt]) -> str:
    """Of what a model reads of them."""
    return digest_of(json.dumps([(one.prompt, one.picture) for one in prompts]).encode())


def gpu_day(
    minutes: Annotated[float, typer.Option(help="Time for all steps together.", min=0.1)] = 25.0,
    folder: Annotated[Path, typer.Option("--out", help="Folder for the results; an existing one is continued.")] = Path(
        "results/gpu"
    ),
    pair: PairName = "",
) -> None:
    """Run GPU tests, lossless, bench, a recording and an evaluation on CUDA, and write summary.md."""
    import torch

    from ..bench.gpu_day import run_day

    if not torch.cuda.is_available():
        raise UserError("There is no CUDA device here, which all of this measures: run it on a machine that has one.")
    with cancel_on_interrupt() as cancel:
        for sentence in run_day(folder, minutes, run_module, pair):
            if cancel.is_set():
                err.print("Stopped. The same command continues.")
                raise typer.Exit(CANCELLED)
            err.print(sentence)
    out.print((folder / "summary.md").read_text(encoding="utf-8"), markup=False)


def run_module(words: list[str], minutes: float) -> tuple[int, str]:
    """``python -m`` with ``words`` in a separate process: its exit status and output, with errors only if it failed."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", *words], capture_output=True, text=True, timeout=60 * minutes, check=False
        )
    except subprocess.TimeoutExpired as error:
        said = error.stdout or b""
        return TIMED_OUT, said.decode(errors="replace") if isinstance(said, bytes) else said
    return done.returncode, done.stdout if done.returncode == 0 else done.stdout + done.stderr
