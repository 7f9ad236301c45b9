"""Docker's files of registry logins: `config.json` and the older `.dockercfg`, and the node's own one.

Covers: reading both forms, where a node keeps them, and remembering them for five minutes. A file that is damaged
is skipped as upstream does, but says so once. Texts of errors never quote the content.
Does not cover: which entry fits an image (credentials.py); credential helpers named in a file are not run.
"""

from __future__ import annotations

import base64
import binascii
import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pykubelet.images.login import Entry
from pykubelet.kit.clock import Clock
from pykubelet.kit.host_calls import HostCallStuck, host_calls
from pykubelet.kit.limits import Once
from pykubelet.model.errors import PykubeletError

logger = logging.getLogger(__name__)

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
