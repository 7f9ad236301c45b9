"""What drivers of dynamic resources say about the health of devices, kept in memory and in `dra_health_state`.

The file is upstream's, both ways: without it a restarted agent would report every device as Unknown until its driver
speaks again. It is written when something has changed. A device of which nothing was heard for its time is forgotten.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path

import msgspec

from pykubelet.api.times import format_nano_time, parse_nano_time
from pykubelet.clients.plugins.port import ClaimedHealth
from pykubelet.kit.clock import Clock
from pykubelet.kit.files import Checkpoint
from pykubelet.kit.tasks import Wakeup

logger = logging.getLogger(__name__)

FILE = "dra_health_state"
MESSAGE_LIMIT = 1024
MOST_DEVICES = 10_000
"""Of one driver; what it reports beyond that is left out."""
DEFAULT_TIMEOUT = 30.0
NANOSECONDS = 1_000_000_000
WRITE_AGAIN = 30.0

Key = tuple[str, str]
"""Pool and device."""
Known = Mapping[str, Mapping[Key, tuple[ClaimedHealth, float]]]
"""By driver; with the time of the loop at which it was heard."""


class DeviceHealthCache:
    def __init__(self, path: Path, clock: Clock) -> None:
        self._clock = clock
        self._checkpoint: Checkpoint[Known] = Checkpoint(path, encode=self._encode, decode=self._decode)
        self._known: dict[str, Mapping[Key, tuple[ClaimedHealth, float]]] = {}
        self._unwritten = Wakeup()

    def load(self) -> None:
        self._known = dict(self._checkpoint.load() or {})

    def get(self, driver: str, pool: str, device: str) -> ClaimedHealth | None:
        """What is known; None when that is nothing, or too old."""
        found = self._known.get(driver, {}).get((pool, device))
        return found[0] if found is not None and self._is_fresh(found) else None

    def report(self, driver: str, devices: Sequence[ClaimedHealth] | None) -> set[Key]:
        """Take what a driver says, None when it is gone; return the devices of which something else is known now."""
        before = self._known.get(driver, {})
        fresh = self._fresh(driver)
        if devices is None:
            self._known.pop(driver, None)
            changed = set(before)
        else:
            now = self._clock.monotonic()
            said = {
                (each.pool, each.device): (msgspec.structs.replace(each, message=shortened(each.message)), now)
                for each in islice(devices, MOST_DEVICES)
            }
            changed = {key for key, (each, _) in said.items() if fresh.get(key) != each}
            changed |= before.keys() - fresh.keys()
            kept = (key for key in fresh if key not in said)
            said.update((key, before[key]) for key in islice(kept, MOST_DEVICES - len(said)))
            self._known[driver] = said
        if changed:
            self._unwritten.set()
        return changed

    async def run(self) -> None:
        """Write what has changed."""
        while True:
            await self._unwritten.wait()
            # Here, not with each report: to encode ten thousand devices took the loop 60 ms.
            self._checkpoint.put(self._known)
            try:
                await self._checkpoint.flush()
            except OSError as error:
                logger.error("health of devices not written, will retry", extra={"error": str(error)})
                await self._clock.sleep(WRITE_AGAIN)
                self._unwritten.set()

    def _fresh(self, driver: str) -> dict[Key, ClaimedHealth]:
        return {key: found[0] for key, found in self._known.get(driver, {}).items() if self._is_fresh(found)}

    def _is_fresh(self, found: tuple[ClaimedHealth, float]) -> bool:
        return self._clock.monotonic() <= found[1] + found[0].stale_after

    # --- on disk ------------------------------------------------------------------------------------------------

    def _encode(self, known: Known) -> bytes:
        now, passed = self._clock.now_ns(), self._clock.monotonic()
        drivers = {
            driver: {
                "Devices": {
                    f"{pool}/{device}": {
                        "PoolName": pool,
                        "DeviceName": device,
                        "Health": each.health,
                        "LastUpdated": format_nano_time(now - round((passed - heard) * NANOSECONDS)),
                        "HealthCheckTimeout": round(each.stale_after * NANOSECONDS),
                        "Message": each.message,
                    }
                    for (pool, device), (each, heard) in devices.items()
                }
            }
            for driver, devices in known.items()
        }
        return json.dumps(drivers, separators=(",", ":")).encode()

    def _decode(self, data: bytes) -> Known:
        now, passed = self._clock.now_ns(), self._clock.monotonic()
        found: dict[str, dict[Key, tuple[ClaimedHealth, float]]] = {}
        for driver, state in msgspec.json.decode(data, type=dict[str, DriverState]).items():
            for each in (state.devices or {}).values():
                health = ClaimedHealth(
                    pool=each.pool,
                    device=each.device,
                    health=each.health,
                    stale_after=each.timeout / NANOSECONDS if each.timeout > 0 else DEFAULT_TIMEOUT,
                    message=each.message,
                )
                age = max(0, now - parse_nano_time(each.updated)) / NANOSECONDS
                found.setdefault(driver, {})[each.pool, each.device] = (health, passed - age)
        return found


def shortened(message: str) -> str:
    data = message.encode()
    return message if len(data) <= MESSAGE_LIMIT else data[: MESSAGE_LIMIT - 3].decode(errors="ignore") + "..."


class DeviceState(msgspec.Struct, frozen=True, kw_only=True):
    """One device in the file."""

    pool: str = msgspec.field(name="PoolName")
    device: str = msgspec.field(name="DeviceName")
    health: str = msgspec.field(name="Health")
    updated: str = msgspec.field(name="LastUpdated")
    timeout: int = msgspec.field(name="HealthCheckTimeout", default=0)
    message: str = msgspec.field(name="Message", default="")


class DriverState(msgspec.Struct, frozen=True, kw_only=True):
    devices: dict[str, DeviceState] | None = msgspec.field(name="Devices", default=None)
