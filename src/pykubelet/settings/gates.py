"""Feature gates of Kubernetes 1.36: which exist, which are on, and why a setting of one is refused.

A Gates value is made once from the merged `featureGates` map and read with `enabled("Name")`.
Covers the AllAlpha and AllBeta switches, locked gates and gates that need others. KUBELET_GATES are the ones a kubelet
looks at; OTHER_GATES belong to other components and are accepted because one `featureGates` block is often shared by a
whole cluster. Does not cover where the map comes from (load.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from types import MappingProxyType

from msgspec import Struct

from pykubelet.settings.errors import hint
from pykubelet.settings.without_effect import GATES

# These two switch every gate of a stage at once; a gate named by itself still wins.
GROUP_SWITCHES = {"AllAlpha": "Alpha", "AllBeta": "Beta"}


class Gate(Struct, frozen=True, kw_only=True):
    """One feature gate as Kubernetes 1.36 knows it."""

    name: str
    default: bool
    stage: str
    locked: bool
    needs: tuple[str, ...]
    kubelet: bool
    """A kubelet looks at it; False: another component's gate, accepted and without effect."""


def _rows(text: str, *, kubelet: bool) -> Iterator[Gate]:
    for line in text.split("\n"):
        words = line.split()
        if not words:
            continue
        needs = tuple(words[-1].split(",")) if "needs" in words else ()
        yield Gate(
            name=words[0],
            default=words[1] == "on",
            stage=words[2],
            locked="locked" in words,
            needs=needs,
            kubelet=kubelet,
        )


@cache
def known_gates() -> Mapping[str, Gate]:
    """Every gate name that may be set, with its defaults."""
    rows = [*_rows(KUBELET_GATES, kubelet=True), *_rows(OTHER_GATES, kubelet=False)]
    return MappingProxyType({gate.name: gate for gate in rows})


class Gates(Struct, frozen=True):
    """The effective feature gates. `chosen` holds only what the operator set."""

    chosen: Mapping[str, bool]

    def enabled(self, name: str) -> bool:
        """Whether the gate is on. Asking for an unknown name is a bug of the caller and raises."""
        gate = known_gates().get(name)
        if gate is None:
            raise KeyError(f"unknown feature gate {name}")
        if name in self.chosen:
            return self.chosen[name]
        if gate.locked:
            return gate.default
        for switch, stage in GROUP_SWITCHES.items():
            if gate.stage == stage and switch in self.chosen:
                return self.chosen[switch]
        return gate.default

    def switched_off(self, name: str) -> bool:
        """Whether the operator set this gate to false; for features that are on here although the default is off."""
        return not self.chosen.get(name, True)

    def in_vain(self) -> list[str]:
        """The chosen gates that differ from their default and switch nothing here."""
        return [
            name for name in sorted(self.chosen) if name in GATES and self.chosen[name] != known_gates()[name].default
        ]

    def warnings(self) -> list[str]:
        """One sentence for each chosen gate that will be removed."""
        lines = []
        for name in sorted(self.chosen):
            gate = known_gates().get(name)
            if gate is not None and gate.stage in ("GA", "Deprecated"):
                lines.append(f"featureGates: {name} is {gate.stage} and the gate will be removed in a future release")
        return lines


def gate_problems(chosen: Mapping[str, bool]) -> list[str]:
    """Every reason why this map of gates cannot be used."""
    problems = []
    known = known_gates()
    for name, value in sorted(chosen.items()):
        if name in GROUP_SWITCHES:
            continue
        gate = known.get(name)
        if gate is None:
            problems.append(f"unrecognized feature gate: {name}{hint(name, known)}")
        elif gate.locked and value != gate.default:
            problems.append(
                f"cannot set feature gate {name} to {_word(value)}, feature is locked to {_word(gate.default)}"
            )
    gates = Gates(dict(chosen))
    for gate in known.values():
        missing = [need for need in gate.needs if not gates.enabled(need)]
        if missing and gates.enabled(gate.name):
            problems.append(f"feature gate {gate.name} is on but needs {', '.join(missing)}, which is off")
    return problems


def _word(value: bool) -> str:
    return "true" if value else "false"


# One gate a line: `Name on|off Stage [locked] [needs A,B]`; needs that are locked on are left out.
KUBELET_GATES = """
AllowDNSOnlyNodeCSR off Deprecated
CPUManagerPolicyAlphaOptions off Alpha
CPUManagerPolicyBetaOptions on Beta
CPUManagerPolicyOptions on GA locked
CRIListStreaming off Alpha
CSIVolumeHealth off Alpha
ChangeContainerStatusOnKubeletRestart off Deprecated
ClusterTrustBundleProjection off Beta needs ClusterTrustBundle
ComponentFlagz on Beta
ComponentStatusz on Beta
ContainerCheckpoint on Beta
ContainerRestartRules on Beta
ContainerStopSignals off Alpha
ContextualLogging on Beta
CustomCPUCFSQuotaPeriod on GA
DRAExtendedResource on Beta
DRAWorkloadResourceClaims off Alpha needs GenericWorkload
DisableCPUQuotaWithExclusiveCPUs on Deprecated
DisableNodeKubeProxyVersion on Deprecated locked
DynamicResourceAllocation on GA locked
EnvFiles on Beta
EventedPLEG off Alpha
ExtendWebSocketsToKubelet on Beta needs NodeDeclaredFeatures
GitRepoVolumeDriver off Deprecated locked
GracefulNodeShutdown on Beta
GracefulNodeShutdownBasedOnPodPriority on Beta needs GracefulNodeShutdown
HostnameOverride on Beta
ImageMaximumGCAge on GA locked
ImageVolume on GA locked
ImageVolumeWithDigest off Alpha
InPlacePodLevelResourcesVerticalScaling on Beta needs PodLevelResources,NodeDeclaredFeatures
InPlacePodVerticalScaling on GA locked
InPlacePodVerticalScalingExclusiveCPUs off Alpha
InPlacePodVerticalScalingExclusiveMemory off Alpha
InPlacePodVerticalScalingInitContainers on Beta needs NodeDeclaredFeatures
KubeletCrashLoopBackOffMax on Beta
KubeletEnsureSecretPulledImages on Beta
KubeletFineGrainedAuthz on GA locked
KubeletInUserNamespace off Alpha
KubeletPSI on GA locked
KubeletPodResourcesGet on GA locked
KubeletPodResourcesListUseActivePods on Deprecated
KubeletRegistrationGetOnExistsOnly off Deprecated
KubeletSeparateDiskGC on Beta
KubeletServiceAccountTokenForCredentialProviders on Beta
KubeletTracing on GA locked
LocalStorageCapacityIsolationFSQuotaMonitoring off Beta
LoggingAlphaOptions off Alpha
LoggingBetaOptions on Beta
MemoryQoS off Alpha
MutableCSINodeAllocatableCount on GA locked
NodeDeclaredFeatures on Beta
NodeLogQuery on GA locked
NodeSwap on GA locked
PLEGOnDemandRelist on Beta
PodAndContainerStatsFromCRI off Alpha
PodCertificateRequest off Beta
PodLevelResourceManagers off Alpha needs PodLevelResources
PodLevelResources on Beta
PodLifecycleSleepAction on GA locked
PodLogsQuerySplitStreams off Alpha
PodReadyToStartContainersCondition on Beta
PodsAPI off Alpha
PreventStaticPodAPIReferences on Beta
ProcMountType on GA locked
QOSReserved off Alpha
RecoverVolumeExpansionFailure on GA locked
RecursiveReadOnlyMounts on GA locked
ReduceDefaultCrashLoopBackOffDecay off Alpha
ReloadKubeletClientCAFile on Beta
ReloadKubeletServerCertificateFile on Beta
ResourceHealthStatus on Beta
ResourceHealthStatusMessage on Beta needs ResourceHealthStatus
RestartAllContainersOnContainerExits on Beta needs ContainerRestartRules,NodeDeclaredFeatures
RotateKubeletServerCertificate on Beta
RuntimeClassInImageCriApi off Alpha
SELinuxChangePolicy on GA locked
SELinuxMount off Beta
SELinuxMountReadWriteOncePod on GA locked
SidecarContainers on GA locked
SupplementalGroupsPolicy on GA locked
SystemdWatchdog on GA locked
TaintTolerationComparisonOperators off Alpha
TopologyManagerPolicyAlphaOptions off Alpha
TopologyManagerPolicyBetaOptions on Beta
TopologyManagerPolicyOptions on GA locked
UserNamespacesHostNetworkSupport off Alpha needs NodeDeclaredFeatures
UserNamespacesSupport on GA locked
WatchListClient on Beta
WindowsCPUAndMemoryAffinity off Alpha
WindowsGracefulNodeShutdown on Beta needs GracefulNodeShutdown
"""

OTHER_GATES = """
APIResponseCompression on Beta
APIServerIdentity on Beta
APIServerTracing on GA locked
APIServingWithRoutine off Alpha
AggregatedDiscoveryRemoveBetaType on Deprecated locked
AllowInsecureKubeletCertificateSigningRequests off Deprecated
AllowOverwriteTerminationGracePeriodSeconds off Deprecated locked
AllowParsingUserUIDFromCertAuth on Beta
AllowServiceExternalIPs on GA
AllowUnsafeMalformedObjectDeletion off Alpha
AnonymousAuthConfigurableEndpoints on GA locked
AnyVolumeDataSource on GA locked
AtomicFIFO on Beta
AuthorizeNodeWithSelectors on GA locked
AuthorizePodWebsocketUpgradeCreatePermission on Beta
AuthorizeWithSelectors on GA locked
BtreeWatchCache on GA locked
CBORServingAndStorage off Alpha
CRDObservedGenerationTracking on Beta
CRDValidationRatcheting on GA locked
CSIServiceAccountTokenSecrets on GA locked
ClearingNominatedNodeNameAfterBinding on Beta
ClientsAllowCARotation on Beta
ClientsAllowCBOR off Alpha
ClientsAllowTLSCacheGC on Beta
ClientsPreferCBOR off Alpha
CloudControllerManagerWatchBasedRoutesReconciliation off Alpha
CloudControllerManagerWebhook off Alpha
ClusterTrustBundle off Beta
ConcurrentWatchObjectDecode off Beta
ConsistentListFromCache on GA locked
ConstrainedImpersonation on Beta
ControllerManagerReleaseLeaderElectionLockOnExit off Alpha
CoordinatedLeaderElection off Beta
CrossNamespaceVolumeDataSource off Alpha
CustomResourceFieldSelectors on GA locked
DRAAdminAccess on GA locked
DRAConsumableCapacity on Beta
DRADeviceBindingConditions on Beta needs DRAResourceClaimDeviceStatus
DRADeviceTaintRules off Beta needs DRADeviceTaints
DRADeviceTaints on Beta
DRAListTypeAttributes off Alpha
DRANodeAllocatableResources off Alpha
DRAPartitionableDevices on Beta
DRAPrioritizedList on GA
DRAResourceClaimDeviceStatus on Beta
DRAResourceClaimGranularStatusAuthorization on Beta needs DRAResourceClaimDeviceStatus
DRAResourcePoolStatus off Alpha
DRASchedulerFilterTimeout on Beta
DeclarativeValidation on GA locked
DeclarativeValidationBeta on Beta
DeclarativeValidationTakeover off Deprecated
DeploymentReplicaSetTerminatingReplicas on Beta
DetectCacheInconsistency on Beta
DisableAllocatorDualWrite on GA locked
ExecProbeTimeout on GA locked
ExternalServiceAccountTokenSigner on GA locked
GangScheduling off Alpha needs GenericWorkload
GenericWorkload off Alpha
HPAConfigurableTolerance on Beta
HPAScaleToZero off Alpha
InOrderInformers on GA locked
InOrderInformersBatchProcess on Beta
InformerResourceVersion on GA
JobBackoffLimitPerIndex on GA locked
JobManagedBy on GA locked
JobPodReplacementPolicy on GA locked
JobSuccessPolicy on GA locked
KMSv1 off Deprecated
KubeletCgroupDriverFromCRI on GA locked
KubeletPodResourcesDynamicResources on GA locked
ListFromCacheSnapshot on Beta
LogarithmicScaleDown on GA locked
ManifestBasedAdmissionControlConfig off Alpha
MatchLabelKeysInPodAffinity on GA locked
MatchLabelKeysInPodTopologySpread on Beta
MatchLabelKeysInPodTopologySpreadSelectorMerge on Beta needs MatchLabelKeysInPodTopologySpread
MaxUnavailableStatefulSet off Beta
MultiCIDRServiceAllocator on GA locked
MutablePVNodeAffinity off Alpha
MutablePodResourcesForSuspendedJobs on Beta
MutableSchedulingDirectivesForSuspendedJobs on Beta
MutatingAdmissionPolicy on GA
NFTablesProxyMode on GA locked
NativeHistograms off Alpha
NodeInclusionPolicyInPodTopologySpread on GA locked
NominatedNodeNameForExpectation on Beta
OpenAPIEnums on Beta
OpportunisticBatching on Beta
OrderedNamespaceDeletion on GA locked
PersistentVolumeClaimUnusedSinceTime off Alpha
PodDeletionCost on Beta
PodLifecycleSleepActionAllowZero on GA locked
PodObservedGenerationTracking on GA locked
PodSchedulingReadiness on GA locked
PodTopologyLabelsAdmission on Beta
PortForwardWebsockets on Beta
PreferSameTrafficDistribution on GA locked
RelaxedDNSSearchValidation on GA locked
RelaxedEnvironmentVariableValidation on GA locked
RelaxedServiceNameValidation on Beta
RemoteRequestHeaderUID on Beta
ResilientWatchCacheInitialization on GA locked
RetryGenerateName on GA locked
SchedulerAsyncAPICalls off Beta
SchedulerAsyncPreemption on Beta
SchedulerPopFromBackoffQ on Beta
SchedulerQueueingHints on GA locked
SeparateCacheWatchRPC off Deprecated locked
SeparateTaintEvictionController on GA locked
ServiceAccountNodeAudienceRestriction on Beta
ServiceAccountTokenJTI on GA locked
ServiceAccountTokenNodeBinding on GA locked
ServiceAccountTokenNodeBindingValidation on GA locked
ServiceAccountTokenPodNodeInfo on GA locked
ServiceCIDRStatusFieldWiping on Deprecated
ShardedListAndWatch off Alpha
SizeBasedListCostEstimate on Beta
StaleControllerConsistencyDaemonSet on Beta
StaleControllerConsistencyJob on Beta
StaleControllerConsistencyReplicaSet on Beta
StaleControllerConsistencyStatefulSet on Beta
StatefulSetSemanticRevisionComparison on Beta
StorageCapacityScoring off Alpha
StorageNamespaceIndex on Deprecated
StorageVersionAPI off Alpha needs APIServerIdentity
StorageVersionHash on Beta
StorageVersionMigrator off Beta
StreamingCollectionEncodingToJSON on GA locked
StreamingCollectionEncodingToProtobuf on GA locked
StrictIPCIDRValidation on Beta
StructuredAuthenticationConfiguration on GA locked
StructuredAuthenticationConfigurationEgressSelector on Beta
StructuredAuthenticationConfigurationJWKSMetrics on Beta
TokenRequestServiceAccountUIDValidation on Beta
TopologyAwareWorkloadScheduling off Alpha needs GenericWorkload
TranslateStreamCloseWebsocketRequests on Beta
UnauthenticatedHTTP2DOSMitigation on Beta
UnknownVersionInteroperabilityProxy on Beta needs APIServerIdentity
UnlockWhileProcessingFIFO on Beta
VolumeAttributesClass on GA locked
VolumeLimitScaling off Alpha
WatchCacheInitializationPostStartHook on Beta
WatchList on Beta
WinDSR on GA locked
WinOverlay on GA locked
WindowsHostNetwork off Deprecated
WorkloadAwarePreemption off Alpha needs GangScheduling
WorkloadWithJob off Alpha needs GenericWorkload
"""
