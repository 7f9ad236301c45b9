"""The KubeClient over HTTP: verbs to requests, answers to types.

Bodies are JSON both ways. Every object is decoded once, straight into its type; events of a watch too. Sent objects
always carry their apiVersion and kind.
Does not cover: connections, retries, errors of the wire (transport.py), list and watch as one stream (watch.py).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import msgspec

from pykubelet.api.codec import ManifestError, decode_json, encode_json
from pykubelet.api.types import ApiStruct, DeleteOptions, ListMeta, Preconditions, ServiceAccount, Status, TokenRequest
from pykubelet.clients.kube.answers import error_of_status
from pykubelet.clients.kube.port import Change, ChangeType, K, Page, PatchBody, PatchType, resource_of
from pykubelet.clients.kube.transport import Transport
from pykubelet.model.errors import ApiError, ApiServerError

WATCH_SILENCE = 150.0
"""Seconds without a byte before a watch is given up; the server sends a bookmark about every minute."""
HEALTH_TIMEOUT = 5.0


class _Frame(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _RawList(msgspec.Struct):
    metadata: ListMeta = msgspec.field(default_factory=ListMeta)
    items: list[msgspec.Raw] | None = None


_FRAMES = msgspec.json.Decoder(_Frame)
_LISTS = msgspec.json.Decoder(_RawList)


class RestKubeClient:
    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def renew(self) -> None:
        """Leave all connections; watches start again by themselves."""
        await self._transport.renew()

    async def abandon(self) -> None:
        """End all connections, since nothing is heard on them; watches start again by themselves."""
        await self._transport.abandon()

    async def close(self) -> None:
        await self._transport.close()

    async def get(self, kind: type[K], name: str, namespace: str = "", *, resource_version: str = "") -> K:
        path = resource_of(kind).path(namespace, name)
        query = _query(resourceVersion=resource_version)
        return _decode(kind, await self._transport.request("GET", path, query=query))

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
        try:
            found = _LISTS.decode(answer)
        except msgspec.DecodeError as error:
            raise ApiServerError(f"list of {resource_of(kind).plural}: {error}") from None
        return Page(
            items=[_decode(kind, raw) for raw in found.items or ()],
            resource_version=found.metadata.resource_version or "",
            continue_token=found.metadata.continue_ or "",
        )

    async def watch(
        self,
        kind: type[K],
        namespace: str = "",
        *,
        field_selector: str = "",
        label_selector: str = "",
        resource_version: str,
        timeout: float = 300.0,
    ) -> AsyncGenerator[Change[K], None]:
        query = _query(
            watch="true",
            allowWatchBookmarks="true",
            fieldSelector=field_selector,
            labelSelector=label_selector,
            resourceVersion=resource_version,
            timeoutSeconds=str(int(timeout)),
        )
        lines = self._transport.stream(resource_of(kind).path(namespace), query=query, silence=WATCH_SILENCE)
        async with aclosing(lines):
            async for line in lines:
                yield _change(kind, line)

    async def create(self, obj: K, *, dry_run: bool = False) -> K:
        kind = type(obj)
        path = resource_of(kind).path(_metadata(obj).namespace or "")
        query = _query(dryRun="All" if dry_run else "")
        return _decode(kind, await self._transport.request("POST", path, query=query, body=_encode(obj)))

    async def update(self, obj: K, *, subresource: str = "") -> K:
        kind, metadata = type(obj), _metadata(obj)
        path = resource_of(kind).path(metadata.namespace or "", metadata.name or "", subresource)
        return _decode(kind, await self._transport.request("PUT", path, body=_encode(obj)))

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
        return _decode(kind, answer)

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
        return _decode(TokenRequest, await self._transport.request("POST", path, body=body))

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


def _decode(kind: type[K], data: bytes | msgspec.Raw) -> K:
    try:
        obj = decode_json(kind, bytes(data) if isinstance(data, msgspec.Raw) else data)
    except ManifestError as error:
        raise ApiServerError(f"{kind.__name__} from the server: {error}") from None
    metadata = getattr(obj, "metadata", None)
    if metadata is not None and metadata.managed_fields:
        metadata.managed_fields = []
    return obj


def _change(kind: type[K], line: bytes) -> Change[K]:
    try:
        frame = _FRAMES.decode(line)
        if frame.type == "ERROR":
            raise error_of_status(decode_json(Status, bytes(frame.object)))
        type_ = ChangeType(frame.type)
    except (msgspec.DecodeError, ManifestError, ValueError) as error:
        raise ApiServerError(f"watch event of {kind.__name__}: {error}") from None
    return Change(type_, _decode(kind, frame.object))
