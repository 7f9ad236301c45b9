"""Typed views and small rules: thresholds, CPU lists, the node's name and addresses, sizes."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from pykubelet.model.topology import format_cpu_list, parse_cpu_list
from pykubelet.settings.errors import SettingsError
from pykubelet.settings.node_flags import NodeFlags, node_name, parse_node_ips
from pykubelet.settings.schema_resources import EvictionSettings
from pykubelet.settings.schema_runtime import ContainerLogSettings
from pykubelet.settings.settings import PYKUBELET_VERSION, version_text
from pykubelet.settings.thresholds import eviction_thresholds


def test_thresholds_carry_grace_and_reclaim() -> None:
    found = eviction_thresholds(
        EvictionSettings(
            eviction_hard={"memory.available": "100Mi", "nodefs.available": "10%", "imagefs.available": "0%"},
            eviction_soft={"memory.available": "200Mi"},
            eviction_soft_grace_period={"memory.available": "1m30s"},
            eviction_minimum_reclaim={"nodefs.available": "1Gi"},
        )
    )
    assert [(t.signal, t.soft, t.grace_period, t.amount.of(1000)) for t in found] == [
        ("memory.available", False, 0.0, 100 * 2**20),
        ("nodefs.available", False, 0.0, 100),
        ("memory.available", True, 90.0, 200 * 2**20),
    ]
    reclaim = found[1].minimum_reclaim
    assert reclaim is not None and reclaim.of(0) == 2**30


def test_bad_thresholds_raise() -> None:
    with pytest.raises(SettingsError, match="evictionHard: memory"):
        eviction_thresholds(EvictionSettings(eviction_hard={"memory.available": "much"}))


@pytest.mark.parametrize(
    ("text", "cpus", "shortest"),
    [
        ("", set(), ""),
        ("0", {0}, "0"),
        ("0-3,8", {0, 1, 2, 3, 8}, "0-3,8"),
        ("2,1,0", {0, 1, 2}, "0-2"),
        ("1-1", {1}, "1"),
    ],
)
def test_cpu_lists(text: str, cpus: set[int], shortest: str) -> None:
    assert parse_cpu_list(text) == cpus
    assert format_cpu_list(cpus) == shortest


@pytest.mark.parametrize("text", ["a", "1-", "-1", "3-1", "1,,2", "0-999999", "1 ,2", "٣"])
def test_bad_cpu_lists(text: str) -> None:
    with pytest.raises(ValueError, match="CPU number"):
        parse_cpu_list(text)


@pytest.mark.parametrize(
    ("override", "hostname", "name"),
    [("", "Host.Example", "host.example"), (" Given ", "host", "given"), ("", " h\n", "h")],
)
def test_node_name(override: str, hostname: str, name: str) -> None:
    assert node_name(hostname_override=override, hostname=hostname) == name


def test_an_empty_node_name_is_refused() -> None:
    with pytest.raises(SettingsError, match="hostname-override"):
        node_name(hostname_override="  ", hostname="host")


@pytest.mark.parametrize(
    ("text", "addresses", "warned"),
    [
        ("", [], 0),
        ("::", ["::"], 0),
        ("10.0.0.1, fd00::1", ["10.0.0.1", "fd00::1"], 0),
        ("junk", [], 1),
        ("junk,10.0.0.1", ["10.0.0.1"], 1),
    ],
)
def test_node_ips(text: str, addresses: list[str], warned: int) -> None:
    found, warnings = parse_node_ips(text)
    assert [str(address) for address in found] == addresses
    assert len(warnings) == warned


def test_views() -> None:
    gc = NodeFlags(maximum_dead_containers=7).container_gc
    assert (gc.min_age, gc.max_per_container, gc.max_total) == (0.0, 1, 7)
    assert NodeFlags().standalone and not NodeFlags(kubeconfig="/k").standalone
    assert ContainerLogSettings().max_size_bytes == 10 * 2**20
    assert ContainerLogSettings(max_size="-1").max_size_bytes == -1


def test_versions() -> None:
    assert version_text() == "Kubernetes v1.36.4"
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())
    assert project["project"]["version"] == PYKUBELET_VERSION
