"""Stand-ins for what a node without an API server does not have, behind the same seams.

Each does exactly what upstream does in standalone mode: nothing, or a plain refusal.
"""

from __future__ import annotations

from pykubelet.api.types import Pod
from pykubelet.model.errors import PykubeletError


class NoMirrors:
    """Static pods have no mirror where there is no API server."""

    async def reconcile(self, pod: Pod) -> None:
        return None


class NoReferencesHeld:
    """Secrets and config maps do not exist; pods that refer to them fail where they use them."""

    def register(self, pod: Pod) -> None:
        return None

    def unregister(self, pod: Pod) -> None:
        return None


class OneHandler:
    """Without RuntimeClass objects every pod runs with the runtime's default handler."""

    async def handler_for(self, pod: Pod) -> str:
        if pod.spec.runtime_class_name:
            raise PykubeletError(
                f"spec.runtimeClassName: {pod.spec.runtime_class_name} cannot be looked up without an API server"
            )
        return ""

    def handler_now(self, pod: Pod) -> str | None:
        return None if pod.spec.runtime_class_name else ""


class NoAddresses:
    """Upstream reports host addresses only when a Node object exists."""

    def host_ips(self) -> tuple[str, ...]:
        return ()
