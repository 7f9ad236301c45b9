"""The serving certificate changes under a running server, and new handshakes see it."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest

from pykubelet.certs import serving
from pykubelet.certs.pem import read_pair, self_signed
from pykubelet.certs.serving import ServingCertificate, self_signed_files
from pykubelet.kit.clock import LoopClock, SystemClock
from pykubelet.kit.tasks import running


async def test_self_signed_files_are_made_once_and_mended(tmp_path: Path) -> None:
    clock = LoopClock()
    certificate, key = self_signed_files(tmp_path / "pki", "n1", ["10.0.0.1"], clock)
    assert (certificate.name, key.name) == ("kubelet.crt", "kubelet.key")
    assert key.stat().st_mode & 0o777 == 0o600
    facts = read_pair(certificate.read_bytes(), key.read_bytes()).facts
    assert (facts.dns, facts.ips) == (("n1",), ("10.0.0.1",))
    before = certificate.read_bytes()
    self_signed_files(tmp_path / "pki", "n1", ["10.0.0.1"], clock)
    assert certificate.read_bytes() == before
    key.write_bytes(b"rubbish")
    self_signed_files(tmp_path / "pki", "n1", ["10.0.0.1"], clock)
    assert certificate.read_bytes() != before


async def shown(port: int) -> bytes:
    """The certificate a client sees now."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    seen: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    await writer.wait_closed()
    return seen


def put(pem: Path, name: str) -> bytes:
    certificate, key = self_signed(name, ["127.0.0.1"], 1_700_000_000)
    pem.write_bytes(certificate + key)
    return ssl.PEM_cert_to_DER_cert(certificate.decode())


@pytest.mark.real_loop
async def test_new_handshakes_see_the_new_certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "LOOK_PERIOD", 0.05)
    pem = tmp_path / "kubelet-server-current.pem"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    subject = ServingCertificate(certificate=pem, key=pem, clock=SystemClock())
    subject.serve_with(context)
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    async with server, running(subject):
        assert not subject.available
        with pytest.raises(OSError):
            await shown(port)
        first = put(pem, "one")
        subject.changed()
        await asyncio.sleep(0.02)
        assert subject.available and await shown(port) == first
        pem.write_bytes(b"rubbish")
        await asyncio.sleep(0.2)
        assert await shown(port) == first, "the last good one stays"
        second = put(pem, "two")
        await asyncio.sleep(0.2)
        assert await shown(port) == second
