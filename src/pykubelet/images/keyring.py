"""Which logins fit an image. Pure.

A key is `host[:port][/path]`, perhaps with globs in the parts of the host: it fits an image of the same port, the
same number of host parts, and a path that begins with the key's. More specific keys come first.
Does not cover: where keys and logins come from.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import unquote

from msgspec import Struct, field

from pykubelet.images.login import AccountOrigin, Entry, Login, SecretOrigin

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
    """Whether `name` is `glob` with any text for each star; in linear time, for whoever writes a pull secret is a
    stranger. A question mark cannot come here: it begins the query of a URL."""
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
