"""``python -m decoding serve``: this machine's models for front ends elsewhere."""

from __future__ import annotations

import ipaddress
import logging
import re
import signal
import socket
import threading
from types import FrameType, ModuleType
from typing import Annotated, Any

import typer
from rich.text import Text

from ..errors import UserError
from ..files import ended_by_sigterm
from ..records.request import MAX_NEW_TOKENS, MAX_PROMPT_CHARS, Grant
from .console import err

TOKEN_VARIABLE = "SPECULOSCOPE_TOKEN"
MOST_REPLICAS = 4  # unless stated


def serve(
    port: Annotated[int, typer.Option(help="The port to listen on.")] = 8700,
    host: Annotated[str, typer.Option(help="The address to listen on; 0.0.0.0 for all.")] = "127.0.0.1",
    token: Annotated[str, typer.Option(envvar=TOKEN_VARIABLE, help="Bearer token that clients must send.")] = "",
    max_waiting: Annotated[int, typer.Option(help="Maximum number of waiting runs.")] = 24,
    max_new_tokens: Annotated[int, typer.Option(help="Maximum number of new tokens per text.")] = MAX_NEW_TOKENS,
    max_total_tokens: Annotated[int, typer.Option(help="Maximum for all lanes and repeats together.")] = 200_000,
    max_prompt_chars: Annotated[int, typer.Option(help="Maximum length of a prompt.")] = MAX_PROMPT_CHARS,
    long_jobs: Annotated[bool, typer.Option(help="Also run evaluations for clients.")] = True,
    max_minutes: Annotated[float, typer.Option(help="Maximum time of a run, in minutes.")] = 240.0,
    any_model: Annotated[bool, typer.Option("--any-model", help="Let clients name targets and drafts.")] = False,
    insecure: Annotated[bool, typer.Option("--insecure", help="Let other machines connect without token.")] = False,
    ray: Annotated[bool, typer.Option("--ray", help="Run on many devices, through Ray Serve.")] = False,
    address: Annotated[str, typer.Option(help="With --ray: a running cluster; default: start one here.")] = "",
    replicas: Annotated[str, typer.Option(help="With --ray: number of devices; auto: as needed.")] = "auto",
    most_replicas: Annotated[
        int, typer.Option(help="With --replicas auto: the maximum number of devices.")
    ] = MOST_REPLICAS,
    gpus_per_replica: Annotated[float, typer.Option(help="With --ray: GPUs of each device.")] = 0.0,
) -> None:
    """Serve comparisons to front ends on other machines (python app.py --backend http://HOST:PORT)."""
    import uvicorn

    from ..backends.local import LocalBackend
    from ..backends.server import Limits, create_app

    check_address(host, port)
    check_guarded(host, token, insecure)
    if max_waiting < 0 or min(max_new_tokens, max_total_tokens, max_prompt_chars) < 1 or not max_minutes > 0:
        raise UserError("Nothing could run under these limits: --max-waiting is 0 or more, the others above 0.")
    grant = Grant(max_prompt_chars, max_new_tokens, max_total_tokens, long_jobs, 60 * max_minutes)
    reachable = socket.gethostname() if host in ("0.0.0.0", "::") else host
    front_ends = f"Front ends: python app.py --backend {url_of(reachable, port)}"
    if ray:
        options: dict[str, Any] = dict(grant=grant, max_waiting=max_waiting, token=token, any_model=any_model)
        number = {"replicas": check_replicas(replicas), "most": most_replicas, "gpus": gpus_per_replica}
        _serve_on_cluster(options | number, host, port, address, front_ends)
        return
    if address or replicas != "auto" or gpus_per_replica or most_replicas != MOST_REPLICAS:
        raise UserError(
            "--address, --replicas, --most-replicas and --gpus-per-replica are about a cluster: add --ray, or leave "
            "them out."
        )
    limits = Limits(max_runs=max_waiting + 1, any_model=any_model)
    backend = LocalBackend(max_waiting=max_waiting, grant=grant)
    app = create_app(backend, token, limits)
    backend.prepare()
    err.print(Text(f"Serving on {url_of(host, port)}. {front_ends}"))
    if insecure and not token and not is_loopback(host):
        err.print("Anyone who reaches this port can run comparisons.")
    config = uvicorn.Config(app, host=host, port=port, log_level="warning", timeout_graceful_shutdown=2)

    class Server(uvicorn.Server):
        """uvicorn's own handler ends at once on a second Ctrl-C and raises every signal again inside the event loop;
        both cut the application's own end short, with a traceback. It writes another for each stream that is cut.
        """

        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            logging.getLogger("uvicorn.error").disabled = True
            self.should_exit = True

    with ended_by_sigterm():  # until the server listens
        Server(config).run()


def _serve_on_cluster(options: dict[str, Any], host: str, port: int, address: str, front_ends: str) -> None:
    """Start the replicas, say where they are, and wait for a signal. Raises UserError."""
    ray_serve = need_ray()
    ended = threading.Event()
    try:
        ray_serve.start(ray_serve.Options(**options), host, port, address)
        for number in (signal.SIGINT, signal.SIGTERM):  # not before: Ray sets a handler that aborts the process
            signal.signal(number, lambda *_: ended.set())
        where = ray_serve.cluster_address()
        err.print(Text(f"Serving on {url_of(host, port)}, on the Ray cluster at {where}. {front_ends}"))
        ended.wait()
    finally:
        ray_serve.stop()


def need_ray() -> ModuleType:
    """:mod:`decoding.backends.ray_serve`. Raises UserError if ray is not installed."""
    try:
        from ..backends import ray_serve
    except ModuleNotFoundError as error:
        raise UserError("--ray needs the package ray: pip install -r requirements-ray.txt.") from error
    return ray_serve


def check_replicas(text: str) -> int | None:
    """The number of replicas; None for auto. Raises UserError."""
    if text == "auto":
        return None
    if not re.fullmatch(r"[1-9][0-9]{0,3}", text):
        raise UserError(f"--replicas must be a whole number of at least 1, or auto, not {text[:20]}.")
    return int(text)


def check_guarded(host: str, token: str, insecure: bool) -> None:
    """Raises UserError for serving to other machines without a token, unless that is requested."""
    if not (token or insecure or is_loopback(host)):
        raise UserError(
            f"Anyone who reaches {host} could run comparisons here: require a token with --token or {TOKEN_VARIABLE}, "
            "or add --insecure if that is intended."
        )


def is_loopback(host: str) -> bool:
    """Whether ``host`` can be reached from this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def check_address(host: str, port: int) -> None:
    """Raises UserError if nothing can listen at ``host``:``port``."""
    if not 0 < port < 65536:
        raise UserError(f"The port must be a number from 1 to 65,535, not {port}.")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        why = error.strerror or error
        raise UserError(f"Cannot listen on {host}:{port}: {why}. Choose another --port or --host.") from error


def url_of(host: str, port: int) -> str:
    """The address of a server there; an IPv6 address stands in brackets."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
