"""FlexVolume: volumes that a program of the host mounts.

The program of driver `vendor/name` is `vendor~name/name` in `volumePluginDir`. It is run with a command, paths and
options in JSON, and answers with one JSON object. What a driver does not support is done in upstream's default way. A
driver is initialized when it is first needed and whenever its program has changed, so it may come at any time.
Growing (`expandvolume`, `expandfs`) is not here.
"""

from __future__ import annotations

import base64
import contextlib
import logging
import os
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

import msgspec
from msgspec import Struct, field

from pykubelet.api.types import FlexVolumeSource
from pykubelet.clients.host.port import Mounts, NodePaths, ToolFailed, ToolMissing
from pykubelet.kit.host_calls import host_calls
from pykubelet.kit.sharing import SingleFlight
from pykubelet.model.errors import PykubeletError
from pykubelet.model.pod import name_of, namespace_of
from pykubelet.volumes.errors import VolumeProblem
from pykubelet.volumes.objects import VolumeObjects, VolumeRules
from pykubelet.volumes.plugins.disks import DeviceMounts, Note, mount_filesystem
from pykubelet.volumes.plugins.mounted import MountedPlugin
from pykubelet.volumes.plugins.plugin import TOOL_SECONDS, FileContent, Files, SetUp, make_folder
from pykubelet.volumes.plugins.validation import fs_type
from pykubelet.volumes.spec import VolumeSpec

logger = logging.getLogger(__name__)

FLEX = "kubernetes.io/flexvolume"
"""Name of the folder for disks of all drivers."""
INIT_SECONDS = 20.0
"""Deadline of `init`: below that of all a set-up gathers before it begins, so that its own error is reported."""
MOST_SAID = 1000
"""Characters of a driver's message that are shown."""
SUCCESS, NOT_SUPPORTED = "Success", "Not supported"


class Capabilities(Struct, frozen=True, kw_only=True):
    """Go's decoder ignores case, so drivers write these in any: all names are compared in lower case."""

    attach: bool = True
    relabel: bool = field(default=True, name="selinuxrelabel")
    fs_group: bool = field(default=True, name="fsgroup")


class Answer(Struct, frozen=True, kw_only=True):
    status: str = ""
    message: str = ""
    device: str = ""
    capabilities: Capabilities = Capabilities()


def answer_of(output: str) -> Answer | None:
    """None when it is no answer of a driver."""
    try:
        found = msgspec.json.decode(output, type=dict[str, object])
        lower = {key.lower(): value for key, value in found.items() if value is not None}
        able = lower.get("capabilities")
        if isinstance(able, dict):
            lower["capabilities"] = {key.lower(): value for key, value in able.items() if value is not None}
        return msgspec.convert(lower, Answer)
    except (msgspec.MsgspecError, RecursionError):
        return None


class FlexVolume(MountedPlugin):
    """The volumes of one driver."""

    def __init__(
        self, name: str, *, node: str, mounts: Mounts, paths: NodePaths, objects: VolumeObjects, rules: VolumeRules
    ) -> None:
        super().__init__(mounts=mounts, paths=paths)
        self.name = name
        self._node = node
        self._references, self._claims = objects.references, objects.claims
        self._attaches = not rules.controller_attaches
        self._program = rules.flex_drivers / name.replace("/", "~") / name.rpartition("/")[2]
        self._top = paths.plugins / FLEX / name / "mounts"
        self._devices = DeviceMounts(
            mounts=mounts, paths=paths, plugin=name, top=self._top, unmount=self._unmount_device
        )
        self._initialized: tuple[int, int, int] | None = None
        """Inode, time and size of the program that was initialized."""
        self._starting: SingleFlight[None] = SingleFlight()
        self._can = Capabilities()
        self._unsupported: set[str] = set()

    @property
    def is_installed(self) -> bool:
        return self._program.is_file()

    @property
    def has_state(self) -> bool:
        """Whether its program was found at some time, or disks of it were."""
        return self._initialized is not None or bool(self._devices.unclaimed())

    # --- what the manager wants to know -----------------------------------------------------------

    def unique_name(self, spec: VolumeSpec) -> str:
        return f"{self.name}/{spec.folder}" if self._initialized is not None and self._can.attach else ""

    async def ready(self) -> None:
        name, within = "starting a flexVolume driver", INIT_SECONDS + 5.0
        await self._starting.run(
            self.name, lambda: host_calls.run(self._initialize, name=name, key=self.name, within=within)
        )

    def reconstruct(self) -> None:
        self._devices.reconstruct()

    def in_use(self) -> Iterable[str]:
        return [f"{self.name}/{place.name}" for place in self._devices.unclaimed()]

    async def gather(self, task: SetUp) -> Files | None:
        secret_ref = _source(task.spec).secret_ref
        if secret_ref is None or not secret_ref.name:
            return None
        namespace = task.spec.secret_namespace or namespace_of(task.pod)
        # What a persistent volume names is no reference of the pod, so it is not watched.
        reader = self._claims if task.spec.persistent else self._references
        secret = await reader.secret(namespace, secret_ref.name)
        if secret is None:
            missing = f"secret {namespace}/{secret_ref.name}"
            raise VolumeProblem(f"{missing} not found", missing=missing)
        if secret.type != self.name:
            raise VolumeProblem(f"secret {namespace}/{secret_ref.name} is not of type {self.name}, the driver's")
        return {key: FileContent(data=base64.b64decode(value), mode=0o600) for key, value in secret.data.items()}

    # --- set-up -------------------------------------------------------------------------------------

    def using(self, task: SetUp) -> AbstractContextManager[None]:
        if not self._can.attach:
            return contextlib.nullcontext()
        return self._devices.used(task, Note(place=str(self._place(task.spec))))

    def mount(self, task: SetUp, files: Files | None) -> None:
        place = self._place(task.spec)
        if self._can.attach:
            self._mount_device(task, place)
        more = {
            "kubernetes.io/pod.name": name_of(task.pod),
            "kubernetes.io/pod.namespace": namespace_of(task.pod),
            "kubernetes.io/pod.uid": task.uid,
            "kubernetes.io/serviceAccount.name": task.pod.spec.service_account_name or "",
        }
        for key, content in (files or {}).items():
            more[f"kubernetes.io/secret/{key}"] = base64.b64encode(content.data).decode()
        if task.fs_group is not None:
            more["kubernetes.io/mounterArgs.FsGroup"] = str(task.fs_group)
        if self._call("mount", str(task.path), _options(task.spec, more)) is None:
            if not self.is_mounted(place):
                raise VolumeProblem(f"driver {self.name} supports neither mount nor mountdevice: nothing is mounted")
            self._mounts.bind(place, task.path, read_only=task.spec.read_only)

    def _mount_device(self, task: SetUp, place: Path) -> None:
        if self.is_mounted(place):
            return
        make_folder(place)
        options = _options(task.spec, {})
        device = task.device
        if self._attaches and (attached := self._call("attach", options, self._node)) is not None:
            device = attached.device
        if (waited := self._call("waitforattach", device, options)) is not None:
            device = waited.device
        if self._call("mountdevice", str(place), device, options) is None and device:
            read_only = task.spec.read_only
            kind = fs_type(_source(task.spec).fs_type, "flexVolume.fsType")
            mount_filesystem(self._mounts, device, place, kind, ("ro" if read_only else "rw",), read_only=read_only)

    def _give(self, task: SetUp) -> None:
        try:
            super()._give(task)
        except (PykubeletError, OSError) as error:
            # Not every filesystem of a driver has owners; upstream goes on without a word.
            extra = {"volume": task.spec.name, "uid": task.uid, "error": str(error)}
            logger.warning("fsGroup of a flexVolume not applied", extra=extra)

    # --- tear-down ----------------------------------------------------------------------------------

    def unmount(self, path: Path) -> None:
        # A mount whose server is dead cannot be looked at, but the kernel lists it.
        if not self.is_mounted(path) and not os.path.lexists(path):
            return
        try:
            if self._call("unmount", str(path)) is None:
                self._mounts.unmount(path)
        except ToolMissing:
            if self.is_mounted(path):
                self._mounts.unmount(path)
        if self.is_mounted(path):
            raise VolumeProblem(f"{path} is still mounted although driver {self.name} said that it is not")

    def released(self, uid: str, folder: str) -> None:
        self._devices.release(uid, folder, self._detach)

    def _unmount_device(self, place: Path) -> None:
        if self.is_mounted(place) and self._call("unmountdevice", str(place)) is None:
            self._mounts.unmount(place)

    def _detach(self, place: Path, record: str) -> bool:
        if self._attaches:
            self._call("detach", place.name, self._node)
        return True

    def _place(self, spec: VolumeSpec) -> Path:
        return self._top / spec.folder

    # --- the program --------------------------------------------------------------------------------

    def _initialize(self) -> None:
        try:
            found = os.stat(self._program)
        except OSError as error:
            raise VolumeProblem(
                f"flexVolume driver {self.name} is not on this node: {self._program}: {error.strerror}"
            ) from error
        mark = found.st_ino, found.st_mtime_ns, found.st_size
        if mark == self._initialized:
            return
        self._unsupported = set()
        answer = self._call("init", seconds=INIT_SECONDS)
        if answer is None:
            raise VolumeProblem(f"flexVolume driver {self.name} does not support init")
        self._can, self._initialized = answer.capabilities, mark
        self.owned, self.selinux_relabel = self._can.fs_group, self._can.relabel

    def _call(self, command: str, *arguments: str, seconds: float = TOOL_SECONDS) -> Answer | None:
        """None when the driver does not support the command."""
        if command in self._unsupported:
            return None
        failed: ToolFailed | None = None
        try:
            # Arguments are not shown: options may hold secrets.
            shown = f"{self._program} {command}"
            output = self._mounts.run(str(self._program), command, *arguments, seconds=seconds, shown=shown)
        except ToolFailed as error:
            failed, output = error, error.output
        answer = answer_of(output)
        if failed is not None and (answer is None or answer.status == SUCCESS):
            raise failed
        if answer is None:
            raise VolumeProblem(f"flexVolume driver {self.name} gave no answer to {command} but {output[:200]!r}")
        if answer.status == NOT_SUPPORTED:
            self._unsupported.add(command)
            return None
        if answer.status != SUCCESS:
            said = answer.message[:MOST_SAID]
            raise VolumeProblem(f"{command} command failed, status: {answer.status[:MOST_SAID]}, reason: {said}")
        return answer


def _source(spec: VolumeSpec) -> FlexVolumeSource:
    assert spec.volume.flex_volume is not None
    return spec.volume.flex_volume


def _options(spec: VolumeSpec, more: Mapping[str, str]) -> str:
    source = _source(spec)
    options = {
        "kubernetes.io/fsType": source.fs_type or "",
        "kubernetes.io/readwrite": "ro" if spec.read_only else "rw",
        "kubernetes.io/pvOrVolumeName": spec.folder,
        **more,
        **source.options,
    }
    return msgspec.json.encode(options, order="sorted").decode()
