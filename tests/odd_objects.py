"""Objects as odd as a real API server stores them, by a seed: for fuzz tests of whatever reads them.

`odd()` gives objects that Go reads and runs, whatever is in them; `broken()` gives some that no version of the types
fits, as a newer server or a mistake of ours may bring.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

from tests.deep import deep

TIMES = (
    "0000-01-01T00:00:00Z", "-0001-12-31T23:00:00Z", "0001-01-01T00:00:00Z", "10000-01-01T00:00:00Z",
    "9999-12-31T23:59:59Z", "1969-12-31T23:59:59Z", "2024-02-29T12:00:00Z", "2024-05-01T08:30:00.123456789Z",
    "2024-05-01T08:30:00+14:00", "2262-04-12T00:00:00Z",
)  # fmt: skip
WORDS = ("", "Perhaps", "always", "QUIC", "\u0000", "\u202e", "\U0001f980", "x" * 300, "None", "null", "-1", "../..")


class OddObjects:
    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def odd(self, kind: str, name: str, version: int) -> str:
        """One that must be read."""
        return self._written(self._tree(kind, name, version))

    def broken(self, kind: str, name: str, version: int) -> str:
        """One that cannot be read, except for its name."""
        tree = self._tree(kind, name, version)
        field = self._random.choice(("labels", "annotations", "finalizers", "ownerReferences"))
        tree["metadata"][field] = self._random.choice(("text", 7, True, [[]], {"a": {"b": 1}}))
        return self._written(tree)

    def _tree(self, kind: str, name: str, version: int) -> dict[str, Any]:
        tree: dict[str, Any] = json.loads(json.dumps(_BASES[kind]))
        tree["metadata"] |= {"name": name, "namespace": "ns", "uid": f"uid-{name}", "resourceVersion": str(version)}
        for _ in range(self._random.randrange(4)):
            self._random.choice(_ODDITIES)(self, tree)
        return tree

    def _written(self, tree: dict[str, Any]) -> str:
        text = json.dumps(tree, ensure_ascii=self._random.random() < 0.5)
        if self._random.random() < 0.2:
            text = text.replace('"DEEP"', deep(int(10 ** self._random.uniform(0.5, 3.99))))
        return text

    # What may be odd about an object.

    def _managed_fields(self, tree: dict[str, Any]) -> None:
        entry = {"time": self._random.choice((*TIMES, "", 7)), "fieldsType": "FieldsV1", "fieldsV1": "DEEP"}
        tree["metadata"]["managedFields"] = [entry] * self._random.randrange(1, 4)

    def _unknown_fields(self, tree: dict[str, Any]) -> None:
        place = self._random.choice([tree, *(tree[part] for part in ("metadata", "spec", "status") if tree.get(part))])
        place[f"new{self._random.randrange(9)}"] = self._random.choice(
            ("DEEP", [None, {"a": []}], 10**40, -1.5e300, {"": {"\u0000": None}}, True)
        )

    def _creation(self, tree: dict[str, Any]) -> None:
        tree["metadata"]["creationTimestamp"] = self._random.choice((None, *TIMES))

    def _nulls(self, tree: dict[str, Any]) -> None:
        for field in ("labels", "annotations", "finalizers", "ownerReferences", "generation", "selfLink"):
            if self._random.random() < 0.5:
                tree["metadata"][field] = None
        part = self._random.choice([key for key in tree if key != "metadata"])
        if isinstance(tree[part], dict):
            for field in sorted(tree[part].keys() - {"containers", "nodeName"}):  # without these no server takes a pod
                if self._random.random() < 0.3:
                    tree[part][field] = None

    def _texts(self, tree: dict[str, Any]) -> None:
        size = int(10 ** self._random.uniform(1, 4.5))
        tree["metadata"]["annotations"] = {
            self._random.choice(WORDS): self._random.choice(("x", "\u00e4", "\\")) * size
        }

    def _words(self, tree: dict[str, Any]) -> None:
        if "containers" in (tree.get("spec") or {}) and tree["spec"]["containers"]:
            tree["spec"][self._random.choice(("restartPolicy", "dnsPolicy", "schedulerName"))] = self._word()
            container = tree["spec"]["containers"][0]
            container[self._random.choice(("imagePullPolicy", "terminationMessagePolicy"))] = self._word()
            container["resources"] = {"requests": {self._word(): self._random.choice(("1", 1, 0.5, "1e3", "100m"))}}
        if tree.get("type") is not None:
            tree["type"] = self._word()

    def _times(self, tree: dict[str, Any]) -> None:
        if isinstance(tree.get("status"), dict):
            condition = {"type": self._word(), "status": self._word(), "lastTransitionTime": self._random.choice(TIMES)}
            tree["status"]["conditions"] = [condition] * self._random.randrange(1, 20)
            if "podIP" in tree["status"]:
                tree["status"]["startTime"] = self._random.choice(TIMES)

    def _word(self) -> str:
        return self._random.choice(WORDS)


_ODDITIES: tuple[Callable[[OddObjects, dict[str, Any]], None], ...] = (
    OddObjects._managed_fields,
    OddObjects._managed_fields,
    OddObjects._unknown_fields,
    OddObjects._creation,
    OddObjects._nulls,
    OddObjects._texts,
    OddObjects._words,
    OddObjects._times,
)
_BASES: dict[str, dict[str, Any]] = {
    "Pod": {
        "metadata": {},
        "spec": {
            "nodeName": "node1",
            "containers": [{"name": "app", "image": "busybox:1", "ports": [{"containerPort": 80}], "env": None}],
            "volumes": [{"name": "v", "projected": {"sources": None}}],
        },
        "status": {"phase": "Pending", "podIP": "", "conditions": None},
    },
    "Service": {
        "metadata": {},
        "spec": {"clusterIP": "10.0.0.1", "ports": [{"port": 80, "targetPort": "http"}], "externalIPs": None},
        "status": {"loadBalancer": {}},
    },
    "Secret": {"metadata": {}, "data": {"a": "eA=="}, "type": "Opaque"},
    "ConfigMap": {"metadata": {}, "data": {"a": "x", "": None}, "binaryData": None},
}
