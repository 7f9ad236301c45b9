"""An agent that does nothing but mount and unmount, made to be killed: `volume_churn ROOT DISK churn|clean`."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from pykubelet.api.types import LocalVolumeSource, Pod, VolumeMount
from pykubelet.clients.host.mounts import HostMounts
from pykubelet.kit.clock import SystemClock
from tests.builders import a_container
from tests.unit.volumes.builders import (
    VolumeNode,
    a_config,
    a_secret,
    bound,
    config_volume,
    empty_dir,
    host_path,
    pod_with,
    secret_volume,
)


def the_pods(node: VolumeNode, disk: Path) -> list[Pod]:
    volumes = [
        empty_dir(),
        empty_dir("mem", medium="Memory"),
        secret_volume(),
        config_volume(),
        host_path(str(disk)),
        bound(node.objects, "disk", local=LocalVolumeSource(path=str(disk))),
    ]
    mounts = [VolumeMount(name=v.name, mount_path=f"/{v.name}") for v in volumes]
    mounts += [
        VolumeMount(name=name, mount_path=f"/sub/{name}", sub_path="sub") for name in ("scratch", "host", "disk")
    ]
    container = a_container(volume_mounts=mounts)
    return [pod_with(*volumes, name=f"pod-{number}", containers=[container]) for number in range(3)]


async def main(root: Path, disk: Path, what: str) -> None:
    node = VolumeNode(root, mounts=HostMounts(), clock=SystemClock())
    node.objects.secrets["default", "web"] = a_secret(key="k")
    node.objects.config_maps["default", "web"] = a_config(a="1")
    pods = the_pods(node, disk)
    async with node.running() as manager:
        if what == "clean":
            await manager.wait_unmounted(pods[0])
            manager.keep_only([])
            while any(manager.has_mounts(str(pod.metadata.uid)) for pod in pods):
                await node.clock.sleep(0.01)
            return
        while True:
            for pod in pods:
                await manager.wait_mounted(pod)
                await manager.mounts_for(pod, pod.spec.containers[0], {})
                path = manager.path_of(pod, "scratch")
                assert path is not None
                Path(path, "file").write_text("x")
            print("round", flush=True)
            for pod in pods:
                await manager.wait_unmounted(pod)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]))
