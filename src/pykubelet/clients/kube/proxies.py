"""Which proxy stands between us and the API server: the kubeconfig's own, else HTTPS_PROXY and NO_PROXY as in Go.

Proxies may be `http`, `https`, `socks5` or `socks5h`. As in Go, ALL_PROXY is not read.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from urllib.parse import urlsplit


def proxy_for(server: str, configured: str, environ: Mapping[str, str]) -> str:
    """The proxy's URL, empty for none."""
    if configured:
        return configured
    parts = urlsplit(server)
    name = f"{parts.scheme}_proxy"
    proxy = environ.get(name.upper()) or environ.get(name) or ""
    if not proxy or _bypassed(
        parts.hostname or "", parts.port, environ.get("NO_PROXY") or environ.get("no_proxy") or ""
    ):
        return ""
    return proxy if "://" in proxy else f"http://{proxy}"


def _bypassed(host: str, port: int | None, rules: str) -> bool:
    address = _address(host)
    if host == "localhost" or (address is not None and address.is_loopback):
        return True
    return any(
        _matches(host, address, port, rule) for rule in (text.strip().lower() for text in rules.split(",")) if rule
    )


def _matches(
    host: str, address: ipaddress.IPv4Address | ipaddress.IPv6Address | None, port: int | None, rule: str
) -> bool:
    if rule == "*":
        return True
    if "/" in rule:
        try:
            return address is not None and address in ipaddress.ip_network(rule, strict=False)
        except ValueError:
            return False
    if (same := _address(rule)) is not None:
        return same == address
    name, _, rule_port = rule.rpartition(":") if ":" in rule else (rule, "", "")
    if rule_port and rule_port != str(port or ""):
        return False
    name = name.removeprefix("*").lstrip(".") if name.startswith("*.") else name
    if name.startswith("."):
        return host.endswith(name)
    return host == name or host.endswith("." + name)


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text.strip("[]"))
    except ValueError:
        return None
