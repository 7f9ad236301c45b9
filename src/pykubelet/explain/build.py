"""Builds the explainer of this node."""

from __future__ import annotations

from pykubelet.clients.kube.port import KubeClient, Unreadable
from pykubelet.context import Context
from pykubelet.explain.conditions import WhyNotReady
from pykubelet.explain.service import Explainer, Runtime
from pykubelet.pods.table import PodTable
from pykubelet.recorder import LifeEntry, Outcome, Step
from pykubelet.status.manager import StatusManager
from pykubelet.volumes.manager import VolumeManager


def build(
    ctx: Context,
    client: KubeClient | None,
    *,
    table: PodTable,
    statuses: StatusManager,
    volumes: VolumeManager,
    runtime: Runtime,
) -> Explainer:
    """What answers `explain`. From now on statuses say why their pods are not ready."""

    def unreadable() -> list[Unreadable]:
        return [each for each in client.unreadable.now() if each.kind == "Pod"] if client is not None else []

    explainer = Explainer(
        ctx,
        table=table,
        volumes=volumes,
        runtime=runtime,
        unreadable=unreadable,
    )
    statuses.explained = WhyNotReady(ctx, explainer)

    def volume_failed(uid: str, entry: LifeEntry) -> None:
        # A sync waits for volumes for minutes; any other failure ends it, and the next one sets a status.
        if entry.step is Step.VOLUMES and entry.outcome is Outcome.FAILED:
            statuses.explain_again(uid)

    ctx.recorder.listen(volume_failed)
    return explainer
