"""Certificates: files as every kubelet lays them out, bootstrap, rotation in time."""

from __future__ import annotations

import asyncio
import base64
import json
import random
import stat
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from cryptography import x509

from pykubelet.api.types import CertificateSigningRequest, ObjectMeta
from pykubelet.certs.bootstrap import KEY_FILE, Bootstrap, ClusterAddress, kubeconfig_text, still_good
from pykubelet.certs.build import wanted_for_serving
from pykubelet.certs.pem import CertificateError, Pair, Wanted, make_key, make_request, read_pair
from pykubelet.certs.rotation import (
    CLIENT_SIGNER,
    KEPT,
    SERVING_SIGNER,
    CertificateFiles,
    CertificateRotation,
    obtain,
    request_name,
    rotation_deadline,
)
from pykubelet.clients.kube.kubeconfig import parse_kubeconfig
from pykubelet.kit.clock import LoopClock
from pykubelet.kit.metrics import Registry
from pykubelet.kit.tasks import running
from pykubelet.model.errors import ApiDown, Unauthorized
from tests.fakes.fake_kube import FakeKube
from tests.unit.certs.signer import Signer

ME = Wanted(node_name="n1")


class CertificatesFixture:
    def __init__(self, folder: Path, *, life: float = 3600.0, prefix: str = "kubelet-client") -> None:
        self.clock = LoopClock()
        self.kube = FakeKube(self.clock)
        self.signer = Signer(self.clock, life=life)
        self.kube.sign = self.signer
        self.files = CertificateFiles(folder / "pki", prefix, self.clock)
        self.metrics = Registry()
        self.new: list[Pair] = []
        self.lost: list[str] = []

    def rotation(
        self, signer: str = CLIENT_SIGNER, wanted: Callable[[], Wanted | None] = lambda: ME
    ) -> CertificateRotation:
        async def on_new(pair: Pair) -> None:
            self.new.append(pair)

        made = CertificateRotation(
            kube=self.kube,
            files=self.files,
            clock=self.clock,
            metrics=self.metrics,
            signer=signer,
            wanted=wanted,
            on_new=on_new,
            on_lost=self.lost.append,
        )
        made.source = random.Random(5)
        return made

    def bootstrap(self, folder: Path) -> Bootstrap:
        return Bootstrap(
            kube=self.kube, files=self.files, clock=self.clock, node_name="n1", kubeconfig=folder / "kubelet.conf"
        )

    async def a_pair(self) -> tuple[bytes, bytes]:
        key = make_key()
        return self.signer.sign(make_request(key, ME)), key

    @property
    def requests(self) -> list[CertificateSigningRequest]:
        return list(self.kube.everything(CertificateSigningRequest))


async def test_files_are_laid_out_as_upstream_does(tmp_path: Path) -> None:
    bed = CertificatesFixture(tmp_path)
    certificate, key = await bed.a_pair()
    bed.files.save(certificate, key)
    folder = tmp_path / "pki"
    assert bed.files.current == folder / "kubelet-client-current.pem"
    assert bed.files.current.is_symlink()
    target = bed.files.current.resolve()
    assert target.name == "kubelet-client-2023-11-14-22-13-20.pem"
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert target.read_bytes().index(b"CERTIFICATE") < target.read_bytes().index(b"PRIVATE KEY")
    loaded = bed.files.load()
    assert loaded is not None and loaded.facts.common_name == "system:node:n1"
    assert sorted(path.name for path in folder.iterdir()) == [target.name, "kubelet-client-current.pem"]


async def test_old_files_are_removed_but_never_the_one_in_force(tmp_path: Path) -> None:
    bed = CertificatesFixture(tmp_path)
    for _ in range(KEPT + 3):
        bed.files.save(*await bed.a_pair())  # all within one second: names must differ all the same
    names = [path.name for path in (tmp_path / "pki").iterdir() if not path.is_symlink()]
    assert len(names) == KEPT
    assert bed.files.current.resolve().name in names


@pytest.mark.parametrize("damage", [b"", b"rubbish", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"])
async def test_damaged_file_counts_as_none(tmp_path: Path, damage: bytes) -> None:
    bed = CertificatesFixture(tmp_path)
    assert bed.files.load() is None
    bed.files.save(*await bed.a_pair())
    bed.files.current.resolve().write_bytes(damage)
    assert bed.files.load() is None


async def test_pair_that_does_not_belong_together_is_refused(tmp_path: Path) -> None:
    bed = CertificatesFixture(tmp_path)
    certificate, _ = await bed.a_pair()
    with pytest.raises(CertificateError, match="another key"):
        bed.files.save(certificate, make_key())
    assert bed.files.load() is None


async def test_request_is_what_the_signers_want(tmp_path: Path) -> None:
    bed = CertificatesFixture(tmp_path)
    wanted = Wanted(node_name="n1", dns=("n1", "n1.example"), ips=("10.0.0.1", "fd00::1"))
    key = make_key()
    pem = await obtain(bed.kube, key=key, wanted=wanted, signer=SERVING_SIGNER, clock=bed.clock, within=5)
    (csr,) = bed.requests
    assert (csr.spec.signer_name, csr.spec.usages) == (SERVING_SIGNER, ["digital signature", "server auth"])
    assert (csr.metadata.name or "").startswith("csr-") and csr.spec.expiration_seconds is None
    request = x509.load_pem_x509_csr(base64.b64decode(csr.spec.request or ""))
    assert request.subject.rfc4514_string() == "CN=system:node:n1,O=system:nodes"
    assert read_pair(pem, key).facts.is_for(wanted)


@pytest.mark.parametrize("interrupted", [False, True])
async def test_waiting_survives_interruptions(tmp_path: Path, interrupted: bool) -> None:
    bed = CertificatesFixture(tmp_path)
    bed.signer.mode = "ignore"

    async def approve_later() -> None:
        await asyncio.sleep(30)
        if interrupted:
            bed.kube.stop()
            await asyncio.sleep(60)
            bed.kube.start()
        bed.kube.change(bed.signer.approve(bed.requests[0]))

    async with asyncio.TaskGroup() as group:
        group.create_task(approve_later())
        pem = await obtain(
            bed.kube, key=make_key(), wanted=ME, signer=CLIENT_SIGNER, clock=bed.clock, within=900, name="mine"
        )
    assert b"CERTIFICATE" in pem


async def test_unanswered_denied_and_deleted_requests_are_errors(tmp_path: Path) -> None:
    bed = CertificatesFixture(tmp_path)

    async def ask(name: str = "") -> None:
        key = make_key()
        await obtain(bed.kube, key=key, wanted=ME, signer=CLIENT_SIGNER, clock=bed.clock, within=900, name=name)

    bed.signer.mode = "deny"
    with pytest.raises(CertificateError, match="request is denied, reason: Policy, message: not you"):
        await ask()
    bed.signer.mode = "ignore"
    with pytest.raises(CertificateError, match="was not answered in 900 s"):
        await ask()

    async def delete() -> None:
        await asyncio.sleep(1)
        bed.kube.remove(CertificateSigningRequest, "mine")

    async with asyncio.TaskGroup() as group:
        group.create_task(delete())
        with pytest.raises(CertificateError, match="request mine was deleted"):
            await ask("mine")


async def test_bootstrap_writes_a_kubeconfig_that_uses_the_new_pair(tmp_path: Path) -> None:
    bed = CertificatesFixture(tmp_path)
    await bed.bootstrap(tmp_path).join(ClusterAddress(server="https://api:6443", ca_data=b"pem"))
    (csr,) = bed.requests
    assert (csr.metadata.name or "").startswith("node-csr-")
    assert csr.spec.usages == ["digital signature", "client auth"]
    path = tmp_path / "kubelet.conf"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    config = parse_kubeconfig(path.read_bytes(), path)
    assert (config.cluster.server, config.cluster.ca_data) == ("https://api:6443", b"pem")
    assert config.user.certificate_file == config.user.key_file == bed.files.current
    assert not (tmp_path / "pki" / KEY_FILE).exists()
    assert json.loads(path.read_bytes())["current-context"] == "default-context"
    await bed.bootstrap(tmp_path).join(ClusterAddress(server="https://api:6443"))
    assert len(bed.requests) == 1, "a good pair on disk is used again"


async def test_restart_while_waiting_continues_the_same_request(tmp_path: Path) -> None:
    bed = CertificatesFixture(tmp_path)
    bed.signer.mode = "ignore"
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(30):
            await bed.bootstrap(tmp_path).join(ClusterAddress(server="https://api"))
    assert not (tmp_path / "kubelet.conf").exists()
    key = tmp_path / "pki" / KEY_FILE
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    bed.kube.change(bed.signer.approve(bed.requests[0]))
    await bed.bootstrap(tmp_path).join(ClusterAddress(server="https://api"))
    assert len(bed.requests) == 1


async def test_denied_bootstrap_asks_again_with_a_new_key(tmp_path: Path) -> None:
    bed = CertificatesFixture(tmp_path)
    bed.signer.mode = "deny"

    async def relent() -> None:
        await asyncio.sleep(1)
        bed.signer.mode = "approve"

    async with asyncio.TaskGroup() as group:
        group.create_task(relent())
        await bed.bootstrap(tmp_path).join(ClusterAddress(server="https://api"))
    assert len(bed.requests) == 2


async def test_bootstrap_waits_for_a_server_that_is_not_there_yet(tmp_path: Path) -> None:
    bed = CertificatesFixture(tmp_path)
    bed.kube.stop()

    async def arrive() -> None:
        await asyncio.sleep(100)
        bed.kube.start()

    async with asyncio.TaskGroup() as group:
        group.create_task(arrive())
        await bed.bootstrap(tmp_path).join(ClusterAddress(server="https://api"))
    assert bed.clock.monotonic() < 140


def test_same_key_gives_the_same_request_name() -> None:
    key = make_key()
    assert request_name(key, ME, CLIENT_SIGNER) == request_name(key, ME, CLIENT_SIGNER)
    assert request_name(key, ME, CLIENT_SIGNER) != request_name(make_key(), ME, CLIENT_SIGNER)
    assert request_name(key, ME, CLIENT_SIGNER) != request_name(key, Wanted(node_name="n2"), CLIENT_SIGNER)


async def test_every_part_of_the_address_is_taken_over(tmp_path: Path) -> None:
    address = ClusterAddress(
        server="https://api", ca_file=Path("/ca.crt"), tls_server_name="x", proxy_url="http://p:1", namespace="shop"
    )
    config = parse_kubeconfig(kubeconfig_text(address, tmp_path / "p.pem"), tmp_path / "k")
    assert (config.cluster.ca_file, config.cluster.tls_server_name) == (Path("/ca.crt"), "x")
    assert (config.cluster.proxy_url, config.namespace) == ("http://p:1", "shop")


async def test_still_good_looks_at_the_time(tmp_path: Path) -> None:
    bed = CertificatesFixture(tmp_path, life=100)
    certificate, _ = await bed.a_pair()
    now = bed.clock.now()
    assert still_good(certificate, now) and not still_good(certificate, now + 101)
    assert not still_good(certificate, now - 10) and not still_good(b"rubbish", now)


async def test_deadline_is_between_70_and_90_percent(tmp_path: Path) -> None:
    bed = CertificatesFixture(tmp_path, life=1000)
    pair = read_pair(*await bed.a_pair())
    begun = pair.facts.not_before
    assert rotation_deadline(pair, 0.0) == begun + 700
    assert rotation_deadline(pair, 1.0) == begun + 900


async def test_rotation_renews_in_time_again_and_again(tmp_path: Path) -> None:
    bed = CertificatesFixture(tmp_path, life=120)
    async with running(bed.rotation()):
        await asyncio.sleep(600)
        assert "kubelet_certificate_manager_client_ttl_seconds" in bed.metrics.expose()
    assert 5 <= len(bed.new) <= 8
    for old, new in zip(bed.new, bed.new[1:], strict=False):
        assert new.facts.not_before < old.facts.not_after
    assert bed.lost == []


async def test_rotation_starts_from_the_pair_on_disk(tmp_path: Path) -> None:
    bed = CertificatesFixture(tmp_path)
    bed.files.save(*await bed.a_pair())
    async with running(bed.rotation()):
        await asyncio.sleep(60)
    assert bed.requests == []
    assert len(bed.new) == 1


async def test_failed_renewal_keeps_the_old_pair_and_tries_again(tmp_path: Path) -> None:
    bed = CertificatesFixture(tmp_path, life=1000)
    bed.files.save(*await bed.a_pair())
    bed.kube.fail_next("create", ApiDown("refused"), times=8)
    async with running(bed.rotation()):
        await asyncio.sleep(1200)
    assert len(bed.new) == 2
    assert bed.lost == []


async def test_expired_client_certificate_is_told_when_the_server_answers(tmp_path: Path) -> None:
    bed = CertificatesFixture(tmp_path, life=100)
    bed.files.save(*await bed.a_pair())
    bed.signer.mode = "deny"
    bed.kube.healthy = False
    async with running(bed.rotation()):
        await asyncio.sleep(400)
        assert bed.lost == []
        bed.kube.healthy = True
        await asyncio.sleep(60)
        assert "expired" in bed.lost[0]


async def test_a_server_that_refuses_the_expired_certificate_answers(tmp_path: Path) -> None:
    """Its /healthz refuses it, too."""
    bed = CertificatesFixture(tmp_path, life=100)
    bed.files.save(*await bed.a_pair())
    bed.kube.healthy = False
    bed.kube.fail_next("create", Unauthorized("Unauthorized"), times=99)
    async with running(bed.rotation()):
        await asyncio.sleep(95)
        assert bed.lost == []
        await asyncio.sleep(300)
        assert "expired" in bed.lost[0]


async def test_certificate_that_never_came_is_told_after_five_minutes(tmp_path: Path) -> None:
    bed = CertificatesFixture(tmp_path)
    bed.signer.mode = "deny"
    async with running(bed.rotation()):
        await asyncio.sleep(290)
        assert bed.lost == []
        await asyncio.sleep(60)
        assert "no client certificate" in bed.lost[0]


async def test_serving_certificate_follows_the_addresses(tmp_path: Path) -> None:
    bed = CertificatesFixture(tmp_path, prefix="kubelet-server")
    ips: list[str] = []
    rotation = bed.rotation(SERVING_SIGNER, lambda: wanted_for_serving("n1", ["n1"], ips))
    async with running(rotation):
        await asyncio.sleep(10)
        assert bed.requests == [], "nothing is asked for without an address"
        ips.append("10.0.0.1")
        rotation.poke()
        await asyncio.sleep(1)
        assert bed.new[-1].facts.ips == ("10.0.0.1",)
        ips.append("10.0.0.2")
        rotation.poke()
        await asyncio.sleep(1)
        assert set(bed.new[-1].facts.ips) == {"10.0.0.1", "10.0.0.2"}
    assert bed.metrics.histogram("kubelet_certificate_manager_server_rotation_seconds", "").count() == 1
    assert bed.files.current.name == "kubelet-server-current.pem"


async def test_request_replaced_by_somebody_else_is_not_trusted(tmp_path: Path) -> None:
    bed = CertificatesFixture(tmp_path)
    bed.signer.mode = "ignore"

    async def replace() -> None:
        await asyncio.sleep(1)
        old = bed.requests[0]
        bed.kube.remove(CertificateSigningRequest, "mine")
        bed.kube.add(msgspec.structs.replace(bed.signer.approve(old), metadata=ObjectMeta(name="mine")))

    async with asyncio.TaskGroup() as group:
        group.create_task(replace())
        with pytest.raises(CertificateError, match=r"deleted|replaced"):
            await obtain(
                bed.kube, key=make_key(), wanted=ME, signer=CLIENT_SIGNER, clock=bed.clock, within=60, name="mine"
            )


@pytest.mark.parametrize(
    ("signer", "errors", "ttl"),
    [
        (CLIENT_SIGNER, "kubelet_certificate_manager_client_expiration_renew_errors", "client"),
        (SERVING_SIGNER, "kubelet_server_expiration_renew_errors", "server"),
    ],
)
async def test_series_have_the_names_that_alert_rules_look_for(
    tmp_path: Path, signer: str, errors: str, ttl: str
) -> None:
    bed = CertificatesFixture(tmp_path)
    bed.rotation(signer)
    shown = bed.metrics.expose()
    assert f"{errors} 0" in shown
    # 0 would be an expired certificate to an alert rule.
    assert f"kubelet_certificate_manager_{ttl}_ttl_seconds +Inf" in shown
