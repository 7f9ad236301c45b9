"""Credential plugins: when they run, what is remembered, service accounts, and trouble that leaks nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from pykubelet.api.types import ObjectMeta, Pod, ServiceAccount
from pykubelet.images.keyring import AccountOrigin, Entry
from pykubelet.images.provider import (
    CredentialProvider,
    HostPrograms,
    PluginProblem,
    ServiceAccounts,
    read_answer,
)
from pykubelet.images.provider_config import ProviderSpec, TokenAttributes
from pykubelet.kit.clock import Clock, LoopClock
from pykubelet.kit.metrics import Registry
from pykubelet.kit.tasks import TaskSet
from pykubelet.model.errors import ApiNotFound
from tests.unit.images.making import a_pulling_pod

V1 = "credentialprovider.kubelet.k8s.io/v1"


def an_answer(**changes: Any) -> dict[str, Any]:
    auth = {"r.io": {"username": "u", "password": "p"}}
    answer = {"kind": "CredentialProviderResponse", "apiVersion": V1, "cacheKeyType": "Registry", "auth": auth}
    return {key: value for key, value in (answer | changes).items() if value is not None}


class Programs:
    """Answers as told and remembers what it was asked."""

    def __init__(self, clock: Clock, *, takes: float = 0.0, **answer: Any) -> None:
        self.clock = clock
        self.takes = takes
        self.answer: dict[str, Any] | Exception = an_answer(**answer)
        self.requests: list[dict[str, Any]] = []
        self.commands: list[tuple[list[str], dict[str, str]]] = []

    async def run(self, command: Sequence[str], *, env: Mapping[str, str], stdin: bytes, seconds: float) -> bytes:
        assert seconds == 60.0
        self.commands.append((list(command), dict(env)))
        self.requests.append(json.loads(stdin))
        await self.clock.sleep(self.takes)
        if isinstance(self.answer, Exception):
            raise self.answer
        return json.dumps(self.answer).encode()


class Accounts:
    def __init__(self, **annotations: str) -> None:
        self.annotations = annotations
        self.count = 0

    async def account(self, namespace: str, name: str) -> ServiceAccount:
        if name == "gone":
            raise ApiNotFound("serviceaccounts gone not found")
        return ServiceAccount(metadata=ObjectMeta(name=name, uid=f"uid-{name}", annotations=self.annotations))

    async def token(self, pod: Pod, account: ServiceAccount, audience: str) -> str:
        assert audience == "aud"
        self.count += 1
        return f"secret-token-{pod.metadata.name}"


class ProviderFixture:
    def __init__(
        self,
        *,
        default_cache: float = 0.0,
        token: TokenAttributes | None = None,
        accounts: ServiceAccounts | None = None,
        takes: float = 0.0,
        **answer: Any,
    ) -> None:
        self.clock = LoopClock()
        self.programs = Programs(self.clock, takes=takes, **answer)
        self.metrics = Registry()
        spec = ProviderSpec(
            name="plug",
            match_images=("*.io", "r.com/team"),
            default_cache_seconds=default_cache,
            api_version=V1,
            args=("-v",),
            env=(("A", "b"),),
            token=token,
        )
        self.provider = CredentialProvider(
            spec,
            bin_dir=Path("/plugins"),
            programs=self.programs,
            clock=self.clock,
            metrics=self.metrics,
            accounts=accounts,
        )

    async def users(self, image: str = "r.io/a", pod: Pod | None = None) -> list[str]:
        logins, _ = await self.provider.provide(image, pod or a_pulling_pod())
        return [entry.username for entry in logins.values()]

    @property
    def runs(self) -> int:
        return len(self.programs.requests)


def tokens(cache_type: str = "ServiceAccount", *, require: bool = True, **keys: tuple[str, ...]) -> TokenAttributes:
    return TokenAttributes(audience="aud", cache_type=cache_type, require_account=require, **keys)


async def test_asked_only_for_images_that_match() -> None:
    bench = ProviderFixture()
    assert await bench.provider.provide("r.com/a", a_pulling_pod()) == ({}, None)
    assert bench.runs == 0
    assert await bench.provider.provide("r.com/team/a", a_pulling_pod()) == (
        {"r.io": Entry(username="u", password="p")},
        None,
    )
    assert bench.programs.commands == [(["/plugins/plug", "-v"], {"A": "b"})]
    assert bench.programs.requests == [{"kind": "CredentialProviderRequest", "apiVersion": V1, "image": "r.com/team/a"}]


@pytest.mark.parametrize(
    ("key_type", "runs"),
    [("Image", [1, 1, 2, 3]), ("Registry", [1, 1, 1, 2]), ("Global", [1, 1, 1, 1])],
)
async def test_what_an_answer_is_remembered_for(key_type: str, runs: list[int]) -> None:
    bench = ProviderFixture(cacheKeyType=key_type, cacheDuration="1m")
    seen = []
    for image in ("r.io/a", "r.io/a", "r.io/b", "s.io/a"):
        assert await bench.users(image) == ["u"]
        seen.append(bench.runs)
    assert seen == runs


@pytest.mark.parametrize(
    ("default", "given", "kept_for"),
    [(60.0, None, 60.0), (60.0, "0s", 0.0), (0.0, None, 0.0), (0.0, "2m", 120.0), (60.0, "-1s", 0.0)],
)
async def test_for_how_long(default: float, given: str | None, kept_for: float) -> None:
    bench = ProviderFixture(default_cache=default, cacheDuration=given)
    await bench.users()
    if kept_for:
        await bench.clock.sleep(kept_for)
        await bench.users()
        assert bench.runs == 1
        await bench.clock.sleep(0.01)
    await bench.users()
    assert bench.runs == 2


async def test_callers_at_the_same_time_share_a_run() -> None:
    bench = ProviderFixture(takes=5.0)
    got: list[list[str]] = []

    async def want(image: str) -> None:
        got.append(await bench.users(image))

    async with TaskSet("pods") as pods:
        first = pods.spawn(want("r.io/a"), name="0")
        for number in range(3):
            pods.spawn(want("r.io/a"), name=str(number))
        pods.spawn(want("r.io/b"), name="b")
        await bench.clock.sleep(6)
        assert bench.runs == 2 and got == [["u"]] * 5
        assert first.done()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"apiVersion": f"{V1}beta1"}, f"its answer has another apiVersion than {V1}"),
        ({"kind": "Pod"}, "its answer is not of kind CredentialProviderResponse"),
        ({"cacheKeyType": "hidden"}, "cacheKeyType of its answer must be Image, Registry or Global"),
        ({"cacheDuration": 5}, "cacheDuration of its answer is no duration such as 10m"),
        ({"auth": {"r.io": {"username": "u", "hidden": "p"}}}, "an entry of auth of its answer is not {username, pas"),
        ({"auth": {"r.io": {"username": "u", "password": 1}}}, "username and password of its answer must be strings"),
        ({"auth": []}, "auth of its answer is not an object"),
        ({"hidden": 1}, "its answer has unknown fields"),
    ],
)
async def test_answers_that_do_not_count(changes: dict[str, Any], said: str, caplog: pytest.LogCaptureFixture) -> None:
    bench = ProviderFixture(**changes)
    assert await bench.provider.provide("r.io/a", a_pulling_pod()) == ({}, None)
    [record] = caplog.records
    assert said in record.__dict__["error"]
    assert "hidden" not in str(record.__dict__)


@pytest.mark.parametrize("printed", [b"", b"hidden", b"[1]", b"\xff", b"[" * 100_000])
def test_what_is_no_answer(printed: bytes) -> None:
    with pytest.raises(PluginProblem) as caught:
        read_answer(printed, V1)
    assert "hidden" not in str(caught.value)


async def test_a_plugin_that_fails_gives_nothing_and_counts() -> None:
    bench = ProviderFixture()
    bench.programs.answer = PluginProblem("ended with status 1")
    assert await bench.users() == []
    assert 'kubelet_credential_provider_plugin_errors_total{plugin_name="plug"} 1' in bench.metrics.expose()
    bench.programs.answer = an_answer()
    assert await bench.users() == ["u"]


# --- service accounts ---------------------------------------------------------------------------


async def test_a_token_and_annotations_go_to_the_plugin() -> None:
    accounts = Accounts(must="1", may="2", other="3")
    wanted = tokens(required_annotations=("must",), optional_annotations=("may", "absent"))
    bench = ProviderFixture(token=wanted, accounts=accounts)
    _, origin = await bench.provider.provide("r.io/a", a_pulling_pod(account="acc"))
    assert origin == AccountOrigin(namespace="default", name="acc", uid="uid-acc")
    assert bench.programs.requests[0]["serviceAccountToken"] == "secret-token-web"
    assert bench.programs.requests[0]["serviceAccountAnnotations"] == {"may": "2", "must": "1"}


@pytest.mark.parametrize(
    ("require", "account", "annotations", "runs"),
    [
        (True, None, {"must": "1"}, 0),
        (False, None, {}, 1),
        (True, "acc", {}, 0),
        (True, "gone", {"must": "1"}, 0),
        (True, "acc", {"must": "1"}, 1),
    ],
)
async def test_who_takes_part(require: bool, account: str | None, annotations: dict[str, str], runs: int) -> None:
    required = ("must",) if require else ()
    wanted = tokens(require=require, required_annotations=required)
    bench = ProviderFixture(token=wanted, accounts=Accounts(**annotations))
    await bench.provider.provide("r.io/a", a_pulling_pod(account=account))
    assert bench.runs == runs
    if runs and account is None:
        assert "serviceAccountToken" not in bench.programs.requests[0]


@pytest.mark.parametrize(("cache_type", "runs"), [("ServiceAccount", 1), ("Token", 2)])
async def test_answers_hang_on_the_account_or_on_the_token(cache_type: str, runs: int) -> None:
    bench = ProviderFixture(token=tokens(cache_type), accounts=Accounts(), cacheKeyType="Global", cacheDuration="1h")
    for name in ("one", "two", "one"):
        await bench.users(pod=a_pulling_pod(name, account="acc"))
    assert bench.runs == runs
    await bench.users(pod=a_pulling_pod("one", account="other"))
    assert bench.runs == runs + 1


@pytest.mark.parametrize(("cache_type", "expected"), [("ServiceAccount", []), ("Token", ["u"])])
async def test_the_token_itself_as_password(
    cache_type: str, expected: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    auth = {"r.io": {"username": "u", "password": "secret-token-web"}}
    bench = ProviderFixture(token=tokens(cache_type), accounts=Accounts(), auth=auth)
    assert await bench.users(pod=a_pulling_pod(account="acc")) == expected
    assert "secret-token" not in str([record.__dict__ for record in caplog.records])


async def test_a_token_in_a_complaint_is_masked(caplog: pytest.LogCaptureFixture) -> None:
    bench = ProviderFixture(token=tokens(), accounts=Accounts())
    bench.programs.answer = PluginProblem("bad token secret-token-web!")
    await bench.users(pod=a_pulling_pod(account="acc"))
    assert caplog.records[0].__dict__["error"] == "bad token <masked>!"


async def test_no_api_server_no_tokens(caplog: pytest.LogCaptureFixture) -> None:
    bench = ProviderFixture(token=tokens())
    assert await bench.users(pod=a_pulling_pod(account="acc")) == []
    assert "this agent has none" in caplog.records[0].__dict__["error"]


# --- real programs ------------------------------------------------------------------------------


def a_script(folder: Path, text: str) -> str:
    script = folder / "plug"
    script.write_text(f"#!/bin/sh\n{text}\n")
    script.chmod(0o755)
    return str(script)


@pytest.mark.real_loop
async def test_a_program_gets_its_input_and_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTER", "outer")
    script = a_script(tmp_path, 'echo "$1 $OUTER $INNER $(cat)"')
    printed = await HostPrograms().run([script, "x"], env={"INNER": "inner"}, stdin=b"in", seconds=10)
    assert printed == b"x outer inner in\n"


@pytest.mark.real_loop
@pytest.mark.parametrize(
    ("text", "seconds", "said"),
    [
        ("echo no >&2; exit 3", 30.0, "ended with status 3: no"),
        ("kill -9 $$", 30.0, "ended with status -9"),
        ("sleep 1000 & sleep 1000", 0.1, "did not answer within 0.1 s"),
    ],
)
async def test_programs_that_fail(tmp_path: Path, text: str, seconds: float, said: str) -> None:
    with pytest.raises(PluginProblem, match=said):
        await HostPrograms().run([a_script(tmp_path, text)], env={}, stdin=b"x" * 100_000, seconds=seconds)


@pytest.mark.real_loop
async def test_a_program_that_cannot_be_run(tmp_path: Path) -> None:
    with pytest.raises(PluginProblem, match="cannot be run: No such file or directory"):
        await HostPrograms().run([str(tmp_path / "none")], env={}, stdin=b"", seconds=1)
