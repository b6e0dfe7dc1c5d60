"""The Prometheus metrics of a served backend, compared with the run files of the runs that it counted."""

from collections import Counter

import pytest
from prometheus_client.parser import text_string_to_metric_families

from decoding.backends.metrics import Metrics
from decoding.backends.remote import RemoteBackend
from decoding.records.events import Event
from decoding.records.run_file import run_from_dict
from tests import web

from .fakes import compare
from .page_fakes import ScriptedBackend
from .serving import served_at

LANES = ["autoregressive", "static:4", "confidence:0.5"]
HEADERS = {"Authorization": "Bearer s3cret"}


def numbers(text: str) -> dict[tuple[str, ...], float]:
    """(name, label value, ...) -> value of all samples; labels in the order of their names."""
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.fixture(scope="module")
def measured():
    """What /metrics says after two runs and two refusals, one of them of a misnamed run, and one of the runs."""
    with served_at(ScriptedBackend(), token="s3cret") as url:
        remote = RemoteBackend(url, "s3cret")
        finished = [compare(remote, lanes=LANES)[-1] for _ in range(2)]
        assert compare(remote, lanes=["static:x"])[-1].kind == "failed"
        assert web.put(f"{url}/runs/short", headers=HEADERS).status_code == 400
        assert web.get(f"{url}/metrics").status_code == 401
        answer = web.get(f"{url}/metrics", headers=HEADERS)
        remote.close()
    assert answer.headers["content-type"].startswith("text/plain")
    return numbers(answer.text), run_from_dict(finished[0].data["run"])


def test_tokens_times_and_acceptance_are_those_of_the_run_files(measured):
    found, run = measured
    times, by_place = 2 * len(run.lanes[0].repeats), Counter()  # two runs, each with its repeats
    for trace in run.lanes:
        of = (trace.draft or "", "synthetic", trace.policy)
        assert found[("vllm:generation_tokens_total", *of)] == times * len(trace.output)
        assert found[("vllm:request_decode_time_seconds_count", *of)] == times
        seconds = 2 * sum(repeat.decode_s for repeat in trace.repeats)
        assert found[("vllm:request_decode_time_seconds_sum", *of)] == pytest.approx(seconds)
        drafted = [iteration for iteration in trace.iterations if iteration.drafted]
        if drafted:
            n_drafted, accepted = sum(it.n_drafted for it in drafted), sum(it.n_accepted for it in drafted)
            assert found[("vllm:spec_decode_num_drafts_total", *of)] == times * len(drafted)
            assert found[("vllm:spec_decode_num_draft_tokens_total", *of)] == times * n_drafted
            assert found[("vllm:spec_decode_num_accepted_tokens_total", *of)] == times * accepted
            by_place.update(place for it in drafted for place in range(it.n_accepted))
    for place, count in by_place.items():
        name = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
        assert found[name, "shallow", "synthetic", str(place)] == times * count


def test_runs_are_counted_by_how_they_ended(measured):
    found, _ = measured
    assert found["speculoscope:runs_total", "finished"] == found["speculoscope:runs_total", "refused"] == 2
    assert found["vllm:num_requests_running",] == found["vllm:num_requests_waiting",] == 0
    assert found["vllm:e2e_request_latency_seconds_count",] == 2


def test_stages_and_the_line_are_timed():
    now = [0.0]
    metrics = Metrics(clock=lambda: now[0])
    events = [
        (0.0, "queued", {"place": 1}),
        (2.0, "queued", {"place": 0}),
        (5.0, "progress", {"stage": "loading"}),
        (6.0, "progress", {"stage": "loading"}),
        (9.0, "progress", {"stage": "measuring"}),
        (10.0, "cancelled", {}),
    ]
    seen = []
    for event in metrics.watched(Event("r" * 8, seq, kind, data) for seq, (_, kind, data) in enumerate(events)):
        found = numbers(metrics.text().decode())
        seen.append((found["vllm:num_requests_waiting",], found["vllm:num_requests_running",]))
        if not event.is_last:
            now[0] = events[event.seq + 1][0]
    assert seen == [(1, 0), (1, 0), (0, 1), (0, 1), (0, 1), (0, 0)]
    found = numbers(metrics.text().decode())
    assert found["vllm:request_queue_time_seconds_sum",] == 5.0
    assert found["speculoscope:stage_seconds_sum", "loading"] == 4.0
    assert found["speculoscope:stage_seconds_sum", "measuring"] == 1.0
    assert found["vllm:e2e_request_latency_seconds_sum",] == 10.0
    assert found["speculoscope:runs_total", "cancelled"] == 1


def test_a_run_that_nobody_reads_to_its_end_is_counted_as_such():
    metrics = Metrics()
    events = metrics.watched(iter([Event("r" * 8, 0, "queued", {"place": 0}), Event("r" * 8, 1, "cancelled", {})]))
    next(events)
    events.close()
    found = numbers(metrics.text().decode())
    assert found["speculoscope:runs_total", "abandoned"] == 1 and found["vllm:num_requests_waiting",] == 0
