"""The reference grammar: what is accepted, what it means, what is refused with which words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pykubelet.images.reference import InvalidReference, parse, with_default_tag

SHA = "sha256:" + "a" * 64


@pytest.mark.parametrize(
    ("text", "full"),
    [
        ("busybox", "docker.io/library/busybox"),
        ("busybox:1.36", "docker.io/library/busybox:1.36"),
        ("library/busybox", "docker.io/library/busybox"),
        ("docker.io/busybox", "docker.io/library/busybox"),
        ("index.docker.io/busybox", "docker.io/library/busybox"),
        ("grafana/loki:2", "docker.io/grafana/loki:2"),
        ("localhost/app", "localhost/app"),
        ("localhost:5000/app:v1", "localhost:5000/app:v1"),
        ("registry.k8s.io/pause:3.10", "registry.k8s.io/pause:3.10"),
        ("127.0.0.1:5000/a/b/c", "127.0.0.1:5000/a/b/c"),
        ("[::1]:5000/app", "[::1]:5000/app"),
        ("UPPER/app", "UPPER/app"),  # capitals can only be a host
        (f"busybox@{SHA}", f"docker.io/library/busybox@{SHA}"),
        (f"r.io/a:v1@{SHA}", f"r.io/a:v1@{SHA}"),
        ("r.io/a_b__c.d-e--f:v_1.2-3", "r.io/a_b__c.d-e--f:v_1.2-3"),
    ],
)
def test_accepted(text: str, full: str) -> None:
    assert str(parse(text)) == full


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "invalid reference format"),
        (":latest", "invalid reference format"),
        ("busybox:", "invalid reference format"),
        ("busybox@", "invalid reference format"),
        ("/busybox", "invalid reference format"),
        ("busybox/", "invalid reference format"),
        ("a//b", "invalid reference format"),
        ("https://r.io/app", "invalid reference format"),
        ("images:ubuntu/24.04", "invalid reference format"),
        ("r.io/app:v1:v2", "invalid reference format"),
        ("r.io/-app", "invalid reference format"),
        ("r.io/a..b", "invalid reference format"),
        ("r.io/a___b", "invalid reference format"),
        ("bus ybox", "invalid reference format"),
        ("busybox\n", "invalid reference format"),
        ("busybox:" + "t" * 129, "invalid reference format"),
        ("Busybox", r"repository name \(library/Busybox\) must be lowercase"),
        ("r.io/App:v1", r"repository name \(App\) must be lowercase"),
        ("a" * 64, "cannot specify 64-byte hexadecimal strings"),
        ("r.io/" + "b" * 256, "must not be more than 255 characters"),
        ("r.io/a@md5:" + "a" * 32, "unsupported digest algorithm"),
        ("r.io/a@sha256:" + "a" * 63, "invalid checksum digest length"),
        ("r.io/a@sha256:" + "A" * 64, "invalid checksum digest format"),
        ("r.io/a@sha256:abc", "invalid reference format"),
    ],
)
def test_refused(text: str, why: str) -> None:
    with pytest.raises(InvalidReference, match=why):
        parse(text)


@pytest.mark.parametrize(
    ("text", "tagged"),
    [
        ("busybox", "busybox:latest"),
        ("localhost:5000/app", "localhost:5000/app:latest"),
        ("busybox:1", "busybox:1"),
        (f"busybox@{SHA}", f"busybox@{SHA}"),
    ],
)
def test_default_tag_keeps_the_name_as_written(text: str, tagged: str) -> None:
    assert with_default_tag(text) == tagged


@given(st.text(max_size=80))
def test_any_text_is_a_reference_or_refused(text: str) -> None:
    try:
        found = parse(text)
    except InvalidReference:
        return
    assert parse(str(found)) == found
