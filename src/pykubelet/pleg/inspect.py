"""Reading everything the runtime knows about one pod.

Two filtered listings, then the statuses of what they name, all at once. What cannot change any more (an
ended container, a sandbox in an unchanged state) is taken from the previous reading, so a repeat costs
few calls. Something that vanishes between listing and status is left out.
Does not cover: deadlines, repeats, and what a difference means (pleg.py, diff.py).
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from pykubelet.clients.cri.port import CriClient
from pykubelet.kit.tasks import both, gather_all
from pykubelet.model.errors import NotFound
from pykubelet.model.runtime_status import (
    ContainerRecord,
    ContainerState,
    ContainerStatus,
    NamespaceMode,
    PodRuntimeStatus,
    SandboxRecord,
    SandboxState,
    SandboxStatus,
)

T = TypeVar("T")


class Listing(Struct, frozen=True, kw_only=True):
    """What the listings said about one pod; `started` is the monotonic time before they were requested."""

    started: float
    sandboxes: tuple[SandboxRecord, ...] = ()
    containers: tuple[ContainerRecord, ...] = ()


class Inspection(Struct, frozen=True, kw_only=True):
    status: PodRuntimeStatus
    listing: Listing


async def list_pod(cri: CriClient, uid: str, *, started: float) -> Listing:
    sandboxes, containers = await both(cri.list_pod_sandboxes(pod_uid=uid), cri.list_containers(pod_uid=uid))
    return Listing(started=started, sandboxes=tuple(sandboxes), containers=tuple(containers))


async def inspect_pod(
    cri: CriClient,
    uid: str,
    *,
    started: float,
    before: PodRuntimeStatus | None = None,
    listing: Listing | None = None,
) -> Inspection:
    """Read the pod in full. `started` is now; a `listing` at hand saves the listing calls."""
    listed = listing or await list_pod(cri, uid, started=started)
    sandboxes: list[SandboxStatus] = []
    containers: list[ContainerStatus] = []
    calls: list[Coroutine[Any, Any, None]] = []
    old_sandboxes = {s.id: s for s in before.sandboxes} if before else {}
    old_containers = {c.id: c for c in before.containers} if before else {}
    for record in listed.sandboxes:
        known = old_sandboxes.get(record.id)
        if known is not None and is_settled_sandbox(known, record):
            sandboxes.append(known)
        else:
            calls.append(_ask(cri.pod_sandbox_status, record.id, sandboxes))
    for item in listed.containers:
        ended = old_containers.get(item.id)
        if ended is not None and is_settled_container(ended, item):
            containers.append(ended)
        else:
            calls.append(_ask_container(cri, item, containers))
    if len(calls) == 1:
        await calls[0]
    else:
        await gather_all(*calls)
    return Inspection(status=assemble(uid, listed, sandboxes, containers, before), listing=listed)


def is_settled_container(known: ContainerStatus, record: ContainerRecord) -> bool:
    """An ended container never changes again."""
    return known.state is ContainerState.EXITED and record.state is ContainerState.EXITED


def is_settled_sandbox(known: SandboxStatus, record: SandboxRecord) -> bool:
    """A sandbox keeps what it got when it was made; only one still without its address is worth calls again."""
    if known.state is not record.state:
        return False
    return known.state is SandboxState.NOT_READY or bool(known.ips) or known.network_mode is NamespaceMode.NODE


def assemble(
    uid: str,
    listing: Listing,
    sandboxes: Sequence[SandboxStatus],
    containers: Sequence[ContainerStatus],
    before: PodRuntimeStatus | None,
) -> PodRuntimeStatus:
    """Order what was read, newest first, and settle the pod's name and addresses."""
    boxes = tuple(sorted(sandboxes, key=lambda s: (s.attempt, s.created_at, s.id), reverse=True))
    records: list[SandboxRecord | ContainerRecord] = [*listing.sandboxes, *listing.containers]
    named = next(((r.pod_name, r.pod_namespace) for r in records if r.pod_name), None)
    name, namespace = named or ((before.name, before.namespace) if before else ("", ""))
    return PodRuntimeStatus(
        uid=uid,
        name=name,
        namespace=namespace,
        ips=pod_ips(boxes, before),
        sandboxes=boxes,
        containers=tuple(sorted(containers, key=lambda c: (c.attempt, c.created_at, c.id), reverse=True)),
        observed_at=listing.started,
    )


def pod_ips(sandboxes: Sequence[SandboxStatus], before: PodRuntimeStatus | None) -> tuple[str, ...]:
    """Addresses of the newest sandbox while it is ready; a pod without any ready one keeps its last ones."""
    if sandboxes and sandboxes[0].state is SandboxState.READY:
        return sandboxes[0].ips
    if before is None or any(s.state is SandboxState.READY for s in sandboxes):
        return ()
    return before.ips


async def _ask(call: Callable[[str], Coroutine[Any, Any, T]], id: str, found: list[T]) -> None:
    try:
        found.append(await call(id))
    except NotFound:
        return  # removed since it was listed


async def _ask_container(cri: CriClient, record: ContainerRecord, found: list[ContainerStatus]) -> None:
    try:
        status = await cri.container_status(record.id)
    except NotFound:
        return
    # The CRI's status message does not name the sandbox; the listing does.
    found.append(status if status.sandbox_id else replace(status, sandbox_id=record.sandbox_id))
