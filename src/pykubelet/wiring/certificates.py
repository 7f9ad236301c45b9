"""Certificates that the cluster signs for this node: the one it logs in with, the one its server shows.

Each is a service that renews in time. The server finds a new certificate by itself (server/tls.py looks at the file
when somebody connects), so nobody has to be told. Does not cover: the first client certificate (certs/bootstrap.py).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

from pykubelet.api.types import Node
from pykubelet.certs.files import CertificateFiles
from pykubelet.certs.pem import Pair, Wanted
from pykubelet.certs.rotation import CertificateRotation, RotationSeams
from pykubelet.certs.serving import SERVING_PREFIX, wanted_for_serving
from pykubelet.certs.signing import CLIENT_SIGNER, SERVING_SIGNER
from pykubelet.clients.kube.port import KubeClient
from pykubelet.context import Context
from pykubelet.edges import ClusterEdges
from pykubelet.kit.clock import Clock
from pykubelet.kit.metrics import Registry
from pykubelet.node.addresses import parsed_address
from pykubelet.node.own_node import OwnNode
from pykubelet.settings.settings import Settings

ADDRESS_KINDS = ("InternalIP", "ExternalIP", "Hostname")
NAME_KINDS = ("Hostname", "InternalDNS", "ExternalDNS")
"""A host name may be an address: it is asked for as what it is."""


def client_rotation(
    seams: RotationSeams,
    node_name: str,
    *,
    renew: Callable[[], Awaitable[None]],
    locked_out: Callable[[str], None],
) -> CertificateRotation:
    async def renewed(pair: Pair) -> None:
        await renew()

    wanted = Wanted(node_name=node_name)
    return CertificateRotation(seams, signer=CLIENT_SIGNER, wanted=lambda: wanted, on_new=renewed, on_lost=locked_out)


def serving_rotation(
    settings: Settings, own: OwnNode, *, kube: KubeClient, clock: Clock, metrics: Registry
) -> list[CertificateRotation]:
    """Nothing unless serverTLSBootstrap asks for it."""
    if not (settings.config.server.server_tls_bootstrap and settings.config.server.enable_server):
        return []

    async def renewed(pair: Pair) -> None:
        return

    files = CertificateFiles(Path(settings.flags.cert_dir), SERVING_PREFIX, clock)
    rotation = CertificateRotation(
        RotationSeams(kube=kube, files=files, clock=clock, metrics=metrics),
        signer=SERVING_SIGNER,
        wanted=lambda: wanted_for(own.node),
        on_new=renewed,
    )
    # The certificate names the node's addresses: it waits for them, and follows them.
    own.listen(lambda node: rotation.poke())
    return [rotation]


def wanted_for(node: Node | None) -> Wanted | None:
    """What the serving certificate must say; None while the node has no address."""
    if node is None:
        return None
    told = [
        (each.type, each.address, parsed_address(each.address) is not None)
        for each in node.status.addresses
        if each.address
    ]
    return wanted_for_serving(
        node.metadata.name or "",
        dns=[text for kind, text, is_ip in told if kind in NAME_KINDS and not (is_ip and kind == "Hostname")],
        ips=[text for kind, text, is_ip in told if kind in ADDRESS_KINDS and is_ip],
    )


def certificate_services(ctx: Context, edges: ClusterEdges, own: OwnNode) -> list[CertificateRotation]:
    found = []
    if edges.certificates is not None:
        seams = RotationSeams(kube=edges.client, files=edges.certificates, clock=ctx.clock, metrics=ctx.metrics)
        found.append(client_rotation(seams, own.name, renew=edges.renew, locked_out=edges.locked_out))
    found += serving_rotation(ctx.settings, own, kube=edges.client, clock=ctx.clock, metrics=ctx.metrics)
    return found
