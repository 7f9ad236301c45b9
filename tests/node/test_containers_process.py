"""What a container's process is given, seen from inside: variables, command, folder, user's name, last words."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.bed.agent import NODE
from tests.bed.inside import (
    DONE,
    Inside,
    container_manifest,
    import_image,
    in_this_process,
    looking_inside,
    pod_manifest,
    status_when,
)
from tests.bed.runtime import BedContainerd

pytestmark = pytest.mark.node

ENTRY, NAMED = "pykubelet.local/entry:1", "pykubelet.local/named:1"
MIB = 1 << 20


def field(name: str, path: str) -> dict[str, Any]:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def resource(name: str, resource: str, divisor: str | None = None) -> dict[str, Any]:
    selector = {"resource": resource} | ({"divisor": divisor} if divisor else {})
    return {"name": name, "valueFrom": {"resourceFieldRef": selector}}


def from_file(name: str, key: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "valueFrom": {"fileKeyRef": {"volumeName": "made", "path": "vars", "key": key, **more}}}


def values(**given: str) -> list[dict[str, str]]:
    return [{"name": name, "value": value} for name, value in given.items()]


EXPANDED = values(
    FIRST="1",
    SECOND="$(FIRST)-2",
    TOO_EARLY="$(LAST)",
    UNKNOWN="$(NOBODY)",
    ESCAPED="$$(FIRST)",
    DOLLARS="a$$b$c",
    OPEN="$(FIRST",
    EMPTY="",
    TWICE="old",
    LAST="$(SECOND)$(TWICE)",
)
FIELDS = [
    field("NAME", "metadata.name"),
    field("NAMESPACE", "metadata.namespace"),
    field("UID_", "metadata.uid"),
    field("LABEL", "metadata.labels['app']"),
    field("NOTE", "metadata.annotations['note']"),
    field("NODE", "spec.nodeName"),
    field("IP", "status.podIP"),
    field("IPS", "status.podIPs"),
    field("HOST_IP", "status.hostIP"),
]
RESOURCES = [
    resource("CPU", "limits.cpu"),
    resource("CPU_MILLI", "limits.cpu", "1m"),
    resource("CPU_ASKED", "requests.cpu", "1m"),
    resource("MEMORY", "limits.memory"),
    resource("MEMORY_MIB", "limits.memory", "1Mi"),
    resource("MEMORY_ASKED", "requests.memory", "1Ki"),
]
SHOW = "env"


def an_image_pod(name: str, **fields: Any) -> dict[str, Any]:
    container = {"name": "app", "image": ENTRY, "imagePullPolicy": "Never", **fields}
    return pod_manifest(name, container, restartPolicy="Never")


PODS = [
    pod_manifest("expanded", container_manifest(script=SHOW, env=EXPANDED)),
    pod_manifest(
        "fields", container_manifest(script=SHOW, env=FIELDS), labels={"app": "web"}, annotations={"note": "a b"}
    ),
    pod_manifest(
        "resources",
        container_manifest(
            script=SHOW,
            env=RESOURCES,
            resources={"limits": {"cpu": "250m", "memory": "20Mi"}, "requests": {"cpu": "100m", "memory": "10Mi"}},
        ),
        container_manifest("open", SHOW, env=[resource("CPU", "limits.cpu"), resource("MEMORY", "limits.memory")]),
    ),
    pod_manifest(
        "file",
        container_manifest(
            script=SHOW,
            env=[from_file("GREETING", "HELLO"), from_file("NONE", "NOT_THERE", optional=True)],
        ),
        initContainers=[
            container_manifest(
                "maker",
                "printf \"# made\\nHELLO='two\\nlines'\\n\" > /made/vars",
                ends=True,
                volumeMounts=[{"name": "made", "mountPath": "/made"}],
            )
        ],
        volumes=[{"name": "made", "emptyDir": {}}],
    ),
    pod_manifest(
        "words",
        container_manifest(
            command=["sh", "-c", f'echo "$0 $1 $2"; pwd; echo {DONE}; sleep 1000'],
            args=["$(WHAT)", "$$(WHAT)", "$(NOBODY)"],
            env=values(WHAT="filled"),
            workingDir="/made/up",
        ),
    ),
    an_image_pod("entry"),
    an_image_pod("entry-args", args=["mine"]),
    an_image_pod("entry-command", command=["echo", "own"]),
    an_image_pod("entry-both", command=["echo", "own"], args=["$(MARK)"]),
    pod_manifest(
        "terminal",
        container_manifest(script="[ -t 1 ] && echo TTY=yes; [ -t 0 ] && echo STDIN=tty", tty=True, stdin=True),
        container_manifest("plain", "[ -t 1 ] || echo TTY=no; read line || echo STDIN=closed"),
        container_manifest("piped", "[ -p /dev/stdin ] && echo STDIN=open", stdin=True),
    ),
    pod_manifest("huge", container_manifest(script=SHOW, env=values(BIG="x" * MIB))),
    pod_manifest("named", container_manifest(image=NAMED, script="id", securityContext={"runAsNonRoot": True})),
    pod_manifest("named-free", container_manifest(image=NAMED, script="id")),
    pod_manifest("root", container_manifest(script="id", securityContext={"runAsNonRoot": True})),
    pod_manifest("zero", container_manifest(script="id", securityContext={"runAsNonRoot": True, "runAsUser": 0})),
    pod_manifest("not-root", container_manifest(script="id", securityContext={"runAsNonRoot": True, "runAsUser": 7})),
    pod_manifest("no-program", container_manifest(command=["/nonexistent"])),
    pod_manifest(
        "no-file",
        container_manifest(env=[from_file("X", "HELLO")], script=SHOW),
        volumes=[{"name": "made", "emptyDir": {}}],
    ),
]


@pytest.fixture(scope="module")
def inside(tmp_path_factory: pytest.TempPathFactory, containerd: BedContainerd) -> Iterator[Inside]:
    import_image(
        containerd, ENTRY, entrypoint=["echo", "entry"], command=["cmd"], environment={"PATH": "/bin", "MARK": "m"}
    )
    import_image(containerd, NAMED, user="app")
    with looking_inside(tmp_path_factory.mktemp("process"), containerd, *PODS) as found:
        yield found


def test_variables_are_expanded_in_their_order(inside: Inside) -> None:
    told = inside.told("expanded")
    assert {name: told.get(name) for name in (each["name"] for each in EXPANDED)} == {
        "FIRST": "1",
        "SECOND": "1-2",
        "TOO_EARLY": "$(LAST)",
        "UNKNOWN": "$(NOBODY)",
        "ESCAPED": "$(FIRST)",
        "DOLLARS": "a$b$c",
        "OPEN": "$(FIRST",
        "EMPTY": "",
        "TWICE": "old",
        "LAST": "1-2old",
    }


def test_fields_of_the_pod(inside: Inside) -> None:
    told = inside.told("fields")
    (folder,) = (inside.agent.pod_logs).glob(f"default_fields-{NODE}_*")
    assert told["NAME"] == told["HOSTNAME"] == f"fields-{NODE}"
    assert (told["NAMESPACE"], told["NODE"]) == ("default", NODE)
    assert told["UID_"] == folder.name.rpartition("_")[2]
    assert (told["LABEL"], told["NOTE"]) == ("web", "a b")
    assert told["IP"] == told["IPS"] != ""
    assert told["HOST_IP"] != ""


def test_resources_are_divided_and_rounded_up(inside: Inside) -> None:
    told = inside.told("resources")
    assert (told["CPU"], told["CPU_MILLI"], told["CPU_ASKED"]) == ("1", "250", "100")
    assert (told["MEMORY"], told["MEMORY_MIB"], told["MEMORY_ASKED"]) == (str(20 * MIB), "20", "10240")
    memory = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal"))
    open_ended = inside.told("resources", "open")
    # Without a limit of its own a container may use what the node gives to pods: all but what eviction keeps free.
    kept = int(inside.agent.settings["evictionHard"]["memory.available"].removesuffix("Mi")) * MIB
    assert int(open_ended["MEMORY"]) == int(memory.split()[1]) * 1024 - kept
    assert int(open_ended["CPU"]) >= 1


def test_variables_from_a_file_of_a_volume(inside: Inside) -> None:
    said = inside.said("file")
    assert "GREETING=two\nlines\n" in said
    assert "NONE=" not in said
    text = 'Error: cannot find the volume "made" referenced by FileKeyRef'
    assert inside.event("no-file", "Failed") == text, "a volume that nobody mounts is not there"


def test_arguments_and_working_folder(inside: Inside) -> None:
    assert inside.said("words").splitlines() == ["filled $(WHAT) $(NOBODY)", "/made/up"]


@pytest.mark.parametrize(
    ("pod", "said"),
    [("entry", "entry cmd"), ("entry-args", "entry mine"), ("entry-command", "own"), ("entry-both", "own $(MARK)")],
)
def test_command_and_args_against_those_of_the_image(inside: Inside, pod: str, said: str) -> None:
    """Variables of the image are the runtime's affair: `$(VAR)` knows only those of the spec."""
    assert inside.wait(lambda: inside.log(pod), pod) == f"{said}\n"


def test_terminal_and_standard_input(inside: Inside) -> None:
    assert inside.told("terminal") == {"TTY": "yes", "STDIN": "tty"}
    assert inside.told("terminal", "plain") == {"TTY": "no", "STDIN": "closed"}
    assert inside.told("terminal", "piped") == {"STDIN": "open"}


def test_a_megabyte_in_a_variable_is_told_and_harms_nobody(inside: Inside) -> None:
    """The kernel takes 128 KiB for one variable. The runtime finds out when it has started the container."""

    def says_why() -> bool:  # logs of older runs are removed
        return any("argument list too long" in inside.log("huge", run=number) for number in range(10))

    inside.wait(says_why, "huge says why")
    text = inside.event("huge", "BackOff")
    assert text.startswith(f"Back-off restarting failed container app in pod huge-{NODE}_default(")
    inside.wait(lambda: any(run.exit_code for run in inside.runs("huge")), "the runtime says that it failed")
    assert all(len(line) < 4096 for line in inside.agent.log().splitlines())


def test_a_program_that_is_not_there(inside: Inside) -> None:
    assert "no such file or directory" in inside.event("no-program", "Failed")


def test_promising_not_to_run_as_root(inside: Inside) -> None:
    place = '(pod: "{}-bed-node_default('
    text = inside.event("named", "Failed")
    assert "container has runAsNonRoot and image has non-numeric user (app), cannot verify user is non-root" in text
    assert place.format("named") in text and text.startswith("Error: ") and text.endswith(')", container: app)')
    assert "container has runAsNonRoot and image will run as root" in inside.event("root", "Failed")
    assert "container's runAsUser breaks non-root policy" in inside.event("zero", "Failed")
    assert inside.said("not-root").startswith("uid=7")
    assert inside.said("named-free").startswith("uid=1000(app) gid=1000(app)")
    for pod in ("named", "root", "zero"):
        assert inside.log(pod) == ""


# --- last words: only the status tells them, so the agent runs in this process ------------------------

LAST_WORDS = pod_manifest(
    "last",
    container_manifest("file", "printf bye > /dev/termination-log", ends=True),
    container_manifest("elsewhere", "printf bye > /last/words", ends=True, terminationMessagePath="/last/words"),
    container_manifest("logs", "echo from the log; exit 3", terminationMessagePolicy="FallbackToLogsOnError"),
    container_manifest("logs-ok", "echo from the log; exit 0", terminationMessagePolicy="FallbackToLogsOnError"),
    container_manifest(
        "both",
        "echo from the log; printf first > /dev/termination-log; exit 4",
        terminationMessagePolicy="FallbackToLogsOnError",
    ),
    container_manifest("long", "head -c 9000 /dev/zero | tr '\\0' x > /dev/termination-log", ends=True),
    container_manifest(
        "long-logs",
        "i=0; while [ $i -lt 200 ]; do echo line-$i-with-some-text-to-make-it-long; i=$((i+1)); done; exit 1",
        terminationMessagePolicy="FallbackToLogsOnError",
    ),
    container_manifest("silent", "exit 5"),
    restartPolicy="Never",
)


async def test_last_words(inside: Inside) -> None:
    async with in_this_process(inside) as node:
        inside.put(LAST_WORDS)  # now: the agent that was stopped must not have begun with it
        status = await status_when(node, "last", lambda status: status.phase == "Failed")
    ended = {each.name or "": each for each in status.container_statuses}
    words = {name: each.state.terminated for name, each in ended.items() if each.state is not None}
    assert all(end is not None for end in words.values()), ended
    texts = {name: (end.message or "", end.exit_code) for name, end in words.items() if end is not None}
    long_logs = texts.pop("long-logs")[0]
    assert texts == {
        "file": ("bye", 0),
        "elsewhere": ("bye", 0),
        "logs": ("from the log\n", 3),
        "logs-ok": ("", 0),
        "both": ("first", 4),
        "long": ("x" * (12288 // 8), 0),
        "silent": ("", 5),
    }
    assert long_logs.endswith("line-199-with-some-text-to-make-it-long\n") or len(long_logs) == 12288 // 8
    assert {end.reason for end in words.values() if end is not None} == {"Completed", "Error"}
