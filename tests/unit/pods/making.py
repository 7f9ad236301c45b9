"""Pods, nodes and contexts of admission, written as a manifest would write them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pykubelet.api.quantity import Quantity
from pykubelet.api.types import Pod
from pykubelet.model.pod import SOURCE_ANNOTATION
from pykubelet.pods.admission import AdmissionContext
from pykubelet.pods.predicates import NodeInfo
from pykubelet.pods.sysctls import SysctlAllowList
from tests.builders import a_decoded_pod


def a_pending_pod(
    name: str = "web",
    *,
    static: bool = False,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    status: Mapping[str, Any] | None = None,
    **spec: Any,
) -> Pod:
    """A pod that waits for admission, unless `status` says otherwise; `spec` in wire names."""
    source = {SOURCE_ANNOTATION: "file"} if static else {}
    metadata = {"labels": labels or {}, "annotations": {**(annotations or {}), **source}}
    return a_decoded_pod(name, metadata=metadata, status={"phase": "Pending"} if status is None else status, **spec)


def container_manifest(name: str = "c", *, requests: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    resources = {"requests": requests or {}, "limits": fields.pop("limits", {})}
    return {"name": name, "image": "i", "resources": resources, **fields}


def a_requesting_pod(name: str = "web", *, static: bool = False, priority: int | None = None, **requests: Any) -> Pod:
    """A pod with one container that requests so much: `a_requesting_pod(cpu="1", memory="1Gi")`."""
    return a_pending_pod(name, static=static, priority=priority, containers=[container_manifest(requests=requests)])


def a_node(name: str = "n1", *, allocatable: dict[str, str] | None = None, **fields: Any) -> NodeInfo:
    amounts = {"pods": "110", "cpu": "4", "memory": "8Gi", **(allocatable or {})}
    return NodeInfo(name=name, allocatable={k: Quantity.parse(v) for k, v in amounts.items()}, **fields)


def an_admission_context(*, node: NodeInfo | None = None, others: Sequence[Pod] = (), **facts: Any) -> AdmissionContext:
    facts.setdefault("sysctls", SysctlAllowList.for_kernel("6.1.0"))
    return AdmissionContext(node=node or a_node(), others=others, **facts)
