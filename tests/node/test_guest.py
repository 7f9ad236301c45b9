"""A machine with systemd and cgroup v2 from its boot to its power-off; `make hosts` looks at everything else there."""

from __future__ import annotations

import pytest
from hosts.machine import Kind
from hosts.node import a_pod, node_on

pytestmark = [pytest.mark.node, pytest.mark.slow]

MEMORY = 64 << 20
LIMITS = {"cpu": "100m", "memory": str(MEMORY)}
CONSOLE = {"name": "console", "hostPath": {"path": "/dev/ttyS0"}}
SPEAKS = "trap 'echo pod-asked >/console; sleep 2; echo pod-ended >/console; exit 0' TERM; while :; do sleep 1; done"


def test_a_pod_under_the_systemd_driver_from_boot_to_power_off() -> None:
    speaks = {
        "resources": {"requests": LIMITS, "limits": LIMITS},
        # What it says at the power-off is to be read outside: the disks of a guest that is off cannot be.
        "securityContext": {"privileged": True},
        "volumeMounts": [{"name": "console", "mountPath": "/console"}],
    }
    with node_on(Kind(name="small")) as node:
        node.start_runtime(systemd_cgroup=True)
        node.start({"shutdownGracePeriod": "120s", "shutdownGracePeriodCriticalPods": "60s"})
        node.apply(a_pod("speaks", SPEAKS, container=speaks, volumes=[CONSOLE]))
        uid = node.running("speaks")["metadata"]["uid"]

        cgroup = node.cgroup(node.pid("speaks", "main"))
        slice_of_pod, _, scope = cgroup.rpartition("/")
        assert slice_of_pod.endswith(f"/kubepods.slice/kubepods-pod{uid.replace('-', '_')}.slice")
        assert scope.endswith(".scope")
        assert node.files(slice_of_pod, "memory.max", "cpu.max") == {
            "memory.max": str(MEMORY),
            "cpu.max": "10000 100000",
        }
        assert node.show(slice_of_pod.rpartition("/")[2], "MemoryMax") == str(MEMORY)

        node.machine.power_off()
        console = node.machine.tail(200)
        assert 0 < console.find("pod-asked") < console.find("pod-ended"), console
