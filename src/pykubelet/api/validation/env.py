"""Environment variables and the downward API selectors they share with volumes."""

from collections.abc import Collection, Mapping, Sequence

from pykubelet.api.pod_resources import parse_amount
from pykubelet.api.types import (
    ConfigMapKeySelector,
    EnvFromSource,
    EnvVar,
    EnvVarSource,
    FileKeySelector,
    ObjectFieldSelector,
    ResourceFieldSelector,
    SecretKeySelector,
    Volume,
)
from pykubelet.api.validation import names
from pykubelet.api.validation.findings import Findings, show, spoken

ENV_FIELDS = (
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
)
RESOURCE_FIELDS = (
    "limits.cpu",
    "limits.memory",
    "limits.ephemeral-storage",
    "requests.cpu",
    "requests.memory",
    "requests.ephemeral-storage",
)
HUGE_PAGE_FIELDS = ("requests.hugepages-", "limits.hugepages-")
SUBSCRIPTED = ("metadata.labels", "metadata.annotations")
CPU_DIVISORS = ("1m", "1")
SIZE_DIVISORS = ("1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei")


def validate_env(variables: Sequence[EnvVar], at: str, volumes: Mapping[str | None, Volume], found: Findings) -> None:
    for i, variable in enumerate(variables):
        found.check(f"{at}[{i}].name", names.env_name(variable.name))
        if variable.value_from is None:
            continue
        path = f"{at}[{i}].valueFrom"
        chosen = _validate_source(variable.value_from, path, volumes, found)
        if not chosen:
            found.add(path, "must have one of fieldRef, resourceFieldRef, configMapKeyRef, secretKeyRef, fileKeyRef")
        elif variable.value:
            found.add(path, "must not be set together with value")
        elif len(chosen) > 1:
            found.add(path, f"must have only one source, not {' and '.join(chosen)}")


def _validate_source(source: EnvVarSource, at: str, volumes: Mapping[str | None, Volume], found: Findings) -> list[str]:
    chosen = []
    if source.field_ref is not None:
        chosen.append("fieldRef")
        validate_field_ref(source.field_ref, f"{at}.fieldRef", ENV_FIELDS, found)
    if source.resource_field_ref is not None:
        chosen.append("resourceFieldRef")
        validate_resource_ref(source.resource_field_ref, f"{at}.resourceFieldRef", found)
    if source.config_map_key_ref is not None:
        chosen.append("configMapKeyRef")
        _validate_key(source.config_map_key_ref, f"{at}.configMapKeyRef", found)
    if source.secret_key_ref is not None:
        chosen.append("secretKeyRef")
        _validate_key(source.secret_key_ref, f"{at}.secretKeyRef", found)
    if source.file_key_ref is not None:
        chosen.append("fileKeyRef")
        _validate_file_key(source.file_key_ref, f"{at}.fileKeyRef", volumes, found)
    return chosen


def validate_env_from(sources: Sequence[EnvFromSource], at: str, found: Findings) -> None:
    for i, source in enumerate(sources):
        path = f"{at}[{i}]"
        if source.prefix:
            found.check(f"{path}.prefix", names.env_name(source.prefix))
        if (source.config_map_ref is None) == (source.secret_ref is None):
            found.add(path, "must have exactly one of configMapRef, secretRef")
        for name, ref in (("configMapRef", source.config_map_ref), ("secretRef", source.secret_ref)):
            if ref is not None and found.required(f"{path}.{name}.name", ref.name):
                found.check(f"{path}.{name}.name", names.dns_subdomain(ref.name or ""))


def validate_field_ref(ref: ObjectFieldSelector, at: str, allowed: Collection[str], found: Findings) -> None:
    if not found.required(f"{at}.fieldPath", ref.field_path):
        return
    if ref.api_version != "v1":
        found.add(f"{at}.apiVersion", f"must be v1, not {show(ref.api_version)}")
    field = ref.field_path or ""
    if field.endswith("']") and "['" in field:
        parent, _, key = field[:-2].partition("['")
        if parent not in SUBSCRIPTED:
            found.add(f"{at}.fieldPath", f"only {spoken(SUBSCRIPTED)} take a key, not {show(field)}")
        else:
            complaint = names.qualified_name(key.lower() if parent == SUBSCRIPTED[1] else key)
            if complaint is not None:
                found.add(f"{at}.fieldPath", f"the key {complaint}")
    elif field not in allowed and not (field == "spec.host" and "spec.nodeName" in allowed):
        found.add(f"{at}.fieldPath", f"must be {spoken(allowed)}, not {show(field)}")


def validate_resource_ref(
    ref: ResourceFieldSelector, at: str, found: Findings, *, container_required: bool = False
) -> None:
    if container_required:
        found.required(f"{at}.containerName", ref.container_name)
    resource = ref.resource or ""
    if not found.required(f"{at}.resource", resource):
        return
    if resource not in RESOURCE_FIELDS and not resource.startswith(HUGE_PAGE_FIELDS):
        found.choice(f"{at}.resource", resource, RESOURCE_FIELDS)
        return
    if ref.divisor is None:
        return
    divisor = parse_amount(ref.divisor)
    if divisor is None:
        found.add(f"{at}.divisor", f"must be a quantity, not {show(ref.divisor)}")
        return
    allowed = CPU_DIVISORS if resource.endswith(".cpu") else SIZE_DIVISORS
    # "0" is how an unset divisor looks after a round trip; it means 1.
    if str(divisor) != "0" and str(divisor) not in allowed:
        found.add(f"{at}.divisor", f"must be {spoken(allowed)}, not {show(str(divisor))}")


def _validate_key(ref: ConfigMapKeySelector | SecretKeySelector, at: str, found: Findings) -> None:
    if found.required(f"{at}.name", ref.name):
        found.check(f"{at}.name", names.dns_subdomain(ref.name or ""))
    if found.required(f"{at}.key", ref.key):
        found.check(f"{at}.key", names.config_key(ref.key or ""))


def _validate_file_key(ref: FileKeySelector, at: str, volumes: Mapping[str | None, Volume], found: Findings) -> None:
    found.check(f"{at}.key", names.env_name(ref.key or ""))
    if found.required(f"{at}.path", ref.path):
        found.check(f"{at}.path", names.no_backsteps(ref.path or ""))
    if not found.required(f"{at}.volumeName", ref.volume_name):
        return
    volume = volumes.get(ref.volume_name)
    if volume is None:
        found.add(f"{at}.volumeName", f"there is no volume named {show(ref.volume_name)}")
    elif volume.empty_dir is None:
        found.add(f"{at}.volumeName", f"volume {show(ref.volume_name)} must be an emptyDir")
