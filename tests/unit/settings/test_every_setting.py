"""Every field, flag and feature gate of the Go kubelet is known here and acts, or says that it does not.

`upstream.json` is made from the Go sources (tools/gen_upstream_settings.py). A setting acts when something outside the
settings package reads it (tests/settings_readers.py), or when loading itself follows it, which is shown by example.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

import pykubelet
from pykubelet.settings.errors import SettingsError
from pykubelet.settings.flags import IGNORED_FLAGS, all_flags, help_text
from pykubelet.settings.gates import known_gates
from pykubelet.settings.kinds import ListOf, Nested
from pykubelet.settings.node_flags import NodeFlags
from pykubelet.settings.schema import GROUPS, all_settings, settings_of
from pykubelet.settings.settings import KUBERNETES_VERSION, EnvironmentSettings, Settings
from pykubelet.settings.without_effect import FIELDS, FLAGS, GATES, LEFTOVER_FLAGS, REASONS
from tests.settings_readers import Readers, find_readers
from tests.unit.settings.loading import load, problems_of

UPSTREAM = json.loads((Path(__file__).parent / "upstream.json").read_text())
SOURCE = Path(pykubelet.__file__).parent
PACKAGE = "pykubelet.settings"
LOADERS = (f"{PACKAGE}.load.load_settings", f"{PACKAGE}.settings.Settings.configz")
"""The ways into the package that read every field without following it."""
DECLARES = "pykubelet.pods.admission.declared_features"
"""Tells the API server which gates are on, and switches nothing."""

# --- settings that loading itself follows ---------------------------------------------------------------------

Look = Callable[[Settings], object]
FOLLOWED: dict[str, tuple[tuple[str, ...], str, Look]] = {
    "--config": ((), "maxPods: 7", lambda settings: settings.config.cgroups.max_pods),
    "--config-dir": ((), "", lambda settings: settings.config.cgroups.max_pods),
    "--node-ip": (("--node-ip=192.0.2.7",), "", lambda settings: settings.node_ips),
    "--seccomp-default": (("--seccomp-default",), "", lambda settings: settings.config.runtime.seccomp_default),
    "--version": (("--version=v1.36.4-lab",), "", lambda settings: settings.kubernetes_version),
    "featureGates": ((), "featureGates: {PodsAPI: true}", lambda settings: settings.gates.enabled("PodsAPI")),
    "mergeDefaultEvictionSettings": (
        (),
        "evictionHard: {memory.available: 1Gi}\nmergeDefaultEvictionSettings: true",
        lambda settings: sorted(settings.config.eviction.eviction_hard),
    ),
}
"""Arguments or file that set it, and what of the loaded settings is another by that."""
PLAIN = {"mergeDefaultEvictionSettings": "evictionHard: {memory.available: 1Gi}"}
"""The file without it, where that is not an empty one."""
REFUSED = {
    "registerWithTaints[].timeAdded": "registerWithTaints: [{key: a, effect: NoSchedule, timeAdded: '2026-01-01'}]"
}
"""Fields that must not be set."""
PRINTS = {"--help"}

REFUSED_BY_GATE: dict[str, tuple[str, str]] = {
    "CustomCPUCFSQuotaPeriod": ("false", "cpuCFSQuotaPeriod: 50ms"),
    "GracefulNodeShutdownBasedOnPodPriority": (
        "false",
        "shutdownGracePeriodByPodPriority: [{priority: 0, shutdownGracePeriodSeconds: 10}]",
    ),
    "KubeletCrashLoopBackOffMax": ("false", "crashLoopBackOff: {maxContainerRestartPeriod: 10s}"),
    "LoggingAlphaOptions": ("false", "logging: {options: {text: {splitStream: true}}}"),
    "LoggingBetaOptions": ("false", "logging: {format: json}"),
    "RotateKubeletServerCertificate": ("false", "serverTLSBootstrap: true\nrotateCertificates: true"),
}
"""Gates without which a configuration is refused: the value that refuses, and the configuration."""


# --- the walk -------------------------------------------------------------------------------------------------


@cache
def readers() -> Readers:
    return find_readers(SOURCE, gates=f"{PACKAGE}.gates.Gates")


def full_name(cls: type[object]) -> str:
    return f"{cls.__module__}.{cls.__name__}"


def leaves(cls: type[object], prefix: str = "") -> Iterator[tuple[str, type[object], str]]:
    """Wire path, class and attribute of every value below a settings class, as all_settings() names them."""
    for wire, (attribute, info) in settings_of(cls).items():
        if not isinstance(info.kind, Nested):
            yield prefix + wire, cls, attribute
        kind, many = (info.kind.item, "[]") if isinstance(info.kind, ListOf) else (info.kind, "")
        if isinstance(kind, Nested):
            yield from leaves(kind.cls, f"{prefix}{wire}{many}.")


def fields() -> dict[str, tuple[type[object], str]]:
    found = [leaf for group in GROUPS.values() for leaf in leaves(group)]
    return {path: (cls, attribute) for path, cls, attribute in found}


def read_by(walked: Readers, cls: type[object], attribute: str) -> set[str]:
    return walked.of(full_name(cls), attribute, package=PACKAGE, loaders=LOADERS)


def unread_fields(walked: Readers) -> set[str]:
    return {path for path, (cls, attribute) in fields().items() if not read_by(walked, cls, attribute)}


def unread_flags(walked: Readers) -> set[str]:
    own = {f"--{info.flag}": attribute for attribute, info in settings_of(NodeFlags).values()}
    return {flag for flag, attribute in own.items() if not read_by(walked, NodeFlags, attribute)}


def unread_gates(walked: Readers) -> set[str]:
    """Gates of a kubelet that may be switched and that nobody outside the settings asks for."""

    def is_read(gate: str) -> bool:
        places = walked.gates.get(gate, set())
        return any(not place.startswith(f"{PACKAGE}.") and place != DECLARES for place in places)

    return {gate.name for gate in known_gates().values() if gate.kubelet and not gate.locked and not is_read(gate.name)}


# --- what the Go kubelet has ----------------------------------------------------------------------------------


def test_the_list_is_that_of_our_release() -> None:
    assert UPSTREAM["version"] == KUBERNETES_VERSION
    assert [len(UPSTREAM[kind]) for kind in ("fields", "flags", "gates")] == [148, 149, 240]


def test_every_field_is_known() -> None:
    assert sorted(ref.path for ref in all_settings()) == UPSTREAM["fields"]
    assert sorted(fields()) == UPSTREAM["fields"]


def test_every_flag_is_known() -> None:
    assert sorted(all_flags()) == UPSTREAM["flags"]


def test_every_gate_is_known_with_its_default() -> None:
    known = {gate.name: [gate.default, gate.stage, gate.locked] for gate in known_gates().values()}
    assert known == UPSTREAM["gates"]


# --- what acts ------------------------------------------------------------------------------------------------


def test_every_field_is_read_or_said_to_have_no_effect() -> None:
    followed = {name for name in FOLLOWED if not name.startswith("--")}
    assert unread_fields(readers()) == set(FIELDS) | followed | set(REFUSED)


def test_every_flag_is_read_or_said_to_have_no_effect() -> None:
    """A flag that is another spelling of a field acts as the field does."""
    followed = {name for name in FOLLOWED if name.startswith("--")}
    other = {f"--{name}" for name, flag in all_flags().items() if not flag.path} - {
        f"--{info.flag}" for _, info in settings_of(NodeFlags).values()
    }
    assert unread_flags(readers()) | other == set(FLAGS) | followed | PRINTS
    assert sorted(LEFTOVER_FLAGS) == sorted(f"--{name}" for name in IGNORED_FLAGS)


def test_every_gate_switches_or_is_said_to_have_no_effect() -> None:
    assert unread_gates(readers()) == set(GATES) | set(REFUSED_BY_GATE)


def test_every_variable_is_read() -> None:
    names = list(EnvironmentSettings.__struct_fields__)
    unread = {name.upper() for name in names if not read_by(readers(), EnvironmentSettings, name)}
    assert not unread


@pytest.mark.parametrize("name", sorted(FOLLOWED))
def test_loading_follows(name: str) -> None:
    arguments, main, look = FOLLOWED[name]
    drop_ins = {"10.conf": "maxPods: 8"} if name == "--config-dir" else None
    without = load(main=PLAIN.get(name) if main else None).settings
    changed = load(*arguments, main=main or None, drop_ins=drop_ins).settings
    assert look(changed) != look(without)


@pytest.mark.parametrize("attribute", ["gates", "node_ips", "kubernetes_version"])
def test_what_loading_makes_of_them_is_read(attribute: str) -> None:
    assert read_by(readers(), Settings, attribute)


@pytest.mark.parametrize("path", sorted(REFUSED))
def test_refused(path: str) -> None:
    assert any(path.partition(".")[2] in problem for problem in problems_of(main=REFUSED[path]))


@pytest.mark.parametrize("gate", sorted(REFUSED_BY_GATE))
def test_a_gate_that_decides_what_is_allowed(gate: str) -> None:
    refusing, main = REFUSED_BY_GATE[gate]
    other = "true" if refusing == "false" else "false"
    assert load(main=f"{main}\nfeatureGates: {{{gate}: {other}}}")
    with pytest.raises(SettingsError):
        load(main=f"{main}\nfeatureGates: {{{gate}: {refusing}}}")


def test_no_class_stands_for_two_fields() -> None:
    """Else a reader of one would count for the other."""
    places = list(fields().values())
    assert len(places) == len(set(places))


# --- what is said about the others ----------------------------------------------------------------------------


def test_the_help_names_all_of_them() -> None:
    text = " ".join(help_text().split())
    for name, reason in REASONS.items():
        assert name in text and reason in text


def test_one_warning_names_what_was_chosen_in_vain() -> None:
    loaded = load(
        *("--housekeeping-interval=5s", "--boot-id-file=/x", "--machine-id-file=/y"),
        main="hairpinMode: none\nfeatureGates: {KubeletSeparateDiskGC: false}",
    )
    (found,) = [warning for warning in loaded.warnings if "without effect" in warning]
    assert found == "accepted, without effect: " + "; ".join(
        f"{names} ({REASONS[names.partition(', ')[0]]})"
        for names in (
            "hairpinMode",
            "--housekeeping-interval",
            "--boot-id-file, --machine-id-file",
            "KubeletSeparateDiskGC",
        )
    )


def test_defaults_are_not_warned_about() -> None:
    main = "hairpinMode: promiscuous-bridge\nfeatureGates: {KubeletSeparateDiskGC: true}"
    assert not [warning for warning in load(main=main).warnings if "without effect" in warning]


# --- the walk is not fooled -----------------------------------------------------------------------------------


def test_a_reader_that_goes_is_missed() -> None:
    """On the real source: the only readers of a field and of a gate ask namesakes instead."""

    def changed(path: str, old: str, new: str) -> str:
        text = (SOURCE / path).read_text()
        assert text.count(old) == 1
        return text.replace(old, new)

    without = {
        path: changed(path, old, new)
        for path, old, new in (
            ("cli/host_setup.py", "settings.config.node.max_open_files", "other().max_open_files"),
            ("server/routes.py", 'gates.enabled("ContainerCheckpoint")', 'other().enabled("ContainerCheckpoint")'),
        )
    }
    walked = find_readers(SOURCE, gates=f"{PACKAGE}.gates.Gates", instead=without)
    assert unread_fields(walked) - unread_fields(readers()) == {"maxOpenFiles"}
    assert unread_gates(walked) - unread_gates(readers()) == {"ContainerCheckpoint"}
