"""A wire to the API server that can go silent: packets are swallowed, nobody is told, connections stay open.

A TCP proxy in a thread. `cut()` stops forwarding what is connected for good and lets new connections through, as a
firewall does that forgot its state; with `hold=True` new connections hang as well until `mend()`.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

CHUNK = 65536


class SilentWire:
    def __init__(self, target: int) -> None:
        self._target = target
        self._selector = selectors.DefaultSelector()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._pairs: dict[socket.socket, socket.socket] = {}
        self._dead: list[socket.socket] = []
        self._held = False
        self._stopping = False
        self._lock = threading.Lock()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="silent wire", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping = True
        self._thread.join(5)
        for each in [*self._pairs, *self._dead, self._listener]:
            each.close()
        self._selector.close()

    @property
    def connections(self) -> int:
        with self._lock:
            return len(self._pairs) // 2

    def cut(self, *, hold: bool = False) -> int:
        """Swallow everything on what is open now; how many connections that were."""
        with self._lock:
            self._held = hold
            cut = list(self._pairs)
            for each in cut:
                self._selector.unregister(each)
                self._dead.append(each)
            self._pairs.clear()
            return len(cut) // 2

    def mend(self, *, reset: bool = False) -> None:
        """New connections work again; with `reset` those that were cut are ended, as by a peer that forgot them."""
        with self._lock:
            self._held = False
            if reset:
                for each in self._dead:
                    each.close()
                self._dead.clear()

    def _run(self) -> None:
        while not self._stopping:
            for key, _ in self._selector.select(0.2):
                with self._lock, contextlib.suppress(KeyError):
                    self._serve(key.fileobj)

    def _serve(self, ready: object) -> None:
        if ready is self._listener:
            near, _ = self._listener.accept()
            if self._held:
                self._dead.append(near)
                return
            far = socket.create_connection(("127.0.0.1", self._target))
            for one, other in ((near, far), (far, near)):
                self._pairs[one] = other
                self._selector.register(one, selectors.EVENT_READ)
            return
        assert isinstance(ready, socket.socket)
        other = self._pairs[ready]
        try:
            data = ready.recv(CHUNK)
            if data:
                other.sendall(data)
                return
        except OSError:
            pass
        for each in (ready, other):
            self._selector.unregister(each)
            self._pairs.pop(each)
            each.close()


@contextmanager
def silent_wire(target: int) -> Iterator[SilentWire]:
    """A wire to a port of this machine for as long as the block lasts."""
    wire = SilentWire(target)
    wire.start()
    try:
        yield wire
    finally:
        wire.stop()
