"""Facts about this machine, read once from /proc, /sys and /etc.

Everything is read below a root folder, so that tests describe other machines with a few files. What a host does
not tell (no DMI, no hugepages) is empty or zero, never an error.
"""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path

from pykubelet.clients.host.port import Machine
from pykubelet.clients.host.selinux import container_file_label

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm", "ppc64le": "ppc64le", "s390x": "s390x"}
HUGEPAGE_FOLDER = re.compile(r"^hugepages-(\d+)kB$")


def read_machine(root: Path = Path("/")) -> Machine:
    memory = _meminfo(root)
    hugepages = _hugepages(root)
    selinux = (root / "sys/fs/selinux/enforce").exists()
    return Machine(
        hostname=platform.node(),
        cpus=_cpus(root),
        memory_bytes=memory.get("MemTotal", 0),
        swap_bytes=memory.get("SwapTotal", 0),
        kernel=platform.release(),
        os_image=_os_image(root),
        machine_id=_first_line(root, "etc/machine-id", "var/lib/dbus/machine-id"),
        system_uuid=_first_line(root, "sys/class/dmi/id/product_uuid", "etc/machine-id"),
        boot_id=_first_line(root, "proc/sys/kernel/random/boot_id"),
        architecture=ARCHITECTURES.get(platform.machine(), platform.machine()),
        booted=_booted(root),
        hugepage_sizes=tuple(size for size, _ in hugepages),
        hugepages=hugepages,
        pids=_pids(root),
        cgroup_v2=(root / "sys/fs/cgroup/cgroup.controllers").exists(),
        apparmor=_first_line(root, "sys/module/apparmor/parameters/enabled") == "Y",
        selinux=selinux,
        container_file_label=container_file_label(root / "etc/selinux/config") if selinux else "",
        swap_controller=_has_swap_controller(root),
        page_bytes=os.sysconf("SC_PAGE_SIZE"),
        thermal_paths=tuple(
            f"/{path.relative_to(root)}"
            for path in sorted(root.glob("sys/devices/system/cpu/cpu[0-9]*/thermal_throttle"))
        ),
    )


def _first_line(root: Path, *places: str) -> str:
    for place in places:
        try:
            return (root / place).read_text().strip().splitlines()[0]
        except (OSError, IndexError, UnicodeDecodeError):
            continue
    return ""


def _booted(root: Path) -> float:
    try:
        lines = (root / "proc/stat").read_text().splitlines()
    except OSError:
        return 0.0
    return next((float(line.split()[1]) for line in lines if line.startswith("btime ")), 0.0)


def _meminfo(root: Path) -> dict[str, int]:
    found = {}
    try:
        lines = (root / "proc/meminfo").read_text().splitlines()
    except OSError:
        return {}
    for line in lines:
        name, _, rest = line.partition(":")
        words = rest.split()
        if words and words[0].isdigit():
            found[name] = int(words[0]) * (1024 if words[-1] == "kB" else 1)
    return found


def _cpus(root: Path) -> int:
    online = _first_line(root, "sys/devices/system/cpu/online")
    count = 0
    for part in online.split(","):
        first, _, last = part.partition("-")
        if first.isdigit():
            count += int(last or first) - int(first) + 1
    return count or os.cpu_count() or 1


def _os_image(root: Path) -> str:
    for place in ("etc/os-release", "usr/lib/os-release"):
        try:
            lines = (root / place).read_text().splitlines()
        except OSError:
            continue
        for line in lines:
            if line.startswith("PRETTY_NAME="):
                return line.partition("=")[2].strip().strip("\"'")
    return "Linux"


def _hugepages(root: Path) -> tuple[tuple[int, int], ...]:
    folder = root / "sys/kernel/mm/hugepages"
    found = []
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return ()
    for name in names:
        if match := HUGEPAGE_FOLDER.match(name):
            count = _first_line(root, f"sys/kernel/mm/hugepages/{name}/nr_hugepages")
            found.append((int(match.group(1)) * 1024, int(count) if count.isdigit() else 0))
    return tuple(found)


def _pids(root: Path) -> int:
    told = [_first_line(root, f"proc/sys/kernel/{name}") for name in ("pid_max", "threads-max")]
    return min((int(text) for text in told if text.isdigit()), default=0)


def _has_swap_controller(root: Path) -> bool:
    """On v1 a file of the memory hierarchy tells; on v2 every group but the root has one."""
    v1 = root / "sys/fs/cgroup/memory/memory.memsw.limit_in_bytes"
    return v1.exists() or any(root.glob("sys/fs/cgroup/*/memory.swap.max"))
