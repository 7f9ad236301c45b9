"""Security contexts: what comes from where, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from pykubelet.api.types import (
    AppArmorProfile,
    Capabilities,
    Pod,
    PodSecurityContext,
    SeccompProfile,
    SecurityContext,
    SELinuxOptions,
)
from pykubelet.cm.node_spec import NodeSpec
from pykubelet.runtime.errors import ConfigProblem
from pykubelet.runtime.spec.security import (
    MASKED_PATHS,
    READONLY_PATHS,
    ImageUser,
    apparmor_profile,
    check_non_root,
    container_security,
    namespace_options,
    needs_image_user,
    sandbox_security,
    seccomp_profile,
)
from pykubelet.wire import cri_pb2
from tests.builders import a_container, a_pod, an_ephemeral_container

Mode = cri_pb2.NamespaceMode
Profile = cri_pb2.SecurityProfile
NODE = NodeSpec(seccomp_root="/k/seccomp")
HOST_IDS = cri_pb2.UserNamespace(mode=Mode.NODE)


def secured(own: SecurityContext | None = None, of_pod: PodSecurityContext | None = None, **spec: Any) -> Pod:
    return a_pod(containers=[a_container(security_context=own)], security_context=of_pod, **spec)


def security(
    own: SecurityContext | None = None, of_pod: PodSecurityContext | None = None, **options: Any
) -> cri_pb2.LinuxContainerSecurityContext:
    pod = secured(own, of_pod)
    options.setdefault("image_user", ImageUser())
    return container_security(pod, pod.spec.containers[0], options.pop("node", NODE), **options)


# --- namespaces -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "network", "ipc", "pid"),
    [
        ({}, Mode.POD, Mode.POD, Mode.CONTAINER),
        ({"host_network": True}, Mode.NODE, Mode.POD, Mode.CONTAINER),
        ({"host_ipc": True}, Mode.POD, Mode.NODE, Mode.CONTAINER),
        ({"host_pid": True}, Mode.POD, Mode.POD, Mode.NODE),
        ({"share_process_namespace": True}, Mode.POD, Mode.POD, Mode.POD),
        ({"share_process_namespace": False}, Mode.POD, Mode.POD, Mode.CONTAINER),
        ({"host_pid": True, "share_process_namespace": True}, Mode.POD, Mode.POD, Mode.NODE),
    ],
)
def test_namespaces(spec: dict[str, Any], network: int, ipc: int, pid: int) -> None:
    found = namespace_options(a_pod(**spec), HOST_IDS)
    assert (found.network, found.ipc, found.pid) == (network, ipc, pid)
    assert found.userns_options.mode == Mode.NODE


@pytest.mark.parametrize(
    ("spec", "pid", "target"),
    [
        ({}, Mode.TARGET, "abc"),
        ({"share_process_namespace": True}, Mode.POD, ""),
        ({"host_pid": True}, Mode.NODE, ""),
    ],
)
def test_joining_another_containers_processes(spec: dict[str, Any], pid: int, target: str) -> None:
    found = namespace_options(a_pod(**spec), HOST_IDS, "abc")
    assert (found.pid, found.target_id) == (pid, target)


def test_user_namespaces_carry_their_mappings() -> None:
    mapping = cri_pb2.IDMapping(host_id=65536, container_id=0, length=65536)
    userns = cri_pb2.UserNamespace(mode=Mode.POD, uids=[mapping], gids=[mapping])
    assert namespace_options(a_pod(), userns).userns_options == userns
    assert not namespace_options(a_pod(), None).HasField("userns_options")


# --- containers over pods ---------------------------------------------------------------------------


def test_nothing_set() -> None:
    found = security()
    assert not found.HasField("capabilities")
    assert not found.HasField("selinux_options")
    assert not found.HasField("apparmor")
    assert not found.HasField("run_as_group")
    assert not (found.privileged or found.readonly_rootfs or found.no_new_privs)
    assert found.run_as_user.value == 0 and found.HasField("run_as_user")


@pytest.mark.parametrize(
    ("own", "of_pod", "image", "uid", "username"),
    [
        (None, None, ImageUser(uid=7), 7, ""),
        (None, None, ImageUser(uid=None, username="bob"), None, "bob"),
        (None, 5, ImageUser(uid=None, username="bob"), 5, ""),
        (6, 5, ImageUser(uid=7), 6, ""),
        (0, 5, ImageUser(uid=7), 0, ""),
    ],
)
def test_user(own: int | None, of_pod: int | None, image: ImageUser, uid: int | None, username: str) -> None:
    found = security(SecurityContext(run_as_user=own), PodSecurityContext(run_as_user=of_pod), image_user=image)
    assert (found.run_as_user.value if found.HasField("run_as_user") else None) == uid
    assert found.run_as_username == username


@pytest.mark.parametrize(("own", "of_pod", "wanted"), [(None, 5, 5), (6, 5, 6), (0, 5, 0)])
def test_group(own: int | None, of_pod: int, wanted: int) -> None:
    found = security(SecurityContext(run_as_group=own), PodSecurityContext(run_as_group=of_pod))
    assert found.run_as_group.value == wanted and found.HasField("run_as_group")


def test_selinux_of_the_container_replaces_the_pods() -> None:
    of_pod = PodSecurityContext(se_linux_options=SELinuxOptions(user="u", level="s0"))
    assert security(None, of_pod).selinux_options == cri_pb2.SELinuxOption(user="u", level="s0")
    own = SecurityContext(se_linux_options=SELinuxOptions(type="t", role="r"))
    assert security(own, of_pod).selinux_options == cri_pb2.SELinuxOption(type="t", role="r")


def test_plain_flags() -> None:
    found = security(
        SecurityContext(
            privileged=True,
            read_only_root_filesystem=True,
            capabilities=Capabilities(add=["NET_ADMIN"], drop=["ALL"]),
        )
    )
    assert found.privileged and found.readonly_rootfs
    assert list(found.capabilities.add_capabilities) == ["NET_ADMIN"]
    assert list(found.capabilities.drop_capabilities) == ["ALL"]


@pytest.mark.parametrize(("allow", "wanted"), [(None, False), (True, False), (False, True)])
def test_no_new_privileges(allow: bool | None, wanted: bool) -> None:
    assert security(SecurityContext(allow_privilege_escalation=allow)).no_new_privs is wanted


@pytest.mark.parametrize("mount", [None, "Default"])
def test_masked_and_readonly_paths(mount: str | None) -> None:
    thermal = "/sys/devices/system/cpu/cpu0/thermal_throttle"
    found = security(SecurityContext(proc_mount=mount), node=NodeSpec(thermal_paths=(thermal,)))
    assert list(found.masked_paths) == [*MASKED_PATHS, thermal]
    assert list(found.readonly_paths) == list(READONLY_PATHS)


def test_unmasked_proc() -> None:
    found = security(SecurityContext(proc_mount="Unmasked"), node=NodeSpec(thermal_paths=("/sys/x",)))
    assert not found.masked_paths and not found.readonly_paths


def test_groups_and_their_order() -> None:
    of_pod = PodSecurityContext(fs_group=1, supplemental_groups=[2, 3], supplemental_groups_policy="Strict")
    found = security(None, of_pod, extra_groups=(9,))
    assert list(found.supplemental_groups) == [1, 2, 3, 9]
    assert found.supplemental_groups_policy == cri_pb2.SupplementalGroupsPolicy.Strict
    box = sandbox_security(secured(None, of_pod), HOST_IDS, (9,))
    assert list(box.supplemental_groups) == [1, 9, 2, 3]
    assert box.supplemental_groups_policy == cri_pb2.SupplementalGroupsPolicy.Strict


def test_an_unknown_groups_policy_is_refused() -> None:
    with pytest.raises(ConfigProblem, match="unsupported supplementalGroupsPolicy: Odd"):
        security(None, PodSecurityContext(supplemental_groups_policy="Odd"))


# --- seccomp and AppArmor ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("profile", "default", "wanted", "ref"),
    [
        (None, False, Profile.Unconfined, ""),
        (None, True, Profile.RuntimeDefault, ""),
        (SeccompProfile(type="RuntimeDefault"), False, Profile.RuntimeDefault, ""),
        (SeccompProfile(type="Unconfined"), True, Profile.Unconfined, ""),
        (
            SeccompProfile(type="Localhost", localhost_profile="a/b.json"),
            False,
            Profile.Localhost,
            "/k/seccomp/a/b.json",
        ),
    ],
)
def test_seccomp(profile: SeccompProfile | None, default: bool, wanted: int, ref: str) -> None:
    found = seccomp_profile(profile, NodeSpec(seccomp_root="/k/seccomp", seccomp_default=default))
    assert (found.profile_type, found.localhost_ref) == (wanted, ref)


def test_a_local_seccomp_profile_needs_a_name() -> None:
    with pytest.raises(ConfigProblem, match=r"localhostProfile must be set if seccompProfile type is Localhost\."):
        seccomp_profile(SeccompProfile(type="Localhost", localhost_profile=""), NODE)


def test_seccomp_of_the_container_counts_before_the_pods() -> None:
    of_pod = PodSecurityContext(seccomp_profile=SeccompProfile(type="RuntimeDefault"))
    assert security(None, of_pod).seccomp.profile_type == Profile.RuntimeDefault
    own = SecurityContext(seccomp_profile=SeccompProfile(type="Unconfined"))
    assert security(own, of_pod).seccomp.profile_type == Profile.Unconfined


KEY = "container.apparmor.security.beta.kubernetes.io/app"


@pytest.mark.parametrize(
    ("own", "annotation", "of_pod", "wanted"),
    [
        (None, None, None, (None, "", "")),
        ("RuntimeDefault", "unconfined", "Localhost", (Profile.RuntimeDefault, "", "runtime/default")),
        ("Unconfined", None, None, (Profile.Unconfined, "", "unconfined")),
        ("Localhost", None, None, (Profile.Localhost, "prof", "localhost/prof")),
        (None, "localhost/x", "Unconfined", (Profile.Localhost, "x", "localhost/x")),
        (None, "runtime/default", "Unconfined", (Profile.RuntimeDefault, "", "runtime/default")),
        (None, "unconfined", "RuntimeDefault", (Profile.Unconfined, "", "unconfined")),
        (None, "nonsense", "RuntimeDefault", (Profile.RuntimeDefault, "", "runtime/default")),
        (None, None, "RuntimeDefault", (Profile.RuntimeDefault, "", "runtime/default")),
    ],
)
def test_apparmor(own: str | None, annotation: str | None, of_pod: str | None, wanted: tuple[Any, str, str]) -> None:
    def profile(kind: str | None) -> AppArmorProfile | None:
        name = "prof" if kind == "Localhost" else None
        return AppArmorProfile(type=kind, localhost_profile=name) if kind else None

    pod = secured(
        SecurityContext(app_armor_profile=profile(own)),
        PodSecurityContext(app_armor_profile=profile(of_pod)),
        annotations={KEY: annotation} if annotation else None,
    )
    found, text = apparmor_profile(pod, pod.spec.containers[0])
    assert (found and found.profile_type, found.localhost_ref if found else "", text) == wanted


@pytest.mark.parametrize(
    ("profile", "message"),
    [
        (AppArmorProfile(type="Localhost"), "missing localhost apparmor profile name"),
        (AppArmorProfile(type="Odd"), 'unknown apparmor profile type: "Odd"'),
    ],
)
def test_bad_apparmor_profiles(profile: AppArmorProfile, message: str) -> None:
    with pytest.raises(ConfigProblem, match=message):
        security(SecurityContext(app_armor_profile=profile))


# --- runAsNonRoot -----------------------------------------------------------------------------------

PLACE = '(pod: "web_default(uid-web)", container: app)'


@pytest.mark.parametrize(
    ("own", "of_pod", "image", "message"),
    [
        ({}, {}, ImageUser(uid=0), None),
        ({"run_as_non_root": False}, {"run_as_non_root": True}, ImageUser(uid=0), None),
        ({"run_as_non_root": True, "run_as_user": 5}, {}, ImageUser(uid=0), None),
        ({"run_as_non_root": True}, {"run_as_user": 5}, ImageUser(uid=0), None),
        ({"run_as_non_root": True}, {}, ImageUser(uid=1000), None),
        (
            {"run_as_user": 0},
            {"run_as_non_root": True},
            ImageUser(uid=7),
            f"container's runAsUser breaks non-root policy {PLACE}",
        ),
        (
            {},
            {"run_as_non_root": True},
            ImageUser(uid=0),
            f"container has runAsNonRoot and image will run as root {PLACE}",
        ),
        (
            {"run_as_non_root": True},
            {},
            ImageUser(uid=None, username="bob"),
            f"container has runAsNonRoot and image has non-numeric user (bob), cannot verify user is non-root {PLACE}",
        ),
        (
            {"run_as_non_root": True},
            {},
            ImageUser(uid=2**31),
            "container has runAsNonRoot and image has an invalid user id (2147483648). (Must be 1-(2147483647)): "
            f"must be between 0 and 2147483647, inclusive {PLACE}",
        ),
    ],
)
def test_non_root(own: dict[str, Any], of_pod: dict[str, Any], image: ImageUser, message: str | None) -> None:
    pod = secured(SecurityContext(**own), PodSecurityContext(**of_pod))
    if message is None:
        check_non_root(pod, pod.spec.containers[0], image)
        return
    with pytest.raises(ConfigProblem) as caught:
        check_non_root(pod, pod.spec.containers[0], image)
    assert str(caught.value) == message


def test_the_images_user_matters_only_when_the_spec_names_none() -> None:
    def needed(own: int | None, of_pod: int | None) -> bool:
        pod = secured(SecurityContext(run_as_user=own), PodSecurityContext(run_as_user=of_pod))
        return needs_image_user(pod, pod.spec.containers[0])

    assert [needed(None, None), needed(0, None), needed(None, 0)] == [True, False, False]


# --- sandboxes --------------------------------------------------------------------------------------


def test_sandbox() -> None:
    context = PodSecurityContext(run_as_user=5, run_as_group=6, se_linux_options=SELinuxOptions(level="s0"))
    found = sandbox_security(secured(None, context, host_network=True), HOST_IDS)
    assert (found.run_as_user.value, found.run_as_group.value, found.selinux_options.level) == (5, 6, "s0")
    assert found.namespace_options.network == Mode.NODE
    assert found.HasField("seccomp") and found.seccomp.profile_type == Profile.RuntimeDefault
    assert not found.privileged


def test_a_pods_own_seccomp_profile_does_not_reach_its_sandbox() -> None:
    context = PodSecurityContext(seccomp_profile=SeccompProfile(type="Unconfined"))
    assert sandbox_security(secured(None, context), HOST_IDS).seccomp.profile_type == Profile.RuntimeDefault


@pytest.mark.parametrize("place", ["containers", "init", "ephemeral"])
def test_one_privileged_container_makes_the_sandbox_privileged(place: str) -> None:
    context = SecurityContext(privileged=True)
    if place == "ephemeral":
        pod = a_pod(ephemeral=[an_ephemeral_container(security_context=context)])
    elif place == "init":
        pod = a_pod(init=[a_container("i", security_context=context)])
    else:
        pod = a_pod(containers=[a_container(security_context=context)])
    assert sandbox_security(pod, HOST_IDS).privileged
