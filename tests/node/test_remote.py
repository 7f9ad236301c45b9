"""The commands against another node's server: over HTTPS, with a client certificate, as `--node` is used."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.bed.certificates import Authority, Pair
from tests.bed.inside import Inside, container_manifest, looking_inside, pod_manifest
from tests.bed.machine import PYKUBELET
from tests.bed.parts import scratch_folder
from tests.bed.runtime import BedContainerd

pytestmark = pytest.mark.node


@dataclass(frozen=True)
class Remote:
    inside: Inside
    authority: Pair
    person: Pair

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.inside.agent.settings['port']}"

    def run(self, *words: str, status: int = 0, known: bool = True) -> str:
        """What a command said to the node; `known` shows the certificate."""
        where = ["--node", self.url, "--certificate-authority", str(self.authority.certificate)]
        if known:
            where += ["--client-certificate", str(self.person.certificate), "--client-key", str(self.person.key)]
        end = words.index("--") if "--" in words else len(words)
        command = [*PYKUBELET, *words[:end], *where, *words[end:]]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        said = done.stdout + done.stderr
        assert "Traceback" not in said, said
        assert done.returncode == status, f"{words} ended with {done.returncode}: {said}"
        return said


@pytest.fixture(scope="module")
def remote(containerd: BedContainerd) -> Iterator[Remote]:
    with scratch_folder("pklr-") as folder:
        authority = Authority(folder)
        serving = authority.issue("server", hosts=["127.0.0.1"])
        changes = {
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": False},
                "x509": {"clientCAFile": str(authority.pair.certificate)},
            },
            "tlsCertFile": str(serving.certificate),
            "tlsPrivateKeyFile": str(serving.key),
        }
        pods = [
            pod_manifest("web", container_manifest(script="echo listening")),
            pod_manifest("down", container_manifest(script="exit 3")),
        ]
        with looking_inside(folder / "agent", containerd, *pods, **changes) as inside:
            inside.said("web")
            yield Remote(inside, authority.pair, authority.issue("person"))


def test_looking_at_pods(remote: Remote) -> None:
    remote.inside.wait(lambda: "1/1" in remote.run("get", "pods", "web"), "web is ready")
    assert re.search(r"web-bed-node\s+1/1\s+Running", remote.run("get", "pods", "-o", "wide"))
    assert json.loads(remote.run("get", "pods", "web", "-o", "json"))["metadata"]["name"] == "web-bed-node"
    assert "Status:           Running" in remote.run("describe", "pod", "web")
    assert "listening" in remote.run("logs", "web")
    assert "healthy" in remote.run("explain", "web")
    remote.inside.wait(lambda: _is_told(remote, "exit code 3", "explain", "down", status=4), "down is explained")
    # A rate needs two looks at the pod; the agent itself may have had its first one before the pod was there.
    remote.inside.wait(lambda: _is_told(remote, r"web-bed-node\s+\d+m", "top", "pods"), "web has figures")


def _is_told(remote: Remote, pattern: str, *words: str, status: int = 0) -> bool:
    try:
        return re.search(pattern, remote.run(*words, status=status)) is not None
    except AssertionError:  # it has not ended yet, or is just being started again
        return False


def test_acting_on_pods(remote: Remote) -> None:
    assert remote.run("exec", "web", "--", "sh", "-c", "echo out; exit 7", status=7) == "out\n"


def test_what_only_the_node_itself_can_do_says_so(remote: Remote) -> None:
    for words in (["events"], ["restart", "web"], ["image", "ls"], ["image", "load", "/dev/null"]):
        said = remote.run(*words, status=1)
        assert said.startswith("pykubelet: ") and said.count("\n") == 1, said


def test_strangers_are_turned_away_in_one_line(remote: Remote) -> None:
    said = remote.run("get", "pods", status=1, known=False)
    assert said == "pykubelet: Unauthorized\n"
    command = [*PYKUBELET, "get", "pods", "--node", remote.url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, "certificate verify failed" in done.stderr) == (3, True)
    done = subprocess.run(
        [*command, "--client-certificate", "/nonexistent"], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
