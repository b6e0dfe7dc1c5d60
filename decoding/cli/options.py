"""Options that several commands share, as types of their parameters."""

from __future__ import annotations

from typing import Annotated

import typer

PairName = Annotated[str, typer.Option(help="A pair by its name (see: python -m decoding pairs).")]
Target = Annotated[str, typer.Option(help="A target instead of a pair: a folder or a Hub id; needs --draft.")]
Draft = Annotated[str, typer.Option(help="Its draft: a folder or a Hub id.")]
Lanes = Annotated[str, typer.Option(help="Comma-separated lanes.")]
MaxNewTokens = Annotated[int, typer.Option(help="The token limit of each text.")]
Repeats = Annotated[int, typer.Option(help="Timed runs of each lane on each prompt.")]
Dtype = Annotated[str, typer.Option(help="The dtype of the models: auto, float32 or bfloat16.")]
Weights = Annotated[str, typer.Option(help="The target's weights: auto, or int4 (four bits, on a CPU).")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON only.")]
