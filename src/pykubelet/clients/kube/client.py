"""The KubeClient over HTTP: verbs to requests, answers to types.

Bodies are JSON both ways. Every object is decoded once, straight into its type; events of a watch too. Sent objects
always carry their apiVersion and kind. What cannot be decoded is counted and logged (decoding.py).
Does not cover: connections, retries, errors (transport.py), list and watch as one stream (reflector.py).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from functools import partial
from typing import Any

import msgspec

from pykubelet.api.codec import encode_json
from pykubelet.api.types import ApiStruct, DeleteOptions, Preconditions, ServiceAccount, TokenRequest
from pykubelet.clients.kube.decoding import UnreadableObjects, change_of, object_of, page_of
from pykubelet.clients.kube.port import (
    Change,
    K,
    Page,
    PatchBody,
    PatchType,
    Sent,
    Unreadable,
    UnreadableChange,
    WatchLists,
    resource_of,
)
from pykubelet.clients.kube.transport import Transport
from pykubelet.model.errors import ApiError, ApiServerError

WATCH_SILENCE = 150.0
"""Seconds without a byte before a watch is given up; the server sends a bookmark about every minute."""
HEALTH_TIMEOUT = 5.0


class RestKubeClient:
    def __init__(
        self,
        transport: Transport,
        *,
        unreadable: UnreadableObjects | None = None,
        watch_lists: WatchLists | None = None,
    ) -> None:
        self._transport = transport
        self.unreadable = unreadable or UnreadableObjects()
        self.watch_lists = watch_lists or WatchLists()
        self._readers: dict[type, Callable[[bytes], Awaitable[Any]]] = {}

    async def renew(self) -> None:
        """Leave all connections; watches start again by themselves."""
        await self._transport.renew()

    async def abandon(self) -> None:
        """End all connections, since the peer is silent; watches start again by themselves."""
        await self._transport.abandon()

    async def close(self) -> None:
        await self._transport.close()

    async def get(self, kind: type[K], name: str, namespace: str = "", *, resource_version: str = "") -> K:
        path = resource_of(kind).path(namespace, name)
        query = _query(resourceVersion=resource_version)
        return await self._read(kind, await self._transport.request("GET", path, query=query))

    async def list(
        self,
        kind: type[K],
        namespace: str = "",
        *,
        field_selector: str = "",
        label_selector: str = "",
        resource_version: str = "",
        limit: int = 0,
        continue_token: str = "",
    ) -> Page[K]:
        query = _query(
            fieldSelector=field_selector,
            labelSelector=label_selector,
            resourceVersion=resource_version,
            limit=str(limit or ""),
            **{"continue": continue_token},
        )
        answer = await self._transport.request("GET", resource_of(kind).path(namespace), query=query)
        page = await page_of(kind, answer)
        for each in page.unreadable:
            self.unreadable.count(each)
        return page

    def watch(
        self,
        kind: type[K],
        namespace: str = "",
        *,
        field_selector: str = "",
        label_selector: str = "",
        resource_version: str,
        initial_events: bool = False,
        timeout: float = 300.0,
        sent: Sent | None = None,
    ) -> AsyncGenerator[Change[K] | UnreadableChange, None]:
        return self._transport.stream(
            resource_of(kind).path(namespace),
            query=_query(
                watch="true",
                allowWatchBookmarks="true",
                fieldSelector=field_selector,
                labelSelector=label_selector,
                resourceVersion=resource_version,
                resourceVersionMatch="NotOlderThan" if initial_events else "",
                sendInitialEvents="true" if initial_events else "",
                timeoutSeconds=str(int(timeout)),
            ),
            silence=WATCH_SILENCE,
            read=self._reader(kind),
            sent=sent,
        )

    def _reader(self, kind: type[K]) -> Callable[[bytes], Awaitable[Change[K] | UnreadableChange | None]]:
        """One for all watches of a kind: there may be hundreds."""
        known = self._readers.get(kind)
        if known is None:
            known = self._readers[kind] = partial(self._change, kind)
        return known

    async def _change(self, kind: type[K], line: bytes) -> Change[K] | UnreadableChange | None:
        change = await change_of(kind, line)
        if isinstance(change, UnreadableChange):
            self.unreadable.count(change.object)
        return change

    async def create(self, obj: K, *, dry_run: bool = False) -> K:
        kind = type(obj)
        path = resource_of(kind).path(_metadata(obj).namespace or "")
        query = _query(dryRun="All" if dry_run else "")
        return await self._read(kind, await self._transport.request("POST", path, query=query, body=_encode(obj)))

    async def update(self, obj: K, *, subresource: str = "") -> K:
        kind, metadata = type(obj), _metadata(obj)
        path = resource_of(kind).path(metadata.namespace or "", metadata.name or "", subresource)
        return await self._read(kind, await self._transport.request("PUT", path, body=_encode(obj)))

    async def patch(
        self,
        kind: type[K],
        name: str,
        body: PatchBody,
        *,
        patch_type: PatchType,
        namespace: str = "",
        subresource: str = "",
        field_manager: str = "",
        force: bool = False,
    ) -> K:
        path = resource_of(kind).path(namespace, name, subresource)
        query = _query(fieldManager=field_manager, force="true" if force else "")
        answer = await self._transport.request(
            "PATCH", path, query=query, body=encode_json(body), content_type=patch_type.value
        )
        return await self._read(kind, answer)

    async def delete(
        self,
        kind: type[ApiStruct],
        name: str,
        namespace: str = "",
        *,
        grace_seconds: int | None = None,
        uid: str = "",
        resource_version: str = "",
    ) -> None:
        options = DeleteOptions(api_version="v1", kind="DeleteOptions", grace_period_seconds=grace_seconds)
        if uid or resource_version:
            options.preconditions = Preconditions(uid=uid or None, resource_version=resource_version or None)
        await self._transport.request("DELETE", resource_of(kind).path(namespace, name), body=encode_json(options))

    async def create_token(self, namespace: str, service_account: str, request: TokenRequest) -> TokenRequest:
        path = resource_of(ServiceAccount).path(namespace, service_account, "token")
        body = encode_json(
            msgspec.structs.replace(request, api_version="authentication.k8s.io/v1", kind="TokenRequest")
        )
        return await self._read(TokenRequest, await self._transport.request("POST", path, body=body))

    async def _read(self, kind: type[K], answer: bytes) -> K:
        found = await object_of(kind, answer)
        if isinstance(found, Unreadable):
            self.unreadable.count(found)
            raise ApiServerError(f"{kind.__name__} from the server: {found.why}")
        return found

    async def is_healthy(self) -> bool:
        try:
            return await self._transport.request("GET", "/healthz", timeout=HEALTH_TIMEOUT) == b"ok"
        except ApiError:
            return False


def _query(**parts: str) -> list[tuple[str, str]]:
    return [(name, value) for name, value in parts.items() if value]


def _metadata(obj: Any) -> Any:
    return obj.metadata


def _encode(obj: ApiStruct) -> bytes:
    resource = resource_of(type(obj))
    return encode_json(msgspec.structs.replace(obj, api_version=resource.api_version, kind=resource.kind))
