"""The command line: which flags exist, how one line of arguments is read by pflag's rules, and the text of `--help`.

The flags come from the schema, so a field and its flag cannot drift apart. Reading collects every fault and
every deprecation warning; nothing is printed here. Applying the values is load.py's work.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from msgspec import Struct, field

from pykubelet.settings.errors import SettingsError, hint
from pykubelet.settings.flag_forms import SECONDS, SWITCH, TEXT, FlagForm, plain_form
from pykubelet.settings.kinds import INT32, WrongValue
from pykubelet.settings.node_flags import NodeFlags
from pykubelet.settings.schema import all_settings, settings_of
from pykubelet.settings.settings import KUBERNETES_VERSION, is_same_release
from pykubelet.settings.without_effect import REASONS, by_reason, described

# Flags of configuration fields that Kubernetes means to keep; all others of them are deprecated.
KEPT_FLAGS = frozenset({"v", "vmodule", "log-flush-frequency", "provider-id", "fail-cgroupv1"})
DEPRECATED_NODE_FLAGS = frozenset(
    {
        "minimum-container-ttl-duration",
        "maximum-dead-containers-per-container",
        "maximum-dead-containers",
        "experimental-mounter-path",
        "experimental-allocatable-ignore-eviction",
    }
)

# Accepted so that old unit files start; without_effect.py says why they do nothing.
IGNORED_FLAGS: dict[str, FlagForm] = {
    "application-metrics-count-limit": plain_form(INT32),
    "boot-id-file": TEXT,
    "container-hints": TEXT,
    "containerd": TEXT,
    "containerd-namespace": TEXT,
    "enable-load-reader": SWITCH,
    "event-storage-age-limit": TEXT,
    "event-storage-event-limit": TEXT,
    "global-housekeeping-interval": SECONDS,
    "log-cadvisor-usage": SWITCH,
    "machine-id-file": TEXT,
    "storage-driver-buffer-duration": SECONDS,
    "storage-driver-db": TEXT,
    "storage-driver-host": TEXT,
    "storage-driver-password": TEXT,
    "storage-driver-secure": SWITCH,
    "storage-driver-table": TEXT,
    "storage-driver-user": TEXT,
}


def _parse_version(text: str, earlier: object) -> str:
    if text == "raw" or is_same_release(text):
        return text
    if text.startswith("v"):
        raise WrongValue(f"must be {KUBERNETES_VERSION}, with or without a suffix")
    return "true" if SWITCH.parse(text, None) else "false"


VERSION_FORM = FlagForm("version", _parse_version, without_value="true")


class Flag(Struct, frozen=True, kw_only=True):
    """One command-line flag."""

    name: str
    form: FlagForm
    group: str
    doc: str
    default: object = None
    shorthand: str = ""
    path: str = ""
    """Wire path of the configuration field the flag sets, "" for others."""
    attributes: tuple[str, ...] = ()
    """Where the value goes in KubeletConfig (with a path) or NodeFlags (without)."""
    deprecated: str = ""
    """What to do instead, completing "Flag --x has been deprecated, "."""


class ParsedFlags(Struct):
    """A parsed command line: the value of each flag that was given."""

    values: dict[str, Any] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    words: list[str] = field(default_factory=list)


def _node_flags() -> Iterator[Flag]:
    for attribute, info in settings_of(NodeFlags).values():
        form = info.flag_form if isinstance(info.flag_form, FlagForm) else plain_form(info.kind)
        yield Flag(
            name=info.flag,
            form=form,
            group="node",
            doc=described(info.doc, f"--{info.flag}"),
            default=info.default,
            attributes=(attribute,),
            deprecated="it will be removed in a future version" if info.flag in DEPRECATED_NODE_FLAGS else "",
        )


def _config_flags() -> Iterator[Flag]:
    for ref in all_settings():
        info = ref.setting
        if not info.flag:
            continue
        form = info.flag_form if isinstance(info.flag_form, FlagForm) else plain_form(info.kind)
        kept = info.flag in KEPT_FLAGS
        yield Flag(
            name=info.flag,
            form=form,
            group=ref.attributes[0],
            doc=described(info.doc, ref.path),
            default=info.legacy,
            shorthand="v" if info.flag == "v" else "",
            path=ref.path,
            attributes=ref.attributes,
            deprecated="" if kept else f"set {ref.path} in the --config file instead",
        )


@cache
def all_flags() -> dict[str, Flag]:
    """Every flag by its name."""
    flags = [
        Flag(name="help", shorthand="h", form=SWITCH, group="node", doc="Show this text.", default=False),
        Flag(
            name="version",
            form=VERSION_FORM,
            group="node",
            doc="Show the version; --version=raw shows all of it.",
            default="false",
        ),
        *_node_flags(),
        *_config_flags(),
    ]
    for name, form in IGNORED_FLAGS.items():
        flags.append(
            Flag(name=name, form=form, group="ignored", doc="", deprecated="it will be removed in a future version")
        )
    return {flag.name: flag for flag in flags}


@cache
def _shorthands() -> dict[str, Flag]:
    return {flag.shorthand: flag for flag in all_flags().values() if flag.shorthand}


def parse_flags(arguments: Sequence[str]) -> ParsedFlags:
    """Read a command line without the program's name; raises SettingsError with every fault."""
    parsed = ParsedFlags()
    waiting = list(reversed(arguments))
    while waiting:
        argument = waiting.pop()
        if argument == "--":
            parsed.words.extend(reversed(waiting))
            break
        if argument.startswith("--"):
            _long(parsed, argument, waiting)
        elif argument.startswith("-") and argument != "-":
            _short(parsed, argument, waiting)
        else:
            parsed.words.append(argument)
    # The value of an unknown flag looks like a word; the unknown flag is the fault worth naming.
    if parsed.words and not parsed.problems:
        parsed.problems.append(f"unknown command {_shown(parsed.words[0])}")
    if parsed.problems:
        raise SettingsError(parsed.problems)
    return parsed


def _long(parsed: ParsedFlags, argument: str, waiting: list[str]) -> None:
    name, has_value, text = argument[2:].partition("=")
    if not name or name.startswith("-"):
        parsed.problems.append(f"bad flag syntax: {_shown(argument)}")
        return
    flag = all_flags().get(name.replace("_", "-"))
    if flag is None:
        close = hint(name.replace("_", "-"), all_flags())
        parsed.problems.append(f"unknown flag: --{_shown(name)}{close.replace('mean ', 'mean --')}")
        return
    if not has_value:
        if flag.form.without_value:
            text = flag.form.without_value
        elif waiting:
            text = waiting.pop()
        else:
            parsed.problems.append(f"flag needs an argument: --{name}")
            return
    _take(parsed, flag, text, f"--{flag.name}")


def _short(parsed: ParsedFlags, argument: str, waiting: list[str]) -> None:
    """One or more one-letter flags: -h, -v2, -v=2, -v 2."""
    letters = argument[1:]
    while letters:
        flag = _shorthands().get(letters[0])
        if flag is None:
            letter = letters[0]
            parsed.problems.append(f"unknown shorthand flag: {_shown(letter)!r} in {_shown(argument)}")
            return
        shown, rest = f"-{letters[0]}", letters[1:]
        if rest.startswith("="):
            text, letters = rest[1:], ""
        elif flag.form.without_value:
            text, letters = flag.form.without_value, rest
        elif rest:
            text, letters = rest, ""
        elif waiting:
            text, letters = waiting.pop(), ""
        else:
            parsed.problems.append(f"flag needs an argument: {letters[0]!r} in {_shown(argument)}")
            return
        _take(parsed, flag, text, shown)


def _take(parsed: ParsedFlags, flag: Flag, text: str, shown: str) -> None:
    try:
        parsed.values[flag.name] = flag.form.parse(text, parsed.values.get(flag.name))
    except WrongValue as err:
        if flag.form.secret:
            parsed.problems.append(f'invalid argument for "{shown}" flag: expected {flag.form.name}')
            return
        parsed.problems.append(f'invalid argument "{_shown(text)}" for "{shown}" flag: {err}')
        return
    warning = f"Flag --{flag.name} has been deprecated, {flag.deprecated}"
    if flag.deprecated and warning not in parsed.warnings:
        parsed.warnings.append(warning)


def _shown(text: str) -> str:
    return text if len(text) <= 200 else text[:200] + "..."


WIDTH = 100
TITLES = {
    "node": "The agent and its node",
    "server": "HTTPS server, authentication, authorization",
    "sources": "Static pods and sync",
    "network": "Networking of pods",
    "runtime": "Container runtime",
    "images": "Images",
    "container_logs": "Container logs",
    "volumes": "Volumes",
    "cgroups": "Capacity and cgroups",
    "reservations": "Reserved resources",
    "managers": "CPU, memory and topology managers",
    "eviction": "Eviction",
    "process": "Feature gates and logging",
}


def help_text() -> str:
    """Usage, every flag, and what has no effect."""
    parts = [
        "pykubelet runs the pods of this machine: those of a Kubernetes cluster, of a folder, or both.",
        "",
        "Usage:",
        "  pykubelet [flags]              the node agent",
        "  pykubelet COMMAND [options]    commands for people; see pykubelet COMMAND --help",
        "",
        "Flags set a field of the configuration file where one is named; the flag wins over the file.",
    ]
    for group, title in TITLES.items():
        parts += ["", f"{title}:"]
        parts += [_entry(flag) for flag in sorted(_of(group), key=lambda flag: flag.name)]
    parts += ["", "Accepted, without effect:", *_without_effect()]
    return "\n".join(parts) + "\n"


def _without_effect() -> Iterator[str]:
    """Every field, flag and gate that changes nothing, by the reason."""
    for reason, names in by_reason(REASONS).items():
        text = ", ".join(names)
        yield textwrap.fill(text, WIDTH, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)
        yield f"          {reason}"


def _of(group: str) -> list[Flag]:
    return [flag for flag in all_flags().values() if flag.group == group]


def _entry(flag: Flag) -> str:
    long = f"    --{flag.name}" if flag.name != flag.shorthand else ""
    short = f"-{flag.shorthand}" if flag.shorthand else ""
    name = f"  {short},{long[3:]}" if short and long else f"  {short or '  '}{long}"
    text = flag.doc
    if flag.default not in (None, "", (), False) and flag.default != {} and flag.name != "version":
        text += f" (default {shown_default(flag)})"
    if flag.path:
        text += f" [{flag.path}]"
    indent = " " * 10
    lines = textwrap.wrap(text, WIDTH, initial_indent=indent, subsequent_indent=indent, break_long_words=False)
    word = "" if flag.form.without_value else f" {flag.form.name}"
    return "\n".join([f"{name}{word}", *lines])


def shown_default(flag: Flag) -> str:
    from pykubelet.api.times import format_duration

    if flag.form.name == "duration" and isinstance(flag.default, float):
        return format_duration(flag.default)
    if isinstance(flag.default, bool):
        return "true" if flag.default else "false"
    if isinstance(flag.default, tuple):
        return ",".join(str(part) for part in flag.default)
    return str(flag.default)
