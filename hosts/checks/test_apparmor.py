"""AppArmor as Debian has it by default: what a pod asks for is what the kernel enforces on its processes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from hosts.machine import Kind
from hosts.node import Manifest, Node, a_pod, node_on

PROFILE = "pods-read-only-etc"
RULES = f"""
profile {PROFILE} flags=(attach_disconnected,mediate_deleted) {{
  file,
  capability,
  network,
  signal,
  ptrace,
  mount,
  umount,
  deny /etc/** w,
}}
"""
LABEL_AND_WRITE = """
read label </proc/self/attr/current; echo "label $label"
echo x 2>/dev/null >/etc/made && echo "etc written"
echo x 2>/dev/null >/tmp/made && echo "tmp written"
"""
MOUNT = """
read label </proc/self/attr/current; echo "label $label"
mkdir /here; mount -t tmpfs none /here 2>/dev/null && echo "mounted"
"""
MAY_MOUNT = {"capabilities": {"add": ["SYS_ADMIN"]}}
UNCONFINED_LABEL = "label runc (unconfined)"
"""Debian gives its runc a profile by name that forbids nothing; what runc starts unconfined keeps it."""
ANNOTATION = "container.apparmor.security.beta.kubernetes.io/main"


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with node_on(Kind(name="apparmor")) as node:
        node.machine.put("/etc/apparmor.d/pods", RULES)
        node.machine.run("apparmor_parser --replace /etc/apparmor.d/pods")
        node.start_runtime()
        node.start()
        yield node


def one_shot(name: str, command: str, context: dict[str, Any], **spec: Any) -> Manifest:
    """A pod that says what it could do in its termination message."""
    container = {"securityContext": context, "terminationMessagePolicy": "FallbackToLogsOnError"}
    script = f"({command}) >/dev/termination-log; true"
    return a_pod(name, script, restartPolicy="Never", container=container, **spec)


def said(node: Node, name: str) -> list[str]:
    """The lines of the pod's termination message, when it has ended."""
    node.phase(name, "Succeeded")
    return str(node.container(name, "main")["state"]["terminated"]["message"]).splitlines()


def localhost(profile: str) -> dict[str, Any]:
    return {"appArmorProfile": {"type": "Localhost", "localhostProfile": profile}}


def test_a_profile_that_is_loaded_is_enforced(node: Node) -> None:
    """By the container's field, the pod's field and the annotation of old; without it the same write works."""
    enforced = [f"label {PROFILE} (enforce)", "tmp written"]
    node.apply(
        one_shot("field", LABEL_AND_WRITE, localhost(PROFILE)),
        one_shot("of-pod", LABEL_AND_WRITE, {}, securityContext=localhost(PROFILE)),
        one_shot("annotated", LABEL_AND_WRITE, {}, annotations={ANNOTATION: f"localhost/{PROFILE}"}),
        one_shot("own-wins", LABEL_AND_WRITE, UNCONFINED, securityContext=localhost(PROFILE)),
    )
    assert said(node, "field") == enforced
    assert said(node, "of-pod") == enforced
    assert said(node, "annotated") == enforced
    assert said(node, "own-wins") == [UNCONFINED_LABEL, "etc written", "tmp written"]
    node.delete("field", "of-pod", "annotated", "own-wins")


UNCONFINED = {"appArmorProfile": {"type": "Unconfined"}}
DEFAULT = {"appArmorProfile": {"type": "RuntimeDefault"}}


def test_the_runtimes_default_and_none(node: Node) -> None:
    """containerd's own profile forbids mounts even to who has the capability; without a word it is the default."""
    default = ["label cri-containerd.apparmor.d (enforce)"]
    node.apply(
        one_shot("default", MOUNT, MAY_MOUNT | DEFAULT),
        one_shot("unset", MOUNT, MAY_MOUNT),
        one_shot("unconfined", MOUNT, MAY_MOUNT | UNCONFINED),
        one_shot("annotated", MOUNT, MAY_MOUNT, annotations={ANNOTATION: "unconfined"}),
        one_shot("privileged", MOUNT, {"privileged": True}),
    )
    assert said(node, "default") == default
    assert said(node, "unset") == default
    for name in ("unconfined", "annotated", "privileged"):
        assert said(node, name) == [UNCONFINED_LABEL, "mounted"], name
    node.delete("default", "unset", "unconfined", "annotated", "privileged")


def test_a_profile_that_is_not_loaded_keeps_the_container_from_being_made(node: Node) -> None:
    """The reason names the profile; once it is loaded the container starts by itself."""
    node.apply(one_shot("waits", LABEL_AND_WRITE, localhost("pods-not-loaded")))

    def refusal() -> dict[str, Any]:
        pod = node.pods().get("waits", {})
        states = [each["state"].get("waiting", {}) for each in pod.get("status", {}).get("containerStatuses", ())]
        return next((state for state in states if "pods-not-loaded" in state.get("message", "")), {})

    waiting = node.wait(refusal, "a reason that names the profile")
    assert waiting["reason"] in ("CreateContainerError", "CreateContainerConfigError"), waiting
    assert "apparmor profile not found" in waiting["message"].lower(), waiting
    told = node.machine.run("pykubelet explain waits", check=False)
    assert "pods-not-loaded" in told, told
    node.machine.put("/etc/apparmor.d/pods2", RULES.replace(PROFILE, "pods-not-loaded"))
    node.machine.run("apparmor_parser --replace /etc/apparmor.d/pods2")
    assert said(node, "waits") == ["label pods-not-loaded (enforce)", "tmp written"]
    node.delete("waits")


def test_a_profile_without_a_name_is_refused(node: Node) -> None:
    """Admission refuses it in upstream's words."""
    node.apply(one_shot("nameless", LABEL_AND_WRITE, {}, annotations={ANNOTATION: "localhost/"}))
    status = node.phase("nameless", "Failed")["status"]
    assert status["reason"] == "AppArmor", status
    assert "Cannot enforce AppArmor: invalid empty AppArmor profile name" in status["message"], status
    node.delete("nameless")
