"""A served backend over many devices: Ray Serve places the replicas, each of which runs one comparison at a time.

``Face`` is the HTTP application of :mod:`.server`, unchanged, in one replica: it keeps the events of every run, so a
broken connection is resumed there, whichever device the run is on. ``Device`` holds one :class:`LocalBackend`; Ray
starts as many as are wanted, gives each its GPU, and restarts one that fails. Only this module imports ray.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from contextvars import Context
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import ray
from pydantic import ConfigDict, TypeAdapter, ValidationError
from ray import serve
from ray.exceptions import RayError
from ray.serve.exceptions import BackPressureError, RayServeException
from ray.serve.handle import DeploymentHandle, DeploymentResponseGenerator

from ..errors import Cancelled, UserError, first_fault, first_line
from ..records.events import RawEvents, event_from_json, event_to_json
from ..records.request import Grant
from .base import Backend
from .local import LocalBackend
from .server import Limits, create_app
from .stream import EventStream, apart

ROOT = Path(__file__).resolve().parents[2]
APPLICATION, DEVICE = "speculoscope", "Device"
ATTEMPTS = 3  # at starting a cluster of this machine
NAMESPACE = "serve"  # of Ray Serve's actors
HEAD = "node:__internal_head__"  # Ray's own resource, which the head node alone has
POLL_S = 0.25  # interval at which a waiting run checks its cancel flag and its place
FACE_CHECKED_S = 5.0  # interval at which a device makes sure that the HTTP side, its reader, still exists
HEARTBEAT_S = 1.0  # many wait here, and each heartbeat takes processor time from replicas on the same machine
DRAIN_S = 600.0  # how long a replica that Ray wants to end may continue its run
MORE_AFTER_S = 5.0  # how long visitors wait before another replica is started (with --replicas auto)
ANSWER_S = 5.0  # how long a cluster may take to accept a connection; Ray itself tries for minutes
MOST_STREAMS = 1000  # connections that the face serves at a time
LOST = "The replica of this run was lost. The part that was decoded is shown; start the run again on another replica."
FULL = "All replicas are busy, and the queue is full: try again soon."


@dataclass(slots=True)
class Options:
    """The options of a cluster; also the ``args`` of a configuration file (see docs/cluster.yaml)."""

    __pydantic_config__ = ConfigDict(extra="forbid")
    replicas: int | None = None  # None: between least and most, as the load requires
    least: int = 1
    most: int = 4
    gpus: float = 0.0  # per replica
    cpus: float = 1.0
    max_waiting: int = 24
    token: str = ""  # or SPECULOSCOPE_TOKEN, which keeps it out of the file
    insecure: bool = False  # whether a configuration file may do without either
    any_model: bool = False
    grace_s: float = 20.0  # how long a run continues without a reader
    grant: Grant = Grant()


@serve.deployment
class Device:
    """One quiet device: one comparison at a time (``max_ongoing_requests=1``), in a separate worker process."""

    def __init__(self, grant: Grant, any_model: bool) -> None:
        self._backend = LocalBackend(max_waiting=1, grant=grant)
        if not any_model:
            self._backend.prepare()  # the first visitor need not wait for the default pair

    async def work(self, kind: str, options: dict[str, Any], run: str, reader: str) -> AsyncIterator[str]:
        """The events of one run, as lines of JSON. The run ends when its reader stops reading, or is lost.

        ``reader``: the name of its actor; "" if it is none.
        """
        job = self._backend.run_job
        stream = EventStream(run, lambda cancel: job(kind, options, cancel, run), event_to_json)
        watch = asyncio.create_task(_cancel_with(reader, stream.cancel)) if reader else None
        try:
            async for lines in stream.follow():
                for line in lines:
                    yield line
        finally:
            if watch is not None:
                watch.cancel()
            stream.close()
            await asyncio.shield(stream.over.wait())  # this replica is not free before the device is

    def __del__(self) -> None:
        self._backend.close()


async def _cancel_with(reader: str, cancel: threading.Event) -> None:
    """Set ``cancel`` when the actor ``reader`` no longer exists: Ray does not end the calls of a lost actor."""
    while True:
        await asyncio.sleep(FACE_CHECKED_S)
        try:
            await asyncio.to_thread(ray.get_actor, reader, namespace=NAMESPACE)
        except ValueError:
            cancel.set()
            return
        except RayError:  # the cluster did not answer: ask again
            continue


class RayBackend(Backend):
    """A :class:`~decoding.backends.base.Backend` over the replicas of ``Device``; Ray chooses which one runs what.

    ``reader``: the name of the actor that uses it, whose runs are ended if it is lost; "" if it is none.
    """

    def __init__(self, devices: DeploymentHandle, grant: Grant, reader: str = "") -> None:
        self._grant, self._reader = grant, reader
        self._work = devices.options(method_name="work", stream=True)
        self._lock = threading.Lock()
        self._runs: dict[str, bool] = {}  # in the order in which they came: whether they have a device

    def status(self) -> str:
        with self._lock:
            waiting = len(self._waiting())
            return f"Runs on a Ray cluster; {len(self._runs) - waiting} runs are in progress, {waiting} waiting."

    def _run(self, kind: str, options: dict[str, Any], cancel: threading.Event, run: str) -> RawEvents:
        with self._lock:
            place = len(self._waiting())
            self._runs[run] = False
        lines: DeploymentResponseGenerator | None = None
        try:
            yield "queued", {"place": place}
            # In a context of its own: Serve cancels a call that still waits when the request that it belongs to is cut.
            lines = Context().run(self._work.remote, kind, options, run, self._reader)
            yield from self._events_of(lines, run, cancel)
        except BackPressureError as error:
            raise UserError(FULL) from error
        except (RayError, RayServeException, asyncio.CancelledError) as error:
            raise UserError(LOST) from error
        finally:
            with self._lock:
                del self._runs[run]
            if lines is not None:
                with suppress(RayError, RayServeException):  # with which it has ended: it is raised once more
                    lines.cancel()

    def _events_of(self, lines: Iterable[str], run: str, cancel: threading.Event) -> RawEvents:
        """The device's events up to the last one, preceded by the run's place in the queue."""
        place = None
        for came in apart(lambda: lines, "ray-reader", POLL_S):
            if cancel.is_set():
                raise Cancelled
            with self._lock:
                self._runs[run] = self._runs[run] or bool(came)
                now = place if self._runs[run] else self._waiting().index(run)
            if now != place:
                place = now
                yield "queued", {"place": now}
            for event in map(event_from_json, came):
                if event.kind != "queued":
                    yield event.kind, event.data
        raise UserError(LOST)  # the stream ended without a last event

    def _waiting(self) -> list[str]:
        """The runs without a device, in the order in which they came (lock held)."""
        return [run for run, has_device in self._runs.items() if not has_device]


@serve.deployment(
    max_ongoing_requests=MOST_STREAMS,
    num_replicas=1,
    graceful_shutdown_timeout_s=2,
    ray_actor_options={"num_cpus": 0, "resources": {HEAD: 0.001}},  # a node that is lost takes only its own runs along
)
@serve.ingress()
class Face:
    """The HTTP side: the same application as on one machine."""

    def __init__(self, devices: DeploymentHandle, options: Options) -> None:
        self._devices, self._options = devices, options

    def __serve_build_asgi_app__(self) -> Any:
        options = self._options
        limits = Limits(
            max_runs=options.max_waiting + (options.replicas or options.most),
            any_model=options.any_model,
            grace_s=options.grace_s,
            heartbeat_s=HEARTBEAT_S,
        )
        reader = ray.get_runtime_context().get_actor_name() or ""
        return create_app(RayBackend(self._devices, options.grant, reader), _token(options), limits)


def application(args: dict[str, Any]) -> serve.Application:
    """The Serve application; ``import_path: decoding.backends.ray_serve:application`` of a configuration file.

    ``args`` are fields of Options. Raises UserError for invalid options, and for an application open to everyone.
    """
    try:
        options = TypeAdapter(Options).validate_python(args)
    except ValidationError as error:
        raise UserError(f"These are not the options of a cluster: {first_fault(error)}") from error
    if not (_token(options) or options.insecure):
        raise UserError(
            "Anyone who reaches this cluster could run comparisons: set SPECULOSCOPE_TOKEN on every node before "
            "ray start, or insecure: true in the file if that is intended."
        )
    return build(options)


def _token(options: Options) -> str:
    return options.token or os.environ.get("SPECULOSCOPE_TOKEN", "")


def build(options: Options) -> serve.Application:
    """The HTTP side over its devices. Raises UserError for invalid options."""
    if options.replicas is not None and options.replicas < 1 or not 1 <= options.least <= options.most:
        raise UserError("A cluster needs at least one replica, and --most-replicas no fewer than it starts with.")
    if options.max_waiting < 1:
        raise UserError("On a cluster at least one run can wait: give --max-waiting 1 or more.")
    number: dict[str, Any] = {"num_replicas": options.replicas}
    if options.replicas is None:
        bounds = {"min_replicas": options.least, "max_replicas": options.most}
        number = {"autoscaling_config": {**bounds, "target_ongoing_requests": 1, "upscale_delay_s": MORE_AFTER_S}}
    # mypy does not see what the decorators make of the classes.
    device, face = cast("serve.Deployment", Device), cast("serve.Deployment", Face)
    devices = device.options(
        max_ongoing_requests=1,
        max_queued_requests=options.max_waiting,
        graceful_shutdown_timeout_s=DRAIN_S,
        health_check_period_s=5,
        ray_actor_options={"num_cpus": options.cpus, "num_gpus": options.gpus},
        **number,
    )
    return face.bind(devices.bind(options.grant, options.any_model), options)


def start(options: Options, host: str, port: int, address: str = "") -> None:
    """Start the application at ``host``:``port`` of the cluster at ``address`` ("": a local one). Raises UserError."""
    open_cluster(host, port, address)
    if not address:
        check_room(options)
    deploy(options)


def open_cluster(host: str, port: int, address: str = "") -> None:
    """Join or start a cluster whose applications are reached at ``host``:``port``. Raises UserError."""
    if address:
        join_cluster(address)
    else:
        start_cluster()
    try:
        serve.start(proxy_location="HeadOnly", http_options={"host": host, "port": port})
    except (RayError, RayServeException, TimeoutError) as error:
        why = first_line(error)
        raise UserError(f"Ray Serve did not start to listen on {host}:{port} ({why}): try again.") from error


def check_room(options: Options) -> None:
    """Raises UserError for more replicas than the cluster has processors: Ray would wait for other machines to join."""
    found, wanted = ray.cluster_resources(), options.replicas or options.least
    for kind, each in (("CPU", options.cpus), ("GPU", options.gpus)):
        if wanted * each > found.get(kind, 0):
            raise UserError(
                f"{wanted} replicas with {each:g} {kind} each do not fit on this machine, which has "
                f"{found.get(kind, 0):g}: choose fewer, or name a larger cluster with --address."
            )


def deploy(options: Options, name: str = APPLICATION, route: str = "/") -> None:
    """Run the application, under the path ``route``; returns when its replicas are there. Raises UserError."""
    serve.run(build(options), name=name, route_prefix=route)


def cluster_address() -> str:
    """Where other processes reach the cluster that this one has joined."""
    return ray.get_runtime_context().gcs_address


class Replicas:
    """The devices of the application that runs on the cluster at ``address``, for work other than visitors' runs.

    ``backend`` hands them jobs, in one line with the visitors'. Raises UserError where there is no such application.
    """

    def __init__(self, address: str) -> None:
        join_cluster(address)
        self._address = address
        if self.running() == 0:
            raise UserError(f"No replica runs on the Ray cluster at {address} yet: try again in a moment.")
        self.backend = RayBackend(serve.get_deployment_handle(DEVICE, APPLICATION), Grant())

    def running(self) -> int:
        """How many run now. Raises UserError where the application is not, or no longer, there."""
        try:
            states = serve.status().applications[APPLICATION].deployments[DEVICE].replica_states
        except (KeyError, RayServeException) as error:
            raise UserError(
                f"Speculoscope does not run on the Ray cluster at {self._address}: start it with "
                "python -m decoding serve --ray."
            ) from error
        return states.get("RUNNING", 0)

    def close(self) -> None:
        """Leave the cluster, which keeps running."""
        ray.shutdown()


def stop() -> None:
    """Stop the application that :func:`start` started."""
    serve.shutdown()
    ray.shutdown()


def start_cluster() -> None:
    """Start a cluster of this machine. Ray gives up after 30 s, within which a busy machine may not do it.

    Its workers get the usual priority, not Ray's low one: other programs would show in the times.
    """
    os.environ.setdefault("RAY_worker_niceness", "0")
    os.environ.setdefault("RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S", "60")  # after Ray's 5 s it kills one that starts
    os.environ.setdefault("RAY_SERVE_CONTROL_LOOP_INTERVAL_S", "0.5")  # Ray's 0.1 s take 2% of a core, here a device's
    for left in reversed(range(ATTEMPTS)):
        try:
            return join_cluster("local", include_dashboard=False)
        except UserError:
            if not left:
                raise


def join_cluster(address: str, **options: Any) -> None:
    """Make this process one of the cluster's, unless it is one. Raises UserError."""
    if ray.is_initialized():
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    runtime_env = {"env_vars": {"PYTHONPATH": str(ROOT)}}
    try:
        host, _, port = address.rpartition("/")[2].rpartition(":")
        if host:
            socket.create_connection((host.strip("[]"), int(port)), ANSWER_S).close()
        ray.init(address=address, log_to_driver=False, runtime_env=runtime_env, configure_logging=False, **options)
    except Exception as error:  # of any kind: one that does not start in time raises a bare Exception
        ray.shutdown()  # what has started
        if address == "local":
            raise UserError(f"No Ray cluster starts on this machine ({first_line(error)}).") from error
        raise UserError(
            f"No Ray cluster answers at {address} ({first_line(error)}): start one there (ray start --head), or give "
            "another address."
        ) from error
