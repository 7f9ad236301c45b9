"""The server from settings: gates, certificates, and a node without an API server."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from pykubelet.kit.clock import SystemClock
from pykubelet.server.build import flag_values, https, servable, serving_files
from pykubelet.server.listeners import LocalAddress
from pykubelet.server.routes import Offers
from pykubelet.settings.gates import Gates
from pykubelet.settings.node_flags import NodeFlags
from pykubelet.settings.schema import KubeletConfig
from pykubelet.settings.schema_server import (
    Authentication,
    Authorization,
    ServerSettings,
    WebhookAuthentication,
    X509Authentication,
)
from pykubelet.settings.settings import Settings
from tests.unit.server.support import ServedNode, get, serving


def settings(folder: Path, **server: object) -> Settings:
    config = KubeletConfig(server=ServerSettings(**server))  # type: ignore[arg-type]
    return Settings(config=config, flags=NodeFlags(cert_dir=str(folder)))


def test_gates_have_upstreams_defaults() -> None:
    gates = Gates({})
    assert Offers.of(ServerSettings(), gates) == Offers()
    assert gates.enabled("ExtendWebSocketsToKubelet") and not gates.enabled("PodLogsQuerySplitStreams")


def test_alone_the_https_server_stays_off(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert not servable(ServerSettings(), alone=True).enable_server
    assert "the HTTPS server stays off" in caplog.text
    assert servable(ServerSettings(), alone=False).enable_server
    own = ServerSettings(
        authentication=Authentication(
            x509=X509Authentication(client_ca_file="ca"), webhook=WebhookAuthentication(enabled=False)
        ),
        authorization=Authorization(mode="AlwaysAllow"),
    )
    assert servable(own, alone=True).enable_server
    world = ServedNode(tmp_path)
    alone = servable(ServerSettings(healthz_port=0), alone=True)
    assert https(alone, Gates({}), "node", None, serving_files(settings(tmp_path), "node", ()), SystemClock()) is None
    made = world.server(settings=alone, local_socket=tmp_path / "s")
    assert [listener.address for listener in made.listeners] == [LocalAddress(tmp_path / "s")]


def test_where_the_certificate_is(tmp_path: Path) -> None:
    given = serving_files(settings(tmp_path, tls_cert_file="/a", tls_private_key_file="/b"), "node", ())()
    assert given is not None and (str(given.certificate), str(given.key)) == ("/a", "/b")
    waiting = serving_files(settings(tmp_path, server_tls_bootstrap=True), "node", ())
    assert waiting() is None
    (tmp_path / "kubelet-server-current.pem").touch()
    found = waiting()
    assert found is not None and found.certificate == found.key == tmp_path / "kubelet-server-current.pem"


@pytest.mark.real_loop
async def test_a_self_signed_certificate_serves(tmp_path: Path) -> None:
    world = ServedNode(tmp_path)
    world.reviewer.tokens = {"t": "ada"}
    world.reviewer.everything = {"ada"}
    folder = tmp_path / "pki"
    find = serving_files(settings(folder), "node", ("127.0.0.1",))
    assert not folder.exists()
    server = world.server(serving=find, settings=replace(world.settings))
    async with serving(server) as port:
        context = world.client_context()
        context.load_verify_locations(folder / "kubelet.crt")
        assert (await get(port, "/healthz", context, Authorization="Bearer t")).text == "ok"


def test_flags_are_shown_by_their_names() -> None:
    assert flag_values(NodeFlags(cert_dir="/pki"))["cert-dir"] == "/pki"
