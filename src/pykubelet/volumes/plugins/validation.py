"""Checks fields of volume sources that become arguments of a host program or parts of a path.

The API server accepts nearly any text in these fields. A value that begins with `-` would be an option of the program,
one with `/` would lead to another folder, one with a line break would add a line to a file that the program writes.
Errors name the field.
"""

from __future__ import annotations

import re

from pykubelet.volumes.errors import VolumeProblem

LONGEST = 255
_ODD = re.compile(r"[\x00-\x20\x7f]")
_FS_TYPE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]*")
_LABEL = re.compile(r"[A-Za-z0-9_.:,-]*")


def word(value: str | None, field: str, *, spaces: bool = False) -> str:
    """A value that is one argument and one component of a path; `spaces` allows blanks in it."""
    text = value or ""
    odd = _ODD.search(text.replace(" ", "") if spaces else text)
    if not text or text in (".", "..") or text.startswith("-") or "/" in text or odd or len(text) > LONGEST:
        raise VolumeProblem(
            f"{field} {text[:LONGEST]!r} cannot be used: it must be a word of at most {LONGEST} characters that does "
            "not begin with '-' and has neither '/' nor control characters"
        )
    return text


def host(value: str | None, field: str) -> str:
    """The name or address of a server, with which the source of a mount may begin."""
    text = word(value, field)
    if "=" in text:  # mount(8) takes LABEL=x and UUID=x for disks
        raise VolumeProblem(f"{field} {text!r} is not the name or address of a server")
    return text


def line(value: str, field: str) -> str:
    """A value that a program writes as one line of a file."""
    if not value.isprintable():
        raise VolumeProblem(f"{field} has characters that cannot be printed")
    return value


def fs_type(value: str | None, field: str) -> str:
    """A filesystem on a disk; ext4 by default.

    It becomes part of a program's name (`mkfs.<type>`), and `mount -t fuse.<program>` would run that program.
    """
    text = value or "ext4"
    if not _FS_TYPE.fullmatch(text) or len(text) > LONGEST or text == "fuse" or text.startswith("fuse."):
        raise VolumeProblem(f"{field} {text[:LONGEST]!r} is not a filesystem that a disk can hold")
    return text


def label(value: str) -> str:
    """An SELinux label inside a mount option, where a quote would begin another option."""
    if not _LABEL.fullmatch(value):
        raise VolumeProblem(f"seLinuxOptions make {value[:LONGEST]!r}, which is not a label")
    return value
