"""The group the agent runs in, from what the kernel says about its process."""

from __future__ import annotations

from pathlib import Path

import pytest

from pykubelet.clients.host.process import own_cgroup

V1 = "9:name=systemd:/system.slice/kubelet.service\n3:cpu,cpuacct:{cpu}\n4:memory:{memory}\n0::/x\n"


@pytest.mark.parametrize(
    ("text", "group"),
    [
        ("0::/system.slice/pykubelet.service\n", "/system.slice/pykubelet.service"),
        ("0::/a:b\n", "/a:b"),
        ("0::/\n", ""),
        (V1.format(cpu="/system.slice/k", memory="/system.slice/k"), "/system.slice/k"),
        (V1.format(cpu="/", memory="/system.slice/k"), ""),
        (V1.format(cpu="/", memory="/"), ""),
        (None, ""),
    ],
)
def test_own_cgroup(tmp_path: Path, text: str | None, group: str) -> None:
    (tmp_path / "self").mkdir()
    if text is not None:
        (tmp_path / "self" / "cgroup").write_text(text)
    assert own_cgroup(tmp_path) == group
