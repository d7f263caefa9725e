"""The error responses, in the format of the real service."""

from typing import Any

import orjson

#: HTTP status → the default `type` and `code` of the error object.
_KINDS: dict[int, tuple[str, str | None]] = {
    401: ("invalid_request_error", "invalid_api_key"),
    403: ("invalid_request_error", "unsupported_country_region_territory"),
    404: ("invalid_request_error", "model_not_found"),
    429: ("requests", "rate_limit_exceeded"),
}

_MESSAGES: dict[int, str] = {
    401: "Incorrect API key provided.",
    429: "Rate limit reached for requests.",
    500: "The server had an error while processing your request. Sorry about that!",
    503: "The engine is currently overloaded, please try again later.",
}


class ServiceError(Exception):
    """An error response: an HTTP status, and `{"error": {message, type, param, code}}`."""

    def __init__(
        self,
        status: int,
        message: str | None = None,
        *,
        type: str | None = None,
        param: str | None = None,
        code: str | None = None,
    ) -> None:
        self.status = status
        self.message = message if message is not None else _MESSAGES.get(status, "The request failed.")
        usual_type, usual_code = _KINDS.get(
            status, ("server_error" if status >= 500 else "invalid_request_error", None)
        )
        self.type = usual_type if type is None else type
        self.code = usual_code if type is None and code is None else code
        self.param = param
        super().__init__(self.message)

    def body(self) -> dict[str, Any]:
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}

    def encoded(self) -> bytes:
        return orjson.dumps(self.body())


def invalid(message: str, param: str | None = None, code: str | None = None) -> ServiceError:
    """400: the request itself is wrong."""
    return ServiceError(400, message, type="invalid_request_error", param=param, code=code)


def not_found(message: str, param: str | None = None, code: str | None = None) -> ServiceError:
    """404: a stored response, a conversation or an item does not exist."""
    return ServiceError(404, message, type="invalid_request_error", param=param, code=code)
