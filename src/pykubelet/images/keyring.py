"""Registry logins: their origin, docker's files that hold them, and which of them fit an image.

The origin decides who may use an image that was pulled with a login (records.py). A key is `host[:port][/path]`,
perhaps with globs in the parts of the host: it fits an image of the same port, the same number of host parts, and a
path that begins with the key's. A damaged file is skipped as upstream does, and logged once; texts of errors never
quote the content. Does not cover: pull secrets and plugins (credentials.py); helpers named in a file are not run.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import logging
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

from msgspec import Struct, field

from pykubelet.kit.clock import Clock
from pykubelet.kit.host_calls import HostCallStuck, host_calls
from pykubelet.kit.limits import Once
from pykubelet.model.errors import PykubeletError
from pykubelet.wire import cri_pb2

logger = logging.getLogger(__name__)

# Go's JSON writes these as escapes; the hash is shared with other kubelets through the records on disk.
_ESCAPES = str.maketrans({c: f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"})


class SecretOrigin(Struct, frozen=True, kw_only=True, order=True):
    """The login was in this secret of the pod's namespace."""

    namespace: str
    name: str
    uid: str


class AccountOrigin(Struct, frozen=True, kw_only=True, order=True):
    """A plugin gave the login for a token of this service account."""

    namespace: str
    name: str
    uid: str


class Entry(Struct, frozen=True, kw_only=True):
    """User and password as a docker config or a plugin gives them."""

    username: str = ""
    password: str = ""
    email: str = ""

    def __repr__(self) -> str:
        """Without the password, which must not get into logs and assertion messages."""
        return f"Entry(username={self.username!r}, email={self.email!r})"


class Login(Struct, frozen=True, kw_only=True):
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


REMEMBERED_FOR: Final = 300.0
MAX_FILE_BYTES: Final = 10 * 1024 * 1024

DockerConfig = Mapping[str, Entry]
"""Location, as written -> login."""


class DockerConfigError(PykubeletError):
    """The text is no docker config; says what is wrong without quoting it."""


def read_config_json(text: bytes | str) -> dict[str, Entry]:
    """The logins of a `config.json`: its `auths`."""
    document = _object(_load(text), "")
    return read_entries(document.get("auths"), "auths.")


def read_dockercfg(text: bytes | str) -> dict[str, Entry]:
    """The logins of a `.dockercfg`, which is the map alone."""
    return read_entries(_load(text), "")


def read_entries(value: Any, prefix: str) -> dict[str, Entry]:
    return {location: _entry(raw, prefix + location) for location, raw in _object(value, prefix.rstrip(".")).items()}


def _load(text: bytes | str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise DockerConfigError("is not JSON") from None  # the parser's own words may quote a password


def _object(value: Any, path: str) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise DockerConfigError(f"{path or 'the document'} must be an object")
    return value


def _entry(raw: Any, path: str) -> Entry:
    fields = _object(raw, path)
    values = {name: fields.get(name) or "" for name in ("username", "password", "email", "auth")}
    for name, value in values.items():
        if not isinstance(value, str):
            raise DockerConfigError(f"{path}.{name} must be a string")
    if auth := values.pop("auth"):
        values["username"], values["password"] = _split_auth(auth, path)
    return Entry(**values)


def _split_auth(text: str, path: str) -> tuple[str, str]:
    """`base64(user:password)`, padded or not."""
    clean = text.translate({ord("\r"): None, ord("\n"): None})
    try:
        padding = "" if clean.strip().endswith("=") else "=" * (-len(clean) % 4)
        plain = base64.b64decode(clean + padding, validate=True).decode()
    except (binascii.Error, ValueError):
        raise DockerConfigError(f"{path}.auth must be base64(username:password)") from None
    username, colon, password = plain.partition(":")
    if not colon:
        raise DockerConfigError(f"{path}.auth must be base64(username:password)")
    return username, password


class NodeDockerConfig:
    """The logins every pod of this node may use, from the first usable file."""

    def __init__(self, *, root_dir: Path, working_dir: Path, home: Path | None, clock: Clock) -> None:
        folders = [root_dir, working_dir]
        at_home = [home / ".docker"] if home is not None else []
        self._places = [
            *(folder / "config.json" for folder in (*folders, *at_home, Path("/.docker"))),
            *(folder / ".dockercfg" for folder in (*folders, *([home] if home is not None else []), Path("/"))),
        ]
        self._clock = clock
        self._known: DockerConfig = {}
        self._read_at: float | None = None
        self._logged: Once[tuple[Path, str]] = Once()

    @property
    def places(self) -> Sequence[Path]:
        return self._places

    async def logins(self) -> DockerConfig:
        now = self._clock.monotonic()
        if self._read_at is None or now - self._read_at >= REMEMBERED_FOR:
            try:
                self._known = await host_calls.run(self._read, name="reading registry logins", key="all", within=10.0)
            except HostCallStuck as error:
                logger.warning("registry logins of the node cannot be read", extra={"problem": str(error)})
            self._read_at = now
        return self._known

    def _read(self) -> DockerConfig:
        for place in self._places:
            try:
                with place.open("rb") as file:
                    text = file.read(MAX_FILE_BYTES + 1)
                if len(text) > MAX_FILE_BYTES:
                    raise DockerConfigError("is too big")
                return read_config_json(text) if place.name == "config.json" else read_dockercfg(text)
            except FileNotFoundError:
                continue
            except OSError as problem:
                self._complain(place, problem.strerror or str(problem))
            except DockerConfigError as problem:
                self._complain(place, str(problem))
        return {}

    def _complain(self, place: Path, problem: str) -> None:
        if self._logged.is_new((place, problem)):
            logger.warning("registry logins cannot be read", extra={"path": str(place), "problem": problem})


DOCKER_HUB_KEY: Final = "index.docker.io"
DOCKER_HUB_HOSTS: Final = ("docker.io", "index.docker.io")

_HOST = re.compile(r"(?:\[[0-9a-fA-F:.%]+\]|[^\s:\[\]/\\^`{|}\"<>]*)(?::[0-9]*)?")


class Location(Struct, frozen=True):
    """A URL without its scheme, taken apart."""

    host: str
    """With the port, as written."""
    path: str

    @property
    def parts(self) -> tuple[list[str], str]:
        """The dot-separated parts of the host's name, and the port."""
        name, colon, port = self.host.rpartition(":")
        if not colon or (":" in name and not (name.startswith("[") and name.endswith("]"))):
            return self.host.split("."), ""
        return name.removeprefix("[").removesuffix("]").split("."), port


def locate(text: str) -> Location | None:
    """Take `host[:port]/path` apart; None for what is no URL."""
    if any(c < " " or c == "\x7f" for c in text):
        return None
    bare = re.split("[?#]", text, maxsplit=1)[0]
    authority, slash, path = bare.partition("/")
    host = authority.rpartition("@")[2]
    if not _HOST.fullmatch(host):
        return None
    return Location(host, unquote(slash + path))


def key_of(location: str) -> str | None:
    """The key of an entry of a docker config: no scheme, no API version; None when it is no URL."""
    for scheme in ("https://", "http://"):
        if location.startswith(scheme):
            location = location.removeprefix(scheme)
            break
    found = locate(location)
    if found is None:
        return None
    path = found.path
    if path.startswith(("/v1/", "/v2/")):
        path = path[3:]
    return found.host if path in ("", "/") else found.host + path


def matches(pattern: str, image: str) -> bool:
    """Whether a key, or an entry of a plugin's matchImages, covers an image name without tag and digest."""
    target = locate(image)
    return target is not None and _covers(pattern, target)


def _covers(pattern: str, target: Location) -> bool:
    wanted = locate(pattern)
    if wanted is None:
        return False
    globs, port = wanted.parts
    names, image_port = target.parts
    if port != image_port or len(globs) != len(names) or not target.path.startswith(wanted.path):
        return False
    return all(_fits(glob, name) for glob, name in zip(globs, names, strict=True))


def _fits(glob: str, name: str) -> bool:
    """Whether `name` is `glob` with any text for each star; in linear time, because pull secrets are
    untrusted input. A question mark cannot come here: it begins the query of a URL."""
    first, *rest = glob.split("*")
    if not rest:
        return glob == name
    *between, last = rest
    if len(glob) - len(rest) > len(name) or not name.startswith(first) or not name.endswith(last):
        return False
    position, end = len(first), len(name) - len(last)
    for part in between:  # the leftmost place leaves the most for the parts that follow
        found = name.find(part, position, end)
        if found < 0:
            return False
        position = found + len(part)
    return True


def is_docker_hub(image: str) -> bool:
    """Whether the name, as written or in full, means the default registry."""
    first, slash, _ = image.partition("/")
    if not first:
        return False
    return not slash or first in DOCKER_HUB_HOSTS or not any(c in first for c in ".:")


class Keyring(Struct):
    """Logins by key; the ones to try first come first."""

    unusable: list[str] = field(default_factory=list)
    """Locations that are no URLs and were left out."""
    _logins: dict[str, list[Login]] = field(default_factory=dict)

    def add(self, config: Mapping[str, Entry], origin: SecretOrigin | AccountOrigin | None = None) -> None:
        for location, entry in config.items():
            key = key_of(location)
            if key is None:
                self.unusable.append(location)
            else:
                self._logins.setdefault(key, []).append(Login(entry=entry, origin=origin))

    def lookup(self, image: str) -> list[Login]:
        """`image`: the full name without tag and digest."""
        target = locate(image)
        found = [
            login
            for key in sorted(self._logins, reverse=True)
            if target is not None and _covers(key, target)
            for login in self._logins[key]
        ]
        if not found and is_docker_hub(image):
            return list(self._logins.get(DOCKER_HUB_KEY, ()))
        return found
