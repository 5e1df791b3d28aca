"""Prometheus metrics of one service, in their own registry."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 30.0, 120.0)


class ServiceMetrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "env_service_requests", "Requests by route and status.", ["route", "status"], registry=self.registry
        )
        self.calls = Histogram(
            "env_service_call_seconds",
            "Time of calls on environments.",
            ["env", "call"],
            buckets=BUCKETS,
            registry=self.registry,
        )
        self.lost = Counter(
            "env_service_lost_instances", "Instances that were given up.", ["env"], registry=self.registry
        )
        self.open = Gauge("env_service_open_instances", "Instances that hold a slot.", ["env"], registry=self.registry)
        self.workers = Gauge("env_service_workers", "Connected worker processes.", ["env"], registry=self.registry)

    def render(self) -> bytes:
        return generate_latest(self.registry)
