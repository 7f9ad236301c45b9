"""What the measured pods are: manifests for agents, CRI messages for the bare runtime, both of the same shape.

A pod's only act is a line on stdout. The runtime stamps the line with the time it arrived (RFC 3339 with
nanoseconds, in the container's log), so the pod's own deed is the measurement and no agent is asked.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pykubelet.standalone.images import BUSYBOX
from pykubelet.wire import cri_pb2 as cri

NAMESPACE = "bench"
CONTAINER = "main"
GRACE = 1
# A shell that waits would leave on SIGTERM; sleep as a first process does not, and so takes its whole grace.
STAY = ["sh", "-c", "echo up; exec sleep 1000000"]
CRASH = ["sh", "-c", "echo up; sleep 1; echo down; exit 1"]


def manifest(name: str, command: list[str]) -> bytes:
    pod: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": {"app": "bench"}},
        "spec": {
            "terminationGracePeriodSeconds": GRACE,
            "containers": [
                {"name": CONTAINER, "image": BUSYBOX, "imagePullPolicy": "IfNotPresent", "command": command},
            ],
        },
    }
    return json.dumps(pod).encode()


def sandbox_config(name: str, pod_logs: Path, cgroup_parent: str) -> cri.PodSandboxConfig:
    """The sandbox as an agent would ask for it."""
    uid = f"uid-{name}"
    return cri.PodSandboxConfig(
        metadata=cri.PodSandboxMetadata(name=name, namespace=NAMESPACE, uid=uid),
        hostname=name,
        log_directory=str(pod_logs / f"{NAMESPACE}_{name}_{uid}"),
        labels={"io.kubernetes.pod.uid": uid, "io.kubernetes.pod.name": name},
        linux=cri.LinuxPodSandboxConfig(
            cgroup_parent=cgroup_parent,
            security_context=cri.LinuxSandboxSecurityContext(
                namespace_options=cri.NamespaceOption(pid=cri.NamespaceMode.CONTAINER)
            ),
        ),
    )


def container_config(command: list[str]) -> cri.ContainerConfig:
    return cri.ContainerConfig(
        metadata=cri.ContainerMetadata(name=CONTAINER),
        image=cri.ImageSpec(image=BUSYBOX),
        command=command,
        log_path=f"{CONTAINER}/0.log",
        linux=cri.LinuxContainerConfig(
            security_context=cri.LinuxContainerSecurityContext(
                namespace_options=cri.NamespaceOption(pid=cri.NamespaceMode.CONTAINER)
            )
        ),
    )
