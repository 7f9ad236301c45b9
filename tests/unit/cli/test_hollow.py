"""`pykubelet hollow` refuses what it cannot use, in one line."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from pykubelet.cli.main import run_command

KUBECONFIG = """
{apiVersion: v1, kind: Config, clusters: [{name: c, cluster: {server: "https://127.0.0.1:1"}}], users: [],
 contexts: [{name: c, context: {cluster: c}}], current-context: c}
"""


@pytest.fixture(autouse=True)
def _logging_stays() -> Iterator[None]:
    logger = logging.getLogger("pykubelet")
    before = logger.handlers[:], logger.level, logger.propagate
    yield
    logger.handlers[:], logger.level, logger.propagate = before


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert run_command(["hollow", *words]) != 0
    return capsys.readouterr().err


@pytest.fixture
def kubeconfig(tmp_path: Path) -> str:
    path = tmp_path / "kubeconfig"
    path.write_text(KUBECONFIG)
    return str(path)


def test_a_workload_that_cannot_be_used(capsys: pytest.CaptureFixture[str], tmp_path: Path, kubeconfig: str) -> None:
    (tmp_path / "workload.yaml").write_text("runtime: {pause: 1}")
    said = refused(capsys, "--nodes", "1", "--kubeconfig", kubeconfig, "--workload", str(tmp_path / "workload.yaml"))
    assert said.startswith("pykubelet: ") and "workload.yaml" in said and "`pause`" in said and said.count("\n") == 1


def test_a_history_that_cannot_be_read(capsys: pytest.CaptureFixture[str], tmp_path: Path, kubeconfig: str) -> None:
    said = refused(capsys, "--nodes", "1", "--kubeconfig", kubeconfig, "--history", str(tmp_path / "none.json"))
    assert "none.json" in said and said.count("\n") == 1


def test_more_nodes_than_addresses(capsys: pytest.CaptureFixture[str], tmp_path: Path, kubeconfig: str) -> None:
    said = refused(capsys, "--nodes", "9", "--first", "16380", "--kubeconfig", kubeconfig, "--folder", str(tmp_path))
    assert said == "pykubelet: there are addresses for 16384 nodes only\n"
    assert list(tmp_path.glob("pykubelet-hollow-*")) == []


def test_a_configuration_with_mistakes(capsys: pytest.CaptureFixture[str], tmp_path: Path, kubeconfig: str) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("{apiVersion: kubelet.config.k8s.io/v1beta1, kind: KubeletConfiguration, maxOpenFiles: -1}")
    said = refused(capsys, "--nodes", "1", "--kubeconfig", kubeconfig, "--config", str(config))
    assert "maxOpenFiles" in said


def test_a_kubeconfig_is_needed(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--kubeconfig" in refused(capsys, "--nodes", "1")
