"""A credential provider plugin: a program that gives the logins for an image.

Covers: whether it is run at all, service account tokens for it, running it with a time limit, reading its response,
caching that per image, registry or for all, and sharing one run among callers. A failure means no logins and a
line in the log; neither the response nor a token ever gets there.
Does not cover: its configuration (provider_config.py), the order among other logins (credentials.py).
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from msgspec import Struct

from pykubelet.api.times import TimeError, parse_duration
from pykubelet.api.types import (
    BoundObjectReference,
    ObjectMeta,
    Pod,
    ServiceAccount,
    TokenRequest,
    TokenRequestSpec,
)
from pykubelet.clients.kube.port import KubeClient
from pykubelet.images.keyring import AccountOrigin, DockerConfig, Entry, matches
from pykubelet.images.provider_config import ProviderSpec, TokenAttributes
from pykubelet.kit.clock import Clock
from pykubelet.kit.metrics import Registry
from pykubelet.kit.programs import run_program
from pykubelet.kit.sharing import SingleFlight
from pykubelet.model.errors import PykubeletError
from pykubelet.model.pod import name_of, namespace_of, readable, uid_of

logger = logging.getLogger(__name__)


class TokenSource(Protocol):
    async def token(self, namespace: str, service_account: str, request: TokenRequest, /) -> TokenRequest:
        """A valid token, the one at hand while it is good. Raises PykubeletError."""
        ...


class ServiceAccounts:
    """Service accounts and tokens from the API server. The account is read anew each time: its annotations decide what
    a plugin gives. Tokens are bound to the pod and the account. Both raise PykubeletError."""

    def __init__(self, *, client: KubeClient, tokens: TokenSource) -> None:
        self._client = client
        self._tokens = tokens

    async def account(self, namespace: str, name: str) -> ServiceAccount:
        return await self._client.get(ServiceAccount, name, namespace)

    async def token(self, pod: Pod, account: ServiceAccount, audience: str) -> str:
        bound = BoundObjectReference(api_version="v1", kind="Pod", name=name_of(pod), uid=uid_of(pod))
        request = TokenRequest(
            metadata=ObjectMeta(uid=account.metadata.uid),
            spec=TokenRequestSpec(audiences=[audience], bound_object_ref=bound),
        )
        made = await self._tokens.token(namespace_of(pod), account.metadata.name or "", request)
        return made.status.token or ""


TIME_LIMIT: Final = 60.0
GLOBAL_KEY: Final = "<global>"
"""Cannot be the name of an image or registry."""
SHOWN_OF_STDERR: Final = 300

NOTHING: Final[tuple[DockerConfig, None]] = ({}, None)


class PluginProblem(PykubeletError):
    """The plugin gave no usable answer. The text holds nothing that it printed on standard output."""


class Programs(Protocol):
    async def run(self, command: Sequence[str], *, env: Mapping[str, str], stdin: bytes, seconds: float) -> bytes:
        """What the program wrote to standard output; `env` is added to the agent's. Raises PluginProblem."""
        ...


class _Identity(Struct, frozen=True, kw_only=True):
    """Whose logins are requested; all empty when the plugin works without service accounts."""

    origin: AccountOrigin | None = None
    token: str = ""
    annotations: tuple[tuple[str, str], ...] = ()
    cache_key: tuple[object, ...] = ()

    @property
    def flight_key(self) -> tuple[object, ...]:
        return (hashlib.sha256(self.token.encode()).digest(), self.annotations) if self.token else ()


class Answer(Struct, frozen=True, kw_only=True):
    cache_key_type: str
    cache_seconds: float | None
    """None: the configured default."""
    logins: DockerConfig


class _Kept(Struct, frozen=True):
    logins: DockerConfig
    until: float


class CredentialProvider:
    def __init__(
        self,
        spec: ProviderSpec,
        *,
        bin_dir: Path,
        programs: Programs,
        clock: Clock,
        metrics: Registry,
        accounts: ServiceAccounts | None = None,
    ) -> None:
        self._spec = spec
        self._program = str(bin_dir / spec.name)
        self._programs = programs
        self._accounts = accounts
        self._clock = clock
        self._kept: dict[tuple[object, ...], _Kept] = {}
        self._runs: SingleFlight[Answer] = SingleFlight()
        self._seconds = metrics.histogram(
            "kubelet_credential_provider_plugin_duration", "Seconds a credential plugin took.", ("plugin_name",)
        )
        self._errors = metrics.counter(
            "kubelet_credential_provider_plugin_errors_total",
            "Runs of credential plugins that failed.",
            ("plugin_name",),
        )

    async def provide(self, image: str, pod: Pod) -> tuple[DockerConfig, AccountOrigin | None]:
        """Logins for an image, without tag and digest, and the service account they hang on. Never fails."""
        if not any(matches(pattern, image) for pattern in self._spec.match_images):
            return NOTHING
        try:
            identity = await self._identity(pod)
            if identity is None:
                return NOTHING
            return await self._logins(image, identity), identity.origin
        except PykubeletError as problem:
            logger.error(
                "no registry logins from the plugin",
                extra={"plugin": self._spec.name, "image": image, "pod": readable(pod), "error": str(problem)},
            )
            return NOTHING

    # --- service accounts -----------------------------------------------------------------------

    async def _identity(self, pod: Pod) -> _Identity | None:
        """None: this pod does not take part in what the plugin is for."""
        wanted, name = self._spec.token, pod.spec.service_account_name or ""
        if wanted is None or (not name and not wanted.require_account):
            return _Identity()
        if not name:
            return None
        if self._accounts is None:
            raise PluginProblem("service account tokens come from an API server, and this agent has none")
        account = await self._accounts.account(namespace_of(pod), name)
        held = account.metadata.annotations
        missing = [key for key in wanted.required_annotations if key not in held]
        if missing:  # the way in which accounts choose to take part, so no trouble
            logger.debug(
                "service account lacks annotations of the plugin",
                extra={"plugin": self._spec.name, "account": name, "missing": missing},
            )
            return None
        token = await self._accounts.token(pod, account, wanted.audience)
        keys = (*wanted.required_annotations, *wanted.optional_annotations)
        annotations = tuple(sorted((key, held[key]) for key in keys if key in held))
        origin = AccountOrigin(namespace=namespace_of(pod), name=name, uid=account.metadata.uid or "")
        return _Identity(
            origin=origin,
            token=token,
            annotations=annotations,
            cache_key=_account_key(wanted, origin, annotations, token),
        )

    # --- answers --------------------------------------------------------------------------------

    async def _logins(self, image: str, identity: _Identity) -> DockerConfig:
        now = self._clock.monotonic()
        for base in (image, _registry(image), GLOBAL_KEY):
            kept = self._kept.get((base, identity.cache_key))
            if kept is not None and now <= kept.until:
                return kept.logins
        answer = await self._runs.run((image, identity.flight_key), lambda: self._ask(image, identity))
        self._refuse_echo(answer, identity)
        base = {"Image": image, "Registry": _registry(image), "Global": GLOBAL_KEY}[answer.cache_key_type]
        seconds = self._spec.default_cache_seconds if answer.cache_seconds is None else answer.cache_seconds
        if seconds > 0:
            now = self._clock.monotonic()
            self._kept = {key: kept for key, kept in self._kept.items() if now <= kept.until}
            self._kept[base, identity.cache_key] = _Kept(answer.logins, now + seconds)
        return answer.logins

    def _refuse_echo(self, answer: Answer, identity: _Identity) -> None:
        """A token as password ends with the token, so it must not be kept for the whole account."""
        wanted = self._spec.token
        if wanted is None or wanted.cache_type == "Token" or not identity.token:
            return
        if any(entry.password == identity.token for entry in answer.logins.values()):
            raise PluginProblem("it gave the service account token as password, which needs cacheType Token")

    async def _ask(self, image: str, identity: _Identity) -> Answer:
        request: dict[str, Any] = {
            "kind": "CredentialProviderRequest",
            "apiVersion": self._spec.api_version,
            "image": image,
        }
        if identity.token:
            request["serviceAccountToken"] = identity.token
        if identity.annotations:
            request["serviceAccountAnnotations"] = dict(identity.annotations)
        begun = self._clock.monotonic()
        try:
            printed = await self._programs.run(
                [self._program, *self._spec.args],
                env=dict(self._spec.env),
                stdin=json.dumps(request).encode() + b"\n",
                seconds=TIME_LIMIT,
            )
        except PluginProblem as problem:
            self._errors.inc(self._spec.name)
            text = str(problem)
            raise PluginProblem(text.replace(identity.token, "<masked>") if identity.token else text) from None
        finally:
            self._seconds.observe(self._clock.monotonic() - begun, self._spec.name)
        return read_answer(printed, self._spec.api_version)


def _registry(image: str) -> str:
    return image.partition("/")[0]


def _account_key(
    wanted: TokenAttributes, origin: AccountOrigin, annotations: tuple[tuple[str, str], ...], token: str
) -> tuple[object, ...]:
    per_token = (hashlib.sha256(token.encode()).digest(),) if wanted.cache_type == "Token" else ()
    return (origin, annotations, *per_token)


def read_answer(printed: bytes, api_version: str) -> Answer:
    """What a plugin printed, read strictly; raises PluginProblem that quotes none of it."""
    try:
        answer = json.loads(printed)
    except (ValueError, RecursionError):
        raise PluginProblem("its answer is not JSON") from None
    if not isinstance(answer, dict):
        raise PluginProblem("its answer is not an object")
    if answer.get("apiVersion") != api_version:
        raise PluginProblem(f"its answer has another apiVersion than {api_version}")
    if answer.get("kind") != "CredentialProviderResponse":
        raise PluginProblem("its answer is not of kind CredentialProviderResponse")
    if answer.keys() - {"apiVersion", "kind", "cacheKeyType", "cacheDuration", "auth"}:
        raise PluginProblem("its answer has unknown fields")
    cache_key_type = answer.get("cacheKeyType")
    if cache_key_type not in ("Image", "Registry", "Global"):
        raise PluginProblem("cacheKeyType of its answer must be Image, Registry or Global")
    return Answer(
        cache_key_type=cache_key_type,
        cache_seconds=_cache_seconds(answer.get("cacheDuration")),
        logins=_read_auth(answer.get("auth")),
    )


def _cache_seconds(value: object) -> float | None:
    if value is None:
        return None
    try:
        return parse_duration(value if isinstance(value, str) else "")
    except TimeError:
        raise PluginProblem("cacheDuration of its answer is no duration such as 10m") from None


def _read_auth(value: object) -> dict[str, Entry]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise PluginProblem("auth of its answer is not an object")
    found: dict[str, Entry] = {}
    for pattern, login in value.items():
        if not isinstance(login, dict) or login.keys() - {"username", "password"}:
            raise PluginProblem("an entry of auth of its answer is not {username, password}")
        username, password = login.get("username") or "", login.get("password") or ""
        if not isinstance(username, str) or not isinstance(password, str):
            raise PluginProblem("username and password of its answer must be strings")
        found[pattern] = Entry(username=username, password=password)
    return found


class HostPrograms:
    """Runs the programs of the plugin folder on this machine."""

    async def run(self, command: Sequence[str], *, env: Mapping[str, str], stdin: bytes, seconds: float) -> bytes:
        try:
            finished = await run_program(command, env={**os.environ, **env}, stdin=stdin, seconds=seconds)
        except TimeoutError:
            raise PluginProblem(f"{command[0]} did not answer within {seconds:g} s") from None
        except OSError as error:
            raise PluginProblem(f"{command[0]} cannot be run: {error.strerror or error}") from None
        if finished.status != 0:
            complaint = finished.complaint(SHOWN_OF_STDERR)
            raise PluginProblem(f"{command[0]} ended with status {finished.status}: {complaint}")
        return finished.out
