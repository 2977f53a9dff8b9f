"""The dashboard as an ASGI application: who may see and change what, and which response a request gets.

The checks, in this order: the token is right, or the application's function names an operator; and a change (every
method but GET and HEAD) comes from a page of the same origin, or carries the token as a bearer. A page of another
origin can make a browser send a request here, with the stored password or a cookie. Browsers report that in
Sec-Fetch-Site; without it, as over plain http, the Origin must match the Host. A bearer token cannot be sent that way.
"""

from __future__ import annotations

import hmac
import json
import re
from base64 import b64decode
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from importlib.resources import files
from inspect import isawaitable
from time import monotonic
from typing import Any, Final
from urllib.parse import parse_qsl

import anyio
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Router
from starlette.types import Receive, Scope, Send

from ... import ConfigurationError, Limiter
from ...core.arguments import MAX_NAME
from ...core.logs import Throttle, escaped, log_failure, logger
from ...core.options import options_checked
from ...core.passwords import SecretText, revealed
from .api import Api, problem_of
from .page import Page
from .service import Service

SECURITY_HEADERS: Final = {
    "cache-control": "no-store",
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
        "frame-ancestors 'none'; base-uri 'none'; form-action 'self'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    # With "no-referrer", browsers would send the forms of this page with "Origin: null".
    "referrer-policy": "same-origin",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
"""The header fields of every response. HSTS is not among them: the owner of the host name decides on it."""
MAX_BODY: Final = 65_536
WRONG_TOKEN_S: Final = 0.25
READ_ONLY: Final = "This dashboard only shows; it was made with changes=False."
_TYPES: Final = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
_JSON: Final = "application/json"
_FORM: Final = "application/x-www-form-urlencoded"
_PUBLIC: Final = ("/static/style.css", "/static/icon.svg")
"""The files of the page that asks for a token."""


class Dashboard:
    """A page of live statistics, clients and bans: ``app.mount("/slidegate", Dashboard(limiter, token=...))``.

    The page shows the statistics of all workers that share the store and sends no request to any other origin. The JSON
    API is at ``api`` below the mount. A middleware around it counts its requests too, unless a rule exempts them:
    ``Rule("/slidegate/{rest:path}", exempt=True)``.

    Args:
        limiter: The limiter to show and change.
        token: The token that its users send, 16 to 512 printable ASCII characters. A browser asks for it as the
            password of any user name, under which changes are recorded.
        user: In place of a token, a function of the request (sync or async) that returns the name of an operator whom
            your own login knows, 1 to 64 characters, under which changes are recorded. Whoever has no such name, and
            everybody while the function fails, gets 403.
        changes: Whether bans and limits can be changed; False makes a dashboard that only shows.

    Raises:
        ConfigurationError: The token is missing, too short or not printable, there are a token and a function, or
            another value is invalid.
    """

    @options_checked
    def __init__(
        self,
        limiter: Limiter,
        *,
        token: str | SecretText = "",
        user: Callable[[Request], Any] | None = None,
        changes: bool = True,
    ) -> None:
        self.limiter = limiter
        self._user = user
        if user is None:
            token = revealed(token)
            if not isinstance(token, str) or not re.fullmatch("[!-~]{16,512}", token):
                raise ConfigurationError(  # without the token: an invalid one may still be a secret
                    "Dashboard: token: expected 16 to 512 printable ASCII characters without spaces, "
                    'for example from python3 -c "import secrets; print(secrets.token_urlsafe(32))". If it comes from '
                    "the environment, the variable may not be set. To use your own login, write user= in place of "
                    "token="
                )
            self._digest = _digest(token)
        elif token != "":
            raise ConfigurationError("Dashboard: expected token= or user=, not both")
        self._changes = changes
        service = Service(limiter)
        self._api = Api(service)
        self._page = Page(service, self._api, changes=changes)
        self._files = static_files()
        self._throttle = Throttle()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await Router()(scope, receive, send)  # which answers lifespans, and closes websockets
            return
        is_head = scope["method"] == "HEAD"
        if is_head:
            scope = {**scope, "method": "GET"}
        request = Request(scope, receive)
        path = path_below(scope)
        try:
            response = await self._respond(request, path)
        except ClientDisconnect:
            return
        except Exception as error:
            problem = problem_of(error)
            if path.startswith("/api/"):
                response = json_response({"error": problem.detail})
                response.status_code = problem.status_code
            else:
                response = self._page.problem(path, problem)
            response.headers.update(problem.headers or {})
        response.headers.update(SECURITY_HEADERS)
        if is_head:
            response.body = b""
        await response(scope, receive, send)

    async def _respond(self, request: Request, path: str) -> Response:
        reads = request.method == "GET"
        if path in _PUBLIC and reads:
            return self._files[path]()
        user = await self._identify(request)
        if not reads and not may_change(request, has_token=self._user is None):
            raise HTTPException(
                403,
                "A change needs the dashboard's token as a bearer, Sec-Fetch-Site: same-origin, or an Origin equal to "
                "the Host.",
            )
        if path.startswith("/api/"):
            return await self._respond_to_api(request, path.removeprefix("/api/"), user)
        if not path:  # relative links need the slash; behind a proxy the browser may have another path
            return RedirectResponse(f"./{_raw_path(request.scope).rpartition('/')[2]}/")
        if request.method == "POST":
            form = dict(parse_qsl((await read_body(request, _FORM)).decode(errors="replace"), keep_blank_values=True))
            if not self._changes and form.get("do") != "find":  # which changes nothing
                raise HTTPException(403, READ_ONLY)
            return await self._page.submit(path[1:], request.query_params, form, user)
        if not reads:
            raise HTTPException(405, "Expected GET or POST.", {"allow": "GET, HEAD, POST"})
        if path in self._files:
            return self._files[path]()
        return await self._page.show(path[1:], request.query_params)

    async def _respond_to_api(self, request: Request, name: str, user: str) -> Response:
        """Return the response of an operation of the API."""
        allowed = self._api.methods_of(name)
        if not allowed:
            raise HTTPException(404, f"There is no api/{escaped(name, 80)}")
        method = request.method
        if method not in allowed:
            raise HTTPException(405, f"Expected {', '.join(allowed)}.", {"allow": ", ".join([*allowed, "HEAD"])})
        if method != "GET" and not self._changes:
            raise HTTPException(403, READ_ONLY)
        fields: Any = dict(request.query_params)
        if method in ("PUT", "POST"):
            try:
                fields = json.loads((await read_body(request, _JSON)).decode())
            except (ValueError, RecursionError):
                fields = None
            if not isinstance(fields, dict):
                raise HTTPException(400, 'Expected a body with an object of JSON, for example {"key": "203.0.113.7"}.')
        return json_response(await self._api.call(method, name, fields, user))

    async def _identify(self, request: Request) -> str:
        """Return the name of the user who sends a request.

        Raises:
            HTTPException: The request carries no valid token, or the application names no operator. The answer to a
                wrong token is delayed, to slow down guessing.
        """
        if self._user is not None:
            return await self._named_by(self._user, request)
        credentials = _joined(request, "authorization")
        name, token = _name_and_token(credentials)
        if hmac.compare_digest(_digest(token), self._digest):
            return escaped(name, MAX_NAME) or "dashboard"
        text = "A token is required."
        if credentials:
            text = "The token is wrong."
            left_out = self._throttle.left_out(None, monotonic())
            if left_out is not None:
                logger.warning("the dashboard has received a wrong token%s", left_out)
            await anyio.sleep(WRONG_TOKEN_S)
        raise HTTPException(401, text, {"www-authenticate": 'Basic realm="slidegate", charset="UTF-8"'})

    async def _named_by(self, user: Callable[[Request], Any], request: Request) -> str:
        """Return the name of the operator who sends a request, as a function of the application knows it."""
        try:
            name = user(request)
            if isawaitable(name):
                name = await name
        except Exception as error:
            name = None
            log_failure("the dashboard answers 403, as the function of its user= failed", error, monotonic())
        if isinstance(name, str) and name.strip() and len(name) <= MAX_NAME:
            return name
        raise HTTPException(403, "You are not an operator of this dashboard.")


def may_change(request: Request, *, has_token: bool) -> bool:
    """Return whether a request comes from a page of the same origin, or from no page.

    Args:
        request: The request of an operator.
        has_token: Whether it carries the token of the dashboard; a bearer of the application's own login may be added
            to requests of any page.
    """
    if has_token and request.headers["authorization"].lower().startswith("bearer "):
        return True
    site = _joined(request, "sec-fetch-site")
    if site:
        return site == "same-origin"
    host = _joined(request, "host").lower()
    origins = [f"https://{host}"]
    # Behind a proxy that terminates TLS the scheme is http but the Origin https; the reverse never happens.
    if request.scope.get("scheme") != "https":
        origins.append(f"http://{host}")
    return host != "" and _joined(request, "origin").lower() in origins


def _joined(request: Request, name: str) -> str:
    """Return a header field; if it was sent several times, all of its values, which then pass no check."""
    return ", ".join(request.headers.getlist(name))


async def read_body(request: Request, media_type: str) -> bytes:
    """Return the body of a request.

    Raises:
        HTTPException: It is too large or has another type.
        ClientDisconnect: The client disconnected.
    """
    # A page of another origin can send a form without a preflight request, but not JSON.
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != media_type:
        raise HTTPException(415, f"Expected a body of the type {media_type}.")
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MAX_BODY:
            raise HTTPException(413, f"Expected a body of at most {MAX_BODY} bytes.")
    return body


def json_response(content: Any) -> Response:
    """Return a JSON response."""
    return Response(json.dumps(content), media_type=_JSON)


def static_files() -> dict[str, partial[Response]]:
    """Return the responses by the path below the mount, so that no path of a request is joined to a directory."""
    responses = {}
    for file in files(__package__).joinpath("static").iterdir():
        media_type = _TYPES[file.name.rpartition(".")[2]]
        responses[f"/static/{file.name}"] = partial(Response, file.read_bytes(), media_type=media_type)
    return responses


def path_below(scope: Scope) -> str:
    """Return the path of a request below the mount: ``""`` for the mount itself."""
    path = str(scope["path"])
    if not _raw_path(scope).endswith("/"):
        path = path.removesuffix("/")  # which Litestar has added
    return path.removeprefix(str(scope.get("root_path", "")))


def _raw_path(scope: Scope) -> str:
    """Return the path of a request without its query, not decoded if the server passes that on."""
    raw = scope.get("raw_path") or str(scope["path"]).encode(errors="replace")
    return bytes(raw).partition(b"?")[0].decode(errors="replace")


def _digest(token: str) -> bytes:
    """Return the digest that is kept in place of a token, so that no dump of an object shows the token."""
    return sha256(token.encode(errors="surrogatepass")).digest()


def _name_and_token(credentials: str) -> tuple[str, str]:
    """Return the name and the token of a user who sends these credentials; both are empty if there are none."""
    scheme, _, value = credentials.partition(" ")
    if scheme.lower() == "bearer":
        return "api", value.strip()
    if scheme.lower() != "basic":
        return "", ""
    try:
        name, _, token = b64decode(value, validate=True).decode().partition(":")
    except ValueError:
        return "", ""
    return name, token
