"""Cluster trust bundles: which are chosen, how they are put together, when they are read."""

from __future__ import annotations

import asyncio

import pytest

from pykubelet.api.types import (
    ClusterTrustBundle,
    ClusterTrustBundleSpec,
    LabelSelector,
    LabelSelectorRequirement,
    ObjectMeta,
)
from pykubelet.clients.kube.readers import BundlesUnavailable, TrustBundleWatcher, selects
from pykubelet.kit.clock import LoopClock
from pykubelet.kit.tasks import running
from pykubelet.model.errors import ApiNotFound
from tests.fakes.fake_kube import FakeKube


def block(text: str) -> str:
    return f"-----BEGIN CERTIFICATE-----\n{text}\n-----END CERTIFICATE-----\n"


def bundle(name: str, *texts: str, signer: str | None = None, **labels: str) -> ClusterTrustBundle:
    spec = ClusterTrustBundleSpec(trust_bundle="junk\n" + "".join(block(t) for t in texts), signer_name=signer)
    return ClusterTrustBundle(metadata=ObjectMeta(name=name, labels=labels), spec=spec)


async def test_bundles_are_read_on_demand_and_followed() -> None:
    clock = LoopClock()
    kube = FakeKube(clock)
    kube.add(bundle("root", "B", "A", "B"))
    kube.add(bundle("s:1", "A", "C", signer="s", tier="web"))
    kube.add(bundle("s:2", "D", "C", signer="s", tier="db"))
    changed: list[str] = []
    watcher = TrustBundleWatcher(kube=kube, clock=clock, on_change=changed.append)
    async with running(watcher):
        await asyncio.sleep(1)
        assert not kube.open_watches
        assert await watcher.by_name("root") == block("A") + block("B")
        assert await watcher.by_name("none") is None
        everything = LabelSelector()
        assert await watcher.by_signer("s", everything) == block("A") + block("C") + block("D")
        assert await watcher.by_signer("s", LabelSelector(match_labels={"tier": "db"})) == block("C") + block("D")
        assert await watcher.by_signer("s", None) == "" and await watcher.by_signer("other", everything) == ""
        changed.clear()
        kube.add(bundle("root", "E"))
        await asyncio.sleep(1)
        assert changed == ["root"] and await watcher.by_name("root") == block("E")


async def test_a_server_without_them() -> None:
    clock = LoopClock()
    kube = FakeKube(clock)
    for _ in range(20):
        kube.fail_next("watch", ApiNotFound("the server could not find the requested resource"))
        kube.fail_next("list", ApiNotFound("the server could not find the requested resource"))
    watcher = TrustBundleWatcher(kube=kube, clock=clock)
    async with running(watcher):
        with pytest.raises(BundlesUnavailable, match="could not be read within 10 s"):
            await watcher.by_name("root")
    assert kube.watch_lists.usable(clock.monotonic()), "one missing resource says nothing about watches"


@pytest.mark.parametrize(
    ("operator", "values", "labels", "holds"),
    [
        ("In", ["a"], {"k": "a"}, True),
        ("In", ["a"], {}, False),
        ("NotIn", ["a"], {}, True),
        ("NotIn", ["a"], {"k": "a"}, False),
        ("Exists", [], {"k": ""}, True),
        ("DoesNotExist", [], {"k": ""}, False),
        ("Gt", ["1"], {"k": "2"}, False),
    ],
)
def test_selectors(operator: str, values: list[str], labels: dict[str, str], holds: bool) -> None:
    requirement = LabelSelectorRequirement(key="k", operator=operator, values=values)
    assert selects(LabelSelector(match_expressions=[requirement]), labels) is holds
