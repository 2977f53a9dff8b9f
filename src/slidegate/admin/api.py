"""Serves the operations of the admin API.

It stands behind a `Door`, which has seen to the visitor, the role and the body; here a request is led to its operation,
its values are read, and what comes of it is written as JSON.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, Final

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from ..core.errors import ConfigurationError
from ..limiter import Limiter
from ..web.matching import route_path
from .api_document import document
from .console import Console, Missing
from .operations import OPERATIONS, Operation
from .parameters import Unusable, fields_of, read_values
from .secure_fields import send_json
from .visitors import visitor_of

DOCUMENT: Final = "/openapi.json"
_BY_PATH: Final[dict[str, dict[str, Operation]]] = {}
for _operation in OPERATIONS:
    _BY_PATH.setdefault(_operation.path, {})[_operation.method] = _operation
READING_POSTS: Final = frozenset(operation.path for operation in OPERATIONS if operation.reads)
"""The paths at which a POST changes nothing: for the `reading` of a door, so that whoever may look may ask."""


class AdminApi:
    """The admin API of one limiter, without a guard of its own: an ASGI application for the inside of a `Door`.

    Args:
        limiter: The limiter.
        prefix: What the paths of requests begin with, below the mount.

    Raises:
        ConfigurationError: It is no limiter.
    """

    def __init__(self, limiter: Limiter, prefix: str = "") -> None:
        self._console = Console.of(limiter)
        self._prefix = prefix

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        path = route_path(scope).removeprefix(self._prefix)
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        if path == DOCUMENT and method == "GET":
            root = scope.get("root_path", "") + self._prefix
            await send_json(scope, send, 200, document(root))
            return
        operations = _BY_PATH.get(path)
        if operations is None:
            await _problem(scope, send, 404, "There is no such path here; GET openapi.json names them.")
            return
        operation = operations.get(method)
        if operation is None:
            allow = (b"allow", ", ".join(sorted(operations)).encode())
            await _problem(scope, send, 405, "This path has other methods.", fields=[allow])
            return
        await self._answer(operation, scope, receive, send)

    async def _answer(self, operation: Operation, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            asked = QueryParams(scope.get("query_string", b"")).multi_items()
            if operation.body:
                if asked:
                    raise Unusable([("query", "expected the values in the body, and no query")])
                values = read_values(operation.body, fields_of(await Request(scope, receive).json()))
            else:
                values = read_values(operation.query, asked)
            found = await operation.do(self._console, values, visitor_of(scope).name or "admin")
        except Unusable as error:
            errors = [{"field": name, "message": message} for name, message in error.errors]
            await _problem(scope, send, 422, str(error), errors=errors)
        except ConfigurationError as error:
            await _problem(scope, send, 422, str(error))
        except Missing as error:
            await _problem(scope, send, 404, str(error))
        else:
            await send_json(scope, send, operation.status, found)


async def _problem(
    scope: Scope, send: Send, status: int, detail: str, *, fields: list[tuple[bytes, bytes]] | None = None, **more: Any
) -> None:
    problem = {"type": "about:blank", "title": HTTPStatus(status).phrase, "status": status, "detail": detail}
    await send_json(scope, send, status, {**problem, **more}, *(fields or ()))
