"""Rules a configuration and the flags must keep."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from pykubelet.settings.schema import KubeletConfig
from pykubelet.settings.validate import HostFacts, host_problems, node_label_problems
from tests.unit.settings.loading import config_of, load, problems_of


@pytest.mark.parametrize(
    ("main", "named"),
    [
        ("nodeLeaseDurationSeconds: -1", "nodeLeaseDurationSeconds: -1 must be greater than 0"),
        ("eventBurst: -1", "eventBurst (--event-burst): -1 must not be negative"),
        ("eventRecordQPS: -1", "eventRecordQPS (--event-qps)"),
        ("kubeAPIBurst: -1", "kubeAPIBurst (--kube-api-burst)"),
        ("kubeAPIQPS: -1", "kubeAPIQPS (--kube-api-qps)"),
        ("registryBurst: -1", "registryBurst (--registry-burst)"),
        ("registryPullQPS: -1", "registryPullQPS (--registry-qps)"),
        ("maxOpenFiles: -1", "maxOpenFiles (--max-open-files)"),
        ("maxPods: -1", "maxPods (--max-pods)"),
        ("podsPerCore: -1", "podsPerCore (--pods-per-core)"),
        ("systemCgroups: /a", "systemCgroups (--system-cgroups): needs cgroupRoot"),
        ("imageGCHighThresholdPercent: 101", "imageGCHighThresholdPercent (--image-gc-high-threshold): 101"),
        ("imageGCLowThresholdPercent: -1", "imageGCLowThresholdPercent (--image-gc-low-threshold): -1"),
        ("imageGCLowThresholdPercent: 85", "imageGCLowThresholdPercent (--image-gc-low-threshold): 85 must be less"),
        ("imageMaximumGCAge: 1m", "imageMaximumGCAge: must be greater than imageMinimumGCAge"),
        ("imageMinimumGCAge: -1s", "imageMinimumGCAge (--minimum-image-ttl-duration): -1s must not be negative"),
        ("healthzPort: 65536", "healthzPort (--healthz-port): 65536 must be between 0 and 65535"),
        ("port: -1", "port (--port): -1 must be between 1 and 65535"),
        ("readOnlyPort: -1", "readOnlyPort (--read-only-port)"),
        ("address: here", "address (--address): 'here' is not an IP address"),
        ("authorization: {mode: Maybe}", "authorization.mode (--authorization-mode): 'Maybe' must be one of"),
        ("tlsMinVersion: TLS12", "tlsMinVersion (--tls-min-version)"),
        ("tlsCertFile: /a", "tlsCertFile (--tls-cert-file): must be given together with tlsPrivateKeyFile"),
        ("shutdownGracePeriodCriticalPods: 5s", "shutdownGracePeriodCriticalPods: 5s must not exceed"),
        ("shutdownGracePeriod: 500ms", "shutdownGracePeriod: 0.5s must be 0 or at least 1s"),
        (
            "shutdownGracePeriod: 5s\nshutdownGracePeriodByPodPriority: [{priority: 1, shutdownGracePeriodSeconds: 1}]",
            "shutdownGracePeriodByPodPriority: excludes shutdownGracePeriod",
        ),
        (
            "memorySwap: {swapBehavior: Much}",
            "memorySwap.swapBehavior: 'Much' must be one of \"\", NoSwap, LimitedSwap",
        ),
        ("containerLogMaxFiles: 1", "containerLogMaxFiles (--container-log-max-files): 1 must be greater than 1"),
        ("containerLogMaxWorkers: 0", "containerLogMaxWorkers: 0 must be 1 or more"),
        ("containerLogMonitorInterval: 2s", "containerLogMonitorInterval: 2s must be 3s or more"),
        ("containerLogMaxSize: big", "containerLogMaxSize (--container-log-max-size): quantity"),
        ("podLogsDir: /a/../b", "podLogsDir: '/a/../b' must be written without"),
        ("podLogsDir: /é", "podLogsDir: must contain ASCII"),
        (
            "enableSystemLogQuery: true\nenableSystemLogHandler: false",
            "enableSystemLogQuery: needs enableSystemLogHandler",
        ),
        ("hairpinMode: x", "hairpinMode (--hairpin-mode): 'x' must be one of promiscuous-bridge"),
        ("topologyManagerPolicy: x", "topologyManagerPolicy (--topology-manager-policy)"),
        ("topologyManagerScope: x", "topologyManagerScope (--topology-manager-scope)"),
        ("cpuManagerPolicy: x", "cpuManagerPolicy (--cpu-manager-policy)"),
        ("memoryManagerPolicy: x", "memoryManagerPolicy (--memory-manager-policy)"),
        ("cpuManagerPolicyOptions: {x: z}", "cpuManagerPolicyOptions (--cpu-manager-policy-options): 'x'"),
        (
            "topologyManagerPolicyOptions: {x: z}",
            "topologyManagerPolicyOptions (--topology-manager-policy-options): 'x'",
        ),
        ("memoryReservationPolicy: x", "memoryReservationPolicy: 'x' must be one of None, TieredReservation"),
        ("memoryReservationPolicy: TieredReservation", "memoryReservationPolicy: needs feature gate MemoryQoS"),
        ("memoryThrottlingFactor: 0", "memoryThrottlingFactor: 0 must be greater than 0"),
        ("imagePullCredentialsVerificationPolicy: x", "imagePullCredentialsVerificationPolicy: 'x' must be one of"),
        ("preloadedImagesVerificationAllowlist: [a/b]", "needs imagePullCredentialsVerificationPolicy Never"),
        (
            "imagePullCredentialsVerificationPolicy: NeverVerifyAllowlistedImages\n"
            "preloadedImagesVerificationAllowlist: ['a/b:1']",
            "preloadedImagesVerificationAllowlist: 'a/b:1' must not have a tag or digest",
        ),
        ("maxParallelImagePulls: 0", "maxParallelImagePulls: 0 must be 1 or more"),
        ("maxParallelImagePulls: 2\nserializeImagePulls: true", "maxParallelImagePulls: 2 needs serializeImagePulls"),
        ("featureGates: {Nope: true}", "featureGates (--feature-gates): unrecognized feature gate: Nope"),
        ("featureGates: {NodeSwap: false}", "cannot set feature gate NodeSwap to false, feature is locked to true"),
        ("crashLoopBackOff: {maxContainerRestartPeriod: 301s}", "crashLoopBackOff.maxContainerRestartPeriod: 301s"),
        (
            "featureGates: {KubeletCrashLoopBackOffMax: false}\ncrashLoopBackOff: {maxContainerRestartPeriod: 3s}",
            "crashLoopBackOff.maxContainerRestartPeriod: needs feature gate KubeletCrashLoopBackOffMax",
        ),
        ("userNamespaces: {idsPerPod: 65537}", "userNamespaces.idsPerPod: 65537 must be a multiple of 65536"),
        ("cpuCFSQuotaPeriod: 2s", "cpuCFSQuotaPeriod (--cpu-cfs-quota-period): 2s must be between 1ms and 1s"),
        ("allowedUnsafeSysctls: ['a b']", "allowedUnsafeSysctls (--allowed-unsafe-sysctls): 'a b'"),
        ("oomScoreAdj: -1001", "oomScoreAdj (--oom-score-adj): -1001 must be between -1000 and 1000"),
        ("nodeStatusMaxImages: -2", "nodeStatusMaxImages (--node-status-max-images): -2 must be -1 or more"),
        ("configMapAndSecretChangeDetectionStrategy: x", "configMapAndSecretChangeDetectionStrategy: 'x'"),
        ("iptablesDropBit: 32", "iptablesDropBit: 32 must be between 0 and 31"),
        ("registerWithTaints: [{key: a, effect: x}]", "registerWithTaints (--register-with-taints): [0].effect"),
        ("registerWithTaints: [{key: a, effect: NoExecute, timeAdded: '2026-01-01T00:00:00Z'}]", "[0].timeAdded"),
        ("enforceNodeAllocatable: [pods, none]", "enforceNodeAllocatable (--enforce-node-allocatable): none must"),
        ("enforceNodeAllocatable: [pods, pods]", "'pods' is given more than once"),
        ("enforceNodeAllocatable: [x]", "'x' must be one of none, pods"),
        ("enforceNodeAllocatable: [kube-reserved]", "kubeReservedCgroup (--kube-reserved-cgroup): must be set"),
        (
            "enforceNodeAllocatable: [system-reserved, system-reserved-compressible]\nsystemReservedCgroup: /a",
            "system-reserved and system-reserved-compressible exclude each other",
        ),
        (
            "cgroupsPerQOS: false",
            "cgroupsPerQOS (--cgroups-per-qos): must be true when enforceNodeAllocatable has pods",
        ),
        ("systemReserved: {gpu: '1'}", "systemReserved (--system-reserved): 'gpu' cannot be reserved"),
        ("kubeReserved: {cpu: '-1'}", "kubeReserved (--kube-reserved): cpu: -1 must not be negative"),
        ("kubeReserved: {cpu: x}", "kubeReserved (--kube-reserved): cpu: quantity"),
        ("reservedSystemCPUs: 3-1", "reservedSystemCPUs (--reserved-cpus): '3-1'"),
        ("reservedSystemCPUs: 0-1\nkubeReservedCgroup: /a", "reservedSystemCPUs (--reserved-cpus): excludes"),
        ("qosReserved: {memory: 50%}", "qosReserved (--qos-reserved): needs feature gate QOSReserved"),
        ("featureGates: {QOSReserved: true}\nqosReserved: {memory: half}", "must be a percentage such as 50%"),
        ("reservedMemory: [{numaNode: 0, limits: {cpu: 1}}]", "NUMA node 0, cpu: only memory and hugepages"),
        ("reservedMemory: [{numaNode: 0, limits: {memory: 0}}]", "NUMA node 0, memory: must be more than zero"),
        (
            "reservedMemory: [{numaNode: 0, limits: {memory: 1}}, {numaNode: 0, limits: {memory: 1}}]",
            "NUMA node 0, memory: is given more than once",
        ),
        ("evictionHard: {foo: 1Gi}", "evictionHard (--eviction-hard): unknown signal 'foo'"),
        ("evictionHard: {memory.available: 101%}", "memory.available: '101%' must be between 0% and 100%"),
        ("evictionHard: {memory.available: '0'}", "memory.available: '0' must be positive"),
        ("evictionHard: {memory.available: nan%}", "memory.available: 'nan%' must be between"),
        ("evictionSoft: {memory.available: 1Gi}", "memory.available of evictionSoft needs a grace period"),
        ("evictionSoftGracePeriod: {memory.available: -1s}", "memory.available: '-1s' must not be negative"),
        ("evictionMinimumReclaim: {memory.available: 0%}", "evictionMinimumReclaim (--eviction-minimum-reclaim)"),
        ("logging: {format: xml}", "logging.format (--logging-format): 'xml' must be one of text, json"),
        ("cgroupRoot: /\nsystemCgroups: /", "systemCgroups (--system-cgroups): must not be the root group"),
        ("logging: {flushFrequency: -1s}", "logging.flushFrequency (--log-flush-frequency): must be greater than zero"),
        ("logging: {verbosity: 3000000000}", "logging.verbosity (-v): 3000000000 must be between 0 and 2147483647"),
        ("logging: {vmodule: [{filePattern: 'a,b', verbosity: 1}]}", "logging.vmodule[0]: the file pattern must not"),
        ("logging: {vmodule: [{filePattern: a, verbosity: 4000000000}]}", "logging.vmodule[0]: verbosity must be"),
        (
            "logging: {options: {json: {infoBufferSize: 1Ki}}}",
            "logging.options.json.infoBufferSize (--log-json-info-buffer-size): needs feature gate LoggingAlphaOptions",
        ),
        ("logging: {format: json, vmodule: [{filePattern: a, verbosity: 1}]}", "logging.vmodule (--vmodule)"),
        ("tracing: {samplingRatePerMillion: -1}", "tracing.samplingRatePerMillion: -1"),
        ("tracing: {endpoint: ''}", "tracing.endpoint: must not be empty"),
        ("tracing: {endpoint: 'http://localhost:4317'}", "tracing.endpoint: unsupported scheme 'http'"),
        (
            "showHiddenMetricsForVersion: '1.34'",
            "showHiddenMetricsForVersion: must be empty or the previous release, 1.35",
        ),
        ("podCIDR: 10.0.0.0", "podCIDR (--pod-cidr): '10.0.0.0' is not an address range"),
        ("staticPodURL: ftp://x", "staticPodURL (--manifest-url): must be an http or https address"),
        ("cgroupDriver: x", "cgroupDriver (--cgroup-driver): 'x' must be one of cgroupfs, systemd"),
        ("featureGates: {RotateKubeletServerCertificate: false}\nserverTLSBootstrap: true", "serverTLSBootstrap"),
    ],
)
def test_each_rule_names_its_field(main: str, named: str) -> None:
    problems = problems_of(main=main + "\n")
    assert all(problem.startswith("invalid configuration: ") for problem in problems)
    assert any(named in problem for problem in problems), problems


def test_all_broken_rules_at_once() -> None:
    assert len(problems_of(main="port: -1\nmaxPods: -1\nhairpinMode: x\ncontainerLogMaxFiles: 0\n")) == 4


def test_an_empty_endpoint_can_only_come_from_the_flag() -> None:
    assert problems_of("--container-runtime-endpoint=") == (
        "invalid configuration: containerRuntimeEndpoint (--container-runtime-endpoint): must not be empty",
    )


@pytest.mark.parametrize(
    "main",
    [
        "",
        "healthzPort: 0\n",
        "imageGCHighThresholdPercent: 100\n",
        "enforceNodeAllocatable: [none]\ncgroupsPerQOS: false\n",
        "evictionSoft: {memory.available: 1Gi}\nevictionSoftGracePeriod: {memory.available: 1m}\n",
        "evictionHard: {memory.available: 0%, nodefs.available: 100%}\n",
        "containerLogMaxSize: '-1'\n",
        "allowedUnsafeSysctls: [kernel.msg*, net.core.somaxconn, net.*, '*']\n",
        "imagePullCredentialsVerificationPolicy: NeverVerifyAllowlistedImages\n"
        "preloadedImagesVerificationAllowlist: [registry.example.com:5000/a/*, busybox]\n",
        "runOnce: true\n",
        "systemReserved: {cpu: 200m, memory: 1Gi, ephemeral-storage: 1Gi, pid: '100'}\n",
    ],
)
def test_good_configurations(main: str) -> None:
    config_of(main=main)


def test_what_kubeadm_writes_is_accepted() -> None:
    load(
        "--container-runtime-endpoint=unix:///var/run/containerd/containerd.sock",
        "--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf",
        "--kubeconfig=/etc/kubernetes/kubelet.conf",
        "--node-ip=192.0.2.1",
        "--hostname-override=n1",
        main="""\
authentication:
  anonymous: {enabled: false}
  webhook: {cacheTTL: 0s, enabled: true}
  x509: {clientCAFile: /etc/kubernetes/pki/ca.crt}
authorization:
  mode: Webhook
  webhook: {cacheAuthorizedTTL: 0s, cacheUnauthorizedTTL: 0s}
cgroupDriver: systemd
clusterDNS: [10.96.0.10]
clusterDomain: cluster.local
containerRuntimeEndpoint: ""
cpuManagerReconcilePeriod: 0s
crashLoopBackOff: {}
evictionPressureTransitionPeriod: 0s
fileCheckFrequency: 0s
healthzBindAddress: 127.0.0.1
healthzPort: 10248
httpCheckFrequency: 0s
imageMaximumGCAge: 0s
imageMinimumGCAge: 0s
logging:
  flushFrequency: 0
  options:
    json: {infoBufferSize: "0"}
    text: {infoBufferSize: "0"}
  verbosity: 0
memorySwap: {}
nodeStatusReportFrequency: 0s
nodeStatusUpdateFrequency: 0s
rotateCertificates: true
runtimeRequestTimeout: 0s
shutdownGracePeriod: 0s
shutdownGracePeriodCriticalPods: 0s
staticPodPath: /etc/kubernetes/manifests
streamingConnectionIdleTimeout: 0s
syncFrequency: 0s
volumeStatsAggPeriod: 0s
""",
    )


@pytest.mark.parametrize(
    ("labels", "count"),
    [
        ({"a": "b", "example.com/x": ""}, 0),
        ({"kubernetes.io/hostname": "x", "topology.kubernetes.io/zone": "x"}, 0),
        ({"node.kubernetes.io/x": "y", "a.kubelet.kubernetes.io/x": "y"}, 0),
        ({"kubernetes.io/role": "x"}, 1),
        ({"node-role.kubernetes.io/worker": ""}, 1),
        ({"x.k8s.io/y": "z"}, 1),
        ({"notkubernetes.io/y": "z"}, 0),
        ({"kubernetes.io": "z"}, 0),
        ({"bad key": "ok"}, 1),
        ({"ok": "bad value"}, 1),
        ({"": ""}, 1),
    ],
)
def test_node_labels(labels: dict[str, str], count: int) -> None:
    assert len(node_label_problems(labels)) == count


@pytest.mark.parametrize(
    ("argument", "named"),
    [
        ("--node-labels=k8s.io/x=y", "--node-labels"),
        ("--cloud-provider=gce", "--cloud-provider"),
        ("--image-credential-provider-config=/a", "--image-credential-provider-bin-dir"),
        ("--exit-on-lock-contention", "--lock-file"),
        ("--node-ip=1.1.1.1,2.2.2.2", "--node-ip"),
        ("--node-ip=1.1.1.1,::", "--node-ip"),
        ("--node-ip=1.1.1.1,::1,3.3.3.3", "--node-ip"),
    ],
)
def test_rules_of_flags(argument: str, named: str) -> None:
    problems = problems_of(argument)
    assert len(problems) == 1 and named in problems[0]


GOOD_HOST = HostFacts(cgroup_v1=False, swap_on=False, online_cpus=frozenset(range(4)))


def test_a_good_host() -> None:
    assert host_problems(KubeletConfig(), GOOD_HOST) == []


@pytest.mark.parametrize(
    ("main", "host", "named"),
    [
        ("", replace(GOOD_HOST, cgroup_v1=True), "failCgroupV1 (--fail-cgroupv1)"),
        (
            "failCgroupV1: false\nsingleProcessOOMKill: false\n",
            replace(GOOD_HOST, cgroup_v1=True),
            "singleProcessOOMKill",
        ),
        (
            "failCgroupV1: false\nmemorySwap: {swapBehavior: LimitedSwap}\n",
            replace(GOOD_HOST, cgroup_v1=True),
            "memorySwap.swapBehavior",
        ),
        ("", replace(GOOD_HOST, swap_on=True), "failSwapOn (--fail-swap-on)"),
        ("reservedSystemCPUs: 0,3-5\n", GOOD_HOST, "CPUs 4-5 are not online, only 0-3"),
    ],
)
def test_rules_of_the_host(main: str, host: HostFacts, named: str) -> None:
    problems = host_problems(config_of(main=main), host)
    assert len(problems) == 1 and named in problems[0]
