"""The static CPU policy: whole CPUs for containers of Guaranteed pods, all others in the shared pool.

Decides and records in the state (`state.py`), which is written before it is acted on. CPUs of an init container that
has ended are used again by later containers of its pod, those of sidecars are not. A container that has its CPUs
keeps them when it is admitted again, so a restarted agent never moves or rejects what runs. Updating running
containers is in `resource_managers.py`; which CPUs of the free ones is in `cpu_assignment.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Final

from msgspec import Struct

from pykubelet.api.quantity import Quantity
from pykubelet.api.types import Container, Pod
from pykubelet.cm.cpu_assignment import take_distributed, take_packed
from pykubelet.cm.errors import NothingShared, NotWholeCores, Refused, ResourceManagerError
from pykubelet.cm.metrics import PHYSICAL_CPU, UNCORE_CACHE, ResourceManagerMetrics
from pykubelet.cm.requests import container_cpus, containers_of, is_run_to_end, pod_cpus
from pykubelet.cm.state import CpuState
from pykubelet.cm.topology_manager import SINGLE_NUMA_NODE, Hint, Hints, Mask, masks, nodes_of, option_value
from pykubelet.model.pod import uid_of
from pykubelet.model.pod_resources import CPU, has_pod_level_resources
from pykubelet.model.topology import NO_CPUS, Cpus, Topology, format_cpu_list
from pykubelet.settings.gates import Gates

STATIC: Final = "static"
NO_CHOICE: Final[Hints] = {}
IMPOSSIBLE: Final[Hints] = {CPU: ()}


# --- options of the static policy -----------------------------------------------------------------------------
# Which gate an option needs, which exclude each other, which this machine cannot have; the names were checked before.


CPU_FIELD: Final = "cpuManagerPolicyOptions"
FULL_CORES: Final = "full-pcpus-only"
ACROSS_NUMA: Final = "distribute-cpus-across-numa"
BY_SOCKET: Final = "align-by-socket"
ACROSS_CORES: Final = "distribute-cpus-across-cores"
STRICT_RESERVATION: Final = "strict-cpu-reservation"
BY_CACHE: Final = "prefer-align-cpus-by-uncorecache"

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


def cpu_options(given: Mapping[str, str], *, gates: Gates, topology: Topology, topology_policy: str) -> CpuOptions:
    """The options of the static policy."""
    chosen = {name for name, text in given.items() if option_value(CPU_FIELD, name, text)}
    for name in given:
        gate = _GATES.get(name)
        if gate is not None and not gates.enabled(gate):
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


# --- the policy -----------------------------------------------------------------------------------------------


class StaticCpuPolicy:
    """Implements HintProvider."""

    def __init__(
        self,
        *,
        topology: Topology,
        reserved: Cpus,
        options: CpuOptions,
        state: CpuState,
        metrics: ResourceManagerMetrics,
        pod_level: bool = False,
    ) -> None:
        self._topology = topology
        self._reserved = reserved
        # A core that the system uses is no whole core any more.
        self._reserved_cores = topology.within("core", topology.spanned("core", reserved))
        self._options = options
        self._state = state
        self._metrics = metrics
        self._pod_level = pod_level
        self._reusable: tuple[str, Cpus] = ("", NO_CPUS)
        """The pod being admitted, and CPUs of its init containers that will have ended."""
        self.on_change: Callable[[], None] = lambda: None
        """Called when the shared pool changes."""

    # --- start ------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Check the state against the machine, or begin it. ResourceManagerError when they do not fit."""
        state, every = self._state, self._topology.all_cpus
        if self._options.strict_reservation:
            every = every - self._reserved
        if not state.shared and not state.entries:
            state.set_shared(every)
            state.save()
        problem = self._problem(every)
        if problem:
            raise state.problem(problem)
        boundaries = (("container", PHYSICAL_CPU), ("container", UNCORE_CACHE))
        self._metrics.show_alignment(*boundaries)
        self._show()

    def _problem(self, every: Cpus) -> str:
        state, reserved = self._state, format_cpu_list(self._reserved)
        shared = format_cpu_list(state.shared)
        if not state.shared and state.entries:
            return "default cpuset cannot be empty"
        if self._options.strict_reservation and self._reserved & state.shared:
            both = format_cpu_list(self._reserved & state.shared)
            return f'some of strictly reserved cpus: "{both}" are present in defaultCpuSet: "{shared}"'
        if not self._options.strict_reservation and not self._reserved <= state.shared:
            return f'not all reserved cpus: "{reserved}" are present in defaultCpuSet: "{shared}"'
        for uid, containers in state.entries.items():
            for name, cpus in containers.items():
                if cpus & state.shared:
                    own = format_cpu_list(cpus)
                    return f'pod: {uid}, container: {name} cpuset: "{own}" overlaps with default cpuset "{shared}"'
        known = state.shared | state.all_owned() | frozenset().union(*state.pods.values())
        if known != every:
            return (
                f'current set of available CPUs "{format_cpu_list(every)}" doesn\'t match with CPUs in state '
                f'"{format_cpu_list(known)}"'
            )
        return ""

    # --- what there is ----------------------------------------------------------------------------------

    @property
    def allocatable(self) -> Cpus:
        return self._topology.all_cpus - self._reserved

    @property
    def available(self) -> Cpus:
        """CPUs that could be allocated exclusively."""
        return self._state.shared - self._reserved

    # --- hints ------------------------------------------------------------------------------------------

    def hints(self, pod: Pod, container: Container) -> Hints:
        wanted = self._wanted(pod, container)
        if not wanted:
            return NO_CHOICE
        owned = self._state.owned(uid_of(pod), container.name)
        if owned is not None:
            return {CPU: self._places(owned, NO_CPUS, wanted)} if len(owned) == wanted else IMPOSSIBLE
        return {CPU: self._places(self.available, self._reusable_of(pod), wanted)}

    def pod_hints(self, pod: Pod) -> Hints:
        wanted = pod_cpus(pod, pod_level=self._pod_level)
        if not wanted:
            return NO_CHOICE
        uid = uid_of(pod)
        whole = self._state.pods.get(uid)
        if whole is not None:
            return {CPU: self._places(whole, NO_CPUS, wanted)}
        if has_pod_level_resources(pod) and self._shared_problem(pod, wanted):
            return IMPOSSIBLE
        allocated = NO_CPUS
        for each in containers_of(pod):
            owned = self._state.owned(uid, each.name)
            if owned is not None and len(owned) != self._wanted(pod, each):
                return IMPOSSIBLE
            allocated |= owned or NO_CPUS
        if len(allocated) == wanted:
            return {CPU: self._places(allocated, NO_CPUS, wanted)}
        return {CPU: self._places(self.available, self._reusable_of(pod) | allocated, wanted)}

    def _places(self, available: Cpus, reusable: Cpus, wanted: int) -> list[Hint]:
        """Every set of NUMA nodes with enough CPUs, which must include all that will be used again."""
        nodes = self._topology.groups("numa")
        total = {node: len(cpus) for node, cpus in nodes.items()}
        free = {node: len(cpus & available) for node, cpus in nodes.items()}
        needed = self._topology.spanned("numa", reusable)
        fewest = len(nodes)
        found: list[Mask] = []
        for mask in masks(nodes):
            members = nodes_of(mask)
            if sum(total[node] for node in members) >= wanted:
                fewest = min(fewest, len(members))
            if needed <= set(members) and len(reusable) + sum(free[node] for node in members) >= wanted:
                found.append(mask)
        return [Hint(mask, self._is_preferred(mask, fewest)) for mask in found]

    def _is_preferred(self, mask: Mask, fewest: int) -> bool:
        if mask.bit_count() == fewest:
            return True
        if not self._options.by_socket:
            return False
        per_socket = len(self._topology.cpu_nodes) // len(self._topology.groups("socket"))
        if per_socket == 0:
            return False
        spanned = self._topology.spanned("socket", self._topology.within("numa", nodes_of(mask)))
        return len(spanned) == math.ceil(fewest / per_socket)

    # --- allocating -----------------------------------------------------------------------------------------

    def allocate(self, pod: Pod, container: Container, place: Hint) -> None:
        wanted = self._wanted(pod, container)
        if not wanted:
            return
        uid, name = uid_of(pod), container.name
        self._metrics.cpu_requests.inc()
        owned = self._state.owned(uid, name)
        if owned is None:
            try:
                self._check_whole_cores(wanted)
                owned = self._take(wanted, place, self._reusable_of(pod))
            except Refused:
                self._failed("node")
                if self._options.full_cores:
                    self._metrics.unaligned.inc("container", PHYSICAL_CPU)
                raise
            self._state.own(uid, name, owned)
            self._given(owned)
        if self._options.full_cores:
            self._metrics.aligned.inc("container", PHYSICAL_CPU)
        self._note_reusable(pod, container, owned)

    def allocate_pod(self, pod: Pod, place: Hint) -> None:
        wanted = pod_cpus(pod, pod_level=self._pod_level)
        uid = uid_of(pod)
        if not wanted or uid in self._state.pods:
            return
        try:
            problem = self._shared_problem(pod, wanted)
            if problem:
                raise NothingShared(problem)
            self._check_whole_cores(wanted)
            whole = self._take(wanted, place, NO_CPUS)
            self._state.own_pod(uid, whole)
            self._share_out(pod, whole)
        except Refused:
            self._failed("pod")
            self.release(uid)
            raise
        self._given(whole, source="pod")

    def _share_out(self, pod: Pod, whole: Cpus) -> None:
        """Divide the pod's CPUs: exclusive ones to containers that own some, what is left to the others."""
        uid, pool = uid_of(pod), whole
        chosen: dict[str, Cpus] = {}
        for each in containers_of(pod):
            wanted, name = self._wanted(pod, each), each.name
            if wanted:
                self._metrics.cpu_requests.inc()
                chosen[name] = self._choose(pool, wanted)
                self._metrics.containers.inc(CPU, "pod_exclusive")
                if not is_run_to_end(pod, each):
                    pool -= chosen[name]
            elif is_run_to_end(pod, each):
                # Everything but what sidecars started before it own.
                chosen[name] = pool
                self._metrics.containers.inc(CPU, "pod_shared")
        for each in containers_of(pod):
            name = each.name
            if name not in chosen:
                self._metrics.containers.inc(CPU, "pod_shared")
            self._state.own(uid, name, chosen.get(name, pool))
            self._metrics.allocations.inc(CPU, "pod")

    def _shared_problem(self, pod: Pod, whole: int) -> str:
        """Why containers without CPUs of their own would have none at all; empty when they have some."""
        exclusive, shares = 0, False
        for each in containers_of(pod):
            wanted = self._wanted(pod, each)
            if is_run_to_end(pod, each):
                if not wanted and exclusive >= whole:
                    return "pod rejected, pod has shared init containers but no cpus available for them"
                continue
            exclusive += wanted
            shares = shares or not wanted
        if shares and exclusive >= whole:
            return (
                "pod rejected, sum of exclusive container cpu requests equals pod budget, "
                "leaving no cpus for shared containers"
            )
        return ""

    def _wanted(self, pod: Pod, container: Container) -> int:
        return container_cpus(pod, container, pod_level=self._pod_level)

    def _check_whole_cores(self, wanted: int) -> None:
        if not self._options.full_cores:
            return
        per_core = self._topology.threads_per_core
        if wanted % per_core:
            raise NotWholeCores.odd(requested=wanted, per_core=per_core)
        free = len(self._state.shared - self._reserved_cores)
        if wanted > free:
            raise NotWholeCores.too_few(requested=wanted, per_core=per_core, available=free)

    def _take(self, wanted: int, place: Hint, reusable: Cpus) -> Cpus:
        """First what is at the place, then what is missing from anywhere."""
        free = self.available | reusable
        chosen = NO_CPUS
        if place.nodes is not None:
            near = free & self._near(place.nodes)
            chosen = self._choose(near, min(wanted, len(near)))
        chosen |= self._choose(free - chosen, wanted - len(chosen))
        self._state.set_shared(self._state.shared - chosen)
        return chosen

    def _near(self, mask: Mask) -> Cpus:
        cpus = self._topology.within("numa", nodes_of(mask))
        if self._options.by_socket:
            return self._topology.within("socket", self._topology.spanned("socket", cpus))
        return cpus

    def _choose(self, available: Cpus, wanted: int) -> Cpus:
        return choose_cpus(self._topology, available, wanted, self._options)

    # --- reusing and releasing -----------------------------------------------------------------------

    def _reusable_of(self, pod: Pod) -> Cpus:
        uid, cpus = self._reusable
        return cpus if uid == uid_of(pod) else NO_CPUS

    def _note_reusable(self, pod: Pod, container: Container, owned: Cpus) -> None:
        before = self._reusable_of(pod)
        again = before | owned if is_run_to_end(pod, container) else before - owned
        self._reusable = (uid_of(pod), again)

    def lacks(self, pod: Pod, container: Container) -> bool:
        """Whether the container should own CPUs and does not."""
        return self._wanted(pod, container) > 0 and self._state.owned(uid_of(pod), container.name) is None

    def holders(self) -> frozenset[str]:
        return frozenset(self._state.entries) | frozenset(self._state.pods)

    def release(self, uid: str) -> None:
        if uid not in self._state.entries and uid not in self._state.pods:
            return
        self._state.set_shared(self._state.shared | self._state.drop(uid))
        if self._reusable[0] == uid:
            self._reusable = ("", NO_CPUS)
        self._show()
        self.on_change()

    # --- metrics ----------------------------------------------------------------------------------------

    def _given(self, cpus: Cpus, source: str = "node") -> None:
        if len(self._topology.spanned("cache", cpus)) <= 1:
            self._metrics.aligned.inc("container", UNCORE_CACHE)
        if source == "node":
            self._metrics.allocations.inc(CPU, "node")
            self._metrics.containers.inc(CPU, "node_exclusive")
        self._show()
        self.on_change()

    def _failed(self, source: str) -> None:
        self._metrics.cpu_errors.inc()
        self._metrics.allocation_errors.inc(CPU, source)

    def _show(self) -> None:
        owned = self._state.all_owned() & self._topology.all_cpus
        self._metrics.shared_pool.set(len(self.available) * 1000)
        self._metrics.exclusive.set(len(owned))
        nodes = self._topology.groups("numa")
        self._metrics.per_numa.replace({(str(node),): len(cpus & owned) for node, cpus in sorted(nodes.items())})


def choose_cpus(topology: Topology, available: Cpus, wanted: int, options: CpuOptions) -> Cpus:
    """So many of the available CPUs, as the options say."""
    if options.across_numa:
        group = topology.threads_per_core if options.full_cores else 1
        return take_distributed(topology, available, wanted, group=group, spread=options.across_cores)
    return take_packed(topology, available, wanted, spread=options.across_cores, by_cache=options.by_cache)


def reserved_cpus(topology: Topology, named: Cpus, kept: Quantity, options: CpuOptions) -> Cpus:
    """CPUs that are never exclusive: the named ones, else as many as the reservations need, lowest cores first."""
    if kept.is_zero():
        raise ResourceManagerError(
            "cpuManagerPolicy: the static policy requires systemReserved.cpu + kubeReserved.cpu to be greater than "
            "zero, or reservedSystemCPUs"
        )
    count = kept.value()  # rounds up
    found = named
    if not found and count <= len(topology.cpus):
        found = choose_cpus(topology, topology.all_cpus, count, options)
    unknown = found - topology.all_cpus
    if unknown:
        raise ResourceManagerError(f"reservedSystemCPUs: this machine has no CPU {format_cpu_list(unknown)}")
    if len(found) != count:
        raise ResourceManagerError(
            f"cpuManagerPolicy: unable to reserve the required amount of CPUs (size of "
            f"{format_cpu_list(found)!r} did not equal {count})"
        )
    return found
