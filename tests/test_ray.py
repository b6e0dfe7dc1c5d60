"""Ray Serve over two replicas of the tiny pair, on a local cluster.

Needs ray, which the other tests do without (requirements-ray.txt): where it is missing, these are counted as not run.
"""

from __future__ import annotations

import itertools
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from decoding.backends.remote import RemoteBackend
from decoding.backends.spread import evaluate_spread
from decoding.cli.serve import free_port
from decoding.errors import UserError
from decoding.evaluation.options import EvaluationOptions
from decoding.records.request import CompareRequest

from .fakes import check_stream
from .tiny_pair import make_tiny_pair
from .waiting import wait_until

ray = pytest.importorskip("ray", reason="not run: ray is not installed (requirements-ray.txt)")
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """(address, target, draft) of two replicas."""
    from decoding.backends import ray_serve

    target, draft = make_tiny_pair(tmp_path_factory.mktemp("pair"))
    port = free_port()
    ray_serve.start(ray_serve.Options(replicas=2, most=2, max_waiting=3, any_model=True), "127.0.0.1", port)
    yield f"http://127.0.0.1:{port}", target, draft
    ray_serve.stop()


def ask(cluster, number: int = 0, cancel: threading.Event | None = None, **changes) -> list:
    url, target, draft = cluster
    settings = {"lanes": ["autoregressive", "static:3"], "max_new_tokens": 16, "repeats": 1, **changes}
    request = CompareRequest(f"def f{number}(x):", target=target, draft=draft, **settings)
    remote = RemoteBackend(url, patience_s=120)
    try:
        return list(remote.compare(request, cancel or threading.Event()))
    finally:
        remote.close()


def test_each_visitor_gets_the_own_run(cluster):
    with ThreadPoolExecutor(2) as visitors:
        results = list(visitors.map(lambda number: ask(cluster, number), range(6)))
    for number, events in enumerate(results):
        check_stream(events)
        assert events[-1].kind == "finished", events[-1].data
        run = events[-1].data["run"]
        assert run["settings"]["prompt"] == f"def f{number}(x):" and run["id"] == events[0].run


def test_too_many_are_told_and_the_line_is_told_its_places(cluster):
    cancel = threading.Event()
    with ThreadPoolExecutor(8) as visitors:
        asked = [visitors.submit(ask, cluster, i, cancel, max_new_tokens=1500, repeats=20) for i in range(8)]
        wait_until(lambda: any(one.done() for one in asked), 120)  # those for which there was no place
        cancel.set()
        results = [one.result(120) for one in asked]
    ends = [events[-1] for events in results]
    assert "cancelled" in {event.kind for event in ends}
    refused = [event.data["message"] for event in ends if event.kind == "failed"]
    assert refused and all("try again soon" in sentence for sentence in refused)
    assert ask(cluster)[-1].kind == "finished"  # and the devices are free again


def test_a_lost_replica_is_a_sentence_and_the_next_run_works(cluster):
    url, target, draft = cluster
    remote = RemoteBackend(url, patience_s=120)
    request = CompareRequest("x", target=target, draft=draft, lanes=["autoregressive"], max_new_tokens=1500, repeats=20)
    stream = remote.compare(request, threading.Event())
    events = list(itertools.takewhile(lambda event: event.kind != "iterations", stream))
    for actor in ray.util.list_named_actors(all_namespaces=True):
        if "#Device#" in actor["name"]:
            ray.kill(ray.get_actor(**actor))
    events += stream
    assert events[-1].kind == "failed" and "was lost" in events[-1].data["message"]
    assert "started" in [event.kind for event in events]  # what had arrived
    wait_until(lambda: ask(cluster)[-1].kind == "finished", 240)
    remote.close()


def test_an_evaluation_spreads_over_the_replicas(cluster, tmp_path):
    from decoding.backends.ray_serve import Replicas, cluster_address

    _, target, draft = cluster
    replicas = Replicas(cluster_address())
    wait_until(lambda: replicas.running() == 2, 240)
    options = EvaluationOptions(
        target=target,
        draft=draft,
        suite="code",
        limit=4,
        validation_limit=2,
        lanes=["static:3"],
        max_new_tokens=8,
        clock_prompts=4,
        repeats=1,
    )
    *_, result = evaluate_spread(replicas.backend, replicas.running, options, tmp_path)
    assert sum(result.setting.prompts.values()) == 4 and result.texts_equal[0] == result.texts_equal[1] > 4
    assert f"{socket.gethostname()} (2)" in result.setting.notes[-1]


@pytest.mark.parametrize("args", [{"replicas": 0}, {"least": 3, "most": 2}, {"nonsense": 1}])
def test_a_cluster_that_cannot_be_is_a_sentence(args):
    from decoding.backends.ray_serve import application

    with pytest.raises(UserError):
        application(args)
