"""The human commands. Each is imported only when it is asked for."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

Command = Callable[[Sequence[str]], int]


def _check(arguments: Sequence[str]) -> int:
    from pykubelet.cli.check import run_check

    if not arguments or arguments[0] in ("-h", "--help"):
        print("usage: pykubelet check FILE…\n\nSay what is wrong with pod manifests, one line a problem.")
        return 0 if arguments else 2
    return run_check(arguments, sys.stdout)


def _up(arguments: Sequence[str]) -> int:
    from pykubelet.cli.up import run_up

    return run_up(arguments)


COMMANDS: dict[str, tuple[str, Command]] = {
    "check": ("say what is wrong with pod manifests", _check),
    "up": ("run pods from files on this machine", _up),
}


def run_command(arguments: Sequence[str]) -> int:
    word, *rest = arguments
    if word in ("help", "--help"):
        sys.stdout.write(usage())
        return 0
    if word not in COMMANDS:
        print(f"unknown command {word}", file=sys.stderr)
        sys.stderr.write(usage())
        return 2
    return COMMANDS[word][1](rest)


def usage() -> str:
    lines = ["usage: pykubelet COMMAND …   (or kubelet flags: pykubelet --config FILE …)", ""]
    lines += [f"  {name:10} {what}" for name, (what, _) in COMMANDS.items()]
    return "\n".join(lines) + "\n"
