"""What the host's SELinux policy calls the files of containers."""

from __future__ import annotations

import re
from pathlib import Path

CONFIG = Path("/etc/selinux/config")
_POLICY = re.compile(r"^\s*SELINUXTYPE\s*=\s*(\S+)", re.MULTILINE)
_FILE = re.compile(r"^\s*file\s*=\s*\"?([^\"\s]+)\"?", re.MULTILINE)


def container_file_label(config: Path = CONFIG) -> str:
    """Label such as system_u:object_r:container_file_t:s0; empty when the host does not say."""
    try:
        policy = _POLICY.search(config.read_text())
        if policy is None:
            return ""
        found = _FILE.search((config.parent / policy.group(1) / "contexts" / "lxc_contexts").read_text())
    except OSError:
        return ""
    return found.group(1) if found else ""
