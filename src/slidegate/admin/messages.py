"""Responses of operators' tools: JSON, security headers, errors; and how request bodies are read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import blake2b
from http import HTTPStatus
from typing import Annotated, Any, Final, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict
from pydantic_core import from_json
from starlette.requests import Request
from starlette.responses import Response

from ..core.errors import SlidegateError

SECURITY_HEADERS: Final = {
    "cache-control": "no-store",
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
        "frame-ancestors 'none'; base-uri 'none'; form-action 'self'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
"""The header fields of every response. HSTS is not among them: the owner of the host name decides on it."""

MAX_BODY: Final = 65_536


def _encodable(value: object) -> object:
    return value.encode(errors="replace").decode() if isinstance(value, str) else value


AnyText: TypeAlias = Annotated[str, BeforeValidator(_encodable)]
"""Text that a client may have chosen, without lone surrogates, which JSON cannot encode."""


class View(BaseModel):
    """A response, or a part of one; it rejects unknown fields."""

    model_config = ConfigDict(extra="forbid", from_attributes=True)


class AdminError(SlidegateError):
    """A request that is answered with an error.

    Args:
        status: The status of the response.
        code: The reason as one word, for programs.
        detail: The reason as a sentence.
        headers: Further header fields.
        members: Further members of the problem document.
    """

    def __init__(
        self, status: int, code: str, detail: str, headers: Mapping[str, str] | None = None, **members: Any
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.detail = detail
        self.headers = headers
        self.members = members

    def response(self) -> Response:
        """Return the response, a problem document (RFC 9457)."""
        problem = {
            "type": "about:blank",
            "title": HTTPStatus(self.status).phrase,
            "status": self.status,
            "code": self.code,
            "detail": self.detail,
            **self.members,
        }
        return Response(json.dumps(problem), self.status, self.headers, "application/problem+json")


class InvalidParameters(AdminError):
    """Invalid values in a request: (name, message) for each of them."""

    def __init__(self, *errors: tuple[str, str]) -> None:
        detail = "; ".join(f"{name}: {message}" for name, message in errors)
        super().__init__(422, "invalid", detail, errors=[{"field": name, "message": text} for name, text in errors])


def json_response(text: str, status: int = 200) -> Response:
    """Return a JSON response."""
    return Response(text, status, media_type="application/json")


def unless_known(request: Request, response: Response) -> Response:
    """Return the response with its ETag, or 304 if it matches If-None-Match."""
    etag = f'"{blake2b(response.body, digest_size=12).hexdigest()}"'
    if request.headers.get("if-none-match") == etag:
        response = Response(status_code=304)
    response.headers["etag"] = etag
    return response


async def read_json(request: Request) -> Any:
    """Return the decoded body of a request; None if it is empty.

    Raises:
        AdminError: It is too large or not JSON.
        ClientDisconnect: The client disconnected.
    """
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MAX_BODY:
            raise AdminError(413, "size", f"expected a body of at most {MAX_BODY} bytes")
    if not body:
        return None
    # A page of another origin can send a form without a preflight request, but not JSON.
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise AdminError(415, "type", "expected a body of the type application/json")
    try:
        return from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise AdminError(400, "json", f"expected a body of JSON in UTF-8: {error}") from None
