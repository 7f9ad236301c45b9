"""The self-signed serving certificate."""

from __future__ import annotations

from pathlib import Path

import pytest

from pykubelet.certs.pem import read_pair
from pykubelet.certs.self_signed import ensure_self_signed, self_signed_files
from pykubelet.kit.clock import LoopClock
from pykubelet.model.errors import PykubeletError


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


def test_a_machine_that_is_too_slow_for_it_is_told_in_plain_words(tmp_path: Path) -> None:
    with pytest.raises(PykubeletError, match=r"kubelet\.crt could not be made within 0\.001 s"):
        ensure_self_signed(tmp_path, "n1", [], within=0.001)
