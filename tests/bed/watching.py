"""A live copy of objects as the API server shows them, kept by a watch in a thread, with everything that happened.

Tests wait for states on it without polling, and can ask afterwards whether a state was ever seen. Survives an outage
of the API server: it lists again, so that what happened meanwhile shows as one step.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from tests.bed.cluster import Cluster

T = TypeVar("T")
Objects = dict[str, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Seen:
    at: float
    """time.monotonic()"""
    type: str
    object: dict[str, Any]


class Watching:
    def __init__(self, cluster: Cluster, path: str) -> None:
        self._cluster = cluster
        self._path = path
        self._tls = ssl.create_default_context(cafile=str(cluster.ca_file))
        self._tls.load_cert_chain(cluster.admin.certificate, cluster.admin.key)
        self._news = threading.Condition()
        self._objects: Objects = {}
        self._stopping = False
        self._connection: http.client.HTTPSConnection | None = None
        self._thread = threading.Thread(target=self._run, name=f"watching {path}", daemon=True)
        self._listed = False
        self.history: list[Seen] = []

    def wait(self, what: str, holds: Callable[[Objects], T], within: float = 30.0) -> T:
        """The first true answer of `holds(objects by namespace/name)`; asked again after every change."""
        deadline = time.monotonic() + within
        with self._news:
            while not (answer := holds(self._objects)):
                left = deadline - time.monotonic()
                if left <= 0:
                    raise AssertionError(f"not within {within:g} s: {what}; there is: {_told(self._objects)}")
                self._news.wait(left)
            return answer

    @property
    def objects(self) -> Objects:
        with self._news:
            return dict(self._objects)

    def since(self, moment: float) -> list[Seen]:
        with self._news:
            return [seen for seen in self.history if seen.at >= moment]

    def start(self) -> None:
        self._thread.start()
        self.wait(f"first list of {self._path}", lambda objects: self._listed)

    def stop(self) -> None:
        self._stopping = True
        connection = self._connection
        if connection is not None and connection.sock is not None:
            with contextlib.suppress(OSError):
                connection.sock.shutdown(socket.SHUT_RDWR)  # wakes the thread from its read
        self._thread.join(10)

    def _run(self) -> None:
        while not self._stopping:
            try:
                self._follow(self._list())
            except (OSError, http.client.HTTPException, ValueError):
                if not self._stopping:
                    time.sleep(0.1)

    def _list(self) -> str:
        with self._open("") as answer:
            found = json.load(answer)
        now = {_key(each): each for each in found["items"]}
        with self._news:
            for key in self._objects.keys() - now.keys():
                self._note("DELETED", self._objects[key])
            for each in now.values():
                self._note("ADDED", each)
            self._listed = True
            self._news.notify_all()
        return str(found["metadata"]["resourceVersion"])

    def _follow(self, version: str) -> None:
        with self._open(f"watch=1&allowWatchBookmarks=true&resourceVersion={version}") as answer:
            while line := answer.readline():
                event = json.loads(line)
                if event["type"] == "ERROR":
                    return
                if event["type"] != "BOOKMARK":
                    with self._news:
                        self._note(event["type"], event["object"])
                        self._news.notify_all()

    def _note(self, type_: str, obj: dict[str, Any]) -> None:
        if type_ == "DELETED":
            self._objects.pop(_key(obj), None)
        else:
            self._objects[_key(obj)] = obj
        self.history.append(Seen(time.monotonic(), type_, obj))

    @contextmanager
    def _open(self, query: str) -> Iterator[http.client.HTTPResponse]:
        joint = "&" if "?" in self._path else "?"
        connection = http.client.HTTPSConnection("127.0.0.1", self._cluster.port, context=self._tls, timeout=30)
        self._connection = connection
        try:
            connection.request("GET", self._path + (joint + query if query else ""))
            answer = connection.getresponse()
            if answer.status != 200:
                raise OSError(f"status {answer.status}")
            if connection.sock is not None and query:
                connection.sock.settimeout(None)
            yield answer
        finally:
            connection.close()


def _key(obj: dict[str, Any]) -> str:
    meta = obj["metadata"]
    return f"{meta['namespace']}/{meta['name']}" if "namespace" in meta else str(meta["name"])


def _told(objects: Objects) -> str:
    """Enough to see what is wrong."""
    shown = [f"{key}: {json.dumps(each.get('status', {}))[:600]}" for key, each in objects.items()]
    return "\n  ".join(["", *shown[:12]]) or "nothing"


@contextmanager
def watching(cluster: Cluster, path: str) -> Iterator[Watching]:
    """Follow a collection such as `/api/v1/pods` for as long as the block lasts."""
    made = Watching(cluster, path)
    made.start()
    try:
        yield made
    finally:
        made.stop()
