"""The admin API: JSON over HTTP."""

from __future__ import annotations

from typing import Any, Unpack

from starlette.requests import Request
from starlette.responses import Response

from ..core.errors import ConfigurationError, closest
from ..limiter import Limiter
from ..web.paths import route_path
from . import parameters
from .auth import Access
from .guard import AdminGuard, Sender
from .messages import AdminError, InvalidParameters, json_response, unless_known
from .service import OPERATIONS, AdminService, Operation


class AdminRoutes(AdminGuard):
    """The admin API: an ASGI application for operators to inspect stats, clients and rules, and to ban and unban.

    Mount it in FastAPI or Starlette: ``app.mount("/admin", AdminRoutes(limiter, token=...))``. Requests carry
    ``Authorization: Bearer TOKEN``, or the token as the password of HTTP Basic.

    Args:
        limiter: The limiter to manage.
        access: `token` grants reading and changes, `read_token` only reading; each is a token of 16 to 512 characters
            or several. Instead of tokens, `auth` is a function of the request, sync or async, that returns ``"read"``,
            ``"full"``, ``User("full", "ann")``, or None to reject it. `hosts` are the accepted Host names, with a port
            or for any port, such as ``["ops.example.org"]``; any by default. `client` finds the address of a user; by
            default that of the limiter's middleware, whose lists apply here too.

    Raises:
        ConfigurationError: Neither tokens nor `auth` are given, or both, or a value is invalid.
    """

    prefix = ""
    """The path prefix of the operations."""

    def __init__(self, limiter: Limiter, **access: Unpack[Access]) -> None:
        super().__init__(limiter, access)
        self.service = AdminService(limiter)

    async def handle(self, request: Request, by: Sender, body: Any) -> Response:
        """See `AdminGuard.handle`."""
        operation = self._operation(request)
        if operation.method != "GET" and by.user.role != "full":
            raise AdminError(403, "role", "This user may read, but not change anything.")
        values = parameters.query(request.query_params.multi_items())
        if operation.method in ("POST", "PUT"):
            if values:
                raise InvalidParameters(("query", "expected the parameters in the body, not in the query"))
            values = body
        elif body is not None:
            raise InvalidParameters(("body", "expected the parameters in the query, not in a body"))
        try:
            answer = await operation.do(self.service, parameters.read(operation.takes, values), by)
        except ConfigurationError as error:
            raise AdminError(422, "invalid", str(error)) from None
        response = json_response(answer.model_dump_json(), operation.status)
        return unless_known(request, response) if operation.method == "GET" else response

    def _operation(self, request: Request) -> Operation:
        """Return the operation for the path and method of a request.

        Raises:
            AdminError: The path or the method is unknown.
        """
        path = route_path(request.scope)
        below = path.removeprefix(self.prefix) if path.startswith(f"{self.prefix}/") else path
        operations = {operation.method: operation for operation in OPERATIONS if operation.path == below}
        if not operations:
            hint = closest(below, {operation.path for operation in OPERATIONS})
            raise AdminError(404, "unknown", f"This path does not exist{hint}.")
        method: Any = "GET" if request.method == "HEAD" else request.method
        if method not in operations:
            allow = ", ".join(sorted({*operations, *(["HEAD"] if "GET" in operations else [])}))
            raise AdminError(405, "method", f"{below[1:]} allows {allow}, not {request.method}.", {"allow": allow})
        return operations[method]
