"""``python -m decoding throughput``: visitors served by several replicas in the time that one takes."""

from __future__ import annotations

from statistics import median
from typing import Annotated

import typer

from ..errors import Cancelled, UserError
from .console import CANCELLED, cancel_on_interrupt, err, out, print_json, progress_bar
from .serve import free_port, need_ray
from .soak import make_requests


def throughput(
    visitors: Annotated[int, typer.Option(help="Number of visitors who come at once.")] = 16,
    replicas: Annotated[int, typer.Option(help="Number of replicas, to be compared with one.")] = 2,
    rounds: Annotated[int, typer.Option(help="How often both are tried, in turn.")] = 3,
    target: Annotated[str, typer.Option(help="A target (folder or Hub id) in place of the default pair.")] = "",
    draft: Annotated[str, typer.Option(help="Its draft.")] = "",
    lanes: Annotated[str, typer.Option(help="Comma-separated lanes.")] = "autoregressive,static:5",
    max_new_tokens: Annotated[int, typer.Option(help="The token limit of each run.")] = 64,
    gpus_per_replica: Annotated[float, typer.Option(help="GPUs of each replica.")] = 0.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Compare the throughput of several replicas with one's, on a Ray cluster of this machine's own."""
    from ..backends.throughput import compare_throughput

    if min(visitors, rounds, max_new_tokens) < 1 or replicas < 2:
        raise UserError("Ask for at least one visitor, one round, one new token and two replicas.")
    ray_serve, port = need_ray(), free_port()
    requests = make_requests(visitors, target, draft, lanes, max_new_tokens)
    with cancel_on_interrupt() as cancel, progress_bar() as progress:
        bar = progress.add_task("Starting the replicas", total=2 * (1 + rounds))
        try:
            ray_serve.open_cluster("127.0.0.1", port)
            for name, number in (("one", 1), ("many", replicas)):
                # All of them stand on this machine, those of one side idle: less than a CPU of Ray's count each.
                options = ray_serve.Options(number, most=number, gpus=gpus_per_replica, cpus=0.1, any_model=True)
                ray_serve.deploy(options, name, f"/{name}")
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
    if as_json:
        print_json(result.to_dict())
    else:
        each = ", ".join(f"{ratio:.2f}" for ratio in result.ratios)
        out.print(
            f"{visitors} visitors: one replica {median(result.one_s):.1f} s, {replicas} replicas "
            f"{median(result.many_s):.1f} s; ratio {median(result.ratios):.2f} (rounds: {each}); "
            f"{result.mixed} runs mixed; ended: {dict(result.ends)}."
        )
        for sentence, count in result.sentences.items():
            err.print(f"{count} failed: {sentence}", markup=False)
    raise typer.Exit(0 if result.is_clean else 1)
