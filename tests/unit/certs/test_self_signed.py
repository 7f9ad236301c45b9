"""The self-signed serving certificate."""

from __future__ import annotations

from pathlib import Path

from pykubelet.certs.pem import read_pair
from pykubelet.certs.self_signed import self_signed_files
from pykubelet.kit.clock import LoopClock


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
