"""The three places logins come from, their order, and secrets that are missing or bad."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from pykubelet.api.types import Pod, Secret
from pykubelet.images.credentials import BadPullSecret, PullSecrets, RegistryCredentials
from pykubelet.images.keyring import AccountOrigin, DockerConfig, Entry, NodeDockerConfig, SecretOrigin
from pykubelet.kit.clock import LoopClock
from pykubelet.model.errors import ApiDown
from tests.fakes.recorded_events import RecordedEvents
from tests.unit.images.making import a_pulling_pod, a_secret, raw_secret


class Store:
    def __init__(self, *secrets: Secret) -> None:
        self.secrets = {secret.metadata.name: secret for secret in secrets}

    async def secret(self, namespace: str, name: str) -> Secret | None:
        assert namespace == "default"
        if name == "unreachable":
            raise ApiDown("no answer")
        return self.secrets.get(name)


class Plugin:
    def __init__(self, logins: DockerConfig, account: AccountOrigin | None = None) -> None:
        self.answer = (logins, account)
        self.requested: list[str] = []

    async def provide(self, image: str, pod: Pod) -> tuple[DockerConfig, AccountOrigin | None]:
        self.requested.append(image)
        return self.answer


def credentials(
    folder: Path, *secrets: Secret, plugins: Sequence[Plugin] = (), events: RecordedEvents | None = None
) -> RegistryCredentials:
    return RegistryCredentials(
        secrets=PullSecrets(reader=Store(*secrets), events=events or RecordedEvents()),
        node=NodeDockerConfig(root_dir=folder, working_dir=folder, home=None, clock=LoopClock()),
        plugins=plugins,
    )


async def test_secrets_then_the_node_then_plugins(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"auths": {"r.io/team/app": {"username": "node"}}}))
    account = AccountOrigin(namespace="default", name="acc", uid="1")
    first, second = Plugin({"r.io": Entry(username="p1")}), Plugin({"r.io/team": Entry(username="p2")}, account)
    one = a_secret("one", {"r.io": {"username": "s1"}, "other.io": {"username": "no"}})
    two = a_secret("two", {"r.io/team": {"username": "s2"}}, form="dockercfg")
    found = await credentials(tmp_path, one, two, plugins=[first, second]).lookup(
        a_pulling_pod(secrets=("one", "two")), "r.io/team/app:v1"
    )
    assert [login.entry.username for login in found] == ["s2", "s1", "node", "p2", "p1"]
    assert [login.origin for login in found] == [
        SecretOrigin(namespace="default", name="two", uid="uid-two"),
        SecretOrigin(namespace="default", name="one", uid="uid-one"),
        None,
        account,
        None,
    ]
    assert first.requested == ["r.io/team/app"]


async def test_short_names_mean_docker_hub(tmp_path: Path) -> None:
    hub = a_secret("hub", {"https://index.docker.io/v1/": {"username": "hub"}})
    found = await credentials(tmp_path, hub).lookup(a_pulling_pod(secrets=("hub",)), "busybox:1")
    assert [login.entry.username for login in found] == ["hub"]


async def test_missing_secrets_are_told_and_done_without(tmp_path: Path) -> None:
    events = RecordedEvents()
    there = a_secret("there", {"r.io": {"username": "u"}})
    found = await credentials(tmp_path, there, events=events).lookup(
        a_pulling_pod(secrets=("gone", "", "there", "unreachable")), "r.io/a:1"
    )
    assert [login.entry.username for login in found] == ["u"]
    text = "Unable to retrieve some image pull secrets (gone, unreachable); "
    text += "attempting to pull the image may not succeed."
    assert events.pods == [("FailedToRetrieveImagePullSecret", text)]


async def test_secrets_of_other_types_are_ignored(tmp_path: Path) -> None:
    opaque = raw_secret("opaque", b"{", type_="Opaque")
    assert await credentials(tmp_path, opaque).lookup(a_pulling_pod(secrets=("opaque",)), "r.io/a:1") == []


@pytest.mark.parametrize(
    ("secret", "said"),
    [
        (raw_secret("bad", b'{"hidden'), "pull secret default/bad: .dockerconfigjson: is not JSON"),
        (
            raw_secret("bad", b'{"r.io": {"auth": "hidden"}}', form="dockercfg"),
            "pull secret default/bad: .dockercfg: r.io.auth must be base64(username:password)",
        ),
    ],
)
async def test_a_malformed_secret_fails_the_pull_without_being_quoted(
    tmp_path: Path, secret: Secret, said: str
) -> None:
    with pytest.raises(BadPullSecret) as caught:
        await credentials(tmp_path, secret).lookup(a_pulling_pod(secrets=("bad",)), "r.io/a:1")
    assert str(caught.value) == said


async def test_without_an_api_server_there_are_no_secrets() -> None:
    assert await PullSecrets(reader=None, events=RecordedEvents()).of(a_pulling_pod(secrets=("x",))) == ()


async def test_a_secret_named_many_times_is_read_once(tmp_path: Path) -> None:
    store = Store(a_secret("there", {"r.io": {"username": "u"}}))
    secrets = PullSecrets(reader=store, events=RecordedEvents())
    assert [s.metadata.name for s in await secrets.of(a_pulling_pod(secrets=("there",) * 1000))] == ["there"]
