"""The images that need no registry: pause, busybox and a small HTTP test server, and their import.

Images are packed on this machine from what it has and imported with `ctr` into the namespace the CRI uses.
An image that is there already with the same digest is not imported again.
"""

from __future__ import annotations

import asyncio
import struct
import subprocess
from collections.abc import Awaitable, Callable, Iterable, Mapping
from importlib import resources
from pathlib import Path

from pykubelet.kit.clock import Clock
from pykubelet.standalone import programs
from pykubelet.standalone.errors import StandaloneError
from pykubelet.standalone.image_names import BUSYBOX as BUSYBOX
from pykubelet.standalone.image_names import PAUSE as PAUSE
from pykubelet.standalone.image_names import TESTSERVER as TESTSERVER
from pykubelet.standalone.packer import Archive, Entry, File, Folder, Image, Link, architecture, pack

PATH = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
# The CRI plugin learns of an imported image by an event and then marks it; before that pods cannot use it.
MANAGED_LABEL = "io.cri-containerd.image=managed"

RunCtr = Callable[..., Awaitable[str]]
"""`await ctr(*words, stdin=bytes)`: run ctr in the CRI's namespace and give its output."""


def pause_program(arch: str) -> bytes:
    """The executable for `amd64` or `arm64`; tools/build_pause.py makes it from the source beside it."""
    return (resources.files("pykubelet.standalone") / "pause" / arch).read_bytes()


def pause_image(arch: str) -> Image:
    return Image(
        name=PAUSE,
        entries={"pause": File(pause_program(arch), 0o755)},
        entrypoint=["/pause"],
        user="65535:65535",
        environment=PATH,
    )


def busybox_image(program: Path) -> Image:
    return Image(name=BUSYBOX, entries=_busybox_entries(program), command=["sh"], environment=PATH)


def testserver_image(program: Path) -> Image:
    folder = resources.files("pykubelet.standalone") / "data"
    scripts: dict[str, Entry] = {
        f"srv/{name}": File((folder / name).read_bytes(), 0o755) for name in ("serve.sh", "answer.sh")
    }
    return Image(
        name=TESTSERVER,
        entries=_busybox_entries(program) | scripts,
        entrypoint=["/srv/serve.sh"],
        environment=PATH,
        exposed_ports=["8080/tcp"],
    )


def build(names: Iterable[str]) -> list[Archive]:
    """The archives of the named images."""
    arch = architecture()
    archives = []
    for name in names:
        if name == PAUSE:
            archives.append(pack(pause_image(arch), arch))
        elif name == BUSYBOX:
            archives.append(pack(busybox_image(find_busybox()), arch))
        elif name == TESTSERVER:
            archives.append(pack(testserver_image(find_busybox()), arch))
        else:
            raise StandaloneError(f"image {name} is not one of the offline images")
    return archives


def find_busybox() -> Path:
    """A busybox that needs no libraries, as it will be alone in its image."""
    program = programs.find("busybox")
    if program is None:
        raise programs.missing(["busybox"])
    if not is_static(program.read_bytes()):
        raise StandaloneError(
            f"{program} needs shared libraries and cannot be packed into an image; "
            "on Debian or Ubuntu: apt-get install busybox-static"
        )
    return program


def is_static(program: bytes) -> bool:
    """Whether an ELF file names no interpreter."""
    if program[:5] != b"\x7fELF\x02":
        return False
    (table,) = struct.unpack_from("<Q", program, 32)
    size, count = struct.unpack_from("<HH", program, 54)
    kinds = [struct.unpack_from("<I", program, table + number * size)[0] for number in range(count)]
    return 3 not in kinds  # PT_INTERP


def _busybox_entries(program: Path) -> dict[str, Entry]:
    listed = subprocess.run([program, "--list-full"], capture_output=True, check=True, text=True)
    entries: dict[str, Entry] = {
        path: Link("/bin/busybox") for path in listed.stdout.split() if path.rpartition("/")[2] != "busybox"
    }
    return entries | {
        "bin/busybox": File(program.read_bytes(), 0o755),
        "etc/passwd": File(
            b"root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n"
            b"app:x:1000:1000:app:/home/app:/bin/sh\n"
        ),
        "etc/group": File(b"root:x:0:\nnogroup:x:65534:\napp:x:1000:\nextra:x:2000:app\n"),
        "home/app": Folder(0o755),
        "root": Folder(0o700),
        "tmp": Folder(0o1777),
        "var/run": Folder(0o755),
    }


def parse_listing(listing: str) -> dict[str, tuple[str, bool]]:
    """From `ctr images ls`: name -> digest, and whether the CRI knows the image."""
    images = {}
    for line in listing.splitlines()[1:]:
        words = line.split()
        digest = next((word for word in words if word.startswith("sha256:")), "")
        if len(words) > 2:
            images[words[0]] = (digest, MANAGED_LABEL in line)
    return images


def to_import(archives: Iterable[Archive], present: Mapping[str, tuple[str, bool]]) -> list[Archive]:
    """Those that are not there with the same digest."""
    return [archive for archive in archives if present.get(archive.name, ("", False))[0] != archive.digest]


async def import_images(ctr: RunCtr, archives: list[Archive], *, clock: Clock, within: float = 30.0) -> list[str]:
    """Import what is missing, wait until the CRI knows all of it, and give the names of what was imported."""
    present = parse_listing(await ctr("images", "ls"))
    absent = to_import(archives, present)
    for archive in absent:
        await ctr("images", "import", "-", stdin=archive.data)
    wanted = {archive.name for archive in archives}
    if absent:
        present = parse_listing(await ctr("images", "ls"))
    try:
        async with asyncio.timeout(within):
            while missing := wanted - _known(present):
                await clock.sleep(0.02)
                present = parse_listing(await ctr("images", "ls"))
    except TimeoutError:
        raise StandaloneError(
            f"imported images are not known to the runtime after {within:g} s: {', '.join(sorted(missing))}"
        ) from None
    return [archive.name for archive in absent]


def _known(present: Mapping[str, tuple[str, bool]]) -> set[str]:
    return {name for name, (_, managed) in present.items() if managed}
