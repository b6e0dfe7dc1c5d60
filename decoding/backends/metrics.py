"""The Prometheus metrics of ``serve``, under vLLM's names where vLLM has a metric for the same thing.

vLLM's request corresponds to a lane's repeat: one decoding of one prompt. Metrics without a counterpart begin with
``speculoscope:``. https://docs.vllm.ai/en/latest/usage/metrics.html
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from ..lookahead.lanes import parse_lane
from ..records.events import Event

SECONDS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)
PLACES = 20  # positions of an iteration whose acceptance is counted separately
LANE = ("model_name", "draft", "policy")


class Metrics:
    """Counts the events of runs. Safe to use from several threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.registry = registry = CollectorRegistry()

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(name, text, labels, registry=registry)

        def histogram(name: str, text: str, *labels: str) -> Histogram:
            return Histogram(name, text, labels, buckets=SECONDS, registry=registry)

        self.waiting = Gauge("vllm:num_requests_waiting", "Runs that wait in the queue.", registry=registry)
        self.running = Gauge("vllm:num_requests_running", "Runs that have started.", registry=registry)
        self.queue_s = histogram("vllm:request_queue_time_seconds", "Seconds that a run waited in the queue.")
        self.run_s = histogram("vllm:e2e_request_latency_seconds", "Seconds of a whole run, the queue included.")
        self.decode_s = histogram("vllm:request_decode_time_seconds", "Decode time of one repeat of a lane.", *LANE)
        self.tokens = counter("vllm:generation_tokens", "Tokens emitted.", *LANE)
        self.drafts = counter("vllm:spec_decode_num_drafts", "Iterations that drafted anything.", *LANE)
        self.drafted = counter("vllm:spec_decode_num_draft_tokens", "Tokens drafted.", *LANE)
        self.accepted = counter("vllm:spec_decode_num_accepted_tokens", "Drafted tokens accepted.", *LANE)
        self.accepted_at = counter(
            "vllm:spec_decode_num_accepted_tokens_per_pos",
            "Drafted tokens accepted, by their place in the iteration.",
            "model_name",
            "draft",
            "position",
        )
        self.outcomes = counter("speculoscope:runs", "Runs by how they ended.", "outcome")
        self.stage_s = histogram("speculoscope:stage_seconds", "Seconds that a run spent in a stage.", "stage")

    def text(self) -> bytes:
        """All of it in Prometheus' text format."""
        return generate_latest(self.registry)

    def refuse(self) -> None:
        """A run was refused before it was queued."""
        self.outcomes.labels("refused").inc()

    def watched(self, events: Iterator[Event]) -> Iterator[Event]:
        """``events`` of a run to its last one, counted on their way."""
        watch = _Watch(self)
        try:
            for event in events:
                watch.see(event)
                if event.is_last:  # counted before a reader has it
                    break
                yield event
        finally:
            watch.end()
        yield event


class _Watch:
    """One run, seen through its events."""

    def __init__(self, metrics: Metrics) -> None:
        self.metrics = metrics
        self.begun = self.since = metrics.clock()  # ``since``: when the stage began
        self.stage = ""  # "": no event yet
        self.outcome = "abandoned"  # unless its events are read to the end
        self.lanes: list[tuple[str, str, str]] = []  # labels by lane

    def see(self, event: Event) -> None:
        data = event.data
        match event.kind:
            case "queued" if not self.stage:
                self.metrics.waiting.inc()
                self._enter("queue")
            case "progress":
                self._enter(str(data.get("stage", "")) or "other")
            case "started":
                name, default = data["pair"]["name"], data["pair"]["default_draft"]
                lanes = map(parse_lane, data["lanes"])
                self.lanes = [(name, lane.draft_in(default) or "", lane.policy) for lane in lanes]
            case "lane_started":
                self._enter("lanes")
            case "iterations":
                for item in data["items"]:
                    fates = [fate for _, fate in item["d"]]
                    self._count(self.lanes[data["lane"]], fates, item["e"] is not None)
            case "lane_finished":
                self.metrics.decode_s.labels(*self.lanes[data["lane"]]).observe(data["decode_s"])
            case "finished" | "cancelled":
                self.outcome = event.kind
            case "failed":
                self.outcome = "failed" if self.stage else "refused"

    def end(self) -> None:
        """The last event, or the reader's departure."""
        if self.stage:
            self._enter("")
            self.metrics.run_s.observe(self.metrics.clock() - self.begun)
        self.metrics.outcomes.labels(self.outcome).inc()

    def _enter(self, stage: str) -> None:
        """Another stage begins, and the one before it is over."""
        now = self.metrics.clock()
        if stage == self.stage:
            return
        if self.stage == "queue":
            self.metrics.waiting.dec()
            self.metrics.queue_s.observe(now - self.since)
        elif self.stage:
            self.metrics.stage_s.labels(self.stage).observe(now - self.since)
        was_running, is_running = self.stage not in ("", "queue"), stage not in ("", "queue")
        self.metrics.running.inc(is_running - was_running)
        self.stage, self.since = stage, now

    def _count(self, labels: tuple[str, str, str], fates: list[str], emitted: bool) -> None:
        held = fates.count("accepted")
        self.metrics.tokens.labels(*labels).inc(held + emitted)
        if not fates:
            return
        self.metrics.drafts.labels(*labels).inc()
        self.metrics.drafted.labels(*labels).inc(len(fates))
        self.metrics.accepted.labels(*labels).inc(held)
        for place in range(min(held, PLACES)):
            self.metrics.accepted_at.labels(*labels[:2], str(place)).inc()
