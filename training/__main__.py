"""Training of the small pair, one command per step, and of the chat model's drafts (align). A killed step resumes."""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import typer

from decoding.errors import UserError
from training.align.commands import app as align
from training.allocator import keep_freed_memory

app = typer.Typer(no_args_is_help=True, add_completion=False, help=__doc__)
app.add_typer(align, name="align")
MINUTES = typer.Option(..., min=0.01, help="Training time in minutes.")
INHERIT = typer.Option(
    False, "--inherit", help="Start from the weights in build/drafts, which learned from an earlier target."
)


FOLDERS = typer.Option(
    None, "--folder", help="Folder of installed packages, used instead of those in corpus.toml; repeatable."
)


@app.command()
def corpus(folders: list[Path] = FOLDERS) -> None:
    """Gather source code and prose from installed permissive packages into build/corpus."""
    from training.corpus import build_corpus

    manifest = build_corpus(folders)
    typer.echo(
        f"{len(manifest['packages'])} packages; characters: train {manifest['train']['characters']:,}, "
        f"held out {manifest['held_out']['characters']:,}."
    )


@app.command()
def tokenizer() -> None:
    """Train the byte-level BPE tokenizer and encode the corpus."""
    from training.target import encode_corpus
    from training.tokenizer import train_tokenizer
    from training.tokens import forget_tokens

    forget_tokens()
    train_tokenizer()
    encode_corpus()


@app.command()
def prompts() -> None:
    """Write the prompt suites from held-out files."""
    from training.prompts import write_suites

    write_suites()


@app.command()
def target(minutes: float = MINUTES) -> None:
    """Train the target: shallow first, then deepened, then at full context."""
    from training.target import train_target

    train_target(minutes)


@app.command()
def unloop(minutes: float = MINUTES) -> None:
    """Train the target to leave its loops: unlikelihood on what it repeats, mixed with the corpus."""
    from training.unloop import train_unlooped

    train_unlooped(minutes)


@app.command()
def generate(minutes: float = MINUTES) -> None:
    """Let the target write the text that drafts learn from."""
    from training.generate import generate as write
    from training.target import TARGET

    typer.echo(f"{write(TARGET, minutes):,} tokens written.")


@app.command()
def draft(
    minutes: float = MINUTES,
    name: str = "default-2x256",
    loss: str = "kl",
    tokens: int = typer.Option(None, min=1, help="Stop after this many tokens instead of after a time."),
    inherit: bool = INHERIT,
) -> None:
    """Distil one draft, or continue it: time and tokens count from its beginning.

    Losses: kl, sharp (kl also at temperature 1/4), tv, ce.
    """
    from training.draft import train_draft

    train_draft(name, minutes, loss, tokens, inherit)


@app.command()
def losses(minutes: float = MINUTES) -> None:
    """Compare the distillation losses on the default draft, each for the given minutes."""
    from training.draft import compare_losses

    for loss, rate in compare_losses(minutes).items():
        typer.echo(f"{loss}: match rate {rate:.3f} on held-back text")


@app.command()
def install() -> None:
    """Copy target and drafts from build/ to models/, where the project ships them."""
    from training.install import install as copy

    typer.echo(f"models/{copy().name}")


@app.command()
def report(
    write_cards: bool = typer.Option(False, help="Write the figures into the model cards."),
    limit: int = typer.Option(80, min=1, help="Number of test prompts per suite."),
) -> None:
    """Measure the shipped pair, print the figures and save them as report.json."""
    from training.cards import write_cards as write
    from training.report import make_report, show

    figures = make_report(limit)
    show(figures)
    if write_cards:
        write(figures)


@app.command()
def continuations(count: int = typer.Option(20, min=1)) -> None:
    """Print the target's continuations of test prompts, to choose from for the card."""
    from training.continuations import print_continuations

    print_continuations(count)


@app.command(name="measure-trainer")
def measure_trainer(steps: int = typer.Option(12, min=2)) -> None:
    """Compare the time of a step of this project's loop with transformers' Trainer, same model and batch."""
    from training.trainer_cost import compare

    for line in compare(steps):
        typer.echo(line)


@app.command(name="all")
def all_steps(minutes: float = MINUTES, folders: list[Path] = FOLDERS) -> None:
    """Run every step from the corpus to the cards: the given minutes of training, plus preparation and measurement."""
    from training.draft import DEFAULT, train_draft
    from training.places import CORPUS
    from training.target import encode_corpus
    from training.tokenizer import train_tokenizer
    from training.tokens import forget_tokens, has_tokens

    if not (CORPUS / "manifest.json").is_file():
        corpus(folders)
    if not has_tokens():
        forget_tokens()
        train_tokenizer()
        prompts()
        encode_corpus()  # last: once the tokens exist, all three are done
    target(0.45 * minutes)
    unloop(0.15 * minutes)
    generate(0.08 * minutes)
    train_draft(DEFAULT, 0.32 * minutes, loss="sharp")  # as the shipped one
    install()
    report(write_cards=True, limit=80)


def main() -> None:
    """Runs the command line. Bad input and file errors end in one sentence, without a traceback."""
    keep_freed_memory()
    try:
        app()
    except (UserError, OSError) as error:
        typer.echo(str(error), err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
