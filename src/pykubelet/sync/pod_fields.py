"""The pod's own fields as files of a downward API volume, told by the same rules as in the environment."""

from __future__ import annotations

from collections.abc import Mapping

from pykubelet.api.quantity import Quantity
from pykubelet.api.types import Pod, ResourceFieldSelector
from pykubelet.model.errors import PykubeletError
from pykubelet.model.pod import find_container
from pykubelet.runtime.spec.downward import Addresses, field_value, resource_value


class PodFields:
    def __init__(self, allocatable: Mapping[str, Quantity]) -> None:
        self._allocatable = allocatable

    def field(self, pod: Pod, path: str) -> str:
        return field_value(pod, path, Addresses())

    def resource(self, pod: Pod, selector: ResourceFieldSelector) -> str:
        found = find_container(pod, selector.container_name or "")
        if found is None:
            raise PykubeletError(f"resourceFieldRef: container {selector.container_name} not found")
        return resource_value(pod, found[1], selector, self._allocatable)
