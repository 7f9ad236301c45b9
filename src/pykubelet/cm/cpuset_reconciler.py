"""Keeps the CPUs that running containers may use at what the CPU manager's state says.

Containers are created with the right set; when the shared pool changes afterwards, every container in it must move.
That happens as soon as the pool changes, not at the next tick; a tick (`cpuManagerReconcilePeriod`) only catches
what the runtime refused. After a restart of the agent every container is updated once: its set is not known.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator

from msgspec import Struct

from pykubelet.clients.cri.port import CriClient
from pykubelet.cm.errors import NotWritten
from pykubelet.cm.state import ManagerStates
from pykubelet.kit.limits import Once
from pykubelet.kit.tasks import Wakeup
from pykubelet.model.errors import CriError, CriNotFound, RuntimeDown
from pykubelet.model.topology import Cpus, format_cpu_list
from pykubelet.pods.table import PodTable
from pykubelet.wire import cri_pb2

logger = logging.getLogger(__name__)


class RunningContainer(Struct, frozen=True, kw_only=True):
    pod_uid: str
    name: str
    id: str


class CpusetReconciler:
    def __init__(
        self,
        *,
        cri: CriClient,
        running: Callable[[], Iterable[RunningContainer]],
        states: ManagerStates,
        period: float,
    ) -> None:
        """`period`: seconds between ticks; 0 = none."""
        self._cri = cri
        self._running = running
        self._states = states
        self._cpus_of = states.cpus.owned_or_shared
        self._period = period
        self._signal = Wakeup()
        self._created: dict[tuple[str, str], Cpus] = {}
        """Sets that containers were created with whose ids are not known yet."""
        self._applied: dict[str, Cpus] = {}
        self._logged: Once[str] = Once()

    def soon(self) -> None:
        """The shared pool changed, or a container started that may have been created before it did."""
        self._signal.set()

    def created(self, uid: str, container: str, cpus: Cpus) -> None:
        """The next container of this name starts with this set."""
        self._created[uid, container] = cpus

    def forget(self, uid: str) -> None:
        """The pod is gone, with containers that perhaps never ran."""
        self._created = {key: cpus for key, cpus in self._created.items() if key[0] != uid}

    async def run(self) -> None:
        while True:
            await self._signal.wait(self._period if self._period > 0 else None)
            await self.bring_up_to_date()

    async def bring_up_to_date(self) -> None:
        """Update every running container in the runtime whose set is another than the one applied last."""
        running = list(self._running())
        ids = {each.id for each in running}
        self._applied = {id_: cpus for id_, cpus in self._applied.items() if id_ in ids}
        for each in running:
            if each.id not in self._applied:
                created = self._created.pop((each.pod_uid, each.name), None)
                if created is not None:
                    self._applied[each.id] = created
            try:
                await self._apply(each)
            except CriNotFound:
                continue  # it ended meanwhile
            except RuntimeDown:
                return
            except (CriError, NotWritten) as error:
                self._complain(each, str(error))

    async def _apply(self, container: RunningContainer) -> None:
        # Read at the last moment: the pool may change while others are being updated.
        if self._applied.get(container.id) == self._cpus_of(container.pod_uid, container.name):
            return
        await self._states.written()  # no container moves before a restarted agent would know why
        cpus = self._cpus_of(container.pod_uid, container.name)
        if not cpus:
            self._complain(container, "every CPU that is not reserved belongs to some container")
            return
        text = format_cpu_list(cpus)
        await self._cri.update_container_resources(container.id, cri_pb2.LinuxContainerResources(cpuset_cpus=text))
        self._applied[container.id] = cpus
        self._logged.clear(container.id)
        logger.debug("container moved to CPUs", extra={"container": container.name, "cpus": text})

    def _complain(self, container: RunningContainer, why: str) -> None:
        if self._logged.is_new(container.id, why):
            logger.warning(
                "CPUs of a container cannot be set, will retry",
                extra={"uid": container.pod_uid, "container": container.name, "error": why},
            )


def running_containers(table: PodTable) -> Iterator[RunningContainer]:
    """Running containers of pods that have a worker."""
    for record in table:
        if record.worker is not None and record.runtime is not None:
            for each in record.runtime.status.running():
                yield RunningContainer(pod_uid=record.uid, name=each.name, id=each.id)
