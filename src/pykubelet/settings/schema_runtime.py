"""Settings about containers: the runtime, images, container logs, volumes.

Names, defaults and flags are those of KubeletConfiguration v1beta1.
Does not cover cgroups, reservations and eviction (schema_resources.py).
"""

from __future__ import annotations

from pykubelet.settings.kinds import (
    BOOL,
    DURATION,
    INT32,
    INT64,
    PATH,
    STRING,
    STRINGS,
    SettingsGroup,
    nested,
    quantity_of,
    setting,
)


class CrashLoopBackOff(SettingsGroup):
    max_container_restart_period: float | None = setting(
        "maxContainerRestartPeriod",
        DURATION,
        300.0,
        "Longest wait before a crashing container starts again, 1s to 300s; gate KubeletCrashLoopBackOffMax.",
        optional=True,
    )


class UserNamespaces(SettingsGroup):
    ids_per_pod: int = setting(
        "idsPerPod",
        INT64,
        65536,
        "Users and groups each pod with a user namespace gets; a multiple of 65536.",
        optional=True,
    )


class RuntimeSettings(SettingsGroup):
    """The container runtime and what containers are given."""

    container_runtime_endpoint: str = setting(
        "containerRuntimeEndpoint",
        STRING,
        "unix:///run/containerd/containerd.sock",
        "Socket of the container runtime.",
        flag="container-runtime-endpoint",
    )
    image_service_endpoint: str = setting(
        "imageServiceEndpoint",
        STRING,
        "",
        "Socket of the image service; empty: the same as the runtime's.",
        flag="image-service-endpoint",
    )
    runtime_request_timeout: float = setting(
        "runtimeRequestTimeout",
        DURATION,
        120.0,
        "Deadline of calls to the runtime, except pull, logs, exec and attach.",
        flag="runtime-request-timeout",
    )
    seccomp_default: bool = setting(
        "seccompDefault",
        BOOL,
        False,
        "Use the runtime's seccomp profile where a pod names none. The flag --seccomp-default is the same"
        " as true here.",
        optional=True,
    )
    crash_loop_back_off: CrashLoopBackOff = nested("crashLoopBackOff", CrashLoopBackOff, "Waiting after crashes.")
    user_namespaces: UserNamespaces = nested("userNamespaces", UserNamespaces, "Size of user namespaces.")
    allowed_unsafe_sysctls: tuple[str, ...] = setting(
        "allowedUnsafeSysctls",
        STRINGS,
        (),
        "Sysctls pods may set beyond the safe ones; a name may end in * for a prefix.",
        flag="allowed-unsafe-sysctls",
    )
    cpu_cfs_quota: bool = setting(
        "cpuCFSQuota",
        BOOL,
        True,
        "Enforce CPU limits.",
        flag="cpu-cfs-quota",
        optional=True,
    )
    cpu_cfs_quota_period: float = setting(
        "cpuCFSQuotaPeriod",
        DURATION,
        0.1,
        "Period over which CPU limits are enforced, 1ms to 1s.",
        flag="cpu-cfs-quota-period",
        optional=True,
    )


class ImageSettings(SettingsGroup):
    """Pulling images and throwing them away."""

    serialize_image_pulls: bool = setting(
        "serializeImagePulls",
        BOOL,
        True,
        "Pull one image at a time. When absent: false if maxParallelImagePulls is 2 or more, else true.",
        flag="serialize-image-pulls",
        optional=True,
    )
    max_parallel_image_pulls: int | None = setting(
        "maxParallelImagePulls",
        INT32,
        None,
        "Pulls at the same time; absent: no limit. Above 1 needs serializeImagePulls false.",
        optional=True,
    )
    registry_pull_qps: int = setting(
        "registryPullQPS",
        INT32,
        5,
        "Pulls per second; 0 is no limit. Above it a pull fails and is tried again.",
        flag="registry-qps",
        optional=True,
    )
    registry_burst: int = setting(
        "registryBurst", INT32, 10, "Pulls allowed at once above the rate.", flag="registry-burst"
    )
    credentials_verification_policy: str = setting(
        "imagePullCredentialsVerificationPolicy",
        STRING,
        "NeverVerifyPreloadedImages",
        "When a pod must prove that it may use an image that is present: NeverVerify,"
        " NeverVerifyPreloadedImages, NeverVerifyAllowlistedImages or AlwaysVerify;"
        " gate KubeletEnsureSecretPulledImages.",
    )
    preloaded_images_allowlist: tuple[str, ...] = setting(
        "preloadedImagesVerificationAllowlist",
        STRINGS,
        (),
        "Images exempt under NeverVerifyAllowlistedImages; no tag or digest, may end in /*.",
    )
    image_minimum_gc_age: float = setting(
        "imageMinimumGCAge",
        DURATION,
        120.0,
        "Images younger than this are never removed.",
        flag="minimum-image-ttl-duration",
    )
    image_maximum_gc_age: float = setting(
        "imageMaximumGCAge", DURATION, 0.0, "Images unused for longer are removed; 0 turns it off."
    )
    gc_high_threshold_percent: int = setting(
        "imageGCHighThresholdPercent",
        INT32,
        85,
        "Disk use at which images start to be removed; 100 turns it off.",
        flag="image-gc-high-threshold",
        optional=True,
    )
    gc_low_threshold_percent: int = setting(
        "imageGCLowThresholdPercent",
        INT32,
        80,
        "Disk use at which removal stops; below imageGCHighThresholdPercent.",
        flag="image-gc-low-threshold",
        optional=True,
    )


class ContainerLogSettings(SettingsGroup):
    """Where container logs go and when they are rotated."""

    pod_logs_dir: str = setting(
        "podLogsDir", PATH, "/var/log/pods", "Folder of container logs; an absolute, clean ASCII path."
    )
    max_size: str = setting(
        "containerLogMaxSize",
        STRING,
        "10Mi",
        "Size at which a log is rotated; negative turns rotation off.",
        flag="container-log-max-size",
    )
    max_files: int = setting(
        "containerLogMaxFiles",
        INT32,
        5,
        "Log files kept for each container, at least 2.",
        flag="container-log-max-files",
        optional=True,
    )
    max_workers: int = setting(
        "containerLogMaxWorkers", INT32, 1, "Rotations at the same time, at least 1.", optional=True
    )
    monitor_interval: float = setting(
        "containerLogMonitorInterval", DURATION, 10.0, "How often sizes are looked at, at least 3s.", optional=True
    )

    @property
    def max_size_bytes(self) -> int:
        """Size in bytes at which a log is rotated; negative when rotation is off."""
        return quantity_of(self.max_size).value()


class VolumeSettings(SettingsGroup):
    """Volumes and local storage."""

    volume_plugin_dir: str = setting(
        "volumePluginDir",
        PATH,
        "/usr/libexec/kubernetes/kubelet-plugins/volume/exec/",
        "Folder of FlexVolume drivers.",
        flag="volume-plugin-dir",
    )
    volume_stats_agg_period: float = setting(
        "volumeStatsAggPeriod",
        DURATION,
        60.0,
        "How often volume use is computed; negative turns it off.",
        flag="volume-stats-agg-period",
    )
    local_storage_capacity_isolation: bool = setting(
        "localStorageCapacityIsolation",
        BOOL,
        True,
        "Account for ephemeral storage and evict by it.",
        flag="local-storage-capacity-isolation",
        optional=True,
    )
    enable_controller_attach_detach: bool = setting(
        "enableControllerAttachDetach",
        BOOL,
        True,
        "Leave attaching volumes to the controller; must be true for CSI.",
        flag="enable-controller-attach-detach",
        optional=True,
    )
