"""Image archives made offline: files in, an OCI layout in a tar out, the same bytes for the same files.

The result is what `ctr images import` reads. One layer, one platform. Does not know what the images are for
(images.py) and pulls nothing.
"""

from __future__ import annotations

import hashlib
import io
import json
import platform
import stat
import tarfile
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct, field

from pykubelet.standalone.errors import StandaloneError

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"
LAYER_TYPE = "application/vnd.oci.image.layer.v1.tar"
INDEX_TYPE = "application/vnd.oci.image.index.v1+json"


class File(Struct, frozen=True):
    data: bytes
    mode: int = 0o644


class Link(Struct, frozen=True):
    """A symbolic link."""

    target: str


class Folder(Struct, frozen=True):
    mode: int = 0o755


Entry = File | Link | Folder


class Image(Struct, frozen=True, kw_only=True):
    """What an image consists of. Paths are relative to the image's root; parent folders are added."""

    name: str
    """Full reference, e.g. `pykubelet.local/pause:1`."""
    entries: Mapping[str, Entry]
    entrypoint: Sequence[str] = ()
    command: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    user: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    exposed_ports: Sequence[str] = ()


class Archive(Struct, frozen=True, kw_only=True):
    name: str
    digest: str
    """Of the manifest: what the runtime shows for the imported image."""
    data: bytes


def architecture() -> str:
    """This machine's architecture as images spell it."""
    machine = platform.machine()
    try:
        return ARCHITECTURES[machine]
    except KeyError:
        raise StandaloneError(f"no offline images for machines of type {machine}") from None


def pack(image: Image, arch: str) -> Archive:
    """The image as an archive."""
    layer = _tar(_with_parents(image.entries))
    config = _json(_config(image, arch, _digest(layer)))
    manifest = _json(
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST_TYPE,
            "config": _descriptor(CONFIG_TYPE, config),
            "layers": [_descriptor(LAYER_TYPE, layer)],
        }
    )
    named = _descriptor(MANIFEST_TYPE, manifest) | {
        "platform": {"os": "linux", "architecture": arch},
        "annotations": {
            "io.containerd.image.name": image.name,
            "org.opencontainers.image.ref.name": image.name.rpartition(":")[2],
        },
    }
    index = _json({"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": [named]})
    blobs = {f"blobs/sha256/{_digest(blob)[7:]}": File(blob) for blob in (layer, config, manifest)}
    files: dict[str, Entry] = {"oci-layout": File(b'{"imageLayoutVersion":"1.0.0"}'), "index.json": File(index)}
    return Archive(name=image.name, digest=_digest(manifest), data=_tar(files | blobs))


def _config(image: Image, arch: str, layer_digest: str) -> dict[str, Any]:
    run: dict[str, Any] = {"WorkingDir": "/"}
    if image.entrypoint:
        run["Entrypoint"] = list(image.entrypoint)
    if image.command:
        run["Cmd"] = list(image.command)
    if image.environment:
        run["Env"] = [f"{key}={value}" for key, value in image.environment.items()]
    if image.user:
        run["User"] = image.user
    if image.labels:
        run["Labels"] = dict(image.labels)
    if image.exposed_ports:
        run["ExposedPorts"] = {port: {} for port in image.exposed_ports}
    return {
        "created": "1970-01-01T00:00:00Z",
        "architecture": arch,
        "os": "linux",
        "config": run,
        "rootfs": {"type": "layers", "diff_ids": [layer_digest]},
        "history": [{"created": "1970-01-01T00:00:00Z", "created_by": "pykubelet"}],
    }


def _with_parents(entries: Mapping[str, Entry]) -> dict[str, Entry]:
    complete = dict(entries)
    for path in entries:
        parent = path.rpartition("/")[0]
        while parent:
            complete.setdefault(parent, Folder())
            parent = parent.rpartition("/")[0]
    return complete


def _tar(entries: Mapping[str, Entry]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        # Sorted, so that a folder comes before what is in it and the bytes never vary.
        for path in sorted(entries):
            _add(tar, path, entries[path])
    return buffer.getvalue()


def _add(tar: tarfile.TarFile, path: str, entry: Entry) -> None:
    info = tarfile.TarInfo(path)
    match entry:
        case File(data, mode):
            info.size, info.mode = len(data), stat.S_IMODE(mode)
            tar.addfile(info, io.BytesIO(data))
        case Link(target):
            info.type, info.linkname, info.mode = tarfile.SYMTYPE, target, 0o777
            tar.addfile(info)
        case Folder(mode):
            info.type, info.mode = tarfile.DIRTYPE, stat.S_IMODE(mode)
            tar.addfile(info)


def _descriptor(media_type: str, blob: bytes) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": _digest(blob), "size": len(blob)}


def _digest(blob: bytes) -> str:
    return "sha256:" + hashlib.sha256(blob).hexdigest()


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()
