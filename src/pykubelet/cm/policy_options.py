"""Options of the CPU and topology policies, read from the maps of the configuration and checked.

Covers which gate an option needs, which exclude each other and which this machine cannot have. The names themselves
were checked with the rest of the configuration. Every problem is a `ResourceManagerError` naming the field.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from msgspec import Struct

from pykubelet.cm.errors import ResourceManagerError
from pykubelet.model.topology import Topology

CPU_FIELD: Final = "cpuManagerPolicyOptions"
TOPOLOGY_FIELD: Final = "topologyManagerPolicyOptions"
FULL_CORES: Final = "full-pcpus-only"
ACROSS_NUMA: Final = "distribute-cpus-across-numa"
BY_SOCKET: Final = "align-by-socket"
ACROSS_CORES: Final = "distribute-cpus-across-cores"
STRICT_RESERVATION: Final = "strict-cpu-reservation"
BY_CACHE: Final = "prefer-align-cpus-by-uncorecache"
CLOSEST: Final = "prefer-closest-numa-nodes"
MAX_NODES: Final = "max-allowable-numa-nodes"
DEFAULT_MAX_NODES: Final = 8

SINGLE_NUMA_NODE: Final = "single-numa-node"

_GATES: Final = {
    BY_SOCKET: "CPUManagerPolicyAlphaOptions",
    ACROSS_CORES: "CPUManagerPolicyAlphaOptions",
    ACROSS_NUMA: "CPUManagerPolicyBetaOptions",
}
_EXCLUDING: Final = (
    (FULL_CORES, ACROSS_CORES),
    (ACROSS_NUMA, ACROSS_CORES),
    (BY_CACHE, ACROSS_CORES),
    (BY_CACHE, ACROSS_NUMA),
)
# As upstream's language reads a boolean.
_WORDS: Final = {
    **dict.fromkeys(("1", "t", "T", "true", "TRUE", "True"), True),
    **dict.fromkeys(("0", "f", "F", "false", "FALSE", "False"), False),
}


class CpuOptions(Struct, frozen=True, kw_only=True):
    full_cores: bool = False
    """Only whole cores are allocated, so that no two containers share one."""
    across_numa: bool = False
    """A request too big for one NUMA node is spread evenly."""
    by_socket: bool = False
    """NUMA nodes of one socket count as one place."""
    across_cores: bool = False
    """Threads of different cores rather than whole cores."""
    strict_reservation: bool = False
    """Reserved CPUs are not in the shared pool either."""
    by_cache: bool = False
    """Where possible CPUs that share a cache."""


class TopologyOptions(Struct, frozen=True, kw_only=True):
    closest: bool = False
    """Of equally many NUMA nodes those nearest to each other."""
    max_nodes: int = DEFAULT_MAX_NODES


def cpu_options(
    given: Mapping[str, str], *, enabled: Callable[[str], bool], topology: Topology, topology_policy: str
) -> CpuOptions:
    """The options of the static policy; `enabled` is that of the feature gates."""
    chosen = {name for name, text in given.items() if _boolean(CPU_FIELD, name, text)}
    for name in given:
        gate = _GATES.get(name)
        if gate is not None and not enabled(gate):
            raise ResourceManagerError(f"{CPU_FIELD}: {name} needs the feature gate {gate}")
    for one, other in _EXCLUDING:
        if one in chosen and other in chosen:
            raise ResourceManagerError(f"{CPU_FIELD}: {one} and {other} can not be used at the same time")
    if BY_SOCKET in chosen:
        if topology_policy == SINGLE_NUMA_NODE:
            raise ResourceManagerError(f"{CPU_FIELD}: {BY_SOCKET} excludes topologyManagerPolicy {SINGLE_NUMA_NODE}")
        if len(topology.groups("socket")) > len(topology.cpu_nodes):
            raise ResourceManagerError(
                f"{CPU_FIELD}: {BY_SOCKET} cannot be used where there are more sockets than NUMA nodes"
            )
    return CpuOptions(
        full_cores=FULL_CORES in chosen,
        across_numa=ACROSS_NUMA in chosen,
        by_socket=BY_SOCKET in chosen,
        across_cores=ACROSS_CORES in chosen,
        strict_reservation=STRICT_RESERVATION in chosen,
        by_cache=BY_CACHE in chosen,
    )


def topology_options(given: Mapping[str, str], *, topology: Topology) -> TopologyOptions:
    """The options of the topology policies, for a policy other than none."""
    closest = CLOSEST in given and _boolean(TOPOLOGY_FIELD, CLOSEST, given[CLOSEST])
    most = DEFAULT_MAX_NODES
    if MAX_NODES in given:
        try:
            most = int(given[MAX_NODES])
        except ValueError as err:
            raise ResourceManagerError(
                f"{TOPOLOGY_FIELD}: {MAX_NODES}: {given[MAX_NODES][:40]!r} is not a number"
            ) from err
        if most < DEFAULT_MAX_NODES:
            raise ResourceManagerError(f"{TOPOLOGY_FIELD}: {MAX_NODES} must be at least {DEFAULT_MAX_NODES}")
    if len(topology.nodes) > most:
        raise ResourceManagerError(
            f"topologyManagerPolicy: this machine has {len(topology.nodes)} NUMA nodes, more than the {most} that "
            f"are allowed; raise {MAX_NODES} in {TOPOLOGY_FIELD} to accept slow admission"
        )
    if closest and not all(node.distances for node in topology.nodes):
        raise ResourceManagerError(
            f"{TOPOLOGY_FIELD}: {CLOSEST}: this machine does not tell the distances of NUMA nodes"
        )
    return TopologyOptions(closest=closest, max_nodes=most)


def _boolean(field: str, name: str, text: str) -> bool:
    value = _WORDS.get(text)
    if value is None:
        raise ResourceManagerError(f"{field}: {name}: {text[:40]!r} must be true or false")
    return value
