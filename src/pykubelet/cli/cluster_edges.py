"""The production edges of a cluster node: logging in to the API server, joining first if need be, and its clients.

Three clients of one login: pods and objects, heartbeats without a rate limit, events with a rate of their own, so that
none of them ever waits for another. Heartbeats have a connection of their own: behind a large list on a slow wire a
lease would be over before its renewal arrives (bench/heartbeat.json). The others share theirs.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from msgspec import Struct

from pykubelet.certs.bootstrap import Bootstrap, ClusterAddress, still_good
from pykubelet.certs.build import CLIENT_PREFIX
from pykubelet.certs.pem import CertificateError
from pykubelet.certs.rotation import CertificateFiles
from pykubelet.clients.host.machine import filesystem_size
from pykubelet.clients.host.network import InterfaceNetwork
from pykubelet.clients.kube.client import RestKubeClient
from pykubelet.clients.kube.connections import ServerConnections
from pykubelet.clients.kube.decoding import UnreadableObjects
from pykubelet.clients.kube.kubeconfig import Kubeconfig, KubeconfigError, load_kubeconfig, with_rotation
from pykubelet.clients.kube.port import WatchLists
from pykubelet.clients.kube.transport import RequestMetrics, Transport, user_agent
from pykubelet.edges import ClusterEdges
from pykubelet.kit.clock import Clock
from pykubelet.kit.metrics import Registry
from pykubelet.kit.tasks import gather_all
from pykubelet.model.runtime_status import RuntimeVersion
from pykubelet.settings.settings import Settings

logger = logging.getLogger(__name__)

NO_LIMIT = -1


def leave(why: str) -> None:
    """End the agent: only a restart can help, perhaps with bootstrap credentials."""
    logger.error("the agent ends, it can no longer log in to its cluster", extra={"reason": why})
    os.kill(os.getpid(), signal.SIGTERM)


@asynccontextmanager
async def connected_cluster(
    settings: Settings, *, clock: Clock, metrics: Registry, runtime: RuntimeVersion, root: Path, node_name: str
) -> AsyncIterator[ClusterEdges | None]:
    """The edges of a cluster node; None for a node without an API server. Raises KubeconfigError."""
    if settings.flags.standalone:
        yield None
        return
    node, login = settings.config.node, await log_in(settings, clock=clock, node_name=node_name)
    server = ServerConnections(login.config, clock=clock, metrics=metrics)
    beats = server.apart()
    unreadable = UnreadableObjects(metrics)
    requests = RequestMetrics(metrics)
    agent = user_agent(settings.kubernetes_version)
    watch_lists = WatchLists(enabled=settings.gates.enabled("WatchListClient"))

    def client(server: ServerConnections, qps: float, burst: int) -> RestKubeClient:
        transport = Transport(server, agent=agent, qps=qps, burst=burst, metrics=requests)
        return RestKubeClient(transport, unreadable=unreadable, watch_lists=watch_lists)

    async def renew() -> None:
        await gather_all(server.renew(), beats.renew())

    async def abandon() -> None:
        await gather_all(server.abandon(), beats.abandon())

    try:
        await gather_all(server.open(), beats.open())
        yield ClusterEdges(
            client=client(server, node.kube_api_qps, node.kube_api_burst),
            heartbeat=client(beats, NO_LIMIT, 1),
            events=client(server, node.event_record_qps, node.event_burst),
            network=InterfaceNetwork(),
            storage_size=lambda: filesystem_size(root),
            runtime_version=f"{runtime.name}://{runtime.version}",
            renew=renew,
            abandon=abandon,
            renews_certificate=login.renews_certificate,
            locked_out=leave,
        )
    finally:
        await gather_all(server.close(), beats.close())


class ClusterLogin(Struct, frozen=True, kw_only=True):
    config: Kubeconfig
    renews_certificate: bool = False
    """The client certificate is renewed by us (rotateCertificates)."""


async def log_in(settings: Settings, *, clock: Clock, node_name: str) -> ClusterLogin:
    """The login to use; waits for the first certificate when there is none. Raises KubeconfigError."""
    flags, path = settings.flags, Path(settings.flags.kubeconfig)
    files = CertificateFiles(Path(flags.cert_dir), CLIENT_PREFIX, clock)
    if flags.bootstrap_kubeconfig and not is_usable(path, clock.now()):
        await _bootstrap(settings, files, clock, node_name)
    config = load_kubeconfig(path)
    if not settings.config.server.rotate_certificates:
        return ClusterLogin(config=config)
    if files.load() is None:
        _keep_first(config, files)
    return ClusterLogin(config=with_rotation(config, files.current), renews_certificate=True)


def is_usable(path: Path, now: float) -> bool:
    """Whether the kubeconfig can be used without joining first."""
    try:
        user = load_kubeconfig(path).user
        certificate = user.certificate_data or (user.certificate_file.read_bytes() if user.certificate_file else b"")
    except (KubeconfigError, OSError) as error:
        logger.info("joining with bootstrap credentials", extra={"reason": str(error)})
        return False
    if certificate and not still_good(certificate, now):
        logger.info("joining with bootstrap credentials", extra={"reason": "the client certificate is over"})
        return False
    return True


def address_of(config: Kubeconfig) -> ClusterAddress:
    cluster = config.cluster
    return ClusterAddress(
        server=cluster.server,
        ca_file=cluster.ca_file,
        ca_data=cluster.ca_data,
        insecure=cluster.insecure,
        tls_server_name=cluster.tls_server_name,
        proxy_url=cluster.proxy_url,
        namespace=config.namespace,
    )


async def _bootstrap(settings: Settings, files: CertificateFiles, clock: Clock, node_name: str) -> None:
    gc.enable()  # not only when the agent runs: the approval may take days
    config = load_kubeconfig(Path(settings.flags.bootstrap_kubeconfig))
    server = ServerConnections(config, clock=clock)
    transport = Transport(server, agent=user_agent(settings.kubernetes_version))
    client = RestKubeClient(transport)
    try:
        await transport.open()
        join = Bootstrap(
            kube=client, files=files, clock=clock, node_name=node_name, kubeconfig=Path(settings.flags.kubeconfig)
        )
        await join.join(address_of(config))
    finally:
        await client.close()


def _keep_first(config: Kubeconfig, files: CertificateFiles) -> None:
    """The kubeconfig's own certificate is the first one to be renewed, when its time comes."""
    user = config.user
    try:
        certificate = user.certificate_data or (user.certificate_file.read_bytes() if user.certificate_file else b"")
        key = user.key_data or (user.key_file.read_bytes() if user.key_file else b"")
        if certificate and key:
            files.save(certificate, key)
    except (OSError, CertificateError) as error:
        logger.warning("the kubeconfig's client certificate cannot be kept", extra={"error": str(error)})
