"""The label of container files, from the host's policy."""

from __future__ import annotations

from pathlib import Path

from pykubelet.clients.host.machine import container_file_label


def test_label_of_the_policy_in_use(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text("# comment\nSELINUX=enforcing\nSELINUXTYPE=targeted\n")
    assert container_file_label(config) == ""
    contexts = tmp_path / "targeted" / "contexts"
    contexts.mkdir(parents=True)
    text = 'process = "system_u:system_r:container_t:s0"\nfile = "system_u:object_r:container_file_t:s0"\n'
    (contexts / "lxc_contexts").write_text(text)
    assert container_file_label(config) == "system_u:object_r:container_file_t:s0"


def test_no_policy(tmp_path: Path) -> None:
    assert container_file_label(tmp_path / "config") == ""
    (tmp_path / "config").write_text("SELINUX=disabled\n")
    assert container_file_label(tmp_path / "config") == ""
