"""A real control plane on loopback: etcd, kube-apiserver, kube-controller-manager, kube-scheduler, kubectl.

RBAC, Node authorization and NodeRestriction are on. The API server listens on 127.0.0.1 only and reaches kubelets by
the InternalIP their Node reports, which must be an address of this machine (the pod network's gateway is one).
"""

from __future__ import annotations

import json
import os
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from tests.bed import leaks
from tests.bed.certificates import Authority, Pair, rsa_key
from tests.bed.parts import REPO, cannot, free_port, need_program, scratch_folder
from tests.bed.services import Service

VERSION = "v1.36.4"
PREFIX = "pklcp-"
BOOTSTRAP_ID, BOOTSTRAP_SECRET = "bed000", "0123456789abcdef"
SERVICE_RANGE = "10.204.0.0/24"
MASTERS = ["system:masters"]
CERTIFICATE_GATES = ("ClusterTrustBundle", "ClusterTrustBundleProjection", "PodCertificateRequest")
"""Off by default: trust and certificates in projected volumes."""
FRONT_PROXY = "front-proxy-client"
"""Who the API server is to servers that extend it."""
SIGNED_FOR = 30.0
"""Seconds from now that signed certificates are good for. The signer lets them begin five minutes ago, so that 90 % of
their life are over from the beginning: agents renew them at once, whatever their chance says."""
NODE_SILENCE = 10.0
"""Seconds without a sign of life after which a node counts as not ready; agents renew their lease every 2 s here."""
OTHER_API_SERVER = "PYKUBELET_TEST_APISERVER"
"""The variable that names another minor for the API server, as `python -m conformance.skew` does."""
# What kubeadm binds so that nodes can join with a token and renew their certificates.
NODE_GRANTS = {
    "bed:bootstrap": ("system:bootstrappers", "system:node-bootstrapper"),
    "bed:approve": (
        "system:bootstrappers",
        "system:certificates.k8s.io:certificatesigningrequests:nodeclient",
    ),
    "bed:renew": ("system:nodes", "system:certificates.k8s.io:certificatesigningrequests:selfnodeclient"),
}


def go_programs(target: str) -> Path:
    """The folder of a Go target's programs, built now if that was not done before."""
    script = REPO / "tools" / "build-go.sh"
    done = subprocess.run([script, target], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        cannot(f"{target} cannot be built from the Go module proxy; run tools/build-go.sh {target} to see why")
    return Path(done.stdout.splitlines()[-1])


class Cluster:
    """The running control plane. Every method blocks."""

    def __init__(
        self,
        folder: Path,
        programs: Path,
        etcd: Path,
        *,
        api_server: Path,
        node_silence: float = NODE_SILENCE,
        flags: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        """`flags` are more of them by the name of the program."""
        self.folder = folder
        self.node_silence = node_silence
        self.programs = programs
        """Folder of kubectl, kubelet and so on."""
        self.api_server = api_server
        """The program: of our minor or of another one."""
        self.authority = Authority(folder, "cluster-ca")
        self.port = free_port()
        self.url = f"https://127.0.0.1:{self.port}"
        self.service_account_key = rsa_key(folder / "service-account.key")
        self.admin_kubeconfig = self.kubeconfig("admin", MASTERS)
        self.admin = Pair(folder / "admin.crt", folder / "admin.key")
        self._tls = ssl.create_default_context(cafile=str(self.ca_file))
        etcd_port, manager_port, scheduler_port = free_port(), free_port(), free_port()
        self.etcd = Service("etcd", self._etcd_command(etcd, etcd_port), folder)
        self.manager_url, self.scheduler_url = (f"https://127.0.0.1:{port}" for port in (manager_port, scheduler_port))

        def service(name: str, command: list[str | Path]) -> Service:
            return Service(name, [*command, *(flags or {}).get(name, ())], folder)

        self.apiserver = service("kube-apiserver", self._apiserver_command(etcd_port))
        self.controller_manager = service("kube-controller-manager", self._manager_command(manager_port))
        self.scheduler = service("kube-scheduler", self._scheduler_command(scheduler_port))
        self._health = {
            self.controller_manager.name: f"{self.manager_url}/healthz",
            self.scheduler.name: f"{self.scheduler_url}/healthz",
        }

    @property
    def ca_file(self) -> Path:
        return self.authority.pair.certificate

    @property
    def bootstrap_token(self) -> str:
        return f"{BOOTSTRAP_ID}.{BOOTSTRAP_SECRET}"

    @property
    def bootstrap_kubeconfig(self) -> Path:
        """Logs in with the bootstrap token; may only ask for a node's client certificate."""
        return self._write_kubeconfig("bootstrap", {"token": self.bootstrap_token})

    def node_kubeconfig(self, name: str, *, port: int = 0) -> Path:
        """Logs in as the kubelet of the node `name`; over another port when something is in between."""
        return self.kubeconfig(f"system:node:{name}", ["system:nodes"], port=port)

    def kubeconfig(self, user: str, groups: Sequence[str] = (), *, port: int = 0) -> Path:
        """Logs in as any user, by client certificate."""
        pair = self.authority.issue(user, groups)
        login = {"client-certificate": str(pair.certificate), "client-key": str(pair.key)}
        return self._write_kubeconfig(user.replace(":", "_"), login, port=port)

    def serving_certificate(self, user: str, hosts: Sequence[str]) -> Pair:
        """A serving certificate signed by the cluster's CA, e.g. for a kubelet."""
        return self.authority.issue(user, ["system:nodes"], hosts=hosts)

    def kubectl(
        self,
        *words: str,
        stdin: str | None = None,
        kubeconfig: Path | None = None,
        check: bool = True,
        within: float = 60.0,
    ) -> str:
        """Run kubectl, as admin unless told otherwise; gives stdout, or with check=False stdout and stderr."""
        command = [str(self.programs / "kubectl"), "--kubeconfig", str(kubeconfig or self.admin_kubeconfig), *words]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=within, check=False)
        if check and done.returncode != 0:
            raise AssertionError(f"kubectl {' '.join(words)}: exit status {done.returncode}: {done.stderr.strip()}")
        return done.stdout if check else done.stdout + done.stderr

    def get(self, *words: str) -> Any:
        """`kubectl get WORDS -o json`, decoded."""
        return json.loads(self.kubectl("get", *words, "-o", "json"))

    def apply(self, *objects: dict[str, Any]) -> None:
        """Create or change objects."""
        self.kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))

    def stop_apiserver(self) -> None:
        """Make the API server unreachable, at once."""
        self.apiserver.kill()

    def start_apiserver(self) -> None:
        """Start it (again) on the same port; returns when it is ready."""
        self.apiserver.start()
        self.apiserver.wait_for("readiness", lambda: self._answers(f"{self.url}/readyz", self._tls), within=90)

    def restart_controllers(self) -> None:
        """After an outage they look again only when their own back-off is over, up to a minute later: make it now."""
        for service in (self.controller_manager, self.scheduler):
            service.kill()
        self._start_controllers()

    def _start_controllers(self) -> None:
        self.controller_manager.start()
        self.scheduler.start()
        anyone = ssl._create_unverified_context()
        for service in (self.controller_manager, self.scheduler):
            service.wait_for("health", partial(self._answers, self._health[service.name], anyone))

    def start(self) -> None:
        self.etcd.start()
        self.start_apiserver()
        self._start_controllers()
        self.apply(*_node_grants(), _bootstrap_secret())
        # Pods are refused until the controller manager has made the service account they run as.
        self.controller_manager.wait_for(
            "default service account", lambda: "default" in self.kubectl("get", "sa", "-n", "default", "-o", "name")
        )

    def stop(self) -> None:
        for service in (self.scheduler, self.controller_manager, self.apiserver, self.etcd):
            service.kill()  # nothing they hold is wanted any more

    @staticmethod
    def _answers(url: str, tls: ssl.SSLContext) -> bool:
        try:
            with urllib.request.urlopen(url, context=tls, timeout=5) as answer:
                return bool(answer.status == 200)
        except urllib.error.HTTPError as error:
            error.close()
            return False
        except OSError:
            return False

    def _etcd_command(self, program: Path, port: int) -> list[str | Path]:
        url = f"http://127.0.0.1:{port}"
        peers = f"http://127.0.0.1:{free_port()}"
        return [
            program,
            f"--data-dir={self.folder / 'etcd'}",
            f"--listen-client-urls={url}",
            f"--advertise-client-urls={url}",
            f"--listen-peer-urls={peers}",
            f"--initial-advertise-peer-urls={peers}",
            f"--initial-cluster=default={peers}",
        ]

    def _apiserver_command(self, etcd_port: int) -> list[str | Path]:
        serving = self.authority.issue(
            "kube-apiserver", hosts=["127.0.0.1", "localhost", "kubernetes.default.svc", "10.204.0.1"]
        )
        to_kubelets = self.authority.issue("kube-apiserver-kubelet-client", MASTERS)
        to_extensions = self.authority.issue(FRONT_PROXY)
        return [
            self.api_server,
            f"--etcd-servers=http://127.0.0.1:{etcd_port}",
            "--bind-address=127.0.0.1",
            f"--secure-port={self.port}",
            "--endpoint-reconciler-type=none",  # the only address is loopback, which no Endpoints may hold
            f"--tls-cert-file={serving.certificate}",
            f"--tls-private-key-file={serving.key}",
            f"--client-ca-file={self.ca_file}",
            f"--kubelet-client-certificate={to_kubelets.certificate}",
            f"--kubelet-client-key={to_kubelets.key}",
            "--kubelet-preferred-address-types=InternalIP,Hostname",
            f"--proxy-client-cert-file={to_extensions.certificate}",
            f"--proxy-client-key-file={to_extensions.key}",
            f"--requestheader-client-ca-file={self.ca_file}",
            f"--requestheader-allowed-names={FRONT_PROXY}",
            "--requestheader-username-headers=X-Remote-User",
            "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
            f"--service-account-key-file={self.service_account_key}",
            f"--service-account-signing-key-file={self.service_account_key}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-cluster-ip-range={SERVICE_RANGE}",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            "--enable-bootstrap-token-auth",
            "--allow-privileged",
            "--runtime-config=certificates.k8s.io/v1beta1=true",
            f"--feature-gates={','.join(f'{gate}=true' for gate in CERTIFICATE_GATES)}",
        ]

    def _manager_command(self, port: int) -> list[str | Path]:
        login = self.kubeconfig("system:kube-controller-manager")
        return [
            self.programs / "kube-controller-manager",
            f"--kubeconfig={login}",
            "--bind-address=127.0.0.1",
            f"--secure-port={port}",
            f"--cert-dir={self.folder / 'manager-tls'}",
            "--leader-elect=false",
            "--use-service-account-credentials",
            "--controllers=*,bootstrap-signer-controller,token-cleaner-controller",
            f"--service-account-private-key-file={self.service_account_key}",
            f"--root-ca-file={self.ca_file}",
            f"--cluster-signing-cert-file={self.ca_file}",
            f"--cluster-signing-key-file={self.authority.pair.key}",
            f"--cluster-signing-duration={SIGNED_FOR:g}s",
            "--node-monitor-period=1s",
            f"--node-monitor-grace-period={self.node_silence:g}s",
        ]

    def _scheduler_command(self, port: int) -> list[str | Path]:
        return [
            self.programs / "kube-scheduler",
            f"--kubeconfig={self.kubeconfig('system:kube-scheduler')}",
            "--bind-address=127.0.0.1",
            f"--secure-port={port}",
            f"--cert-dir={self.folder / 'scheduler-tls'}",
            "--leader-elect=false",
        ]

    def _write_kubeconfig(self, name: str, login: dict[str, str], *, port: int = 0) -> Path:
        path = self.folder / f"{name}.kubeconfig"
        url = f"https://127.0.0.1:{port or self.port}"
        cluster = {"server": url, "certificate-authority": str(self.ca_file)}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "bed", "cluster": cluster}],
            "users": [{"name": name, "user": login}],
            "contexts": [{"name": "bed", "context": {"cluster": "bed", "user": name}}],
            "current-context": "bed",
        }
        path.write_text(json.dumps(config, indent=2))
        path.chmod(0o600)
        return path


def _node_grants() -> list[dict[str, Any]]:
    api = "rbac.authorization.k8s.io"
    return [
        {
            "apiVersion": f"{api}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": name},
            "roleRef": {"apiGroup": api, "kind": "ClusterRole", "name": role},
            "subjects": [{"apiGroup": api, "kind": "Group", "name": group}],
        }
        for name, (group, role) in NODE_GRANTS.items()
    ]


def _bootstrap_secret() -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "bootstrap.kubernetes.io/token",
        "metadata": {"name": f"bootstrap-token-{BOOTSTRAP_ID}", "namespace": "kube-system"},
        "stringData": {
            "token-id": BOOTSTRAP_ID,
            "token-secret": BOOTSTRAP_SECRET,
            "usage-bootstrap-authentication": "true",
        },
    }


@contextmanager
def running_cluster(
    *,
    node_silence: float = NODE_SILENCE,
    new_etcd: bool = False,
    flags: Mapping[str, Sequence[str]] | None = None,
) -> Iterator[Cluster]:
    """A control plane for as long as the block lasts; nodes silent for `node_silence` seconds are not ready.

    Debian's etcd is too old for watches that begin with the full set; `new_etcd` takes the one that kubeadm's bed has.
    """
    etcd = go_programs("kubeadm") / "etcd" if new_etcd else need_program("etcd", "etcd-server")
    programs = go_programs("controlplane")
    minor = os.environ.get(OTHER_API_SERVER)
    api_server = go_programs(f"apiserver-{minor}") if minor else programs
    with scratch_folder(PREFIX) as folder:
        program = api_server / "kube-apiserver"
        cluster = Cluster(folder, programs, etcd, api_server=program, node_silence=node_silence, flags=flags)
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.stop()
    left = leaks.processes_naming(str(folder))
    if left:
        cannot(f"left behind by the control plane: {left}")
