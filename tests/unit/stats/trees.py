"""Small machines in a folder: cgroup trees of both versions and the /proc files that stats come from."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

PRESSURE = (
    "some avg10=1.50 avg60=0.25 avg300=0.00 total=2500000\nfull avg10=0.50 avg60=0.00 avg300=0.00 total=1000000\n"
)

V1_MEMORY = """cache 100
rss 200
pgfault 7
pgmajfault 1
inactive_file 10
total_cache 4096
total_rss 8192
total_mapped_file 512
total_swap 1024
total_pgfault 70
total_pgmajfault 10
total_inactive_file 3000
total_active_file 1096
"""

V2_MEMORY = """anon 8192
file 4096
kernel 2048
file_mapped 512
inactive_file 3000
active_file 1096
pgfault 70
pgmajfault 10
"""

NET_DEV = """Inter-| Receive | Transmit
 face |bytes packets errs drop fifo frame compressed multicast|bytes packets errs drop fifo colls carrier compressed
    lo: 900 9 0 0 0 0 0 0 900 9 0 0 0 0 0 0
  eth0: 1000 10 1 2 0 0 0 0 2000 20 3 4 0 0 0 0
vethab: 50 5 0 0 0 0 0 0 50 5 0 0 0 0 0 0
"""

LIMITS = """Limit                     Soft Limit           Hard Limit           Units
Max open files            1024                 4096                 files
"""


def write(root: Path, files: Mapping[str, str]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


def v1_group(path: str, *, cpu_ns: int = 5_000_000_000, usage: int = 20_000, pids: str = "41\n42\n") -> dict[str, str]:
    base = path.strip("/")
    return {
        f"cpuacct/{base}/cpuacct.usage": f"{cpu_ns}\n",
        f"cpuacct/{base}/cpuacct.stat": "user 300\nsystem 200\n",
        f"cpu/{base}/cpu.stat": "nr_periods 50\nnr_throttled 5\nthrottled_time 7000000000\n",
        f"cpu/{base}/cpu.shares": "512\n",
        f"cpu/{base}/cpu.cfs_quota_us": "50000\n",
        f"cpu/{base}/cpu.cfs_period_us": "100000\n",
        f"memory/{base}/memory.usage_in_bytes": f"{usage}\n",
        f"memory/{base}/memory.stat": V1_MEMORY,
        f"memory/{base}/memory.max_usage_in_bytes": "30000\n",
        f"memory/{base}/memory.failcnt": "4\n",
        f"memory/{base}/memory.kmem.usage_in_bytes": "2048\n",
        f"memory/{base}/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
        f"memory/{base}/memory.limit_in_bytes": "65536\n",
        f"memory/{base}/memory.soft_limit_in_bytes": "9223372036854771712\n",
        f"memory/{base}/memory.memsw.limit_in_bytes": "98304\n",
        f"memory/{base}/cgroup.procs": pids,
        f"pids/{base}/pids.current": "6\n",
        f"pids/{base}/pids.max": "100\n",
        f"blkio/{base}/blkio.throttle.io_service_bytes": "8:0 Read 4096\n8:0 Write 8192\nTotal 12288\n",
        f"blkio/{base}/blkio.throttle.io_serviced": "8:0 Read 1\n8:0 Write 2\n8:0 Total 3\nTotal 3\n",
        f"hugetlb/{base}/hugetlb.2MB.usage_in_bytes": "2097152\n",
        f"hugetlb/{base}/hugetlb.2MB.max_usage_in_bytes": "4194304\n",
        f"hugetlb/{base}/hugetlb.2MB.failcnt": "1\n",
    }


def v2_group(path: str, *, cpu_ns: int = 5_000_000_000, usage: int = 20_000, pids: str = "41\n42\n") -> dict[str, str]:
    base = path.strip("/")
    return {
        f"{base}/cpu.stat": (
            f"usage_usec {cpu_ns // 1000}\nuser_usec 3000000\nsystem_usec 2000000\n"
            "nr_periods 50\nnr_throttled 5\nthrottled_usec 7000000\n"
        ),
        f"{base}/cpu.weight": "20\n",
        f"{base}/cpu.max": "50000 100000\n",
        f"{base}/memory.current": f"{usage}\n",
        f"{base}/memory.stat": V2_MEMORY,
        f"{base}/memory.peak": "30000\n",
        f"{base}/memory.events": "low 0\nhigh 0\nmax 4\noom 2\noom_kill 2\n",
        f"{base}/memory.max": "65536\n",
        f"{base}/memory.low": "0\n",
        f"{base}/memory.swap.current": "1024\n",
        f"{base}/memory.swap.max": "32768\n",
        f"{base}/cgroup.procs": pids,
        f"{base}/pids.current": "6\n",
        f"{base}/pids.max": "100\n",
        f"{base}/io.stat": "8:0 rbytes=4096 wbytes=8192 rios=1 wios=2 dbytes=0 dios=0\n",
        f"{base}/cpu.pressure": PRESSURE,
        f"{base}/memory.pressure": PRESSURE,
        f"{base}/io.pressure": PRESSURE,
        f"{base}/hugetlb.2MB.current": "2097152\n",
        f"{base}/hugetlb.2MB.events": "max 1\n",
    }


def group(version: int, path: str, *, cpu_ns: int = 5_000_000_000, usage: int = 20_000) -> dict[str, str]:
    return (v1_group if version == 1 else v2_group)(path, cpu_ns=cpu_ns, usage=usage)


def machine(version: int, root: Path) -> tuple[Path, Path]:
    """(cgroup root, proc) of a machine without pods."""
    cgroups, proc = root / "cgroup", root / "proc"
    if version == 1:
        write(cgroups, v1_group("/", cpu_ns=90_000_000_000, usage=500_000))
    else:
        write(
            cgroups,
            {
                "cgroup.controllers": "cpuset cpu io memory hugetlb pids\n",
                "cpu.stat": "usage_usec 90000000\nuser_usec 1\nsystem_usec 1\n",
                "memory.stat": V2_MEMORY.replace("anon 8192", "anon 495904"),
            },
        )
    write(
        proc,
        {
            "pressure/cpu": PRESSURE,
            "pressure/memory": PRESSURE,
            "pressure/io": PRESSURE,
            "meminfo": "MemTotal: 1000 kB\nSwapTotal: 100 kB\nSwapFree: 99 kB\n",
            "loadavg": "0.10 0.20 0.30 3/250 999\n",
            "stat": "cpu 1 2 3\nbtime 1700000000\nprocs_running 3\nprocs_blocked 1\n",
            "sys/kernel/pid_max": "32768\n",
            "sys/kernel/threads-max": "10000\n",
            "self/net/dev": NET_DEV,
            "diskstats": "   8       0 sda 10 1 80 5 20 2 160 7 0 9 12\n   7       0 loop0 1 1 1 1 1 1 1 1 1 1 1\n",
        },
    )
    return cgroups, proc
