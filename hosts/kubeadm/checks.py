"""What is done with the cluster, in order, and what must be true after each step. Each step returns what it saw."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from hosts.kubeadm.cluster import (
    DROP_IN,
    FILES,
    LONG,
    TRIES,
    Cluster,
    Node,
    NotAsExpected,
    install_drop_in,
    install_go_kubelet,
    remove_drop_in,
    remove_unit,
    until,
)
from hosts.kubeadm.images import CONTROL_PLANE, UPGRADED

Seen = dict[str, Any]

GO, OURS = "/usr/bin/kubelet", "-m pykubelet"
PEM = "/var/lib/kubelet/pki/kubelet-client-current.pem"
PODS = 64
"""maxPods after the upgrade: how a changed configuration is seen from outside."""
SETTLED = 60.0
"""Seconds after a swap in which an agent that wants to restart a container would have done so."""
PATIENCE = "{timeoutSeconds: 60, failureThreshold: 60}"
POD = """\
apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  nodeName: {node}
  terminationGracePeriodSeconds: 1
  containers:
  - {{name: main, image: "pykubelet.local/tools:1", imagePullPolicy: Never, command: [sleep, "1000000"]}}
"""


def expect(true: bool, what: str) -> None:
    if not true:
        raise NotAsExpected(what)


def init(cluster: Cluster) -> Seen:
    """`kubeadm init`: the control plane as static pods, then the pod network."""
    control = cluster.control
    for name in ("init.yaml", "network.yaml", "web.yaml", "upgrade.yaml"):
        control.machine.put(f"/root/{name}", (FILES / name).read_text())
    _put_patches(control)
    printed = _kubeadm(control, "init --config /root/init.yaml")
    if "error execution phase addon" in printed:
        # A request of this phase must be answered within 10 seconds, which no setting changes: give it more tries.
        def added() -> bool:
            nonlocal printed
            more = _kubeadm(control, "init phase addon all --config /root/init.yaml")
            printed += more
            return "error" not in more

        until(added, "kubeadm init phase addon all succeeds")
    else:
        expect("initialized successfully" in printed, f"kubeadm init says that it succeeded:\n{printed}")
    expect(OURS in control.agent(), f"the agent of the control plane is pykubelet, not {control.agent()}")
    cluster.kubectl("apply -f /root/network.yaml")
    cluster.wait_ready(control)
    login = control.run("grep client-certificate: /etc/kubernetes/kubelet.conf").split()[-1]
    expect(login == PEM, f"kubelet.conf names the certificate that is renewed, not {login}")
    return {"agent": control.agent(), "printed": printed.splitlines()}


def _put_patches(node: Node) -> None:
    """Patience with the control plane: a slow guest must not restart what is only late."""
    for name in ("etcd", *CONTROL_PLANE):
        patch = f"spec:\n  containers:\n  - name: {name}\n    livenessProbe: {PATIENCE}\n"
        node.machine.put(f"/root/patches/{name}+strategic.yaml", patch)


def _kubeadm(node: Node, arguments: str) -> str:
    """What kubeadm prints, whether it succeeds or not."""
    return node.run(f"kubeadm {arguments} 2>&1 || true", within=LONG * 3)


def join(cluster: Cluster) -> Seen:
    """`kubeadm join` with a bootstrap token: the agent gets its own certificate."""
    command = cluster.control.run("kubeadm token create --print-join-command")
    ca_hash = command.split("--discovery-token-ca-cert-hash")[1].strip()
    worker = cluster.worker
    worker.machine.put("/root/join.yaml", (FILES / "join.yaml").read_text().replace("CA_HASH", ca_hash))
    worker.machine.put("/root/upgrade.yaml", (FILES / "upgrade.yaml").read_text())
    _put_patches(worker)
    printed = worker.run("kubeadm join --config /root/join.yaml 2>&1", within=LONG)
    expect("This node has joined the cluster" in printed, f"kubeadm join says that it succeeded:\n{printed}")
    expect(OURS in worker.agent(), f"the agent of the worker is pykubelet, not {worker.agent()}")
    cluster.wait_ready(worker)
    requests = _requests(cluster)
    expect(len(requests) == 1, f"the worker asked for one certificate, not for {requests}")
    _sign_for_longer(cluster.control)
    left = worker.run("ls /etc/kubernetes/bootstrap-kubelet.conf 2>/dev/null || true").strip()
    expect(not left, "kubeadm has removed the bootstrap kubeconfig")
    return {"agent": worker.agent(), "requests": requests, "printed": printed.splitlines()}


def _sign_for_longer(control: Node) -> None:
    """The first certificate lives 15 minutes, so that its renewal is seen; the next must outlive an upgrade."""
    manifest = "/etc/kubernetes/manifests/kube-controller-manager.yaml"
    # kubelets read every file in that folder that is not hidden.
    hidden = "/etc/kubernetes/manifests/.new"
    changed = "s/--cluster-signing-duration=15m/--cluster-signing-duration=24h/"
    control.run(f"sed '{changed}' {manifest} >{hidden} && grep -q 24h {hidden} && mv {hidden} {manifest}")


def _requests(cluster: Cluster) -> list[str]:
    """Names of the issued client certificate requests of the worker."""
    found = cluster.get("csr")["items"]
    mine = [each for each in found if each["spec"]["signerName"].endswith("client-kubelet")]
    return [each["metadata"]["name"] for each in mine if each.get("status", {}).get("certificate")]


def system_pods(cluster: Cluster) -> Seen:
    """Everything in kube-system runs: the control plane, CoreDNS, and kube-proxy and the network on both nodes."""

    def ready() -> bool:
        pods = cluster.get("pods -n kube-system")["items"]
        conditions = [{each["type"]: each["status"] for each in pod["status"].get("conditions", [])} for pod in pods]
        return len(pods) == 10 and all(each.get("Ready") == "True" for each in conditions)

    until(ready, "10 pods of kube-system are Ready")
    return {
        "nodes": cluster.kubectl("get nodes -o wide").splitlines(),
        "pods": cluster.kubectl("get pods -n kube-system -o wide").splitlines(),
    }


def service(cluster: Cluster) -> Seen:
    """A Deployment on the worker is reached by its Service's name from a pod on the control plane."""
    cluster.kubectl("apply -f /root/web.yaml")
    cluster.kubectl("rollout status deployment/web --timeout=40m", within=LONG + 60)
    cluster.kubectl("wait --for=condition=Ready pod/client --timeout=40m", within=LONG + 60)
    return reach(cluster)


def reach(cluster: Cluster) -> Seen:
    pods = cluster.get("pods -l app=web")["items"]
    names = {pod["metadata"]["name"] for pod in pods}
    answered: set[str] = set()
    command = "exec client -- curl -sS --max-time 60 http://web.default.svc.cluster.local/"

    def all_answered() -> bool:
        answered.add(cluster.kubectl(command).strip())
        return answered >= names

    until(all_answered, f"each of {sorted(names)} answers at the name of their Service")
    expect(answered == names, f"{sorted(answered)} answered, not {sorted(names)}")
    return {"command": f"kubectl {command}", "answered": sorted(answered)}


def rotation(cluster: Cluster) -> Seen:
    """The worker's agent renews its certificate in time: the first one lives 15 minutes."""
    worker = cluster.worker
    expect(OURS in worker.agent(), "pykubelet has been the worker's agent since it joined")
    until(lambda: len(_pairs(worker)) > 1, f"there is a second certificate beside {PEM}", within=1500.0, pause=10.0)
    lives = {name: worker.run(f"openssl x509 -noout -dates -in {name}").split("\n") for name in _pairs(worker)}
    current = worker.run(f"readlink -f {PEM}").strip()
    day = worker.run(f"openssl x509 -noout -checkend 36000 -in {PEM} || true")
    expect("will not expire" in day, f"the new certificate lives as long as it is signed for now: {lives}")
    expect(current == max(lives), f"the newest of {sorted(lives)} is in force, not {current}")
    requests = _requests(cluster)
    expect(len(requests) > 1, f"the worker has asked for more than one certificate: {requests}")
    cluster.wait_ready(worker)
    return {"certificates": lives, "current": current, "requests": requests}


def _pairs(node: Node) -> list[str]:
    return node.run("ls /var/lib/kubelet/pki/kubelet-client-2*.pem").split()


def swap(cluster: Cluster, node: Node, to: str) -> Seen:
    """Put the other agent in place on a running node: no container is restarted, and the new one manages its pods."""
    before, tasks = cluster.containers(node), node.tasks()
    expect(all(each["id"] in tasks for each in before.values()), f"all containers of {node.name} run: {before} {tasks}")
    was = node.agent()
    if to == OURS:
        install_drop_in(node)
    elif DROP_IN in node.run("systemctl show --property=DropInPaths --value kubelet"):
        remove_drop_in(node)
    else:
        remove_unit(node)
        install_go_kubelet(node)
    node.restart_kubelet()
    now = node.agent()
    expect(to in now, f"the agent of {node.name} is {to}, not {now}")
    cluster.wait_ready(node)
    # A pod of the new agent's own, which the next swap must keep as well.
    name = f"started-by-{'pykubelet' if to == OURS else 'go'}-{node.name}-{len(tasks)}"
    node_pod = POD.format(name=name, node=node.name)
    cluster.control.machine.put(f"/root/{name}.yaml", node_pod)
    cluster.kubectl(f"apply -f /root/{name}.yaml")
    cluster.kubectl(f"wait --for=condition=Ready pod/{name} --timeout=20m", within=1260.0)
    expect("sleep" in cluster.kubectl(f"exec {name} -- ps"), f"a command can be run in {name}")
    time.sleep(SETTLED)
    after, left = cluster.containers(node), node.tasks()
    lost = {each: pid for each, pid in tasks.items() if left.get(each) != pid}
    expect(not lost, f"containers that ran before the swap still run, but for {lost}")
    changed = {key: (each, after.get(key)) for key, each in before.items() if after.get(key) != each}
    expect(not changed, f"the API server shows the same containers after the swap, but for {changed}")
    return {"node": node.name, "from": was, "to": now, "before": before, "after": after, "processes": tasks}


def upgrade(cluster: Cluster) -> Seen:
    """`kubeadm upgrade apply` on the control plane, then `kubeadm upgrade node` on both with a new configuration."""
    before = cluster.containers(cluster.control)
    printed = _upgraded(cluster.control, "upgrade apply --config /root/upgrade.yaml --yes", "SUCCESS")
    after = cluster.containers(cluster.control)
    for name in CONTROL_PLANE:
        key = f"kube-system/{name}-control/{name}"
        expect(before[key]["id"] != after[key]["id"], f"{name} runs in a new container")
        image = cluster.get(f"pod -n kube-system {name}-control")["spec"]["containers"][0]["image"]
        expect(image.endswith(UPGRADED), f"{name} has the new image, not {image}")
    etcd = "kube-system/etcd-control/etcd"
    expect(before[etcd]["id"] == after[etcd]["id"], "etcd, of which nothing changes, keeps its container")
    _change_configuration(cluster)
    outputs = []
    for node in cluster.nodes:
        containers = cluster.containers(node)
        outputs += _upgraded(
            node, "upgrade node --config /root/upgrade.yaml", "configuration for this node was"
        ).splitlines()
        node.restart_kubelet()
        until(partial(_takes, cluster, node, PODS), f"{node.name} takes {PODS} pods")
        cluster.wait_ready(node)
        expect(cluster.containers(node) == containers, f"containers of {node.name} are as before")
    system_pods(cluster)
    return {"apply": printed.splitlines(), "node": outputs, "before": before, "after": after}


def _upgraded(node: Node, arguments: str, success: str) -> str:
    """kubeadm gives some of its requests 10 seconds, whatever is configured; what is done already is not done again."""
    printed = ""
    for _ in range(TRIES):
        tried = _kubeadm(node, arguments)
        printed += tried
        if success in tried and "error execution" not in tried:
            return printed
        time.sleep(20)
    raise NotAsExpected(f"kubeadm {arguments} did not succeed in {TRIES} tries:\n{printed}")


def _change_configuration(cluster: Cluster) -> None:
    config = cluster.get("cm -n kube-system kubelet-config")["data"]["kubelet"]
    cluster.control.machine.put("/root/kubelet", f"{config.rstrip()}\nmaxPods: {PODS}\n")
    cluster.kubectl(
        "create cm kubelet-config --from-file=/root/kubelet --dry-run=client -o yaml >/root/kubelet-config.yaml"
    )
    cluster.kubectl("apply -n kube-system --server-side --force-conflicts -f /root/kubelet-config.yaml")


def _takes(cluster: Cluster, node: Node, pods: int) -> bool:
    return bool(cluster.get(f"node {node.name}")["status"]["capacity"]["pods"] == str(pods))


def _reset(node: Node) -> list[str]:
    """`kubeadm reset` gives each sandbox five times two seconds to end, which is not enough here: then do it again."""
    printed: list[str] = []
    for _ in range(TRIES):
        printed += node.run("kubeadm reset --force 2>&1", within=LONG).splitlines()
        if not node.tasks():
            return printed
    raise NotAsExpected(f"containers are left on {node.name}: {node.tasks()}")


def reset(cluster: Cluster) -> Seen:
    """The worker leaves: drained, deleted and reset. Then the control plane."""
    cluster.kubectl("drain worker --ignore-daemonsets --force --timeout=20m", within=LONG)
    cluster.kubectl("delete node worker --ignore-not-found")
    seen: Seen = {}
    for node in (cluster.worker, cluster.control):
        seen[node.name] = _reset(node)
        left = node.run("ls -A /etc/kubernetes/manifests /var/lib/kubelet /var/lib/etcd 2>/dev/null || true")
        files = [line for line in left.splitlines() if line and not line.endswith(":")]
        expect(not files, f"kubeadm reset left nothing on {node.name} but {files}")
        mounts = node.run("grep -c ' /var/lib/kubelet' /proc/mounts || true").strip()
        expect(mounts == "0", f"{mounts} mounts are left on {node.name}")
        state = node.run("systemctl is-active kubelet || true").strip()
        expect(state == "inactive", f"the kubelet service of {node.name} is inactive, not {state}")
    return seen
