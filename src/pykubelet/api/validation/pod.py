"""Validation of a whole Pod, as an API server would do it when the pod is created.

Covers: everything that a manifest on a node can get wrong, all problems at once.
Does not cover: Windows pods in detail, rules for updates, and limits that depend on a node
(admission). Defaults must have been set before: a missing default is reported as required.
"""

from pykubelet.api.types import Pod, PodSpec
from pykubelet.api.validation import names
from pykubelet.api.validation.containers import RESTART_POLICIES, PodFacts, validate_containers
from pykubelet.api.validation.findings import FieldError, Findings
from pykubelet.api.validation.metadata import validate_metadata
from pykubelet.api.validation.network import validate_network
from pykubelet.api.validation.ports import validate_host_network
from pykubelet.api.validation.resources import (
    validate_overhead,
    validate_pod_claims,
    validate_pod_resources,
)
from pykubelet.api.validation.scheduling import validate_scheduling
from pykubelet.api.validation.security import validate_pod_security, validate_security_annotations
from pykubelet.api.validation.volumes import validate_volumes

MAX_DEADLINE = 2**31 - 1
MIRROR_ANNOTATION = "kubernetes.io/config.mirror"


def validate_pod(pod: Pod) -> list[FieldError]:
    """Every problem of a defaulted pod; empty when it is good.

    Ephemeral containers are checked but not forbidden: pods that already run may carry them, and
    whoever takes only new pods says no itself (manifest.py).
    """
    found = Findings()
    validate_metadata(pod.metadata, "metadata", found)
    if MIRROR_ANNOTATION in pod.metadata.annotations and not pod.spec.node_name:
        found.add("spec.nodeName", f"required with the annotation {MIRROR_ANNOTATION}")
    volumes = validate_volumes(pod, found)
    claims = validate_pod_claims(pod.spec.resource_claims, found)
    validate_containers(
        PodFacts(spec=pod.spec, volumes=volumes, claims=frozenset(claims)),
        found,
    )
    validate_pod_resources(pod.spec, found)
    validate_overhead(pod.spec.overhead, found)
    validate_host_network(pod.spec, found)
    validate_network(pod.spec, found)
    validate_pod_security(pod.spec, found)
    validate_security_annotations(pod, found)
    validate_scheduling(pod.spec, found)
    _validate_lifetime(pod.spec, found)
    _validate_references(pod.spec, found)
    return found.all()


def _validate_lifetime(spec: PodSpec, found: Findings) -> None:
    if found.required("spec.restartPolicy", spec.restart_policy):
        found.choice("spec.restartPolicy", spec.restart_policy, RESTART_POLICIES)
    if spec.termination_grace_period_seconds is None:
        found.add("spec.terminationGracePeriodSeconds", "required")
    found.at_least("spec.terminationGracePeriodSeconds", spec.termination_grace_period_seconds, 0)
    found.between("spec.activeDeadlineSeconds", spec.active_deadline_seconds, 1, MAX_DEADLINE)
    if spec.os is not None and found.required("spec.os.name", spec.os.name):
        found.choice("spec.os.name", spec.os.name, ("linux", "windows"))


def _validate_references(spec: PodSpec, found: Findings) -> None:
    for field, name in (
        ("serviceAccountName", spec.service_account_name),
        ("nodeName", spec.node_name),
        ("priorityClassName", spec.priority_class_name),
    ):
        if name:
            found.check(f"spec.{field}", names.dns_subdomain(name))
    if spec.runtime_class_name is not None:
        found.check("spec.runtimeClassName", names.dns_subdomain(spec.runtime_class_name))
    if spec.service_account_name:
        return
    for i, volume in enumerate(spec.volumes):
        for j, source in enumerate(volume.projected.sources if volume.projected is not None else ()):
            if source.service_account_token is not None:
                found.add(
                    f"spec.volumes[{i}].projected.sources[{j}].serviceAccountToken",
                    "must not be set without serviceAccountName",
                )
