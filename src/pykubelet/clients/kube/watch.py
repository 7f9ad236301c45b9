"""List and watch as one endless stream that mends itself.

The first item, and every item after an interruption that lost events (410), is the full set; in between come single
changes. Whatever fails is logged and tried again, later each time: up to 30 s for refusals, up to 4 s while the
server cannot be reached at all, since then waiting longer only delays the node's return.
Does not cover: keeping the objects (reflector.py).
"""

from __future__ import annotations

import logging
import random
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any, Generic

from msgspec import Struct

from pykubelet.clients.kube.port import (
    Change,
    ChangeType,
    K,
    KubeClient,
    Unreadable,
    UnreadableChange,
    resource_of,
)
from pykubelet.kit.backoff import Backoff, jittered
from pykubelet.kit.clock import Clock
from pykubelet.model.errors import ApiDown, ApiError, Expired, Forbidden

logger = logging.getLogger(__name__)

PAGE_SIZE = 500
FIRST_DELAY, LONGEST_DELAY, LONGEST_WHILE_DOWN = 0.8, 30.0, 4.0
QUICK_DELAYS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.4)
"""After a Forbidden: the server learns which objects a node may read from the pod we have just heard of, too."""
WATCH_MIN, WATCH_MAX = 300.0, 600.0
"""A watch lasts a random time between these, so that a cluster's watches do not all end together."""


class Query(Struct, Generic[K], frozen=True, kw_only=True):
    """Which objects."""

    kind: type[K]
    namespace: str = ""
    field_selector: str = ""
    label_selector: str = ""

    def __str__(self) -> str:
        where = f" in {self.namespace}" if self.namespace else ""
        which = "".join(f" with {text}" for text in (self.field_selector, self.label_selector) if text)
        return f"{resource_of(self.kind).plural}{where}{which}"


class Listed(Struct, Generic[K], frozen=True, kw_only=True):
    """The full set at one moment."""

    items: Sequence[K]
    unreadable: Sequence[Unreadable] = ()
    """Those of the set that cannot be read."""
    resource_version: str


async def list_all(client: KubeClient, query: Query[K], *, resource_version: str = "") -> Listed[K]:
    """All pages. A token that expires half-way starts over without pages, so that the set is of one moment."""
    try:
        return await _pages(client, query, resource_version)
    except Expired:
        page = await client.list(
            query.kind,
            query.namespace,
            field_selector=query.field_selector,
            label_selector=query.label_selector,
        )
        return Listed(items=page.items, unreadable=page.unreadable, resource_version=page.resource_version)


async def _pages(client: KubeClient, query: Query[K], resource_version: str) -> Listed[K]:
    items: list[K] = []
    unreadable: list[Unreadable] = []
    token = ""
    while True:
        page = await client.list(
            query.kind,
            query.namespace,
            field_selector=query.field_selector,
            label_selector=query.label_selector,
            resource_version="" if token else resource_version,
            limit=PAGE_SIZE,
            continue_token=token,
        )
        items += page.items
        unreadable += page.unreadable
        token = page.continue_token
        if not token:
            return Listed(items=items, unreadable=unreadable, resource_version=page.resource_version)


async def list_and_watch(
    client: KubeClient, query: Query[K], clock: Clock, *, source: random.Random | None = None, rest: float = 0.0
) -> AsyncGenerator[Listed[K] | Change[K] | UnreadableChange, None]:
    """The full set, then every change, for ever. Bookmarks are not passed on.

    `rest` is a pause between a list and its watch: changes in it come late, none is lost.
    """
    backoff = Backoff(initial=FIRST_DELAY, maximum=LONGEST_DELAY)
    version: str | None = None
    # At first any recent state will do and spares the server's store; after lost events only the newest will.
    wanted = "0"
    expired = False
    while True:
        try:
            if version is None:
                listed = await list_all(client, query, resource_version=wanted)
                version = listed.resource_version
                yield listed
                if rest:
                    await clock.sleep(rest)
            changes = client.watch(
                query.kind,
                query.namespace,
                field_selector=query.field_selector,
                label_selector=query.label_selector,
                resource_version=version,
                timeout=(source or random).uniform(WATCH_MIN, WATCH_MAX),
            )
            started = clock.monotonic()
            async with aclosing(changes):
                async for change in changes:
                    backoff.reset()
                    version = _version(change) or version
                    if change.type is not ChangeType.BOOKMARK:
                        yield change
            if clock.monotonic() - started < 1.0:
                await clock.sleep(
                    jittered(FIRST_DELAY, 1.0, source)
                )  # a server that hangs up at once must not be hammered
        except Expired as error:
            logger.info("watch is too old, listing again", extra={"what": str(query), "reason": str(error)})
            version, wanted = None, ""
            if expired:
                await clock.sleep(_delay(backoff, error, source))
            else:
                # The server answers: what an outage before it cost must not delay the list.
                backoff.reset()
            expired = True
            continue
        except ApiError as error:
            if _is_worth_telling(error, backoff.failures):
                logger.warning("list and watch failed, trying again", extra={"what": str(query), "error": str(error)})
            await clock.sleep(_delay(backoff, error, source))
        expired = False


def _is_worth_telling(error: ApiError, failures: int) -> bool:
    if isinstance(error, Forbidden):
        return failures >= len(QUICK_DELAYS)  # before that it is only early
    return not isinstance(error, ApiDown) or failures in (0, 3)


def _delay(backoff: Backoff, error: ApiError, source: random.Random | None) -> float:
    failures, delay = backoff.failures, backoff.next()
    if isinstance(error, Forbidden) and failures < len(QUICK_DELAYS):
        return QUICK_DELAYS[failures]
    if isinstance(error, ApiDown):
        return jittered(min(delay, LONGEST_WHILE_DOWN), 0.5, source)
    return max(error.retry_after or 0.0, jittered(delay, 1.0, source))


def _version(change: Change[Any] | UnreadableChange) -> str:
    """How far the watch is: an object that cannot be read has a version too, or the same event would come for ever."""
    if isinstance(change, UnreadableChange):
        return change.object.resource_version
    return change.object.metadata.resource_version or ""
