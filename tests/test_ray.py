"""Ray Serve over two replicas of the tiny pair, on a local cluster.

Needs ray, which the other tests do without (requirements-ray.txt): where it is missing, these are counted as not run.
"""

import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import asdict, dataclass

import pytest

from decoding.backends.remote import RemoteBackend
from decoding.backends.spread import evaluate_spread
from decoding.errors import UserError
from decoding.evaluation.options import EvaluationOptions
from decoding.records.request import CompareRequest, Grant

from . import web
from .fakes import check_stream
from .serving import compare_through_cuts, free_port
from .tiny_models import make_tiny_pair
from .waiting import wait_until

ray = pytest.importorskip("ray", reason="not run: ray is not installed (requirements-ray.txt)")
pytestmark = [pytest.mark.timeout(600), pytest.mark.filterwarnings("ignore:Using extra keyword:DeprecationWarning")]

TOKEN = "s3cret"
HEADERS = {"Authorization": f"Bearer {TOKEN}"}
REQUEST = ContextVar("REQUEST", default="none")  # as Serve keeps the request that is being answered
LANES = ["autoregressive", *(f"static:{n}" for n in range(1, 8))]
LONG = {"lanes": LANES, "max_new_tokens": 1500, "repeats": 20}  # a minute on a fast machine, many on others


@dataclass(frozen=True)
class Cluster:
    """Where an application is, and the models to ask for."""

    port: int
    target: str
    draft: str
    path: str = ""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}{self.path}"

    def request(self, number: int = 0, **changes) -> CompareRequest:
        settings = {"lanes": ["autoregressive", "static:3"], "max_new_tokens": 16, "repeats": 1, **changes}
        return CompareRequest(f"def f{number}(x):", target=self.target, draft=self.draft, **settings)

    def ask(self, number: int = 0, cancel: threading.Event | None = None, **changes) -> list:
        remote = self.remote()
        try:
            return list(remote.compare(self.request(number, **changes), cancel or threading.Event()))
        finally:
            remote.close()

    def remote(self, token: str = TOKEN) -> RemoteBackend:
        return RemoteBackend(self.url, token, patience_s=120)

    def begin(self, run: str, **changes) -> str:
        """Starts a run as any program could; returns the address of its events."""
        body = {"kind": "compare", "options": asdict(self.request(**changes))}
        assert web.put(f"{self.url}/runs/{run}", json=body, headers=HEADERS).status_code == 201
        return f"{self.url}/runs/{run}/events"

    def status(self) -> str:
        return web.get(f"{self.url}/health").json()["backend"]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Two replicas behind a token."""
    from decoding.backends import ray_serve

    target, draft = make_tiny_pair(tmp_path_factory.mktemp("pair"))
    port, behaviour = free_port(), dict(max_waiting=3, token=TOKEN, any_model=True, grace_s=300.0)
    ray_serve.start(ray_serve.Options(replicas=2, most=2, cpus=0.1, **behaviour), "127.0.0.1", port)
    yield Cluster(port, target, draft)
    ray_serve.stop()


@pytest.fixture(scope="module")
def growing(cluster):
    """Beside it, from one to two replicas as visitors need, and little patience with those who do not read."""
    from decoding.backends import ray_serve

    ray_serve.deploy(ray_serve.Options(least=1, most=2, cpus=0.1, any_model=True, grace_s=1.0), "growing", "/growing")
    yield Cluster(cluster.port, cluster.target, cluster.draft, "/growing")
    ray_serve.serve.delete("growing")


@pytest.fixture
def far(cluster):
    """An application on a node of its own beside the cluster's first, and that node's process."""
    from decoding.backends import ray_serve

    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--num-cpus", "1000"]
    node = subprocess.Popen(
        [*command, "--address", ray_serve.cluster_address()],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        wait_until(lambda: ray.cluster_resources().get("CPU", 0) >= 1000, 120)
        ray_serve.deploy(ray_serve.Options(1, most=1, cpus=500, token=TOKEN, any_model=True), "far", "/far")
        yield Cluster(cluster.port, cluster.target, cluster.draft, "/far"), node
    finally:
        end_node(node)
        ray_serve.serve.delete("far", _blocking=False)


def end_node(node: subprocess.Popen) -> None:
    """Ends all processes of a node at once, as a loss of power would."""
    with suppress(ProcessLookupError):
        os.killpg(node.pid, signal.SIGKILL)
    node.wait()


def running(application: str) -> int:
    """How many replicas of ``application`` run."""
    from ray import serve

    states = serve.status().applications[application].deployments["Device"].replica_states
    return states.get("RUNNING", 0)


def read_some(url: str, number: int, start: int = 0) -> list[dict]:
    """The first ``number`` events at ``url`` from ``start`` on; then the connection is broken."""
    events = []
    with web.stream("GET", url, params={"from": start}, headers=HEADERS) as response:
        for line in response.iter_lines():
            events += [event] if (event := json.loads(line))["kind"] != "heartbeat" else []
            if len(events) == number:
                break
    return events


def kill(deployment: str) -> None:
    """Ends all processes of a deployment, as a fault of their machine would."""
    for actor in ray.util.list_named_actors(all_namespaces=True):
        if f"speculoscope#{deployment}#" in actor["name"]:
            ray.kill(ray.get_actor(**actor))


def test_too_many_are_refused_and_the_line_gets_its_places(cluster):
    cancel = threading.Event()
    with ThreadPoolExecutor(8) as visitors:
        asked = [visitors.submit(cluster.ask, i, cancel, **LONG) for i in range(8)]
        wait_until(lambda: any(one.done() for one in asked), 120)  # those for which there was no place
        cancel.set()
        results = [one.result(120) for one in asked]
    places = {event.data["place"] for events in results for event in events if event.kind == "queued"}
    assert {0, 1} <= places
    ends = [events[-1] for events in results]
    assert "cancelled" in {event.kind for event in ends}
    refused = [event.data["message"] for event in ends if event.kind == "failed"]
    assert refused and all("try again soon" in sentence for sentence in refused)
    events = cluster.ask()
    check_stream(events)
    assert events[-1].kind == "finished"  # and the devices are free again
    assert "Runs on a Ray cluster" in cluster.status()


def test_a_broken_connection_goes_on_with_the_replica_that_holds_the_run(cluster):
    url = cluster.begin("resumed-over-ray")
    events = read_some(url, 3) + read_some(url, 1000, start=3)
    assert [event["seq"] for event in events] == list(range(len(events))) and len(events) > 6
    assert events[-1]["kind"] == "finished" and {event["run"] for event in events} == {"resumed-over-ray"}
    unknown = web.get(f"{cluster.url}/runs/nobodys-run/events", headers=HEADERS)
    assert unknown.status_code == 404 and "does not know this run" in unknown.json()["message"]


def test_connections_cut_at_random_lose_and_mix_nothing(cluster):
    requests = [cluster.request(number, max_new_tokens=64) for number in range(4)]
    assert compare_through_cuts(cluster.url, requests, TOKEN) > 1


def test_a_run_does_not_belong_to_the_request_that_began_it_and_a_full_queue_is_a_sentence():
    """Serve cancels a call that waits for a replica when the connection of its request is cut."""
    from decoding.backends.ray_serve import RayBackend

    asked_within = []

    class Handle:
        def options(self, **options):
            return self

        def remote(self, *arguments):
            asked_within.append(REQUEST.get())
            return Refused()

    class Refused:
        """As Serve's response to a call for which its queue has no place."""

        def __iter__(self):
            raise ray.serve.exceptions.BackPressureError(num_queued_requests=1, max_queued_requests=1)

        cancel = __iter__

    REQUEST.set("the request that began it")
    *_, last = RayBackend(Handle(), Grant()).compare(CompareRequest("a prompt"), threading.Event(), "a-run")
    assert last.kind == "failed" and "the queue is full" in last.data["message"]
    assert asked_within == ["none"]


def test_a_lost_replica_is_a_sentence_and_the_next_run_works(cluster):
    remote = cluster.remote()
    stream = remote.compare(cluster.request(**LONG), threading.Event())
    events = list(itertools.takewhile(lambda event: event.kind != "iterations", stream))
    kill("Device")
    events += stream
    assert events[-1].kind == "failed" and "was lost" in events[-1].data["message"]
    assert "started" in [event.kind for event in events]  # what had arrived
    wait_until(lambda: cluster.ask()[-1].kind == "finished", 240)
    remote.close()


def test_a_lost_node_takes_its_own_run_along_and_no_other(cluster, far):
    there, node = far
    cancel, remotes = threading.Event(), [cluster.remote(), there.remote()]
    streams = [one.compare(cluster.request(**LONG), cancel) for one in remotes]
    here, lost = [list(itertools.takewhile(lambda event: event.kind != "iterations", stream)) for stream in streams]
    end_node(node)
    lost += streams[1]
    assert lost[-1].kind == "failed" and "was lost" in lost[-1].data["message"]
    assert "started" in [event.kind for event in lost]  # what had arrived
    cancel.set()
    here += streams[0]
    assert here[-1].kind == "cancelled"  # until then it went on
    for one in remotes:
        one.close()


def test_an_evaluation_spreads_over_the_replicas(cluster, tmp_path):
    from decoding.backends.ray_serve import Replicas, cluster_address

    replicas = Replicas(cluster_address())
    wait_until(lambda: replicas.running() == 2, 240)
    options = EvaluationOptions(
        target=cluster.target,
        draft=cluster.draft,
        suite="code",
        limit=4,
        validation_limit=2,
        lanes=["static:3"],
        max_new_tokens=8,
        clock_prompts=4,
        repeats=1,
    )
    *_, result = evaluate_spread(replicas.backend, replicas.running, options, tmp_path, threading.Event())
    same = result.find("clock_texts_equal")
    assert sum(result.setting.prompts.values()) == 4 and same.value == same.n > 4
    assert f"{socket.gethostname()} (2)" in result.setting.notes[-1]


def test_a_lost_face_is_a_sentence_and_frees_the_devices(cluster):
    """The HTTP side is one process: its runs are gone with it, and the devices must not go on with them."""
    remote = cluster.remote()
    streams = [remote.compare(cluster.request(number, **LONG), threading.Event()) for number in range(2)]
    events = [list(itertools.takewhile(lambda event: event.kind != "iterations", stream)) for stream in streams]
    kill("Face")
    for one, stream in zip(events, streams):
        one += stream
        assert one[-1].kind == "failed" and "again" in one[-1].data["message"]
    wait_until(lambda: cluster.ask()[-1].kind == "finished", 240)
    remote.close()


def test_a_visitor_who_vanishes_frees_the_replica(growing):
    assert read_some(growing.begin("vanished-run", **LONG), 3)
    wait_until(lambda: "0 runs are in progress, 0 waiting" in growing.status(), 120)
    assert growing.ask()[-1].kind == "finished" and running("growing") == 1


def test_replicas_are_added_as_visitors_need_up_to_the_bound(growing):
    cancel = threading.Event()
    with ThreadPoolExecutor(3) as visitors:
        asked = [visitors.submit(growing.ask, number, cancel, **LONG) for number in range(3)]
        wait_until(lambda: running("growing") == 2, 240)
        wait_until(lambda: "2 runs are in progress, 1 waiting" in growing.status(), 240)
        cancel.set()
        assert {one.result(120)[-1].kind for one in asked} == {"cancelled"}
    assert running("growing") == 2


@pytest.mark.parametrize("options, part", [({"replicas": 99}, "99 replicas with 1 CPU"), ({"gpus": 64}, "64 GPU")])
def test_more_replicas_than_the_machine_has_room_for_are_a_sentence(cluster, options, part):
    from decoding.backends.ray_serve import Options, check_room

    check_room(Options(replicas=1))
    with pytest.raises(UserError, match=part):
        check_room(Options(**options))


def test_a_port_on_which_ray_does_not_listen_in_time_is_a_sentence(cluster, monkeypatch):
    from decoding.backends import ray_serve

    def late(**options):
        raise TimeoutError("HTTP proxies not available after 60s.")

    monkeypatch.setattr(ray_serve.serve, "start", late)
    with pytest.raises(UserError, match=r"listen on 127.0.0.1:1 \(HTTP proxies not available"):
        ray_serve.open_cluster("127.0.0.1", 1)


WRONG = [{"replicas": 0}, {"least": 3, "most": 2}, {"max_waiting": 0}, {"nonsense": 1}, {"replicas": "two"}]


@pytest.mark.parametrize("args", [*WRONG, {"grant": {"nonsense": 1}}])
def test_a_cluster_that_cannot_be_is_a_sentence(args):
    from decoding.backends.ray_serve import application

    with pytest.raises(UserError, match="cluster"):
        application({"token": TOKEN, **args})


def test_a_configuration_file_without_a_token_is_refused_unless_it_says_so(monkeypatch):
    from decoding.backends.ray_serve import application

    monkeypatch.delenv("SPECULOSCOPE_TOKEN", raising=False)
    with pytest.raises(UserError, match="SPECULOSCOPE_TOKEN"):
        application({})
    assert application({"insecure": True})
    monkeypatch.setenv("SPECULOSCOPE_TOKEN", TOKEN)
    assert application({})


def test_an_address_at_which_nothing_listens_is_a_sentence_at_once(monkeypatch):
    from decoding.backends import ray_serve

    asked = []
    monkeypatch.setattr(ray_serve.ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray_serve.ray, "init", lambda **options: asked.append(options["address"]))
    monkeypatch.setattr(ray_serve.ray, "shutdown", lambda: None)
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
        for address in (f"127.0.0.1:{port}", f"ray://[::1]:{port}", "127.0.0.1:nonsense"):
            with pytest.raises(UserError, match=r"No Ray cluster answers at .* \(.+\): start one there"):
                ray_serve.join_cluster(address)
        bound.listen()
        for address in (f"127.0.0.1:{port}", "auto", "local"):
            ray_serve.join_cluster(address)
    assert asked == [f"127.0.0.1:{port}", "auto", "local"]
