"""The commands that README and docs tell people to type, found in their texts, and who runs them.

Fenced and indented blocks count line by line, and so does code inside sentences that begins with a program's name.
Commands of `pykubelet` are run by tests/node/test_documents.py as they are written; what needs another machine, or
minutes, is in ELSEWHERE with the reason. A command that is neither fails tests/unit/test_documents.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

PROGRAMS = (
    "pykubelet|make|python3?|pip|git|kubectl|kubeadm|systemctl|apt-get|dnf|docker|podman|fuser|lsof|ps|curl|source"
)
COMMAND = re.compile(rf"(?:[\w./]*/)?(?:{PROGRAMS})(?: |$)")
BLOCK = re.compile(r"^```\w*\n(.*?)^```", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"^ {4}(\S.*)$", re.MULTILINE)
INLINE = re.compile(r"`([^`]+)`", re.DOTALL)

PYKUBELET = re.compile(r"(?:\.venv/bin/)?pykubelet ")
MENTION = re.compile(r"pykubelet (?:up|exec|restart)$")
"""In a sentence about the command; nobody types it like that."""
PLACES = {
    "POD/CONTAINER": "hello/hello",
    "POD": "hello",
    "CONTAINER": "hello",
    "PORT": ":8080",
    "FILE.tar": "$IMAGE_TAR",
    "IMAGE": "$IMAGE",
    "…": "true",
}
"""What people put in, and the test puts in for them."""
ELSEWHERE: Final[Mapping[str, str]] = {
    r"git clone .*": "there is no address to clone from yet",
    r"make run( EXAMPLE=\S+)?": "what it runs is checked by asking make; the first part installs packages",
    r"make (test|check|fix|bench|types|proto|docs|pause)": "what it runs is checked by asking make; this run, or long",
    r"make conformance( \w+=\S+)*": "what it runs is checked by asking make; it takes an hour",
    r"make node-suite( \w+=(\S+|'[^']*'))*": "what it runs is checked by asking make; it takes hours",
    r"make hosts( \w+=(\S+|'[^']*'))*": "what it runs is checked by asking make; it takes hours",
    r"python -m hosts\.\w+": "guests take an hour, the report has a unit test; that they are there is checked",
    r"(\.venv/bin/)?python -m bench(\.\w+)?( \w+)?( --\w+( \w+)?)*": "takes minutes; that it is there is checked",
    r"(\.venv/bin/)?python -m conformance.*": "it takes an hour; that the module is there is checked",
    r"(\.venv/bin/)?python -m tests\.lives( --\w+ \w+)*": "takes half an hour; that the module is there is checked",
    r"python -m pykubelet\.explain\.document": "a unit test compares the page with what it makes",
    r"pykubelet --config /var/\S+ --kubeconfig \S+": "how every agent in tests/cluster is started, with its own files",
    r"pykubelet up web\.yaml db\.yaml /etc/pods": "tests/node/test_up.py mixes files and folders of its own",
    r"pykubelet shutdown( --[\w-]+ \w+)*": "ends the pods for good; tests/unit/cli/test_shutdown.py",
    r"pykubelet hollow --nodes .*": "tests/cluster/test_hollow.py runs it on a real control plane",
    r"kubectl delete nodes -l pykubelet\.local/hollow=true": "the same test",
    r"python3 -m venv /opt/pykubelet": "changes the machine outside of the test's folder",
    r"/opt/pykubelet/bin/pip install \.": "changes the machine outside of the test's folder",
    r"pip install 'pykubelet\[tracing\]'": "tools/setup.sh installs the same libraries for the tests",
    r"systemctl (daemon-reload|(enable|disable|status|restart)( --now)? [\w-]+)": "needs systemd as the first process",
    r"kubectl get (nodes|pod -o json)": "tests/cluster/test_kubectl.py; here is no cluster",
    r"kubeadm (init|join|token|upgrade|reset)\b.*": "hosts/kubeadm is what runs these, on two guests",
    r"kubectl (--kubeconfig \S+ )?(apply|drain|delete node|get nodes) .*": "of clusters made by kubeadm: hosts/kubeadm",
    r"(docker|podman) (save|kube play)": "names what other tools do",
    r"(fuser -vm|lsof) <path>": "Debian's own programs, not installed by us",
    r"ps -eo pid,stat,wchan,cmd": "Debian's own program",
}
"""Commands that no test types, and why."""


def elsewhere(command: str) -> str:
    """Why no test types this command; empty for those that are run."""
    return next((why for sign, why in ELSEWHERE.items() if re.fullmatch(sign, command)), "")


def is_run(command: str) -> bool:
    known = bool(PYKUBELET.match(command)) or command.startswith("source <(pykubelet completion")
    return known and not elsewhere(command) and not MENTION.match(command)


def filled(command: str) -> str:
    for place, text in PLACES.items():
        command = re.sub(rf"(?<![\w$]){re.escape(place)}(?!\w)", text, command)
    return command


def documents(root: Path) -> list[Path]:
    return [root / "README.md", root / "CONTRIBUTING.md", *sorted((root / "docs").glob("*.md"))]


def commands(text: str) -> list[str]:
    """Every command of a document, each once, in the order of its first appearance, without comments."""
    return list(dict.fromkeys(_commands(text)))


def _commands(text: str) -> Iterator[str]:
    rest = text
    for block in BLOCK.finditer(text):
        yield from _of_lines(block[1].splitlines())
        rest = rest.replace(block[0], "\n")
    yield from _of_lines([line[1] for line in INDENTED.finditer(rest)])
    yield from _of_lines([" ".join(code[1].split()) for code in INLINE.finditer(rest) if " " in code[1].strip()])


def _of_lines(lines: list[str]) -> Iterator[str]:
    for line in lines:
        for part in line.partition(" #")[0].split(" && "):
            if COMMAND.match(part.strip()):
                yield " ".join(part.split())
