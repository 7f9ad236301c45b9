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

from msgspec.structs import replace

from pykubelet.api.types import CSIDriverSpec, CSIPersistentVolumeSource
from pykubelet.clients.host.port import Mounts, VolumePaths
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
from pykubelet.volumes.csi.expand import Growth
from pykubelet.volumes.csi.records import (
    DATA_FILE,
    EPHEMERAL,
    PERSISTENT,
    BlockPlaces,
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
from pykubelet.volumes.spec import CSI, VolumeSpec, VolumeUsage

logger = logging.getLogger(__name__)

T = TypeVar("T")

NODE_IS_FULL = 8
"""gRPC's ResourceExhausted, as an attacher reports it."""
FOLDERS_WITHIN = 120.0
OWNERS_WITHIN = 3600.0


class CsiVolumes(RemotePlugin):
    name = CSI
    requires_remount = True

    def __init__(
        self, ctx: Context, *, drivers: CsiDrivers, objects: CsiObjects, mounts: Mounts, paths: VolumePaths
    ) -> None:
        self._drivers = drivers
        self._objects = objects
        self._mounts = mounts
        self._node_name = ctx.node_name
        self._paths = CsiPaths(paths)
        self._blocks = BlockPlaces(paths=self._paths, mounts=mounts)
        self._growth = Growth(objects, ctx.events, ctx.clock)
        self._stats = CsiStats(drivers)
        self._events = ctx.events
        self._locks = KeyedLock()
        """By driver and handle."""
        self._found_full: set[tuple[str, str]] = set()
        """Volumes that could not be attached for want of room, and whose driver was asked for its limits again."""
        self._held: dict[Path, VolumeRecord] = {}
        """Volumes that the node has or may have staged, by the folder of their record: as much as is on disk."""
        self._staged: set[tuple[str, str]] = set()
        """Staged by this very process: needs no second asking for another pod."""

    # --- questions of the manager ---------------------------------------------------------------

    def unique_name(self, spec: VolumeSpec) -> str:
        if spec.csi is None:
            return ""
        return self._unique(spec.csi.driver or "", spec.csi.volume_handle or "")

    def _unique(self, driver: str, handle: str) -> str:
        said = self._objects.driver(driver)
        return "" if said is not None and said.attach_required is False else unique_name(driver, handle)

    def in_use(self) -> Iterable[str]:
        """Also what could not be unstaged yet, though no pod has it any more."""
        return [self._unique(*record.key) for record in self._held.values()]

    def reconstruct(self) -> None:
        self._held = {self._record_home(record, block): record for block, record in self._all_staged()}

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
        """What the attacher says. A node that is full has told wrong limits: they are asked for again."""
        assert spec.csi is not None
        driver, handle = spec.csi.driver or "", spec.csi.volume_handle or ""
        found = await self._objects.attachment(attachment_name(handle, driver, self._node_name))
        trouble = found.status.attach_error if found is not None else None
        if trouble is None:
            return ""
        said = self._objects.driver(driver)
        renews = said is not None and bool(said.node_allocatable_update_period_seconds)
        if renews and trouble.error_code == NODE_IS_FULL and (driver, handle) not in self._found_full:
            await self._drivers.refresh(driver)
            self._found_full.add((driver, handle))
        return trouble.message or ""

    # --- mounting -------------------------------------------------------------------------------

    async def ready(self) -> None:
        await self._objects.known()

    async def publish(self, task: SetUp, waiting: Waiting) -> None:
        source = source_of(task.spec, task.uid, namespace_of(task.pod))
        driver = self._drivers.find(source.driver, migrated=task.spec.migrated, waiting=waiting)
        self._found_full.discard((source.driver, source.handle))
        async with self._locks.acquire((source.driver, source.handle)):
            said = self._objects.driver(source.driver)
            rules.check_lifecycle(said, source.driver, EPHEMERAL if source.ephemeral else PERSISTENT)
            capabilities = await self._drivers.capabilities(source.driver, driver)
            volume = await self._described(task, source, said, capabilities)
            staging = await self._stage(task.spec, source, driver, volume, capabilities)
            path = self._target(task.uid, task.spec.folder, block=task.spec.block)
            asked = await self._publish(task, source, driver, said, volume, staging)
            if not task.spec.block:
                await self._finish(task, source, said, capabilities, again=asked)
            if rules.EXPAND in capabilities and task.spec.claim is not None:
                secrets = await self._secret(source.expand_secret)
                key = source.driver, source.handle
                await self._growth.grow(task, key, driver, _with(volume, secrets=secrets), path, staging)

    async def _described(
        self, task: SetUp, source: CsiSource, said: CSIDriverSpec | None, capabilities: frozenset[str]
    ) -> CsiVolume:
        spec = task.spec
        group = task.fs_group if rules.MOUNT_GROUP in capabilities else None
        return CsiVolume(
            volume_id=source.handle,
            access_mode=rules.access_mode(spec.access_modes, capabilities),
            block=spec.block,
            fs_type=source.fs_type,
            mount_flags=spec.mount_options,
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

    async def _stage(
        self, spec: VolumeSpec, source: CsiSource, driver: CsiNode, volume: CsiVolume, capabilities: frozenset[str]
    ) -> Path | None:
        key = (source.driver, source.handle)
        record = source.record(spec, self._node_name)
        home, staging = self._record_home(record, spec.block), self._staging(record, spec.block)
        stages = rules.STAGE_UNSTAGE in capabilities and not source.ephemeral
        if spec.block or stages:
            # A block volume is written down here even when its driver stages nothing: the pod has no folder for it.
            self._held[home] = record
            await self._run(partial(_write_down, home, staging if stages else None, record), key)
        if not stages:
            return None
        if key in self._staged:
            return staging
        secrets = await self._secret(source.stage_secret)
        try:
            await driver.stage(_with(volume, secrets=secrets), staging)
        except PluginError as error:
            if rules.is_final(error.code) and not await self._run(partial(self._has_users, record, spec.block), key):
                await self._drop(record, spec.block)
            raise
        self._staged.add(key)
        return staging

    async def _publish(
        self,
        task: SetUp,
        source: CsiSource,
        driver: CsiNode,
        said: CSIDriverSpec | None,
        volume: CsiVolume,
        staging: Path | None,
    ) -> bool:
        """Whether the driver was asked: it may have written to the volume."""
        spec, uid, key = task.spec, task.uid, (source.driver, source.handle)
        target = self._target(uid, spec.folder, block=spec.block)
        again = said is not None and bool(said.requires_republish)
        if not again and await self._run(partial(self._is_published, uid, spec), key):
            return False
        record = source.record(spec, self._node_name)
        if spec.block:
            await self._run(partial(make_folder, target.parent), key)
        else:
            await self._run(partial(_write_down, target.parent, None, record), key)
        context = {**volume.volume_context, **rules.pod_info(said, task.pod, ephemeral=source.ephemeral)}
        secrets = dict(await self._secret(source.publish_secret))
        tokens = await self._tokens(task, said)
        if tokens:
            where = secrets if said is not None and said.service_account_token_in_secrets else context
            where[rules.TOKENS_KEY] = tokens
        told = _with(volume, secrets=secrets, context=context)
        try:
            await driver.publish(told, target, staging=staging, read_only=spec.read_only)
        except PluginError as error:
            if rules.is_final(error.code) and not again:
                await self._run(partial(self._forget_target, uid, spec.folder, spec.block), key)
            raise
        if spec.block:
            await self._run(partial(self._blocks.show, spec.folder, uid), key)
        return True

    async def _finish(
        self, task: SetUp, source: CsiSource, said: CSIDriverSpec | None, capabilities: frozenset[str], *, again: bool
    ) -> None:
        """The pod's group, after each publishing; a marker keeps a restarted agent from walking a big volume."""
        marker = self._marker(task.uid, task.spec.folder)
        target = self._target(task.uid, task.spec.folder, block=False)
        applies = rules.applies_fs_group(said, task.spec, source.fs_type, capabilities)

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

    async def _tokens(self, task: SetUp, said: CSIDriverSpec | None) -> str:
        if said is None or not said.token_requests:
            return ""
        found = {}
        for wanted in said.token_requests:
            seconds = wanted.expiration_seconds or 3600
            token, expires = await self._objects.token(task.pod, wanted.audience or "", seconds)
            found[wanted.audience or ""] = {"token": token, "expirationTimestamp": expires}
        return json.dumps(found)

    async def _secret(self, name: SecretName | None) -> Mapping[str, str]:
        if name is None:
            return {}
        secret = await self._objects.secret(*name)
        if secret is None:
            missing = f"secret {name[0]}/{name[1]}"
            raise VolumeProblem(f"{missing} not found", missing=missing)
        return {key: base64.b64decode(value).decode(errors="surrogateescape") for key, value in secret.data.items()}

    # --- giving back ----------------------------------------------------------------------------

    async def unpublish(self, uid: str, spec: VolumeSpec, waiting: Waiting) -> None:
        folder, block = spec.folder, spec.block
        home = self._paths.device_home(folder) if block else self._paths.home(uid, folder)
        record = await self._run(partial(read_record, home), (uid, folder))
        if record is None:
            # Written down before anything else happens: without a record there is nothing at any driver.
            await self._run(partial(self._forget_target, uid, folder, block), (uid, folder))
            return
        async with self._locks.acquire(record.key):
            if block:
                await self._run(partial(self._blocks.hide, folder, uid), record.key)
            driver = self._drivers.find(record.driver, waiting=waiting)
            await driver.unpublish(record.handle, self._target(uid, folder, block=block))
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
                self._held.pop(home, None)
                self._growth.forget(key)
            else:
                # A record that was lost or damaged is no reason to leave the volume staged.
                record = record or known
                driver = self._drivers.find(record.driver, waiting=waiting)
                await self._unstage(record, driver, spec.block)

    async def _unstage(self, record: VolumeRecord, driver: CsiNode, block: bool) -> None:
        """When no pod has it any more."""
        if await self._run(partial(self._has_users, record, block), record.key):
            return
        staging = self._staging(record, block)
        self._staged.discard(record.key)  # first: a call that failed may have been carried out all the same
        if await self._run(partial(self._is_there, staging), record.key):
            await driver.unstage(record.handle, staging)
        await self._drop(record, block)

    def _is_there(self, staging: Path) -> bool:
        return is_mount_point(self._mounts, staging) or staging.exists()  # first what no dead server can hang

    async def _drop(self, record: VolumeRecord, block: bool) -> None:
        """The node has it no more."""
        await self._run(partial(self._forget_staging, record, block), record.key)
        self._held.pop(self._record_home(record, block), None)
        self._growth.forget(record.key)

    async def sweep(self) -> None:
        """Give back what a killed agent left staged for nobody. Each failure is told and left for the next time."""
        staged = await self._run(self._all_staged, ("all",))
        drivers = {record.driver for _, record in staged}
        await gather_all(*(self._sweep_driver([each for each in staged if each[1].driver == name]) for name in drivers))

    async def _sweep_driver(self, staged: Sequence[tuple[bool, VolumeRecord]]) -> None:
        for block, record in staged:
            if self._locks.is_wanted(record.key):
                continue  # somebody is seeing to it
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

    # --- figures --------------------------------------------------------------------------------

    async def usage(self, uid: str, spec: VolumeSpec) -> VolumeUsage | None:
        """The driver's own figures; None when it has none and the filesystem is to be asked."""
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
        """Each with whether it is a block volume."""
        disks = [(True, each) for each in self._paths.staged_devices()]
        return [*((False, each) for each in self._paths.staged()), *disks]

    def _forget_target(self, uid: str, folder: str, block: bool) -> None:
        """Remove what we made for the pod. Never what is mounted: only empty folders go."""
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
        """After its deadline the work goes on: nothing else is done about the same volume until it is back."""
        return await host_calls.run(work, name="folders of CSI volumes", key="^".join(about), within=FOLDERS_WITHIN)


def _with(volume: CsiVolume, *, secrets: Mapping[str, str], context: Mapping[str, str] | None = None) -> CsiVolume:
    return replace(volume, secrets=secrets, volume_context=volume.volume_context if context is None else context)


def _write_down(home: Path, staging: Path | None, record: VolumeRecord) -> None:
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
    """The record last: while it is there, the next life of the agent knows that something may be left."""
    try:
        names = os.listdir(home)
    except (FileNotFoundError, NotADirectoryError):
        return
    for name in names:
        if name.startswith(f".{DATA_FILE}"):  # a record that was being written when the agent was killed
            (home / name).unlink(missing_ok=True)
    (home / DATA_FILE).unlink(missing_ok=True)
    _remove_empty(home)
