"""Probes, lifecycle hooks and the handlers they share."""

import re

from pykubelet.api.types import (
    Container,
    ExecAction,
    GRPCAction,
    HTTPGetAction,
    Lifecycle,
    LifecycleHandler,
    Probe,
    SleepAction,
    TCPSocketAction,
)
from pykubelet.api.validation import names
from pykubelet.api.validation.findings import Findings, show

_SIGNAL_NAME = re.compile(
    "SIG(?:ABRT|ALRM|BUS|CHLD|CLD|CONT|FPE|HUP|ILL|INT|IO|IOT|KILL|PIPE|POLL|PROF|PWR|QUIT|SEGV|STKFLT|STOP|SYS"
    "|TERM|TRAP|TSTP|TTIN|TTOU|URG|USR1|USR2|VTALRM|WINCH|XCPU|XFSZ"
    r"|RTMIN(?:\+(?:[1-9]|1[0-5]))?|RTMAX(?:-(?:[1-9]|1[0-4]))?)"
)

Action = ExecAction | HTTPGetAction | TCPSocketAction | GRPCAction | SleepAction


def validate_probes(container: Container, at: str, found: Findings) -> None:
    """The three probes of a container that keeps running."""
    for name, probe in (
        ("livenessProbe", container.liveness_probe),
        ("readinessProbe", container.readiness_probe),
        ("startupProbe", container.startup_probe),
    ):
        if probe is None:
            continue
        path = f"{at}.{name}"
        _validate_probe(probe, path, found)
        if name == "readinessProbe":
            if probe.termination_grace_period_seconds is not None:
                found.add(f"{path}.terminationGracePeriodSeconds", "must not be set for a readiness probe")
        elif (probe.success_threshold or 0) > 1:
            found.add(f"{path}.successThreshold", f"must be 1, not {probe.success_threshold}")


def _validate_probe(probe: Probe, at: str, found: Findings) -> None:
    _validate_action(
        {"exec": probe.exec, "httpGet": probe.http_get, "tcpSocket": probe.tcp_socket, "grpc": probe.grpc},
        at,
        None,
        found,
    )
    for name, number in (
        ("initialDelaySeconds", probe.initial_delay_seconds),
        ("timeoutSeconds", probe.timeout_seconds),
        ("periodSeconds", probe.period_seconds),
        ("successThreshold", probe.success_threshold),
        ("failureThreshold", probe.failure_threshold),
    ):
        found.at_least(f"{at}.{name}", number, 0)
    found.at_least(f"{at}.terminationGracePeriodSeconds", probe.termination_grace_period_seconds, 1)


def validate_lifecycle(
    lifecycle: Lifecycle | None, at: str, grace: int | None, os: str | None, found: Findings
) -> None:
    if lifecycle is None:
        return
    for name, hook in (("postStart", lifecycle.post_start), ("preStop", lifecycle.pre_stop)):
        if hook is not None:
            _validate_action(_actions(hook), f"{at}.{name}", grace, found)
    if lifecycle.stop_signal is None:
        return
    if os is None:
        found.add(f"{at}.stopSignal", "must not be set without spec.os.name")
    elif os == "linux" and not _SIGNAL_NAME.fullmatch(lifecycle.stop_signal):
        found.add(f"{at}.stopSignal", f"must be a signal such as SIGTERM, not {show(lifecycle.stop_signal)}")


def _actions(hook: LifecycleHandler) -> dict[str, Action | None]:
    return {
        "exec": hook.exec,
        "httpGet": hook.http_get,
        "tcpSocket": hook.tcp_socket,
        "sleep": hook.sleep,
    }


def _validate_action(actions: dict[str, Action | None], at: str, grace: int | None, found: Findings) -> None:
    chosen = {name: action for name, action in actions.items() if action is not None}
    if not chosen:
        found.add(at, f"must have one of {', '.join(actions)}")
    elif len(chosen) > 1:
        found.add(at, f"must have only one handler, not {' and '.join(chosen)}")
    for name, action in chosen.items():
        path = f"{at}.{name}"
        if isinstance(action, ExecAction):
            found.required(f"{path}.command", action.command)
        elif isinstance(action, HTTPGetAction):
            _validate_http_get(action, path, found)
        elif isinstance(action, SleepAction):
            _validate_sleep(action, path, grace, found)
        else:
            found.check(f"{path}.port", names.port_number_or_name(action.port))


def _validate_http_get(action: HTTPGetAction, at: str, found: Findings) -> None:
    found.required(f"{at}.path", action.path)
    found.check(f"{at}.port", names.port_number_or_name(action.port))
    found.choice(f"{at}.scheme", action.scheme, ("HTTP", "HTTPS"))
    for i, header in enumerate(action.http_headers):
        found.check(f"{at}.httpHeaders[{i}].name", names.header_name(header.name or ""))


def _validate_sleep(action: SleepAction, at: str, grace: int | None, found: Findings) -> None:
    seconds = action.seconds or 0
    # A bad grace period is reported where it stands; comparing with it would only repeat that.
    if grace is not None and grace >= 0 and not 0 <= seconds <= grace:
        found.add(f"{at}.seconds", f"must be 0..{grace} (the grace period), not {show(seconds)}")
