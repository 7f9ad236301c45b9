"""Bare CRI calls for tests of the bed itself and for measuring: no code of the agent is in the way."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc

from pykubelet.wire import cri_pb2 as cri
from tests.grpc_services import Stub

DEADLINE = 60.0


@dataclass(frozen=True, slots=True)
class BarePod:
    """One sandbox, driven call by call."""

    stub: Stub
    config: cri.PodSandboxConfig
    id: str

    @property
    def ip(self) -> str:
        request = cri.PodSandboxStatusRequest(pod_sandbox_id=self.id)
        return str(self.stub.PodSandboxStatus(request, timeout=DEADLINE).status.network.ip)

    def run(self, name: str, image: str, command: Sequence[str] = (), env: Mapping[str, str] | None = None) -> str:
        """Create and start a container; gives its id."""
        config = cri.ContainerConfig(
            metadata=cri.ContainerMetadata(name=name),
            image=cri.ImageSpec(image=image, user_specified_image=image),
            command=command,
            envs=[cri.KeyValue(key=key, value=value.encode()) for key, value in (env or {}).items()],
            log_path=f"{name}.log",
        )
        namespaces = self.config.linux.security_context.namespace_options
        config.linux.security_context.namespace_options.CopyFrom(namespaces)
        request = cri.CreateContainerRequest(pod_sandbox_id=self.id, config=config, sandbox_config=self.config)
        container = str(self.stub.CreateContainer(request, timeout=DEADLINE).container_id)
        self.stub.StartContainer(cri.StartContainerRequest(container_id=container), timeout=DEADLINE)
        return container

    def state(self, container: str) -> cri.ContainerStatus:
        request = cri.ContainerStatusRequest(container_id=container)
        status: cri.ContainerStatus = self.stub.ContainerStatus(request, timeout=DEADLINE).status
        return status

    def exec(self, container: str, *command: str) -> str:
        request = cri.ExecSyncRequest(container_id=container, cmd=command, timeout=10)
        return bytes(self.stub.ExecSync(request, timeout=DEADLINE).stdout).decode()

    def log(self, name: str) -> str:
        return Path(self.config.log_directory, f"{name}.log").read_text()


@contextmanager
def bare_pod(
    socket: Path,
    folder: Path,
    name: str,
    *,
    share_processes: bool = False,
    ports: Mapping[int, int] | None = None,
    privileged: bool = False,
) -> Iterator[BarePod]:
    """A sandbox for as long as the block lasts; `folder` takes the logs, `ports` are container -> host."""
    mode = cri.NamespaceMode.POD if share_processes else cri.NamespaceMode.CONTAINER
    config = cri.PodSandboxConfig(
        metadata=cri.PodSandboxMetadata(name=name, namespace="bed", uid=name),
        hostname=name,
        log_directory=str(folder),
        port_mappings=[
            cri.PortMapping(protocol=cri.Protocol.TCP, container_port=inside, host_port=outside)
            for inside, outside in (ports or {}).items()
        ],
        linux=cri.LinuxPodSandboxConfig(
            security_context=cri.LinuxSandboxSecurityContext(
                namespace_options=cri.NamespaceOption(pid=mode), privileged=privileged
            )
        ),
    )
    with grpc.insecure_channel(f"unix:{socket}") as channel:
        stub = Stub(channel, cri, "RuntimeService")
        made = stub.RunPodSandbox(cri.RunPodSandboxRequest(config=config), timeout=DEADLINE)
        try:
            yield BarePod(stub, config, str(made.pod_sandbox_id))
        finally:
            stub.StopPodSandbox(cri.StopPodSandboxRequest(pod_sandbox_id=made.pod_sandbox_id), timeout=DEADLINE)
            stub.RemovePodSandbox(cri.RemovePodSandboxRequest(pod_sandbox_id=made.pod_sandbox_id), timeout=DEADLINE)
