"""The text of `--help`, made from the flags.

Groups follow the schema; deprecated flags of fields are listed too, since they work.
Does not cover the human commands (cli/).
"""

from __future__ import annotations

import textwrap

from pykubelet.settings.flags import Flag, all_flags

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
    """Usage and every flag that has an effect."""
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
    return "\n".join(parts) + "\n"


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
