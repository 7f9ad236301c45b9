"""The runtime in memory (`pykubelet.hollow`) as tests use it: every call is kept and counted by the spin guard."""

from __future__ import annotations

from collections.abc import Mapping

from pykubelet.hollow.cri import MemoryCri
from pykubelet.hollow.cri_values import NOTHING, Call, Subject
from tests.spin_guard import note


class FakeCri(MemoryCri):
    """`FakeCri(clock)`, then add_image(), program() and friends; hand it to whoever wants a CriClient."""

    _calls: list[Call] | None = None

    @property
    def calls(self) -> list[Call]:
        """Every call so far, oldest first."""
        if self._calls is None:
            self._calls = []
        return self._calls

    def called(self, verb: str, name: str | None = None) -> list[Call]:
        """The recorded calls of a verb, optionally those about one pod, container or image."""
        return [c for c in self.calls if c.verb == verb and (name is None or name in c.about)]

    async def _enter(
        self,
        verb: str,
        about: Subject = NOTHING,
        *,
        args: Mapping[str, object] | None = None,
        deadline: float | None = -1.0,
    ) -> None:
        self.calls.append(Call(verb=verb, about=about, args=args or {}, at=self.clock.monotonic()))
        note(f"runtime call {verb} {about.name or about.id} {about.pod_uid}")
        await super()._enter(verb, about, args=args, deadline=deadline)
