"""`pykubelet image ls|pull|rm|load`: the images on this node, through the agent; `load` hands a tar to containerd."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import Any

import click
import msgspec

from pykubelet.cli import table
from pykubelet.cli.client import NodeClient
from pykubelet.cli.errors import CommandFailed
from pykubelet.cli.options import on_node

CTR_NAMESPACE = "k8s.io"


@click.group("image", short_help="list, pull, remove or load images")
def command() -> None:
    """The images on this node."""


@command.command("ls")
@click.option("-o", "--output", type=click.Choice(["json"]), help="Form of the answer.")
@click.option("-q", "--quiet", is_flag=True, help="Names only.")
@on_node
def ls(node: NodeClient, output: str | None, quiet: bool) -> None:
    """List the images."""
    items = _images(node)
    if output == "json":
        click.echo(msgspec.json.format(msgspec.json.encode(items), indent=2).decode())
        return
    rows = [row for item in items for row in _rows(item)]
    if quiet:
        for row in rows:
            click.echo(f"{row[0]}:{row[1]}" if row[0] != "<none>" else row[2])
        return
    table.show(["IMAGE", "TAG", "IMAGE ID", "SIZE"], sorted(rows))


@command.command("pull")
@click.argument("image")
@click.option("--creds", metavar="USER:PASSWORD", help="Login for the registry.")
@on_node
def pull(node: NodeClient, image: str, creds: str | None) -> None:
    """Fetch an image."""
    body = b""
    if creds:
        user, colon, password = creds.partition(":")
        if not colon:
            raise click.BadParameter("must be USER:PASSWORD", param_hint="--creds")
        body = msgspec.json.encode({"username": user, "password": password})
    begun = time.monotonic()
    click.echo(f"pulling {image} …", err=True)
    answer = _asked(node, "POST", image, body)
    size = shown_size(answer.get("size_bytes", 0))
    click.echo(f"{image} ({size}) in {time.monotonic() - begun:.1f} s")


@command.command("rm")
@click.argument("images", nargs=-1, required=True, metavar="IMAGE…")
@on_node
def rm(node: NodeClient, images: tuple[str, ...]) -> int:
    """Remove images."""
    status = 0
    for image in images:
        try:
            for name in _asked(node, "DELETE", image)["removed"]:
                click.echo(f"removed {name}")
        except CommandFailed as problem:
            click.echo(f"pykubelet: {problem}", err=True)
            status = problem.status
    return status


@command.command("load")
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False, allow_dash=True))
@on_node
def load(node: NodeClient, file: Path) -> None:
    """Load images from a tar, as `docker save` or `podman save` make it; - reads standard input."""
    if not node.is_local:
        raise CommandFailed("images are loaded on the node itself: run this there, without --node")
    endpoint = _endpoint(node)
    before = {name for item in _images(node) for name in item["tags"]}
    ctr = _ctr()
    words = [ctr, "-a", endpoint.removeprefix("unix://"), "-n", CTR_NAMESPACE, "images", "import", str(file)]
    try:
        done = subprocess.run(
            words, stdin=None if str(file) == "-" else subprocess.DEVNULL, capture_output=True, text=True
        )
    except OSError as error:
        raise CommandFailed(f"{ctr}: {error.strerror}") from error
    if done.returncode != 0:
        raise CommandFailed(f"{file}: {(done.stderr or done.stdout).strip().splitlines()[-1]}")
    names = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("unpacking ")]
    for name in names or sorted({n for item in _images(node) for n in item["tags"]} - before):
        click.echo(f"loaded {name}")


def _ctr() -> str:
    from pykubelet.standalone.programs import find, missing

    found = find("ctr")
    if found is None:
        raise CommandFailed(str(missing(["ctr"])))
    if os.geteuid() != 0:
        raise CommandFailed("loading images needs root")
    return str(found)


def _endpoint(node: NodeClient) -> str:
    config = node.good("GET", "/configz").json()["kubeletconfig"]
    return str(config.get("containerRuntimeEndpoint") or "unix:///run/containerd/containerd.sock")


def _images(node: NodeClient) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = _asked(node, "GET", "")["items"]
    return items


def _asked(node: NodeClient, method: str, image: str, body: bytes = b"") -> dict[str, Any]:
    answer = node.ask(method, "/local/images", [("image", image)] if image else (), body=body)
    if answer.status == 404 and "page not found" in answer.text:
        raise CommandFailed("images are managed on the node itself: run this there, without --node")
    if answer.status != 200:
        raise CommandFailed(answer.text)
    found: dict[str, Any] = answer.json()
    return found


def _rows(item: dict[str, Any]) -> list[list[str]]:
    short = item["id"].removeprefix("sha256:")[:13]
    size = shown_size(item["size_bytes"])
    names = item["tags"] or [digest.partition("@")[0] + ":<none>" for digest in item["digests"]] or ["<none>:<none>"]
    return [[*name.rpartition(":")[::2], short, size] for name in names]


def shown_size(size: int) -> str:
    """As docker shows sizes: 1.24MB."""
    amount = float(size)
    for unit in ("B", "kB", "MB"):
        if amount < 1000:
            return f"{amount:.3g}{unit}"
        amount /= 1000
    return f"{amount:.3g}GB"
