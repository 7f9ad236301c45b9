"""The node's heartbeat: a Lease that is renewed at a quarter of its duration.

Renewing starts from the last known object, so that one request is enough; when that fails the lease is read or created
again, with growing pauses while the API server is away. Created only when the Node is known, because the Node owns it.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import msgspec

from pykubelet.api.times import format_micro_time
from pykubelet.api.types import Lease, LeaseSpec, ObjectMeta
from pykubelet.clients.kube.port import KubeClient
from pykubelet.kit.backoff import Backoff, jittered
from pykubelet.kit.clock import Clock
from pykubelet.model.errors import ApiAlreadyExists, ApiConflict, ApiDown, ApiError, ApiNotFound
from pykubelet.node.own_node import OwnNode

logger = logging.getLogger(__name__)

NAMESPACE = "kube-node-lease"
RENEW_PART = 0.25
JITTER = 0.04
TRIES = 5
FIRST_PAUSE = 0.2
LONGEST_PAUSE = 7.0


async def _ignore() -> None:
    """Do nothing."""


class LeaseKeeper:
    name = "node-lease"

    def __init__(
        self,
        *,
        client: KubeClient,
        own: OwnNode,
        clock: Clock,
        duration: int,
        timeout: float,
        on_silence: Callable[[], Awaitable[None]] = _ignore,
        rng: random.Random | None = None,
    ) -> None:
        """`timeout` bounds each request; a heartbeat that hangs is worse than one that fails. `on_silence` is called
        when a request got no answer: other connections to the same server are probably dead, too."""
        self._client = client
        self._own = own
        self._clock = clock
        self._duration = duration
        self._timeout = timeout
        self._on_silence = on_silence
        self._rng = rng or random.Random()
        self._lease: Lease | None = None
        self._failing = False

    async def run(self) -> None:
        await self._own.wait_known()
        while True:
            await self._renew()
            await self._clock.sleep(jittered(self._duration * RENEW_PART, JITTER, self._rng))

    async def _renew(self) -> None:
        """Renew the lease; returns when it is done, however long that takes."""
        if self._lease is not None and await self._update():
            return
        backoff = Backoff(initial=FIRST_PAUSE, maximum=LONGEST_PAUSE)
        while True:
            try:
                if await self._ensure():
                    self._succeeded()
                    return
            except ApiError as error:
                self._failed(error)
            await self._clock.sleep(backoff.next())

    async def _update(self) -> bool:
        """Try up to five times from the last known object; return whether it succeeded."""
        for _ in range(TRIES):
            assert self._lease is not None
            try:
                async with self._in_time():
                    self._lease = await self._client.update(self._renewed(self._lease))
            except ApiConflict:
                try:
                    async with self._in_time():
                        self._lease = await self._client.get(Lease, self._own.name, NAMESPACE)
                except ApiError as error:
                    self._failed(error)
                    return False
            except ApiNotFound:
                return False
            except ApiError as error:
                self._failed(error)
                if isinstance(error, ApiDown):
                    return False  # no answer: further tries at once would not help
            else:
                self._succeeded()
                return True
        return False

    async def _ensure(self) -> bool:
        """Read the lease and renew it, or create it; False while there is no Node to own it."""
        async with self._in_time():
            try:
                found = await self._client.get(Lease, self._own.name, NAMESPACE)
            except ApiNotFound:
                fresh = self._fresh()
                if fresh is None:
                    return False
                try:
                    self._lease = await self._client.create(fresh)
                except ApiAlreadyExists:
                    return False
                return True
            self._lease = await self._client.update(self._renewed(found))
            return True

    def _fresh(self) -> Lease | None:
        owner = self._own.owner()
        if owner is None:
            return None
        return Lease(
            api_version="coordination.k8s.io/v1",
            kind="Lease",
            metadata=ObjectMeta(name=self._own.name, namespace=NAMESPACE, owner_references=[owner]),
            spec=self._spec(LeaseSpec()),
        )

    def _renewed(self, lease: Lease) -> Lease:
        metadata, owner = lease.metadata, self._own.owner()
        if not metadata.owner_references and owner is not None:
            metadata = msgspec.structs.replace(metadata, owner_references=[owner])
        return msgspec.structs.replace(lease, metadata=metadata, spec=self._spec(lease.spec))

    def _spec(self, old: LeaseSpec) -> LeaseSpec:
        return msgspec.structs.replace(
            old,
            holder_identity=self._own.name,
            lease_duration_seconds=self._duration,
            renew_time=format_micro_time(self._clock.now_ns()),
        )

    @asynccontextmanager
    async def _in_time(self) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(self._timeout):
                yield
        except TimeoutError as error:
            await self._on_silence()
            raise ApiDown(f"no answer within {self._timeout:g}s") from error

    def _failed(self, error: ApiError) -> None:
        # One line for an outage, not one for each of its retries.
        level = logging.DEBUG if self._failing else logging.WARNING
        logger.log(level, "the node lease cannot be renewed, will retry", extra={"error": str(error)})
        self._failing = True

    def _succeeded(self) -> None:
        if self._failing:
            logger.info("the node lease is renewed again")
        self._failing = False
