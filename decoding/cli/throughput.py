"""``python -m decoding throughput``: the throughput of several replicas, compared with that of one."""

from __future__ import annotations

from statistics import median
from typing import Annotated

import typer

from ..errors import Cancelled, UserError
from .console import CANCELLED, cancel_on_interrupt, progress_bar
from .options import AsJson, Draft, Lanes, MaxNewTokens, PairName, Target
from .serve import free_port, need_ray
from .soak import end_with, make_requests


def throughput(
    visitors: Annotated[int, typer.Option(help="Number of simultaneous visitors.")] = 16,
    replicas: Annotated[int, typer.Option(help="Number of replicas to compare with one.")] = 2,
    rounds: Annotated[int, typer.Option(help="Number of rounds; in each, both are measured in turn.")] = 3,
    pair: PairName = "",
    target: Target = "",
    draft: Draft = "",
    lanes: Lanes = "autoregressive,static:5",
    max_new_tokens: MaxNewTokens = 64,
    gpus_per_replica: Annotated[float, typer.Option(help="GPUs of each replica.")] = 0.0,
    as_json: AsJson = False,
) -> None:
    """Compare the throughput of several replicas with that of one, on a local Ray cluster."""
    from ..backends.throughput import compare_throughput

    if min(visitors, rounds, max_new_tokens) < 1 or replicas < 2:
        raise UserError("Choose at least one visitor, one round, one new token and two replicas.")
    ray_serve, port = need_ray(), free_port()
    requests = make_requests(visitors, target, draft, lanes, max_new_tokens, pair)
    with cancel_on_interrupt() as cancel, progress_bar() as progress:
        bar = progress.add_task("Starting the replicas", total=2 * (1 + rounds))
        try:
            ray_serve.open_cluster("127.0.0.1", port)
            for name, number in (("one", 1), ("many", replicas)):
                # All are on this machine, and one side is always idle: each needs less than one of Ray's CPUs, and the
                # idle side must leave the processor to the other.
                shared = {"gpus": gpus_per_replica, "cpus": 0.1, "idle_work": False, "any_model": True}
                ray_serve.deploy(ray_serve.Options(number, most=number, **shared), name, f"/{name}")
            progress.update(bar, description="Crowds of visitors")
            result = compare_throughput(
                f"http://127.0.0.1:{port}/one",
                f"http://127.0.0.1:{port}/many",
                requests,
                rounds,
                cancel,
                lambda crowds: progress.update(bar, completed=crowds),
            )
        except Cancelled:
            raise typer.Exit(CANCELLED) from None
        finally:
            ray_serve.stop()
    each = ", ".join(f"{ratio:.2f}" for ratio in result.ratios)
    sentence = (
        f"{visitors} visitors: one replica {median(result.one_s):.1f} s, {replicas} replicas "
        f"{median(result.many_s):.1f} s; ratio {median(result.ratios):.2f} (rounds: {each}); "
        f"{result.mixed} runs mixed; ended: {dict(result.ends)}."
    )
    end_with(result, sentence, as_json)
