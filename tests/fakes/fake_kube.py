"""An API server in memory behind the KubeClient port: objects, versions, watches, patches, graceful deletion.

Strict where the real one is: names are unique, versions and UIDs are preconditions, status lives behind its
subresource, old versions expire. Tests add objects with `add()`, look with `find()`, and break things with
`fail_next()`, `down`, `break_watches()` and `compact()`. Its truth is proven in tests/contracts/test_kube_contract.py.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import msgspec

from pykubelet.api.codec import ManifestError, convert
from pykubelet.api.types import (
    ApiStruct,
    CertificateSigningRequest,
    Event,
    Node,
    ObjectMeta,
    Pod,
    ServiceAccount,
    SubjectAccessReview,
    SubjectAccessReviewStatus,
    TokenRequest,
    TokenRequestStatus,
    TokenReview,
    TokenReviewStatus,
    UserInfo,
)
from pykubelet.clients.kube.decoding import UnreadableObjects
from pykubelet.clients.kube.patch import plain
from pykubelet.clients.kube.port import (
    Change,
    ChangeType,
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
from pykubelet.clients.kube.reflector import INITIAL_EVENTS_END
from pykubelet.kit.clock import Clock, utc
from pykubelet.model.errors import ApiAlreadyExists, ApiConflict, ApiDown, ApiError, ApiNotFound, Invalid
from tests.fakes.fake_kube_patches import BadPatch, apply_json, apply_merge, apply_strategic
from tests.fakes.fake_kube_store import Key, Obj, Selection, Store
from tests.spin_guard import note

REVIEWS = (TokenReview, SubjectAccessReview)
DEFAULT_GRACE = 30


@dataclass(frozen=True, slots=True)
class Call:
    """One request that was made."""

    verb: str
    kind: type[ApiStruct]
    name: str = ""
    namespace: str = ""
    subresource: str = ""
    body: Any = None
    field_selector: str = ""


@dataclass(slots=True)
class _Fault:
    verb: str
    kind: type[ApiStruct] | None
    error: ApiError
    left: int


class FakeKube:
    has_watch_lists = True
    """Whether a watch may begin with the full set."""

    def __init__(self, clock: Clock) -> None:
        self.store = Store()
        self.unreadable = UnreadableObjects()
        self.watch_lists = WatchLists()
        self._spoiled: dict[Key, str] = {}
        self.calls: list[Call] = []
        self.down = False
        self.healthy = True
        self.tokens: dict[str, UserInfo] = {}
        """Bearer tokens that TokenReview knows."""
        self.allow: Callable[[SubjectAccessReview], bool] = lambda review: True
        self.sign: Callable[[CertificateSigningRequest], CertificateSigningRequest] | None = None
        """Approves and signs (or denies) a CSR as soon as it is created."""
        self._clock = clock
        self._faults: list[_Fault] = []
        self._numbers = itertools.count(1)

    # What tests do.

    def add(self, obj: K) -> K:
        """Create as the cluster's admin would, status included."""
        stored: K = self.store.put(type(obj), self._fresh(obj))
        return stored

    def change(self, obj: K) -> K:
        """Replace an object, whatever its version, status included."""
        stored: K = self.store.put(type(obj), obj)
        return stored

    def find(self, kind: type[K], name: str, namespace: str = "") -> K | None:
        return self.store.objects.get((kind, namespace, name))

    def everything(self, kind: type[K]) -> Sequence[K]:
        return self.store.select(Selection(kind))

    def remove(self, kind: type[ApiStruct], name: str, namespace: str = "") -> None:
        """Gone at once, without grace."""
        self.store.remove((kind, namespace, name))

    def spoil(self, kind: type[ApiStruct], name: str, namespace: str = "", *, why: str = "") -> None:
        """From now on the object cannot be read, for the reason given; with none it can be read again."""
        if why:
            self._spoiled[kind, namespace, name] = why
        else:
            self._spoiled.pop((kind, namespace, name), None)

    def fail_next(self, verb: str, error: ApiError, *, times: int = 1, kind: type[ApiStruct] | None = None) -> None:
        """The next requests with this verb (get, list, watch, create, update, patch, delete, token) fail."""
        self._faults.append(_Fault(verb, kind, error, times))

    def break_watches(self, error: ApiError | None = None) -> None:
        """All open watches fail, or with no error end as if their time was up."""
        for watcher in list(self.store.watchers):
            watcher.end(error)

    def stop(self) -> None:
        self.down = True
        self.break_watches(ApiDown("connection refused"))

    def start(self) -> None:
        self.down = False

    def compact(self) -> None:
        self.store.compact()

    def bookmark(self) -> None:
        """Tell every watch how far it is."""
        for watcher in self.store.watchers:
            watcher.pending.append(self._mark(watcher.selection.kind))
            watcher.news.set()

    def _mark(self, kind: Any, annotations: dict[str, str] | None = None) -> Change[Any]:
        metadata = ObjectMeta(resource_version=str(self.store.version), annotations=annotations or {})
        return Change(ChangeType.BOOKMARK, kind(metadata=metadata))

    @property
    def open_watches(self) -> list[Selection]:
        return [watcher.selection for watcher in self.store.watchers]

    def calls_of(self, verb: str, kind: type[ApiStruct] | None = None) -> list[Call]:
        return [call for call in self.calls if call.verb == verb and kind in (None, call.kind)]

    # The port.

    async def get(self, kind: type[K], name: str, namespace: str = "", *, resource_version: str = "") -> K:
        self._begin(Call("get", kind, name, namespace))
        found: K = self._need(kind, namespace, name)
        return found

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
        self._begin(Call("list", kind, "", namespace, field_selector=field_selector))
        found = self.store.select(Selection(kind, namespace, field_selector, label_selector))
        start, version = 0, self.store.version
        if continue_token:
            version, start = (int(part) for part in continue_token.split(":"))
            self.store.check_token(version)
        end = start + limit if limit else len(found)
        token = f"{version}:{end}" if end < len(found) else ""
        page = found[start:end]
        bad = [odd for each in page if (odd := self._unreadable(kind, each)) is not None]
        names = {(each.namespace, each.name) for each in bad}
        return Page(
            items=[each for each in page if (_metadata(each).namespace or "", _metadata(each).name) not in names],
            unreadable=bad,
            resource_version=str(version),
            continue_token=token,
        )

    async def watch(
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
        self._begin(Call("watch", kind, "", namespace, body=resource_version, field_selector=field_selector))
        if sent is not None:
            sent(True)
        selection = Selection(kind, namespace, field_selector, label_selector)
        if initial_events and not self.has_watch_lists:
            raise Invalid("resourceVersionMatch: Forbidden: forbidden for watch", code=422, reason="Invalid")
        watcher = self.store.open_watch(selection, 0 if initial_events else int(resource_version or 0))
        if initial_events:
            watcher.pending.append(self._mark(kind, {INITIAL_EVENTS_END: "true"}))
        try:
            while True:
                while watcher.pending:
                    change = watcher.pending.pop(0)
                    bad = self._unreadable(kind, change.object)
                    yield UnreadableChange(change.type, bad) if bad is not None else change
                if watcher.ended:
                    if watcher.failure is not None:
                        raise watcher.failure
                    return
                watcher.news.clear()
                await watcher.news.wait()
        finally:
            self.store.watchers.discard(watcher)

    async def create(self, obj: K, *, dry_run: bool = False) -> K:
        metadata = _metadata(obj)
        self._begin(Call("create", type(obj), metadata.name or "", metadata.namespace or "", body=obj))
        if isinstance(obj, REVIEWS):
            reviewed: Any = self._review(obj)
            return _typed(type(obj), reviewed)
        fresh = self._fresh(obj)
        if (type(obj), metadata.namespace or "", _metadata(fresh).name) in self.store.objects:
            resource = resource_of(type(obj))
            text = f'{resource.plural} "{metadata.name}" already exists'
            raise ApiAlreadyExists(text, code=409, reason="AlreadyExists")
        if dry_run:
            return fresh
        stored: K = self.store.put(type(obj), fresh)
        if isinstance(stored, CertificateSigningRequest) and self.sign is not None:
            self.store.put(type(obj), self.sign(stored))
        return stored

    async def update(self, obj: K, *, subresource: str = "") -> K:
        kind, metadata = type(obj), _metadata(obj)
        name, namespace = metadata.name or "", metadata.namespace or ""
        self._begin(Call("update", kind, name, namespace, subresource, obj))
        current = self._need(kind, namespace, name)
        self._must_match(current, metadata.uid, metadata.resource_version)
        return self._save(kind, current, plain(obj), subresource)

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
        self._begin(Call("patch", kind, name, namespace, subresource, body))
        current = self._need(kind, namespace, name)
        wanted: Any = plain(body)
        if isinstance(wanted, dict):
            metadata = wanted.get("metadata") or {}
            self._must_match(current, metadata.get("uid"), metadata.get("resourceVersion"))
        before = plain(current)
        try:
            if patch_type is PatchType.JSON:
                after = apply_json(before, wanted)
            elif patch_type is PatchType.STRATEGIC:
                after = apply_strategic(kind, before, wanted)
            else:
                after = apply_merge(before, wanted)
        except BadPatch as error:
            raise Invalid(str(error), code=422, reason="Invalid") from None
        return self._save(kind, current, after, subresource)

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
        self._begin(Call("delete", kind, name, namespace, body={"grace": grace_seconds, "uid": uid}))
        current = self._need(kind, namespace, name)
        self._must_match(current, uid or None, resource_version or None)
        grace = _grace(current, grace_seconds) if isinstance(current, Pod) else 0
        if not grace and not current.metadata.finalizers:
            self.store.remove((kind, namespace, name))
            return
        known = current.metadata.deletion_grace_period_seconds
        if current.metadata.deletion_timestamp is not None and known is not None and known <= grace:
            return
        metadata = msgspec.structs.replace(
            current.metadata,
            deletion_timestamp=utc(self._clock.now()) + timedelta(seconds=grace),
            deletion_grace_period_seconds=grace,
            generation=(current.metadata.generation or 0) + 1,
        )
        self.store.put(kind, msgspec.structs.replace(current, metadata=metadata))

    async def create_token(self, namespace: str, service_account: str, request: TokenRequest) -> TokenRequest:
        self._begin(Call("token", ServiceAccount, service_account, namespace, "token", request))
        self._need(ServiceAccount, namespace, service_account)
        seconds = request.spec.expiration_seconds or 3600
        status = TokenRequestStatus(
            token=f"token-{next(self._numbers)}", expiration_timestamp=utc(self._clock.now() + seconds)
        )
        return msgspec.structs.replace(request, status=status)

    async def is_healthy(self) -> bool:
        return self.healthy and not self.down

    # Inside.

    def _unreadable(self, kind: type[ApiStruct], obj: Any) -> Unreadable | None:
        metadata = obj.metadata
        why = self._spoiled.get((kind, metadata.namespace or "", metadata.name or ""))
        if why is None:
            return None
        found = Unreadable(
            kind=kind.__name__,
            resource=resource_of(kind).plural,
            name=metadata.name or "",
            namespace=metadata.namespace or "",
            uid=metadata.uid or "",
            resource_version=metadata.resource_version or "",
            deletion_timestamp=metadata.deletion_timestamp,
            deletion_grace=metadata.deletion_grace_period_seconds,
            why=why,
        )
        self.unreadable.count(found)
        return found

    def _begin(self, call: Call) -> None:
        self.calls.append(call)
        if call.kind is not Event:  # many things may happen to a pod at once, each told in one of its own
            which = call.name or call.field_selector
            note(f"request {call.verb} {call.kind.__name__} {call.namespace}/{which} {call.subresource}")
        if self.down:
            raise ApiDown("connection refused")
        for fault in self._faults:
            if fault.verb == call.verb and fault.kind in (None, call.kind):
                fault.left -= 1
                if fault.left <= 0:
                    self._faults.remove(fault)
                raise fault.error

    def _need(self, kind: type[ApiStruct], namespace: str, name: str) -> Obj:
        key: Key = (kind, namespace, name)
        if key not in self.store.objects:
            text = f'{resource_of(kind).plural} "{name}" not found'
            raise ApiNotFound(text, code=404, reason="NotFound")
        return self.store.objects[key]

    def _must_match(self, current: Obj, uid: str | None, version: str | None) -> None:
        if uid and uid != current.metadata.uid:
            text = f"Precondition failed: UID in precondition: {uid}, UID in object meta: {current.metadata.uid}"
            raise ApiConflict(text, code=409, reason="Conflict")
        if version and version != current.metadata.resource_version:
            text = "the object has been modified; please apply your changes to the latest version and try again"
            raise ApiConflict(text, code=409, reason="Conflict")

    def _save(self, kind: type[K], current: Any, after: Any, subresource: str) -> K:
        try:
            wanted: Any = convert(kind, after)
        except ManifestError as error:
            raise Invalid(str(error), code=422, reason="Invalid") from None
        metadata = wanted.metadata
        metadata.uid, metadata.creation_timestamp = current.metadata.uid, current.metadata.creation_timestamp
        metadata.resource_version = current.metadata.resource_version
        if subresource == "status":
            # Nodes may also get labels and annotations this way; pods keep theirs.
            kept = metadata if kind is Node else current.metadata
            wanted = msgspec.structs.replace(current, status=wanted.status, metadata=kept)
        elif kind in (Pod, Node):
            wanted = msgspec.structs.replace(wanted, status=current.status)
        if wanted == current:
            return _typed(kind, current)
        metadata = wanted.metadata
        if metadata.deletion_timestamp is not None and not metadata.finalizers and kind is not Pod:
            return _typed(kind, self.store.remove((kind, metadata.namespace or "", metadata.name or "")))
        return _typed(kind, self.store.put(kind, wanted))

    def _fresh(self, obj: K) -> K:
        metadata, number = _metadata(obj), next(self._numbers)
        name = metadata.name or f"{metadata.generate_name or ''}{number:05d}"
        made = msgspec.structs.replace(
            metadata,
            name=name,
            uid=metadata.uid or f"00000000-0000-4000-8000-{number:012d}",
            creation_timestamp=metadata.creation_timestamp or utc(self._clock.now()),
            generation=metadata.generation or 1,
        )
        return msgspec.structs.replace(obj, metadata=made)

    def _review(self, obj: TokenReview | SubjectAccessReview) -> TokenReview | SubjectAccessReview:
        if isinstance(obj, SubjectAccessReview):
            answer = SubjectAccessReviewStatus(allowed=self.allow(obj))
            return msgspec.structs.replace(obj, status=answer)
        user = self.tokens.get(obj.spec.token or "")
        status = TokenReviewStatus(authenticated=user is not None, user=user, audiences=obj.spec.audiences)
        return msgspec.structs.replace(obj, status=status)


def _typed(kind: type[K], obj: Any) -> K:
    assert isinstance(obj, kind)
    return obj


def _metadata(obj: Any) -> ObjectMeta:
    metadata = obj.metadata
    assert isinstance(metadata, ObjectMeta)
    return metadata


def _grace(pod: Pod, asked: int | None) -> int:
    if not pod.spec.node_name or pod.status.phase in ("Succeeded", "Failed"):
        return 0
    if asked is not None:
        return asked
    spec = pod.spec.termination_grace_period_seconds
    return DEFAULT_GRACE if spec is None else spec
