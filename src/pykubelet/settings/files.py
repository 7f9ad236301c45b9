"""Configuration files on disk: finding drop-ins, reading one file, merging.

Covers YAML and JSON, apiVersion and kind, and the RFC 7386 merge. Every fault names the file.
Does not cover the fields inside (decode.py) nor the order of precedence (load.py).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

from pykubelet.api.codec import ManifestError, load_yaml_documents
from pykubelet.settings.kinds import describe
from pykubelet.settings.problems import SettingsError
from pykubelet.settings.schema import API_VERSION, KIND

# Far more than any configuration; a device or a wrong file must not fill the memory.
MAX_FILE_BYTES = 4 * 1024 * 1024
DROP_IN_SUFFIX = ".conf"

ReadFile = Callable[[str], bytes]


def read_file(path: str) -> bytes:
    """The file's bytes; one byte over the limit at most, so that the loader can refuse it."""
    with open(path, "rb") as file:
        return file.read(MAX_FILE_BYTES + 1)


def find_drop_ins(folder: str) -> list[str]:
    """Every file below the folder: entries by name, sub-folders in their place. Links are not descended."""
    try:
        return list(_walk(folder))
    except OSError as err:
        raise SettingsError([f"--config-dir: {err.filename or folder}: {err.strerror or err}"]) from err
    except ValueError as err:  # a NUL byte in the path
        raise SettingsError([f"--config-dir: {folder!r}: {err}"]) from err


def _walk(folder: str) -> Iterator[str]:
    with os.scandir(folder) as entries:
        found = sorted(entries, key=lambda entry: os.fsencode(entry.name))
    for entry in found:
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(entry.path)
        else:
            yield entry.path


def is_drop_in(path: str) -> bool:
    """Whether the extension is exactly .conf, as Go counts extensions: `.conf` itself has it too."""
    return os.path.basename(path).endswith(DROP_IN_SUFFIX)


def load_document(path: str, read: ReadFile) -> dict[str, Any]:
    """The KubeletConfiguration in a file, without apiVersion and kind; raises SettingsError."""
    try:
        data = read(path)
        documents = load_yaml_documents(data, max_bytes=MAX_FILE_BYTES)
    except ManifestError as err:
        raise SettingsError([f"{path}: {err}"]) from err
    except OSError as err:
        raise SettingsError([f"{path}: {err.strerror or err}"]) from err
    except ValueError as err:
        raise SettingsError([f"{path!r}: {err}"]) from err
    if not documents:
        raise SettingsError([f"{path}: the file is empty, expected a {KIND}"])
    if len(documents) > 1:
        raise SettingsError([f"{path}: has {len(documents)} documents, expected one {KIND}"])
    document = documents[0]
    if not isinstance(document, dict):
        raise SettingsError([f"{path}: must be an object of kind {KIND}, not {describe(document)}"])
    faults = [
        f"{path}: {key}: must be {expected}, not {_shown(document.get(key))}"
        for key, expected in (("apiVersion", API_VERSION), ("kind", KIND))
        if document.get(key) != expected
    ]
    if faults:
        raise SettingsError(faults)
    return {key: value for key, value in document.items() if key not in ("apiVersion", "kind")}


def _shown(value: object) -> str:
    return repr(value[:80]) if isinstance(value, str) else describe(value)


def merge_patch(target: Any, patch: Any) -> Any:
    """RFC 7386: objects merge, null deletes, everything else replaces. Neither argument is changed."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge_patch(merged.get(key), value)
    return merged


def without_nulls(patch: Any) -> Any:
    """The patch as a plain object, to check its fields by themselves."""
    return merge_patch({}, patch)
