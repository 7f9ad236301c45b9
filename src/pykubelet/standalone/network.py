"""The pod network of one private runtime: a bridge, addresses from an unused subnet, host ports.

Writes the CNI configuration, makes the bridge at once (so that the node has its address before the first pod)
and one masquerading rule for the whole subnet: a rule per pod, as the bridge plugin would make, costs every pod
start several iptables calls. Covers IPv4. Does not run CNI plugins: containerd does.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import shlex
import shutil
from collections.abc import Iterable
from functools import partial
from ipaddress import IPv4Address, IPv4Interface, IPv4Network
from pathlib import Path
from typing import Any

from msgspec import Struct

from pykubelet.kit.host_calls import host_calls
from pykubelet.standalone import bridge
from pykubelet.standalone.errors import StandaloneError
from pykubelet.standalone.layout import Layout
from pykubelet.standalone.programs import run

logger = logging.getLogger(__name__)

# Rarely used by routers, clouds or other container tools, which like the low 10.x networks.
POOL = IPv4Network("10.203.0.0/16")
PREFIX = 22
"""A thousand pods each."""


class FirewallFacts(Struct, frozen=True, kw_only=True):
    """What iptables can do here."""

    works: bool
    forward_dropped: bool
    """Forwarding is refused by default, as Docker leaves it; then each pod needs a rule of its own."""


def gateway(subnet: IPv4Network) -> IPv4Address:
    """The node's own address on the bridge: the first one, as host-local hands out the others."""
    return subnet[1]


def choose_subnet(name: str, taken: Iterable[IPv4Network]) -> IPv4Network:
    """A subnet of the pool that meets no existing route; the same one for the same name where possible."""
    candidates = list(POOL.subnets(new_prefix=PREFIX))
    start = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big") % len(candidates)
    occupied = list(taken)
    for candidate in candidates[start:] + candidates[:start]:
        if not any(candidate.overlaps(other) for other in occupied):
            return candidate
    raise StandaloneError(f"no free subnet for pods: every /{PREFIX} of {POOL} meets an existing route")


def conflist(layout: Layout, subnet: IPv4Network, firewall: FirewallFacts) -> dict[str, Any]:
    """The CNI configuration list."""
    plugins: list[dict[str, Any]] = [
        {
            "type": "bridge",
            "bridge": layout.network_name,
            "isGateway": True,
            "hairpinMode": True,
            "ipam": {
                "type": "host-local",
                "dataDir": str(layout.ipam_dir),
                "ranges": [[{"subnet": str(subnet)}]],
                "routes": [{"dst": "0.0.0.0/0"}],
            },
        }
    ]
    if firewall.works:
        plugins.append({"type": "portmap", "snat": True, "capabilities": {"portMappings": True}})
    if firewall.forward_dropped:
        plugins.append({"type": "firewall"})
    return {"cniVersion": "0.4.0", "name": layout.network_name, "plugins": plugins}


def subnet_of(written: str) -> IPv4Network:
    """The subnet in a configuration written earlier."""
    return IPv4Network(json.loads(written)["plugins"][0]["ipam"]["ranges"][0][0]["subnet"])


class PodNetwork:
    """The network of one state folder."""

    def __init__(self, layout: Layout, iptables: Path | None) -> None:
        self._layout = layout
        self._iptables = iptables
        self._subnet: IPv4Network | None = None

    @property
    def name(self) -> str:
        return self._layout.network_name

    @property
    def subnet(self) -> IPv4Network:
        if self._subnet is None:
            raise StandaloneError("the pod network is not set up yet")
        return self._subnet

    @property
    def gateway_ip(self) -> str:
        return str(gateway(self.subnet))

    async def setup(self) -> None:
        """Write the configuration, make the bridge and the masquerading rule. Safe to repeat."""
        firewall = await self._firewall()
        self._subnet = self._pick_subnet()
        conf = conflist(self._layout, self._subnet, firewall)
        self._layout.cni_conf.write_text(json.dumps(conf, indent=2) + "\n")
        try:
            bridge.create(self.name, IPv4Interface(f"{self.gateway_ip}/{self._subnet.prefixlen}"))
            Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
        except OSError as error:
            raise StandaloneError(f"the pod network's bridge {self.name} cannot be made: {error}") from error
        if firewall.works:
            if (await self._rule("-C"))[0] != 0:
                await self._rule("-A", check=True)
        else:
            logger.warning("iptables is missing or does not work: pods reach no other network, host ports do not work")

    async def remove(self) -> None:
        """Take away the bridge, the rules and the address book; nothing of it being there is fine.

        The configuration stays: containerd finds it at its next start, before the network is set up again.
        """
        if self._iptables is not None and self._layout.cni_conf.exists():
            with contextlib.suppress(ValueError, KeyError, IndexError):
                self._subnet = subnet_of(self._layout.cni_conf.read_text())
                while (await self._rule("-D"))[0] == 0:
                    pass
        if self._iptables is not None:
            await self._remove_pod_rules(self._iptables)
        try:
            bridge.remove(self.name)
        except OSError as error:
            raise StandaloneError(f"the pod network's bridge {self.name} cannot be removed: {error}") from error
        await host_calls.run(
            partial(shutil.rmtree, self._layout.ipam_dir, ignore_errors=True), name="removing leases", within=60.0
        )

    def _pick_subnet(self) -> IPv4Network:
        foreign = [network for interface, network in bridge.routes() if interface != self.name]
        with contextlib.suppress(OSError, ValueError, KeyError, IndexError, TypeError):
            before = subnet_of(self._layout.cni_conf.read_text())
            if not any(before.overlaps(network) for network in foreign):
                return before  # pods that are still running have addresses in it
        return choose_subnet(self.name, foreign)

    async def _firewall(self) -> FirewallFacts:
        if self._iptables is None:
            return FirewallFacts(works=False, forward_dropped=False)
        status, _ = await run([self._iptables, "-w", "-t", "nat", "-S", "POSTROUTING"], check=False)
        _, forward = await run([self._iptables, "-w", "-S", "FORWARD"], check=False)
        return FirewallFacts(works=status == 0, forward_dropped="-P FORWARD DROP" in forward)

    async def _rule(self, verb: str, *, check: bool = False) -> tuple[int, str]:
        subnet = str(self.subnet)
        match = ["-s", subnet, "!", "-d", subnet, "-m", "comment", "--comment", self.name, "-j", "MASQUERADE"]
        words = [str(self._iptables), "-w", "-t", "nat", verb, "POSTROUTING", *match]
        return await run(words, check=check)

    async def _remove_pod_rules(self, iptables: Path) -> None:
        """Host-port rules of pods that were not torn down one by one; their comments carry the network's name."""
        status, listing = await run([iptables, "-w", "-t", "nat", "-S"], check=False)
        if status != 0:
            return
        for words in rules_to_remove(listing, self.name):
            await run([iptables, "-w", "-t", "nat", *words], check=False)


def rules_to_remove(listing: str, network: str) -> list[list[str]]:
    """The iptables words that remove every rule of the network and the chains only they lead to."""
    removals: list[list[str]] = []
    chains: list[str] = []
    for line in listing.splitlines():
        if f'name: \\"{network}\\"' not in line:
            continue
        words = shlex.split(line)
        removals.append(["-D", *words[1:]])
        target = words[words.index("-j") + 1] if "-j" in words else ""
        if target.startswith(("CNI-DN-", "CNI-SN-")) and target not in chains:
            chains.append(target)
    return removals + [[verb, chain] for chain in chains for verb in ("-F", "-X")]
