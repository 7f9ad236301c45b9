"""The whole KubeletConfiguration v1beta1 as one frozen value made of groups, and an index of its fields.

On the wire the groups do not exist: their fields lie side by side in one object. In Python each manager is
given the one group it needs (`config.images`). `KubeletConfig()` holds the defaults a file starts from.
Does not cover reading and writing (decode.py) nor rules between fields (validate.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from pykubelet.settings.kinds import ListOf, Nested, Setting, declared
from pykubelet.settings.schema_node import (
    NetworkSettings,
    NodeSettings,
    PodSourceSettings,
    ProcessSettings,
)
from pykubelet.settings.schema_resources import (
    CgroupSettings,
    EvictionSettings,
    ReservationSettings,
    ResourceManagerSettings,
    ShutdownSettings,
)
from pykubelet.settings.schema_runtime import (
    ContainerLogSettings,
    ImageSettings,
    RuntimeSettings,
    VolumeSettings,
)
from pykubelet.settings.schema_server import ServerSettings

API_VERSION = "kubelet.config.k8s.io/v1beta1"
KIND = "KubeletConfiguration"


class KubeletConfig(Struct, frozen=True, kw_only=True):
    """Every setting that a configuration file can hold."""

    server: ServerSettings = field(default_factory=ServerSettings)
    sources: PodSourceSettings = field(default_factory=PodSourceSettings)
    node: NodeSettings = field(default_factory=NodeSettings)
    network: NetworkSettings = field(default_factory=NetworkSettings)
    runtime: RuntimeSettings = field(default_factory=RuntimeSettings)
    images: ImageSettings = field(default_factory=ImageSettings)
    container_logs: ContainerLogSettings = field(default_factory=ContainerLogSettings)
    volumes: VolumeSettings = field(default_factory=VolumeSettings)
    cgroups: CgroupSettings = field(default_factory=CgroupSettings)
    reservations: ReservationSettings = field(default_factory=ReservationSettings)
    managers: ResourceManagerSettings = field(default_factory=ResourceManagerSettings)
    eviction: EvictionSettings = field(default_factory=EvictionSettings)
    shutdown: ShutdownSettings = field(default_factory=ShutdownSettings)
    process: ProcessSettings = field(default_factory=ProcessSettings)


GROUPS: dict[str, type[Any]] = {
    "server": ServerSettings,
    "sources": PodSourceSettings,
    "node": NodeSettings,
    "network": NetworkSettings,
    "runtime": RuntimeSettings,
    "images": ImageSettings,
    "container_logs": ContainerLogSettings,
    "volumes": VolumeSettings,
    "cgroups": CgroupSettings,
    "reservations": ReservationSettings,
    "managers": ResourceManagerSettings,
    "eviction": EvictionSettings,
    "shutdown": ShutdownSettings,
    "process": ProcessSettings,
}


# What a class declares never changes, so it is read once.
_SETTINGS_OF: dict[type[Any], dict[str, tuple[str, Setting]]] = {}


class SettingRef(Struct, frozen=True, kw_only=True):
    """One field of the configuration with its place in Python and on the wire."""

    attributes: tuple[str, ...]
    """Attribute names from KubeletConfig down, such as ("server", "port")."""
    path: str
    """Wire path, such as authentication.anonymous.enabled; `[]` marks a list's members."""
    setting: Setting


def settings_of(cls: type[Any]) -> dict[str, tuple[str, Setting]]:
    """The fields of one settings class: wire name to attribute name and Setting."""
    known = _SETTINGS_OF.get(cls)
    if known is None:
        known = _SETTINGS_OF[cls] = _read_fields(cls)
    return known


def _read_fields(cls: type[Any]) -> dict[str, tuple[str, Setting]]:
    return {info.wire: (name, info) for name, info in declared(cls).items()}


def _walk(cls: type[Any], attributes: tuple[str, ...], prefix: str) -> Iterator[SettingRef]:
    for wire, (name, info) in settings_of(cls).items():
        here = (*attributes, name)
        if isinstance(info.kind, Nested):
            yield from _walk(info.kind.cls, here, f"{prefix}{wire}.")
            continue
        yield SettingRef(attributes=here, path=prefix + wire, setting=info)
        if isinstance(info.kind, ListOf) and isinstance(info.kind.item, Nested):
            yield from _walk(info.kind.item.cls, here, f"{prefix}{wire}[].")


@cache
def all_settings() -> tuple[SettingRef, ...]:
    """Every field in group order, nested ones in place, then the members of list entries."""
    return tuple(ref for name, cls in GROUPS.items() for ref in _walk(cls, (name,), ""))


@cache
def settings_by_path() -> dict[str, SettingRef]:
    return {ref.path: ref for ref in all_settings()}


def value_at(config: object, attributes: tuple[str, ...]) -> Any:
    """What the configuration holds at this place; None below an absent object."""
    for name in attributes:
        if config is None:
            return None
        config = getattr(config, name)
    return config


def with_value(config: Any, attributes: tuple[str, ...], value: object) -> Any:
    """A copy of the configuration with one value changed."""
    name, *rest = attributes
    if rest:
        value = with_value(getattr(config, name), tuple(rest), value)
    return replace(config, **{name: value})
