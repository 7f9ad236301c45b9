"""A node among whose pods are the oddest an API server stores: the others run, and the agent goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from pykubelet.api.stored import decode_stored
from pykubelet.api.types import Pod
from tests.odd_objects import OddObjects
from tests.scenarios.cluster_node import a_cluster_node

EACH = 10


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_good_pods_between_odd_ones_run(tmp_path: Path, seed: int) -> None:
    objects = OddObjects(seed)
    async with a_cluster_node(tmp_path) as node:
        await node.until(node.is_ready)
        for number in range(EACH):
            node.api.add(decode_stored(Pod, objects.odd("Pod", f"odd{number}", number).encode()))
            node.bind(f"good{number}")
        await node.until(lambda: all(node.phase(f"good{number}") == "Running" for number in range(EACH)))
        for number in range(EACH):
            await node.api.delete(Pod, f"odd{number}", "ns", grace_seconds=1)
        await node.until(lambda: not any(node.api.find(Pod, f"odd{number}", "ns") for number in range(EACH)))
        assert all(node.phase(f"good{number}") == "Running" for number in range(EACH))
