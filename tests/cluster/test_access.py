"""Who may call the node's server, as the real API server judges it: TokenReview and SubjectAccessReview.

Every route is tried by a certificate and a token without rights; rights to a single subresource open just the paths
that belong to it. Answers are remembered for a second or two here, so that a token's end is seen soon.
"""

from __future__ import annotations

import http.client
import json
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from prometheus_client.parser import text_string_to_metric_families

from pykubelet.wire import podresources_v1_pb2
from tests.bed.certificates import Authority, Pair
from tests.bed.cluster import Cluster
from tests.bed.runtime import BedContainerd
from tests.cluster.joined import Joined, joined, pod_manifest
from tests.grpc_services import Stub

pytestmark = [pytest.mark.cluster, pytest.mark.node]

API = "rbac.authorization.k8s.io"
ROUTES = [
    ("GET", "/pods", ("pods", "proxy")),
    ("GET", "/runningpods/", ("pods", "proxy")),
    ("GET", "/healthz", ("healthz", "proxy")),
    ("GET", "/healthz/ping", ("healthz", "proxy")),
    ("GET", "/configz", ("configz", "proxy")),
    ("GET", "/flagz", ("configz",)),
    ("GET", "/statusz", ("statusz",)),
    ("GET", "/stats/summary", ("stats",)),
    ("POST", "/stats/summary", ("stats",)),
    ("GET", "/metrics", ("metrics",)),
    ("GET", "/metrics/cadvisor", ("metrics",)),
    ("GET", "/metrics/resource", ("metrics",)),
    ("GET", "/metrics/probes", ("metrics",)),
    ("GET", "/metrics/slis", ("metrics",)),
    ("GET", "/logs/", ("log",)),
    ("GET", "/logs/../../etc/passwd", ("log",)),
    ("POST", "/checkpoint/default/quiet/app", ("checkpoint",)),
    ("GET", "/containerLogs/default/quiet/app", ("proxy",)),
    ("POST", "/exec/default/quiet/app?command=id&output=1", ("proxy",)),
    ("GET", "/exec/default/quiet/app?command=id&output=1", ("proxy",)),
    ("POST", "/attach/default/quiet/app?output=1", ("proxy",)),
    ("POST", "/portForward/default/quiet", ("proxy",)),
    ("POST", "/run/default/quiet/app?cmd=id", ("proxy",)),
    ("GET", "/explain/default/quiet", ("proxy",)),
    ("GET", "/debug/pprof/cmdline", ("proxy",)),
    ("PUT", "/debug/flags/v", ("proxy",)),
    ("GET", "/no/such/path", ("proxy",)),
    ("DELETE", "/pods", ("pods", "proxy")),
    ("OPTIONS", "/pods", ("pods", "proxy")),
]
"""Method, path, and subresources of the node a right to one of which is needed."""
VERBS = {"GET": "get", "POST": "create", "PUT": "update", "DELETE": "delete"}

NAMES = {
    "/metrics": """kubelet_node_name kubelet_running_pods kubelet_running_containers kubelet_desired_pods
        kubelet_active_pods kubelet_mirror_pods kubelet_working_pods kubelet_started_pods_total
        kubelet_started_pods_errors_total kubelet_started_containers_total kubelet_managed_ephemeral_containers
        kubelet_containers_per_pod_count_count kubelet_pod_start_duration_seconds_bucket
        kubelet_pod_start_sli_duration_seconds_bucket kubelet_pod_start_total_duration_seconds_bucket
        kubelet_pod_worker_duration_seconds_bucket kubelet_pod_worker_start_duration_seconds_count
        kubelet_pod_status_sync_duration_seconds_count kubelet_cgroup_manager_duration_seconds_bucket
        kubelet_pleg_relist_duration_seconds_bucket kubelet_pleg_relist_interval_seconds_bucket
        kubelet_pleg_last_seen_seconds kubelet_runtime_operations_total
        kubelet_runtime_operations_duration_seconds_bucket kubelet_run_podsandbox_duration_seconds_bucket
        kubelet_http_requests_total kubelet_http_inflight_requests kubelet_http_requests_duration_seconds_bucket
        kubelet_cgroup_version kubelet_metrics_provider storage_operation_duration_seconds_count
        volume_manager_total_volumes kubernetes_build_info kubernetes_feature_enabled process_cpu_seconds_total
        process_resident_memory_bytes process_start_time_seconds process_open_fds
        kubelet_orphaned_runtime_pods_total kubelet_restarted_pods_total kubelet_orphan_pod_cleaned_volumes
        kubelet_orphan_pod_cleaned_volumes_errors kubelet_evented_pleg_connection_success_count
        kubelet_evented_pleg_connection_error_count kubelet_evented_pleg_connection_latency_seconds_bucket
        kubelet_node_startup_duration_seconds kubelet_node_startup_pre_kubelet_duration_seconds
        kubelet_node_startup_pre_registration_duration_seconds kubelet_node_startup_registration_duration_seconds
        kubelet_node_startup_post_registration_duration_seconds kubelet_lifecycle_handler_http_fallbacks_total
        kubelet_sleep_action_terminated_early_total dra_resource_claims_in_use rest_client_requests_total
        rest_client_request_duration_seconds_bucket rest_client_rate_limiter_duration_seconds_bucket
        kubelet_pleg_pod_relist_duration_seconds_bucket""",
    "/metrics/resource": """node_cpu_usage_seconds_total node_memory_working_set_bytes container_cpu_usage_seconds_total
        container_memory_working_set_bytes container_start_time_seconds pod_cpu_usage_seconds_total
        pod_memory_working_set_bytes resource_scrape_error""",
    "/metrics/cadvisor": """container_cpu_usage_seconds_total container_memory_working_set_bytes container_memory_rss
        container_network_receive_bytes_total container_fs_usage_bytes container_last_seen machine_cpu_cores
        machine_memory_bytes cadvisor_version_info container_spec_memory_limit_bytes""",
}


class Caller:
    def __init__(self, node: Joined, address: str, *, pair: Pair | None = None, token: str = "") -> None:
        self._address, self._port = address, int(node.agent.settings["port"])
        self._context = ssl.create_default_context(cafile=None)
        self._context.check_hostname, self._context.verify_mode = False, ssl.CERT_NONE
        if pair is not None:
            self._context.load_cert_chain(pair.certificate, pair.key)
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}

    def ask(self, method: str, path: str) -> tuple[int, str]:
        connection = http.client.HTTPSConnection(self._address, self._port, context=self._context, timeout=30)
        try:
            connection.request(method, path, headers=self._headers)
            answer = connection.getresponse()
            return answer.status, answer.read().decode(errors="replace")
        finally:
            connection.close()


@pytest.fixture(scope="module")
def node(cluster: Cluster, containerd: BedContainerd, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Joined]:
    changes: dict[str, Any] = {
        "address": containerd.gateway_ip,
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True, "cacheTTL": "1s"},
            "x509": {"clientCAFile": str(cluster.ca_file)},
        },
        "authorization": {
            "mode": "Webhook",
            "webhook": {"cacheAuthorizedTTL": "1s", "cacheUnauthorizedTTL": "1s"},
        },
    }
    with joined(cluster, containerd, tmp_path_factory.mktemp("node"), name="guarded", **changes) as made:
        made.apply(pod_manifest("quiet", node="guarded"))
        made.wait_running("quiet")
        yield made


@pytest.fixture
def address(containerd: BedContainerd) -> str:
    return containerd.gateway_ip


def service_account(cluster: Cluster, name: str) -> str:
    """A new account's token."""
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": "default"}}
    cluster.apply(account)
    return cluster.kubectl("create", "token", name).strip()


def allow(cluster: Cluster, name: str, subresource: str, verbs: list[str]) -> None:
    """Let the account use one subresource of nodes."""
    rule = {"apiGroups": [""], "resources": [f"nodes/{subresource}"], "verbs": verbs}
    role = {"apiVersion": f"{API}/v1", "kind": "ClusterRole", "metadata": {"name": name}, "rules": [rule]}
    binding = {
        "apiVersion": f"{API}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": name},
        "roleRef": {"apiGroup": API, "kind": "ClusterRole", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": "default"}],
    }
    cluster.apply(role, binding)


@pytest.fixture(scope="module", autouse=True)
def ended(node: Joined, cluster: Cluster, containerd: BedContainerd) -> Caller:
    """A caller whose account is deleted before the first test: the API server remembers tokens for ten seconds."""
    caller = Caller(node, containerd.gateway_ip, token=service_account(cluster, "brief"))
    allow(cluster, "brief", "metrics", ["get"])
    eventually(caller, "/metrics", 200)
    cluster.kubectl("delete", "serviceaccount", "brief")
    return caller


def eventually(caller: Caller, path: str, status: int, within: float = 60.0) -> None:
    deadline = time.monotonic() + within
    while (found := caller.ask("GET", path))[0] != status:
        assert time.monotonic() < deadline, found
        time.sleep(0.2)


def test_nobody_and_rubbish_get_401(node: Joined, address: str) -> None:
    stranger, liar = Caller(node, address), Caller(node, address, token="abc.def.ghi")
    for method, path, _ in ROUTES:
        for caller in (stranger, liar):
            assert caller.ask(method, path) == (401, "Unauthorized"), (method, path)


def test_without_rights_every_route_is_403(node: Joined, cluster: Cluster, address: str) -> None:
    pair = cluster.authority.issue("mallory", ["some-group"])
    callers = {
        "mallory": Caller(node, address, pair=pair),
        "system:serviceaccount:default:powerless": Caller(node, address, token=service_account(cluster, "powerless")),
    }
    for user, caller in callers.items():
        for method, path, needed in ROUTES:
            status, text = caller.ask(method, path)
            assert status == 403, (method, path, text)
            verb = VERBS.get(method, "")
            assert (
                text == f"Forbidden (user={user}, verb={verb}, resource=nodes, subresource(s)=[{' '.join(needed)}])\n"
            )


@pytest.mark.parametrize("subresource", ["metrics", "stats", "pods", "healthz", "configz", "log"])
def test_a_right_to_one_subresource_opens_its_paths_only(
    node: Joined, cluster: Cluster, address: str, subresource: str
) -> None:
    name = f"only-{subresource}"
    caller = Caller(node, address, token=service_account(cluster, name))
    allow(cluster, name, subresource, ["get"])
    own = next(path for method, path, needed in ROUTES if method == "GET" and subresource in needed)
    eventually(caller, own, 200)  # the API server itself takes a moment to know the new binding
    for method, path, needed in ROUTES:
        status, text = caller.ask(method, path)
        allowed = method == "GET" and subresource in needed
        assert (status != 403) == allowed, (method, path, status, text[:200])
        assert status < 500, (method, path, status, text[:200])


def test_a_certificate_of_the_cluster_with_rights_enters(node: Joined, cluster: Cluster, address: str) -> None:
    caller = Caller(node, address, pair=cluster.admin)
    status, text = caller.ask("GET", "/pods")
    assert status == 200 and [pod["metadata"]["name"] for pod in json.loads(text)["items"]] == ["quiet"]
    assert caller.ask("GET", "/containerLogs/default/quiet/app") == (200, "")
    status, text = caller.ask("GET", "/logs/..%2f..%2fetc%2fpasswd")
    assert status in (400, 404) and "root:" not in text


def test_metrics_have_the_names_that_dashboards_use(node: Joined, cluster: Cluster, address: str) -> None:
    caller = Caller(node, address, pair=cluster.admin)
    for path, wanted in NAMES.items():
        deadline = time.monotonic() + 60
        while missing := set(wanted.split()) - metric_names(caller, path):  # some come with the first measurement
            assert time.monotonic() < deadline, (path, missing)
            time.sleep(0.5)


def metric_names(caller: Caller, path: str) -> set[str]:
    status, text = caller.ask("GET", path)
    assert status == 200
    families = list(text_string_to_metric_families(text))
    found = {sample.name for family in families for sample in family.samples}
    return found | {family.name for family in families if family.samples}  # the parser ends all counters in _total


def test_podresources_are_for_those_who_reach_the_socket(node: Joined) -> None:
    socket = node.agent.root / "pod-resources" / "kubelet.sock"
    assert socket.parent.stat().st_mode & 0o007 == 0, "root and its group only"
    with grpc.insecure_channel(f"unix:{socket}") as channel:
        stub = Stub(channel, podresources_v1_pb2, "PodResourcesLister")
        listed = stub.List(podresources_v1_pb2.ListPodResourcesRequest(), timeout=30)
        assert [(pod.name, [each.name for each in pod.containers]) for pod in listed.pod_resources] == [
            ("quiet", ["app"])
        ]
        stub.GetAllocatableResources(podresources_v1_pb2.AllocatableResourcesRequest(), timeout=30)


def test_a_foreign_certificate_is_no_certificate(node: Joined, address: str, tmp_path: Path) -> None:
    foreign = Authority(tmp_path).issue("admin", ["system:masters"])
    with pytest.raises((ssl.SSLError, ConnectionError, http.client.HTTPException)):
        Caller(node, address, pair=foreign).ask("GET", "/pods")


def test_a_token_that_ended_is_soon_refused(ended: Caller) -> None:
    eventually(ended, "/metrics", 401)


def test_rights_that_were_taken_away_are_soon_gone(node: Joined, cluster: Cluster, address: str) -> None:
    caller = Caller(node, address, token=service_account(cluster, "former"))
    allow(cluster, "former", "metrics", ["get"])
    eventually(caller, "/metrics", 200)
    cluster.kubectl("delete", "clusterrolebinding", "former")
    eventually(caller, "/metrics", 403)
