"""Small pods for the tests here: real CRI requests against the fake runtime, without an agent."""

from __future__ import annotations

from pykubelet.wire import cri_pb2
from tests.fakes.fake_cri import FakeCri

IMAGE = "busybox:1"


def sandbox_config(pod: str, attempt: int = 0) -> cri_pb2.PodSandboxConfig:
    config = cri_pb2.PodSandboxConfig()
    config.metadata.name, config.metadata.namespace = pod, "default"
    config.metadata.uid, config.metadata.attempt = f"uid-{pod}", attempt
    config.labels.update(pod_labels(pod))
    return config


def pod_labels(pod: str) -> dict[str, str]:
    return {
        "io.kubernetes.pod.name": pod,
        "io.kubernetes.pod.namespace": "default",
        "io.kubernetes.pod.uid": f"uid-{pod}",
    }


def container_config(pod: str, name: str = "app", attempt: int = 0) -> cri_pb2.ContainerConfig:
    config = cri_pb2.ContainerConfig()
    config.metadata.name, config.metadata.attempt = name, attempt
    config.image.image = IMAGE
    config.labels.update({**pod_labels(pod), "io.kubernetes.container.name": name})
    return config


async def start_sandbox(cri: FakeCri, pod: str, attempt: int = 0) -> str:
    return await cri.run_pod_sandbox(sandbox_config(pod, attempt))


async def start_container(cri: FakeCri, pod: str, name: str = "app", attempt: int = 0) -> str:
    sandbox = cri.sandbox(pod)
    id = await cri.create_container(sandbox.id, container_config(pod, name, attempt), sandbox.config)
    await cri.start_container(id)
    return id


async def start_pod(cri: FakeCri, pod: str, *containers: str) -> None:
    await start_sandbox(cri, pod)
    for name in containers or ("app",):
        await start_container(cri, pod, name)
