"""Reading a kubeconfig: which server, which CA, which login, of the current context.

Relative file names are meant beside the kubeconfig, as everywhere in Kubernetes. Data given inline wins over a
file, except that a token file wins over a token. Every error names the file and the field.
Does not cover: reading the files a login names and renewing them (credentials.py), merging several kubeconfigs.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from msgspec import Struct, field
from msgspec.structs import replace

from pykubelet.api.codec import ManifestError
from pykubelet.api.documents import load_yaml_documents
from pykubelet.clients.kube.socks import SCHEMES
from pykubelet.model.errors import PykubeletError

EXEC_API_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
PROXY_SCHEMES = ("http", "https", *sorted(SCHEMES))


class KubeconfigError(PykubeletError):
    """A kubeconfig or a file it names cannot be used."""


class ClusterEntry(Struct, frozen=True, kw_only=True):
    server: str
    """URL without a trailing slash."""
    ca_file: Path | None = None
    ca_data: bytes = b""
    insecure: bool = False
    tls_server_name: str = ""
    proxy_url: str = ""
    extensions: Mapping[str, Any] = field(default_factory=dict)


class ExecEntry(Struct, frozen=True, kw_only=True):
    """A program that prints credentials."""

    api_version: str
    command: str
    args: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    provide_cluster_info: bool = False
    install_hint: str = ""


class UserEntry(Struct, frozen=True, kw_only=True):
    certificate_file: Path | None = None
    certificate_data: bytes = b""
    key_file: Path | None = None
    key_data: bytes = b""
    token: str = ""
    token_file: Path | None = None
    username: str = ""
    password: str = ""
    exec: ExecEntry | None = None
    impersonate: tuple[tuple[str, str], ...] = ()
    """Impersonation headers."""
    rotated_file: Path | None = None
    """Certificate and key that we renew ourselves; they win over the kubeconfig's own as soon as they are there."""


class Kubeconfig(Struct, frozen=True, kw_only=True):
    cluster: ClusterEntry
    user: UserEntry
    namespace: str = "default"
    source: str = ""
    """The file it came from, for messages."""


def load_kubeconfig(path: Path) -> Kubeconfig:
    """The current context of a kubeconfig file."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise KubeconfigError(f"kubeconfig {path}: {error.strerror or error}") from None
    return parse_kubeconfig(data, path)


def with_rotation(config: Kubeconfig, pem: Path) -> Kubeconfig:
    """The same login, but with the pair in `pem` (certs/rotation.py) once there is one."""
    return replace(config, user=replace(config.user, rotated_file=pem))


def parse_kubeconfig(data: bytes, path: Path) -> Kubeconfig:
    try:
        documents = load_yaml_documents(data)
    except ManifestError as error:
        raise KubeconfigError(f"kubeconfig {path}: {error}") from None
    if not documents:
        raise KubeconfigError(f"kubeconfig {path}: is empty")
    root = _Node(documents[0], f"kubeconfig {path}", path.parent, "")
    root.must_be_map()
    current = root.text("current-context")
    if not current:
        raise root.error("current-context", "is not set")
    context = root.named("contexts", current, "context", asked_by="current-context")
    cluster = root.named("clusters", context.text("cluster", needed=True), "cluster", asked_by=context.at("cluster"))
    user_name = context.text("user")
    user = _user(root.named("users", user_name, "user", asked_by=context.at("user"))) if user_name else UserEntry()
    return Kubeconfig(
        cluster=_cluster(cluster), user=user, namespace=context.text("namespace") or "default", source=str(path)
    )


def _cluster(node: _Node) -> ClusterEntry:
    server = node.text("server", needed=True).rstrip("/")
    parts = _url(node, "server", server)
    if parts.scheme not in ("http", "https"):
        raise node.error("server", f'"{server}" must begin with https:// or http://')
    proxy = node.text("proxy-url")
    if proxy and _url(node, "proxy-url", proxy).scheme not in PROXY_SCHEMES:
        raise node.error("proxy-url", f'"{proxy}" must begin with http://, https://, socks5:// or socks5h://')
    insecure = node.flag("insecure-skip-tls-verify")
    ca_file, ca_data = node.path("certificate-authority"), node.data("certificate-authority-data")
    if insecure and (ca_file or ca_data):
        raise node.error("insecure-skip-tls-verify", "cannot be true when a certificate authority is given")
    return ClusterEntry(
        server=server,
        ca_file=None if ca_data else ca_file,
        ca_data=ca_data,
        insecure=insecure,
        tls_server_name=node.text("tls-server-name"),
        proxy_url=proxy,
        extensions=_extensions(node),
    )


def _user(node: _Node) -> UserEntry:
    if node.get("auth-provider") is not None:
        raise node.error("auth-provider", "is not supported by any Kubernetes client any more; use exec")
    certificate_data, key_data = node.data("client-certificate-data"), node.data("client-key-data")
    certificate_file = None if certificate_data else node.path("client-certificate")
    key_file = None if key_data else node.path("client-key")
    has_certificate, has_key = bool(certificate_data or certificate_file), bool(key_data or key_file)
    if has_certificate and not has_key:
        raise node.error("client-key", "is needed with client-certificate")
    if has_key and not has_certificate:
        raise node.error("client-certificate", "is needed with client-key")
    return UserEntry(
        certificate_file=certificate_file,
        certificate_data=certificate_data,
        key_file=key_file,
        key_data=key_data,
        token=node.text("token"),
        token_file=node.path("tokenFile"),
        username=node.text("username"),
        password=node.text("password"),
        exec=_exec(node.child("exec")) if node.get("exec") is not None else None,
        impersonate=_impersonation(node),
    )


def _exec(node: _Node) -> ExecEntry:
    version = node.text("apiVersion", needed=True)
    if version not in EXEC_API_VERSIONS:
        raise node.error("apiVersion", f'"{version}" must be one of {", ".join(EXEC_API_VERSIONS)}')
    mode = node.text("interactiveMode")
    if mode == "Always":
        raise node.error("interactiveMode", "Always cannot work here: this program has no terminal")
    if mode not in ("", "Never", "IfAvailable"):
        raise node.error("interactiveMode", f'"{mode}" must be Never, IfAvailable or Always')
    command = node.text("command", needed=True)
    if "/" in command and not command.startswith("/"):
        command = str(node.folder / command)
    return ExecEntry(
        api_version=version,
        command=command,
        args=tuple(node.texts("args")),
        env=tuple((entry.text("name", needed=True), entry.text("value")) for entry in node.children("env")),
        provide_cluster_info=node.flag("provideClusterInfo"),
        install_hint=node.text("installHint"),
    )


def _impersonation(node: _Node) -> tuple[tuple[str, str], ...]:
    headers = [("Impersonate-User", node.text("as")), ("Impersonate-Uid", node.text("as-uid"))]
    headers += [("Impersonate-Group", group) for group in node.texts("as-groups")]
    return tuple((name, value) for name, value in headers if value)


def _extensions(node: _Node) -> dict[str, Any]:
    return {entry.text("name"): entry.get("extension") for entry in node.children("extensions")}


def _url(node: _Node, name: str, value: str) -> Any:
    try:
        parts = urlsplit(value)
        parts.port  # noqa: B018  looked at because only this says that a port is no number
    except ValueError as error:
        raise node.error(name, f'"{value}" is no URL: {error}') from None
    if not parts.hostname:
        raise node.error(name, f'"{value}" is no URL with a host')
    return parts


class _Node:
    """One map of the file, with what is needed to name its fields in errors."""

    def __init__(self, value: Any, source: str, folder: Path, place: str) -> None:
        self._value = value
        self._source = source
        self._place = place
        self.folder = folder

    def error(self, name: str, problem: str) -> KubeconfigError:
        return KubeconfigError(f"{self._source}: {self.at(name)}: {problem}")

    def at(self, name: str) -> str:
        return f"{self._place}.{name}" if self._place else name

    def must_be_map(self) -> None:
        if not isinstance(self._value, dict):
            where = f": {self._place}" if self._place else ""
            raise KubeconfigError(f"{self._source}{where}: must be a map of fields")

    def get(self, name: str) -> Any:
        return self._value.get(name)

    def text(self, name: str, *, needed: bool = False) -> str:
        value = self.get(name)
        if value is None or value == "":
            if needed:
                raise self.error(name, "is missing")
            return ""
        if not isinstance(value, str):
            raise self.error(name, "must be text")
        return value

    def texts(self, name: str) -> list[str]:
        values = self._list(name)
        if not all(isinstance(value, str) for value in values):
            raise self.error(name, "must be a list of texts")
        return values

    def flag(self, name: str) -> bool:
        value = self.get(name)
        if value is not None and not isinstance(value, bool):
            raise self.error(name, "must be true or false")
        return bool(value)

    def path(self, name: str) -> Path | None:
        value = self.text(name)
        return self.folder / value if value else None

    def data(self, name: str) -> bytes:
        try:
            return base64.b64decode("".join(self.text(name).split()), validate=True)
        except (binascii.Error, ValueError):
            raise self.error(name, "is not base64") from None

    def child(self, name: str, place: str = "") -> _Node:
        node = _Node(self.get(name), self._source, self.folder, place or self.at(name))
        node.must_be_map()
        return node

    def children(self, name: str) -> list[_Node]:
        nodes = [
            _Node(value, self._source, self.folder, f"{self.at(name)}[{index}]")
            for index, value in enumerate(self._list(name))
        ]
        for node in nodes:
            node.must_be_map()
        return nodes

    def named(self, name: str, wanted: str, inner: str, *, asked_by: str) -> _Node:
        """The `inner` map of the entry called `wanted` in a list of named entries."""
        for entry in self.children(name):
            if entry.text("name") == wanted:
                return entry.child(inner, f"{self.at(name)}[{wanted}].{inner}")
        raise KubeconfigError(f'{self._source}: {asked_by}: there is no "{wanted}" in {name}')

    def _list(self, name: str) -> list[Any]:
        value = self.get(name)
        if value is None:
            return []
        if not isinstance(value, list):
            raise self.error(name, "must be a list")
        return value
