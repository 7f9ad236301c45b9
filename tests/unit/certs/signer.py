"""The cluster's signer for tests: approves, denies or ignores requests, with certificates of any life."""

from __future__ import annotations

import base64
from datetime import timedelta

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from pykubelet.api.types import (
    CertificateSigningRequest,
    CertificateSigningRequestCondition,
    CertificateSigningRequestStatus,
)
from pykubelet.kit.clock import Clock, utc


class Signer:
    def __init__(self, clock: Clock, *, life: float = 3600.0) -> None:
        self._clock = clock
        self.life = life
        self.mode = "approve"
        """approve, deny or ignore"""
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "signer")])

    def __call__(self, csr: CertificateSigningRequest) -> CertificateSigningRequest:
        if self.mode == "ignore":
            return csr
        if self.mode == "deny":
            denied = CertificateSigningRequestCondition(
                type="Denied", status="True", reason="Policy", message="not you"
            )
            return msgspec.structs.replace(csr, status=CertificateSigningRequestStatus(conditions=[denied]))
        return self.approve(csr)

    def approve(self, csr: CertificateSigningRequest) -> CertificateSigningRequest:
        approved = CertificateSigningRequestCondition(type="Approved", status="True", reason="AutoApproved")
        pem = self.sign(base64.b64decode(csr.spec.request or ""))
        status = CertificateSigningRequestStatus(conditions=[approved], certificate=base64.b64encode(pem).decode())
        return msgspec.structs.replace(csr, status=status)

    def sign(self, pem: bytes) -> bytes:
        request = x509.load_pem_x509_csr(pem)
        assert request.is_signature_valid
        now = utc(self._clock.now())
        builder = (
            x509.CertificateBuilder()
            .subject_name(request.subject)
            .issuer_name(self._name)
            .public_key(request.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now)
            .not_valid_after(now + timedelta(seconds=self.life))
        )
        for extension in request.extensions:
            builder = builder.add_extension(extension.value, extension.critical)
        return builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
