"""emptyDirs in huge pages: where the page size comes from; and the size of devices."""

from __future__ import annotations

from pathlib import Path

import pytest

from pykubelet.api.types import Pod, ResourceRequirements
from pykubelet.volumes.errors import VolumeProblem
from pykubelet.volumes.plugins.empty_dir import page_size
from pykubelet.volumes.usage import device_bytes
from tests.builders import a_container, a_pod


def asking(pod: str, container: str = "") -> Pod:
    """A pod that requests pages of one size at pod level and of others in its container."""
    own = ResourceRequirements(requests={f"hugepages-{container}": "1Gi"}) if container else None
    whole = ResourceRequirements(requests={f"hugepages-{pod}": "1Gi"})
    return a_pod(containers=[a_container(resources=own)], resources=whole)


@pytest.mark.parametrize(
    ("pod", "medium", "size"),
    [
        (asking("2Mi"), "HugePages", "2Mi"),
        (asking("2Mi", "2Mi"), "HugePages", "2Mi"),
        (asking("1Gi"), "HugePages-1Gi", "1Gi"),
        (asking("1Gi", "2Mi"), "HugePages-2Mi", "2Mi"),
    ],
)
def test_pages_that_the_pod_asks_for_as_a_whole_count(pod: Pod, medium: str, size: str) -> None:
    assert page_size(pod, medium) == size


def test_pages_of_two_sizes_are_ambiguous() -> None:
    with pytest.raises(VolumeProblem, match="ambiguous"):
        page_size(asking("1Gi", "2Mi"), "HugePages")


def test_only_devices_have_a_size() -> None:
    assert device_bytes(Path("/dev/null")) is None
    assert device_bytes(Path("/dev/not there")) is None
    assert device_bytes(Path("/proc/self/stat")) is None
