"""``soak`` and ``throughput``: tests of a served backend, and of several replicas of it, with many clients at once."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from ..errors import Cancelled, UserError
from ..records.request import CompareRequest
from .console import (
    CANCELLED,
    AsJson,
    Draft,
    Lanes,
    MaxNewTokens,
    PairName,
    Target,
    cancel_on_interrupt,
    err,
    out,
    print_json,
    progress_bar,
)
from .serve import free_port, need_ray

if TYPE_CHECKING:
    from ..backends.soak import SoakOptions, SoakResult


def soak(
    runs: Annotated[int, typer.Option(help="Number of comparisons.")] = 200,
    clients: Annotated[int, typer.Option(help="Number of concurrent clients.")] = 4,
    pair: PairName = "",
    target: Target = "",
    draft: Draft = "",
    lanes: Lanes = "autoregressive,static:5",
    max_new_tokens: MaxNewTokens = 16,
    cut_after: Annotated[float, typer.Option(help="Maximum lifetime of a connection, in seconds.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Seed that chooses when connections are cut.")] = 0,
    ray: Annotated[bool, typer.Option("--ray", help="Run through Ray Serve, on a local cluster.")] = False,
    replicas: Annotated[int, typer.Option(help="With --ray: how many devices.")] = 2,
    as_json: AsJson = False,
) -> None:
    """Run comparisons through a backend served on loopback whose connections are cut at random moments."""
    if min(runs, clients, max_new_tokens, replicas) < 1 or not cut_after > 0.01:
        raise UserError(
            "Choose at least one run, client, new token and replica, and lifetimes of connections above 0.01 s."
        )
    from ..backends.local import LocalBackend
    from ..backends.soak import SoakOptions
    from ..backends.soak import soak as run_soak

    requests = make_requests(runs, target, draft, lanes, max_new_tokens, pair)
    label = "Comparisons behind a cutting proxy"
    with cancel_on_interrupt() as cancel, progress_bar(label) as progress:
        options = SoakOptions(
            clients, (0.01, cut_after), seed, cancel, lambda so_far: progress(label, so_far.runs / runs)
        )
        if ray:
            result = _soak_replicas(requests, options, replicas)
        else:
            result = run_soak(LocalBackend(max_waiting=clients + 1), requests, options)
    sentence = (
        f"{result.runs} runs, {result.events} events, {result.cuts} connections cut: "
        f"{result.lost} events lost, {result.mixed} runs mixed; ended: {dict(result.ends)}."
    )
    end_with(result, sentence, as_json)


def make_requests(
    number: int, target: str, draft: str, lanes: str, max_new_tokens: int, pair: str = ""
) -> list[CompareRequest]:
    """Requests with a prompt each."""
    return [
        CompareRequest(
            f"# {i}\ndef f{i}(x):\n",
            pair=pair,
            target=target,
            draft=draft,
            lanes=lanes.split(","),
            repeats=1,
            max_new_tokens=max_new_tokens,
        )
        for i in range(number)
    ]


def end_with(result: SoakResult, sentence: str, as_json: bool) -> NoReturn:
    """Prints ``result``, as JSON or in one ``sentence`` and those of the runs that failed; status 1 unless clean."""
    if as_json:
        print_json(result.to_dict())
    else:
        out.print(sentence)
        for failure, count in result.sentences.items():
            err.print(f"{count} failed: {failure}", markup=False)
    raise typer.Exit(0 if result.is_clean else 1)


def _soak_replicas(requests: list[CompareRequest], options: SoakOptions, replicas: int) -> SoakResult:
    from ..backends.soak import PATIENCE_S, soak_served

    ray_serve, port = need_ray(), free_port()
    behaviour = {"max_waiting": options.clients + 1, "any_model": True, "grace_s": PATIENCE_S}
    served = ray_serve.Options(replicas, most=replicas, cpus=0.1, **behaviour)
    try:
        ray_serve.start(served, "127.0.0.1", port)
        return soak_served(port, requests, options)
    finally:
        ray_serve.stop()


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
    from ..backends.soak import compare_throughput

    if min(visitors, rounds, max_new_tokens) < 1 or replicas < 2:
        raise UserError("Choose at least one visitor, one round, one new token and two replicas.")
    ray_serve, port = need_ray(), free_port()
    requests = make_requests(visitors, target, draft, lanes, max_new_tokens, pair)
    with cancel_on_interrupt() as cancel, progress_bar("Starting the replicas") as progress:
        try:
            ray_serve.open_cluster("127.0.0.1", port)
            for name, number in (("one", 1), ("many", replicas)):
                # All are on this machine, and one side is always idle: each needs less than one of Ray's CPUs, and the
                # idle side must leave the processor to the other.
                shared = {"gpus": gpus_per_replica, "cpus": 0.1, "idle_work": False, "any_model": True}
                ray_serve.deploy(ray_serve.Options(number, most=number, **shared), name, f"/{name}")
            progress("Crowds of visitors", 0.0)
            result = compare_throughput(
                f"http://127.0.0.1:{port}/one",
                f"http://127.0.0.1:{port}/many",
                requests,
                rounds,
                cancel,
                lambda crowds: progress("Crowds of visitors", crowds / (2 * (1 + rounds))),
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
