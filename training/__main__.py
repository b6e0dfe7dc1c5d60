"""Training of the chat model's drafts. A killed step resumes."""

from __future__ import annotations

import ctypes
import os
import sys

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import typer
from safetensors import SafetensorError

from decoding.errors import UserError
from training import PAIR, SUITE_FILE, TEXTS

app = typer.Typer(no_args_is_help=True, add_completion=False, help=__doc__)
align = typer.Typer(
    no_args_is_help=True,
    help="Trains drafts for a chat model on texts that the model writes. An interrupted step resumes where it stopped.",
)
app.add_typer(align, name="align")

# Parameters of mallopt(3) as <malloc.h> numbers them.
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3
KEPT = 2**30
PADDING = 64 * 2**20

TOKENS = typer.Option(2_000_000, min=1, help="Write texts until they have this many tokens in total.")
MINUTES = typer.Option(..., min=0.01, help="Training time in minutes, earlier runs of the same draft included.")
NAMES = typer.Argument(..., help="Names of drafts, as `feature` trains them.")
INSTALLED = typer.Argument(..., help="Names of installed drafts.")
LENGTH = typer.Option(0.0, min=0.0, help="Training time in minutes; or --tokens.")
INSTEAD = typer.Option(None, min=1, help="Training tokens, in place of a time.")


@align.command()
def texts(tokens: int = TOKENS) -> None:
    """Let the target write prompts and their answers; on a GPU, if there is one, without its states."""
    from training.teacher import gpu_if_any, model, write_enough

    typer.echo(f"{write_enough(model(), TEXTS, tokens, gpu_if_any()):,} tokens.")


@align.command()
def suite() -> None:
    """Write the prompt suite `chat` from prompts that no draft is trained on."""
    from training.data import all_texts
    from training.texts import write_suite

    typer.echo(f"{write_suite(all_texts(TEXTS), SUITE_FILE)} prompts in {SUITE_FILE.name}.")


@align.command()
def draft(
    name: str = typer.Argument("", help="Name of the draft. Default: three-layers."),
    minutes: float = MINUTES,
    further: bool = typer.Option(False, "--further", help="Start from the shipped draft, for more texts."),
) -> None:
    """Distil one draft, or resume its training."""
    from training.distil import distil
    from training.drafts import DEFAULT

    typer.echo(distil(name or DEFAULT, minutes, further=further))


@align.command()
def feature(
    name: str = typer.Argument("feature", help="Name of the draft."),
    minutes: float = LENGTH,
    tokens: int | None = INSTEAD,
) -> None:
    """Train a draft that also reads the target's hidden states, from a shipped draft that reads the text alone."""
    from training.feature_drafts import train

    train([name], minutes, tokens)


@align.command()
def together(names: list[str] = NAMES, minutes: float = LENGTH, tokens: int | None = INSTEAD) -> None:
    """Train several drafts on the same batches. Needs a GPU: the target reads each batch anew."""
    from training.feature_drafts import train

    train(names, minutes, tokens, on_gpu=True)


@align.command()
def ladder(tokens: int = typer.Option(1_000_000, min=1, help="Training tokens of each draft.")) -> None:
    """Distil all drafts except three-layers and two-layers, from which it grows, each on the same tokens."""
    from training.distil import distil
    from training.drafts import LADDER

    for name in LADDER:
        typer.echo(f"{name}: {distil(name, tokens=tokens)}")


@align.command()
def install() -> None:
    """Measure the drafts on held-out texts; copy them to models/ with pair.json, the measurements and a model card."""
    from training.install import install as copy

    typer.echo(f"models/{copy(typer.echo).name}")


@align.command()
def screen(names: list[str] = INSTALLED) -> None:
    """Fit what the heads of drafts are screened with on a CPU, and write it beside the drafts."""
    from decoding.engines.pair import load_pair
    from training.card import write_card
    from training.screen import make_screen

    pair, steps = load_pair(PAIR.name), set[str]()

    def report(step: str, share: float | None) -> None:
        if step not in steps:
            typer.echo(f"{step} ...")
        steps.add(step)

    for name in names:
        steps.clear()
        typer.echo(f"{name}: fitted to {make_screen(pair, name, report):,} of the states that its head reads.")
    write_card(PAIR)


@align.command(name="all")
def all_steps(tokens: int = TOKENS, minutes: float = MINUTES) -> None:
    """All steps: texts, suite, three-layers for the given minutes (a third of them for two-layers, from which it
    grows), the other drafts with a third of its training tokens each, and `install`, which replaces those in models/.
    """
    from training.distil import tokens_seen
    from training.drafts import DEFAULT, RECIPES

    texts(tokens)
    suite()
    draft(RECIPES[DEFAULT].grown_from, minutes / 3, False)
    draft(DEFAULT, minutes * 2 / 3, False)
    ladder(tokens_seen(DEFAULT) // 3)
    install()


def keep_freed_memory() -> bool:
    """Makes glibc keep freed blocks of up to KEPT bytes. Returns False without glibc.

    A training step and a step of batched decoding allocate and free the same large buffers again and again. By default
    glibc returns each of them to the kernel at once, which must zero the pages again at the next step.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    asked = {M_MMAP_THRESHOLD: KEPT, M_TRIM_THRESHOLD: 2 * KEPT - 1, M_TOP_PAD: PADDING}
    done = [mallopt(parameter, value) == 1 for parameter, value in asked.items()]  # each, even after a failure
    return all(done)


def main() -> None:
    """Runs the command line. Bad input and file errors end in one sentence, without a traceback."""
    keep_freed_memory()
    try:
        app()
    except UserError as error:
        sentence = str(error)
    except (OSError, SafetensorError) as error:  # safetensors raises its own on a full disk
        sentence = (
            f"A file could not be read or written: {error}. Free some space or check the permissions, and run the "
            "command again: it resumes."
        )
    else:
        return
    typer.echo(sentence, err=True)
    sys.exit(1)


if __name__ == "__main__":
    main()
