"""`python -m conformance.node_suite`: run Kubernetes' own tests of the kubelet against pykubelet and the Go kubelet.

Exit status 0 when every spec that was selected ran and none failed that the Go kubelet passes, 1 when not so. What was
seen is merged into conformance/results/node-suite, also when the run is stopped early. See docs/conformance.md.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from pathlib import Path

from conformance import node_bed, node_guest, node_results, report
from conformance.node_parts import PARTS, exactly, ginkgo_options
from conformance.node_results import Results
from conformance.report import GO, OURS
from conformance.suite import FAILED, read_report

RUNTIME = "containerd v2.3.4, runc v1.3.4"
REASONS = {
    "PrivilegedPod": "adds a network link of type dummy, which this kernel does not have",
    "multiple guaranteed pods started should succeed": "reads the log of a container at once, empty yet when emulated",
    "guaranteed": "looks for oom_score_adj -997, which the runtime may not set without CAP_SYS_RESOURCE",
    "Summary API": "wants PSI, which cgroup v1 does not count, and the containers `runtime` and `misc`",
    "container runtime is temporarily down": "stops and starts containerd by D-Bus to systemd, which the bed has not",
    "ImageMaximumGCAge": "pulls all images of the suite at its end, also those that the bed's registry has not",
    "volume failing to unmount": "runs an NFS server from an image that the bed has not",
    "Cgroup Driver From CRI": "looks 1 s after a restart; on a loaded machine pykubelet listens later",
    "1 container with all requests & limits set": "not ready in 5 minutes with the Go kubelet, once, under load",
    "sctp": "the kernel has no SCTP",
    "GracefulNodeShutdown": "announces the shutdown by D-Bus, which the bed in namespaces has not",
    "oom-score-adj should be -999": "may not be set without CAP_SYS_RESOURCE",
    "multiple page size": "wants a huge page of 1 GiB, for which the machine has no piece of memory",
    "across node reboots if fails admission": "the Go kubelet still listed the pod after the 30 s that the spec waits",
    "values for the podresources metrics": "came before the Go kubelet listened again after a restart",
    "Basic functionality with configuration QOS": "LimitedSwap, with which no kubelet starts on cgroup v1",
    "should avoid swap": "reads memory.swap.max, a file of cgroup v2",
    "Checkpoint Container": "needs criu, which the bed has not",
    "ImageCredentialProvider": "pulls from a private registry outside, which the bed has not",
    "ImageID": "pulls an image by the digest that it has outside",
    "should report container metrics": "wants device figures of containers: cgroup v1 counts their writes as root's",
}
"""Part of a spec's name -> why it fails, for the table; excuses nothing."""


def main() -> int:
    options = parse()
    if options.document:
        node_results.write_document(REASONS)
        return 0
    if options.merge is not None:
        return judged(options, options.agent, options.merge, options.status, 0.0)
    agents = (GO, OURS) if options.agent == "both" else (options.agent,)
    return max([measured(options, agent) for agent in agents])


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m conformance.node_suite", description=__doc__.splitlines()[0])
    parser.add_argument("--agent", choices=(OURS, GO, "both"), default=OURS)
    parser.add_argument("--part", choices=PARTS, default="parallel")
    parser.add_argument("--focus", default="", help="only specs whose names match this pattern")
    parser.add_argument("--skip", default="", help="no specs whose names match this pattern")
    parser.add_argument("--labels", default="", help="only specs whose labels match this ginkgo filter")
    parser.add_argument("--processes", type=int, default=0, help="how many specs at once")
    parser.add_argument("--timeout", default="6h", help="the longest that ginkgo may take")
    parser.add_argument("--suite", action="append", default=[], help="another option of e2e_node.test")
    parser.add_argument("--keep", action="store_true", help="keep the logs when all is well, too")
    parser.add_argument("--failed", choices=(OURS, GO), help="only specs that failed with this agent the last time")
    parser.add_argument("--merge", type=Path, help="run nothing: take the results from the folder of an earlier run")
    parser.add_argument("--status", type=int, default=0, help="with --merge: how ginkgo ended then")
    parser.add_argument("--document", action="store_true", help="run nothing: write the table in docs/conformance.md")
    return parser.parse_args()


def measured(options: argparse.Namespace, agent: str) -> int:
    part = PARTS[options.part]
    again = node_results.load(options.part, options.failed).names(FAILED) if options.failed else ()
    if options.failed and not again:
        print(f"no spec of {options.part} failed with {options.failed}")
        return 0
    chosen = ginkgo_options(
        part,
        focus=exactly(again) if again else options.focus,
        skip=options.skip,
        labels=options.labels,
        processes=options.processes,
        longest=options.timeout,
    )
    folder = node_bed.private_folder()
    print(f"{agent}: logs are in {folder}", flush=True)
    began = time.monotonic()
    asked = [*part.suite, *options.suite]
    if part.guest:
        status = node_guest.run(agent, folder, chosen, asked)
    else:
        status = node_bed.run_inside(node_bed.job(agent, folder, chosen, asked))
    good = judged(options, agent, folder, status, time.monotonic() - began)
    if good == 0 and not options.keep:
        shutil.rmtree(folder)
    return good


def judged(options: argparse.Namespace, agent: str, folder: Path, status: int, seconds: float) -> int:
    """Merge what a run saw, print it, and say whether it is well."""
    seen = read_report(folder / "ginkgo.json", status)
    results = node_results.load(options.part, agent)
    results.runtime = RUNTIME
    if not seen.broken:
        results.merge(seen.specs, node_results.commit())
        node_results.save(results)
    outcome = report.Outcome(
        agent=agent,
        runtime=RUNTIME,
        focus=options.focus,
        seconds=seconds,
        specs=seen.specs,
        excused=node_results.load(options.part, GO).names(FAILED),
    )
    print(report.table(outcome))
    faults = seen.faults() + unexcused(results, agent, {spec.name for spec in seen.specs})
    for fault in faults:
        print(f"{agent}: {fault}")
    return 1 if faults else 0


def unexcused(results: Results, agent: str, names: set[str]) -> list[str]:
    """Failures of this run that the Go kubelet does not share; its own are facts about the bed."""
    if agent == GO:
        return []
    found = node_results.compare(results, node_results.load(results.part, GO))
    bad = [name for name in (*found.ours_alone, *found.not_compared, *found.missing) if name in names]
    return [f"{results.entries[name].spec.outcome}, and not with the Go kubelet: {name}" for name in bad]


if __name__ == "__main__":
    sys.exit(main())
