"""The few iptables chains that other programs on a node expect of its kubelet (`makeIPTablesUtilChains`).

KUBE-IPTABLES-HINT in the mangle table shows containers that bring their own iptables which of the two kinds (legacy or
nft) this host uses. KUBE-FIREWALL drops packets to loopback addresses that come from elsewhere, which a route_localnet
set by a service proxy would let in. A canary chain in each table is gone when another program flushed it; then all are
made again. A host without iptables needs none of it.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence

from pykubelet.kit.clock import Clock
from pykubelet.kit.limits import Once
from pykubelet.kit.programs import Finished

logger = logging.getLogger(__name__)

FAMILIES = ("iptables", "ip6tables")
TABLES = ("mangle", "nat", "filter")
HINT, FIREWALL, CANARY = "KUBE-IPTABLES-HINT", "KUBE-FIREWALL", "KUBE-KUBELET-CANARY"
CHECK_EVERY = 60.0
WITHIN = 30.0
LOCK_WAIT = ("-w", "5")
"""Seconds to wait for another program that holds iptables' lock."""

DROP_MARTIANS = (
    *("-m", "comment", "--comment", "block incoming localnet connections"),
    *("--dst", "127.0.0.0/8", "!", "--src", "127.0.0.0/8"),
    *("-m", "conntrack", "!", "--ctstate", "RELATED,ESTABLISHED,DNAT", "-j", "DROP"),
)
"""Exactly kube-proxy's rule, so that each finds the other's."""

RunProgram = Callable[[Sequence[str]], Awaitable[Finished]]


class ChainsFailed(Exception):
    """iptables is not there or refused something."""


class IptablesChains:
    name = "iptables-chains"

    def __init__(self, *, run: RunProgram, clock: Clock) -> None:
        self._run = run
        self._clock = clock
        self._logged: Once[str] = Once()

    async def run(self) -> None:
        families = [family for family in FAMILIES if await self._sync(family)]
        if not families:
            logger.info("no iptables on this host: its chains are not made")
        while True:
            await self._clock.sleep(CHECK_EVERY)
            for family in families:
                if not await self._is_whole(family):
                    await self._sync(family)

    async def _sync(self, family: str) -> bool:
        """Whether everything is there now."""
        try:
            await self._ensure_chain(family, "mangle", HINT)
            if family == "iptables":  # the kernel has no such hole for IPv6
                await self._ensure_chain(family, "filter", FIREWALL)
                await self._ensure_rule(family, "-I", "OUTPUT", "-j", FIREWALL)
                await self._ensure_rule(family, "-I", "INPUT", "-j", FIREWALL)
                await self._ensure_rule(family, "-A", FIREWALL, *DROP_MARTIANS)
            for table in TABLES:
                await self._ensure_chain(family, table, CANARY)
        except ChainsFailed as error:
            if self._logged.is_new(family, str(error)):
                logger.warning("iptables chains cannot be made", extra={"program": family, "error": str(error)})
            return False
        self._logged.clear(family)
        return True

    async def _is_whole(self, family: str) -> bool:
        try:
            return all([await self._has_chain(family, table, CANARY) for table in TABLES])
        except ChainsFailed:
            return False

    async def _ensure_chain(self, family: str, table: str, chain: str) -> None:
        if not await self._has_chain(family, table, chain):
            await self._must(family, "-t", table, "-N", chain)

    async def _has_chain(self, family: str, table: str, chain: str) -> bool:
        return (await self._call(family, "-t", table, "-S", chain, "1")).status == 0

    async def _ensure_rule(self, family: str, how: str, chain: str, *rule: str) -> None:
        if (await self._call(family, "-t", "filter", "-C", chain, *rule)).status != 0:
            await self._must(family, "-t", "filter", how, chain, *rule)

    async def _must(self, family: str, *arguments: str) -> None:
        done = await self._call(family, *arguments)
        if done.status != 0:
            raise ChainsFailed(f"{family} {' '.join(arguments)}: {done.complaint()}")

    async def _call(self, family: str, *arguments: str) -> Finished:
        try:
            return await self._run((family, *LOCK_WAIT, *arguments))
        except (OSError, TimeoutError) as error:
            raise ChainsFailed(f"{family}: {str(error) or 'no answer'}") from error
