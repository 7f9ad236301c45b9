"""Names and addresses of the pod: DNS, host aliases, host name."""

from pykubelet.api.types import PodSpec
from pykubelet.api.validation import names
from pykubelet.api.validation.findings import Findings, show

DNS_POLICIES = ("ClusterFirst", "ClusterFirstWithHostNet", "Default", "None")
MAX_NAMESERVERS = 3
MAX_SEARCHES = 32
MAX_SEARCH_CHARACTERS = 2048
MAX_HOSTNAME = 64


def validate_network(spec: PodSpec, found: Findings) -> None:
    if found.required("spec.dnsPolicy", spec.dns_policy):
        found.choice("spec.dnsPolicy", spec.dns_policy, DNS_POLICIES)
    _validate_dns_config(spec, found)
    _validate_hostname(spec, found)
    for i, alias in enumerate(spec.host_aliases):
        path = f"spec.hostAliases[{i}]"
        found.check(f"{path}.ip", names.ip_address(alias.ip or ""))
        for j, name in enumerate(alias.hostnames):
            found.check(f"{path}.hostnames[{j}]", names.dns_subdomain(name))


def _validate_dns_config(spec: PodSpec, found: Findings) -> None:
    config, at = spec.dns_config, "spec.dnsConfig"
    if spec.dns_policy == "None" and (config is None or not config.nameservers):
        found.add(f"{at}.nameservers", "required with dnsPolicy None")
    if config is None:
        return
    if len(config.nameservers) > MAX_NAMESERVERS:
        found.add(f"{at}.nameservers", f"must be at most {MAX_NAMESERVERS}, not {len(config.nameservers)}")
    for i, server in enumerate(config.nameservers):
        found.check(f"{at}.nameservers[{i}]", names.ip_address(server))
    if len(config.searches) > MAX_SEARCHES:
        found.add(f"{at}.searches", f"must be at most {MAX_SEARCHES}, not {len(config.searches)}")
    size = len(" ".join(config.searches))
    if size > MAX_SEARCH_CHARACTERS:
        found.add(f"{at}.searches", f"must be at most {MAX_SEARCH_CHARACTERS} characters together, not {size}")
    for i, search in enumerate(config.searches):
        found.check(f"{at}.searches[{i}]", names.dns_search(search))
    for i, option in enumerate(config.options):
        found.required(f"{at}.options[{i}].name", option.name)


def _validate_hostname(spec: PodSpec, found: Findings) -> None:
    if spec.hostname:
        found.check("spec.hostname", names.dns_label(spec.hostname))
    if spec.subdomain:
        found.check("spec.subdomain", names.dns_label(spec.subdomain))
    override, path = spec.hostname_override, "spec.hostnameOverride"
    if override is None:
        return
    if spec.set_hostname_as_fqdn:
        found.add(path, "must not be set with setHostnameAsFQDN")
    if spec.host_network:
        found.add(path, "must not be set with hostNetwork")
    if len(override) > MAX_HOSTNAME:
        found.add(path, f"must be at most {MAX_HOSTNAME} characters long, not {show(len(override))}")
    else:
        found.check(path, names.dns_subdomain(override))
