"""Keys, certificates and signing requests as PEM texts.

Everything that needs the cryptography library is here, and imports it on first use: an agent without certificates
to make never loads it. Errors are CertificateError with what is wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from pykubelet.kit.clock import utc
from pykubelet.model.errors import PykubeletError

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

GROUP = "system:nodes"
SELF_SIGNED_LIFE = 365 * 86400.0


class CertificateError(PykubeletError):
    """A certificate, key or request cannot be used or had."""


class Wanted(Struct, frozen=True, kw_only=True):
    """The subject of a certificate: the node, and for serving the names and addresses it is reached by."""

    node_name: str
    dns: tuple[str, ...] = ()
    ips: tuple[str, ...] = ()

    @property
    def common_name(self) -> str:
        return f"system:node:{self.node_name}"


class CertificateFacts(Struct, frozen=True, kw_only=True):
    common_name: str
    organizations: tuple[str, ...]
    dns: tuple[str, ...]
    ips: tuple[str, ...]
    not_before: float
    not_after: float
    """Unix seconds."""

    def is_for(self, wanted: Wanted) -> bool:
        return (
            self.common_name == wanted.common_name
            and set(self.dns) == set(wanted.dns)
            and set(self.ips) == set(wanted.ips)
        )


class Pair(Struct, frozen=True, kw_only=True):
    """A certificate (perhaps with its chain) and its key."""

    certificate: bytes
    key: bytes
    facts: CertificateFacts

    def __repr__(self) -> str:
        return f"Pair({self.facts!r})"


def make_key() -> bytes:
    """A new ECDSA P-256 key."""
    from cryptography.hazmat.primitives.asymmetric import ec

    return _key_pem(ec.generate_private_key(ec.SECP256R1()))


def make_request(key: bytes, wanted: Wanted) -> bytes:
    """A signing request for the key, as the signers of Kubernetes want it."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization

    builder = x509.CertificateSigningRequestBuilder().subject_name(_name(wanted.common_name, GROUP))
    if wanted.dns or wanted.ips:
        builder = builder.add_extension(_names(wanted.dns, wanted.ips), critical=False)
    request = builder.sign(_load_key(key), hashes.SHA256())
    return request.public_bytes(serialization.Encoding.PEM)


def read_pair(certificate: bytes, key: bytes) -> Pair:
    """The pair, if the two belong together."""
    from cryptography.hazmat.primitives import serialization

    leaf, loaded = _load_certificate(certificate), _load_key(key)
    form = (serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    if leaf.public_key().public_bytes(*form) != loaded.public_key().public_bytes(*form):
        raise CertificateError("the certificate is for another key")
    return Pair(certificate=certificate, key=key, facts=_facts(leaf))


def public_key_of(key: bytes) -> bytes:
    """The public half, which identifies the key."""
    from cryptography.hazmat.primitives import serialization

    form = (serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return bytes(_load_key(key).public_key().public_bytes(*form))


def read_facts(certificate: bytes) -> CertificateFacts:
    return _facts(_load_certificate(certificate))


def split_pem(data: bytes) -> tuple[bytes, bytes]:
    """Certificates and key of a file that holds both."""
    blocks: dict[bool, list[bytes]] = {True: [], False: []}
    current: list[bytes] = []
    for line in data.splitlines():
        if line.startswith(b"-----BEGIN "):
            current = []
        current.append(line)
        if line.startswith(b"-----END "):
            blocks[b"PRIVATE KEY" in line].append(b"\n".join(current) + b"\n")
    return b"".join(blocks[False]), b"".join(blocks[True][:1])


def self_signed(host: str, ips: Sequence[str], now: float) -> tuple[bytes, bytes]:
    """A self-signed certificate and its key for a server, valid for a year."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization

    key = _load_key(make_key())
    name = _name(f"{host}@{int(now)}")
    purposes = x509.ExtendedKeyUsage([x509.oid.ExtendedKeyUsageOID.SERVER_AUTH])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(utc(now) - timedelta(hours=1))
        .not_valid_after(utc(now + SELF_SIGNED_LIFE))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(purposes, critical=False)
        .add_extension(_names((host,), ips), critical=False)
        .sign(key, hashes.SHA256())
    )
    return certificate.public_bytes(serialization.Encoding.PEM), _key_pem(key)


def _key_pem(key: EllipticCurvePrivateKey) -> bytes:
    from cryptography.hazmat.primitives import serialization

    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )


def _load_key(key: bytes) -> Any:
    from cryptography.hazmat.primitives import serialization

    try:
        return serialization.load_pem_private_key(key, password=None)
    except (ValueError, TypeError) as error:
        raise CertificateError(f"no usable private key: {error}") from None


def _load_certificate(certificate: bytes) -> x509.Certificate:
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificate(certificate)
    except ValueError as error:
        raise CertificateError(f"no usable certificate: {error}") from None


def _facts(certificate: x509.Certificate) -> CertificateFacts:
    from cryptography import x509

    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        dns = tuple(names.get_values_for_type(x509.DNSName))
        ips = tuple(str(each) for each in names.get_values_for_type(x509.IPAddress))
    except x509.ExtensionNotFound:
        dns = ips = ()

    def subject(kind: Any) -> tuple[str, ...]:
        return tuple(str(each.value) for each in certificate.subject.get_attributes_for_oid(kind))

    return CertificateFacts(
        common_name="".join(subject(x509.NameOID.COMMON_NAME)[:1]),
        organizations=subject(x509.NameOID.ORGANIZATION_NAME),
        dns=dns,
        ips=ips,
        not_before=certificate.not_valid_before_utc.timestamp(),
        not_after=certificate.not_valid_after_utc.timestamp(),
    )


def _name(common_name: str, organization: str = "") -> x509.Name:
    from cryptography import x509

    attributes = [x509.NameAttribute(x509.NameOID.COMMON_NAME, common_name)]
    if organization:
        attributes.insert(0, x509.NameAttribute(x509.NameOID.ORGANIZATION_NAME, organization))
    return x509.Name(attributes)


def _names(dns: Sequence[str], ips: Sequence[str]) -> x509.SubjectAlternativeName:
    import ipaddress

    from cryptography import x509

    return x509.SubjectAlternativeName(
        [
            *(x509.DNSName(name) for name in sorted(dns)),
            *(x509.IPAddress(ipaddress.ip_address(ip)) for ip in sorted(ips)),
        ]
    )
