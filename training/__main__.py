"""``python -m training``: one command per step, and one that does all."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import typer

app = typer.Typer(no_args_is_help=True, add_completion=False, help=__doc__)


@app.command()
def target(minutes: float = 60) -> None:
    """Train the target."""
    from training.target import train_target

    train_target(minutes)

@app.callback()
def main() -> None:
    """Training of the embedded pair."""


if __name__ == "__main__":
    app()
