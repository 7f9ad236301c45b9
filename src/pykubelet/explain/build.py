"""Build the explainer of this node."""

from __future__ import annotations

from pykubelet.clients.kube.port import KubeClient, Unreadable
from pykubelet.context import Context
from pykubelet.explain.service import Explainer
from pykubelet.pleg.runtime_state import RuntimeState
from pykubelet.pods.table import PodTable
from pykubelet.volumes.manager import VolumeManager


def build(
    ctx: Context, client: KubeClient | None, *, table: PodTable, volumes: VolumeManager, runtime: RuntimeState
) -> Explainer:
    def unreadable() -> list[Unreadable]:
        return [each for each in client.unreadable.now() if each.kind == "Pod"] if client is not None else []

    return Explainer(ctx, table=table, volumes=volumes, runtime=runtime, unreadable=unreadable)
