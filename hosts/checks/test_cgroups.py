"""Cgroups of pods on cgroup v2, with both drivers: where they are, every limit, every figure, and that nothing stays.

What is expected is computed here from the manifests, and what is seen comes from the kernel's own files. In-place
resize needs an API server (static pods cannot be resized): the conformance runs have it.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from hosts.machine import Kind
from hosts.node import Node, a_pod, node_on
from pykubelet.standalone.images import BUSYBOX

MIB = 1 << 20
ROOT = "/sys/fs/cgroup"
GUEST = Kind(name="cgroups", cpus=2, memory="2G", arguments="hugepages=64")
PIDS = 300
UID = "0f1e2d3c-0000-4000-8000-00000000abcd"
"""With dashes, which systemd would take for levels of slices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """A driver and a runtime that go together."""

    driver: str
    newer: bool = False
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def systemd(self) -> bool:
        return self.driver == "systemd"

    def __str__(self) -> str:
        return f"{self.driver}-{'containerd2' if self.newer else 'containerd1'}"


MEMORY_QOS = {
    "featureGates": {"MemoryQoS": True},
    "memoryReservationPolicy": "TieredReservation",
    "memoryThrottlingFactor": 0.8,
}
WAYS = [Way(driver="systemd"), Way(driver="cgroupfs"), Way(driver="systemd", newer=True, settings=MEMORY_QOS)]
RESERVED = {
    "podPidsLimit": PIDS,
    "enforceNodeAllocatable": ["pods", "system-reserved", "kube-reserved"],
    "systemReserved": {"cpu": "100m", "memory": "96Mi", "pid": "2000"},
    "kubeReserved": {"cpu": "200m", "memory": "160Mi", "pid": "1000"},
}
BUSY = "while :; do :; done"
WRITER = "dd if=/dev/zero of=/data/file bs=64k count=64 conv=fsync && sleep 1000000"


def pods() -> list[dict[str, Any]]:
    """One of each class, and one whose second container has no limits."""
    equal = {"cpu": "100m", "memory": "64Mi", "hugepages-2Mi": "4Mi"}
    exact = a_pod("exact", container={"resources": {"requests": equal, "limits": equal}})
    exact["metadata"]["uid"] = UID
    asked, most = {"cpu": "150m", "memory": "48Mi"}, {"cpu": "250m", "memory": "100Mi"}
    capped = a_pod("capped", BUSY, container={"resources": {"requests": asked, "limits": most}})
    half = a_pod("half", container={"resources": {"requests": asked, "limits": most}})
    free = {"name": "free", "image": BUSYBOX, "command": ["sleep", "1000000"]}
    half["spec"]["containers"].append(free | {"resources": {"requests": {"memory": "16Mi"}}})
    data = {"name": "data", "emptyDir": {}}
    mounted = {"volumeMounts": [{"name": "data", "mountPath": "/data"}]}
    return [exact, capped, half, a_pod("effort", WRITER, container=mounted, volumes=[data])]


NAMES = ("exact", "capped", "half", "effort")


@pytest.fixture(scope="module")
def guest() -> Iterator[Node]:
    with node_on(GUEST, newer=True) as node:
        yield node


@dataclass(slots=True, kw_only=True)
class Seen:
    """The pods of one way, running."""

    way: Way
    node: Node
    uids: dict[str, str]
    pids: dict[tuple[str, str], int]
    ids: dict[tuple[str, str], str]

    def pod_folder(self, name: str) -> str:
        part = {"exact": (), "capped": ("burstable",), "half": ("burstable",), "effort": ("besteffort",)}[name]
        return self.folder("kubepods", *part, f"pod{self.uids[name]}")

    def folder(self, *parts: str) -> str:
        if not self.way.systemd:
            return "/".join((ROOT, *parts))
        flat = [part.replace("-", "_") for part in parts]
        return ROOT + "".join(f"/{'-'.join(flat[: index + 1])}.slice" for index in range(len(flat)))

    def container_folder(self, name: str, container: str = "main") -> str:
        identifier = self.ids[name, container]
        return f"{self.pod_folder(name)}/{f'cri-containerd-{identifier}.scope' if self.way.systemd else identifier}"


@pytest.fixture(scope="module", params=WAYS, ids=str)
def seen(request: pytest.FixtureRequest, guest: Node) -> Iterator[Seen]:
    way: Way = request.param
    guest.start_runtime(systemd_cgroup=way.systemd, newer=way.newer)
    make = "systemctl start {0}.slice" if way.systemd else f"mkdir -p {ROOT}/{{0}}"
    for name in ("syskeep", "kubekeep"):
        guest.machine.run(make.format(name))
    ending = ".slice" if way.systemd else ""
    groups = {"systemReservedCgroup": f"/syskeep{ending}", "kubeReservedCgroup": f"/kubekeep{ending}"}
    guest.start({"cgroupDriver": way.driver, **RESERVED, **groups, **way.settings})
    guest.apply(*pods())
    found = {name: guest.running(name) for name in NAMES}
    pairs = [(name, each["name"]) for name in NAMES for each in found[name]["spec"]["containers"]]
    yield Seen(
        way=way,
        node=guest,
        uids={name: found[name]["metadata"]["annotations"]["kubernetes.io/config.hash"] for name in NAMES},
        pids={pair: guest.pid(*pair) for pair in pairs},
        ids={pair: guest.container_id(*pair) for pair in pairs},
    )
    guest.machine.run("rm -f /etc/kubernetes/manifests/*")
    guest.wait(lambda: not guest.pods(), "all pods gone")
    guest.stop()


@pytest.fixture
def node(guest: Node) -> Node:
    """For the journal beside a failure."""
    return guest


def shares(milli: int) -> int:
    return max(2, milli * 1024 // 1000)


def weight(milli: int) -> int:
    """cpu.weight as the kubelet writes it."""
    return 1 + (shares(milli) - 2) * 9999 // 262_142


def container_weights(milli: int) -> set[str]:
    """The runtime writes a container's: runc linear like the kubelet, newer ones so that 1024 shares are 100."""
    bits = math.log2(shares(milli))
    curved = math.ceil(10 ** ((bits**2 + 125 * bits) / 612 - 7 / 34))
    return {str(weight(milli)), str(curved)}


LIMITS = ("cpu.max", "cpu.weight", "memory.max", "memory.min", "memory.low", "memory.high", "pids.max")
HUGE = ("hugetlb.2MB.max", "hugetlb.2MB.rsvd.max", "hugetlb.1GB.max", "hugetlb.1GB.rsvd.max")
UNBOUNDED = str(1 << 62)
"""Of huge pages, as the kubelet writes it."""


def test_the_runtime_and_the_driver_are_those_that_were_asked_for(seen: Seen, record_property: Any) -> None:
    version = seen.node.machine.run("ctr version | sed -n 's/^ *Version: *//p' | tail -1").strip()
    assert version.removeprefix("v").startswith("2." if seen.way.newer else "1.7")
    assert "cgroup2fs" in seen.node.machine.run(f"stat -fc %T {ROOT}")
    record_property("containerd", version)


def test_processes_are_in_the_groups_of_their_pod_and_class(seen: Seen, record_property: Any) -> None:
    for (pod, container), pid in seen.pids.items():
        assert seen.node.cgroup(pid) == seen.container_folder(pod, container)
    assert seen.uids["exact"] == UID
    record_property("pod", seen.pod_folder("exact"))


def test_pods_have_the_limits_of_their_manifests(seen: Seen, record_property: Any) -> None:
    qos = bool(seen.way.settings)
    expected = {
        "exact": {
            "cpu.max": "10000 100000",
            "cpu.weight": str(weight(100)),
            "memory.max": str(64 * MIB),
            "memory.min": str(64 * MIB if qos else 0),
            "hugetlb.2MB.max": str(4 * MIB),
            "hugetlb.2MB.rsvd.max": str(4 * MIB),
        },
        "capped": {
            "cpu.max": "25000 100000",
            "cpu.weight": str(weight(150)),
            "memory.max": str(100 * MIB),
            "memory.low": str(48 * MIB if qos else 0),
        },
        "half": {"cpu.weight": str(weight(150)), "memory.low": str(64 * MIB if qos else 0)},
        "effort": {"cpu.weight": "1"},
    }
    none = {"cpu.max": "max 100000", "memory.max": "max", "memory.min": "0", "memory.low": "0", "memory.high": "max"}
    none |= {"pids.max": str(PIDS)} | dict.fromkeys(HUGE, "0")
    for name, own in expected.items():
        assert seen.node.files(seen.pod_folder(name), *LIMITS, *HUGE) == none | own, name
    record_property("limits", f"{len(expected)} pods x {len(LIMITS) + len(HUGE)} files")


def test_containers_have_the_limits_of_their_manifests(seen: Seen) -> None:
    qos = bool(seen.way.settings)
    page = 4096
    throttled = str((48 * MIB + int(52 * MIB * 0.8)) // page * page) if qos else "max"
    protected = str(48 * MIB if qos else 0)
    expected = {
        ("exact", "main"): {
            "cpu.max": "10000 100000",
            "memory.max": str(64 * MIB),
            "memory.min": str(64 * MIB if qos else 0),
        },
        ("capped", "main"): {
            "cpu.max": "25000 100000",
            "memory.max": str(100 * MIB),
            "memory.low": protected,
            "memory.high": throttled,
        },
        ("half", "free"): {
            "memory.low": str(16 * MIB if qos else 0),
            "memory.high": _high_without_limit(seen, 16 * MIB) if qos else "max",
        },
        ("effort", "main"): {},
    }
    milli = {("exact", "main"): 100, ("capped", "main"): 150, ("half", "free"): 0, ("effort", "main"): 0}
    none = {"cpu.max": "max 100000", "memory.max": "max", "memory.min": "0", "memory.low": "0", "memory.high": "max"}
    none |= {"memory.oom.group": "1"}
    for (pod, container), own in expected.items():
        files = seen.node.files(seen.container_folder(pod, container), *LIMITS, "memory.oom.group")
        assert files.pop("cpu.weight") in container_weights(milli[pod, container]), (pod, container)
        del files["pids.max"]  # the pod's limit is the one that is set, as with huge pages in containerd's defaults
        assert files == none | own, (pod, container)


def _memory(seen: Seen) -> int:
    return int(seen.node.machine.run("awk '/^MemTotal/ {print $2}' /proc/meminfo")) * 1024


def _pids(seen: Seen) -> int:
    return min(int(seen.node.machine.get(f"/proc/sys/kernel/{name}")) for name in ("pid_max", "threads-max"))


def _high_without_limit(seen: Seen, request: int) -> str:
    """The limit of a container that has none is what all pods may use: what there is less what is reserved."""
    most = _memory(seen) - 256 * MIB
    return str(int(request + (most - request) * 0.8) // 4096 * 4096)


def test_the_kernel_kills_best_effort_first_and_guaranteed_last(seen: Seen) -> None:
    scores = {pair: int(seen.node.machine.get(f"/proc/{pid}/oom_score_adj")) for pair, pid in seen.pids.items()}
    burst, free = (1000 - 1000 * size * MIB // _memory(seen) for size in (48, 16))
    assert scores == {
        ("exact", "main"): -997,
        ("capped", "main"): burst,
        ("half", "main"): burst,
        ("half", "free"): free,
        ("effort", "main"): 1000,
    }
    agent = seen.node.machine.run("systemctl show -P MainPID pykubelet").strip()
    assert seen.node.machine.get(f"/proc/{agent}/oom_score_adj").strip() == "-999"


def _class_limits(seen: Seen) -> dict[str, dict[str, str]]:
    qos = bool(seen.way.settings)
    burst = (48 + 64) * MIB if qos else 0
    return {
        seen.folder("kubepods"): {
            "cpu.weight": str(weight(2000 - 300)),
            "memory.max": str((_memory(seen) - 256 * MIB) // 4096 * 4096),
            "memory.min": str(64 * MIB + burst if qos else 0),
            "pids.max": str(_pids(seen) - 3000),
            "hugetlb.2MB.max": str(128 * MIB),
        },
        seen.folder("kubepods", "burstable"): {
            "cpu.weight": str(weight(300)),
            "memory.max": "max",
            "memory.low": str(burst),
            "hugetlb.2MB.max": UNBOUNDED,
        },
        seen.folder("kubepods", "besteffort"): {"cpu.weight": "1", "memory.max": "max", "hugetlb.2MB.max": UNBOUNDED},
        seen.folder("syskeep"): {"cpu.weight": str(weight(100)), "memory.max": str(96 * MIB), "pids.max": "2000"},
        seen.folder("kubekeep"): {"cpu.weight": str(weight(200)), "memory.max": str(160 * MIB), "pids.max": "1000"},
    }


def test_classes_all_pods_and_reserved_groups_have_their_limits(seen: Seen) -> None:
    for folder, expected in _class_limits(seen).items():
        assert seen.node.files(folder, *expected) == expected, folder


def test_limits_outlive_a_reload_and_a_change_by_systemd(seen: Seen) -> None:
    """When a property of a slice changes, systemd writes all that it knows of it again."""
    seen.node.machine.run("systemctl daemon-reload")
    if seen.way.systemd:
        for folder in (*_class_limits(seen), *map(seen.pod_folder, NAMES)):
            seen.node.machine.run(f"systemctl set-property --runtime {folder.rpartition('/')[2]} IOAccounting=yes")
    for folder, expected in _class_limits(seen).items():
        assert seen.node.files(folder, *expected) == expected, folder
    test_containers_have_the_limits_of_their_manifests(seen)
    test_pods_have_the_limits_of_their_manifests(seen, lambda name, value: None)


# --- figures ------------------------------------------------------------------------------------------------------


Pick = Callable[[dict[str, str]], int]
"""A figure from the files of a group."""


def stat(text: str) -> dict[str, int]:
    return {line.split()[0]: int(line.split()[1]) for line in text.splitlines()}


def cpu(name: str) -> Pick:
    return lambda files: stat(files["cpu.stat"])[name]


def stalled(kind: str, state: str) -> Pick:
    def microseconds(files: dict[str, str]) -> int:
        found = re.search(rf"^{state} .*total=(\d+)$", files[f"{kind}.pressure"], re.MULTILINE)
        assert found
        return int(found[1])

    return microseconds


FIGURES = ("cpu.stat", "memory.current", "memory.stat", "pids.current", "*.pressure", "io.stat", "memory.peak")


@dataclass(slots=True)
class Between:
    """Files of a group before and after the agent was asked: what it says lies between."""

    before: dict[str, str]
    after: dict[str, str]

    def holds(self, pick: Pick, value: float, *, off: float = 0, what: str = "") -> None:
        low, high = sorted((pick(self.before), pick(self.after)))
        assert low - off <= value <= high + off, f"{what} is {value}, not in {low}..{high}"


def asked(seen: Seen, folder: str, path: str) -> tuple[str, Between]:
    before = seen.node.files(folder, *FIGURES)
    time.sleep(1.5)  # one reading of the agent serves all requests of a second
    answer = seen.node.get(path)
    return answer, Between(before, seen.node.files(folder, *FIGURES))


def holds_group(figures: Any, group: Between) -> None:
    """The figures of a pod or a container in /stats/summary."""
    group.holds(lambda f: stat(f["cpu.stat"])["usage_usec"] * 1000, figures["cpu"]["usageCoreNanoSeconds"])
    memory = figures["memory"]
    group.holds(lambda f: int(f["memory.current"]), memory["usageBytes"], off=MIB)
    group.holds(
        lambda f: int(f["memory.current"]) - stat(f["memory.stat"])["inactive_file"],
        memory["workingSetBytes"],
        off=MIB,
    )
    group.holds(lambda f: stat(f["memory.stat"])["anon"], memory["rssBytes"], off=MIB)
    group.holds(lambda f: stat(f["memory.stat"])["pgfault"], memory["pageFaults"])
    group.holds(lambda f: stat(f["memory.stat"])["pgmajfault"], memory["majorPageFaults"])
    for kind in ("cpu", "memory", "io"):
        for state in ("some", "full"):
            shown = figures[kind]["psi"][state]["total"]
            group.holds(stalled(kind, state), shown)


def test_the_summary_shows_what_the_kernel_counts(seen: Seen, record_property: Any) -> None:
    for name in ("capped", "effort", "exact"):
        answer, group = asked(seen, seen.pod_folder(name), "/stats/summary")
        pod = next(each for each in json.loads(answer)["pods"] if each["podRef"]["uid"] == seen.uids[name])
        holds_group(pod, group)
        answer, group = asked(seen, seen.container_folder(name), "/stats/summary")
        pod = next(each for each in json.loads(answer)["pods"] if each["podRef"]["uid"] == seen.uids[name])
        holds_group(pod["containers"][0], group)
    busy = next(each for each in json.loads(answer)["pods"] if each["podRef"]["uid"] == seen.uids["capped"])
    assert busy["cpu"]["psi"]["some"]["total"] > 0 and busy["cpu"]["usageNanoCores"] > 0
    assert busy["containers"][0]["memory"]["availableBytes"] <= 100 * MIB
    record_property("busy pod's CPU pressure in µs", busy["cpu"]["psi"]["some"]["total"])


def test_the_summary_of_the_node_agrees_with_df_and_proc(seen: Seen) -> None:
    machine = seen.node.machine
    before = machine.run(f"sed -n 's/usage_usec //p' {ROOT}/cpu.stat").split()[0]
    time.sleep(1.5)
    node = json.loads(seen.node.get("/stats/summary"))["node"]
    after = machine.run(f"sed -n 's/usage_usec //p' {ROOT}/cpu.stat").split()[0]
    assert int(before) * 1000 <= node["cpu"]["usageCoreNanoSeconds"] <= int(after) * 1000
    memory = node["memory"]
    assert memory["availableBytes"] + memory["workingSetBytes"] == _memory(seen)
    counted = stat(machine.get(f"{ROOT}/memory.stat"))
    assert abs(counted["anon"] + counted["file"] - memory["usageBytes"]) < 32 * MIB
    size, free, inodes = map(int, machine.run("stat -fc '%b %a %c' /").split())
    block = int(machine.run("stat -fc %S /"))
    assert node["fs"]["capacityBytes"] == size * block and node["fs"]["inodes"] == inodes
    assert abs(node["fs"]["availableBytes"] - free * block) < 64 * MIB
    assert node["rlimit"]["maxpid"] == _pids(seen)
    sent = int(machine.get("/sys/class/net/eth0/statistics/tx_bytes"))
    eth0 = next(each for each in node["network"]["interfaces"] if each["name"] == "eth0")
    assert 0 < eth0["txBytes"] <= sent


def series(text: str, name: str, **labels: str) -> float:
    """The one series with these labels; the sum over what is left of them."""
    found = []
    for line in text.splitlines():
        if line.startswith(f"{name}{{") and all(f'{key}="{value}"' in line for key, value in labels.items()):
            found.append(float(line.rpartition("}")[2].split()[0]))
    assert found, f"no {name} with {labels}"
    return sum(found)


def test_cadvisor_metrics_show_what_the_kernel_counts(seen: Seen, record_property: Any) -> None:
    folder = seen.container_folder("capped")
    text, group = asked(seen, folder, "/metrics/cadvisor")
    labels = {"id": folder.removeprefix(ROOT), "container": "main"}

    def holds(name: str, pick: Pick, *, off: float = 0, scale: float = 1) -> None:
        group.holds(pick, series(text, name, **labels) * scale, off=off, what=name)

    for name, counter in (
        ("container_cpu_usage_seconds_total", cpu("usage_usec")),
        ("container_cpu_user_seconds_total", cpu("user_usec")),
        ("container_cpu_system_seconds_total", cpu("system_usec")),
        ("container_cpu_cfs_throttled_seconds_total", cpu("throttled_usec")),
        ("container_pressure_cpu_waiting_seconds_total", stalled("cpu", "some")),
        ("container_pressure_cpu_stalled_seconds_total", stalled("cpu", "full")),
    ):
        holds(name, counter, off=1, scale=1e6)
    holds("container_cpu_cfs_periods_total", cpu("nr_periods"))
    holds("container_cpu_cfs_throttled_periods_total", cpu("nr_throttled"))
    holds("container_threads", lambda f: int(f["pids.current"]))
    holds("container_memory_usage_bytes", lambda f: int(f["memory.current"]), off=MIB)
    holds("container_memory_max_usage_bytes", lambda f: int(f["memory.peak"]))
    holds("container_memory_rss", lambda f: stat(f["memory.stat"])["anon"], off=MIB)
    holds("container_spec_memory_limit_bytes", lambda f: 100 * MIB)
    holds("container_spec_cpu_quota", lambda f: 25000)
    holds("container_spec_cpu_period", lambda f: 100000)
    throttled = series(text, "container_cpu_cfs_throttled_periods_total", **labels)
    assert throttled > 0
    record_property("throttled periods of the busy container", int(throttled))


def test_cadvisor_metrics_show_what_a_container_wrote(seen: Seen, record_property: Any) -> None:
    folder = seen.container_folder("effort")
    text, group = asked(seen, folder, "/metrics/cadvisor")
    written = {int(each) for each in re.findall(r"wbytes=(\d+)", group.after["io.stat"])}
    shown = series(text, "container_fs_writes_bytes_total", id=folder.removeprefix(ROOT))
    assert shown == sum(written) >= 4 * MIB
    record_property("bytes", int(shown))


def test_resource_metrics_show_what_the_kernel_counts(seen: Seen) -> None:
    text, group = asked(seen, seen.container_folder("capped"), "/metrics/resource")
    labels = {"container": "main", "pod": "capped-guest"}
    used = series(text, "container_cpu_usage_seconds_total", **labels)
    group.holds(lambda f: stat(f["cpu.stat"])["usage_usec"], used * 1e6, off=1)
    kept = series(text, "container_memory_working_set_bytes", **labels)
    group.holds(lambda f: int(f["memory.current"]) - stat(f["memory.stat"])["inactive_file"], kept, off=MIB)
    text, group = asked(seen, seen.pod_folder("capped"), "/metrics/resource")
    used = series(text, "pod_cpu_usage_seconds_total", pod="capped-guest")
    group.holds(lambda f: stat(f["cpu.stat"])["usage_usec"], used * 1e6, off=1)
    assert "resource_scrape_error 0" in text


# --- the end ------------------------------------------------------------------------------------------------------


def test_the_kernel_stops_a_pod_that_makes_too_many_processes(seen: Seen) -> None:
    command = f"i=0; while [ $i -lt {PIDS + 50} ]; do sleep 1000 & i=$((i+1)); done; wait"
    seen.node.apply(a_pod("forks", command, restartPolicy="Never"))
    ended = seen.node.phase("forks", "Failed")
    status = ended["status"]["containerStatuses"][0]["state"]["terminated"]
    assert status["exitCode"] != 0
    seen.node.delete("forks")


SLICES = "kubepods.slice", "kubepods.slice/kubepods-burstable.slice", "kubepods.slice/kubepods-besteffort.slice"
CLASSES = {f"{ROOT}/{each}" for each in (*SLICES, "kubepods", "kubepods/burstable", "kubepods/besteffort")}
"""The groups of the classes, by either driver: they are the node's, not a pod's."""


def test_nothing_of_a_pod_stays(seen: Seen) -> None:
    """The last check of each way: it removes the pods."""
    node = seen.node
    node.delete(*NAMES)
    names = r"\( -name '*pod*' -o -name 'cri-containerd*' -o -path '*/kubepods/*' \)"

    def left() -> set[str]:
        return set(node.machine.run(f"find {ROOT} -type d {names}").split()) - CLASSES

    node.wait(lambda: not left(), "no cgroup of a pod")
    units = node.machine.run("systemctl list-units --all --plain --no-legend 'kubepods*pod*' 'cri-containerd*'")
    assert units.strip() == ""
    for part in ((), ("burstable",), ("besteffort",)):
        assert node.machine.get(f"{seen.folder('kubepods', *part)}/cgroup.procs") == ""
        assert "populated 0" in node.machine.get(f"{seen.folder('kubepods', *part)}/cgroup.events")
