"""`pykubelet logs POD`: what a container wrote, to its end or for as long as it runs."""

from __future__ import annotations

import sys
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TypedDict, Unpack

import click

from pykubelet.api.times import format_time, parse_duration
from pykubelet.api.types import Pod
from pykubelet.cli.client import NodeClient, path_of
from pykubelet.cli.options import bare_pod, container_option, namespace_option, on_node, pod_argument
from pykubelet.cli.pods import container_of, find_on
from pykubelet.model import pod as pods
from pykubelet.model.pod import name_of


class LogOptions(TypedDict):
    follow: bool
    previous: bool
    tail: int
    since: str | None
    since_time: str | None
    timestamps: bool
    limit_bytes: int | None


@click.command("logs", short_help="print what a container wrote")
@pod_argument
@container_option
@click.option("-f", "--follow", is_flag=True, help="Go on as long as the container runs.")
@click.option("-p", "--previous", is_flag=True, help="Of the run before this one.")
@click.option("--tail", type=int, default=-1, metavar="N", help="Only the last N lines.")
@click.option("--since", metavar="TIME", help="Only what is younger, such as 5s, 2m or 3h.")
@click.option("--since-time", metavar="TIME", help="Only what was written after this RFC 3339 time.")
@click.option("--timestamps", is_flag=True, help="With the time of each line.")
@click.option("--limit-bytes", type=int, metavar="N", help="Stop after so many bytes.")
@click.option("--all-containers", is_flag=True, help="One container after the other.")
@namespace_option
@on_node
def command(
    node: NodeClient,
    pod: str,
    container: str | None,
    all_containers: bool,
    namespace: str,
    **options: Unpack[LogOptions],
) -> None:
    """Print the log of a container."""
    query = _query(options)
    found = find_on(node, namespace, bare_pod(pod))
    names = _names(found) if all_containers else [container_of(found, container)]
    with suppress(KeyboardInterrupt):
        for name in names:
            with node.stream(path_of("containerLogs", namespace, name_of(found), name), query) as blocks:
                for block in blocks:
                    sys.stdout.buffer.write(block)
                    sys.stdout.buffer.flush()


def _names(pod: Pod) -> list[str]:
    return [each.name for _, each in pods.all_containers(pod)]


def _query(options: LogOptions) -> list[tuple[str, str]]:
    since, since_time, limit_bytes = options["since"], options["since_time"], options["limit_bytes"]
    if since and since_time:
        raise click.UsageError("--since and --since-time exclude each other")
    switches = {"follow": options["follow"], "previous": options["previous"], "timestamps": options["timestamps"]}
    query = [(name, "true") for name, on in switches.items() if on]
    if options["tail"] >= 0:
        query.append(("tailLines", str(options["tail"])))
    if limit_bytes is not None:
        query.append(("limitBytes", str(limit_bytes)))
    if since:
        try:
            moment = datetime.now(UTC) - timedelta(seconds=parse_duration(since))
        except ValueError as error:
            raise click.BadParameter(f"{since}: {error}", param_hint="--since") from error
        since_time = format_time(moment)
    if since_time:
        query.append(("sinceTime", since_time))
    return query
