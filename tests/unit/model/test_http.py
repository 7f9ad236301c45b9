"""Requests made from what a pod's probe or hook says."""

from __future__ import annotations

import pytest

from pykubelet.api.types import ContainerPort, HTTPGetAction, HTTPHeader
from pykubelet.model.http import BadRequest, get_request, go_duration, request_target, resolve_port

PORTS = [ContainerPort(name="web", container_port=8080), ContainerPort(container_port=9000)]


@pytest.mark.parametrize(
    ("path", "target"),
    [
        ("/healthz", "/healthz"),
        ("healthz", "/healthz"),
        ("", "/"),
        ("/a?b=c&d=%20", "/a?b=c&d=%20"),
        ("/a?b=c d", "/a?b=c%20d"),
        ("/a b", "/a%20b"),
        ("/a%20b", "/a%20b"),
        ("/50%", "/50%25"),
        ("/a#frag", "/a"),
        ("?q=1", "/?q=1"),
        ("//other/x", "/x"),
        ("http://other/x?y=z", "/x?y=z"),
        ("/ü", "/%C3%BC"),
        ("/a\r\nX-Evil: 1", "/a%0D%0AX-Evil:%201"),
    ],
)
def test_path_becomes_a_request_target(path: str, target: str) -> None:
    assert request_target(path) == target


@pytest.mark.parametrize(("port", "number"), [(80, 80), ("web", 8080), ("81", 81), (65535, 65535)])
def test_port_by_number_or_name(port: int | str, number: int) -> None:
    assert resolve_port(port, PORTS) == number


@pytest.mark.parametrize(
    ("port", "text"),
    [
        ("nope", "neither a named port"),
        (0, "invalid port number: 0"),
        (70000, "invalid port number: 70000"),
        (None, "neither a named port"),
        ("-1", "neither a named port"),
    ],
)
def test_bad_port_is_told(port: int | str | None, text: str) -> None:
    with pytest.raises(BadRequest, match=text):
        resolve_port(port, PORTS)


def headers(*pairs: tuple[str, str]) -> list[HTTPHeader]:
    return [HTTPHeader(name=name, value=value) for name, value in pairs]


def test_defaults_are_the_pod_address_http_and_two_headers() -> None:
    request = get_request(HTTPGetAction(port=80, path="/x"), PORTS, "10.0.0.1", "probe")
    assert request.url == "http://10.0.0.1:80/x"
    assert request.headers == (("User-Agent", "kube-probe/1.36"), ("Accept", "*/*"))


def test_given_headers_replace_defaults_and_keep_their_order() -> None:
    given = headers(("X-B", "2"), ("accept", "text/plain"), ("X-A", "1"), ("X-B", "3"), ("X-Empty", ""))
    request = get_request(HTTPGetAction(port=80, http_headers=given), PORTS, "10.0.0.1", "lifecycle")
    assert request.headers == (
        ("User-Agent", "kube-lifecycle/1.36"),
        ("X-B", "2"),
        ("accept", "text/plain"),
        ("X-A", "1"),
        ("X-B", "3"),
        ("X-Empty", ""),
    )


def test_given_and_empty_removes_a_default() -> None:
    given = headers(("Accept", ""), ("User-Agent", ""))
    assert get_request(HTTPGetAction(port=80, http_headers=given), PORTS, "10.0.0.1", "probe").headers == ()


def test_ipv6_host_and_scheme_in_capitals() -> None:
    request = get_request(HTTPGetAction(port="web", host="[fd00::1]", scheme="HTTPS"), PORTS, "", "probe")
    assert request.url == "https://[fd00::1]:8080/"


@pytest.mark.parametrize("pair", [("X Y", "1"), ("", "1"), ("X", "a\r\nY: b"), ("X\n", "1")])
def test_headers_that_would_forge_others_are_refused(pair: tuple[str, str]) -> None:
    with pytest.raises(BadRequest, match="invalid header field"):
        get_request(HTTPGetAction(port=80, http_headers=headers(pair)), PORTS, "10.0.0.1", "probe")


def test_a_pod_without_address_cannot_be_asked() -> None:
    with pytest.raises(BadRequest, match="no address"):
        get_request(HTTPGetAction(port=80), PORTS, "", "probe")


@pytest.mark.parametrize(("seconds", "text"), [(1, "1s"), (59, "59s"), (60, "1m0s"), (90, "1m30s"), (3600, "1h0m0s")])
def test_durations_read_as_in_go(seconds: int, text: str) -> None:
    assert go_duration(seconds) == text


def test_nothing_that_a_server_sends_us_to_is_kept() -> None:
    assert not hasattr(request_target, "cache_info")
