from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from pykubelet.kit.clock import LoopClock
from pykubelet.kit.programs import Finished
from pykubelet.kit.tasks import running
from pykubelet.node.iptables_chains import IptablesChains

BUILT_IN = ("INPUT", "OUTPUT")


class FakeIptables:
    """Chains and rules by program and table, as iptables would keep them."""

    def __init__(self, *programs: str) -> None:
        self.programs = programs
        self.chains: dict[tuple[str, str], dict[str, list[tuple[str, ...]]]] = {}
        self.calls: list[tuple[str, ...]] = []

    def table(self, program: str, name: str) -> dict[str, list[tuple[str, ...]]]:
        return self.chains.setdefault((program, name), {chain: [] for chain in BUILT_IN})

    async def __call__(self, words: Sequence[str]) -> Finished:
        program, lock, seconds, _, table, verb, chain, *rule = words
        assert (lock, seconds) == ("-w", "5")
        self.calls.append(tuple(words))
        if program not in self.programs:
            raise FileNotFoundError(2, "No such file or directory", program)
        return Finished(status=self._do(self.table(program, table), verb, chain, tuple(rule)), out=b"", err=b"")

    def _do(self, table: dict[str, list[tuple[str, ...]]], verb: str, chain: str, rule: tuple[str, ...]) -> int:
        if verb == "-N":
            if chain in table:
                return 1
            table[chain] = []
        elif chain not in table:
            return 1
        elif verb == "-C":
            return 0 if rule in table[chain] else 1
        elif verb in ("-I", "-A"):
            table[chain].insert(0 if verb == "-I" else len(table[chain]), rule)
        return 0


async def test_chains_are_made_once_and_again_after_a_flush() -> None:
    tables = FakeIptables("iptables", "ip6tables")
    async with running(IptablesChains(run=tables, clock=LoopClock())):
        await asyncio.sleep(1)
        assert "KUBE-IPTABLES-HINT" in tables.table("iptables", "mangle")
        assert "KUBE-IPTABLES-HINT" in tables.table("ip6tables", "mangle")
        firewall = tables.table("iptables", "filter")
        assert firewall["INPUT"] == firewall["OUTPUT"] == [("-j", "KUBE-FIREWALL")]
        assert [rule[-2:] for rule in firewall["KUBE-FIREWALL"]] == [("-j", "DROP")]
        assert "KUBE-FIREWALL" not in tables.table("ip6tables", "filter")

        tables.calls.clear()
        await asyncio.sleep(60)
        assert {words[5] for words in tables.calls} == {"-S"}  # nothing is written while all is there

        tables.chains.pop(("iptables", "filter"))
        await asyncio.sleep(60)
        assert len(tables.table("iptables", "filter")["KUBE-FIREWALL"]) == 1


async def test_rules_that_a_proxy_made_are_not_made_twice() -> None:
    tables = FakeIptables("iptables")
    for _ in range(2):
        async with running(IptablesChains(run=tables, clock=LoopClock())):
            await asyncio.sleep(1)
    assert len(tables.table("iptables", "filter")["KUBE-FIREWALL"]) == 1
    assert len(tables.table("iptables", "filter")["INPUT"]) == 1


async def test_a_host_without_iptables_is_no_trouble(caplog: pytest.LogCaptureFixture) -> None:
    async with running(IptablesChains(run=FakeIptables(), clock=LoopClock())):
        await asyncio.sleep(600)
    assert len([record for record in caplog.records if record.levelname == "WARNING"]) == 2
