"""Facts about this machine, read once from /proc, /sys and /etc: CPUs, memory, topology, SELinux labels, sizes.

Everything is read below a root folder, so that tests describe other machines with a few files. What a host does not
show (no DMI, no hugepages) is empty or zero, never an error. Topology numbers agree with those of upstream's kubelet
(which asks cAdvisor): checkpoints of the memory manager hold them. A kernel without NUMA gives one node for each
socket; a host that shows nothing at all is one flat node.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterable
from pathlib import Path

from msgspec import Struct

from pykubelet.clients.host.port import Machine
from pykubelet.model.topology import Cpu, NumaNode, Topology, flat_topology, parse_cpu_list

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


def idle_seconds() -> float | None:
    """Seconds that all processors together did nothing since the boot; None where the kernel does not say."""
    try:
        return float(Path("/proc/uptime").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return None


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
    limits = [_first_line(root, f"proc/sys/kernel/{name}") for name in ("pid_max", "threads-max")]
    return min((int(text) for text in limits if text.isdigit()), default=0)


def _has_swap_controller(root: Path) -> bool:
    """On v1 a file of the memory hierarchy shows it; on v2 every group but the root has one."""
    v1 = root / "sys/fs/cgroup/memory/memory.memsw.limit_in_bytes"
    return v1.exists() or any(root.glob("sys/fs/cgroup/*/memory.swap.max"))


CPU_FOLDER = re.compile(r"^cpu(\d+)$")
NODE_FOLDER = re.compile(r"^node(\d+)$")
MEMORY_LINE = re.compile(r"MemTotal:\s+(\d+) kB")
LAST_PRIVATE_CACHE = 2
"""Caches above this level are shared between cores."""


class _Thread(Struct, frozen=True):
    id: int
    core_id: int
    socket: int


def read_topology(machine: Machine, root: Path = Path("/")) -> Topology:
    cpu_root, node_root = root / "sys/devices/system/cpu", root / "sys/devices/system/node"
    threads = [each for number in _numbers(cpu_root, CPU_FOLDER) if (each := _thread(cpu_root, number)) is not None]
    if not threads:
        return flat_topology(machine.cpus, machine.memory_bytes, machine.hugepages)
    by_id = {each.id: each for each in threads}
    folders = _numbers(node_root, NODE_FOLDER)
    if not folders:
        return _without_numa(cpu_root, threads, machine)
    nodes: list[NumaNode] = []
    cpus: list[Cpu] = []
    placed: set[int] = set()
    for node in folders:
        folder = node_root / f"node{node}"
        nodes.append(_node(folder, node))
        own = [by_id[number] for number in _numbers(folder, CPU_FOLDER) if number in by_id]
        placed.update(each.id for each in own)
        cpus += _placed(cpu_root, own, node)
    cpus += _placed(cpu_root, [each for each in threads if each.id not in placed], folders[0])
    return Topology(cpus=tuple(sorted(cpus, key=lambda cpu: cpu.id)), nodes=tuple(nodes))


def _without_numa(cpu_root: Path, threads: list[_Thread], machine: Machine) -> Topology:
    sockets = sorted({each.socket for each in threads})
    cpus = [cpu for socket in sockets for cpu in _placed(cpu_root, [t for t in threads if t.socket == socket], socket)]
    # Nothing shows where the memory is; with one socket there is only one place.
    alone = len(sockets) == 1
    nodes = tuple(
        NumaNode(
            id=socket,
            memory_bytes=machine.memory_bytes if alone else 0,
            hugepages=machine.hugepages if alone else (),
        )
        for socket in sockets
    )
    return Topology(cpus=tuple(sorted(cpus, key=lambda cpu: cpu.id)), nodes=nodes)


def _placed(cpu_root: Path, threads: list[_Thread], node: int) -> list[Cpu]:
    cores: dict[tuple[int, int], list[int]] = {}
    for each in threads:
        cores.setdefault((each.socket, each.core_id), []).append(each.id)
    found = []
    for (socket, _), members in cores.items():
        cache = _shared_cache(cpu_root / f"cpu{min(members)}" / "cache", node_threads=len(cores) * len(members))
        found += [
            Cpu(id=each, core=min(members), socket=socket, numa=node, cache=socket if cache is None else cache)
            for each in members
        ]
    return found


def _shared_cache(folder: Path, *, node_threads: int) -> int | None:
    """The id of a cache shared by several cores but not by the whole node; None where there is none."""
    try:
        names = sorted(name for name in os.listdir(folder) if name.startswith("index"))
    except OSError:
        return None
    for name in names:
        level, shared = _number(folder / name / "level"), _list(folder / name / "shared_cpu_list")
        if level is not None and level > LAST_PRIVATE_CACHE and shared and len(shared) != node_threads:
            own = _number(folder / name / "id")
            return own if own is not None else min(shared)
    return None


def _thread(cpu_root: Path, number: int) -> _Thread | None:
    """None for a CPU that is offline or does not say where it is."""
    folder = cpu_root / f"cpu{number}"
    if _number(folder / "online") == 0:
        return None
    core, socket = _number(folder / "topology/core_id"), _number(folder / "topology/physical_package_id")
    return None if core is None or socket is None else _Thread(number, core, socket)


def _node(folder: Path, number: int) -> NumaNode:
    match = MEMORY_LINE.search(_text(folder / "meminfo"))
    pages = []
    for size in _numbers(folder / "hugepages", HUGEPAGE_FOLDER):
        count = _number(folder / "hugepages" / f"hugepages-{size}kB" / "nr_hugepages")
        pages.append((size * 1024, count or 0))
    distances = _text(folder / "distance").split()
    return NumaNode(
        id=number,
        memory_bytes=int(match.group(1)) * 1024 if match else 0,
        hugepages=tuple(pages),
        distances=tuple(int(each) for each in distances if each.isdigit()),
    )


def _numbers(folder: Path, pattern: re.Pattern[str]) -> list[int]:
    try:
        names: Iterable[str] = os.listdir(folder)
    except OSError:
        return []
    return sorted(int(match.group(1)) for name in names if (match := pattern.match(name)))


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.lstrip("-").isdigit() else None


def _list(path: Path) -> frozenset[int]:
    try:
        return parse_cpu_list(_text(path).strip())
    except ValueError:
        return frozenset()


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""


def filesystem_size(path: Path) -> int:
    """Bytes of the filesystem that holds the path, or its nearest parent that exists; raises OSError."""
    while not path.exists() and path != path.parent:
        path = path.parent
    found = os.statvfs(path)
    return found.f_blocks * found.f_frsize


CONFIG = Path("/etc/selinux/config")
_POLICY = re.compile(r"^\s*SELINUXTYPE\s*=\s*(\S+)", re.MULTILINE)
_FILE = re.compile(r"^\s*file\s*=\s*\"?([^\"\s]+)\"?", re.MULTILINE)


def container_file_label(config: Path = CONFIG) -> str:
    """Label such as system_u:object_r:container_file_t:s0; empty when the host does not say."""
    try:
        policy = _POLICY.search(config.read_text())
        if policy is None:
            return ""
        found = _FILE.search((config.parent / policy.group(1) / "contexts" / "lxc_contexts").read_text())
    except OSError:
        return ""
    return found.group(1) if found else ""
