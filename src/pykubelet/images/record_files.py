"""Pull intents and pulled records on disk, in the form and place that other kubelets of this release use.

Covers: `image_manager/{pulling,pulled}` under the root folder, one small JSON file each, named after a hash; older
versions are read, too. A file that is damaged is set aside under a name that is not read.
Every method blocks. Does not cover: what the records mean (records.py).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

from msgspec import Struct, field

from pykubelet.api.times import TimeError, format_time, parse_nano_time
from pykubelet.images.keyring import AccountOrigin, SecretOrigin
from pykubelet.kit.files import CheckpointDamaged, copy_aside, write_atomic

T = TypeVar("T")

GROUP: Final = "kubelet.config.k8s.io"
VERSION: Final = f"{GROUP}/v1beta1"
READABLE: Final = (VERSION, f"{GROUP}/v1alpha1")
INTENT, RECORD = "ImagePullIntent", "ImagePulledRecord"
NAME_PREFIX: Final = "sha256-"
SECOND_NS: Final = 1_000_000_000


class Access(Struct, frozen=True, kw_only=True):
    """Who has shown to be allowed to use an image."""

    all_pods: bool = False
    """It was pulled without a login or with one of the node's own."""
    secrets: Mapping[SecretOrigin, str] = field(default_factory=dict)
    """Secret -> fingerprint of the login in it."""
    accounts: frozenset[AccountOrigin] = frozenset()

    @property
    def is_empty(self) -> bool:
        return not (self.all_pods or self.secrets or self.accounts)


class PulledRecord(Struct, frozen=True, kw_only=True):
    image_ref: str
    updated: int
    """Unix seconds."""
    access: Mapping[str, Access] = field(default_factory=dict)
    """Image name as pods write it, without tag and digest -> who may use it."""


def file_name(text: str) -> str:
    return NAME_PREFIX + hashlib.sha256(text.encode()).hexdigest()


class RecordFiles:
    def __init__(self, root: Path) -> None:
        self._pulling = root / "image_manager" / "pulling"
        self._pulled = root / "image_manager" / "pulled"

    def make_folders(self) -> None:
        for folder in (self._pulling, self._pulled):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def intents(self) -> Iterator[tuple[Path, str | CheckpointDamaged, bool]]:
        """Every intent: its file, its image or why it is unreadable, and whether it has the current form."""
        return _each(self._pulling, lambda raw: _text(_typed(raw, INTENT), "image"))

    def records(self) -> Iterator[tuple[Path, PulledRecord | CheckpointDamaged, bool]]:
        return _each(self._pulled, read_record)

    def write_intent(self, image: str) -> None:
        document = {"kind": INTENT, "apiVersion": VERSION, "image": image}
        _write(self._pulling / file_name(image), document)

    def drop_intent(self, image: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            (self._pulling / file_name(image)).unlink()

    def write_record(self, record: PulledRecord) -> None:
        _write(self._pulled / file_name(record.image_ref), record_document(record))

    def drop_record(self, image_ref: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            (self._pulled / file_name(image_ref)).unlink()

    def copy_aside(self, path: Path) -> Path:
        """Keep a damaged file under a name that does not begin as records do."""
        return copy_aside(path, path.with_name(f"damaged-{path.name}"))


def _each(folder: Path, read: Callable[[Any], T]) -> Iterator[tuple[Path, T | CheckpointDamaged, bool]]:
    for path in sorted(folder.iterdir()):
        if not path.name.startswith(NAME_PREFIX) or path.name.endswith(".tmp") or not path.is_file():
            continue
        try:
            raw = json.loads(path.read_bytes())
            yield path, read(raw), raw["apiVersion"] == VERSION
        except CheckpointDamaged as problem:
            yield path, problem, True
        except (RecursionError, ValueError):
            yield path, CheckpointDamaged("is not JSON"), True


def _write(path: Path, document: Mapping[str, Any]) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_atomic(path, json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode() + b"\n")


def record_document(record: PulledRecord) -> dict[str, Any]:
    document: dict[str, Any] = {
        "kind": RECORD,
        "apiVersion": VERSION,
        "lastUpdatedTime": format_time(record.updated * SECOND_NS),
        "imageRef": record.image_ref,
    }
    if record.access:
        document["credentialMapping"] = {name: _access_document(record.access[name]) for name in sorted(record.access)}
    return document


def _access_document(access: Access) -> dict[str, Any]:
    document: dict[str, Any] = {}
    if access.secrets:
        document["kubernetesSecrets"] = [
            {"uid": s.uid, "namespace": s.namespace, "name": s.name, "credentialHash": access.secrets[s]}
            for s in sorted(access.secrets)
        ]
    if access.accounts:
        document["kubernetesServiceAccounts"] = [
            {"uid": a.uid, "namespace": a.namespace, "name": a.name} for a in sorted(access.accounts)
        ]
    if access.all_pods:
        document["nodePodsAccessible"] = True
    return document


def read_record(raw: Any) -> PulledRecord:
    """Raises CheckpointDamaged."""
    fields = _typed(raw, RECORD)
    try:
        updated = parse_nano_time(_text(fields, "lastUpdatedTime")) // SECOND_NS
    except TimeError as problem:
        raise CheckpointDamaged(f"lastUpdatedTime: {problem}") from None
    mapping = _object(fields.get("credentialMapping"), "credentialMapping")
    return PulledRecord(
        image_ref=_text(fields, "imageRef"),
        updated=updated,
        access={name: _read_access(value, f"credentialMapping.{name}") for name, value in mapping.items()},
    )


def _read_access(raw: Any, path: str) -> Access:
    fields = _object(raw, path)
    secrets: dict[SecretOrigin, str] = {}
    for item in _list(fields.get("kubernetesSecrets"), f"{path}.kubernetesSecrets"):
        each = _object(item, path)
        origin = SecretOrigin(namespace=_text(each, "namespace"), name=_text(each, "name"), uid=_text(each, "uid"))
        secrets[origin] = _text(each, "credentialHash")
    accounts = [_object(item, path) for item in _list(fields.get("kubernetesServiceAccounts"), path)]
    return Access(
        all_pods=fields.get("nodePodsAccessible") is True,
        secrets=secrets,
        accounts=frozenset(
            AccountOrigin(namespace=_text(a, "namespace"), name=_text(a, "name"), uid=_text(a, "uid")) for a in accounts
        ),
    )


def _typed(raw: Any, kind: str) -> dict[str, Any]:
    fields = _object(raw, "the document")
    if fields.get("kind") != kind or fields.get("apiVersion") not in READABLE:
        raise CheckpointDamaged(f"is not a {kind} of a version known here")
    return fields


def _object(raw: Any, path: str) -> dict[str, Any]:
    if raw is None:
        return {}
    if not isinstance(raw, dict):
        raise CheckpointDamaged(f"{path} is not an object")
    return raw


def _list(raw: Any, path: str) -> list[Any]:
    if raw is None:
        return []
    if not isinstance(raw, list):
        raise CheckpointDamaged(f"{path} is not a list")
    return raw


def _text(fields: Mapping[str, Any], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str):
        raise CheckpointDamaged(f"{name} is not a string")
    return value
