"""Certificates of pods: requested once, renewed when due; denials are final; nothing is kept of pods that are gone."""

from __future__ import annotations

import asyncio
import base64
from datetime import UTC, datetime

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from pykubelet.api.types import (
    Condition,
    ObjectMeta,
    PodCertificateProjection,
    PodCertificateRequest,
    ServiceAccount,
)
from pykubelet.certs.pem import CertificateError
from pykubelet.kit.clock import LoopClock
from pykubelet.kit.metrics import Registry
from pykubelet.volumes.pod_certificates import PodCertificateKeeper, make_key
from tests.builders import a_context, a_pod
from tests.fakes.fake_kube import FakeKube
from tests.fakes.recorded_events import RecordedEvents

SOURCE = PodCertificateProjection(signer_name="example.com/s", key_type="ED25519", credential_bundle_path="c.pem")


class CertificateKeeperFixture:
    def __init__(self) -> None:
        self.clock = LoopClock()
        self.kube = FakeKube(self.clock)
        self.kube.add(ServiceAccount(metadata=ObjectMeta(name="default", namespace="default", uid="uid-sa")))
        self.events = RecordedEvents()
        self.metrics = Registry()
        ctx = a_context(clock=self.clock, events=self.events, node_name="node-1", metrics=self.metrics)
        self.keeper = PodCertificateKeeper(ctx, kube=self.kube, node_uid=lambda: "uid-node")

    def states(self) -> list[str]:
        start = 'kubelet_podcertificate_states{signer_name="example.com/s",state="'
        return [line.removeprefix(start) for line in self.metrics.expose().splitlines() if line.startswith(start)]

    async def requests(self) -> list[PodCertificateRequest]:
        return list((await self.kube.list(PodCertificateRequest, "default")).items)

    async def answer(self, kind: str, life: float = 3600.0) -> PodCertificateRequest:
        """Answer the newest request as a signer would."""
        await asyncio.sleep(1)  # time jumps here: by now the request is made
        found = [each for each in await self.requests() if not each.status.conditions][-1]
        now = self.clock.now()
        found.status.conditions = [Condition(type=kind, status="True", reason="Because", message="so")]
        found.status.certificate_chain = f"CHAIN {found.metadata.name}\n"
        found.status.not_after = datetime.fromtimestamp(now + life, UTC)
        found.status.begin_refresh_at = datetime.fromtimestamp(now + life / 2, UTC)
        self.kube.add(found)
        return found


async def test_asked_for_once_and_renewed_when_due() -> None:
    bed, pod = CertificateKeeperFixture(), a_pod()
    first, request = await asyncio.gather(bed.keeper.credentials(pod, "v", 0, SOURCE), bed.answer("Issued"))
    assert first.chain_pem == f"CHAIN {request.metadata.name}\n".encode()
    spec = request.spec
    assert (spec.signer_name, spec.pod_name, spec.service_account_uid) == ("example.com/s", pod.metadata.name, "uid-sa")
    assert (spec.node_name, spec.node_uid) == ("node-1", "uid-node")
    assert x509.load_der_x509_csr(base64.b64decode(spec.stub_pkcs10_request or "")).is_signature_valid
    assert await bed.keeper.credentials(pod, "v", 0, SOURCE) is first
    await asyncio.sleep(1801)
    assert bed.states() == ['fresh"} 1']
    second, _ = await asyncio.gather(bed.keeper.credentials(pod, "v", 0, SOURCE), bed.answer("Issued"))
    assert second.key_pem != first.key_pem and len(await bed.requests()) == 2


async def test_the_old_one_serves_while_nobody_answers() -> None:
    bed, pod = CertificateKeeperFixture(), a_pod()
    first, _ = await asyncio.gather(bed.keeper.credentials(pod, "v", 0, SOURCE), bed.answer("Issued"))
    await asyncio.sleep(1801)
    assert await bed.keeper.credentials(pod, "v", 0, SOURCE) is first
    assert await bed.keeper.credentials(pod, "v", 0, SOURCE) is first
    assert len(await bed.requests()) == 2, "the open request is waited for, not repeated"
    await asyncio.sleep(601)
    assert bed.states() == ['overdue_for_refresh"} 1']
    await asyncio.sleep(1200)
    assert bed.states() == ['expired"} 1']
    with pytest.raises(CertificateError, match=r"to signer example\.com/s is not answered yet"):
        await bed.keeper.credentials(pod, "v", 0, SOURCE)


@pytest.mark.parametrize("kind", ["Denied", "Failed"])
async def test_a_refusal_is_final(kind: str) -> None:
    bed, pod = CertificateKeeperFixture(), a_pod()
    results = await asyncio.gather(
        bed.keeper.credentials(pod, "v", 0, SOURCE), bed.answer(kind), return_exceptions=True
    )
    text = f"signer example.com/s refused ({kind}): Because: so"
    assert isinstance(results[0], CertificateError) and str(results[0]) == text
    with pytest.raises(CertificateError, match="refused"):
        await bed.keeper.credentials(pod, "v", 0, SOURCE)
    assert len(await bed.requests()) == 1 and bed.events.pods == [(f"CertificateRequest{kind}", text)]
    assert bed.states() == [f'{kind.lower()}"}} 1']
    bed.keeper.forget(pod.metadata.uid or "")
    assert bed.states() == []
    await asyncio.gather(bed.keeper.credentials(pod, "v", 0, SOURCE), bed.answer("Issued"))


@pytest.mark.parametrize("kind", ["RSA3072", "ECDSAP256", "ECDSAP384", "ECDSAP521", "ED25519"])
def test_kinds_of_keys(kind: str) -> None:
    key, proof = make_key(kind)
    assert load_pem_private_key(key, None).public_key() == x509.load_der_x509_csr(proof).public_key()


def test_an_unknown_kind_of_key() -> None:
    with pytest.raises(CertificateError, match="keyType DSA of a podCertificate source is not known"):
        make_key("DSA")
