"""Ask the Go kubelet's own code for the UIDs of the static pods in tests/unit/api/static_uids.json, and for the layout.

Run it for a new version of Kubernetes, after its go.mod has changed: it rewrites that file and
src/pykubelet/api/pod_layout.json. `go` must be on the PATH; the first run compiles for some minutes.
"""

import json
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PODS = ROOT / "tests/unit/api/static_uids.json"
LAYOUT = ROOT / "src/pykubelet/api/pod_layout.json"
NODE, FOLDER = "control", "/etc/kubernetes/manifests"


def main() -> None:
    program = ["go", "run", "-mod=readonly", "./staticuid"]
    LAYOUT.write_text(_run([*program, "layout"]))
    pods = json.loads(PODS.read_text())
    for name, pod in pods.items():
        manifest = json.dumps(pod["manifest"])
        pod["uid"] = _run([*program, NODE, f"{FOLDER}/{name}.yaml"], manifest).strip()
    PODS.write_text(json.dumps(pods, indent=1, ensure_ascii=False) + "\n")


def _run(command: list[str], stdin: str = "") -> str:
    place = ROOT / "tests/kubeadm"
    return subprocess.run(command, cwd=place, input=stdin, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    main()
