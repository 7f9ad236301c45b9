"""The root folder of an agent that is given no other; apart from the flags, for commands that only look for it."""

from __future__ import annotations

DEFAULT_ROOT = "/var/lib/kubelet"
