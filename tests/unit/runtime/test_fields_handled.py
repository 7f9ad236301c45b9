"""No field of a pod is dropped by oversight: each is used somewhere outside the generated types, or named here.

A field that upstream adds and the generator brings in fails this test until somebody decided about it.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import msgspec
import pytest

import pykubelet
from pykubelet.api import types

NOT_THE_NODES = {
    "PodSpec": {
        "automount_service_account_token": "the API server adds the volume",
        "preemption_policy": "the scheduler's",
        "scheduler_name": "the scheduler's",
        "scheduling_gates": "the scheduler's",
        "service_account": "the old name of service_account_name",
        "topology_spread_constraints": "the scheduler's",
    },
    "PodSecurityContext": {"windows_options": "another system's"},
    "SecurityContext": {"windows_options": "another system's"},
}
KINDS: tuple[type[msgspec.Struct], ...] = (
    types.PodSpec,
    types.Container,
    types.EphemeralContainer,
    types.PodSecurityContext,
    types.SecurityContext,
    types.SELinuxOptions,
    types.SeccompProfile,
    types.AppArmorProfile,
    types.Capabilities,
    types.Probe,
    types.Lifecycle,
    types.LifecycleHandler,
    types.HTTPGetAction,
    types.TCPSocketAction,
    types.GRPCAction,
    types.ContainerPort,
    types.ContainerRestartRule,
    types.ContainerRestartRuleOnExitCodes,
    types.EnvVarSource,
    types.EnvFromSource,
    types.FileKeySelector,
    types.PodDNSConfig,
    types.ResourceRequirements,
    types.VolumeMount,
)


@cache
def used() -> frozenset[str]:
    """Every attribute name that the hand-written code reads."""
    root = Path(pykubelet.__file__).parent
    files = (file for file in root.rglob("*.py") if file.relative_to(root).parts[0] not in ("api", "wire"))
    return frozenset(name for file in files for name in re.findall(r"(?:\.|\(\w+, \")([a-z_0-9]+)\b", file.read_text()))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: str(kind.__name__))
def test_every_field_is_used_or_known_not_to_be_the_nodes(kind: type[msgspec.Struct]) -> None:
    unused = set(kind.__struct_fields__) - used()
    assert unused == set(NOT_THE_NODES.get(kind.__name__, {}))
