"""The server from the agent's settings: gates, flags, where the certificate comes from, whom to ask.

A node without an API server cannot check tokens and rights: if the settings want that, which is their default, the
HTTPS server stays off with a warning and the local socket serves alone. Everything else that cannot work is an error.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path

from pykubelet.certs.self_signed import ensure_self_signed
from pykubelet.certs.serving import SERVING_PREFIX
from pykubelet.kit.clock import Clock
from pykubelet.server.app import NodeServer, ServerGates, ServerViews
from pykubelet.server.reviews import Creates, KubeReviewer
from pykubelet.server.routing import Route
from pykubelet.server.tls import FindServing, ServingFiles
from pykubelet.settings.gates import Gates
from pykubelet.settings.node_flags import NodeFlags
from pykubelet.settings.schema_server import ServerSettings
from pykubelet.settings.settings import Settings

logger = logging.getLogger(__name__)

BOOTSTRAPPED = f"{SERVING_PREFIX}-current.pem"
DEBUG_FROM = 4


def make_server(
    *,
    settings: Settings,
    views: ServerViews,
    node_name: str,
    node_ips: Sequence[str],
    clock: Clock,
    kube: Creates | None,
    local_socket: Path | None = None,
    local_routes: Sequence[Route] = (),
) -> NodeServer:
    """`kube` is the API client, None on a node without one. Raises PykubeletError for settings that cannot work."""
    return NodeServer(
        settings=servable(settings.config.server, alone=kube is None),
        views=views,
        node_name=node_name,
        clock=clock,
        serving=serving_files(settings, node_name, node_ips),
        reviewer=KubeReviewer(kube=kube, clock=clock) if kube is not None else None,
        gates=server_gates(settings.gates),
        local_socket=local_socket,
        local_routes=local_routes,
    )


def servable(settings: ServerSettings, *, alone: bool) -> ServerSettings:
    """The settings without an HTTPS server that could let nobody in."""
    asks = settings.authentication.webhook.enabled or settings.authorization.mode == "Webhook"
    if not (alone and asks and settings.enable_server):
        return settings
    logger.warning(
        "the HTTPS server stays off: without an API server tokens and rights cannot be checked; to have it, set "
        "authentication.webhook.enabled to false, authentication.x509.clientCAFile and authorization.mode AlwaysAllow"
    )
    return replace(settings, enable_server=False)


def serving_files(settings: Settings, host: str, ips: Sequence[str]) -> FindServing:
    """Upstream's order: from the cluster's signer, from the operator, self-signed. Nothing is made before asked."""
    server, folder = settings.config.server, Path(settings.flags.cert_dir)
    if server.server_tls_bootstrap:
        current = folder / BOOTSTRAPPED
        return lambda: ServingFiles(current, current) if current.exists() else None
    if server.tls_cert_file:
        given = ServingFiles(Path(server.tls_cert_file), Path(server.tls_private_key_file))
        return lambda: given
    made: list[ServingFiles] = []

    def own() -> ServingFiles:
        if not made:
            made.append(ServingFiles(*ensure_self_signed(folder, host, ips)))
        return made[0]

    return own


def server_gates(gates: Gates) -> ServerGates:
    return ServerGates(
        split_log_streams=gates.enabled("PodLogsQuerySplitStreams"),
        translate_websockets=gates.enabled("ExtendWebSocketsToKubelet"),
        checkpoint=gates.enabled("ContainerCheckpoint"),
        statusz=gates.enabled("ComponentStatusz"),
        flagz=gates.enabled("ComponentFlagz"),
    )


def flag_values(flags: NodeFlags) -> Mapping[str, str]:
    """What the command line said, for /flagz."""
    return {field.name.replace("_", "-"): str(getattr(flags, field.name)) for field in fields(flags)}


def set_verbosity(level: int) -> None:
    logging.getLogger("pykubelet").setLevel(logging.DEBUG if level >= DEBUG_FROM else logging.INFO)
