"""Files of variables inside volumes (fileKeyRef): opening them safely and reading their strict syntax.

The file was written by a container of the pod, which may be hostile: symbolic links are followed only inside
the volume, anything but a regular file is refused, and size is bounded. The syntax is KEY='value' with single
quotes, values may span lines, `#` begins a comment.
"""

from __future__ import annotations

import errno
import logging
import os
import stat

from msgspec import Struct

from pykubelet.kit.files import reopen_checked
from pykubelet.model.errors import PykubeletError
from pykubelet.runtime.problems import ConfigProblem

logger = logging.getLogger(__name__)

MAX_BYTES = 1 << 20
MAX_LINKS = 40
_BLANKS = " \t"


class EnvFileProblem(PykubeletError):
    """The file cannot be read or does not follow the syntax; the message is for the log."""


class EnvFile(Struct, frozen=True, kw_only=True):
    path: str
    """As messages name it."""
    text: str = ""
    error: str = ""
    """Why it could not be read; told when a variable asks for it."""

    def value(self, key: str) -> str:
        """The variable's value; '' when the file does not have it."""
        try:
            if self.error:
                raise EnvFileProblem(self.error)
            return find_value(self.text, key)
        except EnvFileProblem as problem:
            logger.warning("cannot take %s from %s: %s", key, self.path, problem)
            raise ConfigProblem("couldn't parse env file") from problem


def find_value(text: str, key: str) -> str:
    """The value of the first assignment of `key`. What follows it is not judged, as upstream does not either."""
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    number = 0
    while number < len(lines):
        line = lines[number].removesuffix("\r").lstrip(_BLANKS)
        number += 1
        if not line or line.startswith("#"):
            continue
        name, equals, rest = line.partition("=")
        if not equals:
            raise EnvFileProblem(f"line {number}: missing '='")
        if not name or name != name.rstrip(_BLANKS):
            raise EnvFileProblem(f"line {number}: a name must stand directly before '='")
        if rest[:1] in (" ", "\t"):
            # What a shell makes of it: an empty value, and the rest is another word.
            if name == key:
                return ""
            continue
        if not rest.startswith("'"):
            raise EnvFileProblem(f"line {number}: the value must be in single quotes")
        value, number = _quoted(rest[1:], lines, number)
        if name == key:
            return value
    return ""


def _quoted(rest: str, lines: list[str], number: int) -> tuple[str, int]:
    """The text up to the closing quote, and the number of lines used so far."""
    first, parts = number, []
    while True:
        head, quote, tail = rest.partition("'")
        parts.append(head)
        if quote:
            tail = tail.lstrip(_BLANKS)
            if tail and not tail.startswith("#"):
                raise EnvFileProblem(f"line {number}: text after the closing quote")
            return "\n".join(parts), number
        if number >= len(lines):
            raise EnvFileProblem(f"line {first}: the quote is never closed")
        rest = lines[number].removesuffix("\r")
        number += 1


def read_env_file(root: str, path: str) -> EnvFile:
    """The file below `root`; trouble is kept in the result, for it only matters if a variable needs it."""
    shown = os.path.join(root, path.lstrip("/"))
    try:
        descriptor = open_beneath(root, path)
    except OSError as error:
        return EnvFile(path=shown, error=f"cannot open {shown}: {error.strerror}")
    try:
        content = _read(descriptor)
    except OSError as error:
        return EnvFile(path=shown, error=f"cannot read {shown}: {error.strerror}")
    finally:
        os.close(descriptor)
    if len(content) > MAX_BYTES:
        return EnvFile(path=shown, error=f"{shown} is larger than {MAX_BYTES} bytes")
    return EnvFile(path=shown, text=content.decode(errors="surrogateescape"))


def _read(descriptor: int) -> bytes:
    content = b""
    while len(content) <= MAX_BYTES and (more := os.read(descriptor, MAX_BYTES + 1 - len(content))):
        content += more
    return content


def open_beneath(root: str, path: str) -> int:
    """Open a file for reading as if `root` were the file system's root, whatever links the path goes through."""
    flags = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
    way = [os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)]
    todo = [part for part in reversed(path.split("/")) if part]
    links = 0
    try:
        while todo:
            part = todo.pop()
            if part == ".":
                continue
            if part == "..":
                if len(way) > 1:
                    os.close(way.pop())
                continue
            way.append(os.open(part, flags, dir_fd=way[-1]))
            if not stat.S_ISLNK(os.fstat(way[-1]).st_mode):
                continue
            links += 1
            if links > MAX_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), part)
            link = way.pop()
            try:
                target = os.readlink("", dir_fd=link)
            finally:
                os.close(link)
            if target.startswith("/"):
                while len(way) > 1:
                    os.close(way.pop())
            todo += [step for step in reversed(target.split("/")) if step]
        return reopen_checked(way[-1], path)
    finally:
        for descriptor in way:
            os.close(descriptor)
