"""Pods and contexts for the tests of this folder, written as a manifest would write them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from pykubelet.api.quantity import Quantity
from pykubelet.api.types import Pod
from pykubelet.model.pod import SOURCE_ANNOTATION
from pykubelet.pods.admission import AdmissionContext
from pykubelet.pods.predicates import NodeInfo
from pykubelet.pods.sysctls import SysctlAllowList


def a_pod(name: str = "web", *, uid: str = "", static: bool = False, **spec: Any) -> Pod:
    """`spec` in wire names; `labels`, `annotations` and `status` go where they belong."""
    metadata: dict[str, Any] = {"name": name, "namespace": "default", "uid": uid or f"uid-{name}"}
    metadata["labels"] = spec.pop("labels", {})
    metadata["annotations"] = dict(spec.pop("annotations", {}))
    if static:
        metadata["annotations"][SOURCE_ANNOTATION] = "file"
    metadata.update(spec.pop("metadata", {}))
    status = spec.pop("status", {"phase": "Pending"})
    spec.setdefault("containers", [{"name": "c", "image": "i"}])
    return msgspec.convert({"metadata": metadata, "spec": spec, "status": status}, Pod)


def a_container(name: str = "c", *, requests: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    resources = {"requests": requests or {}, "limits": fields.pop("limits", {})}
    return {"name": name, "image": "i", "resources": resources, **fields}


def asking(name: str = "web", *, static: bool = False, priority: int | None = None, **requests: Any) -> Pod:
    """A pod with one container that requests so much: `asking(cpu="1", memory="1Gi")`."""
    return a_pod(name, static=static, priority=priority, containers=[a_container(requests=requests)])


def a_node(name: str = "n1", *, allocatable: dict[str, str] | None = None, **fields: Any) -> NodeInfo:
    amounts = {"pods": "110", "cpu": "4", "memory": "8Gi", **(allocatable or {})}
    return NodeInfo(name=name, allocatable={k: Quantity.parse(v) for k, v in amounts.items()}, **fields)


def a_context(*, node: NodeInfo | None = None, others: Sequence[Pod] = (), **facts: Any) -> AdmissionContext:
    facts.setdefault("sysctls", SysctlAllowList.for_kernel("6.1.0"))
    return AdmissionContext(node=node or a_node(), others=others, **facts)
