"""What a refusal of the API server means: HTTP status and Status object to our own errors.

The reason word decides where one code has two meanings (409). Bodies that are no Status, as proxies send them, keep
the beginning of their text as the message.
"""

from __future__ import annotations

from collections.abc import Mapping

from pykubelet.api.codec import ManifestError, decode_json
from pykubelet.api.types import Status
from pykubelet.model.errors import (
    ApiAlreadyExists,
    ApiConflict,
    ApiError,
    ApiNotFound,
    ApiServerError,
    Expired,
    Forbidden,
    Invalid,
    TooManyRequests,
    Unauthorized,
)

_BY_CODE: Mapping[int, type[ApiError]] = {
    400: Invalid,
    401: Unauthorized,
    403: Forbidden,
    404: ApiNotFound,
    409: ApiConflict,
    410: Expired,
    422: Invalid,
    429: TooManyRequests,
}


def error_of(code: int, body: bytes, retry_after_header: str = "") -> ApiError:
    """The error of an answer with status 300 and up."""
    try:
        status = decode_json(Status, body)
    except ManifestError:
        status = Status(message=body[:300].decode(errors="replace").strip())
    return error_of_status(status, code=code, retry_after_header=retry_after_header)


def error_of_status(status: Status, *, code: int = 0, retry_after_header: str = "") -> ApiError:
    """The error of a Status object, as answers and ERROR events of watches carry it."""
    code = code or status.code or 500
    reason = status.reason or ""
    kind = _BY_CODE.get(code, ApiServerError if code >= 500 else ApiError)
    if reason == "AlreadyExists":
        kind = ApiAlreadyExists
    elif reason in ("Expired", "Gone"):
        kind = Expired
    elif kind is Invalid and _is_about_uid(status):
        kind = ApiConflict  # a patch meant for another object of this name; validation sees it before preconditions
    return kind(
        status.message or f"the server answered {code}",
        code=code,
        reason=reason,
        retry_after=_retry_after(status, retry_after_header),
    )


def _is_about_uid(status: Status) -> bool:
    return status.details is not None and any(cause.field == "metadata.uid" for cause in status.details.causes)


def _retry_after(status: Status, header: str) -> float | None:
    if header.isascii() and header.isdigit() and len(header) < 10:
        return float(header)
    seconds = status.details.retry_after_seconds if status.details is not None else None
    return float(seconds) if seconds else None
