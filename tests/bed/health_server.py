"""A gRPC server that answers grpc.health.v1.Health/Check: `python -m tests.bed.health_server PORT`.

Python is too big for the bed's images, so the server runs outside and is put into a pod's network instead, where
the pod's address reaches it as it would any container's. Services: "" serves, "sick" does not, others are unknown.
The messages are written by hand, apart from the product's own, which are thereby tested against another reading.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager

import grpc

from tests.bed.parts import REPO

ANSWERS = {b"": b"\x08\x01", b"\x0a\x04sick": b"\x08\x02"}
"""Request -> response: field 1 is the service's name in the one, and the status in the other."""


@contextmanager
def health_server_in(pid: int, port: int) -> Iterator[None]:
    """The server in the network of a process, for as long as the block lasts."""
    nsenter = shutil.which("nsenter") or "nsenter"
    guard = [shutil.which("setpriv") or "setpriv", "--pdeathsig", "KILL"]
    command = [*guard, nsenter, "-t", str(pid), "-n", sys.executable, "-m", "tests.bed.health_server", str(port)]
    with subprocess.Popen(command, cwd=REPO, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "listening\n", "the health server does not start"
            yield
        finally:
            process.kill()


def _check(request: bytes, context: grpc.ServicerContext) -> bytes:
    if request not in ANSWERS:
        context.abort(grpc.StatusCode.NOT_FOUND, "unknown service")
    return ANSWERS[request]


def _serve(port: int) -> None:
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=4))
    handlers = {"Check": grpc.unary_unary_rpc_method_handler(_check)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("grpc.health.v1.Health", handlers),))
    server.add_insecure_port(f"0.0.0.0:{port}")
    server.start()
    print("listening", flush=True)
    server.wait_for_termination()


if __name__ == "__main__":
    _serve(int(sys.argv[1]))
