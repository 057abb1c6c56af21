"""Metrics: this node in Prometheus's text format. Counters and gauges are read when asked, stages are observed."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from importlib.metadata import version as version_of
from typing import Final

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.metrics_core import Metric

from .fleet.fleet import Fleet
from .lives import Moment
from .replica import Replica

_BUCKETS_S: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000)


class Metrics:
    """The metrics of one node, in a registry of their own: several nodes may live in one process."""

    def __init__(self, fleet: Fleet, replicas: Mapping[str, Replica]) -> None:
        self._fleet = fleet
        self._replicas = replicas
        self._registry = CollectorRegistry()
        self._stages = Histogram(
            "patchswarm_stage_seconds",
            "From the moment before to this one in a version's life on this node",
            ["stream", "stage"],
            buckets=_BUCKETS_S,
            registry=self._registry,
        )
        self._registry.register(self)

    def observe(self, stream: str, moment: Moment, since_s: float) -> None:
        """Count a moment of a version's life. An `Observer` of `Lives`."""
        if since_s > 0:
            self._stages.labels(stream, moment.value).observe(since_s)

    def text(self) -> bytes:
        """Everything, as Prometheus's text format 0.0.4."""
        return generate_latest(self._registry)

    def describe(self) -> Iterable[Metric]:
        """Nothing: what is collected need not be collected to be registered."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """What the registry asks for."""
        yield InfoMetricFamily("patchswarm", "This daemon", {"version": version_of("patchswarm")})
        yield from self._traffic()
        yield from self._peers()
        yield from self._versions()
        yield from self._places()

    def _traffic(self) -> Iterable[Metric]:
        tally = self._fleet.tally
        for name, help_text, by_scope in (
            ("received", "Sealed bytes fetched from peers", tally.received_bytes),
            ("sent", "Sealed bytes given to peers", tally.sent_bytes),
        ):
            counter = CounterMetricFamily(f"patchswarm_{name}_bytes", help_text, labels=["scope"])
            for scope, size in by_scope.items():
                counter.add_metric([scope], size)
            yield counter
        duplicates = self._fleet.swarm.fetch.duplicate_bytes
        yield CounterMetricFamily("patchswarm_duplicate_bytes", "Bytes fetched that were here already", duplicates)
        failures = CounterMetricFamily(
            "patchswarm_chunk_failures", "Chunks that were not what they were said to be, or not stored", labels=["why"]
        )
        failures.add_metric(["damaged"], tally.damaged_chunks)
        failures.add_metric(["no_room"], tally.unstored_chunks)
        yield failures

    def _peers(self) -> Iterable[Metric]:
        swarm = self._fleet.swarm
        gauge = GaugeMetricFamily("patchswarm_peers", "Other nodes that this one knows", labels=["state"])
        connected = sum(1 for _ in swarm.connected())
        gauge.add_metric(["connected"], connected)
        gauge.add_metric(["known"], max(len(swarm.gossip.nodes) - 1, connected))
        yield gauge

    def _versions(self) -> Iterable[Metric]:
        version = _gauge("version", "Newest committed version")
        head = _gauge("head_version", "Newest announced version")
        lag = _gauge("lag_versions", "Announced versions that are not committed here")
        lag_s = _gauge("lag_seconds", "Since the oldest of them was announced")
        proven = _gauge("proven", "1 when the committed version was held against its digest table")
        failed = _gauge("failed_timestamp_seconds", "When something last went wrong with the stream; 0 for never")
        for stream, replica in self._replicas.items():
            current = replica.current()
            header = self._fleet.swarm.gossip.head_header(stream)
            behind = self._fleet.view.lag(stream, (current.epoch, current.version) if current else None)
            version.add_metric([stream], current.version if current else 0)
            head.add_metric([stream], header.version if header else 0)
            lag.add_metric([stream], behind.versions)
            lag_s.add_metric([stream], behind.seconds)
            proven.add_metric([stream], float(current.proven if current else False))
            failed.add_metric([stream], replica.failure.at if replica.failure else 0)
        yield from (version, head, lag, lag_s, proven, failed)

    def _places(self) -> Iterable[Metric]:
        slots = GaugeMetricFamily("patchswarm_slots", "Slots by what is in them", labels=["stream", "state"])
        leases = _gauge("leases", "Leases that hold slots")
        free = _gauge("disk_free_bytes", "Free where the slots are")
        for stream, replica in self._replicas.items():
            held = replica.slots.slots()
            for state, count in (
                ("committed", sum(not slot.twin and not slot.withdrawn for slot in held)),
                ("twin", sum(slot.twin for slot in held)),
                ("withdrawn", sum(slot.withdrawn for slot in held)),
            ):
                slots.add_metric([stream, state], count)
            leases.add_metric([stream], replica.slots.lease_count())
            free.add_metric([stream], shutil.disk_usage(replica.slots.directory).free)
        yield from (slots, leases, free)


def _gauge(name: str, help_text: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"patchswarm_{name}", help_text, labels=["stream"])
