"""Files that API objects and pod fields become inside volumes. Pure: objects in, files out.

Covers keys, items, modes, optional, binary data, downward fields, and which files of projections are kept from
other users. Does not cover fetching (plugins/content.py) and writing (atomic.py).
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence

from pykubelet.api.types import ConfigMap, DownwardAPIVolumeFile, KeyToPath, Pod, Secret
from pykubelet.volumes.objects import Downward
from pykubelet.volumes.plugins.plugin import FileContent
from pykubelet.volumes.problems import VolumeProblem

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
    data: Mapping[str, bytes], items: Sequence[KeyToPath], *, mode: int, optional: bool, missing_text: str
) -> dict[str, FileContent]:
    """All keys by their names, or the items asked for; `missing_text` begins the error for an absent key."""
    if not items:
        return {key: FileContent(data=value, mode=mode) for key, value in data.items()}
    found = {}
    for item in items:
        key = item.key or ""
        if key in data:
            own = item.mode if item.mode is not None else mode
            found[item.path or ""] = FileContent(data=data[key], mode=own)
        elif not optional:
            raise VolumeProblem(f"{missing_text}: {key}")
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
    """A token or key: narrowed to its owner when the pod says who that is, else as the volume's mode says."""
    if fs_user is None and fs_group is None:
        return FileContent(data=data, mode=mode)
    return FileContent(data=data, mode=PRIVATE_MODE, uid=fs_user)
