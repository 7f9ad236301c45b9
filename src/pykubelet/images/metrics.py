"""What pulls tell on /metrics: how long they took by size of image, and how often an image was asked for."""

from __future__ import annotations

from typing import Final

from pykubelet.kit.metrics import Registry

MIB: Final = 1024 * 1024
GIB: Final = 1024 * MIB
DURATION_BUCKETS: Final = (1, 5, 10, 20, 30, 60, 120, 180, 240, 300, 360, 480, 600, 900, 1200, 1800, 2700, 3600)
SIZE_LABELS: Final = (
    (100 * GIB, "GT100GB"),
    (60 * GIB, "60GB-100GB"),
    (40 * GIB, "40GB-60GB"),
    (30 * GIB, "30GB-40GB"),
    (20 * GIB, "20GB-30GB"),
    (10 * GIB, "10GB-20GB"),
    (5 * GIB, "5GB-10GB"),
    (1 * GIB, "1GB-5GB"),
    (500 * MIB, "500MB-1GB"),
    (100 * MIB, "100MB-500MB"),
    (10 * MIB, "10MB-100MB"),
    (0, "0-10MB"),
)


def size_label(size_bytes: int) -> str:
    return next((label for above, label in SIZE_LABELS if size_bytes > above), "N/A")


class PullMetrics:
    def __init__(self, registry: Registry) -> None:
        self._seconds = registry.histogram(
            "kubelet_image_pull_duration_seconds",
            "Seconds a pull took, waiting for others included.",
            ("image_size_in_bytes",),
            DURATION_BUCKETS,
        )
        self._requests = registry.counter(
            "kubelet_image_manager_ensure_image_requests_total",
            "How often an image was asked for, by what came of it.",
            ("pull_policy", "present_locally", "pull_required"),
        )

    def asked(self, policy: str, *, present: bool | None, pull: bool | None) -> None:
        """None: the policy does not look, or it did not get so far."""
        self._requests.inc(policy.lower(), _word(present), _word(pull))

    def pulled(self, seconds: float, size_bytes: int) -> None:
        self._seconds.observe(seconds, size_label(size_bytes))


def _word(value: bool | None) -> str:
    return "unknown" if value is None else str(value).lower()
