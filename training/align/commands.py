"""Trains drafts for a chat model on texts that the model writes. An interrupted step resumes where it stopped."""

from __future__ import annotations

import typer

from training import SUITE_FILE, TEXTS

app = typer.Typer(no_args_is_help=True, add_completion=False, help=__doc__)
TOKENS = typer.Option(2_000_000, min=1, help="Write texts until they have this many tokens in total.")
MINUTES = typer.Option(..., min=0.01, help="Training time in minutes, earlier runs of the same draft included.")
NAMES = typer.Argument(..., help="Names of drafts, as `feature` trains them.")
LENGTH = typer.Option(0.0, min=0.0, help="Training time in minutes; or --tokens.")
INSTEAD = typer.Option(None, min=1, help="Training tokens, in place of a time.")


@app.command()
def texts(tokens: int = TOKENS) -> None:
    """Let the target write prompts and their answers; on a GPU, if there is one, without its states."""
    from .teacher import gpu_if_any, model, write_enough

    typer.echo(f"{write_enough(model(), TEXTS, tokens, gpu_if_any()):,} tokens.")


@app.command()
def suite() -> None:
    """Write the prompt suite `chat` from prompts that no draft is trained on."""
    from .data import all_texts
    from .texts import write_suite

    typer.echo(f"{write_suite(all_texts(TEXTS), SUITE_FILE)} prompts in {SUITE_FILE.name}.")


@app.command()
def draft(
    name: str = typer.Argument("", help="Name of the draft. Default: three-layers."),
    minutes: float = MINUTES,
    further: bool = typer.Option(False, "--further", help="Start from the shipped draft, for more texts."),
) -> None:
    """Distil one draft, or resume its training."""
    from .distil import distil
    from .recipes import DEFAULT

    typer.echo(distil(name or DEFAULT, minutes, further=further))


@app.command()
def feature(
    name: str = typer.Argument("feature", help="Name of the draft."),
    minutes: float = LENGTH,
    tokens: int | None = INSTEAD,
) -> None:
    """Train a draft that also reads the target's hidden states, from a shipped draft that reads the text alone."""
    from .feature_drafts import train

    train([name], minutes, tokens)


@app.command()
def together(names: list[str] = NAMES, minutes: float = LENGTH, tokens: int | None = INSTEAD) -> None:
    """Train several drafts on the same batches. Needs a GPU: the target reads each batch anew."""
    from .feature_drafts import train

    train(names, minutes, tokens, on_gpu=True)


@app.command()
def ladder(tokens: int = typer.Option(1_000_000, min=1, help="Training tokens of each draft.")) -> None:
    """Distil all drafts except three-layers and two-layers, from which it grows, each on the same tokens."""
    from .distil import distil
    from .recipes import LADDER

    for name in LADDER:
        typer.echo(f"{name}: {distil(name, tokens=tokens)}")


@app.command()
def install() -> None:
    """Measure the drafts on held-out texts; copy them to models/ with pair.json, the measurements and a model card."""
    from .install import install as copy

    typer.echo(f"models/{copy(typer.echo).name}")


@app.command(name="all")
def all_steps(tokens: int = TOKENS, minutes: float = MINUTES) -> None:
    """All steps: texts, suite, three-layers for the given minutes (a third of them for two-layers, from which it
    grows), and the other drafts with a third of its training tokens each.
    """
    from .distil import tokens_seen
    from .recipes import DEFAULT, RECIPES

    texts(tokens)
    suite()
    draft(RECIPES[DEFAULT].grown_from, minutes / 3, False)
    draft(DEFAULT, minutes * 2 / 3, False)
    ladder(tokens_seen(DEFAULT) // 3)
    install()
