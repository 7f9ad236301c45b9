"""TLS settings in Go's words, and files that change."""

from __future__ import annotations

import os
import ssl
from pathlib import Path

import pytest

from pykubelet.server.tls import DEFAULT_SUITES, SUITES, BadTls, Reload, ServingFiles, TlsFiles, TlsRules, tls_rules
from pykubelet.settings.schema_server import ServerSettings
from tests.bed.certificates import Authority


def test_names_become_openssl_names() -> None:
    suites = ("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", "TLS_AES_128_GCM_SHA256")
    rules = tls_rules(
        ServerSettings(tls_cipher_suites=suites, tls_min_version="VersionTLS13", tls_curve_preferences=(23,))
    )
    assert rules == TlsRules(suites="ECDHE-RSA-AES128-GCM-SHA256", minimum=ssl.TLSVersion.TLSv1_3, curve="prime256v1")
    assert tls_rules(ServerSettings()) == TlsRules(suites=DEFAULT_SUITES)


def test_names_of_tls_1_3_alone_leave_nothing_for_older_versions() -> None:
    suites = ("TLS_AES_128_GCM_SHA256", "TLS_CHACHA20_POLY1305_SHA256")
    for least in ("", "VersionTLS12", "VersionTLS13"):
        rules = tls_rules(ServerSettings(tls_cipher_suites=suites, tls_min_version=least))
        assert rules.minimum is ssl.TLSVersion.TLSv1_3


@pytest.mark.parametrize("name", [name for name in SUITES if "RC4" not in name and "3DES" not in name])
def test_every_modern_suite_exists(name: str) -> None:
    assert tls_rules(ServerSettings(tls_cipher_suites=(name,))).suites == SUITES[name]


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (ServerSettings(tls_cipher_suites=("TLS_FOO",)), "tlsCipherSuites: TLS_FOO is not a cipher suite"),
        (ServerSettings(tls_min_version="1.2"), "tlsMinVersion '1.2' is not one of VersionTLS10"),
        (ServerSettings(tls_curve_preferences=(4588,)), "tlsCurvePreferences: none of 4588 can be chosen here"),
    ],
)
def test_unknown_names_are_said(settings: ServerSettings, text: str) -> None:
    with pytest.raises(BadTls, match=text):
        tls_rules(settings)


def touch(path: Path, seconds: int) -> None:
    os.utime(path, (seconds, seconds))


def test_only_a_changed_ca_makes_a_new_generation(tmp_path: Path) -> None:
    ca = Authority(tmp_path)
    pair = ca.issue("server", hosts=["localhost"])
    files = TlsFiles(
        rules=TlsRules(), serving=lambda: ServingFiles(pair.certificate, pair.key), client_ca=ca.pair.certificate
    )
    first = files.context()
    assert first is not None and first.verify_mode is ssl.CERT_OPTIONAL
    assert files.context() is first
    generation = files.generation
    touch(pair.certificate, 1)
    second = files.context()
    assert second is not None and second is not first
    assert (files.generation, files.generation_of(second)) == (generation, generation)
    touch(ca.pair.certificate, 1)
    assert files.context() is not second
    assert files.generation == generation + 1
    assert files.generation_of(second) == generation


@pytest.mark.parametrize("reload", [Reload(certificate=False), Reload(client_ca=False)])
def test_files_that_are_read_once(tmp_path: Path, reload: Reload) -> None:
    ca = Authority(tmp_path)
    pair, other = ca.issue("server", hosts=["localhost"]), ca.issue("other", hosts=["localhost"])
    files = TlsFiles(
        rules=TlsRules(),
        serving=lambda: ServingFiles(pair.certificate, pair.key),
        client_ca=ca.pair.certificate,
        reload=reload,
    )
    files.check()
    first, generation = files.context(), files.generation
    authorities = first.get_ca_certs() if first is not None else []
    assert authorities
    # Another certificate, and another authority.
    pair.certificate.write_bytes(other.certificate.read_bytes())
    pair.key.write_bytes(other.key.read_bytes())
    assert (files.context() is first) is not reload.certificate
    ca.pair.certificate.write_bytes(other.certificate.read_bytes())
    last = files.context()
    assert last is not None
    assert (last.get_ca_certs() == authorities) is not reload.client_ca
    assert (files.generation == generation) is not reload.client_ca


def test_a_file_to_be_read_once_that_is_missing_is_named(tmp_path: Path) -> None:
    files = TlsFiles(
        rules=TlsRules(), serving=lambda: None, client_ca=tmp_path / "ca.crt", reload=Reload(client_ca=False)
    )
    with pytest.raises(BadTls, match=r"clientCAFile .*ca\.crt: No such file"):
        files.check()


def test_a_broken_file_leaves_the_old_one(tmp_path: Path) -> None:
    ca = Authority(tmp_path)
    pair = ca.issue("server", hosts=["localhost"])
    files = TlsFiles(rules=TlsRules(), serving=lambda: ServingFiles(pair.certificate, pair.key), client_ca=None)
    files.check()
    first = files.context()
    pair.key.write_text("nonsense")
    assert files.context() is first
    with pytest.raises(BadTls, match=r"server\.crt with key .*server\.key"):
        files.check()
    pair.certificate.unlink()
    assert files.context() is first


def test_no_certificate_yet(tmp_path: Path) -> None:
    files = TlsFiles(rules=TlsRules(), serving=lambda: None, client_ca=tmp_path / "ca.crt")
    assert files.context() is None
    with pytest.raises(BadTls, match=r"clientCAFile .*ca\.crt: No such file"):
        files.check()
