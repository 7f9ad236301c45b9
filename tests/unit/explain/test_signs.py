"""What other programs' words mean."""

from __future__ import annotations

import time

import pytest

from pykubelet.explain.signs import exit_text, image_trouble, is_command_trouble, is_network_trouble, missing_object


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ('failed to resolve reference "docker.io/library/nope:1": docker.io/library/nope:1: not found', "missing"),
        ("manifest unknown: manifest unknown", "missing"),
        ("no match for platform in manifest: not found", "missing"),
        ("pull access denied, repository does not exist or may require authorization: authorization failed", "denied"),
        ("unexpected status code 401 Unauthorized", "denied"),
        ("failed to do request: Head: dial tcp 10.0.0.1:443: i/o timeout", "unreachable"),
        ("dial tcp: lookup registry on 1.1.1.1:53: no such host", "unreachable"),
        ("x509: certificate signed by unknown authority", "unreachable"),
        ("unexpected status code 503 Service Unavailable", "unreachable"),
        ("failed to extract layer: write: no space left on device", "disk"),
        ("pull QPS exceeded", "other"),
    ],
)
def test_pull_errors(text: str, kind: str) -> None:
    assert image_trouble(text) == kind


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ('secret "db" not found', "secret db"),
        ("configmap default/web not found", "configmap default/web"),
        ("persistentvolumeclaim default/data not found", "persistentvolumeclaim default/data"),
        ("permission denied", ""),
    ],
)
def test_missing_objects(text: str, missing: str) -> None:
    assert missing_object(text) == missing


def test_runtime_errors() -> None:
    assert is_command_trouble('exec: "nope": executable file not found in $PATH: unknown')
    assert is_command_trouble('exec: "/x": stat /x: no such file or directory: unknown')
    assert not is_command_trouble("mkdir /sys/fs/cgroup: permission denied")
    assert not is_command_trouble("namespace path: lstat /proc/1006/ns/ipc: no such file or directory: unknown")
    assert is_network_trouble('failed to setup network for sandbox "x": plugin type="bridge" failed (add)')
    assert not is_network_trouble("failed to get sandbox image")


def test_exit_codes() -> None:
    assert exit_text(137) == "exit code 137, it was killed (SIGKILL)"
    assert exit_text(3) == "exit code 3"
    assert exit_text(141) == "exit code 141, ended by signal 13"


def test_only_the_beginning_of_a_text_is_searched() -> None:
    """A registry that answers a pull with a megabyte of its own words holds up nobody."""
    began = time.process_time()
    assert image_trouble("repository " * 100_000) == "other"
    assert not is_command_trouble("exec: " * 100_000)
    assert not is_network_trouble("failed to load " * 100_000)
    assert missing_object("secret a " * 100_000) == ""
    assert time.process_time() - began < 2.0
