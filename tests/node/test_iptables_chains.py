"""The chains of `makeIPTablesUtilChains`, by the real iptables in a network namespace of the test's own."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence

import pytest

from pykubelet.kit.clock import SystemClock
from pykubelet.kit.programs import Finished, run_program
from pykubelet.kit.tasks import running
from pykubelet.node.iptables_chains import IptablesChains

pytestmark = pytest.mark.node


@pytest.fixture
def namespace() -> Iterator[str]:
    name = f"pykubelet-chains-{os.getpid()}"
    subprocess.run(["ip", "netns", "add", name], check=True)
    yield name
    subprocess.run(["ip", "netns", "delete", name], check=True)


@pytest.mark.parametrize("kind", ["nft", "legacy"])
async def test_both_kinds_of_iptables_take_the_chains(namespace: str, kind: str) -> None:
    if shutil.which(f"iptables-{kind}") is None:
        pytest.skip(f"no iptables-{kind} here")

    async def inside(words: Sequence[str]) -> Finished:
        program, *rest = words
        return await run_program(
            ["ip", "netns", "exec", namespace, program.replace("tables", f"tables-{kind}"), *rest], seconds=30
        )

    async def shown(*words: str) -> str:
        return (await inside(["iptables", *words])).out.decode()

    if (await inside(["iptables", "-S"])).status != 0:
        pytest.skip(f"this kernel does not take iptables-{kind}")
    for _ in range(2):  # a second agent finds what the first made
        async with running(IptablesChains(run=inside, clock=SystemClock())):
            for _ in range(600):
                if "KUBE-KUBELET-CANARY" in await shown("-S"):
                    break
                await asyncio.sleep(0.1)
    rules = (await shown("-S")).splitlines()
    assert rules.count("-A INPUT -j KUBE-FIREWALL") == rules.count("-A OUTPUT -j KUBE-FIREWALL") == 1
    assert len([rule for rule in rules if rule.startswith("-A KUBE-FIREWALL") and rule.endswith("-j DROP")]) == 1
    assert "-N KUBE-IPTABLES-HINT" in await shown("-t", "mangle", "-S")
