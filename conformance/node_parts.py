"""Which specs of the node suite belong together: each part is one run of ginkgo with its own options and results."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

WHOLE_MACHINE = "more memory than node allocatable|MemoryAllocatableEviction|MemoryEviction|PidEviction|swap stress"
"""Specs that use up all memory or process numbers of the machine, outside the bed too."""
FLAKY = rf"\[Flaky\]|{WHOLE_MACHINE}"
FEATURES = rf"{FLAKY}|\[Feature:.+\]"
"""What the suite itself skips when it is started without a selection, and what a bed must not do to its machine."""
PARALLEL = 6
OWN_PART = "Feature: containsAny {OffByDefault, CriProxy, StandaloneMode, LockContention}"
"""Features whose specs want other options of the suite, and with that a run of their own."""

ALL_GATES = (
    "--feature-gates=AllAlpha=true,AllBeta=true",
    "--service-feature-gates=AllAlpha=true,AllBeta=true",
    "--runtime-config=api/all=true",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A selection."""

    what: str
    """For the table in docs/conformance.md."""
    labels: str
    skip: str = FLAKY
    processes: int = 1
    suite: Sequence[str] = ()
    """Options of e2e_node.test."""
    focus: str = ""
    guest: bool = False
    """On a machine of its own instead of a set of namespaces."""


PARTS = {
    "parallel": Part(what="default selection, not Serial", labels="!Serial", skip=FEATURES, processes=PARALLEL),
    "serial": Part(what="default selection, Serial", labels="Serial", skip=FEATURES),
    "features": Part(
        what="behind feature labels, not Serial",
        labels=f"!Serial && !Feature: isEmpty && !({OWN_PART})",
        processes=PARALLEL,
    ),
    "features-serial": Part(
        what="behind feature labels, Serial",
        labels=f"Serial && !Feature: isEmpty && !({OWN_PART})",
    ),
    "gates": Part(
        what="gates that are off by default",
        labels="Feature: containsAny {OffByDefault} && !(Feature: containsAny {CriProxy, StandaloneMode})",
        suite=ALL_GATES,
    ),
    "cri-proxy": Part(
        what="faults injected between kubelet and runtime",
        labels="Feature: containsAny {CriProxy} && !(Feature: containsAny {OffByDefault})",
        suite=("--cri-proxy-enabled=true",),
    ),
    "cri-proxy-gates": Part(
        what="the same, gates that are off by default",
        labels="Feature: containsAny {CriProxy} && Feature: containsAny {OffByDefault}",
        suite=("--cri-proxy-enabled=true", *ALL_GATES),
    ),
    "standalone": Part(
        what="kubelet without API server",
        labels="Feature: containsAny {StandaloneMode}",
        suite=("--standalone-mode=true",),
    ),
    "guest": Part(
        what="on a guest: what needs systemd, cgroup v2, CPUs, NUMA nodes, swap or all memory",
        labels="!(Feature: containsAny {OffByDefault, CriProxy, StandaloneMode})",
        skip=r"\[Flaky\]",
        focus="GracefulNodeShutdown|Swap |MemoryQoS|(CPU|Memory|Topology) Manager|Eviction|HugePages|OOMKiller|"
        "Summary API|runtime is temporarily down|PrivilegedPod|PLR guaranteed qos - 1 container with resize policy|"
        "Node Container Manager|PSI|user namespaces|Container Manager Misc|SystemNodeCriticalPod|"
        "should report container metrics",
        guest=True,
    ),
    "lock-contention": Part(
        what="a second holder of the lock file",
        labels="Feature: containsAny {LockContention}",
        suite=("--kubelet-flags=--lock-file=/var/run/kubelet.lock", "--kubelet-flags=--exit-on-lock-contention"),
    ),
}


def exactly(names: Iterable[str]) -> str:
    """A pattern that focuses on specs of these names."""
    return "|".join(re.sub(r"([\\.+*?()|\[\]{}^$])", r"\\\1", name) for name in sorted(names))


def ginkgo_options(part: Part, *, focus: str, skip: str, labels: str, processes: int, longest: str) -> list[str]:
    """`focus`, `skip` and `labels` narrow the part further."""
    chosen = f"({part.labels}) && ({labels})" if labels else part.labels
    return [
        f"--procs={processes or part.processes}",
        f"--timeout={longest}",
        f"--label-filter={chosen}",
        f"--skip={part.skip}|{skip}" if skip else f"--skip={part.skip}",
        *([f"--focus={focus or part.focus}"] if focus or part.focus else []),
    ]
