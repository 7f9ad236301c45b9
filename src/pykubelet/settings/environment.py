"""The few environment variables the agent looks at.

Covers systemd's notification and watchdog and the proxy of the API client. Everything else comes from flags
and files. Does not cover acting on them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

MICROSECOND = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentSettings:
    """What the process was started with."""

    notify_socket: str = ""
    """NOTIFY_SOCKET: where systemd wants to hear that the agent is ready."""
    watchdog_timeout: float | None = None
    """WATCHDOG_USEC in seconds: systemd ends a process that is silent for longer."""
    disable_http2: bool = False
    """DISABLE_HTTP2 is not empty."""
    https_proxy: str = ""
    no_proxy: str = ""


def read_environment(environ: Mapping[str, str], *, process_id: int) -> tuple[EnvironmentSettings, list[str]]:
    """The settings and every problem."""
    problems = []
    timeout: float | None = None
    text = environ.get("WATCHDOG_USEC", "")
    # WATCHDOG_PID set for another process means that the watchdog is not ours.
    meant = environ.get("WATCHDOG_PID", "") in ("", str(process_id))
    if text and meant:
        if text.isascii() and text.isdigit() and len(text) <= 18:
            timeout = int(text) * MICROSECOND
            if timeout <= 1:
                problems.append(f"WATCHDOG_USEC: {text} must be more than one second")
        else:
            problems.append(f"WATCHDOG_USEC: {text[:40]!r} is not a number of microseconds")
    settings = EnvironmentSettings(
        notify_socket=environ.get("NOTIFY_SOCKET", ""),
        watchdog_timeout=timeout,
        disable_http2=bool(environ.get("DISABLE_HTTP2")),
        https_proxy=environ.get("HTTPS_PROXY") or environ.get("https_proxy", ""),
        no_proxy=environ.get("NO_PROXY") or environ.get("no_proxy", ""),
    )
    return settings, problems
