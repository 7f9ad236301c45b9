"""One way to log in to a registry, and where it came from.

The origin decides who may use an image that was pulled with it (records.py): what the node itself holds is
everybody's, a secret or a service account is not. Does not cover finding logins (credentials.py).
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field

from pykubelet.wire import cri_pb2

# Go's JSON writes these as escapes; the hash is shared with other kubelets through the records on disk.
_ESCAPES = str.maketrans({c: f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"})


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class SecretOrigin:
    """The login was in this secret of the pod's namespace."""

    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class AccountOrigin:
    """A plugin gave the login for a token of this service account."""

    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """User and password as a docker config or a plugin gives them."""

    username: str = ""
    password: str = field(default="", repr=False)
    email: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    entry: Entry
    origin: SecretOrigin | AccountOrigin | None = None
    """None: the node's own, so any pod of this node could have used it."""

    @property
    def auth(self) -> cri_pb2.AuthConfig:
        return cri_pb2.AuthConfig(username=self.entry.username, password=self.entry.password)

    @property
    def fingerprint(self) -> str:
        """What records keep in place of the password: the hash that other kubelets compute, too."""
        wire = {"username": self.entry.username, "password": self.entry.password, "email": self.entry.email}
        text = json.dumps({k: v for k, v in wire.items() if v}, ensure_ascii=False, separators=(",", ":"))
        return hashlib.sha256(text.translate(_ESCAPES).encode("utf-8", "replace")).hexdigest()
