"""An unexpected error about one pod, wherever it comes up: that pod is told and tried again, nobody else is hurt.

No pod is known that causes such an error; the tests put the bug in.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pykubelet.api.types import ExecAction, Pod, Probe
from pykubelet.cm.admission import PodAdmission
from pykubelet.hollow.cri_values import Behaviour
from pykubelet.model.pod import name_of
from pykubelet.pods.admission import Verdict
from pykubelet.signals import ContainerDied, PodFinished
from pykubelet.sync.loop import SyncLoop
from tests.builders import a_container, a_pod
from tests.harness import NodeHarness, a_node
from tests.scenarios.cluster_node import a_cluster_node


def loop_of(node: NodeHarness) -> Any:
    (loop,) = [each for each in node.node.services.producers if isinstance(each, SyncLoop)]
    return loop


class BrokenAdmission:
    """Breaks for pods named bad."""

    def __init__(self, inner: PodAdmission) -> None:
        self.inner = inner
        self.tries: list[str] = []
        self.mended = False

    def decide(self, pod: Pod, others: Sequence[Pod]) -> Verdict:
        self.tries.append(name_of(pod))
        if name_of(pod).startswith("bad") and not self.mended:
            raise ZeroDivisionError("a bug")
        return self.inner.decide(pod, others)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def lacking_for_change(self, old: Pod, new: Pod) -> Sequence[str]:
        if name_of(new).startswith("bad") and not self.mended:
            raise ZeroDivisionError("a bug")
        return self.inner.lacking_for_change(old, new)


def break_admission(node: NodeHarness) -> BrokenAdmission:
    loop = loop_of(node)
    broken = loop._admission = BrokenAdmission(loop._admission)
    return broken


async def test_an_admission_that_breaks_hurts_that_pod_alone(tmp_path: Path) -> None:
    async with a_cluster_node(tmp_path) as node:
        await node.until(node.is_ready)
        broken = break_admission(node)
        bad = node.bind("bad")
        node.bind("good")
        await node.until(lambda: node.phase("good") == "Running")
        await node.clock.sleep(600)
        tries = broken.tries.count("bad")
        assert 5 <= tries <= 12, "again, but less and less often"
        assert node.phase("bad") == "Pending" and node.running() == ["good/app"]
        assert node.events("FailedSync") == ["error handling the pod: a bug"]
        assert "a bug" in node.node.explainer.explain(bad).to_text()
        node.bind("other")
        await node.until(lambda: node.phase("other") == "Running")
        broken.mended = True
        await node.until(lambda: node.phase("bad") == "Running", within=301)


async def test_a_pod_whose_admission_broke_is_not_started_by_a_change_and_can_be_removed(tmp_path: Path) -> None:
    async with a_cluster_node(tmp_path) as node:
        broken = break_admission(node)
        bad = node.bind("bad")
        await node.until(lambda: broken.tries.count("bad") == 1)
        node.change(bad, labels={"a": "b"})
        await node.clock.sleep(60)
        assert node.running() == []
        await node.delete("bad", grace=0)
        await node.clock.sleep(1)
        tries = broken.tries.count("bad")
        await node.clock.sleep(600)
        assert broken.tries.count("bad") == tries
        assert node.node.table.undecided == set()


async def test_a_running_pod_whose_admission_breaks_after_a_restart_keeps_running(tmp_path: Path) -> None:
    async with a_cluster_node(tmp_path) as node:
        node.bind("bad")
        await node.until(lambda: node.phase("bad") == "Running")
        container = node.cri.container("app").id
        await node.kill()
        node.api.down = True
        await node.start()
        broken = break_admission(node)
        node.api.start()
        await node.until(lambda: bool(broken.tries))
        await node.clock.sleep(200)
        assert node.running() == ["bad/app"]
        assert node.cgroups.groups.keys() & {"/kubepods/besteffort/poduid-bad"}
        broken.mended = True
        await node.clock.sleep(301)
        assert node.running() == ["bad/app"] and node.cri.container("app").id == container
        await node.delete("bad", grace=1)
        await node.until(lambda: not node.cri.sandboxes)


async def test_a_pod_is_deleted_although_a_check_of_the_change_breaks(tmp_path: Path) -> None:
    async with a_cluster_node(tmp_path) as node:
        node.bind("bad")
        await node.until(lambda: node.phase("bad") == "Running")
        break_admission(node)
        await node.delete("bad", grace=5)
        await node.until(lambda: node.shown("bad") is None, within=10)
        assert node.events("FailedSync") == ["error handling the pod: a bug"]
        await node.until(lambda: not node.cri.sandboxes)


class BrokenResizes:
    """The right ones, but for a bug that every change of a pod meets."""

    def __init__(self, right: object) -> None:
        self._right = right

    def updated(self, old: Pod | None, new: Pod) -> None:
        raise ZeroDivisionError("a bug")

    def __getattr__(self, name: str) -> object:
        return getattr(self._right, name)


async def test_a_change_that_breaks_is_tried_again(tmp_path: Path) -> None:
    async with a_cluster_node(tmp_path) as node:
        pod = node.bind("bad")
        await node.until(lambda: node.phase("bad") == "Running")
        loop = loop_of(node)

        right = loop._allocation
        loop._allocation = BrokenResizes(right)
        shown = node.shown("bad")
        assert shown is not None
        node.change(shown, labels={"a": "b"})
        await node.clock.sleep(5)
        assert node.running() == ["bad/app"] and node.events("FailedSync")
        state = node.node.table.worker(pod.metadata.uid or "")
        assert state is not None and state.pod is not None and state.pod.metadata.labels == {}
        loop._allocation = right
        await node.clock.sleep(60)
        assert state.pod.metadata.labels == {"a": "b"}


async def test_a_deletion_that_broke_is_tried_again_whatever_the_status_says_meanwhile(tmp_path: Path) -> None:
    async with a_cluster_node(tmp_path) as node:
        node.bind("bad")
        await node.until(lambda: node.phase("bad") == "Running")
        loop = loop_of(node)

        right = loop._allocation
        loop._allocation = BrokenResizes(right)
        await node.delete("bad", grace=5)
        await node.until(lambda: bool(node.events("FailedSync")))
        loop._allocation = right
        shown = node.shown("bad")
        assert shown is not None
        status = msgspec.structs.replace(shown.status, nominated_node_name="elsewhere")
        node.api.change(msgspec.structs.replace(shown, status=status))
        await node.until(lambda: node.shown("bad") is None, within=30)


async def test_an_event_of_the_runtime_that_breaks_still_restarts_the_container(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with a_node(tmp_path) as node:
        pod = node.run(a_pod("web"))
        await node.until_running(pod)

        def break_too(event: object) -> None:
            raise ZeroDivisionError("another bug")

        node.node.ctx.signals._handlers[ContainerDied].insert(0, break_too)
        node.cri.exit("app", 1)
        await node.until(lambda: len(node.cri.called("start_container")) == 2, within=2)
        texts = [record.getMessage() for record in caplog.records]
        assert texts.count("a signal cannot be handled") >= 1


async def test_a_probe_whose_look_breaks_goes_on(tmp_path: Path) -> None:
    async with a_node(tmp_path) as node:
        probe = Probe(exec=ExecAction(command=["ready"]), period_seconds=5)
        pod = node.run(a_pod("web", containers=[a_container("app", readiness_probe=probe)]))
        await node.until_running(pod)
        bugs = []

        def break_it(*about: object) -> None:
            bugs.append(about)
            raise ZeroDivisionError("a bug")

        table, right = node.node.table, node.node.table.reported_status
        table.reported_status = break_it  # type: ignore[method-assign,assignment]
        await node.clock.sleep(20)
        table.reported_status = right  # type: ignore[method-assign]
        assert bugs
        before = len(node.cri.called("exec_sync"))
        await node.clock.sleep(20)
        assert len(node.cri.called("exec_sync")) > before


async def test_the_end_of_a_pod_that_breaks_ends_no_worker(tmp_path: Path) -> None:
    async with a_node(tmp_path) as node:
        node.cri.program(Behaviour(), name="app")
        first, second = node.run(a_pod("first")), node.run(a_pod("second"))
        await node.until_running(first, second)
        handlers = node.node.ctx.signals._handlers

        def break_it(finished: PodFinished) -> None:
            raise ZeroDivisionError("a bug")

        handlers[PodFinished], right = [break_it], handlers[PodFinished]
        node.remove("first")
        await node.until(lambda: node.running() == ["second/app"])
        await node.clock.sleep(5)
        handlers[PodFinished] = right
        node.remove("second")
        await node.until(lambda: not node.cri.sandboxes, within=300)
