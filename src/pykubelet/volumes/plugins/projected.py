"""configMap, secret, downwardAPI and projected volumes: files made from API objects, updated while the pod runs.

Content is gathered first and written then, so that a slow API server never blocks a thread. Everything but configMaps
is in memory (tmpfs) and never touches a disk. When an object cannot be read, the old content stays. There is no ready
marker: set-up compares the files with the content. Writing is in atomic_writer.py.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from pykubelet.api.types import (
    ClusterTrustBundleProjection,
    ConfigMap,
    DownwardAPIVolumeFile,
    KeyToPath,
    Pod,
    PodCertificateProjection,
    Secret,
    ServiceAccountTokenProjection,
    VolumeProjection,
)
from pykubelet.clients.host.port import Mounts, NodePaths
from pykubelet.kit.clock import Clock
from pykubelet.kit.tasks import gather_all
from pykubelet.model.pod import namespace_of
from pykubelet.volumes import atomic_writer
from pykubelet.volumes.errors import VolumeProblem
from pykubelet.volumes.objects import Downward, VolumeObjects
from pykubelet.volumes.plugins.empty_dir import EmptyDir
from pykubelet.volumes.plugins.plugin import FileContent, Files, PluginDefaults, SetUp
from pykubelet.volumes.spec import CONFIG_MAP, DOWNWARD_API, PROJECTED, SECRET, VolumeSpec

TOKEN_SECONDS = 3600


class ContentPlugin(PluginDefaults):
    """What the four kinds share; each one gathers its own files."""

    name = ""
    medium = "Memory"
    requires_remount = True

    def __init__(
        self, *, mounts: Mounts, paths: NodePaths, clock: Clock, objects: VolumeObjects, empty_dir: EmptyDir
    ) -> None:
        self._mounts = mounts
        self._paths = paths
        self._clock = clock
        self._objects = objects
        self._empty_dir = empty_dir

    def is_read_only(self, spec: VolumeSpec) -> bool:
        return True

    def set_up(self, task: SetUp, files: Files | None) -> None:
        assert files is not None
        atomic_writer.check_paths(files)
        self._empty_dir.make(task, task.path, self.medium)
        for nested in task.nested:
            _make_nested(task.path, nested, {path.split("/", 1)[0] for path in files})
        if task.fs_group is not None:
            os.chown(task.path, -1, task.fs_group)
            os.chmod(task.path, 0o2777)
        atomic_writer.write_volume(
            task.path, files, gid=task.fs_group, now=self._clock.now(), remove=self._mounts.remove_tree
        )

    def tear_down(self, uid: str, folder: str) -> None:
        path = self._paths.volume(uid, self.name, folder)
        self._mounts.unmount(path)
        self._mounts.remove_tree(path)

    # --- sources of both single and projected volumes -------------------------------------------

    async def _config_map(
        self, task: SetUp, name: str, items: Sequence[KeyToPath], mode: int, optional: bool
    ) -> dict[str, FileContent]:
        namespace = namespace_of(task.pod)
        found = await self._objects.references.config_map(namespace, name)
        if found is None:
            if optional:
                return {}
            missing = f"configmap {namespace}/{name}"
            raise VolumeProblem(f"{missing} not found", missing=missing)
        return select(config_map_data(found), items, mode=mode, optional=optional, kind="config")

    async def _secret(
        self, task: SetUp, name: str, items: Sequence[KeyToPath], mode: int, optional: bool
    ) -> dict[str, FileContent]:
        namespace = namespace_of(task.pod)
        found = await self._objects.references.secret(namespace, name)
        if found is None:
            if optional:
                return {}
            missing = f"secret {namespace}/{name}"
            raise VolumeProblem(f"{missing} not found", missing=missing)
        return select(secret_data(found), items, mode=mode, optional=optional, kind="secret")


def _make_nested(volume: Path, nested: str, shown: set[str]) -> None:
    """Make a folder on which another volume will be mounted, unless the content has it."""
    first = nested.split("/", 1)[0]
    if first in shown or ".." in nested.split("/"):
        return
    folder = volume
    for step in nested.split("/"):
        folder = folder / step
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder, 0o755)


class ConfigMapVolume(ContentPlugin):
    name = CONFIG_MAP
    medium = ""

    async def gather(self, task: SetUp) -> Files:
        source = task.spec.volume.config_map
        assert source is not None
        mode = _mode(source.default_mode)
        return await self._config_map(task, source.name or "", source.items, mode, bool(source.optional))


class SecretVolume(ContentPlugin):
    name = SECRET

    async def gather(self, task: SetUp) -> Files:
        source = task.spec.volume.secret
        assert source is not None
        mode = _mode(source.default_mode)
        return await self._secret(task, source.secret_name or "", source.items, mode, bool(source.optional))


class DownwardVolume(ContentPlugin):
    name = DOWNWARD_API

    async def gather(self, task: SetUp) -> Files:
        source = task.spec.volume.downward_api
        assert source is not None
        return downward_files(task.pod, source.items, self._objects.downward, mode=_mode(source.default_mode))


class ProjectedVolume(ContentPlugin):
    name = PROJECTED

    async def gather(self, task: SetUp) -> Files:
        source = task.spec.volume.projected
        assert source is not None
        mode = _mode(source.default_mode)
        parts = await gather_all(*[self._part(task, index, part, mode) for index, part in enumerate(source.sources)])
        files: dict[str, FileContent] = {}
        for part in parts:  # of several files with the same path the last one counts
            files |= part
        return files

    async def _part(self, task: SetUp, index: int, part: VolumeProjection, mode: int) -> dict[str, FileContent]:
        if (config := part.config_map) is not None:
            return await self._config_map(task, config.name or "", config.items, mode, bool(config.optional))
        if (secret := part.secret) is not None:
            return await self._secret(task, secret.name or "", secret.items, mode, bool(secret.optional))
        if part.downward_api is not None:
            return downward_files(task.pod, part.downward_api.items, self._objects.downward, mode=mode)
        if part.service_account_token is not None:
            return await self._token(task, part.service_account_token, mode)
        if part.cluster_trust_bundle is not None:
            return await self._trust(task, part.cluster_trust_bundle, mode)
        if part.pod_certificate is not None:
            return await self._certificate(task, index, part.pod_certificate, mode)
        raise VolumeProblem(f"source {index} of the projected volume is of a kind this agent does not know")

    async def _token(self, task: SetUp, source: ServiceAccountTokenProjection, mode: int) -> dict[str, FileContent]:
        seconds = source.expiration_seconds or TOKEN_SECONDS
        token = await self._objects.tokens.token(task.pod, source.audience or "", seconds)
        return {source.path or "": self._private(task, token.encode(), mode)}

    async def _trust(self, task: SetUp, source: ClusterTrustBundleProjection, mode: int) -> dict[str, FileContent]:
        if source.name:
            pem = await self._objects.trust.by_name(source.name)
            if pem is None and not source.optional:
                raise VolumeProblem(f"clustertrustbundle {source.name} not found")
        else:
            pem = await self._objects.trust.by_signer(source.signer_name or "", source.label_selector)
            if not pem and not source.optional:
                raise VolumeProblem("combination of signerName and labelSelector matched zero ClusterTrustBundles")
        return {source.path or "": self._private(task, (pem or "").encode(), mode)}

    async def _certificate(
        self, task: SetUp, index: int, source: PodCertificateProjection, mode: int
    ) -> dict[str, FileContent]:
        found = await self._objects.certificates.credentials(task.pod, task.spec.name, index, source)
        files = {}
        if source.credential_bundle_path:
            files[source.credential_bundle_path] = self._private(task, found.key_pem + found.chain_pem, mode)
        if source.key_path:
            files[source.key_path] = self._private(task, found.key_pem, mode)
        if source.certificate_chain_path:
            files[source.certificate_chain_path] = self._private(task, found.chain_pem, mode)
        return files

    def _private(self, task: SetUp, data: bytes, mode: int) -> FileContent:
        return private_file(data, mode=mode, fs_user=task.fs_user, fs_group=task.fs_group)


def _mode(value: int | None) -> int:
    return DEFAULT_MODE if value is None else value


DEFAULT_MODE = 0o644
PRIVATE_MODE = 0o600


def config_map_data(config: ConfigMap) -> dict[str, bytes]:
    texts = {key: text.encode() for key, text in config.data.items()}
    return texts | {key: _decoded(key, value) for key, value in config.binary_data.items()}


def secret_data(secret: Secret) -> dict[str, bytes]:
    """stringData is write-only in the API, so only data counts."""
    return {key: _decoded(key, value) for key, value in secret.data.items()}


def _decoded(key: str, value: str) -> bytes:
    try:
        return base64.b64decode(value)
    except (binascii.Error, ValueError) as error:
        raise VolumeProblem(f"key {key} is not valid base64: {error}") from error


def select(
    data: Mapping[str, bytes], items: Sequence[KeyToPath], *, mode: int, optional: bool, kind: str
) -> dict[str, FileContent]:
    """All keys by their names, or the requested items. `kind` of object: config or secret."""
    if not items:
        return {key: FileContent(data=value, mode=mode) for key, value in data.items()}
    found = {}
    for item in items:
        key = item.key or ""
        if key in data:
            own = item.mode if item.mode is not None else mode
            found[item.path or ""] = FileContent(data=data[key], mode=own)
        elif not optional:
            text = f"{'configmap ' if kind == 'config' else ''}references non-existent {kind} key: {key}"
            raise VolumeProblem(text, missing=f"a key of {kind}")
    return found


def downward_files(
    pod: Pod, items: Sequence[DownwardAPIVolumeFile], downward: Downward, *, mode: int
) -> dict[str, FileContent]:
    found = {}
    for item in items:
        if item.field_ref is not None:
            text = downward.field(pod, item.field_ref.field_path or "")
        elif item.resource_field_ref is not None:
            text = downward.resource(pod, item.resource_field_ref)
        else:
            raise VolumeProblem(f"downwardAPI file {item.path} has neither fieldRef nor resourceFieldRef")
        own = item.mode if item.mode is not None else mode
        found[item.path or ""] = FileContent(data=text.encode(), mode=own)
    return found


def private_file(data: bytes, *, mode: int, fs_user: int | None, fs_group: int | None) -> FileContent:
    """A token or key: mode 0600 if the pod defines a user or group, else the volume's mode."""
    if fs_user is None and fs_group is None:
        return FileContent(data=data, mode=mode)
    return FileContent(data=data, mode=PRIVATE_MODE, uid=fs_user)
