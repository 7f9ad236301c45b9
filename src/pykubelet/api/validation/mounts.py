"""Volume mounts and block devices of a container, and the volumes they name."""

from collections.abc import Mapping, Sequence

from pykubelet.api.types import SecurityContext, Volume, VolumeDevice, VolumeMount
from pykubelet.api.validation import names
from pykubelet.api.validation.findings import Findings, show

PROPAGATIONS = ("None", "HostToContainer", "Bidirectional")


def validate_mounts(
    mounts: Sequence[VolumeMount],
    devices: Sequence[VolumeDevice],
    volumes: Mapping[str | None, Volume],
    context: SecurityContext | None,
    at: str,
    found: Findings,
) -> None:
    """Check both lists together: a volume or a path may appear in only one of them."""
    privileged = context is not None and bool(context.privileged)
    device_names = {device.name for device in devices if device.name}
    paths: set[str] = set()
    for i, mount in enumerate(mounts):
        path = f"{at}.volumeMounts[{i}]"
        if found.required(f"{path}.name", mount.name):
            if mount.name not in volumes:
                found.add(f"{path}.name", f"there is no volume named {show(mount.name)}")
            if mount.name in device_names:
                found.add(f"{path}.name", f"volume {show(mount.name)} is also in volumeDevices")
        if found.required(f"{path}.mountPath", mount.mount_path):
            if mount.mount_path in paths:
                found.add(f"{path}.mountPath", f"is used twice: {show(mount.mount_path)}")
            paths.add(mount.mount_path or "")
        _validate_sub_path(mount, path, found)
        found.choice(f"{path}.mountPropagation", mount.mount_propagation, PROPAGATIONS)
        if mount.mount_propagation == "Bidirectional" and not privileged:
            found.add(f"{path}.mountPropagation", "Bidirectional needs a privileged container")
        _validate_recursive(mount, path, found)
    _validate_devices(devices, volumes, paths, at, found)


def _validate_sub_path(mount: VolumeMount, at: str, found: Findings) -> None:
    if mount.sub_path:
        found.check(f"{at}.subPath", names.relative_path(mount.sub_path))
    if mount.sub_path_expr:
        found.check(f"{at}.subPathExpr", names.relative_path(mount.sub_path_expr))
        if mount.sub_path:
            found.add(f"{at}.subPathExpr", "must not be set together with subPath")


def _validate_recursive(mount: VolumeMount, at: str, found: Findings) -> None:
    path, value = f"{at}.recursiveReadOnly", mount.recursive_read_only
    found.choice(path, value, ("Disabled", "IfPossible", "Enabled"))
    if value in ("IfPossible", "Enabled"):
        if not mount.read_only:
            found.add(path, "needs readOnly true")
        if mount.mount_propagation not in (None, "None"):
            found.add(path, "needs mountPropagation None")


def _validate_devices(
    devices: Sequence[VolumeDevice],
    volumes: Mapping[str | None, Volume],
    mount_paths: set[str],
    at: str,
    found: Findings,
) -> None:
    used_names: set[str] = set()
    used_paths: set[str] = set()
    for i, device in enumerate(devices):
        path = f"{at}.volumeDevices[{i}]"
        if found.required(f"{path}.name", device.name):
            volume = volumes.get(device.name)
            if volume is None:
                found.add(f"{path}.name", f"there is no volume named {show(device.name)}")
            elif volume.persistent_volume_claim is None and volume.ephemeral is None:
                found.add(f"{path}.name", f"volume {show(device.name)} must be a claim to be a block device")
            if device.name in used_names:
                found.add(f"{path}.name", f"is used twice: {show(device.name)}")
            used_names.add(device.name or "")
        target = device.device_path or ""
        if not found.required(f"{path}.devicePath", target):
            continue
        found.check(f"{path}.devicePath", names.no_backsteps(target))
        if target in used_paths or target in mount_paths:
            found.add(f"{path}.devicePath", f"is used twice: {show(target)}")
        used_paths.add(target)
