"""Kubeconfigs: what they mean, and that every mistake is named with file and field."""

from __future__ import annotations

import base64
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from pykubelet.clients.kube.credentials import ExecPlugin
from pykubelet.clients.kube.kubeconfig import ClusterEntry, ExecEntry, KubeconfigError, load_kubeconfig
from pykubelet.clients.kube.proxies import proxy_for
from pykubelet.kit.clock import LoopClock, SystemClock
from pykubelet.kit.metrics import Registry

V1 = "client.authentication.k8s.io/v1"


def a_config(**changes: Any) -> dict[str, Any]:
    cluster = {"server": "https://api:6443/", "certificate-authority": "ca.crt", **changes.pop("cluster", {})}
    user = {"client-certificate": "c.crt", "client-key": "/abs/c.key", **changes.pop("user", {})}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "main",
        "contexts": [{"name": "main", "context": {"cluster": "c", "user": "u", "namespace": "shop"}}],
        "clusters": [{"name": "other", "cluster": {}}, {"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": user}],
    }
    return {**config, **changes}


def load(folder: Path, config: Any) -> Any:
    path = folder / "kube.conf"
    path.write_text(config if isinstance(config, str) else json.dumps(config))
    return load_kubeconfig(path)


def test_files_are_beside_the_kubeconfig(tmp_path: Path) -> None:
    found = load(tmp_path, a_config())
    assert found.cluster.server == "https://api:6443"
    assert found.cluster.ca_file == tmp_path / "ca.crt"
    assert found.user.certificate_file == tmp_path / "c.crt"
    assert found.user.key_file == Path("/abs/c.key")
    assert found.namespace == "shop"


def test_inline_data_wins_over_files(tmp_path: Path) -> None:
    data = base64.b64encode(b"pem").decode()
    found = load(
        tmp_path,
        a_config(
            cluster={"certificate-authority-data": data, "tls-server-name": "api", "proxy-url": "http://p:3128"},
            user={"client-certificate-data": data, "client-key-data": data, "token": "t", "tokenFile": "tok"},
        ),
    )
    assert (found.cluster.ca_file, found.cluster.ca_data) == (None, b"pem")
    assert (found.user.certificate_file, found.user.certificate_data, found.user.key_data) == (None, b"pem", b"pem")
    assert (found.user.token, found.user.token_file) == ("t", tmp_path / "tok")
    assert (found.cluster.tls_server_name, found.cluster.proxy_url) == ("api", "http://p:3128")


def test_plugin_is_read_whole(tmp_path: Path) -> None:
    entry = {
        "apiVersion": V1,
        "command": "./bin/login",
        "args": ["--now"],
        "env": [{"name": "A", "value": "1"}],
        "provideClusterInfo": True,
        "interactiveMode": "Never",
        "installHint": "install it",
    }
    found = load(tmp_path, a_config(user={"exec": entry})).user.exec
    assert found == ExecEntry(
        api_version=V1,
        command=str(tmp_path / "bin/login"),
        args=("--now",),
        env=(("A", "1"),),
        provide_cluster_info=True,
        install_hint="install it",
    )


EXEC = {"apiVersion": V1, "command": "x", "interactiveMode": "Never"}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("", "is empty"),
        ("[1]", "must be a map of fields"),
        ("a: [", "line 2: invalid YAML"),
        (a_config(**{"current-context": ""}), "current-context: is not set"),
        (a_config(**{"current-context": "nope"}), 'current-context: there is no "nope" in contexts'),
        (a_config(clusters=[]), r'contexts\[main\]\.context\.cluster: there is no "c" in clusters'),
        (a_config(users=[]), r'contexts\[main\]\.context\.user: there is no "u" in users'),
        (a_config(users={"a": 1}), "users: must be a list"),
        (a_config(users=[7]), r"users\[0\]: must be a map"),
        (a_config(cluster={"server": ""}), r"clusters\[c\]\.cluster\.server: is missing"),
        (a_config(cluster={"server": "api:6443"}), "server: .*is no URL with a host|must begin with https"),
        (a_config(cluster={"server": "ftp://api"}), "must begin with https:// or http://"),
        (a_config(cluster={"server": "https://api:port"}), "is no URL"),
        (a_config(cluster={"proxy-url": "socks4://p:1"}), "proxy-url: .*must begin with http"),
        (a_config(cluster={"certificate-authority-data": "%%"}), "certificate-authority-data: is not base64"),
        (a_config(cluster={"insecure-skip-tls-verify": True}), "insecure-skip-tls-verify: cannot be true"),
        (a_config(cluster={"insecure-skip-tls-verify": "yes"}), "must be true or false"),
        (a_config(user={"client-key": ""}), "client-key: is needed with client-certificate"),
        (a_config(user={"client-certificate": ""}), "client-certificate: is needed with client-key"),
        (a_config(user={"token": 7}), r"users\[u\]\.user\.token: must be text"),
        (a_config(user={"auth-provider": {"name": "gcp"}}), "auth-provider: is not supported"),
        (a_config(user={"exec": {**EXEC, "apiVersion": "v1alpha1"}}), r"exec\.apiVersion: .*must be one of"),
        (a_config(user={"exec": {**EXEC, "command": ""}}), r"exec\.command: is missing"),
        (a_config(user={"exec": {**EXEC, "interactiveMode": "Always"}}), r"interactiveMode: Always cannot work"),
        (a_config(user={"exec": {**EXEC, "interactiveMode": "Perhaps"}}), r"must be Never, IfAvailable or Always"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, config: Any, message: str) -> None:
    with pytest.raises(KubeconfigError, match=message) as caught:
        load(tmp_path, config)
    assert str(caught.value).startswith(f"kubeconfig {tmp_path / 'kube.conf'}: ")


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(KubeconfigError, match=r"kubeconfig .*none: No such file"):
        load_kubeconfig(tmp_path / "none")


@pytest.mark.parametrize(
    ("server", "configured", "environ", "expected"),
    [
        ("https://api:6443", "", {}, ""),
        ("https://api:6443", "http://own:1", {"HTTPS_PROXY": "http://env:1"}, "http://own:1"),
        ("https://api:6443", "", {"HTTPS_PROXY": "http://env:1"}, "http://env:1"),
        ("https://api:6443", "", {"https_proxy": "env:1"}, "http://env:1"),
        ("https://api:6443", "", {"HTTPS_PROXY": "socks5h://env:1"}, "socks5h://env:1"),
        ("https://api:6443", "", {"ALL_PROXY": "socks5://env:1"}, ""),
        ("https://api:6443", "", {"HTTP_PROXY": "http://env:1"}, ""),
        ("https://127.0.0.1:6443", "", {"HTTPS_PROXY": "http://env:1"}, ""),
        ("https://localhost:6443", "", {"HTTPS_PROXY": "http://env:1"}, ""),
        ("https://10.1.2.3", "", {"HTTPS_PROXY": "http://env:1", "NO_PROXY": "10.0.0.0/8"}, ""),
        ("https://10.1.2.3", "", {"HTTPS_PROXY": "http://env:1", "NO_PROXY": "10.1.2.3"}, ""),
        ("https://[fd00::1]:6443", "", {"HTTPS_PROXY": "http://env:1", "NO_PROXY": "fd00::/8"}, ""),
        ("https://api.corp.example", "", {"HTTPS_PROXY": "http://env:1", "NO_PROXY": "x, corp.example"}, ""),
        ("https://api.corp.example", "", {"HTTPS_PROXY": "http://env:1", "NO_PROXY": "*.corp.example"}, ""),
        ("https://corp.example", "", {"HTTPS_PROXY": "http://env:1", "NO_PROXY": ".corp.example"}, "http://env:1"),
        ("https://mycorp.example", "", {"HTTPS_PROXY": "http://env:1", "NO_PROXY": "corp.example"}, "http://env:1"),
        ("https://api:6443", "", {"HTTPS_PROXY": "http://env:1", "NO_PROXY": "api:6443"}, ""),
        ("https://api:6443", "", {"HTTPS_PROXY": "http://env:1", "NO_PROXY": "api:443"}, "http://env:1"),
        ("https://api", "", {"HTTPS_PROXY": "http://env:1", "NO_PROXY": "*"}, ""),
    ],
)
def test_proxy_is_chosen_as_go_does(server: str, configured: str, environ: dict[str, str], expected: str) -> None:
    assert proxy_for(server, configured, environ) == expected


def a_plugin(script: str, clock: Any = None, **fields: Any) -> ExecPlugin:
    entry = ExecEntry(api_version=V1, command="/bin/sh", args=("-c", script), **fields)
    cluster = ClusterEntry(
        server="https://api", ca_data=b"pem", extensions={V1.removesuffix("/v1") + "/exec": {"a": 1}}
    )
    return ExecPlugin(entry, cluster, clock or SystemClock(), source="test.conf")


def printing(status: dict[str, Any], *, version: str = V1) -> str:
    answer = json.dumps({"apiVersion": version, "kind": "ExecCredential", "status": status})
    return f"cat <<'END'\n{answer}\nEND"


@pytest.mark.real_loop
async def test_plugin_hears_of_the_cluster_and_its_answer_is_kept() -> None:
    script = 'test -n "$A" || exit 3; printf %s "$KUBERNETES_EXEC_INFO" >&2; exit 1'
    plugin = a_plugin(script, env=(("A", "1"),), provide_cluster_info=True)
    with pytest.raises(KubeconfigError, match="exit status 1") as caught:
        await plugin.credential()
    asked = json.loads(str(caught.value).split("exit status 1: ")[1])
    assert asked["spec"]["cluster"] == {
        "server": "https://api",
        "certificate-authority-data": base64.b64encode(b"pem").decode(),
        "config": {"a": 1},
    }
    assert (asked["apiVersion"], asked["spec"]["interactive"]) == (V1, False)


@pytest.mark.real_loop
async def test_plugin_is_asked_again_when_the_credential_is_over() -> None:
    plugin = a_plugin(printing({"token": "t", "expirationTimestamp": "2024-01-01T00:00:00Z"}))
    first = await plugin.credential()
    assert (first.token, first.expires) == ("t", 1704067200.0)
    assert await plugin.credential() is not first
    lasting = a_plugin(printing({"token": "t"}))
    kept = await lasting.credential()
    assert await lasting.credential() is kept
    assert await lasting.credential(unless=kept) is not kept


@pytest.mark.real_loop
@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo no; exit 0", "did not print an ExecCredential as JSON"),
        ("echo '{}'", "did not print an ExecCredential with a status"),
        (printing({}), "neither token nor clientCertificateData"),
        (printing({"clientCertificateData": "x"}), "only one of"),
        (printing({"token": 7}), "must hold texts"),
        (printing({"token": "t"}, version="client.authentication.k8s.io/v1beta1"), "printed apiVersion"),
        (printing({"token": "t", "expirationTimestamp": "soon"}), "status.expirationTimestamp"),
        ("echo broken >&2; exit 7", "exit status 7: broken"),
    ],
)
async def test_bad_plugins_are_named(script: str, message: str) -> None:
    with pytest.raises(KubeconfigError, match=message) as caught:
        await a_plugin(script).credential()
    assert str(caught.value).startswith("kubeconfig test.conf: exec plugin /bin/sh: ")


@pytest.mark.real_loop
async def test_missing_plugin_tells_how_to_install_it() -> None:
    entry = ExecEntry(api_version=V1, command="/no/such/login", install_hint="apt install login")
    plugin = ExecPlugin(entry, ClusterEntry(server="https://api"), LoopClock(), source="test.conf")
    with pytest.raises(KubeconfigError, match="No such file or directory; apt install login"):
        await plugin.credential()


@pytest.mark.real_loop
@pytest.mark.parametrize(
    ("command", "script", "counted"),
    [
        ("/bin/sh", printing({"token": "t"}), ("0", "no_error")),
        ("/bin/sh", "exit 7", ("7", "plugin_execution_error")),
        ("/no/such/plugin", "", ("1", "plugin_not_found_error")),
    ],
)
async def test_runs_of_a_plugin_are_counted(command: str, script: str, counted: tuple[str, str]) -> None:
    metrics = Registry()
    entry = ExecEntry(api_version=V1, command=command, args=("-c", script))
    plugin = ExecPlugin(entry, ClusterEntry(server="https://api"), SystemClock(), source="test", metrics=metrics)
    with suppress(KubeconfigError):
        await plugin.credential()
    calls = metrics.counter("rest_client_exec_plugin_call_total", "")
    assert calls.value(*counted) == 1
