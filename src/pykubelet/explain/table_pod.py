"""Rows about the whole pod: the node, the pod's end, admission, and what comes before its containers.

Data only; see causes.py for what a row means and why the order matters.
"""

from __future__ import annotations

from typing import Final

from pykubelet.explain import find_pod as pod
from pykubelet.explain.cause import Cause, State

POD_CAUSES: Final[tuple[Cause, ...]] = (
    # --- the node -------------------------------------------------------------------------------
    Cause(
        id="runtime-down",
        title="The container runtime does not answer",
        state=State.STUCK,
        find=pod.runtime_down,
        chain=(
            "nothing can be started, stopped or looked at on this node",
            "the container runtime does not answer: {problem}",
        ),
        next="The agent asks again several times a second and goes on with every pod as soon as it answers.",
        advice=(
            "look at the runtime: `systemctl status containerd`, or with `pykubelet up` the end of "
            "<state folder>/runtime/containerd.log",
            "containers that run keep running meanwhile; restarting the runtime does not end them",
        ),
        shown="whatever it was before",
    ),
    Cause(
        id="unreadable",
        title="The pod cannot be read",
        state=State.STUCK,
        find=pod.unreadable,
        chain=("the node does not run the pod", "the object that the API server has cannot be read: {problem}"),
        next="The agent takes the pod as soon as a version of it comes that can be read.",
        advice=(
            "`kubectl get pod -o json` shows the field; correct it or make the pod anew without it",
            "a field that the Go kubelet reads and this agent does not is a mistake here: please report it",
        ),
        shown="not at all",
        final=True,
    ),
    # --- ending ---------------------------------------------------------------------------------
    Cause(
        id="stopping-hook",
        title="The end waits for a preStop hook",
        state=State.ENDING,
        find=pod.stopping_hook,
        chain=(
            "the pod is ending and container {container} still runs",
            "its preStop hook has been running for {took}; it may use all of the {grace} of grace",
        ),
        next="In at most {left} the hook is given up and the container is stopped, then killed.",
        advice=(
            "`pykubelet describe pod {name}` shows the hook, `pykubelet logs {name} -c {container}` what "
            "the program says",
            "make the hook end sooner, or lower spec.terminationGracePeriodSeconds",
        ),
        shown="Terminating",
    ),
    Cause(
        id="stopping-container",
        title="The end waits for a container",
        state=State.ENDING,
        find=pod.stopping_container,
        chain=(
            "the pod is ending and container {container} still runs",
            "it was asked to stop {took} ago and has {grace} to do so",
        ),
        next="In at most {left} it is killed.",
        advice=(
            "a program that is the first process of a container must handle SIGTERM itself; a shell script needs a "
            "trap or `exec` before the last command",
            "lower spec.terminationGracePeriodSeconds if the program has nothing to finish",
        ),
        shown="Terminating",
    ),
    Cause(
        id="stopping-volumes",
        title="The end waits for volumes",
        state=State.ENDING,
        find=pod.stopping_volumes,
        chain=("nothing of the pod runs any more, but it still holds volumes", "{problem}"),
        next="The agent tries again {when}; other pods are not affected.",
        advice=(
            "see who uses the mount: `fuser -vm <path>` or `lsof <path>` on the node",
            "for network storage, check that its server answers",
        ),
        shown="Terminating",
    ),
    Cause(
        id="stopping-failed",
        title="Ending the pod fails",
        state=State.ENDING,
        find=pod.stopping_failed,
        chain=("the pod should end and does not", "{problem}"),
        next="The agent tries again {when}.",
        advice=("look at the runtime's log for the container that resists", "look at the agent's log for this pod"),
        shown="Terminating",
    ),
    Cause(
        id="stopping",
        title="The pod is ending",
        state=State.ENDING,
        find=pod.stopping,
        chain=("the pod is no longer wanted and is being stopped",),
        next="What it holds is given back as soon as its containers have ended.",
        advice=(),
        shown="Terminating",
        final=True,
    ),
    # --- never admitted, or ended by the node ---------------------------------------------------
    Cause(
        id="node-short",
        title="The node has too little of a resource",
        state=State.FAILED,
        find=pod.node_short,
        chain=("the pod was not let in and will not run", "the node has too little {resource}: {shown}"),
        next="Nothing: a pod that was not let in is not tried again. Changing its manifest makes a new try.",
        advice=(
            "lower resources.requests.{resource} in the manifest, or stop another pod: `pykubelet top pods` shows who "
            "uses what",
            "the node's share for pods is what is left after kubeReserved and systemReserved",
        ),
        shown="OutOfcpu, OutOfmemory, OutOfpods, …",
        final=True,
    ),
    Cause(
        id="not-admitted",
        title="The node does not let the pod in",
        state=State.FAILED,
        find=pod.not_admitted,
        chain=("the pod was not let in and will not run", "{reason}: {message}"),
        next="Nothing: a pod that was not let in is not tried again. Changing its manifest makes a new try.",
        advice=("change what the message names: node selector, tolerations, host ports, sysctls or security profile",),
        shown="the reason, such as NodeAffinity or SysctlForbidden",
        final=True,
    ),
    Cause(
        id="evicted-measured",
        title="The node ended the pod because it ran short, or because the pod broke a limit of its own",
        state=State.FAILED,
        find=pod.evicted_measured,
        chain=("the node ended the pod (Evicted): {short}", "{why}"),
        next="Nothing: an evicted pod stays ended until it is made anew.",
        advice=(
            "give the pod requests that cover what it really uses, so that it is among the last to be evicted",
            "free what is short on the node: disk (`pykubelet image ls`), memory (`pykubelet top pods`)",
            "if it broke a limit of its own, raise that limit or have it write less",
        ),
        shown="Evicted",
        final=True,
    ),
    Cause(
        id="evicted",
        title="The node ended the pod to save itself or a more important pod",
        state=State.FAILED,
        find=pod.evicted,
        chain=("the node ended the pod ({reason})", "{message}"),
        next="Nothing: an evicted pod stays ended until it is made anew.",
        advice=(
            "give the pod requests that cover what it really uses, so that it is among the last to be evicted",
            "free what is short on the node: disk (`pykubelet image ls`), memory (`pykubelet top pods`)",
        ),
        shown="Evicted, Preempting",
        final=True,
    ),
    Cause(
        id="deadline",
        title="The pod ran longer than it may",
        state=State.FAILED,
        find=pod.deadline,
        chain=("the pod was ended by the node", "it ran longer than spec.activeDeadlineSeconds allows ({allowed})"),
        next="Nothing: the pod stays ended.",
        advice=("raise spec.activeDeadlineSeconds or make the work shorter",),
        shown="DeadlineExceeded",
        final=True,
    ),
    Cause(
        id="unreadable-change",
        title="The newest version of the pod cannot be read",
        state=State.NOTE,
        find=pod.unreadable_change,
        chain=("the node goes on with an older version of the pod", "the newest one cannot be read: {problem}"),
        next="The agent takes the next version that can be read; if the pod is deleted, it ends all the same.",
        advice=("`kubectl get pod -o json` shows the field; correct it or make the pod anew without it",),
        shown="whatever it was before",
    ),
    # --- before containers ----------------------------------------------------------------------
    Cause(
        id="network-not-ready",
        title="The pod network of the node is not ready",
        state=State.STUCK,
        find=pod.network_not_ready,
        chain=("no pod with a network of its own can start on this node", "{problem}"),
        next="The agent looks again {when} and starts the pod as soon as the network is there.",
        advice=(
            "install the cluster's network plugin; its configuration belongs into /etc/cni/net.d of the node",
            "pods with hostNetwork start without it",
        ),
        shown="ContainerCreating",
    ),
    Cause(
        id="cgroup-failed",
        title="The pod's cgroup cannot be made",
        state=State.STUCK,
        find=pod.cgroup_failed,
        chain=("the pod cannot start", "its cgroup cannot be made: {problem}"),
        next="The agent tries again {when}.",
        advice=(
            "check that cgroupDriver is what the runtime uses and that cgroupRoot exists",
            "on cgroup v2, the controllers cpu, memory and pids must be on in the parent's cgroup.subtree_control",
        ),
        shown="ContainerCreating",
    ),
    Cause(
        id="object-missing",
        title="A volume needs a ConfigMap, Secret or claim that is not there",
        state=State.STUCK,
        find=pod.object_missing,
        chain=(
            "no container can start before all volumes are mounted",
            "{volume} needs {object}, which does not exist",
        ),
        next="The agent looks again {when}, and at once when it appears.",
        advice=(
            "create it in the pod's namespace, or correct the name in spec.volumes",
            "mark the reference `optional: true` if the pod can do without",
            "a node without a cluster has no ConfigMaps and Secrets: use hostPath or env values there",
        ),
        shown="ContainerCreating",
    ),
    Cause(
        id="mount-stuck",
        title="A volume operation does not come back",
        state=State.STUCK,
        find=pod.mount_stuck,
        chain=("no container can start before all volumes are mounted", "{volume}: {problem}"),
        next="The agent waits for it in the background and tells every two minutes; other pods are not affected.",
        advice=(
            "check that the storage server (NFS, iSCSI, CSI driver) answers from this node",
            "processes in state D (`ps -eo pid,stat,wchan,cmd`) show which mount hangs",
        ),
        shown="ContainerCreating",
    ),
    Cause(
        id="mount-failing",
        title="A volume cannot be mounted",
        state=State.STUCK,
        find=pod.mount_failing,
        chain=("no container can start before all volumes are mounted", "{volume}: {problem}"),
        next="The agent tries again {when}.",
        advice=(
            "correct what the message names: path, type, server or driver",
            "`pykubelet events {name}` has every try",
        ),
        shown="ContainerCreating",
    ),
    Cause(
        id="sandbox-network",
        title="The pod's network cannot be set up",
        state=State.STUCK,
        find=pod.sandbox_network,
        chain=("the pod cannot start: its sandbox cannot be made", "the network plugin failed: {problem}"),
        next="The agent tries again {when}.",
        advice=(
            "check the CNI configuration (/etc/cni/net.d, or <state folder>/runtime/cni with `pykubelet up`) and that "
            "the plugins it names are installed",
            "when addresses have run out, remove what dead pods left under /var/lib/cni/networks",
            "host ports must be free on the node",
        ),
        shown="ContainerCreating",
    ),
    Cause(
        id="sandbox-failed",
        title="The pod's sandbox cannot be made",
        state=State.STUCK,
        find=pod.sandbox_failed,
        chain=("the pod cannot start", "the runtime cannot make its sandbox: {problem}"),
        next="The agent tries again {when}.",
        advice=(
            "the pause image must be on the node or its registry reachable",
            "the runtime's own log says more",
        ),
        shown="ContainerCreating",
    ),
)
