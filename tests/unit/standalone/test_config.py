"""The generated containerd configuration and the paths in it."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from pykubelet.standalone.config import ContainerdFacts, render
from pykubelet.standalone.containerd import last_lines
from pykubelet.standalone.errors import StandaloneError
from pykubelet.standalone.launch import CAP_SYS_RESOURCE, forget_last_boot, has_capability, parse_version
from pykubelet.standalone.layout import Layout

LAYOUT = Layout(Path("/run/p"))


def rendered(version: tuple[int, int], *, may_lower: bool = True) -> dict[str, Any]:
    facts = ContainerdFacts(
        version=version,
        sandbox_image="example.test/pause:1",
        runc=Path("/usr/sbin/runc"),
        cni_folder=Path("/usr/lib/cni"),
        may_lower_oom_score=may_lower,
    )
    return tomllib.loads(render(LAYOUT, facts))


def test_containerd_1_gets_version_2() -> None:
    config = rendered((1, 6))
    cri = config["plugins"]["io.containerd.grpc.v1.cri"]
    assert config["version"] == 2
    assert config["grpc"]["address"] == "/run/p/containerd.sock"
    assert (config["root"], config["state"]) == ("/run/p/root", "/run/p/run")
    assert cri["sandbox_image"] == "example.test/pause:1"
    assert cri["cni"] == {"bin_dir": "/usr/lib/cni", "conf_dir": "/run/p/cni"}
    assert cri["registry"] == {"config_path": "/run/p/certs.d"}
    assert cri["stream_server_address"] == "127.0.0.1"
    runc = cri["containerd"]["runtimes"]["runc"]
    assert runc["options"] == {"BinaryName": "/usr/sbin/runc", "Root": "/run/p/run/runc", "SystemdCgroup": False}


@pytest.mark.parametrize(
    ("version", "folders"), [((2, 0), {"bin_dir": "/usr/lib/cni"}), ((2, 3), {"bin_dirs": ["/usr/lib/cni"]})]
)
def test_containerd_2_gets_version_3(version: tuple[int, int], folders: dict[str, Any]) -> None:
    config = rendered(version)
    images = config["plugins"]["io.containerd.cri.v1.images"]
    runtime = config["plugins"]["io.containerd.cri.v1.runtime"]
    assert config["version"] == 3
    assert images["pinned_images"] == {"sandbox": "example.test/pause:1"}
    assert images["registry"] == {"config_path": "/run/p/certs.d"}
    assert runtime["cni"] == {**folders, "conf_dir": "/run/p/cni"}
    assert runtime["containerd"]["runtimes"]["runc"]["runtime_type"] == "io.containerd.runc.v2"


@pytest.mark.parametrize("version", [(1, 6), (2, 3)])
@pytest.mark.parametrize("may_lower", [True, False])
def test_oom_scores_are_only_lowered_where_allowed(version: tuple[int, int], may_lower: bool) -> None:
    config = rendered(version, may_lower=may_lower)
    name = "io.containerd.grpc.v1.cri" if version[0] == 1 else "io.containerd.cri.v1.runtime"
    assert config["plugins"][name]["restrict_oom_score_adj"] is not may_lower
    assert config.get("oom_score") == (-999 if may_lower else None)


def test_nothing_is_shared_between_state_folders() -> None:
    other = Layout(Path("/run/q"))
    assert LAYOUT.network_name != other.network_name
    assert len(LAYOUT.network_name) <= 15
    assert all(str(folder).startswith("/run/p") for folder in LAYOUT.folders())


@pytest.mark.parametrize(
    ("folder", "complaint"),
    [("relative/folder", "must be an absolute path"), ("/" + 90 * "x", "too long for a socket")],
)
def test_bad_state_folders_are_refused(folder: str, complaint: str) -> None:
    with pytest.raises(StandaloneError, match=complaint):
        Layout(Path(folder))


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ("containerd github.com/containerd/containerd 1.6.20~ds1 1.6.20~ds1-1+deb12u3", (1, 6)),
        ("containerd github.com/containerd/containerd/v2 v2.3.4 ", (2, 3)),
        ("containerd github.com/containerd/containerd v1.7.0-rc.1 abc", (1, 7)),
    ],
)
def test_versions_are_understood(said: str, version: tuple[int, int]) -> None:
    assert parse_version(said) == version


def test_a_version_that_is_none_is_an_error() -> None:
    with pytest.raises(StandaloneError, match="no version in it"):
        parse_version("containerd devel")


@pytest.mark.parametrize(
    ("effective", "has"), [("000001ffffffffff", True), ("000001fffeffffff", False), ("0000000000000000", False)]
)
def test_capabilities_are_read(effective: str, has: bool) -> None:
    assert has_capability(CAP_SYS_RESOURCE, f"Name:\tx\nCapEff:\t{effective}\nCapBnd:\t0\n") is has


def test_a_log_is_cut_to_what_tells_of_trouble() -> None:
    noise = [f'level=info msg="{number}"' for number in range(30)]
    assert last_lines(noise) == noise[-12:]
    assert last_lines([*noise, 'level=fatal msg="boom"', "x"]) == ['level=fatal msg="boom"']


def test_a_new_boot_forgets_what_ran_but_keeps_images(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    for boot, kept in (("b1", False), ("b1", True), ("b2", False)):
        for folder in (layout.run, layout.ipam_dir, layout.root):
            (folder / "x").mkdir(parents=True, exist_ok=True)
        forget_last_boot(layout, boot)
        assert layout.run.exists() is layout.ipam_dir.exists() is kept
        assert (layout.root / "x").exists()
