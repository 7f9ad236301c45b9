"""Blocking calls go through kit/host_calls.py: none is left on the loop, and nobody else makes threads.

The walk reads the source: in every coroutine, and in every plain function of the same module that one calls, it looks
for calls that wait for a disk or a program. It sees what is called by its name; what a manager calls in another module
through an object it does not see, except for the ways of writing durably, which are few and listed.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SRC = Path(__file__).parent.parent / "src" / "pykubelet"

OS_CALLS = frozenset(
    """
    access chmod chown fdatasync fsync ftruncate lchown link listdir lstat makedirs mkdir mknod open
    popen pread pwrite read readlink remove removedirs rename replace rmdir scandir stat statvfs symlink
    sync system truncate unlink utime waitpid walk write
    """.split()  # noqa: SIM905
)
OS_PATH_CALLS = frozenset(
    """
    exists getmtime getsize isdir isfile islink ismount lexists realpath samefile
    """.split()  # noqa: SIM905
)
PATH_CALLS = frozenset(
    """
    chmod exists glob hardlink_to is_dir is_file is_mount is_socket is_symlink iterdir lstat mkdir
    read_bytes read_text readlink rename rglob rmdir samefile stat symlink_to touch unlink write_bytes
    write_text
    """.split()  # noqa: SIM905
)
NAMES = frozenset({"open", "write_atomic", "sync_folder", "set_aside", "copy_aside"})
SYNCS = frozenset({"write_atomic", "sync_folder", "copy_aside", "os.fsync", "os.fdatasync"})
THREADS = frozenset({"to_thread", "run_in_executor", "ThreadPoolExecutor", "ProcessPoolExecutor", "Thread"})
ONE_PLACE = "kit/host_calls.py"

NOT_A_FILE = "the name is that of a Path's method, the object is none"
KERNEL = "files of /proc, /sys or cgroups: the kernel answers from memory"
START = "once, before or while the agent starts: nobody waits yet"
OWN_DISK = "one look at a name on the agent's own disk, which answers from memory; nothing is written or synced"

ALLOWED = {
    "certs/bootstrap.py": ("_key _forget_key join", START),
    "clients/dbus/logind.py": ("raise_max_delay", START),
    "clients/host/cgroups.py": ("_remove _folders_in _pids", KERNEL),
    "clients/kube/credentials.py": ("_pair _ca", OWN_DISK),
    "clients/plugins/devices.py": ("run _prepare", START),
    "kit/programs.py": ("run_program", "a file in memory"),
    "node/oom.py": ("_lives_on", KERNEL),
    "cm/cgroups.py": ("_starve ensure lacks_root", KERNEL),
    "cm/node_allocatable.py": ("_reserve", KERNEL),
    "cm/user_namespaces.py": ("_recover _adopt", OWN_DISK),
    "runtime/gc.py": ("_remove_folder _remove_dead_links", OWN_DISK),
    "runtime/logs_read.py": ("_name_of wait", "what the kernel knows, and an inotify descriptor that does not block"),
    "runtime/logs_rotate.py": ("_needs_check _size _rotate put_back", OWN_DISK),
    "runtime/spec/builder.py": ("_hosts_file", OWN_DISK),
    "server/relay.py": ("_tunnel_up _tunnel_down _from_caller _to_caller", NOT_A_FILE),
    "server/listeners.py": ("_open_local _has_ipv6 close take_lock _unlock", START),
    "server/local_grpc.py": ("serve _listen", START),
    "server/pods.py": ("checkpoint", OWN_DISK),
    "server/node_logs.py": ("open_below _listing", OWN_DISK),
}
"""Functions whose calls on the loop are meant, each with the reason."""

OTHER_THREADS = {
    "server/introspection.py": "the profiler watches the loop from a thread of its own, for as long as asked",
    "kit/log.py": "lines that are held back are written in time, also while the loop is busy or not there yet",
    "kit/names.py": "look-ups by the same rules, each set apart: names of pods never take the threads of anything else",
    "server/profiles.py": "what holds the loop up is seen from a thread of its own, when that is wanted",
    "server/tls.py": "one thread computes the handshakes of strangers, in turn by address; it never waits",
}

DURABLE = {
    "certs/bootstrap.py": START,
    "certs/rotation.py": "a certificate, once in months",
    "certs/self_signed.py": START,
    "standalone/cleanup.py": "not synced, and not the agent's",
    "clients/dbus/logind.py": START,
    "images/record_files.py": "called through host calls by records.py",
    "kit/files.py": "the writer itself",
    "cm/state.py": START,
    "cm/allocation.py": "not synced",
    "cm/user_namespaces.py": "through host calls",
    "node/shutdown.py": "twice when the machine goes down",
    "volumes/csi/records.py": "called through host calls by plugin.py",
    "volumes/plugins/disks.py": "not synced",
    "volumes/reconstruct.py": "through host calls, as a part of setting a volume up",
}


def sources() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(SRC.rglob("*.py")):
        home = path.relative_to(SRC).as_posix()
        if not home.startswith("wire/") and path.name != "generated.py":
            yield home, ast.parse(path.read_text())


def dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    return f"{dotted(node.value)}.{node.attr}" if isinstance(node, ast.Attribute) else "?"


def is_blocking(called: str) -> bool:
    parts = called.split(".")
    return (
        called in NAMES
        or called == "time.sleep"
        or parts[-1] == "save_now"
        or parts[0] in ("shutil", "subprocess")
        or (parts[0] == "os" and len(parts) == 2 and parts[1] in OS_CALLS)
        or (parts[:2] == ["os", "path"] and parts[-1] in OS_PATH_CALLS)
        or (parts[0] != "os" and len(parts) > 1 and parts[-1] in PATH_CALLS)
    )


def calls_of(function: ast.AST) -> Iterator[ast.Call]:
    """Calls the function makes itself; what is inside a lambda or an inner function is for somebody else to call."""
    for node in ast.iter_child_nodes(function):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            continue
        if isinstance(node, ast.Call):
            yield node
        yield from calls_of(node)


def blocking_on_the_loop(module: ast.Module) -> list[tuple[str, str]]:
    """Function and call."""
    functions: dict[str, ast.AST] = {}
    owners: dict[str, str] = {}
    for holder in (module, *(node for node in module.body if isinstance(node, ast.ClassDef))):
        prefix = f"{holder.name}." if isinstance(holder, ast.ClassDef) else ""
        for node in holder.body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                functions[prefix + node.name] = node
                owners[prefix + node.name] = prefix
    todo = [name for name, node in functions.items() if isinstance(node, ast.AsyncFunctionDef)]
    on_loop = set(todo)
    found = []
    while todo:
        name = todo.pop()
        for call in calls_of(functions[name]):
            called = dotted(call.func)
            if is_blocking(called):
                found.append((name, f"line {call.lineno}: {called}"))
            target = owners[name] + called[5:] if called.startswith("self.") else called
            if target in functions and target not in on_loop:
                on_loop.add(target)
                todo.append(target)
    return found


SAMPLE = """
class A:
    async def run(self):
        self._deep()
        await host_calls.run(self._fine, name="x", within=1)
    def _deep(self):
        helper()
    def _fine(self):
        os.fsync(1)
def helper():
    os.statvfs("/")
    later = lambda: os.stat("/")
"""


def test_the_walk_finds_what_is_called_on_the_loop_and_only_that() -> None:
    assert blocking_on_the_loop(ast.parse(SAMPLE)) == [("helper", "line 11: os.statvfs")]


def test_nothing_blocks_on_the_loop() -> None:
    extra, needed = [], set()
    for home, module in sources():
        if home.startswith(("cli/", "standalone/")):
            continue  # a person's commands have no pods that wait for them
        names = ALLOWED.get(home, ("", ""))[0].split()
        for function, call in blocking_on_the_loop(module):
            if function.rpartition(".")[2] in names:
                needed.add((home, function.rpartition(".")[2]))
            else:
                extra.append(f"{home}, {function}, {call}")
    assert not extra, f"send these through kit/host_calls.py: {extra}"
    unused = {(home, name) for home, (names, _) in ALLOWED.items() for name in names.split()} - needed
    assert not unused, f"these need no exception any more: {unused}"


@pytest.mark.parametrize("way", sorted(THREADS))
def test_threads_are_made_in_one_place(way: str) -> None:
    for home, module in sources():
        if home == ONE_PLACE or home in OTHER_THREADS:
            continue
        for node in ast.walk(module):
            named = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
            assert named != way, f"{home}:{getattr(node, 'lineno', 0)}: {way}; use kit/host_calls.py"


def test_who_writes_durably_is_known() -> None:
    writers = {
        home
        for home, module in sources()
        for node in ast.walk(module)
        if isinstance(node, ast.Name | ast.Attribute) and (dotted(node) in SYNCS or dotted(node).endswith(".save_now"))
    }
    assert writers == set(DURABLE), "each syncs the disk: it must run through kit/host_calls.py, or say why not"
