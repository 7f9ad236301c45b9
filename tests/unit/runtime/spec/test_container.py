"""Container configs: the process, its variables and mounts, what devices bring along."""

from __future__ import annotations

from typing import Any

import pytest

from pykubelet.api.types import Lifecycle, VolumeMount
from pykubelet.cm.container_resources import ContainerResources
from pykubelet.cm.node_spec import NodeSpec
from pykubelet.model.pod import AnyContainer
from pykubelet.runtime.errors import ConfigProblem
from pykubelet.runtime.spec.container import ContainerParts, build_container_config, wants_hosts_file
from pykubelet.wire import cri_pb2
from tests.builders import a_container, a_pod, an_ephemeral_container


def config_of(
    container: AnyContainer | None = None, *, node: NodeSpec | None = None, **parts: Any
) -> cri_pb2.ContainerConfig:
    values: dict[str, Any] = {"image_ref": "sha256:abc", **parts}
    one = container or a_container()
    pod = a_pod(containers=[a_container()])
    return build_container_config(pod, one, ContainerParts(**values), node or NodeSpec())


def test_the_whole_config() -> None:
    container = a_container(
        "main",
        "busybox:1",
        command=["sh", "-c"],
        args=["echo $(X) $(Y) $$(X)"],
        working_dir="/w",
        stdin=True,
        stdin_once=True,
        tty=True,
        termination_message_path="/dev/term",
        termination_message_policy="File",
    )
    config = config_of(container, restart_count=2, env={"X": "1"})
    assert config.metadata == cri_pb2.ContainerMetadata(name="main", attempt=2)
    assert config.image == cri_pb2.ImageSpec(image="sha256:abc", user_specified_image="busybox:1")
    assert (list(config.command), list(config.args)) == (["sh", "-c"], ["echo 1 $(Y) $(X)"])
    assert (config.working_dir, config.stdin, config.stdin_once, config.tty) == ("/w", True, True, True)
    assert config.log_path == "main/2.log"
    assert config.labels["io.kubernetes.container.name"] == "main"
    assert config.labels["io.kubernetes.pod.uid"] == "uid-web"
    assert config.annotations["io.kubernetes.container.restartCount"] == "2"
    assert config.annotations["io.kubernetes.container.terminationMessagePath"] == "/dev/term"
    assert config.annotations["io.kubernetes.pod.terminationGracePeriod"] == "30"
    assert config.linux.resources.oom_score_adj == 1000
    assert config.linux.security_context.run_as_user.value == 0
    assert not config.mounts and not config.devices and not config.CDI_devices


def test_variables_of_devices_come_first_and_are_overridden_in_commands() -> None:
    config = config_of(
        a_container(command=["$(A)", "$(B)"]),
        env={"A": "own", "C": "c"},
        resources=ContainerResources(envs={"A": "dev", "B": "b"}),
    )
    assert [(each.key, each.value) for each in config.envs] == [
        ("A", b"dev"),
        ("B", b"b"),
        ("A", b"own"),
        ("C", b"c"),
    ]
    assert list(config.command) == ["own", "b"]


def test_bytes_that_are_no_text_pass_as_variables_but_not_in_commands() -> None:
    raw = b"\xff".decode(errors="surrogateescape")
    assert config_of(env={"X": raw}).envs[0].value == b"\xff"
    with pytest.raises(ConfigProblem, match="args uses a variable whose value is not text"):
        config_of(a_container(args=["$(X)"]), env={"X": raw})


def test_mounts_come_in_upstreams_order() -> None:
    config = config_of(
        a_container(termination_message_path="dev/term"),
        resources=ContainerResources(
            mounts=[cri_pb2.Mount(container_path="/dev-mount", host_path="/a", readonly=True)]
        ),
        mounts=[cri_pb2.Mount(container_path="/data", host_path="/b", selinux_relabel=True)],
        hosts_file="/pods/etc-hosts",
        termination_log="/pods/term",
    )
    assert [(each.container_path, each.host_path, each.readonly) for each in config.mounts] == [
        ("/dev-mount", "/a", True),
        ("/data", "/b", False),
        ("/etc/hosts", "/pods/etc-hosts", False),
        ("/dev/term", "/pods/term", False),
    ]
    assert not any(each.selinux_relabel for each in config.mounts)


def test_relabelling_needs_selinux() -> None:
    config = config_of(
        a_container(termination_message_path="/t"),
        node=NodeSpec(selinux=True),
        mounts=[
            cri_pb2.Mount(container_path="/a", selinux_relabel=True),
            cri_pb2.Mount(container_path="/b"),
        ],
        hosts_file="/h",
        termination_log="/t",
    )
    assert [each.selinux_relabel for each in config.mounts] == [True, False, True, True]


def test_id_mappings_are_on_every_mount_and_givers_keep_theirs_clean() -> None:
    mapping = cri_pb2.IDMapping(host_id=65536, container_id=0, length=65536)
    userns = cri_pb2.UserNamespace(mode=cri_pb2.NamespaceMode.POD, uids=[mapping], gids=[mapping])
    given = cri_pb2.Mount(container_path="/a", host_path="/b")
    config = config_of(mounts=[given], hosts_file="/h", userns=userns)
    assert all(list(each.uidMappings) == [mapping] == list(each.gidMappings) for each in config.mounts)
    assert not given.uidMappings
    assert config.linux.security_context.namespace_options.userns_options == userns
    plain = config_of(mounts=[given], userns=cri_pb2.UserNamespace(mode=cri_pb2.NamespaceMode.NODE))
    assert not plain.mounts[0].uidMappings


def test_devices_and_annotations_of_plugins() -> None:
    device = cri_pb2.Device(container_path="/dev/x", host_path="/dev/x", permissions="mrw")
    block = cri_pb2.Device(container_path="/dev/blk", host_path="/pods/blk", permissions="r")
    config = config_of(
        devices=[block],
        resources=ContainerResources(
            devices=[device],
            cdi_devices=["vendor.com/gpu=0"],
            annotations={"cdi.k8s.io/x": "y", "io.kubernetes.container.restartCount": "forged"},
        ),
    )
    assert list(config.devices) == [device, block]
    assert [each.name for each in config.CDI_devices] == ["vendor.com/gpu=0"]
    assert config.annotations["cdi.k8s.io/x"] == "y"
    assert config.annotations["io.kubernetes.container.restartCount"] == "0"


def test_an_ephemeral_container_may_join_another() -> None:
    config = config_of(an_ephemeral_container("debug"), target_id="abc")
    options = config.linux.security_context.namespace_options
    assert (options.pid, options.target_id) == (cri_pb2.NamespaceMode.TARGET, "abc")


@pytest.mark.parametrize(
    ("signal", "gate", "wanted"),
    [
        ("SIGUSR1", True, "SIGUSR1"),
        ("SIGRTMIN+3", True, "SIGRTMINPLUS3"),
        ("SIGRTMAX-2", True, "SIGRTMAXMINUS2"),
        ("SIGODD", True, "RUNTIME_DEFAULT"),
        (None, True, "RUNTIME_DEFAULT"),
        ("SIGUSR1", False, "RUNTIME_DEFAULT"),
    ],
)
def test_stop_signal(signal: str | None, gate: bool, wanted: str) -> None:
    config = config_of(a_container(lifecycle=Lifecycle(stop_signal=signal)), node=NodeSpec(stop_signals=gate))
    assert cri_pb2.Signal.Name(config.stop_signal) == wanted


@pytest.mark.parametrize(
    ("spec", "mounts", "ips", "wanted"),
    [
        ({}, [], ("10.0.0.1",), True),
        ({}, [], (), False),
        ({"host_network": True}, [], (), True),
        ({}, ["/etc/hosts"], ("10.0.0.1",), False),
        ({}, ["/data", "/etc/hosts"], ("10.0.0.1",), False),
        ({}, ["/etc/hosts.d"], ("10.0.0.1",), True),
    ],
)
def test_when_the_hosts_file_is_mounted(
    spec: dict[str, Any], mounts: list[str], ips: tuple[str, ...], wanted: bool
) -> None:
    container = a_container(volume_mounts=[VolumeMount(name="v", mount_path=path) for path in mounts])
    assert wants_hosts_file(a_pod(**spec), container, ips) is wanted


def test_a_command_that_grows_beyond_every_use_is_a_config_problem() -> None:
    with pytest.raises(ConfigProblem, match="args is longer than"):
        config_of(a_container(args=["$(X)"] * 100), env={"X": "x" * 1_000_000})
