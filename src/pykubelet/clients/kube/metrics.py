"""The request metrics every Kubernetes client has, as an observer for the transport."""

from __future__ import annotations

from pykubelet.clients.kube.transport import CallObserver, WaitObserver
from pykubelet.kit.metrics import Registry

_BUCKETS = (0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0)


def request_metrics(registry: Registry) -> CallObserver:
    """Counts by code and durations by verb, for all clients of one agent together."""
    total = registry.counter(
        "rest_client_requests_total", "Requests to the API server by status code.", ("code", "host", "method")
    )
    seconds = registry.histogram(
        "rest_client_request_duration_seconds", "Duration of requests to the API server.", ("host", "verb"), _BUCKETS
    )

    def observe(method: str, host: str, code: str, duration: float) -> None:
        total.inc(code, host, method)
        seconds.observe(duration, host, method)

    return observe


def wait_metrics(registry: Registry) -> WaitObserver:
    """How long requests waited for their turn before they were sent."""
    seconds = registry.histogram(
        "rest_client_rate_limiter_duration_seconds", "Waiting for the client's own limit.", ("verb", "host"), _BUCKETS
    )
    return lambda method, host, duration: seconds.observe(duration, method, host)
