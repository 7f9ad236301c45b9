"""The id range that a host set aside for pods."""

from __future__ import annotations

import pytest

from pykubelet.clients.host.process import parse_subids
from pykubelet.model.errors import PykubeletError


def test_the_single_line_is_read() -> None:
    assert parse_subids("0: kubelet 65536 7208960\n") == (65536, 7208960)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0: kubelet 65536",
        "0: kubelet x 65536",
        "0: kubelet -1 65536",
        "0: kubelet 65536 65536\n1: kubelet 131072 65536",
        "0: kubelet 65536 4294967296",
    ],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(PykubeletError, match="getsubids"):
        parse_subids(text)
