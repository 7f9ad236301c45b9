"""Which logins fit which image; every row was also put to the Go kubelet's functions."""

from __future__ import annotations

import time

import pytest

from pykubelet.images.keyring import Entry, Keyring, Login, is_docker_hub, key_of, matches


@pytest.mark.parametrize(
    ("pattern", "image", "expected"),
    [
        ("*.docker.io", "a.docker.io", True),
        ("*.docker.io", "docker.io", False),
        ("*.io:5000", "a.io:5000/x", True),
        ("*.io:5000", "a.io/x", False),
        ("a.io", "a.io:5000/x", False),
        ("a.io/x", "a.io/xy/z", True),
        ("a.io/x/", "a.io/x", False),
        ("a.io/x", "a.io/y", False),
        ("[::1]:5000", "[::1]:5000/a", True),
        ("a:b", "a:b", False),
        ("a*.io", "abc.io/q", True),
        ("a?.io", "ab.io/q", False),  # a question mark begins a query
        ("a.io:", "a.io/q", True),
        ("user@a.io", "a.io/q", True),
        ("a b.io", "a b.io", False),
        ("a.io/%41", "a.io/A", True),
        ("*", "localhost/x", True),
        ("*", "a.io/x", False),
        ("*.*", "a.io/x", True),
        ("a.io:*", "a.io:5/x", False),
        ("A.io", "a.io/x", False),
        ("a_b.io", "a_b.io/x", True),
        ("a.io\x00", "a.io/x", False),
    ],
)
def test_matching(pattern: str, image: str, expected: bool) -> None:
    assert matches(pattern, image) is expected


@pytest.mark.parametrize(
    ("location", "key"),
    [
        ("a.io", "a.io"),
        ("https://a.io", "a.io"),
        ("http://a.io:5000/", "a.io:5000"),
        ("https://index.docker.io/v1/", "index.docker.io"),
        ("https://a.io/v2/", "a.io"),
        ("https://a.io/v2/team", "a.io/team"),
        ("https://a.io/v1", "a.io/v1"),
        ("a.io/team/app", "a.io/team/app"),
        ("https://bad host/", None),
    ],
)
def test_keys(location: str, key: str | None) -> None:
    assert key_of(location) == key


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        ("busybox", True),
        ("library/busybox", True),
        ("docker.io/library/busybox", True),
        ("index.docker.io/a/b", True),
        ("a.io/b", False),
        ("localhost:5000/b", False),
        ("/b", False),
    ],
)
def test_docker_hub(image: str, expected: bool) -> None:
    assert is_docker_hub(image) is expected


def test_more_specific_keys_come_first_and_all_that_fit_are_given() -> None:
    ring = Keyring()
    ring.add({"a.io": Entry(username="host"), "a.io/team/app": Entry(username="app"), "*.io": Entry(username="glob")})
    ring.add({"https://a.io/v2/": Entry(username="second"), "a.io/team": Entry(username="team"), "b c": Entry()})
    assert [login.entry.username for login in ring.lookup("a.io/team/app")] == ["app", "team", "host", "second", "glob"]
    assert ring.lookup("b.com/x") == []
    assert ring.unusable == ["b c"]


def test_docker_hub_logins_serve_when_nothing_fits() -> None:
    ring = Keyring()
    ring.add({"https://index.docker.io/v1/": Entry(username="hub")})
    assert [login.entry.username for login in ring.lookup("docker.io/library/busybox")] == ["hub"]
    ring.add({"docker.io": Entry(username="exact")})
    assert [login.entry.username for login in ring.lookup("docker.io/library/busybox")] == ["exact"]


@pytest.mark.parametrize(
    ("entry", "fingerprint"),
    [
        (Entry(), "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"),
        (Entry(username="u", password="p"), "edbd57ca9372e64eb1c9070ecf3a049ac553596b0529acf034c7a71d4e618e88"),
        (
            Entry(username="ü\u2028", password='a<b>&"\\\n\t\x01\x7f\b\f', email="e@x"),
            "c7f0d44b8966b032489ddad3d0780bc882cb7af163e9462b9df82b1ea5eb7e77",
        ),
    ],
)
def test_fingerprints_are_those_of_the_go_kubelet(entry: Entry, fingerprint: str) -> None:
    assert Login(entry=entry).fingerprint == fingerprint


def test_a_login_does_not_show_its_password() -> None:
    assert "hidden" not in repr(Login(entry=Entry(username="u", password="hidden")))


@pytest.mark.parametrize(
    ("glob", "name", "expected"),
    [
        ("a*b*c", "abc", True),
        ("a*b*c", "a1b2c", True),
        ("a*b*c", "a1c2b", False),
        ("a*a", "a", False),
        ("*a*a*", "ba", False),
        ("*a*a*", "bada", True),
        ("ab*ba", "aba", False),
        ("**", "x", True),
        ("*ab", "aab", True),
        ("*" * 1000 + "x", "x", True),
    ],
)
def test_stars_stand_for_any_text(glob: str, name: str, expected: bool) -> None:
    assert matches(f"{glob}:5000", f"{name}:5000/x") is expected


def test_a_pattern_full_of_stars_costs_no_more_than_its_length() -> None:
    began = time.process_time()
    assert not matches("*a" * 60 + "*b:5000", "a" * 200 + ":5000/x")
    assert not matches("a" * 1_000_000 + "*", "a" * 200 + "/x")
    assert time.process_time() - began < 2.0
