"""The pods this node should run, and which mirror pod stands for which static pod.

Indexes by UID and full name; a mirror is never listed among the pods. A static pod and its mirror share
name and namespace, that pairs them; whether a mirror still matches its pod is a question of the hash.
Holds no opinion on what a pod does; creating and deleting mirrors in the API is not done here.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from pykubelet.api.types import Pod
from pykubelet.model.pod import HASH_ANNOTATION, MIRROR_ANNOTATION, PodUID, full_name, is_mirror, is_static, uid_of


class PodManagerSnapshot(Struct, frozen=True, kw_only=True):
    pods: tuple[str, ...]
    mirrors: tuple[str, ...]
    orphan_mirrors: tuple[str, ...]


class PodManager:
    def __init__(self) -> None:
        self._pods: dict[PodUID, Pod] = {}
        self._mirrors: dict[PodUID, Pod] = {}
        self._pod_names: dict[str, PodUID] = {}
        self._mirror_names: dict[str, PodUID] = {}

    # -- changes; called by the sync loop only

    def put(self, pod: Pod) -> None:
        """Add a pod or mirror, or replace the one of the same UID."""
        by_uid, names = self._indexes(pod)
        uid = uid_of(pod)
        old = by_uid.get(uid)
        if old is not None and full_name(old) != full_name(pod):
            self.remove(old)  # a fixed UID given to another name
        by_uid[uid] = pod
        names[full_name(pod)] = uid

    def put_all(self, pods: Iterable[Pod]) -> None:
        for pod in pods:
            self.put(pod)

    def remove(self, pod: Pod) -> None:
        """Forget a pod or mirror. Unknown ones are fine; a newer pod of the same name stays."""
        by_uid, names = self._indexes(pod)
        uid = uid_of(pod)
        known = by_uid.pop(uid, None)
        if known is None:
            return
        name = full_name(known)
        if names.get(name) == uid:
            del names[name]
            # Two UIDs of one name can overlap for a moment; the one that is left answers to the name.
            survivor = next((each for each in by_uid.values() if full_name(each) == name), None)
            if survivor is not None:
                names[name] = uid_of(survivor)

    def _indexes(self, pod: Pod) -> tuple[dict[PodUID, Pod], dict[str, PodUID]]:
        return (self._mirrors, self._mirror_names) if is_mirror(pod) else (self._pods, self._pod_names)

    # -- questions about pods

    def pods(self) -> list[Pod]:
        """All pods without mirrors, in the order they were added."""
        return list(self._pods.values())

    def static_pods(self) -> list[Pod]:
        return [pod for pod in self._pods.values() if is_static(pod)]

    def get(self, uid: PodUID) -> Pod | None:
        return self._pods.get(uid)

    def by_full_name(self, name: str) -> Pod | None:
        uid = self._pod_names.get(name)
        return self._pods.get(uid) if uid is not None else None

    def by_name(self, namespace: str, name: str) -> Pod | None:
        return self.by_full_name(f"{name}_{namespace}")

    def __contains__(self, uid: object) -> bool:
        return uid in self._pods

    def __len__(self) -> int:
        return len(self._pods)

    # -- mirrors

    def mirrors(self) -> list[Pod]:
        return list(self._mirrors.values())

    def mirror_of(self, pod: Pod) -> Pod | None:
        """The mirror that goes by the name of this pod."""
        uid = self._mirror_names.get(full_name(pod))
        return self._mirrors.get(uid) if uid is not None else None

    def static_of(self, mirror: Pod) -> Pod | None:
        """The pod that this mirror stands for."""
        return self.by_full_name(full_name(mirror))

    def pair(self, pod: Pod) -> tuple[Pod | None, Pod | None]:
        """(pod, mirror), whichever of the two is given."""
        if is_mirror(pod):
            return self.static_of(pod), pod
        return pod, self.mirror_of(pod)

    def orphan_mirrors(self) -> list[Pod]:
        """Mirrors whose static pod is gone."""
        return [mirror for name, mirror in self._named_mirrors() if name not in self._pod_names]

    def _named_mirrors(self) -> list[tuple[str, Pod]]:
        return [(name, self._mirrors[uid]) for name, uid in self._mirror_names.items()]

    # -- UIDs: people and the API server name a static pod by its mirror's UID

    def translate(self, uid: PodUID) -> PodUID:
        """The UID the agent works with: that of the static pod if a mirror's was given."""
        mirror = self._mirrors.get(uid)
        pod = self.static_of(mirror) if mirror is not None else None
        return uid_of(pod) if pod is not None else uid

    def api_uid(self, pod: Pod) -> PodUID | None:
        """The UID the API server knows the pod by; None for a static pod that has no mirror yet."""
        if not is_static(pod):
            return uid_of(pod)
        mirror = self.mirror_of(pod)
        return uid_of(mirror) if mirror is not None else None

    def snapshot(self) -> PodManagerSnapshot:
        return PodManagerSnapshot(
            pods=tuple(sorted(self._pod_names)),
            mirrors=tuple(sorted(self._mirror_names)),
            orphan_mirrors=tuple(sorted(full_name(mirror) for mirror in self.orphan_mirrors())),
        )


def is_mirror_of(mirror: Pod, pod: Pod) -> bool:
    """Same name, and the mirror was made from exactly this version of the static pod."""
    made_from = mirror.metadata.annotations.get(MIRROR_ANNOTATION)
    return (
        made_from is not None
        and full_name(mirror) == full_name(pod)
        and made_from == pod.metadata.annotations.get(HASH_ANNOTATION, "")
    )
