"""The workload file of hollow nodes: how machines look, how long calls take, what programs do, what fails.

Every amount of seconds is a number or a spread that it is drawn from: `{median, p99}` (log-normal, as latencies are),
`{min, max}` (even) or `{of: [...]}` (one of these), the first also with bounds. Every share is between 0 and 1.
Does not cover: what the drawn figures do (node.py, failures.py).
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct, field

from pykubelet.api.codec import ManifestError
from pykubelet.api.documents import load_yaml_documents
from pykubelet.api.quantity import Quantity, QuantityError
from pykubelet.model.errors import PykubeletError

P99: Final = 2.3263
"""Standard deviations from the median to the 99th percentile of a normal distribution."""


class WorkloadError(PykubeletError):
    """The workload file cannot be used."""


class Spread(Struct, frozen=True, forbid_unknown_fields=True):
    median: float = 0.0
    p99: float = 0.0
    min: float = 0.0
    max: float = math.inf
    of: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if min(self.median, self.p99, self.min, *self.of) < 0 or self.max < self.min:
            raise ValueError("seconds must not be negative, nor max less than min")
        if self.median and self.p99 < self.median:
            raise ValueError("p99 must not be less than median")
        if not self.of and not self.median and not math.isfinite(self.max):
            raise ValueError("needs median and p99, or min and max, or of")

    def draw(self, rng: random.Random) -> float:
        if self.of:
            return rng.choice(self.of)
        if self.median:
            spread = math.log(self.p99 / self.median) / P99
            return min(max(rng.lognormvariate(math.log(self.median), spread), self.min), self.max)
        return rng.uniform(self.min, self.max)


Seconds = float | Spread


def drawn(seconds: Seconds, rng: random.Random) -> float:
    return seconds.draw(rng) if isinstance(seconds, Spread) else seconds


class MachinePlan(Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """What every node says about its machine."""

    cpus: int = 8
    memory: str = "32Gi"
    disk: str = "100Gi"
    pods: int = 110
    zones: int = 0
    """Nodes are in zone-0, zone-1 … in turn (label topology.kubernetes.io/zone); 0: in none."""
    labels: Mapping[str, str] = field(default_factory=dict)


class RuntimePlan(Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """How long calls of the container runtime take, and which share of them fails."""

    sandbox: Seconds = 0.0
    create: Seconds = 0.0
    start: Seconds = 0.0
    sandbox_failures: float = 0.0
    start_failures: float = 0.0


class ImagesPlan(Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Every image exists in the pretended registry."""

    size: str = "100Mi"
    sizes: Mapping[str, str] = field(default_factory=dict)
    """By pattern of the full name, as in docker.io/library/nginx:1; the first that matches counts."""
    bytes_per_second: str = "100Mi"
    """Of one pull."""
    latency: Seconds = 0.0
    """Beside the bytes."""
    failures: float = 0.0

    def size_of(self, image: str) -> int:
        found = next((size for pattern, size in self.sizes.items() if fnmatchcase(image, pattern)), self.size)
        return Quantity.parse(found).value()

    def pull_takes(self, size: int, rng: random.Random) -> float:
        return drawn(self.latency, rng) + size / max(1, Quantity.parse(self.bytes_per_second).value())


class Program(Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """What the programs of some containers do."""

    namespaces: str = "*"
    pods: str = "*"
    containers: str = "*"
    images: str = "*"
    """Patterns; all must match. Of images the name as the pod has it."""
    runs: Seconds | None = None
    """Seconds from start to its own end; never without it."""
    exit_code: int = 0
    crashes: float = 0.0
    """Share of runs that end early, with exit code 1."""
    crash_after: Seconds = 1.0
    out_of_memory: float = 0.0
    """Share of these early ends that are out-of-memory kills."""
    stops: Seconds = 0.0
    """Seconds from SIGTERM to its end."""
    ignores_sigterm: bool = False
    ready_after: Seconds = 0.0
    """Seconds from start until probes are answered."""
    probe_failures: float = 0.0
    """Share of probes that are not answered after that."""

    def fits(self, namespace: str, pod: str, container: str, image: str) -> bool:
        return (
            fnmatchcase(namespace, self.namespaces)
            and fnmatchcase(pod, self.pods)
            and fnmatchcase(container, self.containers)
            and fnmatchcase(image, self.images)
        )


class Failure(Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Something that happens to every node now and then."""

    every: float
    """Mean seconds between two of them on one node."""
    lasts: Seconds = 60.0


class FailuresPlan(Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    agent: Failure | None = None
    """The agent is killed and started again later; its containers go on meanwhile."""
    runtime: Failure | None = None
    """The container runtime does not answer; its containers go on meanwhile."""
    power: Failure | None = None
    """The machine is off, and boots again later."""

    def kinds(self) -> dict[str, Failure]:
        """What happens, by its kind."""
        kinds = {"agent": self.agent, "runtime": self.runtime, "power": self.power}
        return {kind: failure for kind, failure in kinds.items() if failure is not None}


class Workload(Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    machine: MachinePlan = MachinePlan()
    runtime: RuntimePlan = RuntimePlan()
    images: ImagesPlan = ImagesPlan()
    programs: tuple[Program, ...] = ()
    """The first that fits a container counts; where none does, the program runs until it is stopped."""
    failures: FailuresPlan = FailuresPlan()

    def program_of(self, namespace: str, pod: str, container: str, image: str) -> Program:
        found = (each for each in self.programs if each.fits(namespace, pod, container, image))
        return next(found, USUAL)


USUAL: Final = Program()


def load_workload(path: Path) -> Workload:
    """Raises WorkloadError, with the place in the file."""
    try:
        documents = load_yaml_documents(path.read_bytes())
        workload = msgspec.convert(documents[0] if documents else {}, Workload)
        _check(workload)
    except OSError as error:
        raise WorkloadError(f"{path}: {error.strerror or error}") from error
    except (ManifestError, msgspec.ValidationError, QuantityError) as error:
        raise WorkloadError(f"{path}: {error}") from error
    return workload


def _check(workload: Workload) -> None:
    machine, images, runtime = workload.machine, workload.images, workload.runtime
    amounts: Sequence[str] = (machine.memory, machine.disk, images.size, images.bytes_per_second)
    for amount in (*amounts, *images.sizes.values()):
        Quantity.parse(amount)
    shares = {
        "runtime.sandboxFailures": runtime.sandbox_failures,
        "runtime.startFailures": runtime.start_failures,
        "images.failures": images.failures,
    }
    for number, program in enumerate(workload.programs):
        shares[f"programs[{number}].crashes"] = program.crashes
        shares[f"programs[{number}].outOfMemory"] = program.out_of_memory
        shares[f"programs[{number}].probeFailures"] = program.probe_failures
    for place, share in shares.items():
        if not 0 <= share <= 1:
            raise msgspec.ValidationError(f"{place}: {share:g} is no share between 0 and 1")
    for kind, failure in workload.failures.kinds().items():
        if failure.every <= 0:
            raise msgspec.ValidationError(f"failures.{kind}.every: must be more than 0 seconds")
