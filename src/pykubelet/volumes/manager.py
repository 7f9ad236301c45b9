"""The volume manager: a service, and what pod syncs, spec builder, housekeeping, eviction and stats ask about volumes.

`wait_mounted` adds a pod to the desired state; `wait_unmounted` and `keep_only` remove it. `object_changed` wakes the
volumes that depend on an object. Nothing is polled.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec import Struct

from pykubelet.api.types import Pod
from pykubelet.clients.host.port import Mounts, NodePaths
from pykubelet.context import Context
from pykubelet.kit.host_calls import host_calls
from pykubelet.kit.tasks import Wakeup
from pykubelet.model.errors import PykubeletError
from pykubelet.model.pod import AnyContainer, namespace_of, uid_of
from pykubelet.model.problems import VolumeFailed
from pykubelet.signals import VolumesMounted, VolumesUnmounted
from pykubelet.volumes.actual_state import PodVolumes, State, VolumeEntry, VolumeTable, failure_of
from pykubelet.volumes.csi.plugin import CsiVolumes
from pykubelet.volumes.desired_state import ObjectKey, Use, desired_volumes, objects_of
from pykubelet.volumes.errors import NodeIsFull, VolumeProblem, VolumesNotReady
from pykubelet.volumes.image_volumes import ImageVolumes
from pykubelet.volumes.mounts import MountBuilder
from pykubelet.volumes.objects import VolumeObjects, VolumeRules
from pykubelet.volumes.plugins.registry import Leftover, make_plugins
from pykubelet.volumes.reconciler import Reconciler, found_name
from pykubelet.volumes.reconstruct import Found, scan
from pykubelet.volumes.spec import CSI, VolumeSpec, VolumeUsage, is_claimed, spec_of
from pykubelet.volumes.usage import EmptyDirUse, UsageMeter
from pykubelet.wire import cri_pb2

logger = logging.getLogger(__name__)

SCAN_SECONDS = 60.0
ROOM_SECONDS = 30.0
"""For the question whether the node is full."""
SAFETY_PERIOD = 60.0
"""Seconds between passes over all volumes, in case a wake was lost."""


class VolumeView(Struct, frozen=True, kw_only=True):
    """One volume, for inspection."""

    pod: str
    name: str
    plugin: str
    state: str
    desired: bool
    problem: str


class VolumeManager:
    name = "volumes"

    def __init__(
        self,
        ctx: Context,
        *,
        mounts: Mounts,
        paths: NodePaths,
        objects: VolumeObjects,
        rules: VolumeRules,
        images: ImageVolumes,
        csi: CsiVolumes | None = None,
    ) -> None:
        self._clock, self._signals = ctx.clock, ctx.signals
        self._mounts, self._paths, self._rules, self._csi = mounts, paths, rules, csi
        self._tokens, self._certificates = objects.tokens, objects.certificates
        self._table = table = VolumeTable()
        self._plugins = plugins = make_plugins(
            ctx.clock, node=ctx.node_name, mounts=mounts, paths=paths, objects=objects, rules=rules
        )
        if csi is not None:
            plugins[csi.name] = csi
        self._reconciler = Reconciler(
            ctx,
            table=table,
            plugins=plugins,
            objects=objects,
            mounts=mounts,
            paths=paths,
            rules=rules,
            on_settled=self._settled,
        )
        self._builder = MountBuilder(
            table=table, plugins=plugins, mounts=mounts, paths=paths, images=images, rules=rules
        )
        self._usage = UsageMeter(table=table, plugins=plugins, mounts=mounts, paths=paths, quotas=rules.quotas)
        self._ready = asyncio.Event()
        self._due = Wakeup()
        self._totals = ctx.metrics.gauge(
            "volume_manager_total_volumes", "Volumes by plugin and state", ("plugin_name", "state")
        )
        self._found = ctx.metrics.counter(
            "reconstruct_volume_operations_total", "Volumes of an earlier run that were looked at"
        )
        self._not_known = ctx.metrics.counter(
            "reconstruct_volume_operations_errors_total", "Volumes of an earlier run whose plugin is not known"
        )
        ctx.metrics.on_scrape(self._measure)

    # --- the service ----------------------------------------------------------------------------

    async def run(self) -> None:
        async with self._reconciler.tasks:
            try:
                await self._reconstruct()
                self._ready.set()
                while True:
                    await self._due.wait(at_most=SAFETY_PERIOD)
                    self._plugins.keep_used({each.spec.plugin for each in self._table.entries() if each.spec})
                    for entry in list(self._table.entries()):
                        active = self._reconciler.is_active(entry)
                        if entry.next_step() is not None and not active and self._may_begin(entry):
                            self._reconciler.begin(entry)
            finally:
                self._ready.clear()

    async def _reconstruct(self) -> None:
        for found, spec in await host_calls.run(self._scan, name="looking for volumes on disk", within=SCAN_SECONDS):
            name = found_name(found.plugin, found.folder)
            entry = VolumeEntry(uid=found.uid, name=name, state=State.UNCERTAIN, spec=spec)
            self._table.of(found.uid).entries[name] = entry
            self._found.inc()
            if isinstance(self._plugins[found.plugin], Leftover):
                self._not_known.inc()
        if self._table.pods:
            logger.info("found volumes of an earlier run", extra={"pods": len(self._table.pods)})

    def _scan(self) -> list[tuple[Found, VolumeSpec]]:
        for plugin in self._plugins.values():
            plugin.reconstruct()
        volumes = scan(self._paths, self._mounts.table())
        plugins = {name: self._plugins.of_found(name) for name in {found.plugin for found in volumes}}
        return [(found, plugins[found.plugin].reconstruct_spec(found.uid, found.spec())) for found in volumes]

    def _may_begin(self, entry: VolumeEntry) -> bool:
        """Leave a volume found after a restart alone until it is known whether its pod still exists."""
        return entry.is_desired or entry.failures > 0

    # --- for pod syncs --------------------------------------------------------------------------

    async def wait_mounted(self, pod: Pod) -> None:
        """Wait until every volume the pod uses is mounted; raises VolumesNotReady with the reasons after 2m3s.

        NodeIsFull, which is one, when this pod's volumes find no room on this node.

        Also starts to refresh the content of volumes of a running pod, without waiting for that.
        """
        if not self._ready.is_set():
            await self._ready.wait()
        record = self._add_desired(pod)
        if record is None:
            return
        if record.unmounted():
            try:
                await self._until(record, record.unmounted, "cannot mount volumes")
            except VolumesNotReady as late:
                await self._check_room(record)
                raise late
        for entry in record.leftover():
            self._reconciler.begin(entry)

    async def wait_unmounted(self, pod: Pod) -> None:
        """Wait until nothing of the pod is mounted; raises VolumesNotReady with the reasons after 2m3s."""
        if not self._ready.is_set():
            await self._ready.wait()
        uid = uid_of(pod)
        record = self._table.pods.get(uid)
        if record is not None:
            self._remove_desired(record)
            if record.leftover():
                await self._until(record, record.leftover, "cannot unmount volumes")
            self._table.forget_empty(uid)
        self._usage.forget_gone()
        self._tokens.forget(uid)
        self._certificates.forget(uid)

    async def _until(self, record: PodVolumes, missing: Callable[[], list[VolumeEntry]], what: str) -> None:
        deadline = self._clock.monotonic() + self._rules.wait_seconds
        while left := missing():
            now = self._clock.monotonic()
            if now >= deadline:
                texts = (failure_of(entry, self._clock).describe(self._clock.now()) for entry in left)
                raise VolumesNotReady(f"{what}: " + "; ".join(texts))
            await record.wait_change(deadline - now)

    async def _check_room(self, record: PodVolumes) -> None:
        """Raises NodeIsFull when a volume was not attached because the node has as many as it can have."""
        left = record.unmounted()
        unattached = [entry for entry in left if entry.awaits_attach]
        for entry in unattached:
            assert entry.spec is not None
            try:
                async with asyncio.timeout(ROOM_SECONDS):
                    is_full = await self._plugins[entry.spec.plugin].node_is_full(entry.spec)
            except (PykubeletError, TimeoutError) as error:
                logger.warning(
                    "attachment not read", extra={"volume": entry.name, "uid": entry.uid, "error": str(error)}
                )
                continue
            if is_full:
                unknown = [entry for entry in left if entry.spec is None]
                raise NodeIsFull(
                    "Node has reached its volume attachment limit, rejecting pod. "
                    f"unmounted volumes={_names(left)}, unattached volumes={_names(unattached)}, "
                    f"failed to process volumes={_names(unknown)}: context deadline exceeded"
                )

    def _add_desired(self, pod: Pod) -> PodVolumes | None:
        desired = desired_volumes(pod)
        uid = uid_of(pod)
        if not desired and uid not in self._table.pods:
            return None
        record = self._table.of(uid)
        for name, use in desired.items():
            entry = record.entries.get(name)
            if entry is None:
                entry = record.entries[name] = VolumeEntry(uid=uid, name=name)
                self._adopt(entry, pod, use)
            elif not entry.is_desired:
                entry.reset_backoff()  # of the next try to tear it down
                if self._reconciler.is_active(entry):
                    self._reconciler.begin(entry)
            self._note_pod(entry, pod, use)
            if entry.next_step() is not None:
                self._reconciler.begin(entry)
        return record

    def _adopt(self, entry: VolumeEntry, pod: Pod, use: Use) -> None:
        """Take over what an earlier run left of this volume. Claims are taken over once resolved."""
        if is_claimed(use.volume):
            return
        try:
            spec = spec_of(use.volume, namespace=namespace_of(pod), block=use.mapped)
        except VolumeProblem:
            return  # reported, with back-off, by the reconciler
        self._reconciler.adopt(entry, spec)

    def _note_pod(self, entry: VolumeEntry, pod: Pod, use: Use) -> None:
        if entry.state is State.MOUNTED and self._requires_remount(entry):
            old = self._clock.monotonic() - entry.refreshed_at >= self._rules.refresh_period
            entry.stale = entry.stale or old or entry.pod is not pod
        entry.pod, entry.use = pod, use
        if not entry.objects:
            self._table.depend_on(entry, objects_of(pod, use.volume))

    def _requires_remount(self, entry: VolumeEntry) -> bool:
        return entry.spec is not None and self._plugins[entry.spec.plugin].requires_remount

    def _remove_desired(self, record: PodVolumes) -> None:
        for entry in list(record.entries.values()):
            if entry.is_desired:
                entry.drop()
            if entry.next_step() is not None or self._reconciler.is_active(entry):
                self._reconciler.begin(entry)
            else:
                self._table.remove(entry)

    def _settled(self, entry: VolumeEntry) -> None:
        record = self._table.pods.get(entry.uid)
        if record is None:
            return
        if not entry.is_desired and not entry.in_pod:
            self._retry_rivals(entry)
            if entry.state is State.ABSENT:
                self._table.remove(entry)
            if not any(each.in_pod for each in record.entries.values()):
                self._signals.publish(VolumesUnmounted(entry.uid))
        elif entry.state is State.MOUNTED and not record.unmounted() and not record.is_waited_for:
            self._signals.publish(VolumesMounted(entry.uid))
        record.changed()

    def _retry_rivals(self, gone: VolumeEntry) -> None:
        """Retry for pods that wait for a ReadWriteOncePod volume another pod had."""
        if gone.spec is None or not gone.spec.persistent:
            return
        for entry in self._table.dependents(ObjectKey("persistentvolume", "", gone.spec.persistent)):
            if entry is not gone and entry.state is not State.MOUNTED:
                entry.reset_backoff()
                if self._reconciler.is_active(entry):
                    self._reconciler.begin(entry)

    def _retry(self, entry: VolumeEntry) -> None:
        entry.reset_backoff()
        if entry.next_step() is not None:
            self._reconciler.begin(entry)

    # --- changes --------------------------------------------------------------------------------

    def object_changed(self, kind: str, namespace: str, name: str) -> None:
        """Retry or refresh at once the volumes that depend on an object. Cheap when none does."""
        keys = {ObjectKey(kind.lower(), namespace, name)}
        if kind.lower() == "clustertrustbundle":
            keys.add(ObjectKey("clustertrustbundle", "", ""))
        for key in keys:
            for entry in self._table.dependents(key):
                if entry.state is State.MOUNTED or entry.begun_at is not None:
                    entry.stale = self._requires_remount(entry)  # what is being fetched right now may be old already
                self._retry(entry)

    def driver_registered(self, name: str) -> None:
        """A CSI driver registered: retry volumes at once that failed, perhaps because it was missing."""
        if self._csi is None:
            return
        self._csi.driver_registered(name)
        for entry in list(self._table.entries()):
            if entry.spec is not None and entry.spec.plugin == CSI and entry.failures:
                self._retry(entry)

    def keep_only(self, uids: Iterable[str]) -> None:
        """Unmount the volumes of all other pods: they do not exist any more."""
        known = set(uids)
        for uid in [uid for uid in self._table.pods if uid not in known]:
            self._remove_desired(self._table.pods[uid])

    # --- queries --------------------------------------------------------------------------------

    def has_mounts(self, uid: str) -> bool:
        """Whether anything of the pod may still be mounted; always true before the first scan of the disk."""
        if not self._ready.is_set():
            return True
        record = self._table.pods.get(uid)
        return record is not None and any(entry.in_pod for entry in record.entries.values())

    def volumes_in_use(self) -> list[str] | None:
        """Unique names of attachable volumes this node uses or may use, for node.status.volumesInUse.

        None before the first scan of the disk: the list must not be changed then. A volume that is not in it may be
        detached at any moment, even while it is mounted.
        """
        if not self._ready.is_set():
            return None
        names = {unique for plugin in self._plugins.values() for unique in plugin.in_use()}
        for entry in self._table.entries():
            plugin = self._plugins.get(entry.spec.plugin) if entry.spec is not None else None
            if entry.spec is not None and plugin is not None:
                names.update(entry.spec.attached or (plugin.unique_name(entry.spec),))
        return sorted(names - {""})

    def problems(self, uid: str) -> list[VolumeFailed]:
        """Why volumes of the pod are not as wanted."""
        record = self._table.pods.get(uid)
        entries = record.entries.values() if record is not None else ()
        return [failure_of(entry, self._clock) for entry in entries if entry.problem]

    async def mounts_for(self, pod: Pod, container: AnyContainer, env: Mapping[str, str]) -> Sequence[cri_pb2.Mount]:
        return await self._builder.mounts_for(pod, container, env)

    async def devices_for(self, pod: Pod, container: AnyContainer) -> Sequence[cri_pb2.Device]:
        return await self._builder.devices_for(pod, container)

    def path_of(self, pod: Pod, volume: str) -> str | None:
        return self._builder.path_of(pod, volume)

    def extra_groups(self, pod: Pod) -> Sequence[int]:
        record = self._table.pods.get(uid_of(pod))
        specs = (entry.spec for entry in record.entries.values()) if record else ()
        return sorted({spec.gid for spec in specs if spec is not None and spec.gid is not None})

    async def usage(self, pod: Pod) -> Sequence[VolumeUsage]:
        return await self._usage.measure(pod)

    async def empty_dir_use(self, pod: Pod) -> Sequence[EmptyDirUse]:
        return await self._usage.empty_dirs(pod)

    def snapshot(self) -> Sequence[VolumeView]:
        return [
            VolumeView(
                pod=entry.uid,
                name=entry.name,
                plugin=entry.spec.plugin if entry.spec else "",
                state=entry.state.value,
                desired=entry.is_desired,
                problem=entry.problem,
            )
            for entry in self._table.entries()
        ]

    def _measure(self) -> None:
        desired, actual = self._table.counts()
        totals: dict[tuple[str, ...], float] = {}
        for plugin, count in desired.items():
            totals[plugin, "desired_state_of_world"] = count
        for plugin, count in actual.items():
            totals[plugin, "actual_state_of_world"] = count
        self._totals.replace(totals)


def _names(entries: Iterable[VolumeEntry]) -> str:
    """As Go prints them."""
    return f"[{' '.join(sorted(entry.name for entry in entries))}]"
