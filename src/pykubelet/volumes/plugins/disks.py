"""Disks behind a network: finding the device the kernel made for them, and its multipath device if there is one."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

from pykubelet.volumes.problems import VolumeProblem

APPEAR_SECONDS = 10.0
_STEP = 0.2


def wait_for_device(find: Callable[[], str | None], what: str, seconds: float = APPEAR_SECONDS) -> str:
    """Ask `find` until it names a device. Blocks its thread; devices announce themselves to nobody we hear."""
    pause = threading.Event()
    for _ in range(max(1, int(seconds / _STEP))):
        found = find()
        if found is not None:
            return found
        pause.wait(_STEP)
    raise VolumeProblem(f"{what} did not appear as a device within {seconds:.0f} s")


def multipath_of(device: str, sys: Path = Path("/sys/block")) -> str:
    """The device-mapper device that combines all ways to this disk; the disk itself when there is none."""
    disk = os.path.basename(os.path.realpath(device))
    for slaves in sys.glob(f"dm-*/slaves/{disk}"):
        mapped = slaves.parent.parent
        try:
            if (mapped / "dm/uuid").read_text().startswith("mpath-"):
                return f"/dev/{mapped.name}"
        except OSError:
            continue
    return device


def rescan_hosts(top: Path = Path("/sys/class/scsi_host")) -> None:
    """Make SCSI hosts look for new disks."""
    for scan in top.glob("*/scan"):
        try:
            scan.write_text("- - -")
        except OSError as error:
            raise VolumeProblem(f"cannot rescan {scan.parent.name}: {error.strerror}") from error
