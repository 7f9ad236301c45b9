"""The images that the specs ask for, as stand-ins packed from what this machine has, under the names they ask for.

Nothing is pulled. A stand-in holds what the specs use and not more: docs/conformance.md lists what each has. The
programs of Kubernetes itself (agnhost, nonewprivs) are built by tools/build-go.sh.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace
from tests.bed import registry
from tests.bed.certificates import Authority
from tests.bed.parts import cannot, need_program

from pykubelet.standalone.images import PATH, busybox_image, find_busybox, pause_image
from pykubelet.standalone.packer import Archive, Entry, File, Folder, Image, Link, architecture, pack

E2E = "registry.k8s.io/e2e-test-images"
USERS = b"root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n"
GROUPS = b"root:x:0:\nnogroup:x:65534:\n"
IMAGE_USER = b"user-defined-in-image:x:1000:1000::/home/user-defined-in-image:/bin/sh\n"
IMAGE_GROUPS = b"user-defined-in-image:x:1000:\ngroup-defined-in-image:x:50000:user-defined-in-image\n"
WELCOME = b"<!DOCTYPE html>\n<html><head><title>Welcome to nginx!</title></head><body>Welcome to nginx!</body></html>\n"
NGINX = "echo $$ >/var/run/nginx.pid; exec -a httpd /bin/nginx -f -p 80 -h /www"
"""busybox under another name: a spec looks for a process that is called nginx."""
HOST_PROGRAMS = {
    "bash": "bash",
    "curl": "curl",
    "ip": "iproute2",
    "nc.openbsd": "netcat-openbsd",
    "getent": "libc-bin",
    "hostname": "hostname",
}
"""Programs of this machine that the agnhost image has besides busybox -> their Debian packages."""


@dataclass(frozen=True, slots=True)
class Named:
    """One archive and all names the runtime is to know it by; the archive's own is the first."""

    archive: Archive
    others: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return (self.archive.name, *self.others)


def build(programs: Path, folder: Path, applets: Sequence[Path] = ()) -> list[Named]:
    """Every image; `programs` holds what was built of Kubernetes, `folder` takes the key pair of the https specs,
    `applets` are static programs that Debian's busybox lacks."""
    arch = architecture()
    bare = base(programs, applets)
    pause = replace(pause_image(arch), name="registry.k8s.io/pause:3.10.2")
    # Specs remove it from the runtime, and with it all names of the same image: the sandboxes' must be another one.
    private = replace(pause, labels={"stands-for": "a private image"})
    agnhost = _agnhost(programs, folder, bare) | served("pause", "testing", pack(private, arch))
    images: list[tuple[Image, Sequence[str]]] = [
        (pause, _pauses("3.6", "3.7", "3.8", "3.9", "3.10")),
        *((busybox(name, bare), ()) for name in (f"{E2E}/busybox:1.37.0-1", "docker.io/library/busybox:latest")),
        *((_agnhost_image(version, agnhost), ()) for version in ("2.63.0", "2.55")),
        (Image(name=f"{E2E}/glibc-dns-testing:2.0.0", entries=agnhost, command=["sh"], environment=PATH), ()),
        (
            Image(
                name=f"{E2E}/nginx:1.15-4",
                entries=bare
                | {"www/index.html": File(WELCOME), "var/run": Folder(), "bin/nginx": Link("/bin/busybox")},
                entrypoint=["/bin/busybox", "sh", "-c", NGINX],
                environment=PATH,
            ),
            [f"{E2E}/nginx:1.27-0"],
        ),
        (Image(name=f"{E2E}/nonroot:1.5", entries=bare, command=["sh"], user="1234", environment=PATH), ()),
        (
            Image(
                name=f"{E2E}/nonewprivs:1.4",
                command=["/nnp"],
                environment=PATH,
                entries=bare | {"nnp": File((programs / "nonewprivs").read_bytes(), 0o4755)},
            ),
            (),
        ),
    ]
    return [Named(pack(image, arch), tuple(others)) for image, others in images]


def _agnhost_image(version: str, entries: Mapping[str, Entry]) -> Image:
    """Each version another image, for the same reason."""
    return Image(
        name=f"{E2E}/agnhost:{version}",
        entries={**entries, "version": File(f"{version}\n".encode())},
        entrypoint=["/agnhost"],
        command=["pause"],
        environment=PATH,
    )


def _pauses(*versions: str) -> list[str]:
    return [f"registry.k8s.io/pause:{version}" for version in versions] + ["registry.k8s.io/pause:3.10.1"]


def base(programs: Path, applets: Sequence[Path] = ()) -> dict[str, Entry]:
    """All of busybox, in /bin as its own image has it, and programs that Debian's lacks."""
    entries = busybox_image(find_busybox()).entries
    linked = {f"bin/{path.rpartition('/')[2]}": entry for path, entry in entries.items() if isinstance(entry, Link)}
    plain = {path: entry for path, entry in entries.items() if not isinstance(entry, Link)}
    return (
        plain
        | linked
        | {
            "bin/sh": File((programs / "sh").read_bytes(), 0o755),
            "etc/passwd": File(USERS),
            "etc/group": File(GROUPS),
        }
        | {f"bin/{path.name}": File(path.read_bytes(), 0o755) for path in applets}
    )


def busybox(name: str, entries: Mapping[str, Entry]) -> Image:
    """Each name another image: specs change a container's image and look at the name that its status shows."""
    marked = {**entries, "etc/stand-in": File(f"{name}\n".encode())}
    return Image(name=name, entries=marked, command=["sh"], environment=PATH)


def served(name: str, tag: str, archive: Archive) -> dict[str, Entry]:
    """Files from which agnhost's own registry server serves an image."""
    blobs = registry.blobs(archive)
    found: dict[str, Entry] = {f"var/registry/{name}/manifests/{tag}": File(archive.digest.encode())}
    for digest, blob in blobs.items():
        kind = "manifests" if digest == archive.digest else "blobs"
        algorithm, _, figures = digest.partition(":")
        found[f"var/registry/{name}/{kind}/{algorithm}/{figures[:2]}/{figures}/data"] = File(blob)
    return found


def _agnhost(programs: Path, folder: Path, base: Mapping[str, Entry]) -> dict[str, Entry]:
    found = {name: need_program(name, package) for name, package in HOST_PROGRAMS.items()}
    names = {name.partition(".")[0] for name in found}
    # Whatever busybox has under the same name must not come first on PATH.
    kept = {path: entry for path, entry in base.items() if path.rpartition("/")[2] not in names}
    own = {f"bin/{name.partition('.')[0]}": File(path.read_bytes(), 0o755) for name, path in found.items()}
    program = (programs / "agnhost").read_bytes()
    pair = Authority(folder, "agnhost-ca").issue("localhost", hosts=["localhost"])
    return (
        kept
        | libraries(found.values())
        | own
        | {
            "bin/sh": Link("/bin/bash"),
            "agnhost": File(program, 0o755),
            "agnhost-2": Link("/agnhost"),
            "localhost.crt": File(pair.certificate.read_bytes()),
            "localhost.key": File(pair.key.read_bytes()),
            "uploads": Folder(0o755),
            "etc/passwd": File(USERS + IMAGE_USER),
            "etc/group": File(GROUPS + IMAGE_GROUPS),
            "home/user-defined-in-image": Folder(0o755),
        }
    )


def libraries(found: Iterable[Path]) -> dict[str, Entry]:
    """The shared libraries that programs of this machine need, where they look for them."""
    paths: set[str] = set()
    for program in found:
        listed = subprocess.run(["ldd", program], capture_output=True, text=True, check=False)
        if listed.returncode != 0:
            cannot(f"ldd cannot say what {program} needs: {listed.stderr.strip()}")
        paths |= needed(listed.stdout)
    return {path.lstrip("/"): File(Path(path).read_bytes(), 0o755) for path in paths}


def needed(listing: str) -> set[str]:
    """Paths in what ldd prints; `name => path (address)` or `path (address)`."""
    return set(re.findall(r"(?:=> |^\s*)(/\S+) \(0x", listing, re.MULTILINE))
