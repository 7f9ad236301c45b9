"""The CSI volume plugin: stages a volume once on the node, publishes it to each pod, and undoes both in reverse order.

Every step is recorded on disk before it is done (records.py), so that after a kill the agent knows what it may have
requested from a driver. Calls about one volume never overlap; calls about different volumes never wait for each other.
Registration, timing and stats are in drivers.py, expansion in expand.py.
"""

from __future__ import annotations

import base64
import contextlib
import json
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from pykubelet.api.types import CSIDriverSpec, CSIPersistentVolumeSource, VolumeError
from pykubelet.clients.host.port import Mounts, NodePaths
from pykubelet.clients.plugins.port import CsiNode, CsiVolume
from pykubelet.context import Context
from pykubelet.kit.host_calls import host_calls
from pykubelet.kit.sharing import KeyedLock
from pykubelet.kit.tasks import gather_all
from pykubelet.model.errors import PluginError, PykubeletError
from pykubelet.model.pod import namespace_of
from pykubelet.volumes import ownership
from pykubelet.volumes.csi import rules
from pykubelet.volumes.csi.drivers import CsiDrivers, CsiStats
from pykubelet.volumes.csi.expand import NodeExpander
from pykubelet.volumes.csi.records import (
    DATA_FILE,
    EPHEMERAL,
    PERSISTENT,
    BlockDevices,
    CsiPaths,
    VolumeRecord,
    attachment_name,
    is_mount_point,
    read_record,
    unique_name,
    write_record,
)
from pykubelet.volumes.csi.rules import CsiSource, SecretName, source_of
from pykubelet.volumes.errors import VolumeProblem
from pykubelet.volumes.objects import CsiObjects
from pykubelet.volumes.ownership import wait_for_ownership
from pykubelet.volumes.plugins.plugin import RemotePlugin, SetUp, Waiting, make_folder
from pykubelet.volumes.selinux import mount_option
from pykubelet.volumes.spec import CSI, VolumeSpec, VolumeUsage

logger = logging.getLogger(__name__)

T = TypeVar("T")

NODE_IS_FULL = 8
"""gRPC's ResourceExhausted, as an attacher reports it."""
FOLDERS_WITHIN = 120.0
OWNERS_WITHIN = 3600.0


class _Publish(Struct, frozen=True, kw_only=True):
    """One volume that is being published to one pod."""

    task: SetUp
    source: CsiSource
    client: CsiNode
    driver: CSIDriverSpec
    capabilities: frozenset[str]
    label: str
    """SELinux label to mount it with; empty: none."""


class CsiVolumes(RemotePlugin):
    name = CSI
    requires_remount = True
    cannot_attach = "attaching volumes from the kubelet is not supported (enableControllerAttachDetach is false)"

    def __init__(
        self, ctx: Context, *, drivers: CsiDrivers, objects: CsiObjects, mounts: Mounts, paths: NodePaths
    ) -> None:
        self._drivers = drivers
        self._objects = objects
        self._mounts = mounts
        self._node_name = ctx.node_name
        self._paths = CsiPaths(paths)
        self._blocks = BlockDevices(paths=self._paths, mounts=mounts)
        self._expander = NodeExpander(objects, ctx.events, ctx.clock)
        self._stats = CsiStats(drivers, with_health=ctx.settings.gates.enabled("CSIVolumeHealth"))
        self._events = ctx.events
        self._locks = KeyedLock()
        """By driver and handle."""
        self._limits_refreshed: set[tuple[str, str]] = set()
        """Volumes that could not be attached because the node is full, after which the limits were refreshed."""
        self._node_volumes: dict[Path, VolumeRecord] = {}
        """Volumes that are or may be staged on the node, by the folder of their record; equals what is on disk."""
        self._staged: set[tuple[str, str]] = set()
        """Staged by this process: not staged again for another pod."""

    # --- queries of the manager -----------------------------------------------------------------

    def unique_name(self, spec: VolumeSpec) -> str:
        if spec.csi is None:
            return ""
        return self._unique(spec.csi.driver or "", spec.csi.volume_handle or "")

    def _unique(self, driver: str, handle: str) -> str:
        csi_driver = self._objects.driver(driver)
        return "" if csi_driver is not None and csi_driver.attach_required is False else unique_name(driver, handle)

    def mounts_with_label(self, spec: VolumeSpec) -> bool:
        driver = self._objects.driver(spec.csi.driver or "") if spec.csi is not None else None
        return driver is not None and bool(driver.se_linux_mount)

    def in_use(self) -> Iterable[str]:
        """Includes volumes that could not be unstaged yet although no pod uses them."""
        return [self._unique(*record.key) for record in self._node_volumes.values()]

    def reconstruct(self) -> None:
        self._node_volumes = {self._record_home(record, block): record for block, record in self._all_staged()}

    def reconstruct_spec(self, uid: str, found: VolumeSpec) -> VolumeSpec:
        home = self._paths.device_home(found.folder) if found.block else self._paths.home(uid, found.folder)
        record = read_record(home)
        if record is None or record.lifecycle == EPHEMERAL:
            return found
        source = CSIPersistentVolumeSource(driver=record.driver, volume_handle=record.handle)
        return replace(found, csi=source, persistent=found.folder)

    def mount_path(self, path: Path, spec: VolumeSpec) -> Path:
        return path / "mount"

    # --- attaching ------------------------------------------------------------------------------

    async def attach_error(self, spec: VolumeSpec) -> str:
        """The attacher's error. If it says that the node is full, the reported limits are wrong: refresh them."""
        assert spec.csi is not None
        driver, handle = spec.csi.driver or "", spec.csi.volume_handle or ""
        error = await self._attach_error(driver, handle)
        if error is None:
            return ""
        if self._says_full(driver, error) and (driver, handle) not in self._limits_refreshed:
            await self._drivers.refresh(driver)
            self._limits_refreshed.add((driver, handle))
        return error.message or ""

    async def node_is_full(self, spec: VolumeSpec) -> bool:
        assert spec.csi is not None
        driver, handle = spec.csi.driver or "", spec.csi.volume_handle or ""
        error = await self._attach_error(driver, handle)
        if error is None or not self._says_full(driver, error):
            return False
        # The next pod is to find the true limit, also when it is the same volume's.
        self._limits_refreshed.discard((driver, handle))
        try:
            await self._drivers.refresh(driver)
        except PykubeletError as problem:
            logger.warning("limits of a driver not renewed", extra={"driver": driver, "problem": str(problem)})
        return True

    async def _attach_error(self, driver: str, handle: str) -> VolumeError | None:
        found = await self._objects.attachment(attachment_name(handle, driver, self._node_name))
        return found.status.attach_error if found is not None and not found.status.attached else None

    def _says_full(self, driver: str, error: VolumeError) -> bool:
        """Only counts for drivers that let their limits be renewed: with others the scheduler would not learn of it."""
        known = self._objects.driver(driver)
        return error.error_code == NODE_IS_FULL and bool(known and known.node_allocatable_update_period_seconds)

    # --- mounting -------------------------------------------------------------------------------

    async def ready(self) -> None:
        await self._objects.known()

    async def publish(self, task: SetUp, waiting: Waiting) -> None:
        source = source_of(task.spec, task.uid, namespace_of(task.pod))
        client = self._drivers.find(source.driver, migrated=task.spec.migrated, waiting=waiting)
        self._limits_refreshed.discard(source.key)
        async with self._locks.acquire(source.key):
            driver = self._objects.driver(source.driver)
            rules.check_lifecycle(driver, source.driver, EPHEMERAL if source.ephemeral else PERSISTENT)
            op = _Publish(
                task=task,
                source=source,
                client=client,
                driver=driver or CSIDriverSpec(),
                capabilities=await self._drivers.capabilities(source.driver, client),
                label=await self._label(task, source, client),
            )
            volume = await self._csi_volume(op)
            staging = await self._stage(op, volume)
            published = await self._publish(op, volume, staging)
            if not task.spec.block:
                await self._finish(op, again=published)
            if rules.EXPAND in op.capabilities and task.spec.claim is not None:
                volume = _with(volume, secrets=await self._secret(source.expand_secret))
                path = self._target(task.uid, task.spec.folder, block=task.spec.block)
                await self._expander.expand(task, source.key, client, volume, path, staging)

    async def _csi_volume(self, op: _Publish) -> CsiVolume:
        spec, source = op.task.spec, op.source
        group = op.task.fs_group if rules.MOUNT_GROUP in op.capabilities else None
        return CsiVolume(
            volume_id=source.handle,
            access_mode=rules.access_mode(spec.access_modes, op.capabilities),
            block=spec.block,
            fs_type=source.fs_type,
            mount_flags=(*spec.mount_options, *mount_option(op.label)),
            mount_group=str(group) if group is not None else "",
            publish_context=await self._publish_context(spec, source),
            volume_context=source.attributes,
        )

    async def _publish_context(self, spec: VolumeSpec, source: CsiSource) -> Mapping[str, str]:
        if not self.unique_name(spec):
            return {}
        name = source.record(spec, self._node_name).attachment
        attachment = await self._objects.attachment(name)
        if attachment is None:
            raise VolumeProblem(f"volume {source.handle} has no VolumeAttachment {name} for this node")
        if not attachment.status.attached:
            problem = attachment.status.attach_error
            why = f": {problem.message}" if problem is not None and problem.message else ""
            raise VolumeProblem(f"volume {source.handle} is not attached to this node yet{why}")
        return attachment.status.attachment_metadata

    async def _stage(self, op: _Publish, volume: CsiVolume) -> Path | None:
        spec, source, key = op.task.spec, op.source, op.source.key
        record = source.record(spec, self._node_name, op.label)
        home, staging = self._record_home(record, spec.block), self._staging(record, spec.block)
        stages = rules.STAGE_UNSTAGE in op.capabilities and not source.ephemeral
        if spec.block or stages:
            # A block volume is recorded here even when its driver stages nothing: the pod has no folder for it.
            self._node_volumes[home] = record
            await self._run(partial(_save_record, home, staging if stages else None, record), key)
        if not stages:
            return None
        if key in self._staged:
            return staging
        secrets = await self._secret(source.stage_secret)
        try:
            await op.client.stage(_with(volume, secrets=secrets), staging)
        except PluginError as error:
            if rules.is_final(error.code) and not await self._run(partial(self._has_users, record, spec.block), key):
                await self._drop(record, spec.block)
            raise
        self._staged.add(key)
        return staging

    async def _label(self, task: SetUp, source: CsiSource, client: CsiNode) -> str:
        """The SELinux label to mount with.

        A mount has one: what is staged with another, maybe by an earlier run, has to go first, unless this pod has it.
        """
        spec, label = task.spec, task.label
        known = self._node_volumes.get(self._record_home(source.record(spec, self._node_name), spec.block))
        if known is None or known.label == label:
            return label
        if await self._run(partial(self._is_published, task.uid, spec), source.key):
            return known.label
        if await self._run(partial(self._has_users, known, spec.block), source.key):
            raise VolumeProblem(
                f"another pod has it mounted with SELinux label {known.label!r}, this one needs {label!r}"
            )
        await self._unstage(known, client, spec.block)
        return label

    async def _publish(self, op: _Publish, volume: CsiVolume, staging: Path | None) -> bool:
        """True when the driver was called: it may have written to the volume."""
        spec, uid, source, key = op.task.spec, op.task.uid, op.source, op.source.key
        target = self._target(uid, spec.folder, block=spec.block)
        again = bool(op.driver.requires_republish)
        if not again and await self._run(partial(self._is_published, uid, spec), key):
            return False
        record = source.record(spec, self._node_name, op.label)
        if spec.block:
            await self._run(partial(make_folder, target.parent), key)
        else:
            await self._run(partial(_save_record, target.parent, None, record), key)
        context = {**volume.volume_context, **rules.pod_info(op.driver, op.task.pod, ephemeral=source.ephemeral)}
        secrets = dict(await self._secret(source.publish_secret))
        if op.driver.token_requests:
            place = secrets if op.driver.service_account_token_in_secrets else context
            place[rules.TOKENS_KEY] = await self._tokens(op)
        request = _with(volume, secrets=secrets, context=context)
        try:
            await op.client.publish(request, target, staging=staging, read_only=spec.read_only)
        except PluginError as error:
            if rules.is_final(error.code) and not again:
                await self._run(partial(self._forget_target, uid, spec.folder, spec.block), key)
            raise
        if spec.block:
            await self._run(partial(self._blocks.show, spec.folder, uid), key)
        return True

    async def _finish(self, op: _Publish, *, again: bool) -> None:
        """Apply fsGroup after each publish; a marker keeps a restarted agent from walking a big volume again."""
        task = op.task
        marker = self._marker(task.uid, task.spec.folder)
        target = self._target(task.uid, task.spec.folder, block=False)
        applies = rules.applies_fs_group(op.driver, task.spec, op.source.fs_type, op.capabilities)

        def finish() -> None:
            if marker.exists() and not again:
                return
            if applies:
                ownership.give(
                    target,
                    task.fs_group,
                    on_root_mismatch=task.on_root_mismatch,
                    progress=task.feedback.progress,
                )
            make_folder(marker.parent)
            marker.touch()

        name, key = "giving a CSI volume to its group", f"{task.uid}/{task.spec.folder}"
        future = host_calls.begin(finish, name=name, key=key, pod=task.uid, within=OWNERS_WITHIN)
        await wait_for_ownership(future, self._events, task)

    async def _tokens(self, op: _Publish) -> str:
        tokens = {}
        for request in op.driver.token_requests:
            seconds = request.expiration_seconds or 3600
            token, expires = await self._objects.token(op.task.pod, request.audience or "", seconds)
            tokens[request.audience or ""] = {"token": token, "expirationTimestamp": expires}
        return json.dumps(tokens)

    async def _secret(self, name: SecretName | None) -> Mapping[str, str]:
        if name is None:
            return {}
        secret = await self._objects.secret(*name)
        if secret is None:
            missing = f"secret {name[0]}/{name[1]}"
            raise VolumeProblem(f"{missing} not found", missing=missing)
        return {key: base64.b64decode(value).decode(errors="surrogateescape") for key, value in secret.data.items()}

    # --- unmounting -----------------------------------------------------------------------------

    async def unpublish(self, uid: str, spec: VolumeSpec, waiting: Waiting) -> None:
        folder, block = spec.folder, spec.block
        home = self._paths.device_home(folder) if block else self._paths.home(uid, folder)
        record = await self._run(partial(read_record, home), (uid, folder))
        if record is None:
            # Recorded before anything else: without a record nothing was requested from a driver.
            await self._run(partial(self._forget_target, uid, folder, block), (uid, folder))
            return
        async with self._locks.acquire(record.key):
            if block:
                await self._run(partial(self._blocks.hide, folder, uid), record.key)
            client = self._drivers.find(record.driver, waiting=waiting)
            await client.unpublish(record.handle, self._target(uid, folder, block=block))
            await self._run(partial(self._forget_target, uid, folder, block), record.key)

    async def unstage(self, spec: VolumeSpec, waiting: Waiting) -> None:
        if spec.csi is None:
            return
        key = spec.csi.driver or "", spec.csi.volume_handle or ""
        known = VolumeRecord(spec_name=spec.folder, driver=key[0], handle=key[1])
        home, staging = self._record_home(known, spec.block), self._staging(known, spec.block)
        async with self._locks.acquire(key):
            record = await self._run(partial(read_record, home), key)
            if record is None and not await self._run(partial(self._is_there, staging), key):
                self._node_volumes.pop(home, None)
                self._expander.forget(key)
            else:
                # A record that was lost or damaged is no reason to leave the volume staged.
                record = record or known
                client = self._drivers.find(record.driver, waiting=waiting)
                await self._unstage(record, client, spec.block)

    async def _unstage(self, record: VolumeRecord, client: CsiNode, block: bool) -> None:
        """Unless a pod still uses it."""
        if await self._run(partial(self._has_users, record, block), record.key):
            return
        staging = self._staging(record, block)
        self._staged.discard(record.key)  # first: a failed call may have taken effect
        if await self._run(partial(self._is_there, staging), record.key):
            await client.unstage(record.handle, staging)
        await self._drop(record, block)

    def _is_there(self, staging: Path) -> bool:
        # The mount table first: stat may hang on a dead server.
        return is_mount_point(self._mounts, staging) or staging.exists()

    async def _drop(self, record: VolumeRecord, block: bool) -> None:
        """Forget a volume that is not on the node any more."""
        await self._run(partial(self._forget_staging, record, block), record.key)
        self._node_volumes.pop(self._record_home(record, block), None)
        self._expander.forget(record.key)

    async def sweep(self) -> None:
        """Unstage volumes that a killed agent left and no pod uses; failures are logged and retried next time."""
        staged = await self._run(self._all_staged, ("all",))
        drivers = {record.driver for _, record in staged}
        await gather_all(*(self._sweep_driver([each for each in staged if each[1].driver == name]) for name in drivers))

    async def _sweep_driver(self, staged: Sequence[tuple[bool, VolumeRecord]]) -> None:
        for block, record in staged:
            if self._locks.is_wanted(record.key):
                continue  # an operation on it is under way
            try:
                async with self._locks.acquire(record.key):
                    name, key = record.spec_name, record.key
                    for uid in await self._run(partial(self._blocks.unlinked, name), key) if block else ():
                        await self._run(partial(self._blocks.hide, name, uid), key)
                        target = self._target(uid, name, block=True)
                        await self._drivers.find(record.driver).unpublish(record.handle, target)
                        await self._run(partial(self._forget_target, uid, name, True), key)
                    if not await self._run(partial(self._has_users, record, block), key):
                        await self._unstage(record, self._drivers.find(record.driver), block)
            except (PykubeletError, OSError) as error:
                logger.warning(
                    "volume of an earlier run not given back",
                    extra={"driver": record.driver, "handle": record.handle, "problem": str(error)},
                )

    def driver_registered(self, name: str) -> None:
        """A driver registered (again) and may have lost what it had staged: stage again."""
        self._staged = {key for key in self._staged if key[0] != name}
        self._stats.driver_registered(name)

    # --- stats ----------------------------------------------------------------------------------

    async def usage(self, uid: str, spec: VolumeSpec) -> VolumeUsage | None:
        """None when the driver has no stats."""
        home = self._paths.device_home(spec.folder) if spec.block else self._paths.home(uid, spec.folder)
        record = await self._run(partial(read_record, home), (uid, spec.folder))
        if record is None:
            return None
        staging = self._staging(record, spec.block) if record.key in self._staged else None
        return await self._stats.of(spec, record, self._target(uid, spec.folder, block=spec.block), staging)

    # --- on disk --------------------------------------------------------------------------------

    def _target(self, uid: str, folder: str, *, block: bool) -> Path:
        return self._paths.device_publish(folder, uid) if block else self._paths.target(uid, folder)

    def _record_home(self, record: VolumeRecord, block: bool) -> Path:
        return self._paths.device_home(record.spec_name) if block else self._paths.staging_home(*record.key)

    def _staging(self, record: VolumeRecord, block: bool) -> Path:
        return self._paths.device_staging(record.spec_name) if block else self._paths.staging(*record.key)

    def _marker(self, uid: str, folder: str) -> Path:
        return self._paths.paths.plugin_data(uid, CSI, folder) / "ready"

    def _is_published(self, uid: str, spec: VolumeSpec) -> bool:
        if spec.block:
            return self._blocks.is_shown(spec.folder, uid)
        home, target = self._paths.home(uid, spec.folder), self._paths.target(uid, spec.folder)
        return read_record(home) is not None and is_mount_point(self._mounts, target)

    def _has_users(self, record: VolumeRecord, block: bool) -> bool:
        if block:
            return bool(self._paths.published_pods(record.spec_name))
        return any(other.key == record.key for _, other in self._paths.records_of_pods())

    def _all_staged(self) -> list[tuple[bool, VolumeRecord]]:
        """Whether it is a block volume, and its record."""
        disks = [(True, each) for each in self._paths.staged_devices()]
        return [*((False, each) for each in self._paths.staged()), *disks]

    def _forget_target(self, uid: str, folder: str, block: bool) -> None:
        """Remove what we made for the pod. Never what is mounted: only empty folders are removed."""
        if block:
            self._blocks.forget(folder, uid)
            return
        target = self._paths.target(uid, folder)
        if is_mount_point(self._mounts, target):
            raise VolumeProblem(f"{target} is still mounted although its driver said that it is not")
        with contextlib.suppress(FileNotFoundError):
            self._marker(uid, folder).unlink()
        self._mounts.remove_tree(self._marker(uid, folder).parent)
        _remove_empty(target)
        _remove_record(target.parent)

    def _forget_staging(self, record: VolumeRecord, block: bool) -> None:
        if block:
            self._blocks.forget_staging(record.spec_name)
            return
        staging = self._paths.staging(*record.key)
        if is_mount_point(self._mounts, staging):
            raise VolumeProblem(f"{staging} is still mounted although its driver said that it is not")
        _remove_empty(staging)
        _remove_record(staging.parent)

    async def _run(self, work: Callable[[], T], about: tuple[str, ...]) -> T:
        """After its deadline the call continues, and nothing else is done about the same volume until it returns."""
        return await host_calls.run(work, name="folders of CSI volumes", key="^".join(about), within=FOLDERS_WITHIN)


def _with(volume: CsiVolume, *, secrets: Mapping[str, str], context: Mapping[str, str] | None = None) -> CsiVolume:
    return replace(volume, secrets=secrets, volume_context=volume.volume_context if context is None else context)


def _save_record(home: Path, staging: Path | None, record: VolumeRecord) -> None:
    make_folder(home)
    if read_record(home) != record:
        write_record(home, record)
    if staging is not None:
        make_folder(staging)


def _remove_empty(path: Path) -> None:
    try:
        os.rmdir(path)
    except FileNotFoundError:
        return
    except NotADirectoryError:
        path.unlink()  # a driver may have left a file or a link at its target
    except OSError as error:
        raise VolumeProblem(f"cannot remove {path}: {error.strerror}") from error


def _remove_record(home: Path) -> None:
    """The record last: while it exists, the next run of the agent knows that something may be left."""
    try:
        names = os.listdir(home)
    except (FileNotFoundError, NotADirectoryError):
        return
    for name in names:
        if name.startswith(f".{DATA_FILE}"):  # a record that was being written when the agent was killed
            (home / name).unlink(missing_ok=True)
    (home / DATA_FILE).unlink(missing_ok=True)
    _remove_empty(home)
