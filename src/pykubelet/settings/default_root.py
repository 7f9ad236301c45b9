"""Where an agent keeps everything unless told otherwise; apart from the flags, for commands that only look for it."""

from __future__ import annotations

DEFAULT_ROOT = "/var/lib/kubelet"
