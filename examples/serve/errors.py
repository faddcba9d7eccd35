"""What a client is told when a request cannot be served, in the shape of OpenAI's API."""

from __future__ import annotations

from typing import Any

__all__ = ["ApiError", "bad_request", "overloaded", "stopped", "unavailable"]


class ApiError(Exception):
    """A refusal or failure with an HTTP status; its text goes to the client, so it names no path and no internals."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        code: str | None = None,
        param: str | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.code = code
        self.param = param
        self.retry_after_s = retry_after_s

    def body(self) -> dict[str, Any]:
        """The JSON object that the client gets."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}

    def headers(self) -> dict[str, str]:
        """Headers beside the body's."""
        return {} if self.retry_after_s is None else {"retry-after": str(self.retry_after_s)}


def bad_request(message: str, *, param: str | None = None, code: str | None = None) -> ApiError:
    """The request itself is wrong: 400."""
    return ApiError(400, message, param=param, code=code)


def overloaded(message: str, retry_after_s: int) -> ApiError:
    """More requests than the waiting room holds: 429."""
    return ApiError(429, message, kind="rate_limit_error", code="rate_limit_exceeded", retry_after_s=retry_after_s)


def unavailable(message: str, *, code: str = "unavailable", retry_after_s: int = 5) -> ApiError:
    """The server cannot do it now, the client may try again: 503."""
    return ApiError(503, message, kind="server_error", code=code, retry_after_s=retry_after_s)


def stopped() -> ApiError:
    """The server ends before the request did: 503."""
    return unavailable("the server has stopped", code="stopped")
