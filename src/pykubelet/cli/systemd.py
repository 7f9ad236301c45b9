"""systemd and logind for the agent: connected only where the settings, or the runtime, ask for them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from pykubelet.clients.dbus.port import BusDown, BusRefused, Logind
from pykubelet.clients.host.port import Slices
from pykubelet.model.errors import PykubeletError
from pykubelet.node.shutdown import turns_of
from pykubelet.settings.settings import Settings


@asynccontextmanager
async def connected_slices(settings: Settings, *, told: str, unified: bool) -> AsyncIterator[Slices | None]:
    """systemd, if it keeps the cgroups; `told` is what the runtime says about that, '' when it does not.

    Raises PykubeletError when systemd is to keep them and cannot be reached.
    """
    cgroups = settings.config.cgroups
    if (told or cgroups.cgroup_driver) != "systemd" or not cgroups.cgroups_per_qos:
        yield None
        return
    from pykubelet.clients.dbus.systemd import DbusSystemd, SystemdSlices

    systemd = DbusSystemd()
    try:
        try:
            await systemd.open()
        except (BusDown, BusRefused) as error:
            who = "the container runtime uses systemd for cgroups" if told else "systemd is to keep the cgroups"
            raise PykubeletError(
                f"cgroupDriver (--cgroup-driver): {who}, but it does not answer: {error}; "
                "set the runtime and cgroupDriver to cgroupfs, or run where systemd does"
            ) from error
        yield SystemdSlices(systemd=systemd, unified=unified)
    finally:
        await systemd.close()


def logind_for(settings: Settings) -> Logind | None:
    """logind, if shutdowns are to wait for pods."""
    if not settings.gates.enabled("GracefulNodeShutdown") or not turns_of(settings.config.shutdown):
        return None
    from pykubelet.clients.dbus.logind import DbusLogind

    return DbusLogind()
