"""After the reboot: pods that ended by the shutdown and that their controller has replaced long since are deleted.

Otherwise every reboot leaves a crop of dead pods in the cluster, which nobody deletes before there are thousands. Pods
without a controller stay: they are somebody's own. So do those of Jobs, whose controller counts them. Does nothing
while the machine goes down: then people want to see what became of their pods.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Final

from pykubelet.api.types import Pod
from pykubelet.clients.kube.port import KubeClient
from pykubelet.model.errors import ApiConflict, ApiNotFound
from pykubelet.model.pod import (
    deletion_requested,
    is_mirror,
    is_static,
    is_terminal_phase,
    name_of,
    namespace_of,
    readable,
    uid_of,
)
from pykubelet.shutdown.manager import MESSAGE, REASON

logger = logging.getLogger(__name__)

REPLACING: Final = frozenset({"ReplicaSet", "ReplicationController", "DaemonSet", "StatefulSet"})
"""Controllers that have made another pod in place of the dead one."""
REFUSED: Final = "NodeShutdown"


class Leftovers:
    def __init__(
        self,
        *,
        client: KubeClient,
        pods: Callable[[], Iterable[Pod]],
        is_over: Callable[[str], bool],
        shutting_down: Callable[[], bool],
    ) -> None:
        """`pods` as the API server has them; `is_over(uid)`: nothing of the pod is left here."""
        self._client = client
        self._pods = pods
        self._is_over = is_over
        self._shutting_down = shutting_down

    async def sweep(self) -> None:
        """One pass; a chore of housekeeping. Raises ApiError."""
        if self._shutting_down():
            return
        for pod in [each for each in self._pods() if is_leftover(each) and self._is_over(uid_of(each))]:
            try:
                await self._client.delete(Pod, name_of(pod), namespace_of(pod), grace_seconds=0, uid=uid_of(pod))
            except (ApiNotFound, ApiConflict):
                continue  # gone already, or another pod has its name
            logger.info("a pod that ended by the last shutdown is deleted", extra={"pod": readable(pod)})


def is_leftover(pod: Pod) -> bool:
    status = pod.status
    ended = status.reason == REFUSED or (status.reason == REASON and status.message == MESSAGE)
    if not is_terminal_phase(status.phase) or not ended or deletion_requested(pod) or is_static(pod) or is_mirror(pod):
        return False
    return any(owner.controller and owner.kind in REPLACING for owner in pod.metadata.owner_references)
