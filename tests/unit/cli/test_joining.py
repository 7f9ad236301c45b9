"""Which login an agent starts with, and when it must join first."""

from __future__ import annotations

import datetime
import json
import time
from pathlib import Path
from typing import Any

import pytest

from pykubelet.certs.build import CLIENT_PREFIX
from pykubelet.certs.rotation import CertificateFiles
from pykubelet.cli.cluster_edges import is_usable, log_in
from pykubelet.clients.kube.kubeconfig import KubeconfigError
from pykubelet.kit.clock import SystemClock
from pykubelet.settings.load import LoadedSettings, load_settings
from pykubelet.settings.settings import Settings
from tests.bed.certificates import Authority, Pair

YEAR = datetime.timedelta(days=365)


def a_kubeconfig(path: Path, **user: Any) -> Path:
    config = {
        "clusters": [{"name": "c", "cluster": {"server": "https://api:6443"}}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path.write_text(json.dumps(config))
    return path


def files_of(pair: Pair) -> dict[str, str]:
    return {"client-certificate": str(pair.certificate), "client-key": str(pair.key)}


def settings(folder: Path, *flags: str) -> Settings:
    loaded = load_settings([f"--kubeconfig={folder / 'k'}", f"--cert-dir={folder / 'pki'}", *flags], environ={})
    assert isinstance(loaded, LoadedSettings)
    return loaded.settings


def test_a_kubeconfig_is_usable_unless_missing_broken_or_over(tmp_path: Path) -> None:
    authority, now = Authority(tmp_path), time.time()
    pair = authority.issue("system:node:n1")
    assert not is_usable(tmp_path / "absent", now)
    (tmp_path / "broken").write_text("users: [")
    assert not is_usable(tmp_path / "broken", now)
    good = a_kubeconfig(tmp_path / "good", **files_of(pair))
    assert is_usable(good, now)
    assert not is_usable(good, now + YEAR.total_seconds())
    assert is_usable(a_kubeconfig(tmp_path / "token", token="t"), now + YEAR.total_seconds())
    pair.certificate.unlink()
    assert not is_usable(good, now)


async def test_without_rotation_the_kubeconfig_is_all(tmp_path: Path) -> None:
    pair = Authority(tmp_path).issue("system:node:n1")
    a_kubeconfig(tmp_path / "k", **files_of(pair))
    login = await log_in(settings(tmp_path), clock=SystemClock(), node_name="n1")
    assert not login.renews_certificate and login.config.user.rotated_file is None
    assert not (tmp_path / "pki").exists()


async def test_with_rotation_the_first_certificate_is_kept_and_a_newer_one_wins(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    a_kubeconfig(tmp_path / "k", **files_of(authority.issue("system:node:n1")))
    wanted = settings(tmp_path, "--rotate-certificates")
    login = await log_in(wanted, clock=SystemClock(), node_name="n1")
    files = CertificateFiles(tmp_path / "pki", CLIENT_PREFIX, SystemClock())
    first = files.load()
    assert first is not None and first.facts.common_name == "system:node:n1"
    assert login.renews_certificate and login.config.user.rotated_file == files.current
    newer = authority.issue("system:node:n1", lifetime=YEAR)
    files.save(newer.certificate.read_bytes(), newer.key.read_bytes())
    await log_in(wanted, clock=SystemClock(), node_name="n1")
    kept = files.load()
    assert kept is not None and kept.facts.not_after > first.facts.not_after


async def test_no_kubeconfig_and_nothing_to_join_with_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(KubeconfigError, match="No such file"):
        await log_in(settings(tmp_path), clock=SystemClock(), node_name="n1")
