"""Settings of the node itself: pod sources, the API client, node status, networking, logging, tracing.

Names, defaults and flags are those of KubeletConfiguration v1beta1.
Does not cover what concerns containers (schema_runtime.py) or resources (schema_resources.py).
"""

from __future__ import annotations

from collections.abc import Mapping

from pykubelet.settings.flag_forms import GATES, HEADERS, TAINTS, VMODULE, NodeTaint, VModuleItem
from pykubelet.settings.kinds import (
    BOOL,
    DURATION,
    FLUSH_FREQUENCY,
    INT32,
    INT64,
    PATH,
    QUANTITY,
    STRING,
    STRINGS,
    UINT32,
    ListOf,
    MapOf,
    Nested,
    SettingsGroup,
    nested,
    setting,
)


class PodSourceSettings(SettingsGroup):
    """Where pods come from besides the API server, and how often everything is synced again."""

    static_pod_path: str = setting(
        "staticPodPath",
        PATH,
        "",
        "Folder or single file of static pods; names that start with a dot are ignored.",
        flag="pod-manifest-path",
    )
    static_pod_url: str = setting(
        "staticPodURL",
        STRING,
        "",
        "Address to fetch static pods from; with https its certificate must be good by the system's authorities.",
        flag="manifest-url",
    )
    static_pod_url_header: Mapping[str, tuple[str, ...]] = setting(
        "staticPodURLHeader",
        MapOf(STRINGS),
        {},
        "Headers sent to staticPodURL; their values are never logged.",
        flag="manifest-url-header",
        flag_form=HEADERS,
        secret=True,
    )
    file_check_frequency: float = setting(
        "fileCheckFrequency",
        DURATION,
        20.0,
        "How often staticPodPath is read again even without a change notice.",
        flag="file-check-frequency",
    )
    http_check_frequency: float = setting(
        "httpCheckFrequency",
        DURATION,
        20.0,
        "How often staticPodURL is fetched again.",
        flag="http-check-frequency",
    )
    sync_frequency: float = setting(
        "syncFrequency",
        DURATION,
        60.0,
        "Longest time between two syncs of a pod.",
        flag="sync-frequency",
    )
    run_once: bool = setting(
        "runOnce",
        BOOL,
        False,
        "Start the pods of the static sources, report on each and leave.",
        flag="runonce",
    )
    pod_cidr: str = setting(
        "podCIDR", STRING, "", "Address range of pods; only without an API server.", flag="pod-cidr"
    )


class NodeSettings(SettingsGroup):
    """The API client, events, the Node object and this process's own limits."""

    kube_api_qps: int = setting(
        "kubeAPIQPS",
        INT32,
        50,
        "Requests per second to the API server.",
        flag="kube-api-qps",
        optional=True,
    )
    kube_api_burst: int = setting(
        "kubeAPIBurst", INT32, 100, "Requests allowed at once above the rate.", flag="kube-api-burst"
    )
    content_type: str = setting(
        "contentType",
        STRING,
        "application/vnd.kubernetes.protobuf",
        "Content type of requests to the API server.",
        flag="kube-api-content-type",
    )
    event_record_qps: int = setting(
        "eventRecordQPS",
        INT32,
        50,
        "Events per second; 0 means the client's default of 5.",
        flag="event-qps",
        optional=True,
    )
    event_burst: int = setting("eventBurst", INT32, 100, "Events allowed at once above the rate.", flag="event-burst")
    node_status_update_frequency: float = setting(
        "nodeStatusUpdateFrequency",
        DURATION,
        10.0,
        "How often the node's status is computed.",
        flag="node-status-update-frequency",
    )
    node_status_report_frequency: float = setting(
        "nodeStatusReportFrequency",
        DURATION,
        300.0,
        "How often an unchanged status is posted. When only nodeStatusUpdateFrequency is set in the"
        " file, that value is taken.",
    )
    node_lease_duration_seconds: int = setting(
        "nodeLeaseDurationSeconds",
        INT32,
        40,
        "Seconds the node's lease lasts; it is renewed every quarter of it.",
    )
    node_status_max_images: int = setting(
        "nodeStatusMaxImages",
        INT32,
        50,
        "Images listed in the node's status; -1 lists all, 0 none.",
        flag="node-status-max-images",
        optional=True,
    )
    register_node: bool = setting(
        "registerNode",
        BOOL,
        True,
        "Create the Node object when it is missing.",
        flag="register-node",
        optional=True,
    )
    register_with_taints: tuple[NodeTaint, ...] = setting(
        "registerWithTaints",
        ListOf(Nested(NodeTaint)),
        (),
        "Taints of the Node object at its first registration.",
        flag="register-with-taints",
        flag_form=TAINTS,
    )
    provider_id: str = setting(
        "providerID", STRING, "", "The machine's identity at its cloud: spec.providerID.", flag="provider-id"
    )
    change_detection_strategy: str = setting(
        "configMapAndSecretChangeDetectionStrategy",
        STRING,
        "Watch",
        "How changes of ConfigMaps and Secrets are noticed: Get, Cache or Watch.",
    )
    max_open_files: int = setting(
        "maxOpenFiles", INT64, 1000000, "Open files this process may have.", flag="max-open-files"
    )
    oom_score_adj: int = setting(
        "oomScoreAdj",
        INT32,
        -999,
        "Out-of-memory score of this process, -1000 to 1000.",
        flag="oom-score-adj",
        optional=True,
    )


class NetworkSettings(SettingsGroup):
    """Name resolution of pods and the few iptables chains."""

    cluster_domain: str = setting(
        "clusterDomain", STRING, "", "DNS domain of the cluster, such as cluster.local.", flag="cluster-domain"
    )
    cluster_dns: tuple[str, ...] = setting(
        "clusterDNS",
        STRINGS,
        (),
        "Name servers of pods with the ClusterFirst policy.",
        flag="cluster-dns",
    )
    resolv_conf: str = setting(
        "resolvConf",
        PATH,
        "/etc/resolv.conf",
        "Resolver file pods inherit from; an empty text inherits nothing.",
        flag="resolv-conf",
        optional=True,
    )
    hairpin_mode: str = setting(
        "hairpinMode",
        STRING,
        "promiscuous-bridge",
        "promiscuous-bridge, hairpin-veth or none.",
        flag="hairpin-mode",
    )
    make_iptables_util_chains: bool = setting(
        "makeIPTablesUtilChains",
        BOOL,
        True,
        "Keep the KUBE-IPTABLES-HINT and KUBE-FIREWALL chains.",
        flag="make-iptables-util-chains",
        optional=True,
    )
    iptables_masquerade_bit: int = setting("iptablesMasqueradeBit", INT32, 14, "Deprecated; 0 to 31.", optional=True)
    iptables_drop_bit: int = setting("iptablesDropBit", INT32, 15, "Deprecated; 0 to 31.", optional=True)


class TextLogOptions(SettingsGroup):
    split_stream: bool = setting(
        "splitStream",
        BOOL,
        False,
        "Errors to standard error, the rest to standard output.",
        flag="log-text-split-stream",
    )
    info_buffer_size: str = setting(
        "infoBufferSize",
        QUANTITY,
        "0",
        "Bytes of info lines held back when the streams are split.",
        flag="log-text-info-buffer-size",
    )


class JsonLogOptions(SettingsGroup):
    split_stream: bool = setting(
        "splitStream",
        BOOL,
        False,
        "Errors to standard error, the rest to standard output.",
        flag="log-json-split-stream",
    )
    info_buffer_size: str = setting(
        "infoBufferSize",
        QUANTITY,
        "0",
        "Bytes of info lines held back when the streams are split.",
        flag="log-json-info-buffer-size",
    )


class LogOptions(SettingsGroup):
    text: TextLogOptions = nested("text", TextLogOptions, "For the text format.")
    json: JsonLogOptions = nested("json", JsonLogOptions, "For the JSON format.")


class LoggingSettings(SettingsGroup):
    """How this process logs."""

    format: str = setting("format", STRING, "text", "text or json.", flag="logging-format")
    flush_frequency: float = setting(
        "flushFrequency",
        FLUSH_FREQUENCY,
        5.0,
        "Longest time a log line may wait; a number counts nanoseconds.",
        flag="log-flush-frequency",
    )
    verbosity: int = setting("verbosity", UINT32, 0, "Log level; higher says more.", flag="v", optional=True)
    vmodule: tuple[VModuleItem, ...] = setting(
        "vmodule",
        ListOf(Nested(VModuleItem)),
        (),
        "Verbosity by source file; text format only.",
        flag="vmodule",
        flag_form=VMODULE,
    )
    options: LogOptions = nested("options", LogOptions, "Options of each format; need gate LoggingAlphaOptions.")


class TracingSettings(SettingsGroup):
    """Export of traces over OTLP."""

    endpoint: str | None = setting(
        "endpoint",
        STRING,
        None,
        "Where the collector takes OTLP over gRPC, without TLS: host:port, unix:///path; absent: localhost:4317.",
        optional=True,
    )
    sampling_rate_per_million: int | None = setting(
        "samplingRatePerMillion",
        INT32,
        None,
        "Traces of each million that are sent; absent or 0: only those that an authorized caller has begun.",
        optional=True,
    )


class ProcessSettings(SettingsGroup):
    """Feature gates, logging, tracing, metrics."""

    feature_gates: Mapping[str, bool] = setting(
        "featureGates",
        MapOf(BOOL),
        {},
        "Feature gates to switch; an unknown name is an error.",
        flag="feature-gates",
        flag_form=GATES,
    )
    logging: LoggingSettings = nested("logging", LoggingSettings, "Logging.")
    tracing: TracingSettings | None = nested("tracing", TracingSettings, "Tracing.", optional=True)
    show_hidden_metrics_for_version: str = setting(
        "showHiddenMetricsForVersion",
        STRING,
        "",
        "Show metrics hidden since this version; only the previous minor is allowed, 1.35.",
    )
