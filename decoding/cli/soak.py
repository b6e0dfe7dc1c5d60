"""``python -m decoding soak``: tests whether a served backend loses or mixes events when connections break."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import UserError
from ..records.request import CompareRequest
from .console import cancel_on_interrupt, err, out, print_json, progress_bar
from .serve import free_port, need_ray

if TYPE_CHECKING:
    from ..backends.soak import SoakResult


def soak(
    runs: Annotated[int, typer.Option(help="Number of comparisons.")] = 200,
    clients: Annotated[int, typer.Option(help="Number of concurrent clients.")] = 4,
    target: Annotated[str, typer.Option(help="A target (folder or Hub id) instead of the default pair.")] = "",
    draft: Annotated[str, typer.Option(help="Its draft.")] = "",
    lanes: Annotated[str, typer.Option(help="Comma-separated lanes.")] = "autoregressive,static:5",
    max_new_tokens: Annotated[int, typer.Option(help="The token limit of each run.")] = 16,
    cut_after: Annotated[float, typer.Option(help="Maximum lifetime of a connection, in seconds.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Seed of the cuts.")] = 0,
    ray: Annotated[bool, typer.Option("--ray", help="Through Ray Serve, on a local cluster.")] = False,
    replicas: Annotated[int, typer.Option(help="With --ray: how many devices.")] = 2,
    as_json: Annotated[bool, typer.Option("--json", help="Print the counts as JSON.")] = False,
) -> None:
    """Run comparisons through a backend served on loopback whose connections are cut at random moments."""
    if min(runs, clients, max_new_tokens, replicas) < 1 or not cut_after > 0.01:
        raise UserError(
            "Choose at least one run, client, new token and replica, and lifetimes of connections above 0.01 s."
        )
    requests = make_requests(runs, target, draft, lanes, max_new_tokens)
    run = _soak_replicas if ray else _soak_local
    with cancel_on_interrupt() as cancel, progress_bar() as progress:
        bar = progress.add_task("Comparisons behind a cutting proxy", total=runs)
        result = run(
            requests,
            clients,
            (0.01, cut_after),
            seed,
            cancel,
            lambda so_far: progress.update(bar, completed=so_far.runs),
            replicas,
        )
    if as_json:
        print_json(result.to_dict())
    else:
        out.print(
            f"{result.runs} runs, {result.events} events, {result.cuts} connections cut: "
            f"{result.lost} events lost, {result.mixed} runs mixed; ended: {dict(result.ends)}."
        )
        for sentence, count in result.sentences.items():
            err.print(f"{count} failed: {sentence}", markup=False)
    raise typer.Exit(0 if result.is_clean else 1)


def make_requests(number: int, target: str, draft: str, lanes: str, max_new_tokens: int) -> list[CompareRequest]:
    """Requests with a prompt each."""
    return [
        CompareRequest(
            f"# {i}\ndef f{i}(x):\n",
            target=target,
            draft=draft,
            lanes=lanes.split(","),
            repeats=1,
            max_new_tokens=max_new_tokens,
        )
        for i in range(number)
    ]


def _soak_local(
    requests: list[CompareRequest],
    clients: int,
    lives: tuple[float, float],
    seed: int,
    cancel: threading.Event,
    on_result: Callable[[SoakResult], None],
    replicas: int,
) -> SoakResult:
    from ..backends.local import LocalBackend
    from ..backends.soak import soak as run_soak

    return run_soak(LocalBackend(max_waiting=clients + 1), requests, clients, lives, seed, cancel, on_result)


def _soak_replicas(
    requests: list[CompareRequest],
    clients: int,
    lives: tuple[float, float],
    seed: int,
    cancel: threading.Event,
    on_result: Callable[[SoakResult], None],
    replicas: int,
) -> SoakResult:
    from ..backends.soak import PATIENCE_S, soak_served

    ray_serve, port = need_ray(), free_port()
    options = ray_serve.Options(replicas, most=replicas, max_waiting=clients + 1, any_model=True, grace_s=PATIENCE_S)
    try:
        ray_serve.start(options, "127.0.0.1", port)
        return soak_served(port, requests, clients, lives, seed, cancel, on_result)
    finally:
        ray_serve.stop()
