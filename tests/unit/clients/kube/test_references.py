"""Referenced secrets and config maps: held while pods need them, by each of the three strategies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from pykubelet.api.types import (
    ConfigMap,
    ConfigMapEnvSource,
    ConfigMapProjection,
    ConfigMapVolumeSource,
    Container,
    EnvFromSource,
    EnvVar,
    EnvVarSource,
    LocalObjectReference,
    ObjectMeta,
    Pod,
    PodSpec,
    ProjectedVolumeSource,
    Secret,
    SecretKeySelector,
    SecretVolumeSource,
    Volume,
    VolumeProjection,
)
from pykubelet.clients.kube.references import ObjectUnavailable, ReferenceWatcher, Strategy, referred
from pykubelet.kit.clock import LoopClock
from pykubelet.kit.tasks import running
from pykubelet.model.errors import ApiDown, Forbidden
from tests.fakes.fake_kube import FakeKube

NS = "shop"


def a_map(name: str, *, immutable: bool | None = None, **data: str) -> ConfigMap:
    return ConfigMap(metadata=ObjectMeta(name=name, namespace=NS), data=data, immutable=immutable)


def a_referring_pod(uid: str, *, volumes: Sequence[str] = (), env: Sequence[str] = (), pull: Sequence[str] = ()) -> Pod:
    """A pod that mounts config maps, reads config maps into variables, and names pull secrets."""
    return Pod(
        metadata=ObjectMeta(name=f"pod-{uid}", namespace=NS, uid=uid),
        spec=PodSpec(
            containers=[
                Container(
                    name="main",
                    env_from=[EnvFromSource(config_map_ref=ConfigMapEnvSource(name=name)) for name in env],
                )
            ],
            volumes=[Volume(name=name, config_map=ConfigMapVolumeSource(name=name)) for name in volumes],
            image_pull_secrets=[LocalObjectReference(name=name) for name in pull],
        ),
    )


class ReferencesFixture:
    def __init__(self, strategy: Strategy = Strategy.WATCH, **options: Any) -> None:
        self.clock = LoopClock()
        self.kube = FakeKube(self.clock)
        self.references = ReferenceWatcher(kube=self.kube, clock=self.clock, strategy=strategy, **options)
        self.poked: list[list[str]] = []
        self.references.listen(lambda kind, namespace, name, uids: self.poked.append(list(uids)))

    @asynccontextmanager
    async def live(self) -> AsyncIterator[None]:
        async with running(self.references):
            await settle()
            yield

    @property
    def watched(self) -> list[str]:
        return sorted(each.field_selector for each in self.kube.open_watches if each.kind is ConfigMap)


async def settle(seconds: float = 0.01) -> None:
    await asyncio.sleep(seconds)


def test_every_reference_of_a_pod_is_found() -> None:
    pod = Pod(
        metadata=ObjectMeta(name="p", namespace=NS),
        spec=PodSpec(
            image_pull_secrets=[LocalObjectReference(name="pull")],
            init_containers=[
                Container(
                    name="init",
                    env=[
                        EnvVar(
                            name="A",
                            value_from=EnvVarSource(secret_key_ref=SecretKeySelector(name="env-secret", key="k")),
                        )
                    ],
                )
            ],
            containers=[Container(name="c", env_from=[EnvFromSource(config_map_ref=ConfigMapEnvSource(name="both"))])],
            volumes=[
                Volume(name="a", secret=SecretVolumeSource(secret_name="vol-secret")),
                Volume(
                    name="b",
                    projected=ProjectedVolumeSource(
                        sources=[VolumeProjection(config_map=ConfigMapProjection(name="both"))]
                    ),
                ),
            ],
        ),
    )
    found = {(key.kind.__name__, key.name): followed for key, followed in referred(pod).items()}
    assert found == {
        ("Secret", "pull"): False,
        ("Secret", "env-secret"): False,
        ("ConfigMap", "both"): True,
        ("Secret", "vol-secret"): True,
    }


async def test_first_read_waits_for_the_watch() -> None:
    bed = ReferencesFixture()
    bed.kube.add(a_map("conf", a="1"))
    async with bed.live():
        bed.references.register(a_referring_pod("1", volumes=["conf"]))
        found = await bed.references.config_map(NS, "conf")
        assert found is not None and found.data == {"a": "1"}
        await settle()
        assert bed.watched == ["metadata.name=conf"]


async def test_pods_share_one_watch_until_the_last_one_leaves() -> None:
    bed = ReferencesFixture()
    bed.kube.add(a_map("conf"))
    async with bed.live():
        one, two = a_referring_pod("1", volumes=["conf"]), a_referring_pod("2", env=["conf"])
        for pod in (one, two, one):
            bed.references.register(pod)
        await settle()
        assert bed.watched == ["metadata.name=conf"]
        bed.references.unregister(one)
        await settle()
        assert bed.watched == ["metadata.name=conf"]
        bed.references.unregister(two)
        bed.references.unregister(two)
        await settle()
        assert bed.watched == []
        with pytest.raises(ObjectUnavailable, match='object "shop"/"conf" not registered'):
            await bed.references.config_map(NS, "conf")


async def test_changed_pod_gives_back_what_it_no_longer_needs() -> None:
    bed = ReferencesFixture()
    async with bed.live():
        bed.references.register(a_referring_pod("1", volumes=["old", "kept"]))
        await settle()
        bed.references.register(a_referring_pod("1", volumes=["kept", "new"]))
        await settle()
        assert bed.watched == ["metadata.name=kept", "metadata.name=new"]


async def test_change_pokes_the_pods_that_refer_to_the_object() -> None:
    bed = ReferencesFixture()
    bed.kube.add(a_map("conf", a="1"))
    async with bed.live():
        bed.references.register(a_referring_pod("1", volumes=["conf"]))
        bed.references.register(a_referring_pod("2", env=["conf"]))
        await settle()
        assert bed.poked == [["1", "2"]]
        bed.kube.change(a_map("conf", a="2"))
        await settle()
        assert bed.poked == [["1", "2"], ["1", "2"]]
        found = await bed.references.config_map(NS, "conf")
        assert found is not None and found.data == {"a": "2"}


async def test_absent_object_is_none_and_appears_later() -> None:
    bed = ReferencesFixture()
    async with bed.live():
        bed.references.register(a_referring_pod("1", volumes=["late"]))
        assert await bed.references.config_map(NS, "late") is None
        bed.kube.add(a_map("late"))
        await settle()
        assert bed.poked == [["1"], ["1"]]
        assert await bed.references.config_map(NS, "late") is not None


async def test_immutable_object_is_read_once_and_not_watched() -> None:
    bed = ReferencesFixture()
    bed.kube.add(a_map("fixed", immutable=True))
    async with bed.live():
        bed.references.register(a_referring_pod("1", volumes=["fixed"]))
        assert await bed.references.config_map(NS, "fixed") is not None
        await settle()
        assert bed.watched == []
        bed.kube.stop()
        assert await bed.references.config_map(NS, "fixed") is not None


async def test_silent_server_fails_the_first_read_but_not_later_ones() -> None:
    bed = ReferencesFixture()
    bed.kube.add(a_map("conf"))
    async with bed.live():
        bed.kube.stop()
        bed.references.register(a_referring_pod("1", volumes=["conf"]))
        with pytest.raises(ObjectUnavailable, match="failed to sync configmap cache: timed out waiting"):
            await bed.references.config_map(NS, "conf")
        bed.kube.start()
        await settle(10)
        assert await bed.references.config_map(NS, "conf") is not None
        bed.kube.stop()
        await settle(100)
        assert await bed.references.config_map(NS, "conf") is not None


async def test_outage_is_not_logged_for_each_object(caplog: pytest.LogCaptureFixture) -> None:
    bed = ReferencesFixture()
    async with bed.live():
        bed.references.register(a_referring_pod("1", volumes=[f"conf-{number}" for number in range(50)]))
        await settle(1)
        bed.kube.stop()
        await settle(30)
    assert caplog.records == []


async def test_server_that_has_not_heard_of_the_pod_yet_costs_little_time() -> None:
    bed = ReferencesFixture()
    bed.kube.add(Secret(metadata=ObjectMeta(name="pull", namespace=NS)))
    async with bed.live():
        bed.kube.fail_next("watch", Forbidden("no relationship found between node and this object"), kind=Secret)
        bed.references.register(a_referring_pod("1", pull=["pull"]))
        before = bed.clock.monotonic()
        assert await bed.references.secret(NS, "pull") is not None
        assert bed.clock.monotonic() - before < 0.2


async def test_unread_watch_of_a_variable_is_closed_and_opened_again_on_demand() -> None:
    bed = ReferencesFixture(sync_frequency=60.0)
    for name in ("env", "vol"):
        bed.kube.add(a_map(name))
    async with bed.live():
        bed.references.register(a_referring_pod("1", env=["env"], volumes=["vol"]))
        await settle(400)
        assert bed.watched == ["metadata.name=vol"], "mounted objects are followed for as long as the pod lives"
        assert await bed.references.config_map(NS, "env") is not None
        await settle()
        assert bed.watched == ["metadata.name=env", "metadata.name=vol"]


async def test_pods_registered_before_the_service_runs_are_watched_then() -> None:
    bed = ReferencesFixture()
    bed.kube.add(a_map("conf"))
    bed.references.register(a_referring_pod("1", volumes=["conf"]))
    async with running(bed.references):
        assert await bed.references.config_map(NS, "conf") is not None
        await settle()
        assert bed.watched == ["metadata.name=conf"]
    assert bed.watched == []


async def test_cache_asks_again_after_its_time_and_after_registration() -> None:
    bed = ReferencesFixture(Strategy.CACHE, ttl=lambda: 30.0)
    bed.kube.add(a_map("conf"))
    async with bed.live():
        pod = a_referring_pod("1", volumes=["conf"])
        bed.references.register(pod)
        for _ in range(3):
            assert await bed.references.config_map(NS, "conf") is not None
        assert len(bed.kube.calls_of("get")) == 1
        await settle(31)
        await bed.references.config_map(NS, "conf")
        assert len(bed.kube.calls_of("get")) == 2
        bed.references.register(pod)
        await bed.references.config_map(NS, "conf")
        assert len(bed.kube.calls_of("get")) == 3
        assert bed.watched == []


async def test_get_asks_every_time_without_registration() -> None:
    bed = ReferencesFixture(Strategy.GET)
    bed.kube.add(a_map("conf"))
    assert await bed.references.config_map(NS, "conf") is not None
    assert await bed.references.config_map(NS, "none") is None
    bed.kube.fail_next("get", ApiDown("refused"))
    with pytest.raises(ObjectUnavailable, match='cannot read ConfigMap "shop"/"conf": refused'):
        await bed.references.config_map(NS, "conf")
