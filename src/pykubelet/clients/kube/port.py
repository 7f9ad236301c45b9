"""The API server as the rest of the agent sees it: typed verbs over the generated types.

A verb takes the type of the object (`Pod`, `Lease`) and finds group, version and plural in `RESOURCES`. Every verb
raises only ApiError and its children (model/errors.py). Returned objects are shared and must not be changed.
Their types leave out managedFields: they are not used here, and the server keeps its own when an update has none.
An object that cannot be read fails a `get`, but never a list or a watch: there it is an `Unreadable` of its own.
Does not cover: connections and credentials (transport.py), keeping a live copy of objects (reflector.py).
"""

from __future__ import annotations

import enum
import math
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Generic, Protocol, TypeVar

from msgspec import Struct

from pykubelet.api.types import (
    ApiStruct,
    CertificateSigningRequest,
    ClusterTrustBundle,
    ConfigMap,
    CSIDriver,
    CSINode,
    Event,
    EventsEvent,
    Lease,
    Namespace,
    Node,
    PersistentVolume,
    PersistentVolumeClaim,
    Pod,
    PodCertificateRequest,
    ResourceResourceClaim,
    ResourceSlice,
    RuntimeClass,
    Secret,
    Service,
    ServiceAccount,
    SubjectAccessReview,
    TokenRequest,
    TokenReview,
    VolumeAttachment,
)

K = TypeVar("K", bound=ApiStruct)
Sent = Callable[[bool], None]
"""Called with True when a request was sent, with False when it has to be sent again."""
ASK_AGAIN = 600.0
"""Seconds after which a server that could not begin a watch with the full set is asked again; it may be a newer one."""


class Resource(Struct, frozen=True):
    """Where objects of a kind live on the server."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """The request path; without a name that of the whole collection, without a namespace that of all."""
        parts = [f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"]
        if self.namespaced and namespace:
            parts.append(f"namespaces/{namespace}")
        parts.append(self.plural)
        parts += [part for part in (name, subresource) if part]
        return "/".join(parts)


RESOURCES: Mapping[type[ApiStruct], Resource] = {
    Pod: Resource("", "v1", "pods", "Pod"),
    Node: Resource("", "v1", "nodes", "Node", namespaced=False),
    Secret: Resource("", "v1", "secrets", "Secret"),
    ConfigMap: Resource("", "v1", "configmaps", "ConfigMap"),
    Service: Resource("", "v1", "services", "Service"),
    ServiceAccount: Resource("", "v1", "serviceaccounts", "ServiceAccount"),
    Namespace: Resource("", "v1", "namespaces", "Namespace", namespaced=False),
    Event: Resource("", "v1", "events", "Event"),
    PersistentVolume: Resource("", "v1", "persistentvolumes", "PersistentVolume", namespaced=False),
    PersistentVolumeClaim: Resource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim"),
    EventsEvent: Resource("events.k8s.io", "v1", "events", "Event"),
    Lease: Resource("coordination.k8s.io", "v1", "leases", "Lease"),
    RuntimeClass: Resource("node.k8s.io", "v1", "runtimeclasses", "RuntimeClass", namespaced=False),
    CSIDriver: Resource("storage.k8s.io", "v1", "csidrivers", "CSIDriver", namespaced=False),
    CSINode: Resource("storage.k8s.io", "v1", "csinodes", "CSINode", namespaced=False),
    VolumeAttachment: Resource("storage.k8s.io", "v1", "volumeattachments", "VolumeAttachment", namespaced=False),
    ResourceResourceClaim: Resource("resource.k8s.io", "v1", "resourceclaims", "ResourceClaim"),
    ResourceSlice: Resource("resource.k8s.io", "v1", "resourceslices", "ResourceSlice", namespaced=False),
    TokenReview: Resource("authentication.k8s.io", "v1", "tokenreviews", "TokenReview", namespaced=False),
    SubjectAccessReview: Resource(
        "authorization.k8s.io", "v1", "subjectaccessreviews", "SubjectAccessReview", namespaced=False
    ),
    CertificateSigningRequest: Resource(
        "certificates.k8s.io", "v1", "certificatesigningrequests", "CertificateSigningRequest", namespaced=False
    ),
    ClusterTrustBundle: Resource(
        "certificates.k8s.io", "v1beta1", "clustertrustbundles", "ClusterTrustBundle", namespaced=False
    ),
    PodCertificateRequest: Resource(
        "certificates.k8s.io", "v1beta1", "podcertificaterequests", "PodCertificateRequest"
    ),
}


def resource_of(kind: type[ApiStruct]) -> Resource:
    return RESOURCES[kind]


class PatchType(enum.Enum):
    """The kind of a patch body; the value is its content type."""

    JSON = "application/json-patch+json"
    MERGE = "application/merge-patch+json"
    STRATEGIC = "application/strategic-merge-patch+json"
    APPLY = "application/apply-patch+yaml"


class ChangeType(enum.Enum):
    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"
    """Nothing changed; the object holds only the resource version reached."""


class Change(Struct, Generic[K], frozen=True):
    """One event of a watch. A deleted object is in the last state the server knew."""

    type: ChangeType
    object: K


class Unreadable(Struct, frozen=True, kw_only=True):
    """An object that cannot be read, with what could be decoded of it; any of it may be empty."""

    kind: str
    resource: str
    """The plural, such as `pods`."""
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    deletion_timestamp: datetime | None = None
    deletion_grace: int | None = None
    why: str

    @property
    def shown(self) -> str:
        name = self.name or "without a name that can be read"
        return f"{self.kind} {self.namespace}/{name}" if self.namespace else f"{self.kind} {name}"


class UnreadableChange(Struct, frozen=True):
    """An event of a watch about an object that cannot be read."""

    type: ChangeType
    object: Unreadable


class Page(Struct, Generic[K], frozen=True, kw_only=True):
    """One answer of a list; `continue_token` gets the next page when it is not empty."""

    items: Sequence[K]
    unreadable: Sequence[Unreadable] = ()
    resource_version: str
    continue_token: str = ""


PatchBody = Mapping[str, Any] | Sequence[Any]


class UnreadableNotes(Protocol):
    """Objects that copies could not read (decoding.py)."""

    def hold(self, owner: object, found: Sequence[Unreadable]) -> None: ...

    def listen(self, listener: Callable[[Unreadable], None]) -> None: ...

    def now(self) -> Sequence[Unreadable]: ...


class WatchLists:
    """Whether a watch may begin with the full set (sendInitialEvents); a server may not know that."""

    def __init__(self, *, enabled: bool = True) -> None:
        self._enabled = enabled
        self._refused_until = -math.inf

    def usable(self, now: float) -> bool:
        return self._enabled and now >= self._refused_until

    def refused(self, now: float) -> None:
        """The server cannot: nothing is asked that way for a while, by none of those who share the client."""
        self._refused_until = now + ASK_AGAIN


class KubeClient(Protocol):
    @property
    def unreadable(self) -> UnreadableNotes: ...

    @property
    def watch_lists(self) -> WatchLists: ...

    async def get(self, kind: type[K], name: str, namespace: str = "", *, resource_version: str = "") -> K:
        """The object now; with resource_version "0" any state the server has at hand will do."""
        ...

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
        """One page; watch.list_all() follows the tokens."""
        ...

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
        """Changes after resource_version, with bookmarks. Ends without error after about `timeout` seconds or when
        the connection was renewed; Expired means list again. Close it (aclosing) when leaving early. With
        `initial_events` it begins with all objects of that version or a newer one ("": the newest), as added, and a
        bookmark that says so; Invalid when the server cannot do that."""
        ...

    async def create(self, obj: K, *, dry_run: bool = False) -> K:
        """Create in metadata.namespace. Reviews answer with their status filled in."""
        ...

    async def update(self, obj: K, *, subresource: str = "") -> K:
        """Replace the object; Conflict unless metadata.resourceVersion is the current one (or absent)."""
        ...

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
        """Change part of an object; a metadata.uid in the body is a precondition (Conflict)."""
        ...

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
        """Ask for deletion; a `uid` that is not the object's is a Conflict."""
        ...

    async def create_token(self, namespace: str, service_account: str, request: TokenRequest) -> TokenRequest:
        """A token of a service account (its `token` subresource)."""
        ...

    async def is_healthy(self) -> bool:
        """Whether the server answers /healthz with ok; never raises."""
        ...
