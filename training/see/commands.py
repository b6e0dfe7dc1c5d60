"""Trains the encoder and projector that let the chat model read scenes. A killed step resumes where it stopped."""

from __future__ import annotations

import typer

from training.paths import PAIR, READER, STATES

app = typer.Typer(no_args_is_help=True, add_completion=False, help=__doc__)
MINUTES = typer.Option(..., min=0.01, help="Training time in minutes, earlier runs of the same step included.")
SCENES = typer.Option(100, min=1, help="Held-out scenes of each group.")


@app.command()
def sprites() -> None:
    """Draw the sprite sheet again from the font Noto Color Emoji (Debian: fonts-noto-color-emoji)."""
    from .sprites import write_sheet

    typer.echo(f"{write_sheet()} emoji.")


@app.command()
def suite() -> None:
    """Write the prompt suite `pictures` again: questions about held-out scenes."""
    from decoding.records.suites import FOLDER

    from .scenes import SUITE, write_suite

    typer.echo(f"{write_suite(FOLDER / f'{SUITE}.jsonl')} prompts.")


@app.command()
def encoder(minutes: float = MINUTES) -> None:
    """Train the encoder alone: which things, where; from the shipped weights, if there are any."""
    from .find import train_encoder

    train_encoder(STATES, minutes, READER)


@app.command()
def projector(minutes: float = MINUTES) -> None:
    """Train the projector through the frozen chat model, on what the scenes hold; needs no encoder yet."""
    from training.align.teacher import model

    from .reading import train_projector

    train_projector(model(), STATES, minutes)


@app.command()
def reader(minutes: float = MINUTES) -> None:
    """Train both together through the frozen chat model; go on from the shipped weights if there are no others."""
    from training.align.teacher import model

    from .reading import train_reader

    train_reader(model(), STATES, minutes, READER)


@app.command()
def draft(
    minutes: float = MINUTES,
    sees: bool = typer.Option(False, "--sees", help="With picture tokens, as the shipped reader makes them."),
) -> None:
    """Train the pair's draft one-layer further on captions, without pictures or with them, and install the result."""
    from training.align.teacher import model

    from .drafts import CAPTIONS, SEEING, DraftTrainer

    name = SEEING if sees else CAPTIONS
    trainer = DraftTrainer(model(), PAIR / "drafts" / "one-layer", READER if sees else None)
    trainer.train(STATES, name, minutes)
    trainer.save(PAIR / "drafts" / name)


@app.command()
def install() -> None:
    """Copy the newest weights to models/ in bfloat16."""
    from training.align.teacher import model

    from .install import install as copy

    typer.echo(copy(STATES, READER, model()))


@app.command()
def report(scenes: int = SCENES) -> None:
    """Measure the shipped weights on held-out scenes, print every wrong answer, and write the card."""
    from training.align.teacher import model

    from .install import write_report

    write_report(READER, model(), scenes, typer.echo)


@app.command()
def match(limit: int = typer.Option(60, min=1, help="Prompts of the suite `pictures`.")) -> None:
    """Measure on the suite `pictures` how often each draft is right, and write it into the card."""
    from decoding.engines.pair import load_pair
    from decoding.records.suites import load_suite

    from .install import write_matches
    from .match import measure_drafts
    from .scenes import SUITE

    write_matches(READER, measure_drafts(load_pair(PAIR.name), load_suite(SUITE, "test", limit), typer.echo))


@app.command(name="all")
def all_steps(minutes: float = typer.Option(180, min=0.05, help="Minutes in total; the report comes after.")) -> None:
    """All steps: the encoder for a quarter of the minutes, the projector for a half, both together for the rest."""
    encoder(minutes / 4)
    projector(minutes / 2)
    reader(minutes / 4)
    install()
    report(100)
