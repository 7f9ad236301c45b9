"""The wire form of the configuration into typed values and back, with the kubelet's rules for defaults.

Reading collects every fault, each with its field path; an unknown field is a fault unless the caller wants to hear of
it apart. A zero of a field that is not optional means "not given", as in the Kubernetes type. Covers defaults that
depend on other fields. Does not cover files and drop-ins (load.py) nor range checks (validate.py).
"""

from __future__ import annotations

import os.path
from collections.abc import Iterable
from enum import Enum
from typing import Any

from msgspec import Struct, field

from pykubelet.settings.errors import hint
from pykubelet.settings.gates import Gates
from pykubelet.settings.kinds import (
    PATH,
    Kind,
    ListOf,
    MapOf,
    Nested,
    Scalar,
    Setting,
    WrongValue,
    describe,
)
from pykubelet.settings.schema import GROUPS, KubeletConfig, settings_of, with_value
from pykubelet.settings.schema_resources import DEFAULT_EVICTION_HARD

# Stands for a value that could not be read; its fault is already noted.
_BAD = object()


class Origin(Enum):
    """What the object being read is; decides which defaults fill its gaps."""

    FLAGS_ONLY = "no configuration file"
    MAIN_FILE = "the --config file"
    MERGED = "earlier settings with drop-ins merged in"


class _Reader(Struct):
    origin: Origin
    folder: str
    """Where relative paths count from; "" leaves them alone."""
    problems: list[str] = field(default_factory=list)
    unknown_fields: list[str] | None = None
    """Takes unknown fields; without it they are problems."""
    given: set[str] = field(default_factory=set)
    """Paths of fields that hold something other than "not given"."""

    def known_object(self, cls: type[Any], raw: object, prefix: str) -> Any:
        """Read an object with known keys; gaps take their defaults."""
        if not isinstance(raw, dict):
            self.problems.append(f"{prefix.rstrip('.') or 'document'}: must be an object, not {describe(raw)}")
            return _BAD
        known = settings_of(cls)
        self.unknown(raw, known, prefix)
        return self.fill(cls, raw, prefix)

    def unknown(self, raw: dict[Any, Any], known: Iterable[str], prefix: str) -> None:
        names = set(known)
        for key in raw:
            if key not in names:
                shown = str(key)[:80]
                if self.unknown_fields is not None:
                    self.unknown_fields.append(f"{prefix}{shown}{hint(shown, names)}")
                else:
                    self.problems.append(f"{prefix}{shown}: unknown field{hint(shown, names)}")

    def fill(self, cls: type[Any], raw: dict[Any, Any], prefix: str) -> Any:
        values = {
            name: self.setting(info, raw.get(wire), prefix + wire) for wire, (name, info) in settings_of(cls).items()
        }
        if any(value is _BAD for value in values.values()):
            return _BAD
        return cls(**values)

    def setting(self, info: Setting, raw: object, path: str) -> Any:
        default = info.legacy if self.origin is Origin.FLAGS_ONLY else info.default
        if raw is None:
            # A missing object is read as an empty one: its own fields bring their defaults.
            if isinstance(info.kind, Nested) and not info.optional:
                return self.known_object(info.kind.cls, {}, path + ".")
            return dict(default) if isinstance(default, dict) else default
        value = self.value(info.kind, raw, path)
        if value is _BAD:
            return _BAD
        if isinstance(info.kind, Scalar) and not info.optional and value == info.kind.zero:
            return default
        self.given.add(path)
        return value

    def value(self, kind: Kind, raw: object, path: str) -> Any:
        match kind:
            case Scalar():
                return self.scalar(kind, raw, path)
            case Nested(cls):
                return self.known_object(cls, raw, path + ".")
            case ListOf(item):
                if not isinstance(raw, list):
                    self.problems.append(f"{path}: must be a list, not {describe(raw)}")
                    return _BAD
                items = [self.value(item, part, f"{path}[{index}]") for index, part in enumerate(raw)]
                return _BAD if _BAD in items else tuple(items)
            case MapOf(item):
                return self.free_map(item, raw, path)

    def free_map(self, item: Kind, raw: object, path: str) -> Any:
        if not isinstance(raw, dict):
            self.problems.append(f"{path}: must be an object, not {describe(raw)}")
            return _BAD
        values = {}
        for key, part in raw.items():
            if not isinstance(key, str):
                self.problems.append(f"{path}: key {str(key)[:80]} must be a string, not {describe(key)}")
                return _BAD
            values[key] = self.value(item, part, f"{path}.{key[:80]}")
        return _BAD if _BAD in values.values() else values

    def scalar(self, kind: Scalar, raw: object, path: str) -> Any:
        try:
            value = kind.read(raw)
        except WrongValue as err:
            self.problems.append(f"{path}: {err}")
            return _BAD
        if kind is PATH and value and self.folder and not os.path.isabs(value):
            return os.path.normpath(os.path.join(self.folder, value))
        return value


def decode_config(
    raw: dict[Any, Any], *, origin: Origin, gates: Gates, folder: str = "", unknown: list[str] | None = None
) -> tuple[KubeletConfig | None, list[str]]:
    """The configuration in a wire object without apiVersion and kind, or None and every problem.

    `gates` are those given on the command line; the object's own featureGates are added to them. With `unknown`, fields
    that are not known are put there and left out; without it each of them is a problem.
    """
    reader = _Reader(origin=origin, folder=folder, unknown_fields=unknown)
    reader.unknown(raw, (wire for cls in GROUPS.values() for wire in settings_of(cls)), "")
    groups = {name: reader.fill(cls, raw, "") for name, cls in GROUPS.items()}
    if reader.problems:
        return None, reader.problems
    config = KubeletConfig(**groups)
    own_gates = Gates({**config.process.feature_gates, **gates.chosen})
    return _dependent_defaults(config, reader.given, origin, own_gates), []


def _dependent_defaults(config: KubeletConfig, given: set[str], origin: Origin, gates: Gates) -> KubeletConfig:
    """Defaults that look at other fields."""
    changes: dict[tuple[str, str], object] = {}
    if "nodeStatusUpdateFrequency" in given and "nodeStatusReportFrequency" not in given:
        changes["node", "node_status_report_frequency"] = config.node.node_status_update_frequency
    pulls = config.images.max_parallel_image_pulls
    if "serializeImagePulls" not in given:
        changes["images", "serialize_image_pulls"] = pulls is None or pulls < 2
    if config.cgroups.pod_pids_limit < 0:
        changes["cgroups", "pod_pids_limit"] = -1
    if "crashLoopBackOff.maxContainerRestartPeriod" not in given and not gates.enabled("KubeletCrashLoopBackOffMax"):
        crash = with_value(config.runtime.crash_loop_back_off, ("max_container_restart_period",), None)
        changes["runtime", "crash_loop_back_off"] = crash
    if "imagePullCredentialsVerificationPolicy" not in given and not gates.enabled("KubeletEnsureSecretPulledImages"):
        changes["images", "credentials_verification_policy"] = ""
    changes["eviction", "eviction_hard"] = _eviction_hard(config, given, origin)
    for attributes, value in changes.items():
        config = with_value(config, attributes, value)
    return config


def _eviction_hard(config: KubeletConfig, given: set[str], origin: Origin) -> dict[str, str]:
    """The default thresholds belong to a main file: all of them when it has none, or the missing ones."""
    hard = dict(config.eviction.eviction_hard) if "evictionHard" in given else {}
    if origin is not Origin.MAIN_FILE:
        return hard
    if "evictionHard" not in given:
        return dict(DEFAULT_EVICTION_HARD)
    if config.eviction.merge_default_eviction_settings:
        return {**DEFAULT_EVICTION_HARD, **hard}
    return hard


def encode_config(config: KubeletConfig, *, full: bool = False) -> dict[str, Any]:
    """The wire form, as /configz shows it: like the Go type it leaves out empty values.

    With `full` nothing is left out that has a value, so that reading it back gives the same again.
    """
    wire: dict[str, Any] = {}
    for group in GROUPS:
        wire.update(_encode_object(getattr(config, group), full))
    return wire


def _encode_object(value: Any, full: bool) -> dict[str, Any]:
    wire: dict[str, Any] = {}
    for name, (attribute, info) in settings_of(type(value)).items():
        held = getattr(value, attribute)
        if held is None:
            continue
        written = _encode(info.kind, held, full)
        if full or info.optional or isinstance(info.kind, Nested) or written not in ("", 0, [], {}, False):
            wire[name] = written
    return wire


def _encode(kind: Kind, value: Any, full: bool) -> Any:
    match kind:
        case Scalar():
            return kind.write(value)
        case Nested():
            return _encode_object(value, full)
        case ListOf(item):
            return [_encode(item, part, full) for part in value]
        case MapOf(item):
            return {key: _encode(item, part, full) for key, part in value.items()}


def default_config(origin: Origin) -> KubeletConfig:
    """What holds when nothing is set."""
    config, problems = decode_config({}, origin=origin, gates=Gates({}))
    assert config is not None, problems
    return config
