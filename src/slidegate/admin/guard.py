"""The guard between strangers and an operators' tool.

It checks, in this order: the Host; the page that sent the request; who sends it. A change, which is every method but
GET and HEAD, also needs a page of this place, unless a bearer token authorises it, and its body is JSON. Roles are the
business of the tool behind it.

A page elsewhere can make a browser send a request here, with the cookies of this place (cross-site request forgery):
browsers say so in Sec-Fetch-Site, and where they do not, over plain http, the Origin must be that of the Host. And a
page can have its own name lead to an address of ours (DNS rebinding); then the browser takes us for that page. Against
this the Host must be one of the names that the operator has listed.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Mapping
from html import escape
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Router
from starlette.types import Receive, Scope, Send

from ..core.errors import ConfigurationError, StoreError, quoted
from ..core.logs import logger
from ..limiter import Limiter
from ..web.exchange import SCOPE_KEY, Exchange
from ..web.paths import route_path
from ..web.responses import refuse_websocket
from .auth import Access, Authenticator, Identity
from .messages import MAX_BODY, SECURITY_HEADERS, AdminError, finished, read_json

if TYPE_CHECKING:
    from .sessions import SessionRoutes

MAX_HOSTS: Final = 64
MAX_LOGIN: Final = 4_096
_HOST: Final = re.compile(r"(?P<name>\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9_.-]{1,255})(?::(?P<port>[0-9]{1,5}))?")
_MAX_HOST: Final = 261
_PORTS: Final = {"http": "80", "https": "443"}


class File(NamedTuple):
    """A public file: everybody who reaches the tool may read it, so it holds no data and no version.

    Attributes:
        body: Its bytes.
        media_type: Its type, such as ``"text/css; charset=utf-8"``.
    """

    body: bytes
    media_type: str


class AdminGuard:
    """An ASGI application that guards an operators' tool; the tool is a subclass.

    Args:
        limiter: The limiter that it is about.
        access: Who may use it.

    Attributes:
        limiter: The limiter.
        authenticator: Says who sends a request.
        prefix: The path below which the tool lies; all other paths are unknown.
        sessions: The sessions of browsers, at ``{prefix}/session``; None where there are none.
        files: Public files by their exact paths below the mount. Nothing else is read, whatever a path says.

    Raises:
        ConfigurationError: There are neither tokens nor `auth`, or both, or a value cannot work.
    """

    prefix: str = ""
    sessions: SessionRoutes | None = None
    files: Mapping[str, File] = {}

    def __init__(self, limiter: Limiter, access: Access) -> None:
        tool = type(self).__name__
        self.limiter = limiter
        self.authenticator = Authenticator(limiter, tool, access)
        self._hosts = AllowedHosts(tool, access.get("hosts", ()))

    async def handle(self, request: Request, by: Identity, body: Any) -> Response:
        """Answer a request of a user.

        Args:
            request: The request.
            by: Who sends it.
            body: The JSON of its body.
        """
        raise NotImplementedError

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "lifespan":
            await Router()(scope, receive, send)
        elif scope["type"] == "websocket":
            fields = [(name.encode(), value.encode()) for name, value in SECURITY_HEADERS.items()]
            await refuse_websocket(scope, send, 403, b"", fields)
        else:
            _leave_out_of_stats(scope.get(SCOPE_KEY))
            request = Request(scope, receive)
            try:
                response = await self._respond(request)
            except ClientDisconnect:
                return
            except AdminError as error:
                response = _refusal(request, error)
            except Exception as error:
                response = _failure(error).response()
            await finished(request, response)(scope, receive, send)

    async def _respond(self, request: Request) -> Response:
        host = self._hosts.host_of(request)
        if host is None:
            raise AdminError(421, "host", "This tool is not asked under this name.")
        path = route_path(request.scope) or "/"
        file = self.files.get(path)
        if self._hosts.is_foreign(request, host, page=file is not None):
            raise AdminError(403, "origin", "The request comes from a page of another place.")
        if file is not None:
            return await self._serve(file, request)
        if self.prefix and path != self.prefix and not path.startswith(f"{self.prefix}/"):
            raise AdminError(404, "unknown", "There is nothing here.")
        if self.sessions is not None and path == f"{self.prefix}/session":
            return await self._session(self.sessions, request, host)
        identity = await self._identify(request)
        body = await self._read_change(request, host, identity) if request.method not in ("GET", "HEAD") else None
        return await self.handle(request, identity, body)

    async def _serve(self, file: File, request: Request) -> Response:
        if request.method not in ("GET", "HEAD"):
            raise AdminError(405, "method", "This is a file: GET or HEAD it.", {"allow": "GET, HEAD"})
        if self.sessions is None or await self.sessions.find(request) is None:
            await self.authenticator.keep_banned_out(request)
        return Response(file.body, headers={"content-type": file.media_type})

    async def _session(self, sessions: SessionRoutes, request: Request, host: Host) -> Response:
        if request.method == "POST":
            await self.authenticator.keep_banned_out(request)
            return await sessions.log_in(request, await self._read_change(request, host, None))
        if request.method in ("GET", "HEAD"):
            identity = await self._identify(request)
            session = None if identity.bearer else await sessions.find(request)
            return sessions.describe(identity.user, None if session is None else session[0].ends_at)
        if request.method == "DELETE":
            await self._read_change(request, host, await self._identify(request))
            return await sessions.log_out(request)
        allow = "DELETE, GET, HEAD, POST"
        raise AdminError(405, "method", f"A session is asked with {allow}.", {"allow": allow})

    async def _identify(self, request: Request) -> Identity:
        """Return who sends a request.

        Raises:
            AdminError: Nobody who is known.
        """
        identity = await self.authenticator.authenticate(request)
        if identity is not None:
            return identity
        session = None if self.sessions is None else await self.sessions.find(request)
        if session is None:
            await self.authenticator.keep_banned_out(request)
            raise AdminError(401, "login", "Log in first.", {"www-authenticate": "Bearer"})
        return session[1]

    async def _read_change(self, request: Request, host: Host, identity: Identity | None) -> Any:
        """Return the body of a change; a login has no sender yet.

        Raises:
            AdminError: It needs a page of this place, and comes from nowhere; or the body cannot be used.
        """
        if (identity is None or not identity.bearer) and not self._hosts.is_own(request, host):
            detail = "A change without a bearer token needs Sec-Fetch-Site: same-origin, or the Origin of its page."
            raise AdminError(403, "origin", detail)
        return await read_json(request, MAX_LOGIN if identity is None else MAX_BODY)


class Host(NamedTuple):
    """A name in lower case without a dot at its end, and a port, empty for the usual one."""

    name: str
    port: str


class AllowedHosts:
    """The names under which a tool may be asked.

    Args:
        tool: The name of the tool, for error messages.
        hosts: Names, with a port or for any port; empty for any name, and then an Origin must equal the Host.

    Raises:
        ConfigurationError: A host cannot be one.
    """

    def __init__(self, tool: str, hosts: Iterable[str]) -> None:
        example = 'for example hosts=["ops.example.org", "127.0.0.1:8000"]'
        if isinstance(hosts, (str, bytes)) or not isinstance(hosts, Iterable):
            raise ConfigurationError(f"{tool}: hosts: expected a list, {example}, not {quoted(hosts)}")
        self._hosts: set[Host] = set()
        for text in hosts:
            host = read_host(text) if isinstance(text, str) else None
            if host is None:
                raise ConfigurationError(
                    f"{tool}: hosts: expected names without a scheme, {example}, not {quoted(text)}"
                )
            self._hosts.add(host)
        if len(self._hosts) > MAX_HOSTS:
            raise ConfigurationError(f"{tool}: hosts: expected at most {MAX_HOSTS}, not {len(self._hosts)}")

    def host_of(self, request: Request) -> Host | None:
        """Return the host that a request asks for; None if the request must not be answered."""
        values = request.headers.getlist("host")
        host = read_host(values[0]) if len(values) == 1 else None
        if host is None or not self._hosts:
            return host
        return host if self._lists(host, _PORTS.get(_scheme(request), "")) else None

    def is_foreign(self, request: Request, host: Host, *, page: bool) -> bool:
        """Tell whether a request says that it comes from a page of another place.

        Args:
            request: The request.
            host: The host that it asks for.
            page: Whether it is about a public page, to which links elsewhere may lead.
        """
        sites = request.headers.getlist("sec-fetch-site")
        if any(site in ("cross-site", "same-site") for site in sites):
            modes = request.headers.getlist("sec-fetch-mode")
            return not (page and request.method in ("GET", "HEAD") and modes == ["navigate"])
        if sites == ["same-origin"]:
            return False
        return any(not self._is_origin(origin, request, host) for origin in request.headers.getlist("origin"))

    def is_own(self, request: Request, host: Host) -> bool:
        """Tell whether a request says that it comes from a page of this place."""
        sites, origins = request.headers.getlist("sec-fetch-site"), request.headers.getlist("origin")
        if sites:
            return sites == ["same-origin"]
        return len(origins) == 1 and self._is_origin(origins[0], request, host)

    def _is_origin(self, origin: str, request: Request, host: Host) -> bool:
        """Tell whether an Origin is the place that the request asks for, or one of the listed hosts."""
        scheme, _, rest = origin.partition("://")
        named = read_host(rest)
        default = _PORTS.get(scheme)
        # Behind a proxy that ends TLS a server sees http where the browser says https, but never the other way round.
        if named is None or default is None or (_scheme(request) == "https" and scheme != "https"):
            return False
        if self._hosts:
            return self._lists(named, default)
        return named.name == host.name and (named.port or default) == (host.port or default)

    def _lists(self, host: Host, default: str) -> bool:
        return Host(host.name, "") in self._hosts or Host(host.name, host.port or default) in self._hosts


def read_host(text: str) -> Host | None:
    """Return a host; None if a text cannot be one."""
    match = _HOST.fullmatch(text) if len(text) <= _MAX_HOST else None
    if match is None:
        return None
    name = match["name"].lower().removesuffix(".")
    return Host(name, (match["port"] or "").lstrip("0")) if name else None


def _scheme(request: Request) -> str:
    scheme: str = request.scope.get("scheme", "http")
    return scheme


def _leave_out_of_stats(exchange: Exchange | None) -> None:
    """Have the stats that are shown be those of the application: an open page asks every two seconds.

    What a rule counts is in the stats of that rule, so it stays in those of all requests.
    """
    if exchange is not None and not any(decision.checks for decision in exchange.decisions):
        exchange.outcomes = None


def _refusal(request: Request, error: AdminError) -> Response:
    """Return a refusal; a person who is banned gets it as a page."""
    response = error.response()
    if error.code != "banned" or not any("text/html" in value for value in request.headers.getlist("accept")):
        return response
    text = escape(error.detail)
    page = f"<!doctype html><html lang=en><meta charset=utf-8><title>Banned</title><h1>Banned</h1><p>{text}</p></html>"
    return HTMLResponse(page, error.status, error.headers)


def _failure(error: Exception) -> AdminError:
    """Log a failure behind the guard under a number, and return the answer, which says no more than the number."""
    number = secrets.token_hex(8)
    if isinstance(error, StoreError):
        logger.error("request %s to an operators' tool failed, because the store does not answer: %r", number, error)
        return AdminError(503, "store", "The store does not answer.", {"retry-after": "1"}, request_id=number)
    logger.error("request %s to an operators' tool failed", number, exc_info=error)
    detail = "The request failed; the log says why, under the request_id."
    return AdminError(500, "failed", detail, request_id=number)
