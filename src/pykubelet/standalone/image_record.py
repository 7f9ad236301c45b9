"""Which offline images a private runtime has: packing them at every start, only to find them there, takes too long.

A file keeps what they were packed from and the ids that the runtime gave them. While both are as before nothing is
done; otherwise they are packed and imported (images.py).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from pykubelet.kit.clock import Clock
from pykubelet.kit.host_calls import host_calls
from pykubelet.model.runtime_status import Image
from pykubelet.standalone import programs
from pykubelet.standalone.containerd import PrivateContainerd

HERE = Path(__file__).parent


class ImageLister(Protocol):
    async def list_images(self) -> Sequence[Image]: ...


async def ensure_images(
    private: PrivateContainerd, cri: ImageLister, names: Sequence[str], *, clock: Clock
) -> list[str]:
    """Have the runtime know the offline images; gives the names of those that had to be imported."""
    file, inputs = private.layout.images_file, packed_from()
    known = await ids_of(cri, names)
    if is_current(file, inputs, known, names):
        return []
    from pykubelet.standalone.images import build, import_images

    archives = await host_calls.run(partial(build, names), name="building images", within=600.0)
    imported = await import_images(private.ctr, archives, clock=clock)
    file.write_text(json.dumps({"from": inputs, "ids": await ids_of(cri, names)}))
    return imported


async def ids_of(cri: ImageLister, names: Sequence[str]) -> dict[str, str]:
    """The ids of those that the runtime knows."""
    return {tag: image.id for image in await cri.list_images() for tag in image.tags if tag in names}


def is_current(file: Path, inputs: Sequence[Any], known: dict[str, str], names: Sequence[str]) -> bool:
    """Whether the runtime has all of them, as they were packed from these files."""
    try:
        record = json.loads(file.read_text())
        return bool(record["from"] == inputs and set(known) == set(names) and record["ids"] == known)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def packed_from() -> list[list[Any]]:
    """What goes into the images, by place, size and time: the programs, the scripts, and the code that packs them."""
    found = [programs.find("busybox"), *sorted((HERE / "data").iterdir()), *sorted((HERE / "pause").iterdir())]
    found += [HERE / "images.py", HERE / "packer.py"]
    stats = [(str(path), path.stat()) for path in found if path is not None]
    return [[path, stat.st_ino, stat.st_size, stat.st_mtime_ns] for path, stat in stats]
