"""The configuration of credential provider plugins: `--image-credential-provider-config`, a file or a folder of files.

Covers: reading, every rule with the file and field it is about, and that each plugin's program is there. All faults
are reported together as a SettingsError, which ends the agent: a node must be able to log in to its registries.
Does not cover: running plugins (provider.py).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from msgspec import Struct, field

from pykubelet.api.codec import ManifestError
from pykubelet.api.documents import load_yaml_documents
from pykubelet.api.times import TimeError, parse_duration
from pykubelet.api.validation.names import qualified_name
from pykubelet.images.keyring import locate
from pykubelet.settings.errors import SettingsError, hint

KIND: Final = "CredentialProviderConfig"
GROUP: Final = "kubelet.config.k8s.io"
PROTOCOL_GROUP: Final = "credentialprovider.kubelet.k8s.io"
VERSIONS: Final = ("v1", "v1alpha1", "v1beta1")
PROTOCOLS: Final = tuple(f"{PROTOCOL_GROUP}/{version}" for version in VERSIONS)
TOKEN_PROTOCOL: Final = f"{PROTOCOL_GROUP}/v1"
CACHE_TYPES: Final = ("ServiceAccount", "Token")
SUFFIXES: Final = (".json", ".yaml", ".yml")
MAX_FILE_BYTES: Final = 4 * 1024 * 1024

PROVIDER_FIELDS: Final = ("name", "matchImages", "defaultCacheDuration", "apiVersion", "args", "env")
TOKEN_FIELDS: Final = (
    "serviceAccountTokenAudience",
    "cacheType",
    "requireServiceAccount",
    "requiredServiceAccountAnnotationKeys",
    "optionalServiceAccountAnnotationKeys",
)


class TokenAttributes(Struct, frozen=True, kw_only=True):
    """The plugin wants a token of the pod's service account."""

    audience: str
    cache_type: str
    """Token: what it answers hangs on the token; ServiceAccount: only on the account."""
    require_account: bool
    required_annotations: tuple[str, ...] = ()
    optional_annotations: tuple[str, ...] = ()


class ProviderSpec(Struct, frozen=True, kw_only=True):
    name: str
    match_images: tuple[str, ...]
    default_cache_seconds: float
    api_version: str
    args: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    token: TokenAttributes | None = None


def load_providers(config: Path, bin_dir: Path, *, tokens: bool = True) -> list[ProviderSpec]:
    """Every plugin in the order of the configuration; `tokens`: the gate for tokenAttributes. Raises SettingsError."""
    problems: list[str] = []
    if not bin_dir.is_dir():
        problems.append(f"--image-credential-provider-bin-dir: {bin_dir}: no such folder")
    providers: list[ProviderSpec] = []
    seen: dict[str, Path] = {}
    for file in _files(config):
        for spec in _read_file(file, problems, tokens):
            if spec.name in seen:
                problems.append(f"{file}: providers: the name {spec.name} is also in {seen[spec.name]}")
            seen[spec.name] = file
            providers.append(spec)
            if bin_dir.is_dir() and (fault := _program_fault(bin_dir / spec.name)):
                problems.append(f"{file}: providers: {spec.name}: {fault}")
    if problems:
        raise SettingsError(problems)
    return providers


def config_hash(config: Path) -> str:
    """What upstream's metric shows of the configuration: a digest over the files, each with its length before it."""
    digest = hashlib.sha256()
    for file in _files(config):
        data = file.read_bytes()
        digest.update(len(data).to_bytes(8, "big") + data)
    return f"sha256:{digest.hexdigest()}"


def _files(config: Path) -> list[Path]:
    flag = "--image-credential-provider-config"
    try:
        if not config.is_dir():
            return [config]
        found = sorted(path for path in config.iterdir() if path.suffix in SUFFIXES and not path.is_dir())
    except OSError as error:
        raise SettingsError([f"{flag}: {config}: {error.strerror or error}"]) from None
    if not found:
        raise SettingsError([f"{flag}: {config}: the folder has no .json, .yaml or .yml file"])
    return found


def _program_fault(program: Path) -> str | None:
    if not program.exists():
        return f"the plugin's program {program} does not exist"
    if program.is_dir() or not os.access(program, os.X_OK):
        return f"the plugin's program {program} is not an executable file"
    return None


def _read_file(file: Path, problems: list[str], tokens: bool) -> list[ProviderSpec]:
    try:
        with file.open("rb") as opened:
            documents = load_yaml_documents(opened.read(MAX_FILE_BYTES + 1), max_bytes=MAX_FILE_BYTES)
    except OSError as error:
        problems.append(f"{file}: {error.strerror or error}")
        return []
    except ManifestError as error:
        problems.append(f"{file}: {error}")
        return []
    if len(documents) != 1 or not isinstance(documents[0], dict):
        problems.append(f"{file}: must hold one object of kind {KIND}")
        return []
    reader = _Reader(str(file), tokens)
    specs = reader.document(documents[0])
    problems.extend(reader.problems)
    return [] if reader.problems else specs


class _Reader(Struct):
    file: str
    tokens: bool
    problems: list[str] = field(default_factory=list)

    def fault(self, path: str, text: str) -> None:
        self.problems.append(f"{self.file}: {path}: {text}")

    def document(self, document: dict[str, Any]) -> list[ProviderSpec]:
        group, _, version = str(document.get("apiVersion", "")).partition("/")
        if group != GROUP or version not in VERSIONS:
            allowed = ", ".join(f"{GROUP}/{v}" for v in VERSIONS)
            self.fault("apiVersion", f"must be one of {allowed}, not {_shown(document.get('apiVersion'))}")
        if document.get("kind") != KIND:
            self.fault("kind", f"must be {KIND}, not {_shown(document.get('kind'))}")
        if self.problems:
            return []
        self.unknown("", document, ("apiVersion", "kind", "providers"))
        providers = document.get("providers")
        if not isinstance(providers, list) or not providers:
            self.fault("providers", "must list at least one provider")
            return []
        # tokenAttributes exists only in the newest form of the file.
        fields = (*PROVIDER_FIELDS, "tokenAttributes") if version == "v1" else PROVIDER_FIELDS
        specs: list[ProviderSpec] = []
        for index, raw in enumerate(providers):
            spec = self.provider(raw, f"providers[{index}]", fields)
            if spec is not None and any(spec.name == other.name for other in specs):
                self.fault(f"providers[{index}].name", f"duplicate: {spec.name}")
            elif spec is not None:
                specs.append(spec)
        return specs

    def provider(self, raw: object, path: str, fields: Sequence[str]) -> ProviderSpec | None:
        if not isinstance(raw, dict):
            self.fault(path, "must be an object")
            return None
        before = len(self.problems)
        self.unknown(f"{path}.", raw, fields)
        name = self.text(raw, path, "name")
        self.check_name(name, f"{path}.name")
        protocol = self.text(raw, path, "apiVersion")
        if protocol not in PROTOCOLS:
            self.fault(f"{path}.apiVersion", f"must be one of {', '.join(PROTOCOLS)}, not {_shown(protocol)}")
        images = self.texts(raw, path, "matchImages")
        if not images:
            self.fault(f"{path}.matchImages", "must list at least one pattern")
        for image in images:
            if locate(image) is None:
                self.fault(f"{path}.matchImages", f"{image!r} is no host and path")
        seconds = self.duration(raw, path)
        env = self.environment(raw.get("env"), f"{path}.env")
        token = self.token(raw.get("tokenAttributes"), f"{path}.tokenAttributes", protocol)
        args = self.texts(raw, path, "args")
        if len(self.problems) > before:
            return None
        return ProviderSpec(
            name=name,
            match_images=images,
            default_cache_seconds=seconds,
            api_version=protocol,
            args=args,
            env=env,
            token=token,
        )

    def token(self, raw: object, path: str, protocol: str) -> TokenAttributes | None:
        if raw is None:
            return None
        if not isinstance(raw, dict):
            self.fault(path, "must be an object")
            return None
        if not self.tokens:
            self.fault(path, "needs the feature gate KubeletServiceAccountTokenForCredentialProviders")
        if protocol != TOKEN_PROTOCOL:
            self.fault(path, f"is only supported with apiVersion {TOKEN_PROTOCOL}")
        self.unknown(f"{path}.", raw, TOKEN_FIELDS)
        audience = self.text(raw, path, "serviceAccountTokenAudience")
        if not audience:
            self.fault(f"{path}.serviceAccountTokenAudience", "is required")
        cache_type = self.text(raw, path, "cacheType")
        if cache_type not in CACHE_TYPES:
            self.fault(f"{path}.cacheType", f"must be one of {', '.join(CACHE_TYPES)}, not {_shown(cache_type)}")
        require = raw.get("requireServiceAccount")
        if not isinstance(require, bool):
            self.fault(f"{path}.requireServiceAccount", "is required and must be true or false")
        required = self.annotation_keys(raw, path, "requiredServiceAccountAnnotationKeys")
        optional = self.annotation_keys(raw, path, "optionalServiceAccountAnnotationKeys")
        if require is False and required:
            text = "cannot be set when requireServiceAccount is false"
            self.fault(f"{path}.requiredServiceAccountAnnotationKeys", text)
        if both := sorted(set(required) & set(optional)):
            self.fault(path, f"annotation keys cannot be both required and optional: {', '.join(both)}")
        return TokenAttributes(
            audience=audience,
            cache_type=cache_type,
            require_account=require is True,
            required_annotations=required,
            optional_annotations=optional,
        )

    def annotation_keys(self, raw: dict[str, Any], path: str, name: str) -> tuple[str, ...]:
        keys = self.texts(raw, path, name)
        for key in keys:
            if complaint := qualified_name(key.lower()):
                self.fault(f"{path}.{name}", f"{key}: {complaint}")
        for key in sorted({key for key in keys if keys.count(key) > 1}):
            self.fault(f"{path}.{name}", f"duplicate: {key}")
        return keys

    def check_name(self, name: str, path: str) -> None:
        rules: tuple[tuple[Callable[[str], bool], str], ...] = (
            (lambda n: not n, "is required"),
            (lambda n: "/" in n, "cannot contain '/'"),
            (lambda n: " " in n, "cannot contain spaces"),
            (lambda n: n in (".", ".."), "cannot be '.' or '..'"),
            (lambda n: "\0" in n, "cannot contain NUL"),
        )
        for broken, text in rules:
            if broken(name):
                self.fault(path, text)

    def duration(self, raw: dict[str, Any], path: str) -> float:
        value, path = raw.get("defaultCacheDuration"), f"{path}.defaultCacheDuration"
        if not isinstance(value, str):
            self.fault(path, "is required and must be a duration such as 12h or 0s")
            return 0.0
        try:
            seconds = parse_duration(value)
        except TimeError as error:
            self.fault(path, str(error))
            return 0.0
        if seconds < 0:
            self.fault(path, f"{value}: must be 0 or more")
        return seconds

    def environment(self, raw: object, path: str) -> tuple[tuple[str, str], ...]:
        found: list[tuple[str, str]] = []
        for index, item in enumerate(self.items(raw, path)):
            at = f"{path}[{index}]"
            if not isinstance(item, dict):
                self.fault(at, "must be an object")
                continue
            self.unknown(f"{at}.", item, ("name", "value"))
            found.append((self.text(item, at, "name"), self.text(item, at, "value")))
            if not found[-1][0] or "=" in found[-1][0] or "\0" in "".join(found[-1]):
                self.fault(f"{at}.name", "must be the name of an environment variable")
        return tuple(found)

    def text(self, raw: dict[str, Any], path: str, name: str) -> str:
        value = raw.get(name)
        if value is None:
            return ""
        if not isinstance(value, str):
            self.fault(f"{path}.{name}", "must be a string")
            return ""
        return value

    def texts(self, raw: dict[str, Any], path: str, name: str) -> tuple[str, ...]:
        items = self.items(raw.get(name), f"{path}.{name}")
        if not all(isinstance(item, str) for item in items):
            self.fault(f"{path}.{name}", "must be a list of strings")
            return ()
        return tuple(items)

    def items(self, raw: object, path: str) -> list[Any]:
        if raw is None:
            return []
        if not isinstance(raw, list):
            self.fault(path, "must be a list")
            return []
        return raw

    def unknown(self, prefix: str, raw: dict[Any, Any], known: Iterable[str]) -> None:
        names = tuple(known)
        for key in raw:
            if key not in names:
                self.fault(f"{prefix}{str(key)[:80]}", f"unknown field{hint(str(key), names)}")


def _shown(value: object) -> str:
    return repr(value[:80]) if isinstance(value, str) else "nothing" if value is None else repr(value)[:80]
