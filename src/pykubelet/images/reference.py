"""Image references: the grammar registries and runtimes share, read strictly.

Covers: domain, path, tag and digest, the short names that mean docker.io, and the default tag. What is not
a reference is refused here, before any call, with the wording other tools use.
Does not cover: whether the image exists, nor image ids (the runtime's own).
"""

from __future__ import annotations

import re

from msgspec import Struct

DEFAULT_TAG = "latest"
DEFAULT_DOMAIN = "docker.io"
LEGACY_DOMAIN = "index.docker.io"
MAX_NAME = 255

_LABEL = r"[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?"
_HOST = rf"(?:{_LABEL}(?:\.{_LABEL})*|\[[a-fA-F0-9:]+\])"
_DOMAIN = rf"{_HOST}(?::[0-9]+)?"
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_REFERENCE = re.compile(
    rf"(?P<domain>{_DOMAIN})/(?P<path>{_PART}(?:/{_PART})*)"
    r"(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}))?"
    r"(?:@(?P<digest>[A-Za-z][A-Za-z0-9]*(?:[-_+.][A-Za-z][A-Za-z0-9]*)*:[0-9a-fA-F]{32,}))?"
)
_HEX_ID = re.compile(r"[a-f0-9]{64}")
_DIGEST_LENGTHS = {"sha256": 64, "sha384": 96, "sha512": 128}


class InvalidReference(ValueError):
    """The text is no image reference; the message says why."""


class Reference(Struct, frozen=True, kw_only=True):
    """A reference in full: short names have their domain and, on docker.io, their `library/`."""

    domain: str
    path: str
    tag: str = ""
    digest: str = ""

    @property
    def repository(self) -> str:
        return f"{self.domain}/{self.path}"

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        return f"{self.repository}{tag}{f'@{self.digest}' if self.digest else ''}"


def parse(text: str) -> Reference:
    """Read a reference as a person writes it, short or full; raises InvalidReference."""
    if _HEX_ID.fullmatch(text):
        raise InvalidReference(f"invalid repository name ({text}), cannot specify 64-byte hexadecimal strings")
    domain, remainder = _split_domain(text)
    name = re.split("[:@]", remainder, maxsplit=1)[0]
    if name != name.lower():
        raise InvalidReference(f"invalid reference format: repository name ({name}) must be lowercase")
    match = _REFERENCE.fullmatch(f"{domain}/{remainder}")
    if match is None:
        raise InvalidReference("invalid reference format")
    found = Reference(domain=match["domain"], path=match["path"], tag=match["tag"] or "", digest=match["digest"] or "")
    if len(found.repository) > MAX_NAME:
        raise InvalidReference(f"repository name must not be more than {MAX_NAME} characters")
    _check_digest(found.digest)
    return found


def with_default_tag(image: str) -> str:
    """The image as written, with `:latest` when it names neither tag nor digest; raises InvalidReference.

    The name stays as short as it was written: the runtime, not this agent, decides what it stands for.
    """
    found = parse(image)
    return image if found.tag or found.digest else f"{image}:{DEFAULT_TAG}"


def full_name(image: str) -> str:
    """The name as runtimes list it, `docker.io/library/busybox:latest` for `busybox`; what is no reference as it is."""
    try:
        found = parse(with_default_tag(image))
    except InvalidReference:
        return image
    return f"{found.repository}@{found.digest}" if found.digest else str(found)


def _split_domain(text: str) -> tuple[str, str]:
    """The first part is a domain if it has a dot, a port or capitals, or is localhost; else all is the path."""
    first, slash, rest = text.partition("/")
    if not slash or not (any(c in first for c in ".:") or first == "localhost" or first != first.lower()):
        first, rest = DEFAULT_DOMAIN, text
    if first == LEGACY_DOMAIN:
        first = DEFAULT_DOMAIN
    if first == DEFAULT_DOMAIN and "/" not in rest:
        rest = f"library/{rest}"
    return first, rest


def _check_digest(digest: str) -> None:
    if not digest:
        return
    algorithm, _, value = digest.partition(":")
    if algorithm not in _DIGEST_LENGTHS:
        raise InvalidReference("unsupported digest algorithm")
    if len(value) != _DIGEST_LENGTHS[algorithm]:
        raise InvalidReference("invalid checksum digest length")
    if value != value.lower():
        raise InvalidReference("invalid checksum digest format")
