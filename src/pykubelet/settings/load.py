"""From a command line to settings: flags over drop-ins over the main file over defaults.

Covers: finding and reading YAML and JSON files with their apiVersion and kind, the RFC 7386 merge, and the order of
precedence. `load_settings` returns settings and warnings, or a text to print (--help, --version), or raises
SettingsError with every fault. Never logs, never exits. Does not cover: the fields inside a file (decode.py).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from pykubelet.api.codec import ManifestError
from pykubelet.api.documents import load_yaml_documents
from pykubelet.settings.decode import Origin, decode_config, default_config, encode_config
from pykubelet.settings.errors import SettingsError, printable
from pykubelet.settings.flags import ParsedFlags, all_flags, help_text, parse_flags
from pykubelet.settings.gates import Gates
from pykubelet.settings.kinds import PATH, Setting, describe
from pykubelet.settings.node_flags import IPAddress, NodeFlags, parse_node_ips
from pykubelet.settings.schema import (
    API_VERSION,
    KIND,
    KubeletConfig,
    all_settings,
    settings_by_path,
    settings_of,
    value_at,
    with_value,
)
from pykubelet.settings.settings import KUBERNETES_VERSION, raw_version_text, read_environment, version_text
from pykubelet.settings.settings import Settings as Settings
from pykubelet.settings.validate import config_problems, flag_problems
from pykubelet.settings.without_effect import FIELDS, FLAGS, LEFTOVER_FLAGS, warning

MAX_NAMED = 20
"""Unknown fields of one file that a warning names; the rest is counted."""
# Far more than any configuration; a device or a wrong file must not fill the memory.
MAX_FILE_BYTES = 4 * 1024 * 1024
DROP_IN_SUFFIX = ".conf"

ReadFile = Callable[[str], bytes]


def read_file(path: str) -> bytes:
    """The file's bytes; one byte over the limit at most, so that the loader can refuse it."""
    with open(path, "rb") as file:
        return file.read(MAX_FILE_BYTES + 1)


def find_drop_ins(folder: str) -> list[str]:
    """Every file below the folder: entries by name, sub-folders in their place. Links are not descended."""
    try:
        return list(_walk(folder))
    except OSError as err:
        raise SettingsError([f"--config-dir: {err.filename or folder}: {err.strerror or err}"]) from err
    except ValueError as err:  # a NUL byte in the path
        raise SettingsError([f"--config-dir: {folder!r}: {err}"]) from err


def _walk(folder: str) -> Iterator[str]:
    with os.scandir(folder) as entries:
        found = sorted(entries, key=lambda entry: os.fsencode(entry.name))
    for entry in found:
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(entry.path)
        else:
            yield entry.path


def is_drop_in(path: str) -> bool:
    """Whether the extension is exactly .conf, as Go counts extensions: `.conf` itself has it too."""
    return os.path.basename(path).endswith(DROP_IN_SUFFIX)


def load_document(path: str, read: ReadFile) -> dict[str, Any]:
    """The KubeletConfiguration in a file, without apiVersion and kind; raises SettingsError."""
    try:
        data = read(path)
        documents = load_yaml_documents(data, max_bytes=MAX_FILE_BYTES)
    except ManifestError as err:
        raise SettingsError([f"{path}: {err}"]) from err
    except OSError as err:
        raise SettingsError([f"{path}: {err.strerror or err}"]) from err
    except ValueError as err:
        raise SettingsError([f"{path!r}: {err}"]) from err
    if not documents:
        raise SettingsError([f"{path}: the file is empty, expected a {KIND}"])
    if len(documents) > 1:
        raise SettingsError([f"{path}: has {len(documents)} documents, expected one {KIND}"])
    document = documents[0]
    if not isinstance(document, dict):
        raise SettingsError([f"{path}: must be an object of kind {KIND}, not {describe(document)}"])
    faults = [
        f"{path}: {key}: must be {expected}, not {_shown(document.get(key))}"
        for key, expected in (("apiVersion", API_VERSION), ("kind", KIND))
        if document.get(key) != expected
    ]
    if faults:
        raise SettingsError(faults)
    return {key: value for key, value in document.items() if key not in ("apiVersion", "kind")}


def _shown(value: object) -> str:
    return repr(value[:80]) if isinstance(value, str) else describe(value)


def merge_patch(target: Any, patch: Any) -> Any:
    """RFC 7386: objects merge, null deletes, everything else replaces. Neither argument is changed."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge_patch(merged.get(key), value)
    return merged


def without_nulls(patch: Any) -> Any:
    """The patch as a plain object, to check its fields by themselves."""
    return merge_patch({}, patch)


DEPRECATED_FIELDS = ("iptablesMasqueradeBit", "iptablesDropBit", "streamingConnectionIdleTimeout")
"""As Kubernetes marks them; each warns where a file has it."""


class LoadedSettings(Struct, frozen=True, kw_only=True):
    settings: Settings
    warnings: tuple[str, ...]
    """Deprecations and things left out, one sentence each, for the log."""


class PrintAndExit(Struct, frozen=True):
    """The command line requests a text only; print it and exit with status 0."""

    text: str


def load_settings(
    arguments: Sequence[str],
    *,
    environ: Mapping[str, str],
    folder: str = "",
    read: ReadFile = read_file,
    list_drop_ins: Callable[[str], list[str]] = find_drop_ins,
) -> LoadedSettings | PrintAndExit:
    """Read a command line (without the program's name) and all it refers to.

    `folder` is what relative paths of flags count from; "" is the working folder.
    """
    parsed = parse_flags(arguments)
    if parsed.values.get("help"):
        return PrintAndExit(help_text())
    version = parsed.values.get("version", "false")
    if version in ("true", "raw"):
        return PrintAndExit((version_text() if version == "true" else raw_version_text()) + "\n")

    flags = _node_flags(parsed, folder)
    environment, environment_faults = read_environment(environ, process_id=os.getpid())
    gates = Gates(parsed.values.get("feature-gates", {}))
    faults = flag_problems(flags) + environment_faults
    node_ips, warnings = _node_ips(flags, faults)
    if flags.bootstrap_kubeconfig and flags.standalone:
        warnings.append("--bootstrap-kubeconfig has no effect without --kubeconfig")

    # A cluster's files may be written for a newer kubelet; without a cluster a person wrote them, and can mend them.
    sources = _Sources(read=read, list_drop_ins=list_drop_ins, gates=gates, lenient=not flags.standalone)
    try:
        config = _apply_flags(sources.load(flags.config, flags.config_dir), parsed, flags, folder)
    except SettingsError as err:
        raise SettingsError([*faults, *err.problems]) from err
    faults += config_problems(config)
    if faults:
        raise SettingsError(dict.fromkeys(faults))
    final_gates = Gates(config.process.feature_gates)
    settings = Settings(
        config=config,
        flags=flags,
        gates=final_gates,
        environment=environment,
        node_ips=node_ips,
        kubernetes_version=version if version.startswith("v") else KUBERNETES_VERSION,
    )
    vain = warning([*_in_vain(config, flags, parsed), *final_gates.in_vain()])
    warnings = [*parsed.warnings, *warnings, *sources.warnings, *filter(None, [vain]), *final_gates.warnings()]
    return LoadedSettings(settings=settings, warnings=tuple(map(printable, warnings)))


def _node_ips(flags: NodeFlags, faults: list[str]) -> tuple[tuple[IPAddress, ...], list[str]]:
    try:
        return parse_node_ips(flags.node_ip)
    except SettingsError as err:
        faults += err.problems
        return (), []


def _in_vain(config: KubeletConfig, flags: NodeFlags, parsed: ParsedFlags) -> list[str]:
    """The chosen fields and flags that change nothing here."""
    refs = [ref for ref in all_settings() if ref.path in FIELDS and "[]" not in ref.path]
    found = [ref.path for ref in refs if _differs(ref.setting, value_at(config, ref.attributes))]
    own = settings_of(NodeFlags).values()
    found += [
        f"--{info.flag}" for name, info in own if f"--{info.flag}" in FLAGS and _differs(info, getattr(flags, name))
    ]
    return found + [name for name in LEFTOVER_FLAGS if name.removeprefix("--") in parsed.values]


def _differs(info: Setting, value: object) -> bool:
    return value not in (info.default, info.legacy)


class _Sources(Struct):
    """The files of one start: the main file and the drop-ins."""

    read: ReadFile
    list_drop_ins: Callable[[str], list[str]]
    gates: Gates
    lenient: bool = False
    """Whether unknown fields are left out with a warning."""
    warnings: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def load(self, main: str, drop_in_folder: str) -> KubeletConfig:
        config = self._main(main) if main else default_config(Origin.FLAGS_ONLY)
        patches = [self._patch(path) for path in self._drop_ins(drop_in_folder)] if drop_in_folder else []
        if self.problems or config is None:
            raise SettingsError(self.problems)
        return self._merged(config, patches) if drop_in_folder else config

    def _main(self, path: str) -> KubeletConfig | None:
        return self._decode(path, self._document(path), Origin.MAIN_FILE, os.path.dirname(path))

    def _document(self, path: str) -> dict[str, Any]:
        try:
            document = load_document(path, self.read)
        except SettingsError as err:
            self.problems += err.problems
            return {}
        self.warnings += [
            f"{path}: {name} is deprecated" for name in DEPRECATED_FIELDS if document.get(name) not in (None, 0, "0s")
        ]
        return document

    def _decode(self, path: str, document: dict[str, Any], origin: Origin, folder: str = "") -> KubeletConfig | None:
        unknown: list[str] | None = [] if self.lenient else None
        config, problems = decode_config(document, origin=origin, gates=self.gates, folder=folder, unknown=unknown)
        self.problems += [f"{path}: {problem}" for problem in problems]
        if unknown:
            self.warnings.append(f"{path}: {_left_out(unknown)}")
        return config

    def _drop_ins(self, folder: str) -> list[str]:
        try:
            found = self.list_drop_ins(folder)
        except SettingsError as err:
            self.problems += err.problems
            return []
        self.warnings += [
            f"--config-dir: {path} is skipped, its name does not end in .conf" for path in found if not is_drop_in(path)
        ]
        return [path for path in found if is_drop_in(path)]

    def _patch(self, path: str) -> dict[str, Any]:
        patch = self._document(path)
        # By itself first, so that a fault names the file it is in.
        self._decode(path, without_nulls(patch), Origin.MERGED)
        return patch

    def _merged(self, config: KubeletConfig, patches: list[dict[str, Any]]) -> KubeletConfig:
        merged: Any = encode_config(config, full=True)
        for patch in patches:
            merged = merge_patch(merged, patch)
        # Unknown fields were judged in their files.
        result, problems = decode_config(merged, origin=Origin.MERGED, gates=self.gates, unknown=[])
        if result is None:
            raise SettingsError([f"--config-dir: {problem}" for problem in problems])
        return result


def _left_out(unknown: list[str]) -> str:
    """The sentence about fields that are left out."""
    more = f" and {len(unknown) - MAX_NAMED} more" if len(unknown) > MAX_NAMED else ""
    release = KUBERNETES_VERSION.rpartition(".")[0]
    return f"left out, for a kubelet {release} does not know them: {', '.join(unknown[:MAX_NAMED])}{more}"


def _absolute(path: str, folder: str) -> str:
    """Relative paths of flags count from the working folder at start, even if that changes later."""
    return os.path.abspath(os.path.join(folder, path)) if path else path


def _node_flags(parsed: ParsedFlags, folder: str) -> NodeFlags:
    given: dict[str, Any] = {}
    for attribute, info in settings_of(NodeFlags).values():
        if info.flag in parsed.values:
            value = parsed.values[info.flag]
            given[attribute] = _absolute(value, folder) if info.kind is PATH else value
    return NodeFlags(**given)


def _apply_flags(config: KubeletConfig, parsed: ParsedFlags, flags: NodeFlags, folder: str) -> KubeletConfig:
    """Put every given flag over the configuration; feature gates join those of the files."""
    for name, value in parsed.values.items():
        flag = all_flags()[name]
        if not flag.path:
            continue
        if name == "feature-gates":
            value = {**config.process.feature_gates, **value}
        elif settings_by_path()[flag.path].setting.kind is PATH:
            value = _absolute(value, folder)
        config = with_value(config, flag.attributes, value)
    if flags.seccomp_default:
        config = replace(config, runtime=replace(config.runtime, seccomp_default=True))
    return config
