"""Images that only the node suite asks for, and the registry that serves all images where specs pull them.

As in images.py nothing is pulled from outside: docker-registry on the bed's loopback has the stand-ins, and containerd
is told to go there for the two registries that the specs name.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from conformance import images
from conformance.images import E2E, Named
from tests.bed.parts import need_program
from tests.bed.registry import Registry, running_registry
from tests.bed.runtime import BedContainerd

from pykubelet.standalone.images import PATH
from pykubelet.standalone.packer import File, Image, architecture, pack

REGISTRIES = ("registry.k8s.io", "docker.io")
"""Hosts whose images the local registry serves."""
OS_RELEASE = b'NAME="Alpine Linux"\nID=alpine\n'
KITTEN = b'{\n"image": "kitten.jpg"\n}\n'


def build(programs: Path, folder: Path, applets: list[Path], device_plugin: Path) -> list[Named]:
    """The images of conformance and those of the node suite."""
    arch = architecture()
    base = images.base(programs, applets)
    ipcs, perl = need_program("ipcs", "util-linux"), need_program("perl", "perl-base")
    others = [
        *(images.busybox(name, base) for name in (f"{E2E}/busybox:1.36.1-1", "docker.io/library/busybox:1.36")),
        Image(
            name=f"{E2E}/ipc-utils:1.4",
            entries={path: entry for path, entry in base.items() if path != "bin/ipcs"}
            | images.libraries([ipcs])
            | {"bin/ipcs": File(ipcs.read_bytes(), 0o755)},
            command=["sh"],
            environment=PATH,
        ),
        Image(
            name=f"{E2E}/kitten:1.8",
            entries=base | {"data.json": File(KITTEN), "etc/os-release": File(OS_RELEASE)},
            command=["sh"],
            environment=PATH,
        ),
        Image(
            name=f"{E2E}/perl:5.26",
            entries=base | images.libraries([perl]) | {"bin/perl": File(perl.read_bytes(), 0o755)},
            command=["perl"],
            environment=PATH,
        ),
        Image(
            name=f"{E2E}/sample-device-plugin:1.7",
            entries=base | {"sampledeviceplugin": File(device_plugin.read_bytes(), 0o755)},
            entrypoint=["/sampledeviceplugin", "-alsologtostderr"],
            environment=PATH,
        ),
    ]
    return images.build(programs, folder, applets) + [Named(pack(image, arch)) for image in others]


@contextmanager
def registry_of(built: list[Named]) -> Iterator[Registry]:
    """A registry that has every image, under the names that the specs pull them by."""
    with running_registry(with_password=False) as registry:
        for each in built:
            for name in each.names:
                registry.push(name.partition("/")[2], each.archive)
        yield registry


def mirror(host: str) -> str:
    """A hosts.toml of containerd that sends it to `host`."""
    return f'server = "http://{host}"\n[host."http://{host}"]\ncapabilities = ["pull", "resolve"]\n'


@contextmanager
def serving(containerd: BedContainerd, built: list[Named]) -> Iterator[Registry]:
    """Have this containerd pull from a registry of its own."""
    with registry_of(built) as registry:
        for host in REGISTRIES:
            folder = containerd.registry_dir / host
            folder.mkdir(parents=True)
            (folder / "hosts.toml").write_text(mirror(registry.host))
        yield registry
