"""The admin API: JSON over HTTP, with an OpenAPI document that is made of the operations and models that are served."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, Final, Unpack, get_type_hints

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ..core.errors import ConfigurationError, closest
from ..limiter import Limiter
from ..web.paths import route_path
from . import parameters
from .auth import Access, Identity
from .guard import AdminGuard
from .messages import AdminError, Problem, json_response, unless_known
from .parameters import InvalidParameters
from .service import OPERATIONS, AdminService, Operation, release

DOCUMENT: Final = "/openapi.json"
_BY_PATH: Final[dict[str, dict[str, Operation]]] = {}
for _operation in OPERATIONS:
    _BY_PATH.setdefault(_operation.path, {})[_operation.method] = _operation
_MODELS: Final = {operation.do: get_type_hints(operation.do) for operation in OPERATIONS}
"""The parameters and the answer of each operation: "params" and "return"."""
_PROBLEMS: Final = {
    400: "The body is no JSON.",
    401: "The user is unknown.",
    403: "The user may not do this, or is banned, or a change does not come from a page of this place.",
    404: "There is nothing to act on.",
    408: "The body did not come in time.",
    409: "The address of the request would be banned.",
    413: "The body is too large.",
    415: "The body has another type than JSON.",
    421: "The tool is not asked under this name.",
    422: "A value cannot be used; the detail names it, and what was expected.",
    429: "Too many wrong tokens.",
    503: "The store does not answer.",
}
_OF_ALL: Final = (401, 403, 421, 422, 429, 503)
_OF_CHANGES: Final = (400, 408, 413, 415)


class AdminRoutes(AdminGuard):
    """The admin API: an ASGI application with which operators see stats, clients and rules, and ban, unban and reset.

    Mount it in FastAPI or Starlette: ``app.mount("/admin", AdminRoutes(limiter, token=...))``. Its description is at
    ``openapi.json`` below that. Requests carry ``Authorization: Bearer TOKEN``.

    Args:
        limiter: The limiter whose middlewares and clients it shows.
        access: Who may use it: `token` may look and change, and `read_token` only look, each 16 to 512 characters, or
            several of them; or, instead of tokens, `auth`, a function of the request, sync or async, that returns None
            for a stranger, ``"read"``, ``"full"``, or ``User("full", "ann")``. `hosts` are the names under which it may
            be asked, with a port or for any port, such as ``["ops.example.org"]``: by default any, and then the Origin
            of a browser must equal the Host. `client` finds the address of a user, behind proxies too.

    Raises:
        ConfigurationError: There are neither tokens nor `auth`, or both, or a value cannot work.
    """

    def __init__(self, limiter: Limiter, **access: Unpack[Access]) -> None:
        super().__init__(limiter, access)
        self.service = AdminService(limiter)

    async def handle(self, request: Request, by: Identity, body: Any) -> Response:
        """See `AdminGuard.handle`."""
        path = route_path(request.scope).removeprefix(self.prefix)
        method = "GET" if request.method == "HEAD" else request.method
        if path == DOCUMENT and method == "GET":
            return JSONResponse(document(request.scope.get("root_path", "") + self.prefix))
        operations = _BY_PATH.get(path)
        if operations is None:
            hint = closest(path, [*_BY_PATH, DOCUMENT])
            raise AdminError(
                404, "unknown", f"There is no such path here{hint or '.'} GET openapi.json names all of them."
            )
        operation = operations.get(method)
        if operation is None:
            allow = ", ".join(sorted({*operations, *(["HEAD"] if "GET" in operations else [])}))
            raise AdminError(405, "method", f"{path[1:]} is asked with {allow}.", {"allow": allow})
        if not operation.reads and by.user.role != "full":
            raise AdminError(403, "role", "This user may look, and not change.")
        try:
            return await self._answer(operation, request, by, body)
        except ConfigurationError as error:
            raise AdminError(422, "invalid", str(error)) from None

    async def _answer(self, operation: Operation, request: Request, by: Identity, body: Any) -> Response:
        values = parameters.query(request.query_params.multi_items())
        if _has_body(operation):
            if values:
                raise InvalidParameters(("query", "expected the values in the body, and no query"))
            values = body
        elif body is not None:
            raise InvalidParameters(("body", "expected the values in the query, and no body"))
        answer = await operation.do(self.service, parameters.read(_MODELS[operation.do]["params"], values), by)
        response = json_response(answer.model_dump_json(), operation.status)
        return unless_known(request, response) if operation.method == "GET" else response


def _has_body(operation: Operation) -> bool:
    return operation.method in ("POST", "PATCH")


# -- the document ------------------------------------------------------------------------------------------------------


def document(root: str = "") -> dict[str, Any]:
    """Return the OpenAPI document.

    Args:
        root: The path at which the API is mounted.
    """
    answers: list[type[BaseModel]] = [Problem, *(hints["return"] for hints in _MODELS.values())]
    _, components = models_json_schema(
        [(model, "serialization") for model in dict.fromkeys(answers)],
        ref_template="#/components/schemas/{model}",
        schema_generator=parameters.AnswerSchema,
    )
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _described(operation)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "slidegate admin API",
            "version": release(),
            "description": "Times are Unix seconds (`_at`), durations seconds (`_s`), latencies milliseconds (`_ms`).",
        },
        "servers": [{"url": root or "/"}],
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": components["$defs"],
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _described(operation: Operation) -> dict[str, Any]:
    hints = _MODELS[operation.do]
    first, *rest = operation.do.__name__.split("_")
    statuses = {*_OF_ALL, *operation.errors, *(() if operation.method == "GET" else _OF_CHANGES)}
    problem = _content("application/problem+json", Problem)
    described: dict[str, Any] = {
        "operationId": "".join([first, *map(str.capitalize, rest)]),
        "summary": (operation.do.__doc__ or "").strip(),
        "responses": {
            str(operation.status): {
                "description": HTTPStatus(operation.status).phrase,
                "content": _content("application/json", hints["return"]),
            },
            **{str(status): {"description": _PROBLEMS[status], "content": problem} for status in sorted(statuses)},
        },
    }
    schema = hints["params"].model_json_schema(schema_generator=parameters.ParameterSchema)
    if _has_body(operation):
        schema.pop("description", None)
        described["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    elif schema["properties"]:
        described["parameters"] = [
            {
                "name": name,
                "in": "query",
                "description": one.pop("description", ""),
                "required": name in schema.get("required", ()),
                "schema": one,
            }
            for name, one in schema["properties"].items()
        ]
    return described


def _content(media_type: str, model: type[BaseModel]) -> dict[str, Any]:
    return {media_type: {"schema": {"$ref": f"#/components/schemas/{model.__name__}"}}}
