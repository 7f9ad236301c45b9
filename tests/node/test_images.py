"""Images on a real containerd, from real registries with and without a password, and from servers that misbehave."""

from __future__ import annotations

import http.server
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from pykubelet.clients.cri.client import GrpcCriClient
from pykubelet.images.gc import ImageGc, ImageGcFailed, ImageGcPolicy
from pykubelet.kit.clock import SystemClock
from pykubelet.standalone.images import BUSYBOX, busybox_image, find_busybox
from pykubelet.standalone.packer import Archive, architecture, pack
from pykubelet.wire import cri_pb2
from tests.bed.agent import BedAgent, bed_agent
from tests.bed.pods import bare_pod
from tests.bed.registry import Registry
from tests.bed.runtime import BedContainerd
from tests.builders import a_context
from tests.fakes.recorded_events import RecordedEvents

pytestmark = pytest.mark.node

PYKUBELET = str(Path(sys.executable).with_name("pykubelet"))
FIELD = re.compile(r'(\w+)=("(?:[^"\\]|\\.)*"|\S+)')


def wait_for(question: Callable[[], Any], what: Callable[[], str], within: float = 60.0) -> Any:
    end = time.monotonic() + within
    while time.monotonic() < end:
        if answer := question():
            return answer
        time.sleep(0.05)
    raise AssertionError(f"not within {within:g} s: {what()}")


def an_image(label: str) -> Archive:
    """A busybox of its own id, so that no other test has brought it already."""
    return pack(replace(busybox_image(find_busybox()), environment={"LABEL": label}), architecture())


def a_manifest(name: str, image: str, policy: str = "IfNotPresent") -> dict[str, Any]:
    container = {
        "name": "app",
        "image": image,
        "imagePullPolicy": policy,
        "command": ["/bin/sh", "-c", "echo up $LABEL; exec sleep 100000"],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"terminationGracePeriodSeconds": 0, "containers": [container]},
    }


def events(agent: BedAgent, pod: str) -> list[tuple[str, str]]:
    """(reason, message) of the events about a pod, in order."""
    found = []
    for line in agent.log().splitlines():
        if '] "event" ' not in line:
            continue
        fields = {key: json.loads(value) for key, value in FIELD.findall(line) if value.startswith('"')}
        if fields["object"].endswith(f"/{pod}-bed-node"):
            found.append((fields["reason"], fields["message_text"]))
    return found


def until_event(agent: BedAgent, pod: str, reason: str, text: str = "") -> str:
    """The message of the first event of that reason which holds the text."""

    def look() -> str | None:
        assert agent.status is None, agent.tail()
        return next((m for r, m in events(agent, pod) if r == reason and text in m), None)

    return str(wait_for(look, lambda: f"{pod}: {reason} {text}\n{events(agent, pod)}\n{agent.tail()}"))


def until_up(agent: BedAgent, pod: str) -> str:
    def look() -> str:
        assert agent.status is None, agent.tail()
        files = list(agent.pod_logs.glob(f"default_{pod}-*_*/app/*.log"))
        return files[0].read_text() if files else ""

    return str(wait_for(look, lambda: f"{pod} up\n{events(agent, pod)}\n{agent.tail()}"))


@contextmanager
def an_agent(folder: Path, containerd: BedContainerd, flags: Sequence[str] = ()) -> Iterator[BedAgent]:
    with bed_agent(folder, containerd, flags=flags, serializeImagePulls=False, registryPullQPS=0) as agent:
        yield agent
        assert "Traceback" not in agent.log(), agent.log()


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory, containerd: BedContainerd) -> Iterator[BedAgent]:
    with an_agent(tmp_path_factory.mktemp("images"), containerd) as running:
        yield running


@contextmanager
def a_server(answer: Callable[[http.server.BaseHTTPRequestHandler], None]) -> Iterator[str]:
    """A registry of our own making; gives host:port."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer(self)

        do_HEAD = do_GET

        def log_message(self, *ignored: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def status(code: int) -> Callable[[http.server.BaseHTTPRequestHandler], None]:
    def answer(handler: http.server.BaseHTTPRequestHandler) -> None:
        handler.send_response(code)
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    return answer


# --- pulling ------------------------------------------------------------------------------------


def test_by_tag_by_digest_and_by_every_policy(agent: BedAgent, registry: Registry) -> None:
    archive = an_image("policies")
    tagged = registry.push("policies:v1", archive)
    agent.put("absent", a_manifest("absent", tagged, "Never"))
    text = f'Container image "{tagged}" is not present with pull policy of Never'
    assert until_event(agent, "absent", "ErrImageNeverPull") == text
    assert until_event(agent, "absent", "Failed") == "Error: ErrImageNeverPull"
    agent.drop("absent")

    agent.put("tag", a_manifest("tag", tagged))
    assert "up policies" in until_up(agent, "tag")
    assert re.fullmatch(
        rf'Successfully pulled image "{tagged}" in \S+ \(\S+ including waiting\). Image size: \d\d+ bytes.',
        until_event(agent, "tag", "Pulled"),
    )
    assert [e for e in events(agent, "tag") if e[0] == "Pulling"] == [("Pulling", f'Pulling image "{tagged}"')]
    agent.put("present", a_manifest("present", tagged))
    agent.put("never", a_manifest("never", tagged, "Never"))
    agent.put("always", a_manifest("always", tagged, "Always"))
    agent.put("digest", a_manifest("digest", f"{registry.host}/policies@{archive.digest}"))
    for pod in ("present", "never", "always", "digest"):
        assert "up policies" in until_up(agent, pod)
    present = f'Container image "{tagged}" already present on machine and can be accessed by the pod'
    assert until_event(agent, "present", "Pulled") == until_event(agent, "never", "Pulled") == present
    assert until_event(agent, "always", "Pulled").startswith("Successfully pulled")
    records = [json.loads(path.read_text()) for path in (agent.root / "image_manager" / "pulled").iterdir()]
    mine = [r["credentialMapping"] for r in records if f"{registry.host}/policies" in r.get("credentialMapping", {})]
    assert mine == [{f"{registry.host}/policies": {"nodePodsAccessible": True}}]
    wait_for(lambda: not list((agent.root / "image_manager" / "pulling").iterdir()), agent.tail)
    for pod in ("tag", "present", "never", "always", "digest"):
        agent.drop(pod)


def test_pods_share_one_pull(agent: BedAgent, registry: Registry, containerd: BedContainerd) -> None:
    pushed = registry.push("shared:v1", an_image("shared"))
    names = [f"shared{number}" for number in range(4)]
    all_wait = threading.Event()

    def answer(handler: http.server.BaseHTTPRequestHandler) -> None:
        all_wait.wait(600)
        handler.send_response(307)
        handler.send_header("Location", f"http://{registry.host}{handler.path}")
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    # The pull ends when all pods wait for it: one that came later would find the image, or pull once more.
    with a_server(answer) as slow:
        image = pushed.replace(registry.host, slow)
        try:
            for name in names:
                agent.put(name, a_manifest(name, image))
            for name in names:
                until_event(agent, name, "Pulling")
        finally:
            all_wait.set()
        for name in names:
            assert "up shared" in until_up(agent, name)
    pulls = len(re.findall(rf'PullImage \\"{re.escape(image)}\\"', containerd.log))
    told = [events(agent, name) for name in names]
    pulled = sum(1 for each in told for reason, text in each if reason == "Pulled" and "Successfully" in text)
    # Containerd logs a line at the beginning and one at the end.
    assert pulls == 2, f"{pulls // 2} pulls for {pulled} pods"
    for name in names:
        agent.drop(name)


# --- trouble ------------------------------------------------------------------------------------


def test_each_trouble_has_its_reason_and_harms_nobody_else(
    agent: BedAgent, registry: Registry, private_registry: Registry
) -> None:
    locked = private_registry.push("locked:v1", an_image("locked"))
    hung, release = threading.Event(), threading.Event()

    def hang(handler: http.server.BaseHTTPRequestHandler) -> None:
        hung.set()
        release.wait(600)

    def notes() -> list[str]:
        return [path.read_text() for path in (agent.root / "image_manager" / "pulling").iterdir()]

    with a_server(status(401)) as denies, a_server(status(500)) as broken, a_server(hang) as silent:
        wanted = {
            "locked": locked,
            "denied": f"{denies}/a:1",
            "broken": f"{broken}/a:1",
            "nosuch": f"{registry.host}/nosuch:1",
            "refused": "127.0.0.1:1/a:1",
            "silent": f"{silent}/a:1",
            "badname": "Not/A/Name:1",
        }
        try:
            for name, image in wanted.items():
                agent.put(name, a_manifest(name, image))
            assert hung.wait(60), agent.tail()
            agent.put("bystander", a_manifest("bystander", BUSYBOX))
            until_up(agent, "bystander")

            text = until_event(agent, "badname", "InspectFailed")
            assert text.startswith('Failed to apply default image tag "Not/A/Name:1": couldn\'t parse image name')
            assert until_event(agent, "badname", "Failed") == "Error: InvalidImageName"
            said = {
                "locked": "401|authorization failed|no basic auth credentials|authentication required",
                "denied": "401|authorization failed|no basic auth credentials|authentication required",
                "broken": "500 Internal Server Error",
                "nosuch": "not found",
                "refused": "connection refused",
            }
            for name, words in said.items():
                text = until_event(agent, name, "Failed", "Failed to pull")
                assert text.startswith(f'Failed to pull image "{wanted[name]}": ')
                assert re.search(words, text), text
                until_event(agent, name, "Failed", "Error: ErrImagePull")
            for name in said:
                assert until_event(agent, name, "BackOff") == f'Back-off pulling image "{wanted[name]}"'
                until_event(agent, name, "Failed", "Error: ImagePullBackOff")
            assert {reason for reason, _ in events(agent, "silent")} <= {"Pulling", "MissingClusterDNS"}
            wait_for(lambda: "image is still being pulled" in agent.log(), agent.tail)
            for name in (*wanted, "bystander"):
                agent.drop(name)
            wait_for(lambda: not list((agent.root / "pods").iterdir()), agent.tail)
        finally:
            release.set()
    # The pull that hung was given up with its pod; its note goes when the runtime has answered for the last time.
    wait_for(lambda: not notes(), lambda: f"notes {notes()}\n{agent.tail()}")


# --- logins -------------------------------------------------------------------------------------


def test_the_nodes_own_docker_config(tmp_path: Path, containerd: BedContainerd, private_registry: Registry) -> None:
    image = private_registry.push("node-config:v1", an_image("node-config"))
    login = {"username": private_registry.user, "password": private_registry.password}
    (tmp_path / "root").mkdir()
    config = {"auths": {f"http://{private_registry.host}/v2/": login, "elsewhere": {"auth": "eDp5"}}}
    (tmp_path / "root" / "config.json").write_text(json.dumps(config))
    with an_agent(tmp_path, containerd) as agent:
        agent.put("own", a_manifest("own", image))
        assert "up node-config" in until_up(agent, "own")
        assert str(private_registry.password) not in agent.log()


PLUGIN = """#!/bin/sh
# Asks to be remembered for the registry; counts its runs and keeps what it was asked.
cat >> "$COUNT_FILE"
[ "$1" = --for ] || { echo "no arguments: password=$WORD" >&2; exit 3; }
cat <<END
{"kind": "CredentialProviderResponse", "apiVersion": "credentialprovider.kubelet.k8s.io/v1",
 "cacheKeyType": "Registry", "cacheDuration": "5m",
 "auth": {"127.0.0.*:$2": {"username": "$USER_NAME", "password": "$WORD"}}}
END
"""


def plugin_flags(folder: Path, registry: Registry, count_file: Path, **changes: Any) -> list[str]:
    """A folder of plugins with one in it, and its configuration."""
    programs = folder / "plugins"
    programs.mkdir()
    (programs / "bed-login").write_text(PLUGIN)
    (programs / "bed-login").chmod(0o755)
    provider = {
        "name": "bed-login",
        "apiVersion": "credentialprovider.kubelet.k8s.io/v1",
        "matchImages": [f"*.0.0.1:{registry.host.partition(':')[2]}"],
        "defaultCacheDuration": "0s",
        "args": ["--for", registry.host.partition(":")[2]],
        "env": [
            {"name": "USER_NAME", "value": registry.user},
            {"name": "WORD", "value": registry.password},
            {"name": "COUNT_FILE", "value": str(count_file)},
        ],
    }
    config = {
        "apiVersion": "kubelet.config.k8s.io/v1",
        "kind": "CredentialProviderConfig",
        "providers": [provider | changes],
    }
    (folder / "providers.yaml").write_text(json.dumps(config))
    return [
        f"--image-credential-provider-config={folder / 'providers.yaml'}",
        f"--image-credential-provider-bin-dir={programs}",
    ]


def test_a_credential_plugin(tmp_path: Path, containerd: BedContainerd, private_registry: Registry) -> None:
    images = [private_registry.push(f"plugin{n}:v1", an_image(f"plugin{n}")) for n in range(2)]
    asked = tmp_path / "asked"
    with an_agent(tmp_path, containerd, plugin_flags(tmp_path, private_registry, asked)) as agent:
        for number, image in enumerate(images):
            agent.put(f"plugin{number}", a_manifest(f"plugin{number}", image))
            assert f"up plugin{number}" in until_up(agent, f"plugin{number}")
        [request] = [json.loads(line) for line in asked.read_text().splitlines()]  # the second came from the cache
        assert request == {
            "kind": "CredentialProviderRequest",
            "apiVersion": "credentialprovider.kubelet.k8s.io/v1",
            "image": f"{private_registry.host}/plugin0",
        }
        assert str(private_registry.password) not in agent.log()


def test_a_plugin_that_fails_leaves_the_pull_without_login(
    tmp_path: Path, containerd: BedContainerd, private_registry: Registry
) -> None:
    image = private_registry.push("failing:v1", an_image("failing"))
    flags = plugin_flags(tmp_path, private_registry, tmp_path / "asked", args=[])
    with an_agent(tmp_path, containerd, flags) as agent:
        agent.put("failing", a_manifest("failing", image))
        until_event(agent, "failing", "Failed", "Error: ErrImagePull")
        lines = [each for each in agent.log().splitlines() if "no registry logins from the plugin" in each]
        assert lines and all("ended with status 3: no arguments" in line for line in lines)  # one for each try
        assert str(private_registry.password) not in agent.log()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"name": "no-such"}, r"providers\.yaml: providers: no-such: the plugin's program \S+ does not exist"),
        ({"matchImages": []}, r"providers\.yaml: providers\[0\]\.matchImages: must list at least one pattern"),
        (
            {"apiversion": "x"},
            r"providers\.yaml: providers\[0\]\.apiversion: unknown field \(did you mean apiVersion\?",
        ),
    ],
)
def test_a_bad_plugin_configuration_ends_the_agent(
    tmp_path: Path, containerd: BedContainerd, private_registry: Registry, changes: dict[str, Any], said: str
) -> None:
    flags = plugin_flags(tmp_path, private_registry, tmp_path / "asked", **changes)
    flags += [f"--root-dir={tmp_path / 'root'}", f"--container-runtime-endpoint={containerd.endpoint}"]
    flags += ["--fail-swap-on=false", "--fail-cgroupv1=false", f"--pod-manifest-path={tmp_path}"]
    done = subprocess.run(
        [PYKUBELET, *flags], capture_output=True, text=True, timeout=60, check=False, env={**os.environ}
    )
    assert done.returncode == 1, done.stderr
    assert re.search(said, done.stderr), done.stderr
    assert "Traceback" not in done.stderr


# --- garbage collection -------------------------------------------------------------------------


async def test_unused_images_go_and_used_ones_stay(
    tmp_path: Path, containerd: BedContainerd, registry: Registry
) -> None:
    """The disk of this host is what it is, so the thresholds are set to be passed."""
    used, unused = (registry.push(f"{name}:v1", an_image(name)) for name in ("gc-used", "gc-unused"))
    clock, events = SystemClock(), RecordedEvents()
    async with GrpcCriClient(containerd.endpoint, clock=clock) as cri:
        theirs = {image.id for image in await cri.list_images()}  # other tests need them
        refs = {image: await cri.pull_image(cri_pb2.ImageSpec(image=image)) for image in (used, unused)}
        images = ImageGc(
            a_context(clock=clock, events=events),
            cri,
            policy=ImageGcPolicy(high_percent=0, low_percent=0, min_age=0.0),
            also_used=lambda: theirs,
        )
        try:
            with bare_pod(containerd.socket, tmp_path, "gc-used") as pod:
                pod.run("app", used, ["/bin/sleep", "100000"])
                with pytest.raises(ImageGcFailed, match="Insufficient free disk space"):
                    await images.collect()  # it can never free the whole disk
                assert [reason for reason, _ in events.node] == ["FreeDiskSpaceFailed"]
                assert await cri.image_status(unused) is None
                assert await cri.image_status(used) is not None
            assert await images.remove_unused() > 0
            assert await cri.image_status(used) is None
            assert theirs == {image.id for image in await cri.list_images()}
        finally:
            for ref in refs.values():
                await cri.remove_image(ref)
