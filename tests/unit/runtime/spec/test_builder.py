"""The builder as a whole: lookups, files, events, and errors in the words users see."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from pykubelet.api.types import (
    ConfigMap,
    ConfigMapKeySelector,
    EnvFromSource,
    EnvVar,
    EnvVarSource,
    FileKeySelector,
    ObjectFieldSelector,
    ObjectMeta,
    Pod,
    PodDNSConfig,
    PodSecurityContext,
    ResourceRequirements,
    Secret,
    SecretEnvSource,
    SecurityContext,
    Service,
    ServicePort,
    ServiceSpec,
    VolumeMount,
)
from pykubelet.clients.host.folders import DiskFolders
from pykubelet.clients.host.port import NodePaths
from pykubelet.cm.container_resources import ContainerResources
from pykubelet.cm.node_spec import NodeSpec
from pykubelet.cm.user_namespaces import UsernsProblem
from pykubelet.model.errors import CriError, PykubeletError, RuntimeDown
from pykubelet.model.pod import AnyContainer, ContainerKind, uid_of
from pykubelet.model.runtime_status import Image
from pykubelet.runtime.errors import ConfigProblem
from pykubelet.runtime.spec.builder import REMEMBERED_IMAGES, EnvSources, ImageUsers, PodSpecBuilder, pod_addresses
from pykubelet.runtime.spec.container import ContainerRequest
from pykubelet.runtime.spec.env import NoReferences
from pykubelet.wire import cri_pb2
from tests.builders import a_container, a_pod, an_ephemeral_container
from tests.fakes.recorded_events import RecordedEvents


class Images:
    def __init__(self) -> None:
        self.requested: list[str] = []
        self.image: Image | None = Image(id="sha256:abc", uid=1000)
        self.error: Exception | None = None

    async def image_status(self, image: str) -> Image | None:
        self.requested.append(image)
        if self.error is not None:
            raise self.error
        return self.image


def host_ips() -> Sequence[str]:
    return ("192.168.0.1", "fd00::1")


class NoResources:
    async def container_resources(self, pod: Pod, container: AnyContainer) -> ContainerResources:
        return ContainerResources()

    def has_exclusive_cpus(self, pod: Pod) -> bool:
        return False


class NoUserNamespaces:
    async def mappings(self, pod: Pod) -> cri_pb2.UserNamespace:
        raise UsernsProblem("can't set `spec.hostUsers: false`, runtime does not support user namespaces")


class Objects(NoReferences):
    """Objects by kind and name; counts how often each was asked for."""

    def __init__(self) -> None:
        self.requested: list[str] = []
        self.read = True

    async def config_map(self, namespace: str, name: str) -> ConfigMap | None:
        self.requested.append(f"configmap {namespace}/{name}")
        if name == "broken":
            raise PykubeletError("the API server says no")
        return ConfigMap(data={"k": "v"}) if name == "cm" else None

    async def secret(self, namespace: str, name: str) -> Secret | None:
        self.requested.append(f"secret {namespace}/{name}")
        return Secret(data={"S": base64.b64encode(b"hidden").decode()}) if name == "s" else None

    async def services(self, namespace: str) -> Sequence[Service] | None:
        if not self.read:
            return None
        name = "kubernetes" if namespace == "default" else "db"
        spec = ServiceSpec(cluster_ip="10.0.0.1", ports=[ServicePort(port=443)])
        return [Service(metadata=ObjectMeta(name=name, namespace=namespace), spec=spec)]


class SomeVolumes:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.env: Mapping[str, str] = {}

    async def mounts_for(self, pod: Pod, container: AnyContainer, env: Mapping[str, str]) -> Sequence[cri_pb2.Mount]:
        self.env = env
        return [cri_pb2.Mount(container_path=each.mount_path or "", host_path="/v") for each in container.volume_mounts]

    async def devices_for(self, pod: Pod, container: AnyContainer) -> Sequence[cri_pb2.Device]:
        return ()

    def path_of(self, pod: Pod, volume: str) -> str | None:
        return str(self.root) if volume == "vol" else None

    def extra_groups(self, pod: Pod) -> Sequence[int]:
        return (77,)


class SpecBuilderFixture:
    def __init__(self, root: Path) -> None:
        paths = NodePaths(root=root / "k", pod_logs=root / "logs", container_logs=root / "links")
        self.paths = paths
        self.folders = DiskFolders(paths)
        self.folders.make_roots()
        self.resolv_conf = root / "resolv.conf"
        self.resolv_conf.write_text("nameserver 192.168.0.53\n")
        self.images, self.events, self.objects, self.volumes = Images(), RecordedEvents(), Objects(), SomeVolumes(root)

    def builder(self, node: dict[str, Any] | None = None, **others: Any) -> PodSpecBuilder:
        values: dict[str, Any] = {
            "node": NodeSpec(**{"resolv_conf": str(self.resolv_conf), "cluster_dns": ("10.0.0.10",), **(node or {})}),
            "folders": self.folders,
            "images": self.images,
            "events": self.events,
            "volumes": self.volumes,
            "resources": NoResources(),
            "user_namespaces": NoUserNamespaces(),
            **others,
        }
        env = EnvSources(references=self.objects, volumes=values["volumes"], node=values["node"], host_ips=host_ips)
        return PodSpecBuilder(env=env, **values)

    async def container(
        self, pod: Pod, builder: PodSpecBuilder | None = None, ips: tuple[str, ...] = ("10.1.0.5",), **request: Any
    ) -> cri_pb2.ContainerConfig:
        self.folders.make_pod(uid_of(pod))
        values: dict[str, Any] = {"image_ref": "sha256:abc", "restart_count": 0, "pod_ips": ips, **request}
        return await (builder or self.builder()).container(
            pod, ContainerKind.REGULAR, pod.spec.containers[0], ContainerRequest(**values)
        )

    async def refused(self, pod: Pod, builder: PodSpecBuilder | None = None) -> str:
        with pytest.raises(ConfigProblem) as caught:
            await self.container(pod, builder)
        return str(caught.value)


@pytest.fixture
def bed(tmp_path: Path) -> SpecBuilderFixture:
    return SpecBuilderFixture(tmp_path)


def one(**container: Any) -> Pod:
    return a_pod(namespace="team", containers=[a_container(**container)])


# --- sandboxes --------------------------------------------------------------------------------------


async def test_sandbox(bed: SpecBuilderFixture) -> None:
    pod = a_pod(security_context=PodSecurityContext(fs_group=5))
    config = await bed.builder().sandbox(pod, 2)
    assert config.metadata.attempt == 2
    assert config.log_directory == str(bed.paths.pod_logs / "default_web_uid-web")
    assert Path(config.log_directory).is_dir()
    assert list(config.dns_config.servers) == ["10.0.0.10"]
    assert list(config.linux.security_context.supplemental_groups) == [5, 77]
    assert config.linux.security_context.namespace_options.userns_options.mode == cri_pb2.NamespaceMode.NODE


async def test_dns_trouble_is_told_once_per_pod(bed: SpecBuilderFixture) -> None:
    builder = bed.builder(node={"cluster_dns": ()})
    crowded = PodDNSConfig(nameservers=["1.1.1.1", "2.2.2.2", "3.3.3.3"])
    for attempt in range(3):
        await builder.sandbox(a_pod("a", dns_config=crowded), attempt)
        await builder.sandbox(a_pod("b"), attempt)
    assert bed.events.about == [
        ("a", "DNSConfigForming"),
        ("a", "MissingClusterDNS"),
        ("node", "MissingClusterDNS"),
        ("b", "MissingClusterDNS"),
    ]


async def test_without_a_cluster_nobody_misses_its_dns(bed: SpecBuilderFixture) -> None:
    builder = bed.builder(node={"cluster_dns": (), "in_cluster": False})
    config = await builder.sandbox(a_pod(), 0)
    assert list(config.dns_config.servers) == ["192.168.0.53"]
    assert bed.events.all == []


async def test_a_changed_resolver_file_reaches_the_next_pod(bed: SpecBuilderFixture) -> None:
    builder, pod = bed.builder(), a_pod(dns_policy="Default")
    assert list((await builder.sandbox(pod, 0)).dns_config.servers) == ["192.168.0.53"]
    bed.resolv_conf.write_text("nameserver 9.9.9.9\nsearch x\n")
    assert list((await builder.sandbox(pod, 0)).dns_config.servers) == ["9.9.9.9"]


def test_the_resolver_file_is_judged_at_the_start(bed: SpecBuilderFixture) -> None:
    bed.builder().check_resolv_conf()
    bed.builder(node={"resolv_conf": ""}).check_resolv_conf()
    assert bed.events.all == []
    bed.resolv_conf.write_text("search " + " ".join(f"s{n}" for n in range(33)))
    bed.builder().check_resolv_conf()
    bed.resolv_conf.unlink()
    bed.builder().check_resolv_conf()
    assert bed.events.about == [("node", "CheckLimitsForResolvConf")] * 2


async def test_sandbox_trouble_is_a_config_problem(bed: SpecBuilderFixture) -> None:
    bed.resolv_conf.unlink()
    with pytest.raises(ConfigProblem, match="cannot read the resolver file"):
        await bed.builder().sandbox(a_pod(), 0)
    long = a_pod("a" * 60, subdomain="s", set_hostname_as_fqdn=True)
    with pytest.raises(ConfigProblem, match="is too long"):
        await bed.builder(node={"resolv_conf": "", "cluster_domain": "c"}).sandbox(long, 0)


async def test_user_namespaces_need_mappings(bed: SpecBuilderFixture) -> None:
    pod = a_pod(host_users=False)
    with pytest.raises(ConfigProblem) as caught:
        await bed.builder().sandbox(pod, 0)
    assert str(caught.value) == "can't set `spec.hostUsers: false`, runtime does not support user namespaces"
    mapping = cri_pb2.IDMapping(host_id=65536, container_id=0, length=65536)
    given = cri_pb2.UserNamespace(mode=cri_pb2.NamespaceMode.POD, uids=[mapping], gids=[mapping])

    class Mappings:
        async def mappings(self, pod: Pod) -> cri_pb2.UserNamespace | None:
            return given

    builder = bed.builder(user_namespaces=Mappings())
    config = await builder.sandbox(pod, 0)
    assert config.linux.security_context.namespace_options.userns_options == given
    container = await bed.container(pod, builder)
    assert list(container.mounts[0].uidMappings) == [mapping]


# --- containers -------------------------------------------------------------------------------------


async def test_a_simple_container(bed: SpecBuilderFixture) -> None:
    pod = one(command=["$(X)"], env=[EnvVar(name="X", value="1")], termination_message_path="/dev/term")
    config = await bed.container(pod, restart_count=4)
    assert (list(config.command), config.log_path) == (["1"], "app/4.log")
    assert config.linux.security_context.run_as_user.value == 1000
    hosts, term = config.mounts
    assert Path(hosts.host_path).read_text().endswith("10.1.0.5\tweb\n")
    assert Path(hosts.host_path) == bed.paths.etc_hosts("uid-web")
    assert Path(term.host_path).parent == bed.paths.container("uid-web", "app")
    assert Path(term.host_path).stat().st_mode & 0o777 == 0o666
    assert bed.objects.requested == []


async def test_the_hosts_file_is_written_for_every_start(bed: SpecBuilderFixture) -> None:
    builder, pod = bed.builder(), one()
    path = Path((await bed.container(pod, builder)).mounts[0].host_path)
    path.write_text("edited")
    await bed.container(pod, builder, ips=("10.1.0.6",))
    assert path.read_text().endswith("10.1.0.6\tweb\n")


async def test_no_hosts_file_where_a_volume_is_mounted_or_nothing_is_known(bed: SpecBuilderFixture) -> None:
    mounted = await bed.container(one(volume_mounts=[VolumeMount(name="v", mount_path="/etc/hosts")]))
    assert [each.host_path for each in mounted.mounts] == ["/v"]
    assert not (await bed.container(one(), ips=())).mounts
    assert not bed.paths.etc_hosts("uid-web").exists()


async def test_host_network_gets_the_nodes_hosts_and_addresses(bed: SpecBuilderFixture) -> None:
    source = EnvVarSource(field_ref=ObjectFieldSelector(field_path="status.podIPs"))
    pod = a_pod(host_network=True, containers=[a_container(env=[EnvVar(name="IPS", value_from=source)])])
    config = await bed.container(pod, ips=())
    text = Path(config.mounts[0].host_path).read_text()
    assert text == "# Kubernetes-managed hosts file (host network).\n" + Path("/etc/hosts").read_text()
    assert {each.key: each.value for each in config.envs}["IPS"] == b"192.168.0.1,fd00::1"


async def test_each_object_is_fetched_once(bed: SpecBuilderFixture) -> None:
    def key(name: str) -> EnvVarSource:
        return EnvVarSource(config_map_key_ref=ConfigMapKeySelector(name="cm", key=name, optional=True))

    pod = one(
        env_from=[EnvFromSource(secret_ref=SecretEnvSource(name="s"))],
        env=[EnvVar(name="A", value_from=key("k")), EnvVar(name="B", value_from=key("no"))],
    )
    config = await bed.container(pod)
    env = {each.key: each.value for each in config.envs}
    assert (env["A"], env["S"], "B" in env) == (b"v", b"hidden", False)
    assert bed.objects.requested == ["configmap team/cm", "secret team/s"]


async def test_service_variables_follow_the_pods_wish(bed: SpecBuilderFixture) -> None:
    pod = one()
    assert {each.key for each in (await bed.container(pod)).envs} >= {"KUBERNETES_SERVICE_HOST", "DB_SERVICE_HOST"}
    pod.spec.enable_service_links = False
    names = {each.key for each in (await bed.container(pod)).envs}
    assert "KUBERNETES_SERVICE_HOST" in names and "DB_SERVICE_HOST" not in names


async def test_services_must_have_been_read_except_for_static_pods(bed: SpecBuilderFixture) -> None:
    bed.objects.read = False
    assert await bed.refused(one()) == "services have not yet been read at least once, cannot construct envvars"
    assert not (await bed.container(a_pod(static=True))).envs


async def test_variables_from_files_in_volumes(bed: SpecBuilderFixture, tmp_path: Path) -> None:
    (tmp_path / "env").write_text("K='filed'\n")

    def source(volume: str) -> EnvVarSource:
        return EnvVarSource(file_key_ref=FileKeySelector(volume_name=volume, path="env", key="K"))

    pod = one(env=[EnvVar(name="X", value_from=source("vol"))])
    assert {each.key: each.value for each in (await bed.container(pod)).envs}["X"] == b"filed"
    missing = one(env=[EnvVar(name="X", value_from=source("gone"))])
    assert await bed.refused(missing) == 'cannot find the volume "gone" referenced by FileKeyRef'
    off = await bed.container(pod, bed.builder(node={"env_files": False}))
    assert {each.key: each.value for each in off.envs}["X"] == b""


async def test_volumes_see_the_final_variables(bed: SpecBuilderFixture) -> None:
    class Devices:
        async def container_resources(self, pod: Pod, container: AnyContainer) -> ContainerResources:
            return ContainerResources(envs={"DEV": "0"}, exclusive_cpus=True)

        def has_exclusive_cpus(self, pod: Pod) -> bool:
            return True

    limits = ResourceRequirements(limits={"cpu": "1"})
    pod = one(
        env=[EnvVar(name="X", value="1")], volume_mounts=[VolumeMount(name="v", mount_path="/d")], resources=limits
    )
    builder = bed.builder(resources=Devices())
    config = await bed.container(pod, builder)
    assert (bed.volumes.env["X"], bed.volumes.env["DEV"]) == ("1", "0")
    assert config.linux.resources.cpu_quota == -1
    assert (await builder.sandbox(pod, 0)).linux.resources.cpu_quota == -1


async def test_only_ephemeral_containers_join_others(bed: SpecBuilderFixture) -> None:
    pod = a_pod(ephemeral=[an_ephemeral_container()])
    bed.folders.make_pod(uid_of(pod))
    request = ContainerRequest(image_ref="i", restart_count=0, pod_ips=(), target_id="abc")
    config = await bed.builder().container(pod, ContainerKind.EPHEMERAL, pod.spec.ephemeral_containers[0], request)
    assert config.linux.security_context.namespace_options.target_id == "abc"
    regular = await bed.container(pod, target_id="abc")
    assert regular.linux.security_context.namespace_options.target_id == ""


# --- trouble ----------------------------------------------------------------------------------------


async def test_errors_of_others_become_config_problems(bed: SpecBuilderFixture) -> None:
    source = EnvVarSource(config_map_key_ref=ConfigMapKeySelector(name="broken", key="k"))
    assert await bed.refused(one(env=[EnvVar(name="X", value_from=source)])) == "the API server says no"
    assert "1x" in await bed.refused(one(resources=ResourceRequirements(limits={"cpu": "1x"})))
    bed.images.error = CriError("image service is odd")
    assert await bed.refused(one()) == "image service is odd"


async def test_files_that_cannot_be_made_name_their_path(bed: SpecBuilderFixture) -> None:
    bed.folders.make_pod("uid-web")
    (bed.paths.pod("uid-web") / "containers").write_text("in the way")
    assert "containers" in await bed.refused(one(termination_message_path="/t"))


async def test_a_runtime_that_is_down_is_nobodys_config(bed: SpecBuilderFixture) -> None:
    bed.images.error = RuntimeDown("gone")
    with pytest.raises(RuntimeDown):
        await bed.container(one())


async def test_non_root_is_judged_before_anything_is_written(bed: SpecBuilderFixture) -> None:
    bed.images.image = Image(id="sha256:abc", username="bob")
    pod = one(security_context=SecurityContext(run_as_non_root=True), termination_message_path="/t")
    assert "image has non-numeric user (bob)" in await bed.refused(pod)
    assert not bed.paths.etc_hosts("uid-web").exists()
    assert not bed.paths.container("uid-web", "app").exists()


# --- lookups ----------------------------------------------------------------------------------------


async def test_the_images_user_is_asked_once_and_only_if_needed(bed: SpecBuilderFixture) -> None:
    builder = bed.builder()
    for _ in range(3):
        await bed.container(one(), builder)
    assert bed.images.requested == ["sha256:abc"]
    await bed.container(one(security_context=SecurityContext(run_as_user=3)), builder, image_ref="sha256:other")
    assert bed.images.requested == ["sha256:abc"]


@pytest.mark.parametrize(
    ("reference", "times"), [("sha256:a", 1), ("reg/img@sha256:a", 1), ("reg/img:latest", 2), ("a1b2", 2)]
)
async def test_only_content_addresses_are_remembered(reference: str, times: int) -> None:
    images = Images()
    users = ImageUsers(images)  # type: ignore[arg-type]  # the one call that is used
    assert await users.user_of(reference) == await users.user_of(reference)
    assert len(images.requested) == times


async def test_the_memory_of_images_is_bounded() -> None:
    images = Images()
    users = ImageUsers(images)  # type: ignore[arg-type]  # the one call that is used
    for number in range(REMEMBERED_IMAGES + 1):
        await users.user_of(f"sha256:{number}")
    await users.user_of("sha256:0")
    await users.user_of(f"sha256:{REMEMBERED_IMAGES}")
    assert len(images.requested) == REMEMBERED_IMAGES + 2


async def test_an_image_that_is_gone_or_names_nobody_runs_as_root() -> None:
    images = Images()
    users = ImageUsers(images)  # type: ignore[arg-type]  # the one call that is used
    images.image = None
    assert (await users.user_of("sha256:a")).uid == 0
    images.image = Image(id="sha256:a")
    assert (await users.user_of("sha256:a")).uid == 0


@pytest.mark.parametrize(
    ("pod_ips", "host_ips", "wanted"),
    [
        (("10.0.0.1", "fd00::1"), ("1.1.1.1",), ("10.0.0.1", "fd00::1")),
        (("10.0.0.1", "fd00::1"), ("fd00::9",), ("fd00::1", "10.0.0.1")),
        (("fd00:0::1", "10.0.0.1", "10.0.0.2"), (), ("10.0.0.1", "fd00::1")),
        (("nonsense",), (), ()),
        ((), ("1.1.1.1",), ()),
    ],
)
def test_pod_addresses(pod_ips: tuple[str, ...], host_ips: tuple[str, ...], wanted: tuple[str, ...]) -> None:
    assert pod_addresses(a_pod(), pod_ips, host_ips).pod == wanted
