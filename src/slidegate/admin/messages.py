"""What all requests to an operators' tool have in common, and all answers: JSON, its bounds, header fields, errors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import blake2b
from http import HTTPStatus
from typing import Annotated, Any, Final, TypeAlias

import anyio
from pydantic import BaseModel, BeforeValidator, ConfigDict
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
"""The fields of every answer. Whether a name is to be asked by https alone is the business of its owner."""

MAX_BODY: Final = 65_536
BODY_TIMEOUT_S: Final = 15.0
"""How long the bytes of a body may take to come."""


def _sayable(value: object) -> object:
    return value.encode(errors="replace").decode() if isinstance(value, str) else value


AnyText: TypeAlias = Annotated[str, BeforeValidator(_sayable)]
"""A text that a client may have chosen, without the halves of characters that JSON cannot hold."""


class View(BaseModel):
    """An answer, or a part of one: these fields and no others."""

    model_config = ConfigDict(extra="forbid", from_attributes=True, json_schema_serialization_defaults_required=True)


class FieldError(View):
    """What is wrong with one value."""

    field: str
    message: str


class Problem(View):
    """An error (RFC 9457)."""

    model_config = ConfigDict(json_schema_serialization_defaults_required=False)
    type: str
    title: str
    status: int
    code: str
    detail: str
    errors: list[FieldError] = []
    request_id: str = ""


class AdminError(SlidegateError):
    """A request that is not answered as it was meant.

    Args:
        status: The status of the answer.
        code: The reason in one word, for programs.
        detail: The reason in a sentence.
        headers: More header fields.
        members: More members of the problem.
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
        """Return the answer, a problem (RFC 9457)."""
        title = HTTPStatus(self.status).phrase
        problem = Problem(
            type="about:blank", title=title, status=self.status, code=self.code, detail=self.detail, **self.members
        )
        response = json_response(problem.model_dump_json(exclude_unset=True), self.status)
        response.headers.update(self.headers or {})
        return response


def json_response(text: str, status: int = 200) -> Response:
    """Return an answer of JSON; one with a status of 400 or more is a problem."""
    media_type = "application/problem+json" if status >= 400 else "application/json"
    # "<" cannot end a script element then, wherever the text is pasted.
    return Response(text.replace("<", "\\u003c"), status, media_type=media_type)


def unless_known(request: Request, response: Response) -> Response:
    """Return an answer with its ETag; 304 without a body where the client has it already."""
    etag = f'"{blake2b(response.body, digest_size=12).hexdigest()}"'
    if request.headers.get("if-none-match") == etag:
        response = Response(status_code=304)
    response.headers["etag"] = etag
    return response


def finished(request: Request, response: Response) -> Response:
    """Return an answer as it is sent: with the fields of every answer, and without a body where a HEAD asks for it."""
    response.headers.update(SECURITY_HEADERS)
    if request.method == "HEAD":
        response.body = b""
    return response


async def read_json(request: Request, max_bytes: int = MAX_BODY) -> Any:
    """Return the body of a request, None for an empty one.

    Raises:
        AdminError: It is too large, no JSON, or does not come.
        ClientDisconnect: The client left.
    """
    if "content-encoding" in request.headers:
        raise AdminError(415, "encoding", "The body must not be encoded.")
    lengths = request.headers.getlist("content-length")
    if any(not (length.isascii() and length.isdigit()) or int(length[:9]) > max_bytes for length in lengths):
        raise _too_large(max_bytes)
    try:
        with anyio.fail_after(BODY_TIMEOUT_S):
            body = await _whole(request, max_bytes)
    except TimeoutError:
        raise AdminError(408, "slow", f"The body did not come within {BODY_TIMEOUT_S:g} seconds.") from None
    if not body:
        return None
    types = request.headers.getlist("content-type")
    if len(types) != 1 or types[0].partition(";")[0].strip().lower() != "application/json":
        # A form, which a page elsewhere can send without asking, has another type.
        raise AdminError(415, "type", "A change must be sent as application/json.")
    try:
        said = json.loads(body.decode(), parse_constant=_no_number)
        json.dumps(said, ensure_ascii=False).encode()  # half a character, written as an escape, could not be answered
        return said
    except (ValueError, RecursionError):
        raise AdminError(400, "json", "The body must be JSON in UTF-8.") from None


async def _whole(request: Request, max_bytes: int) -> bytes:
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > max_bytes:
            raise _too_large(max_bytes)
    return body


def _too_large(max_bytes: int) -> AdminError:
    return AdminError(413, "size", f"The body must have no more than {max_bytes} bytes.")


def _no_number(text: str) -> Any:
    raise ValueError(text)
