"""What a pod may log in to a registry with, in the order to try: its pull secrets, the node's own logins, plugins.

Each of the three is sorted by itself, more specific keys first. A secret that cannot be read is reported by an event
and the pull goes on without it; a secret that is malformed fails the pull.
Does not cover: running plugins (provider.py), matching and reading files (keyring.py).
"""

from __future__ import annotations

import base64
import binascii
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Protocol

from pykubelet.api.types import Pod, Secret
from pykubelet.images.keyring import (
    DockerConfigError,
    Entry,
    Keyring,
    Login,
    NodeDockerConfig,
    SecretOrigin,
    read_config_json,
    read_dockercfg,
)
from pykubelet.images.provider import CredentialProvider
from pykubelet.images.reference import parse
from pykubelet.kit.host_calls import host_calls
from pykubelet.model.errors import PykubeletError
from pykubelet.model.events import EventRecorder
from pykubelet.model.pod import namespace_of, readable
from pykubelet.model.reasons import WARNING

logger = logging.getLogger(__name__)

SECRETS_WITHIN: Final = 30.0

# Type of a secret -> the key that holds the docker config, and how that is read.
FORMS: Final[dict[str, tuple[str, Callable[[bytes], dict[str, Entry]]]]] = {
    "kubernetes.io/dockerconfigjson": (".dockerconfigjson", read_config_json),
    "kubernetes.io/dockercfg": (".dockercfg", read_dockercfg),
}


class SecretReader(Protocol):
    async def secret(self, namespace: str, name: str) -> Secret | None:
        """None or PykubeletError when it cannot be had."""
        ...


class BadPullSecret(PykubeletError):
    """A pull secret holds no docker config. The text names the secret, never its content."""


class PullSecrets:
    """The secrets that spec.imagePullSecrets names; an event lists those that are missing.

    Without a reader (no API server) there are none: manifests there cannot name secrets.
    """

    def __init__(self, *, reader: SecretReader | None, events: EventRecorder) -> None:
        self._reader = reader
        self._events = events

    async def of(self, pod: Pod) -> Sequence[Secret]:
        if self._reader is None:
            return ()
        found: list[Secret] = []
        missing: list[str] = []
        # The API allows entries without a name, which mean nothing, and the same one many times.
        for name in dict.fromkeys(reference.name for reference in pod.spec.image_pull_secrets if reference.name):
            secret = await _read(self._reader, pod, name)
            if secret is None:
                missing.append(name)
            else:
                found.append(secret)
        if missing:
            text = f"Unable to retrieve some image pull secrets ({', '.join(missing)}); "
            text += "attempting to pull the image may not succeed."
            self._events.pod_event(pod, WARNING, "FailedToRetrieveImagePullSecret", text)
        return found


async def _read(reader: SecretReader, pod: Pod, name: str) -> Secret | None:
    try:
        return await reader.secret(namespace_of(pod), name)
    except PykubeletError as error:
        logger.info("pull secret cannot be read", extra={"pod": readable(pod), "name_text": name, "error": str(error)})
        return None


class RegistryCredentials:
    """All three places together."""

    def __init__(
        self, *, secrets: PullSecrets, node: NodeDockerConfig, plugins: Sequence[CredentialProvider] = ()
    ) -> None:
        self._secrets = secrets
        self._node = node
        self._plugins = plugins

    async def lookup(self, pod: Pod, image: str) -> Sequence[Login]:
        """Raises PykubeletError when a pull secret is malformed."""
        name = parse(image).repository
        node, plugins = Keyring(), Keyring()
        secrets = await self._secrets.of(pod)
        # A secret may hold a megabyte of keys, and a pod may name many secrets: others go on meanwhile.
        own: list[Login] = []
        if secrets:
            work = partial(_own_logins, secrets, name)
            own = await host_calls.run(work, name="reading pull secrets", within=SECRETS_WITHIN)
        node.add(await self._node.logins())
        for plugin in self._plugins:
            config, account = await plugin.provide(name, pod)
            plugins.add(config, account)
        return own + [login for ring in (node, plugins) for login in _usable(ring).lookup(name)]


def _own_logins(secrets: Sequence[Secret], name: str) -> list[Login]:
    ring = Keyring()
    for secret in secrets:
        ring.add(read_secret(secret), origin_of(secret))
    return _usable(ring).lookup(name)


def _usable(ring: Keyring) -> Keyring:
    for location in ring.unusable:
        logger.debug("registry login is left out: its location is no URL", extra={"location": location})
    return ring


def read_secret(secret: Secret) -> dict[str, Entry]:
    """The logins in a secret; none in one of another type."""
    key, read = FORMS.get(secret.type or "", ("", read_config_json))
    text = secret.data.get(key, "") if key else ""
    if not text:
        return {}
    try:
        return read(base64.b64decode(text, validate=True))
    except (DockerConfigError, binascii.Error) as problem:
        what = f"pull secret {secret.metadata.namespace or ''}/{secret.metadata.name or ''}: {key}"
        fault = str(problem) if isinstance(problem, DockerConfigError) else "is not base64"
        raise BadPullSecret(f"{what}: {fault}") from None


def origin_of(secret: Secret) -> SecretOrigin:
    meta = secret.metadata
    return SecretOrigin(uid=meta.uid or "", namespace=meta.namespace or "", name=meta.name or "")
