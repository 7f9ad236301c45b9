"""Registers the Node and keeps its status current at the API server.

A status is computed every few seconds and at once on request; it is sent when something changed, or when the last
report is long past. Until the node was ready once, readiness is checked ten times a second, so that the first Ready
is sent as soon as it is true. Does not cover what a status holds (setters.py) nor the heartbeat (lease.py).
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from msgspec import Struct, field

from pykubelet.api.types import Node, NodeStatus
from pykubelet.clients.kube.port import KubeClient, PatchType
from pykubelet.context import Context
from pykubelet.kit.backoff import Backoff, jittered
from pykubelet.kit.clock import Clock
from pykubelet.kit.metrics import Registry
from pykubelet.kit.tasks import Wakeup
from pykubelet.model.errors import ApiAlreadyExists, ApiDown, ApiError, ApiNotFound, CriError, Forbidden
from pykubelet.model.reasons import NORMAL
from pykubelet.node.conditions import is_ready
from pykubelet.node.facts import FactsGatherer, NodeSources
from pykubelet.node.own_node import OwnNode
from pykubelet.node.register import NodeIdentity, adopt, initial_node, with_own_annotations, with_platform_labels
from pykubelet.node.setters import NodeFacts, node_status, now_is, same_status, transitions

logger = logging.getLogger(__name__)

TRIES = 5
JITTER = 0.04
FAST_CHECK = 0.1
FAST_FOR = 120.0
WAIT_FOR_RUNTIME = 0.3
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 7.0

PatchMaker = Callable[[Node, Node], dict[str, Any] | None]


class ReportTiming(Struct, frozen=True, kw_only=True):
    update_every: float = 10.0
    """Seconds between two computations of the status."""
    report_every: float = 300.0
    """Seconds after which an unchanged status is sent all the same."""
    timeout: float = 10.0
    """Seconds for one request."""
    rng: random.Random = field(default_factory=random.Random)
    """Spreads the times over the nodes of a cluster."""


class NodeReporter:
    name = "node-status"

    def __init__(
        self,
        ctx: Context,
        *,
        client: KubeClient,
        own: OwnNode,
        facts: FactsGatherer,
        identity: NodeIdentity,
        sources: NodeSources,
        make_patch: PatchMaker,
        timing: ReportTiming,
    ) -> None:
        self._client = client
        self._own = own
        self._facts = facts
        self._identity = identity
        self._sources = sources
        self._make_patch = make_patch
        self._events = ctx.events
        self._clock = ctx.clock
        self._timing = timing
        self._register_node = ctx.settings.config.node.register_node
        self._adopts_existing_only = ctx.settings.gates.enabled("KubeletRegistrationGetOnExistsOnly")
        self._startup = StartupTimes(clock=ctx.clock, metrics=ctx.metrics, booted=identity.booted)
        self._due = Wakeup()
        self._was_ready = False
        self._last_report: float | None = None
        self._report_delay = 0.0
        self._unschedulable = False
        self._pod_cidr = ""
        self._failures = Backoff(initial=0.5, maximum=min(5.0, timing.update_every))

    def soon(self) -> None:
        """Compute the status at once: something it shows has changed."""
        self._due.set()

    def observed(self, node: Node) -> None:
        """The API server shows the Node: a controller may have called it unreachable while we were away."""
        if self._was_ready and not is_ready(node.status) and not self._facts.problems():
            self.soon()

    # -- the service

    async def run(self) -> None:
        self._events.node_event(NORMAL, "Starting", "Starting kubelet.")
        started = self._clock.monotonic()
        if self._register_node:
            # A runtime that answers right away makes the Node ready from its first moment.
            await self._wait_ready(WAIT_FOR_RUNTIME)
            await self._register()
        while True:
            good = await self._update()
            await self._next_update(started, None if good else self._failures.next())
            if good:
                self._failures.reset()

    async def _wait_ready(self, within: float) -> None:
        end = self._clock.monotonic() + within
        while self._facts.problems() and self._clock.monotonic() < end:
            await self._due.wait(at_most=FAST_CHECK / 4)

    async def _next_update(self, started: float, retry_in: float | None) -> None:
        """Return when the status is to be computed again."""
        period = jittered(self._timing.update_every, JITTER, self._timing.rng)
        end = self._clock.monotonic() + min(period, retry_in if retry_in is not None else period)
        while (left := end - self._clock.monotonic()) > 0:
            fast = not self._was_ready and retry_in is None and self._clock.monotonic() - started < FAST_FOR
            if await self._due.wait(at_most=min(left, FAST_CHECK) if fast else left):
                return
            if fast and not self._facts.problems():
                return

    # -- registration

    async def _register(self) -> None:
        backoff = Backoff(initial=FIRST_PAUSE, maximum=LONGEST_PAUSE)
        while True:
            try:
                await self._try_register()
                return
            except ApiError as error:
                level = logging.WARNING if backoff.failures == 0 else logging.DEBUG
                logger.log(level, "the node cannot be registered yet, will retry", extra={"error": str(error)})
            await self._clock.sleep(backoff.next())

    async def _try_register(self) -> None:
        status = node_status(NodeStatus(), await self._facts.facts(()))
        self._startup.attempted()
        try:
            created = await self._in_time(self._client.create(initial_node(self._identity, status)))
        except ApiAlreadyExists:
            await self._adopt()
            return
        except Forbidden:
            # A node may be allowed to change its Node and not to create it.
            if self._adopts_existing_only:
                raise
            await self._adopt()
            return
        self._startup.registered()
        logger.info("node registered", extra={"node": self._identity.name})
        self._reported(NodeStatus(), created, changed=True)

    async def _adopt(self) -> None:
        existing = await self._in_time(self._client.get(Node, self._identity.name))
        aligned = adopt(existing, self._identity, reset_extended=self._sources.cm.is_device_capacity_stale())
        facts = await self._facts.facts(existing.status.addresses)
        wanted = msgspec.structs.replace(aligned, status=node_status(aligned.status, facts))
        await self._send(existing, wanted, changed=True)
        logger.info("node was registered before, adopted", extra={"node": self._identity.name})

    # -- updates

    async def _update(self) -> bool:
        """Compute the status and send it when needed; False when the API server could not be reached."""
        for attempt in range(TRIES):
            known = self._own.node if attempt == 0 else None
            try:
                base = known or await self._in_time(self._client.get(Node, self._identity.name))
                await self._update_from(base)
                return True
            except ApiError as error:
                level = logging.WARNING if self._failures.failures == 0 and attempt == 0 else logging.DEBUG
                logger.log(level, "the node's status cannot be updated, will retry", extra={"error": str(error)})
                if isinstance(error, (ApiDown, ApiNotFound)):
                    return False  # an immediate retry would fail the same way
        return False

    async def _update_from(self, base: Node) -> None:
        facts = await self._facts.facts(base.status.addresses)
        wanted = updated_node(base, self._identity, facts)
        await self._note_spec(base)
        changed = differs(base, wanted)
        if changed or self._is_overdue():
            await self._send(base, wanted, changed=changed)
        else:
            self._was_ready = self._was_ready or is_ready(base.status)
            self._own.learn(base)

    def _is_overdue(self) -> bool:
        if self._last_report is None:
            return True
        return self._clock.monotonic() - self._last_report >= self._timing.report_every + self._report_delay

    async def _send(self, base: Node, wanted: Node, *, changed: bool) -> None:
        patch = self._make_patch(base, wanted)
        answer = base
        if patch is not None:
            answer = await self._in_time(
                self._client.patch(
                    Node, self._identity.name, patch, patch_type=PatchType.STRATEGIC, subresource="status"
                )
            )
        self._reported(base.status, answer, changed=changed)

    def _reported(self, old: NodeStatus, answer: Node, *, changed: bool) -> None:
        self._own.learn(answer)
        self._last_report = self._clock.monotonic()
        # Spread the next unchanged report: nodes that changed together must not report together for ever.
        half = self._timing.report_every / 2
        self._report_delay = self._timing.rng.uniform(-half, half) if changed else 0.0
        for each in transitions(self._identity.name, old, answer.status):
            self._events.node_event(each.kind, each.reason, each.message)
        if is_ready(answer.status) and not self._was_ready:
            self._was_ready = True
            self._startup.ready()
            logger.info("the node is ready", extra={"node": self._identity.name})
        self._sources.attachments.reported(answer.status.volumes_in_use)

    async def _note_spec(self, node: Node) -> None:
        """React to changes of the Node's spec: unschedulable and the pod CIDR."""
        unschedulable = bool(node.spec.unschedulable)
        if unschedulable != self._unschedulable:
            self._unschedulable = unschedulable
            event = now_is(self._identity.name, "NodeNotSchedulable" if unschedulable else "NodeSchedulable")
            self._events.node_event(event.kind, event.reason, event.message)
        cidr = ",".join(node.spec.pod_cidrs or ([node.spec.pod_cidr] if node.spec.pod_cidr else []))
        if cidr and cidr != self._pod_cidr:
            try:
                async with asyncio.timeout(self._timing.timeout):
                    await self._sources.cri.update_runtime_config(cidr)
            except (CriError, TimeoutError) as error:
                logger.warning("the runtime did not take the pod CIDR, will retry", extra={"error": str(error)})
            else:
                self._pod_cidr = cidr

    async def _in_time(self, request: Awaitable[Node]) -> Node:
        try:
            async with asyncio.timeout(self._timing.timeout):
                return await request
        except TimeoutError as error:
            raise ApiDown(f"no answer within {self._timing.timeout:g}s") from error


def updated_node(base: Node, identity: NodeIdentity, facts: NodeFacts) -> Node:
    """Return the Node with its new status and with our labels and annotations restored."""
    metadata = msgspec.structs.replace(
        base.metadata,
        labels=with_platform_labels(base.metadata.labels, identity),
        annotations=with_own_annotations(base.metadata.annotations, identity),
    )
    return msgspec.structs.replace(base, metadata=metadata, status=node_status(base.status, facts))


def differs(base: Node, wanted: Node) -> bool:
    """Whether anything but heartbeat times is new."""
    return (
        not same_status(base.status, wanted.status)
        or base.metadata.labels != wanted.metadata.labels
        or base.metadata.annotations != wanted.metadata.annotations
    )


class StartupTimes:
    """How long a new node took from boot to its first Ready, in upstream's parts; made when the agent starts.

    A Node that existed before has no such times: they stay 0, as upstream's do. `booted` is 0 when unknown.
    """

    def __init__(self, *, clock: Clock, metrics: Registry, booted: float = 0.0) -> None:
        self._clock = clock
        self._booted = booted
        self._started = clock.now()
        self._attempted: float | None = None
        self._registered: float | None = None
        self._ready = False

        self._whole = metrics.gauge("kubelet_node_startup_duration_seconds", "From boot to the new node's first Ready.")
        self._before = metrics.gauge(
            "kubelet_node_startup_pre_kubelet_duration_seconds", "From boot to the agent's start."
        )
        self._preparing = metrics.gauge(
            "kubelet_node_startup_pre_registration_duration_seconds",
            "From the agent's start to its first try to register.",
        )
        self._registering = metrics.gauge(
            "kubelet_node_startup_registration_duration_seconds", "From the first try to register to the new Node."
        )
        self._after = metrics.gauge(
            "kubelet_node_startup_post_registration_duration_seconds", "From the new Node to its first Ready."
        )

    def attempted(self) -> None:
        if self._attempted is None:
            self._attempted = self._clock.now()

    def registered(self) -> None:
        """This agent created the Node."""
        if self._attempted is None or self._registered is not None:
            return
        self._registered = self._clock.now()
        if self._booted:
            self._before.set(self._started - self._booted)
        self._preparing.set(self._attempted - self._started)
        self._registering.set(self._registered - self._attempted)

    def ready(self) -> None:
        if self._registered is None or self._ready:
            return
        self._ready = True
        now = self._clock.now()
        self._after.set(now - self._registered)
        if self._booted:
            self._whole.set(now - self._booted)
