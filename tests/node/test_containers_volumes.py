"""Volumes of every kind that needs no API server, seen from inside the containers; errors by the events.

What nothing may be left of in the end (folders, mounts) is checked when the module's pods are taken away.
"""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.bed.agent import NODE
from tests.bed.inside import (
    Inside,
    Manifest,
    container_manifest,
    import_image,
    in_this_process,
    looking_inside,
    pod_manifest,
    status_when,
)
from tests.bed.runtime import BedContainerd

pytestmark = pytest.mark.node

USER, GROUP = 1234, 4242
MIB = 1 << 20
NAME = {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}


def mount(name: str, path: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "mountPath": path, **more}


def item(path: str, field: str, **more: Any) -> dict[str, Any]:
    return {"path": path, "fieldRef": {"fieldPath": field}, **more}


def amount(path: str, resource: str, divisor: str) -> dict[str, Any]:
    return {"path": path, "resourceFieldRef": {"containerName": "app", "resource": resource, "divisor": divisor}}


def looking(name: str, script: str, volume: dict[str, Any], *more: dict[str, Any], **spec: Any) -> Manifest:
    """A pod with one volume at /v."""
    mounts = [mount("v", "/v"), *more]
    return pod_manifest(
        name, container_manifest(script=script, volumeMounts=mounts), volumes=[{"name": "v", **volume}], **spec
    )


def host_path(folder: Path, name: str, path: str, kind: str | None = None, script: str = "ls -ld /v") -> Manifest:
    source = {"path": str(folder / path)} | ({"type": kind} if kind is not None else {})
    return looking(name, script, {"hostPath": source})


EMPTY = [
    looking("empty", "stat -c MODE=%a:%u:%g /v; df -T /v | tail -1; touch /v/x && echo WRITES=yes", {"emptyDir": {}}),
    looking(
        "empty-group",
        "stat -c MODE=%a:%u:%g /v; echo > /v/x && stat -c FILE=%u:%g /v/x",
        {"emptyDir": {}},
        securityContext={"fsGroup": GROUP, "runAsUser": USER, "runAsGroup": USER},
    ),
    looking(
        "memory",
        "grep ' /v ' /proc/mounts; stat -c MODE=%a /v; head -c 2000000 /dev/zero > /v/big || echo FULL=yes; ls -l /v",
        {"emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
    ),
    pod_manifest(
        "shared",
        container_manifest("writer", "echo hello > /v/x", volumeMounts=[mount("v", "/v")]),
        container_manifest(
            "reader",
            "until [ -s /w/x ]; do sleep 0.05; done; cat /w/x; echo no > /w/y",
            volumeMounts=[mount("v", "/w", readOnly=True)],
        ),
        volumes=[{"name": "v", "emptyDir": {}}],
    ),
]
DOWNWARD_ITEMS = [
    item("labels", "metadata.labels"),
    item("deep/er/name", "metadata.name", mode=0o400),
    item("note", "metadata.annotations['note']"),
    amount("cpu", "limits.cpu", "1m"),
]
SHOW_FILES = (
    "cd /v; for f in $(find . -follow -type f | grep -v '/\\.\\.' | sort); do stat -L -c '%n %a:%u:%g' $f; done"
)
DOWNWARD = [
    pod_manifest(
        "downward",
        container_manifest(
            script=f"{SHOW_FILES}; cat labels; echo; cat deep/er/name; echo; cat note; echo; cat cpu; echo; "
            "readlink note; ls -ld ..data; grep ' /v ' /proc/mounts; echo x > /v/new",
            volumeMounts=[mount("v", "/v")],
            resources={"limits": {"cpu": "250m"}},
        ),
        labels={"app": "web", "tier": 'q"uoted'} | {"tier": "back"},
        annotations={"note": "two\nlines"},
        volumes=[{"name": "v", "downwardAPI": {"defaultMode": 0o440, "items": DOWNWARD_ITEMS}}],
    ),
    looking(
        "projected",
        f"{SHOW_FILES}; cat one/name two/name",
        {
            "projected": {
                "defaultMode": 0o400,
                "sources": [
                    {"downwardAPI": {"items": [item("one/name", "metadata.name")]}},
                    {"downwardAPI": {"items": [item("two/name", "metadata.namespace")]}},
                ],
            }
        },
        securityContext={"fsGroup": GROUP, "runAsUser": USER},
    ),
]


def host_paths(folder: Path) -> list[Manifest]:
    return [
        host_path(folder, "hp-any", "data", script="cat /v/file; echo back > /v/answer"),
        host_path(folder, "hp-dir", "data", "Directory"),
        host_path(folder, "hp-file", "data/file", "File", "cat /v"),
        host_path(folder, "hp-new-dir", "made/deep", "DirectoryOrCreate", "stat -c MODE=%a /v"),
        host_path(folder, "hp-new-file", "data/made", "FileOrCreate", "stat -c MODE=%a /v"),
        host_path(folder, "hp-socket", "data/socket", "Socket", "[ -S /v ] && echo SOCKET=yes"),
        host_path(folder, "hp-null", "data/null", "CharDevice", "[ -c /v ] && echo DEVICE=yes"),
        host_path(folder, "hp-no-dir", "data/file", "Directory"),
        host_path(folder, "hp-no-file", "data", "File"),
        host_path(folder, "hp-no-socket", "data/file", "Socket"),
        host_path(folder, "hp-no-char", "data/file", "CharDevice"),
        host_path(folder, "hp-no-block", "data/null", "BlockDevice"),
        host_path(folder, "hp-absent", "absent", "Directory"),
        host_path(folder, "hp-no-parent", "absent/file", "FileOrCreate"),
    ]


def subpaths(folder: Path) -> list[Manifest]:
    data = {"hostPath": {"path": str(folder / "data")}}

    def looking_at(name: str, script: str, **more: Any) -> Manifest:
        container = container_manifest(script=script, env=[NAME], volumeMounts=[mount("v", "/v", **more)])
        return pod_manifest(name, container, volumes=[{"name": "v", **data}])

    return [
        looking_at("sub-file", "cat /v", subPath="file"),
        looking_at("sub-dir", "cat /v/x", subPath="inner/dir"),
        looking_at("sub-new", "stat -c MODE=%a /v; touch /v/here", subPath="new/one"),
        looking_at("sub-expr", "touch /v/here", subPathExpr="pods/$(POD)"),
        looking_at("sub-expr-none", "true", subPathExpr="pods/$(NOBODY)"),
        looking_at("sub-read-only", "cat /v/x; touch /v/y", subPath="inner/dir", readOnly=True),
        looking_at("sub-escape", "ls /v", subPath="escape/inner"),
        looking_at("sub-inside-link", "cat /v/x", subPath="link"),
        pod_manifest(
            "sub-planted",
            container_manifest(script="ls /w", volumeMounts=[mount("e", "/w", subPath="etc")]),
            initContainers=[
                container_manifest("planter", "ln -s /etc /e/etc", ends=True, volumeMounts=[mount("e", "/e")]),
            ],
            volumes=[{"name": "e", "emptyDir": {}}],
        ),
    ]


def spreading(folder: Path) -> list[Manifest]:
    """One pod for each way in which mounts made later spread between host and container."""

    def pod(name: str, way: str, script: str, **more: Any) -> Manifest:
        mounts = [mount("v", "/v", mountPropagation=way)]
        volume = {"name": "v", "hostPath": {"path": str(folder / "spread")}}
        return pod_manifest(name, container_manifest(script=script, volumeMounts=mounts, **more), volumes=[volume])

    told = "until [ -e /v/{0}/mounted ]; do sleep 0.05; done; echo SEEN={0}"
    return [
        pod("spread-in", "HostToContainer", told.format("from-host")),
        pod("spread-none", "None", "until [ -e /v/go ]; do sleep 0.05; done; ls /v/from-host"),
        pod(
            "spread-out",
            "Bidirectional",
            "mount -t tmpfs t /v/from-pod && touch /v/from-pod/mounted",
            securityContext={"privileged": True},
        ),
    ]


REMOTE = [
    looking("nfs", "true", {"nfs": {"server": "127.0.0.1", "path": "/export"}}),
    looking(
        "iscsi",
        "true",
        {"iscsi": {"targetPortal": "127.0.0.1:3260", "iqn": "iqn.2020-01.example:disk", "lun": 0}},
    ),
    looking("git", "true", {"gitRepo": {"repository": "https://git.example/x"}}),
]


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder on the host with something of everything."""
    folder = tmp_path_factory.mktemp("host")
    data = folder / "data"
    (data / "inner" / "dir").mkdir(parents=True)
    (data / "inner" / "dir" / "x").write_text("deep\n")
    (data / "file").write_text("on the host\n")
    (data / "escape").symlink_to("/etc")
    (data / "link").symlink_to("inner/dir")
    here = os.getcwd()
    os.chdir(data)  # the name of a socket must be short
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket")
    os.chdir(here)
    os.mknod(data / "null", 0o666 | 0o020000, os.makedev(1, 3))
    spread = folder / "spread"
    (spread / "from-host").mkdir(parents=True)
    (spread / "from-pod").mkdir()
    subprocess.run(["mount", "--bind", spread, spread], check=True)
    subprocess.run(["mount", "--make-shared", spread], check=True)
    (folder / "tree" / "inner").mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "t", folder / "tree" / "inner"], check=True)
    yield folder
    subprocess.run(["umount", "-R", spread], check=True)
    subprocess.run(["umount", folder / "tree" / "inner"], check=True)
    assert (data / "file").read_text() == "on the host\n"
    assert (data / "inner" / "dir" / "x").read_text() == "deep\n"


@pytest.fixture(scope="module")
def inside(tmp_path_factory: pytest.TempPathFactory, containerd: BedContainerd, host: Path) -> Iterator[Inside]:
    trees = [
        read_only_tree(host, "tree-all", recursiveReadOnly="Enabled"),
        read_only_tree(host, "tree-may", recursiveReadOnly="IfPossible"),
    ]
    pods = [*EMPTY, *DOWNWARD, *host_paths(host), *subpaths(host), *spreading(host), *REMOTE, *trees]
    with looking_inside(tmp_path_factory.mktemp("volumes"), containerd, *pods) as found:
        yield found


def test_an_empty_folder(inside: Inside) -> None:
    told = inside.told("empty")
    assert (told["MODE"], told["WRITES"]) == ("777:0:0", "yes")
    told = inside.told("empty-group")
    assert told == {"MODE": f"2777:0:{GROUP}", "FILE": f"{USER}:{GROUP}"}


def test_a_folder_in_memory_with_a_limit(inside: Inside) -> None:
    said = inside.said("memory")
    assert said.startswith("tmpfs /v tmpfs rw,") and "size=1024k" in said.splitlines()[0]
    assert "MODE=1777" in said and "FULL=yes" in said
    assert f" {MIB} " in said.splitlines()[-1]


def test_containers_share_a_folder(inside: Inside) -> None:
    assert inside.said("shared", "reader").splitlines() == ["hello", "sh: can't create /w/y: Read-only file system"]


def test_the_pods_own_fields_as_files(inside: Inside) -> None:
    said = inside.said("downward").splitlines()
    assert said[:4] == ["./cpu 440:0:0", "./deep/er/name 400:0:0", "./labels 440:0:0", "./note 440:0:0"]
    assert said[4:6] == ['app="web"', 'tier="back"']
    assert said[6:10] == [f"downward-{NODE}", "two", "lines", "250"]
    assert said[10] == "..data/note" and " ..data -> ..20" in said[11]
    assert said[12].startswith("tmpfs /v tmpfs ro,") and said[13] == "sh: can't create /v/new: Read-only file system"


def test_projected_fields(inside: Inside) -> None:
    said = inside.said("projected")
    assert said == f"./one/name 440:0:{GROUP}\n./two/name 440:0:{GROUP}\nprojected-{NODE}default"


def test_paths_of_the_host(inside: Inside, host: Path) -> None:
    assert inside.said("hp-any") == "on the host\n"
    assert (host / "data" / "answer").read_text() == "back\n"
    assert inside.said("hp-dir").startswith("d")
    assert inside.said("hp-file") == "on the host\n"
    assert inside.told("hp-new-dir") == {"MODE": "755"} and (host / "made" / "deep").is_dir()
    assert inside.told("hp-new-file") == {"MODE": "644"} and (host / "data" / "made").is_file()
    assert inside.told("hp-socket") == {"SOCKET": "yes"}
    assert inside.told("hp-null") == {"DEVICE": "yes"}


@pytest.mark.parametrize(
    ("pod", "path", "what"),
    [
        ("hp-no-dir", "data/file", "is not a directory"),
        ("hp-no-file", "data", "is not a file"),
        ("hp-no-socket", "data/file", "is not a socket file"),
        ("hp-no-char", "data/file", "is not a character device"),
        ("hp-no-block", "data/null", "is not a block device"),
        ("hp-absent", "absent", "is not a directory"),
    ],
)
def test_paths_of_the_wrong_kind(inside: Inside, host: Path, pod: str, path: str, what: str) -> None:
    assert inside.event(pod, "FailedMount") == (
        f'MountVolume.SetUp failed for volume "v" : hostPath type check failed: {host / path} {what}'
    )
    assert inside.log(pod) == ""


def test_a_file_in_a_folder_that_is_not_there(inside: Inside, host: Path) -> None:
    assert str(host / "absent/file") in inside.event("hp-no-parent", "FailedMount")
    assert not (host / "absent").exists()


def test_parts_of_volumes(inside: Inside, host: Path) -> None:
    assert inside.said("sub-file") == "on the host\n"
    assert inside.said("sub-dir") == inside.said("sub-inside-link") == "deep\n"
    mode = (host / "data").stat().st_mode & 0o7777
    assert inside.told("sub-new") == {"MODE": f"{mode:o}"} and (host / "data/new/one/here").exists()
    inside.said("sub-expr")
    assert (host / f"data/pods/sub-expr-{NODE}/here").exists()
    assert inside.said("sub-read-only").splitlines() == ["deep", "touch: /v/y: Read-only file system"]


def test_parts_that_cannot_be_had(inside: Inside) -> None:
    assert inside.event("sub-expr-none", "Failed").startswith("Error: missing value for NOBODY")
    for pod, volume in (("sub-escape", "v"), ("sub-planted", "e")):
        text = inside.event(pod, "Failed")
        assert text.startswith(f'Error: failed to prepare subPath for volumeMount "{volume}" of container "app"')
        assert inside.log(pod) == ""


def test_mounts_made_later(inside: Inside, host: Path) -> None:
    spread = host / "spread"
    for pod in ("spread-in", "spread-none"):
        inside.wait(lambda pod=pod: any(run.running for run in inside.runs(pod)), f"{pod} runs")
    subprocess.run(["mount", "-t", "tmpfs", "t", spread / "from-host"], check=True)
    (spread / "from-host" / "mounted").touch()
    (spread / "go").touch()
    assert inside.told("spread-in") == {"SEEN": "from-host"}
    assert inside.said("spread-none") == ""
    inside.said("spread-out")
    assert (spread / "from-pod" / "mounted").exists()


def test_kinds_whose_tools_or_servers_are_missing(inside: Inside) -> None:
    for pod in ("nfs", "iscsi"):
        text = inside.event(pod, "FailedMount")
        assert text.startswith("MountVolume.") and 'failed for volume "v" : ' in text and "Traceback" not in text
    assert "git-repo volume plugin has been disabled" in inside.event("git", "FailedMount")


# --- what only a younger runtime can do --------------------------------------------------------------

DATA, NAMED = "pykubelet.local/data:1", "pykubelet.local/in-extra-group:1"


def image_volume(name: str, reference: str = DATA, policy: str = "Never", **more: Any) -> Manifest:
    container = container_manifest(script="cat /v/greeting; touch /v/x", volumeMounts=[mount("v", "/v", **more)])
    return pod_manifest(
        name, container, volumes=[{"name": "v", "image": {"reference": reference, "pullPolicy": policy}}]
    )


def read_only_tree(host: Path, name: str, **more: Any) -> Manifest:
    mounts = [mount("v", "/v", readOnly=True, **more)]
    volume = {"name": "v", "hostPath": {"path": str(host / "tree")}}
    script = "touch /v/x; touch /v/inner/x && echo INNER=writable"
    return pod_manifest(name, container_manifest(script=script, volumeMounts=mounts), volumes=[volume])


@pytest.fixture(scope="module")
def younger(tmp_path_factory: pytest.TempPathFactory, containerd2: BedContainerd, host: Path) -> Iterator[Inside]:
    import_image(containerd2, DATA, files={"greeting": b"from an image\n", "sub/greeting": b"deeper\n"})
    import_image(containerd2, NAMED, user="app")
    groups = {"supplementalGroupsPolicy": "Strict", "supplementalGroups": [50]}
    pods = [
        image_volume("whole"),
        image_volume("part", subPath="sub"),
        image_volume("absent", "pykubelet.local/absent:1"),
        image_volume("unreachable", "127.0.0.1:1/absent:1", "IfNotPresent"),
        image_volume("bad-name", "Not A Name"),
        pod_manifest("bystander", container_manifest(script="echo up")),
        pod_manifest("strict-groups", container_manifest(image=NAMED, script="id -G"), securityContext=groups),
        read_only_tree(host, "read-only"),
        read_only_tree(host, "read-only-all", recursiveReadOnly="Enabled"),
        read_only_tree(host, "read-only-may", recursiveReadOnly="IfPossible"),
    ]
    gates = ["--feature-gates=ImageVolumeWithDigest=true"]
    with looking_inside(tmp_path_factory.mktemp("younger"), containerd2, *pods, flags=gates) as found:
        yield found


def test_an_image_as_a_volume(younger: Inside) -> None:
    assert younger.said("whole").splitlines() == ["from an image", "touch: /v/x: Read-only file system"]
    assert younger.said("part").splitlines()[0] == "deeper"


async def test_the_status_names_the_image_of_a_volume(younger: Inside) -> None:
    """Also in an agent that did not mount it."""
    assert younger.said("whole")
    async with in_this_process(younger) as node:
        status = await status_when(node, "whole", lambda status: status.phase == "Running")
    (mounted,) = status.container_statuses[0].volume_mounts
    assert mounted.volume_status is not None and mounted.volume_status.image is not None
    assert (mounted.volume_status.image.image_ref or "").startswith("sha256:")


def test_an_image_volume_that_cannot_be_had(younger: Inside) -> None:
    text = 'Container image "pykubelet.local/absent:1" is not present with pull policy of Never'
    assert younger.event("absent", "ErrImageNeverPull") == text
    assert younger.event("absent", "Failed") == "Error: ErrImageNeverPull"
    assert younger.event("unreachable", "Failed", 'Failed to pull image "127.0.0.1:1/absent:1": ')
    assert younger.event("unreachable", "Failed", "Error: ") == "Error: ErrImagePull"
    assert younger.event("bad-name", "Failed") == "Error: InvalidImageName"
    assert younger.said("bystander") == "up\n"


def test_groups_of_the_image_are_left_out_on_demand(younger: Inside) -> None:
    assert set(younger.said("strict-groups").split()) == {"1000", "50"}


def test_whole_trees_that_are_read_only(younger: Inside, inside: Inside) -> None:
    assert "INNER=writable" in younger.said("read-only")
    for pod in ("read-only-all", "read-only-may"):
        said = younger.said(pod)
        assert "INNER=writable" not in said and said.count("Read-only file system") == 2
    assert "INNER=writable" in inside.said("tree-may")
    assert inside.event("tree-all", "Failed") == (
        'Error: volume "v" requested recursive read-only mode, but it is not supported by the runtime'
    )
