"""Names of pod and class cgroups, for both drivers, written once for those who make and those who refer.

The cgroupfs form is a plain path; the systemd form nests slices whose names repeat their parents.
"""

from __future__ import annotations

from pykubelet.api.types import Pod
from pykubelet.model.pod import QosClass, qos_class, uid_of

ROOT_NAME = "kubepods"
_CLASS_PART = {QosClass.GUARANTEED: (), QosClass.BURSTABLE: ("burstable",), QosClass.BEST_EFFORT: ("besteffort",)}


def class_parts(qos: QosClass) -> tuple[str, ...]:
    """The path of a class below the cgroup root, driver neutral."""
    return (ROOT_NAME, *_CLASS_PART[qos])


def pod_parts(pod: Pod) -> tuple[str, ...]:
    """The path of a pod's cgroup below the cgroup root, driver neutral."""
    return (*class_parts(qos_class(pod)), f"pod{uid_of(pod)}")


def cgroupfs_path(parts: tuple[str, ...], root: str = "/") -> str:
    return "/".join((root.rstrip("/"), *parts))


def systemd_path(parts: tuple[str, ...], root: str = "/") -> str:
    """`/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod<uid>.slice`; parts of a root come first."""
    above = tuple(part.removesuffix(".slice") for part in root.split("/") if part)
    # A root given as systemd shows it repeats its parents already: only its last name counts.
    above = tuple(above[-1].split("-")) if root.endswith(".slice") else tuple(_escaped(part) for part in above)
    names = (*above, *(_escaped(part) for part in parts))
    return "".join(f"/{'-'.join(names[: index + 1])}.slice" for index in range(len(names)))


def _escaped(part: str) -> str:
    return part.replace("-", "_")


def named_path(name: str, *, driver: str) -> str:
    """Where a group is that an administrator named: a path, or for systemd a slice with or without its parents."""
    if driver == "systemd":
        return systemd_path((), name if name.endswith(".slice") else f"/{name.strip('/')}")
    return f"/{name.strip('/')}"


def driver_path(parts: tuple[str, ...], *, driver: str, root: str = "/") -> str:
    """Where the group is below each hierarchy, in the driver's spelling."""
    return systemd_path(parts, root) if driver == "systemd" else cgroupfs_path(parts, root)


def uid_from_name(name: str, *, driver: str) -> str | None:
    """The pod whose group goes by this name; None for any other group."""
    if driver == "systemd":
        last = name.removesuffix(".slice").rpartition("-")[2]
        return last.removeprefix("pod").replace("_", "-") if name.endswith(".slice") and _is_pod(last) else None
    return name.removeprefix("pod") if _is_pod(name) else None


def _is_pod(part: str) -> bool:
    return part.startswith("pod") and part != "pod"


def parent_for_runtime(pod: Pod, *, driver: str, root: str = "/") -> str:
    """What the sandbox's cgroup_parent says."""
    return driver_path(pod_parts(pod), driver=driver, root=root)
