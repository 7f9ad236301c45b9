"""Docker's login files: both forms, bad ones, and where a node finds them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pykubelet.images.keyring import DockerConfigError, Entry, NodeDockerConfig, read_config_json, read_dockercfg
from pykubelet.kit.clock import LoopClock


@pytest.mark.parametrize(
    ("raw", "entry"),
    [
        ({"username": "u", "password": "p", "email": "e"}, Entry(username="u", password="p", email="e")),
        ({"auth": "dTpwOnE="}, Entry(username="u", password="p:q")),
        ({"auth": "dTpwOnE"}, Entry(username="u", password="p:q")),
        (
            {"auth": "dTpw", "username": "x", "password": "y", "email": "e"},
            Entry(username="u", password="p", email="e"),
        ),
        ({}, Entry()),
        (None, Entry()),
        ({"credsStore": "x"}, Entry()),
    ],
)
def test_entries(raw: object, entry: Entry) -> None:
    assert read_config_json(json.dumps({"auths": {"a.io": raw}, "HttpHeaders": {"A": "b"}})) == {"a.io": entry}
    assert read_dockercfg(json.dumps({"a.io": raw})) == {"a.io": entry}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("hidden", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("[]", "the document must be an object"),
        ('{"auths": []}', "auths must be an object"),
        ('{"auths": {"a.io": "hidden"}}', "auths.a.io must be an object"),
        ('{"auths": {"a.io": {"password": 1}}}', "auths.a.io.password must be a string"),
        ('{"auths": {"a.io": {"auth": "hidden!"}}}', "auths.a.io.auth must be base64(username:password)"),
        ('{"auths": {"a.io": {"auth": "aGlkZGVu"}}}', "auths.a.io.auth must be base64(username:password)"),
    ],
)
def test_bad_ones_are_refused_without_quoting_them(text: str, problem: str) -> None:
    with pytest.raises(DockerConfigError) as caught:
        read_config_json(text)
    assert str(caught.value) == problem


def a_file(path: Path, user: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    entries = {"a.io": {"username": user}}
    path.write_text(json.dumps({"auths": entries} if path.name == "config.json" else entries))


async def test_the_first_usable_file_counts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    root, work, home = tmp_path / "root", tmp_path / "work", tmp_path / "home"
    order = [root / "config.json", work / "config.json", home / ".docker" / "config.json"]
    order += [root / ".dockercfg", work / ".dockercfg", home / ".dockercfg"]
    for number, path in reversed(list(enumerate(order))):
        a_file(path, f"user{number}")
        found = await NodeDockerConfig(root_dir=root, working_dir=work, home=home, clock=LoopClock()).logins()
        assert found == {"a.io": Entry(username=f"user{number}")}
    order[0].write_text("{ hidden")
    order[1].unlink()
    order[1].mkdir()
    config = NodeDockerConfig(root_dir=root, working_dir=work, home=home, clock=LoopClock())
    assert await config.logins() == {"a.io": Entry(username="user2")}
    assert [r.__dict__["problem"] for r in caplog.records] == ["is not JSON", "Is a directory"]
    assert "hidden" not in caplog.text


async def test_remembered_for_five_minutes(tmp_path: Path) -> None:
    clock = LoopClock()
    config = NodeDockerConfig(root_dir=tmp_path, working_dir=tmp_path, home=None, clock=clock)
    assert await config.logins() == {}
    a_file(tmp_path / "config.json", "late")
    await clock.sleep(299)
    assert await config.logins() == {}
    await clock.sleep(1)
    assert await config.logins() == {"a.io": Entry(username="late")}
