"""What the end of an exec means, and which ports are meant."""

from __future__ import annotations

import click
import pytest

from pykubelet.cli.errors import CommandFailed
from pykubelet.cli.streams import exit_status, parse_ports


def test_exit_status() -> None:
    assert exit_status(b"") == 0
    assert exit_status(b'{"metadata":{},"status":"Success"}') == 0
    said = b'{"status":"Failure","reason":"NonZeroExitCode","details":{"causes":[{"reason":"ExitCode","message":"7"}]}}'
    assert exit_status(said) == 7
    with pytest.raises(CommandFailed, match="no such file"):
        exit_status(b'{"status":"Failure","reason":"InternalError","message":"exec: no such file"}')
    with pytest.raises(CommandFailed, match="plain words"):
        exit_status(b"plain words")


def test_ports() -> None:
    assert (parse_ports("80"), parse_ports("8080:80"), parse_ports(":80")) == ((80, 80), (8080, 80), (0, 80))
    for bad in ("x", "1:2:x", "0", "70000", "80:"):
        with pytest.raises(click.BadParameter):
            parse_ports(bad)
