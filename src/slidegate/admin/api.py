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
    """The admin API: an ASGI application with which operators see stats, clients and rules, and ban and unban.

    Mount it in FastAPI or Starlette: ``app.mount("/admin", AdminRoutes(limiter, token=...))``. Requests carry
    ``Authorization: Bearer TOKEN``, or the token as the password of HTTP Basic.

    Args:
        limiter: The limiter whose middlewares and clients it shows.
        access: Who may use it: `token` may look and change, and `read_token` only look, each 16 to 512 characters, or
            several of them; or, instead of tokens, `auth`, a function of the request, sync or async, that returns None
            for a stranger, ``"read"``, ``"full"``, or ``User("full", "ann")``. `hosts` are the names under which it may
            be asked, with a port or for any port, such as ``["ops.example.org"]``; by default any. `client` finds the
            address of a user; by default the way of the middleware on the limiter, whose lists hold here too.

    Raises:
        ConfigurationError: There are neither tokens nor `auth`, or both, or a value cannot work.
    """

    prefix = ""
    """The path below which the operations lie."""

    def __init__(self, limiter: Limiter, **access: Unpack[Access]) -> None:
        super().__init__(limiter, access)
        self.service = AdminService(limiter)

    async def handle(self, request: Request, by: Sender, body: Any) -> Response:
        """See `AdminGuard.handle`."""
        operation = self._operation(request)
        if operation.method != "GET" and by.user.role != "full":
            raise AdminError(403, "role", "This user may look, and not change.")
        values = parameters.query(request.query_params.multi_items())
        if operation.method in ("POST", "PUT"):
            if values:
                raise InvalidParameters(("query", "expected the values in the body, and no query"))
            values = body
        elif body is not None:
            raise InvalidParameters(("body", "expected the values in the query, and no body"))
        try:
            answer = await operation.do(self.service, parameters.read(operation.takes, values), by)
        except ConfigurationError as error:
            raise AdminError(422, "invalid", str(error)) from None
        response = json_response(answer.model_dump_json(), operation.status)
        return unless_known(request, response) if operation.method == "GET" else response

    def _operation(self, request: Request) -> Operation:
        """Return the operation that a request asks for.

        Raises:
            AdminError: There is none.
        """
        path = route_path(request.scope)
        below = path.removeprefix(self.prefix) if path.startswith(f"{self.prefix}/") else path
        operations = {operation.method: operation for operation in OPERATIONS if operation.path == below}
        if not operations:
            hint = closest(below, {operation.path for operation in OPERATIONS})
            raise AdminError(404, "unknown", f"There is no such path here{hint}.")
        method: Any = "GET" if request.method == "HEAD" else request.method
        if method not in operations:
            allow = ", ".join(sorted({*operations, *(["HEAD"] if "GET" in operations else [])}))
            raise AdminError(405, "method", f"{below[1:]} is asked with {allow}.", {"allow": allow})
        return operations[method]
