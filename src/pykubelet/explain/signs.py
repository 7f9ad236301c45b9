"""Reading other programs' error texts: what kind of trouble a runtime, registry or network plugin reports.

Data first: each kind is a list of signs, searched in order, so that the special comes before the general. The texts
are those of containerd, CRI-O, runc, registries and CNI plugins. Pure.
"""

from __future__ import annotations

import re
from typing import Final

MOST_READ: Final = 1000
"""Letters of a text that are looked at. Registries, drivers and programs of strangers write them, and a search for
`a .* b` costs the square of their length."""

IMAGE_SIGNS: Final[tuple[tuple[str, re.Pattern[str]], ...]] = (
    (
        "denied",
        re.compile(
            r"\b401\b|\b403\b|unauthori[sz]ed|forbidden|access denied|requested access|authentication required|"
            r"no basic auth|insufficient_scope|authorization failed",
            re.IGNORECASE,
        ),
    ),
    (
        "missing",
        re.compile(
            r"\b404\b|not found|manifest unknown|name unknown|does not exist|repository .* not|no match for platform",
            re.IGNORECASE,
        ),
    ),
    (
        "unreachable",
        re.compile(
            r"no such host|connection refused|timed? ?out|deadline exceeded|i/o timeout|network is unreachable|"
            r"no route to host|server misbehaving|tls|x509|certificate|\beof\b|connection reset|registryunavailable|"
            r"unavailable|\b50[0234]\b|too many requests|\b429\b",
            re.IGNORECASE,
        ),
    ),
    ("disk", re.compile(r"no space left|disk quota", re.IGNORECASE)),
)


def image_trouble(text: str) -> str:
    """denied, missing, unreachable, disk, or other."""
    # A registry that hides what exists says denied and does-not-exist in one sentence: not logged in is the likelier.
    return next((kind for kind, sign in IMAGE_SIGNS if sign.search(text[:MOST_READ])), "other")


NETWORK_SIGN: Final = re.compile(
    r"\bcni\b|network for sandbox|setup network|failed to (find|load).*plugin|\bipam\b|failed to allocate|"
    r"no ip addresses|bridge|veth|netns|portmap|iptables",
    re.IGNORECASE,
)
COMMAND_SIGN: Final = re.compile(
    r'exec: .*(not found|no such file|permission denied)|executable file not found|"?exec"? format error|'
    r"\bstat .*: no such file or directory|no command specified",
    re.IGNORECASE,
)
OBJECT_SIGN: Final = re.compile(
    r"(?P<kind>configmap|secret|persistentvolumeclaim|serviceaccount) \"?(?P<name>[\w./-]+)\"? not found", re.IGNORECASE
)
"""As API servers and storage drivers say it; what this agent misses itself, its problems name."""


def is_network_trouble(text: str) -> bool:
    return bool(NETWORK_SIGN.search(text[:MOST_READ]))


def is_command_trouble(text: str) -> bool:
    return bool(COMMAND_SIGN.search(text[:MOST_READ]))


def missing_object(text: str) -> str:
    """`configmap web`; empty when nothing is said to be missing."""
    found = OBJECT_SIGN.search(text[:MOST_READ])
    return f"{found['kind'].lower()} {found['name']}" if found is not None else ""


EXIT_CODES: Final = {
    1: "the usual sign of an error in the program",
    2: "often a wrong option or a shell error",
    125: "the container could not be set up",
    126: "the command is there but cannot be run",
    127: "the command was not found",
    134: "it aborted itself (SIGABRT)",
    135: "bus error (SIGBUS)",
    136: "arithmetic error (SIGFPE)",
    137: "it was killed (SIGKILL)",
    139: "it touched memory that is not its own (SIGSEGV)",
    143: "it was asked to stop (SIGTERM)",
}


def exit_text(code: int) -> str:
    known = EXIT_CODES.get(code)
    if known is None and 128 < code < 160:
        known = f"ended by signal {code - 128}"
    return f"exit code {code}" + (f", {known}" if known else "")
