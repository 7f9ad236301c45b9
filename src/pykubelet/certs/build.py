"""Build the renewal of certificates that the cluster signs for this node: its client's and its server's.

Each is a service that renews in time. The server finds a new certificate by itself (server/tls.py looks at the file
on each connection). Does not cover: the first client certificate (bootstrap.py).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec import Struct

from pykubelet.api.types import Node
from pykubelet.certs.pem import Pair, Wanted
from pykubelet.certs.rotation import CLIENT_SIGNER, SERVING_SIGNER, CertificateFiles, CertificateRotation
from pykubelet.context import Context
from pykubelet.edges import ClusterEdges
from pykubelet.kit.tasks import Services

CLIENT_PREFIX = "kubelet-client"
SERVING_PREFIX = "kubelet-server"
"""Of the files that hold pairs from the signer."""
ADDRESS_KINDS = ("InternalIP", "ExternalIP", "Hostname")
NAME_KINDS = ("Hostname", "InternalDNS", "ExternalDNS")
"""A host name may be an address: it is requested as what it is."""


class Certificates(Struct, frozen=True, kw_only=True):
    client: CertificateRotation | None
    serving: CertificateRotation | None

    @property
    def services(self) -> Services:
        return Services(managers=[each for each in (self.client, self.serving) if each is not None])

    def node_changed(self, node: Node) -> None:
        """The serving certificate names the node's addresses: it waits for them, and follows them."""
        if self.serving is not None:
            self.serving.poke()


def build(ctx: Context, edges: ClusterEdges, node: Callable[[], Node | None]) -> Certificates:
    """`node` is the Node as the API server last showed it."""
    server, folder = ctx.settings.config.server, Path(ctx.settings.flags.cert_dir)
    client = serving = None
    names_suffice = ctx.settings.gates.enabled("AllowDNSOnlyNodeCSR")

    async def renewed(pair: Pair) -> None:
        await edges.renew()

    async def nothing(pair: Pair) -> None:
        return

    if edges.renews_certificate:
        wanted = Wanted(node_name=ctx.node_name)
        client = CertificateRotation(
            kube=edges.client,
            files=CertificateFiles(folder, CLIENT_PREFIX, ctx.clock),
            clock=ctx.clock,
            metrics=ctx.metrics,
            signer=CLIENT_SIGNER,
            wanted=lambda: wanted,
            on_new=renewed,
            on_lost=edges.locked_out,
        )
    if server.server_tls_bootstrap and server.enable_server:
        serving = CertificateRotation(
            kube=edges.client,
            files=CertificateFiles(folder, SERVING_PREFIX, ctx.clock),
            clock=ctx.clock,
            metrics=ctx.metrics,
            signer=SERVING_SIGNER,
            wanted=lambda: wanted_for(node(), names_suffice=names_suffice),
            on_new=nothing,
        )
    return Certificates(client=client, serving=serving)


def wanted_for(node: Node | None, *, names_suffice: bool = False) -> Wanted | None:
    """Names and addresses for the serving certificate; None while the node has no address (or no name either)."""
    if node is None:
        return None
    addresses = [(each.type, each.address, _is_ip(each.address)) for each in node.status.addresses if each.address]
    return wanted_for_serving(
        node.metadata.name or "",
        dns=[text for kind, text, is_ip in addresses if kind in NAME_KINDS and not (is_ip and kind == "Hostname")],
        ips=[text for kind, text, is_ip in addresses if kind in ADDRESS_KINDS and is_ip],
        names_suffice=names_suffice,
    )


def _is_ip(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def wanted_for_serving(
    node_name: str, dns: Sequence[str], ips: Sequence[str], *, names_suffice: bool = False
) -> Wanted | None:
    """The request to the signer; None while the node has no address, since it would be refused."""
    if not ips and not (names_suffice and dns):
        return None
    return Wanted(node_name=node_name, dns=tuple(sorted(set(dns))), ips=tuple(sorted(set(ips))))
