"""Machines that the settings cannot run on are refused at the start, with a sentence that names the setting."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest
from msgspec import structs

from pykubelet.cli.agent_edges import cgroup_driver, connected_edges, refuse_host
from pykubelet.clients.host.port import Machine
from pykubelet.kit.metrics import Registry
from pykubelet.model.errors import PykubeletError, Unimplemented
from pykubelet.settings.errors import SettingsError
from pykubelet.settings.load import LoadedSettings, load_settings
from pykubelet.settings.settings import Settings
from tests.harness import MACHINE

V2 = structs.replace(MACHINE, cgroup_v2=True)


def settings_of(*flags: str) -> Settings:
    loaded = load_settings(flags, environ={})
    assert isinstance(loaded, LoadedSettings)
    return loaded.settings


@pytest.mark.parametrize(
    ("flags", "machine", "text"),
    [
        ((), structs.replace(V2, swap_bytes=1), "failSwapOn (--fail-swap-on): swap is on"),
        (
            ("--kube-reserved=memory=6Gi", "--system-reserved=memory=3Gi"),
            V2,
            "has a reservation of 9Gi but capacity of 8Gi",
        ),
        (("--reserved-cpus=0-7",), V2, "reservedSystemCPUs (--reserved-cpus): CPUs 4-7 are not online"),
        ((), MACHINE, "failCgroupV1"),
    ],
)
def test_refused(flags: tuple[str, ...], machine: Machine, text: str) -> None:
    with pytest.raises(SettingsError) as refused:
        refuse_host(settings_of(*flags), machine, frozenset(range(4)))
    assert text in "\n".join(refused.value.problems)


@pytest.mark.parametrize(
    ("flags", "machine"),
    [
        ((), V2),
        (("--fail-swap-on=false",), structs.replace(V2, swap_bytes=1)),
        (("--kube-reserved=memory=1Gi,cpu=1", "--reserved-cpus=0"), V2),
        (("--fail-cgroupv1=false",), MACHINE),
    ],
)
def test_taken(flags: tuple[str, ...], machine: Machine) -> None:
    refuse_host(settings_of(*flags), machine, frozenset(range(4)))


async def test_a_root_folder_that_cannot_be_made_is_said_in_plain_words(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    settings = settings_of("--fail-cgroupv1=false", "--fail-swap-on=false", f"--root-dir={tmp_path}/file/kubelet")
    with pytest.raises(PykubeletError, match=r"the folders of this node cannot be made: .*Not a directory"):
        async with connected_edges(settings):
            pass


class OldRuntime:
    async def runtime_config(self) -> Literal["cgroupfs", "systemd"]:
        raise Unimplemented("unknown method RuntimeConfig")


class Runtime:
    async def runtime_config(self) -> Literal["cgroupfs", "systemd"]:
        return "systemd"


async def test_a_runtime_that_is_losing_support_is_told() -> None:
    metrics = Registry()
    assert await cgroup_driver(Runtime(), metrics) == "systemd"
    assert metrics.expose() == ""
    assert await cgroup_driver(OldRuntime(), metrics) == ""
    assert 'kubelet_cri_losing_support{version="1.37.0"} 1' in metrics.expose()
