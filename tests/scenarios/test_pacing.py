"""Many pods at once: a few go to the runtime at a time, in an order, and none is held up by another's trouble."""

from __future__ import annotations

from pathlib import Path

import pytest

from pykubelet.sync.housekeeping import Housekeeping
from tests.builders import a_container, a_pod
from tests.harness import NodeHarness, a_node

WIDTH = 8
"""Of the harness's four processors."""


def burst(node: NodeHarness, count: int = 24) -> None:
    for number in range(count):
        node.run(a_pod(f"burst-{number}"))


async def test_the_first_pods_of_a_burst_run_while_the_last_wait(tmp_path: Path) -> None:
    async with a_node(tmp_path) as node:
        node.cri.slow("run_pod_sandbox", 1.0)
        burst(node)
        await node.clock.sleep(0.9)
        assert len(node.cri.called("run_pod_sandbox")) == WIDTH
        await node.clock.sleep(0.5)
        assert len(node.running()) == WIDTH, "containers go before the sandboxes of other pods"
        await node.until(lambda: len(node.running()) == 24, within=10)


async def test_what_crashed_goes_before_new_pods(tmp_path: Path) -> None:
    async with a_node(tmp_path) as node:
        old = node.run(a_pod("old"))
        await node.until_running(old)
        node.cri.slow("run_pod_sandbox", 1.0)
        burst(node)
        await node.clock.sleep(0.5)
        node.cri.exit("app", 1, pod="old-node1")
        begun = node.clock.monotonic()
        await node.until(lambda: "old/app" not in node.running())
        await node.until_running(old)
        assert node.clock.monotonic() - begun < 1.5


async def test_a_critical_pod_goes_before_others_and_a_small_one_before_a_large(tmp_path: Path) -> None:
    async with a_node(tmp_path) as node:
        node.cri.slow("run_pod_sandbox", 1.0)
        burst(node, WIDTH)
        await node.clock.sleep(0.5)
        node.run(a_pod("large", containers=[a_container("one"), a_container("two")]))
        for number in range(WIDTH):
            node.run(a_pod(f"small-{number}"))
        node.run(a_pod("critical", priority=2_000_000_000))
        await node.until(lambda: len(node.cri.called("run_pod_sandbox")) == 2 * WIDTH + 2, within=10)
        made = [str(call.name).removesuffix("-node1") for call in node.cri.called("run_pod_sandbox")][WIDTH:]
        assert made[0] == "critical"
        assert made.index("large") > made.index("small-5"), "it came first, and every eighth turn is the oldest's"


async def test_pods_whose_sandbox_hangs_hold_no_other_up(tmp_path: Path) -> None:
    async with a_node(tmp_path) as node:
        for number in range(WIDTH):
            node.cri.hang("run_pod_sandbox", f"burst-{number}-node1")
        burst(node, 2 * WIDTH)
        await node.until(lambda: len(node.running()) == WIDTH, within=5)


async def test_the_place_in_the_line_is_explained(tmp_path: Path) -> None:
    async with a_node(tmp_path) as node:
        node.cri.slow("run_pod_sandbox", 1.0)
        burst(node, WIDTH + 7)
        await node.clock.sleep(0.5)
        explained = node.node.explainer("default", f"burst-{WIDTH + 6}")
        assert explained is not None
        assert "waits for its turn, 7th" in str(explained)


async def test_pods_that_come_one_after_the_other_do_not_each_cost_a_pass_of_housekeeping(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes: list[float] = []
    tidy = Housekeeping.tidy

    async def counted(self: Housekeeping) -> None:
        passes.append(node.clock.monotonic())
        await tidy(self)

    monkeypatch.setattr(Housekeeping, "tidy", counted)
    async with a_node(tmp_path) as node:
        passes.clear()
        for number in range(30):
            node.run(a_pod(f"pod-{number}"))
            await node.clock.sleep(0.02)
        assert 3 <= len(passes) <= 7, "one in a tenth of a second"
