"""A whole agent against a fake API server, for the cluster scenarios: pods are bound, deleted and looked at there."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from pykubelet.api.types import Event, Node, Pod, PodStatus
from pykubelet.model.pod import SOURCE_ANNOTATION
from pykubelet.node.conditions import is_ready
from tests.builders import a_pod
from tests.fakes.fake_kube import FakeKube
from tests.harness import NodeHarness


class ClusterHarness(NodeHarness):
    def __init__(self, folder: Path, *flags: str) -> None:
        super().__init__(folder, *flags, cluster=True)

    @property
    def api(self) -> FakeKube:
        assert self.kube is not None
        return self.kube

    def bind(self, name: str = "web", **fields: Any) -> Pod:
        """A pod as the scheduler leaves it."""
        pod = a_pod(name, node_name="node1", **fields)
        del pod.metadata.annotations[SOURCE_ANNOTATION]
        pod.status = PodStatus(phase="Pending")
        return self.api.add(pod)

    def shown(self, name: str = "web") -> Pod | None:
        return self.api.find(Pod, name, "default")

    def phase(self, name: str = "web") -> str | None:
        pod = self.shown(name)
        return pod.status.phase if pod is not None else None

    def api_node(self) -> Node:
        node = self.api.find(Node, "node1")
        assert node is not None
        return node

    def is_ready(self) -> bool:
        node = self.api.find(Node, "node1")
        return node is not None and is_ready(node.status)

    async def delete(self, name: str = "web", *, grace: int | None = None) -> None:
        await self.api.delete(Pod, name, "default", grace_seconds=grace)

    def change(self, pod: Pod, **metadata: Any) -> Pod:
        changed = msgspec.structs.replace(pod.metadata, **metadata)
        return self.api.change(msgspec.structs.replace(pod, metadata=changed))

    def event_reasons(self) -> set[str]:
        return {event.reason or "" for event in self.api.everything(Event)}


@asynccontextmanager
async def a_cluster_node(folder: Path, *flags: str) -> AsyncIterator[ClusterHarness]:
    harness = ClusterHarness(folder, *flags)
    await harness.start()
    try:
        yield harness
        harness.check_records()
    finally:
        await harness.kill()
