"""The dashboard as an ASGI application: who may see and change what, and which response a request gets.

The checks, in this order: the token is right; and a change (every method but GET and HEAD) comes from a page of the
same origin, or carries a bearer token. A page of another origin can make a browser send a request here, with the stored
password. Browsers report that in Sec-Fetch-Site; without it, as over plain http, the Origin must match the Host. A
bearer token cannot be sent that way.
"""

from __future__ import annotations

import hmac
import json
import re
import time
from base64 import b64decode
from hashlib import sha256
from importlib.resources import files
from typing import Any, Final
from urllib.parse import parse_qsl

import anyio
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Router
from starlette.types import Receive, Scope, Send

from ... import ConfigurationError, Limiter
from ...core.arguments import names_checked
from ...core.errors import closest
from ...core.logs import Throttle, escaped, logger
from ...core.passwords import Hidden, revealed
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
MIN_TOKEN: Final = 16
MAX_TOKEN: Final = 512
MAX_BODY: Final = 65_536
WRONG_TOKEN_S: Final = 0.25
READ_ONLY: Final = "This dashboard only shows; it was made with changes=False."
MAKE_ONE: Final = 'python3 -c "import secrets; print(secrets.token_urlsafe(32))"'
_TYPES: Final = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
_JSON: Final = "application/json"
_FORM: Final = "application/x-www-form-urlencoded"
_READ: Final = ("GET", "HEAD")
_OPEN: Final = ("/static/style.css", "/static/icon.svg")
"""What the page for those without a token needs."""


class Dashboard:
    """A page of live statistics, clients and bans: ``app.mount("/slidegate", Dashboard(limiter, token=...))``.

    A browser asks for the token as the password of any user name, under which changes are recorded. The page shows the
    statistics of all workers that share the store and sends no request to any other origin. The JSON API is at ``api``
    below the mount. A middleware around it counts its requests too, unless a rule exempts them:
    ``Rule("/slidegate/{rest:path}", exempt=True)``.

    Args:
        limiter: The limiter to show and change.
        token: The token that its users send, 16 to 512 printable ASCII characters; None if your own login stands in
            front and lets in only those who may change bans and limits.
        changes: Whether bans and limits can be changed; False makes a dashboard that only shows.

    Raises:
        ConfigurationError: The token is missing, too short or not printable, or another value is invalid.
    """

    @names_checked
    def __init__(self, limiter: Limiter, *, token: str | Hidden | None = "", changes: bool = True) -> None:
        self.limiter = limiter
        self._digest: bytes | None = None
        if token is not None:
            self._digest = _digest(_checked_token(token))
        self._changes = changes
        service = Service(limiter)
        self._api = Api(service)
        self._page = Page(service, self._api, changes=changes)
        self._files = static_files()
        self._throttle = Throttle()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await Router()(scope, receive, send)
            return
        request, path = Request(scope, receive), path_below(scope)
        try:
            response = await self._respond(request, path)
        except ClientDisconnect:
            return
        except Exception as error:
            response = self._response_of(problem_of(error), path)
        response.headers.update(SECURITY_HEADERS)
        if request.method == "HEAD":
            response.body = b""
        await response(scope, receive, send)

    def _response_of(self, problem: HTTPException, path: str) -> Response:
        """Return the response to a request that fails: JSON below ``api/``, else a page."""
        if path.startswith("/api/"):
            response = json_response({"error": problem.detail})
        else:
            response = self._page.problem(path, problem)
        response.status_code = problem.status_code
        response.headers.update(problem.headers or {})
        return response

    async def _respond(self, request: Request, path: str) -> Response:
        if path in _OPEN and request.method in _READ:
            return self._file(path)
        user = await self._identify(request)
        if request.method not in _READ and not may_change(request):
            raise HTTPException(
                403, "A change needs a bearer token, Sec-Fetch-Site: same-origin, or an Origin equal to the Host."
            )
        if path.startswith("/api/"):
            return await self._call(request, path.removeprefix("/api/"), user)
        if not path:  # relative links lead to nowhere from there; it may be at another path for the browser
            return RedirectResponse(f"./{_raw_path(request.scope).rpartition('/')[2]}/")
        if request.method == "POST":
            form = dict(parse_qsl((await read_body(request, _FORM)).decode(errors="replace"), keep_blank_values=True))
            if not self._changes and form.get("do") != "find":
                raise HTTPException(403, READ_ONLY)
            return await self._page.submit(path[1:], request.query_params, form, user)
        if request.method not in _READ:
            raise HTTPException(405, "Expected GET or POST.", {"allow": "GET, HEAD, POST"})
        if path in self._files:
            return self._file(path)
        return await self._page.show(path[1:], request.query_params)

    def _file(self, path: str) -> Response:
        body, media_type = self._files[path]
        return Response(body, media_type=media_type)

    async def _call(self, request: Request, name: str, user: str) -> Response:
        """Return the response of an operation of the API."""
        method = request.method
        if method == "HEAD":
            method = "GET"
        allowed = self._api.operations.get(name)
        if allowed is None:
            raise HTTPException(404, f"There is no api/{escaped(name, 80)}{closest(name, self._api.operations)}")
        if method not in allowed:
            raise HTTPException(405, f"Expected {', '.join(allowed)}.", {"allow": ", ".join([*allowed, "HEAD"])})
        if method != "GET" and not self._changes:
            raise HTTPException(403, READ_ONLY)
        fields: dict[str, Any] = dict(request.query_params)
        if method in ("PUT", "POST"):
            fields = _decoded(await read_body(request, _JSON))
        return json_response(await self._api.call(method, name, fields, user))

    async def _identify(self, request: Request) -> str:
        """Return the name of the user who sends a request.

        Raises:
            HTTPException: The request carries no valid token. To a wrong one the answer is late, so that guessing takes
                long.
        """
        fields = request.headers.getlist("authorization")
        name, token = "", ""
        if len(fields) == 1:
            name, token = _credentials(fields[0])
        user = escaped(name, 64) or "dashboard"
        if self._digest is None or hmac.compare_digest(_digest(token), self._digest):
            return user
        text = "A token is required."
        if fields:
            text = "The token is wrong."
            left_out = self._throttle.left_out("token", time.monotonic())
            if left_out is not None:
                logger.warning("the dashboard has received a wrong token%s", left_out)
            await anyio.sleep(WRONG_TOKEN_S)
        raise HTTPException(401, text, {"www-authenticate": 'Basic realm="slidegate", charset="UTF-8"'})


def may_change(request: Request) -> bool:
    """Return whether a request comes from a page of the same origin, or from no page."""
    if request.headers.get("authorization", "").lower().startswith("bearer "):
        return True
    sites = request.headers.getlist("sec-fetch-site")
    if sites:
        return sites == ["same-origin"]
    host = request.headers.get("host", "").lower()
    origins = request.headers.getlist("origin")
    if not host or len(origins) != 1:
        return False
    own = [f"https://{host}"]
    # Behind a proxy that terminates TLS the scheme is http but the Origin https; the reverse never happens.
    if request.scope.get("scheme") != "https":
        own.append(f"http://{host}")
    return origins[0].lower() in own


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


def static_files() -> dict[str, tuple[bytes, str]]:
    """Return path below the mount -> (content, media type): the path of a request is never joined to a directory."""
    found = files(__package__).joinpath("static").iterdir()
    return {f"/static/{file.name}": (file.read_bytes(), _TYPES[file.name.rpartition(".")[2]]) for file in found}


def path_below(scope: Scope) -> str:
    """Return the path of a request below the mount: ``""`` for the mount itself."""
    path, root = str(scope["path"]), str(scope.get("root_path", ""))
    if not _raw_path(scope).endswith("/"):
        path = path.removesuffix("/")  # which Litestar has added
    if path == root or path.startswith(f"{root}/"):
        return path[len(root) :]
    return path


def _raw_path(scope: Scope) -> str:
    """Return the path of a request as the client has sent it, if the server tells, without a query."""
    raw = scope.get("raw_path") or str(scope["path"]).encode(errors="replace")
    return bytes(raw).partition(b"?")[0].decode(errors="replace")


def _checked_token(token: object) -> str:
    """Return a token. The error does not quote it: an invalid token may still be a secret.

    Raises:
        ConfigurationError: It is missing, too short, too long or not printable.
    """
    token = revealed(token)
    if isinstance(token, str) and re.fullmatch(rf"[!-~]{{{MIN_TOKEN},{MAX_TOKEN}}}", token):
        return token
    raise ConfigurationError(
        f"Dashboard: token is required: {MIN_TOKEN} to {MAX_TOKEN} printable ASCII characters without spaces, for "
        f"example from {MAKE_ONE}; write token=None if your own login stands in front"
    )


def _digest(token: str) -> bytes:
    """Return what is kept of a token: where an object is shown, the token is not."""
    return sha256(token.encode(errors="surrogatepass")).digest()


def _credentials(field: str) -> tuple[str, str]:
    """Return the user's name and the token in the header field `Authorization`; empty if there are none."""
    scheme, _, value = field.partition(" ")
    if scheme.lower() == "bearer":
        return "api", value.strip()
    if scheme.lower() != "basic":
        return "", ""
    try:
        name, _, token = b64decode(value, validate=True).decode().partition(":")
    except ValueError:
        return "", ""
    return name, token


def _decoded(body: bytes) -> dict[str, Any]:
    """Return the object in a body.

    Raises:
        HTTPException: The body is not an object of JSON.
    """
    try:
        found = json.loads(body.decode())
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise HTTPException(400, 'Expected a body with an object of JSON, for example {"key": "203.0.113.7"}.')
    return found
