"""The door between a stranger and an operators' tool.

A request is held up to its Host, its method and its path; to the place that it says it comes from; and to its sender. A
change, which is every method but GET and HEAD, is also held up to the role, the proof of our own page, and its body.
The tool behind the door sees requests that have passed all of it, with the visitor in their scope, and needs no check
of its own.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping
from html import escape
from typing import Final, NamedTuple

from starlette.types import ASGIApp, Receive, Scope, Send

from ..core.errors import ConfigurationError, StoreError, quoted
from ..core.logs import logger
from ..web.matching import route_path
from ..web.responses import refuse_websocket
from ..web.route_checks import AdminApp
from .access import PASS, Access, Pass
from .bodies import Gone, read_json
from .origins import field_values
from .secure_fields import FIELDS, Outlet, Refused, send_body
from .session_desk import SessionDesk
from .visitors import VISITOR

LOOKING: Final = frozenset({"GET", "HEAD"})
METHODS: Final = frozenset({*LOOKING, "POST", "PUT", "PATCH", "DELETE"})
_ALLOW: Final = (b"allow", ", ".join(sorted(METHODS)).encode())
# Not exceptions: one that is raised again and again keeps the traceback of every time.
_NOT_FOUND: Final = 404, "unknown", "There is nothing here."
_STRANGER: Final = 401, "login", "Log in first.", (b"www-authenticate", b"Bearer")
_ELSEWHERE: Final = 403, "origin", "The request comes from a page of another place."
_NO_ORIGIN: Final = 403, "origin", "A change in a session needs the Origin of its page."
_UNPROVEN: Final = 403, "csrf", "The page of this session did not send the change: X-CSRF-Token is missing or wrong."
_READER: Final = 403, "role", "This visitor may look, and not change."
_OF_BROWSERS: Final = frozenset({b"cookie", b"origin", b"referer", b"sec-fetch-mode", b"sec-fetch-site"})
_HTML: Final = "text/html; charset=utf-8"


class File(NamedTuple):
    """A public file: everybody who reaches the tool may read it, so it holds no data and no version.

    Attributes:
        body: Its bytes.
        media_type: Its type, such as ``"text/css; charset=utf-8"``.
    """

    body: bytes
    media_type: str


class Door(AdminApp):
    """An ASGI application that guards another one.

    Args:
        inner: The tool. It sees the scope as it is, so its paths begin with `prefix`.
        access: Says who sends a request.
        files: Public files by their exact paths below the mount. Nothing else is read, whatever a path says.
        prefix: The path at which, and below which, the tool lies; empty for everything. All other paths are unknown.
        reading: Paths below the prefix where a POST changes nothing and is open to everybody who may look, because its
            content must not stand in an address. It needs the proof of our page all the same.
        sessions: Whether browsers log in, at ``{prefix}/session``: POST with the token, GET for who is logged in,
            DELETE to log out.

    Attributes:
        access: Says who sends a request.

    Raises:
        ConfigurationError: A path or the prefix does not begin with a slash.
    """

    def __init__(
        self,
        inner: ASGIApp,
        access: Access,
        *,
        files: Mapping[str, File] | None = None,
        prefix: str = "",
        reading: Collection[str] = (),
        sessions: bool = True,
    ) -> None:
        for path in (*(files or ()), *reading, *([prefix] if prefix else ())):
            if not path.startswith("/") or (path == prefix and path.endswith("/")):
                raise ConfigurationError(f'path: expected one such as "/app.js" or "/api", not {quoted(path)}')
        # Under this name nobody who looks for the layers of an application finds it: its routes are nobody's business.
        self._inner = inner
        self.access = access
        self._files = dict(files or {})
        self._prefix = prefix
        self._reading = frozenset(prefix + path for path in reading)
        self._desk = SessionDesk(access) if sessions else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or pass it to the tool."""
        if scope["type"] == "lifespan":
            await self._inner(scope, receive, send)
        elif scope["type"] == "websocket":
            await refuse_websocket(scope, send, 403, b"", [*FIELDS])
        else:
            await self._answer(scope, receive, Outlet(send))

    async def _answer(self, scope: Scope, receive: Receive, out: Outlet) -> None:
        try:
            await self._serve(scope, receive, out.send)
            await out.let_go()
        except Gone:
            return
        except Exception as error:
            more = {}
            if isinstance(error, Refused):
                refused = error
            else:
                number = more["request_id"] = secrets.token_hex(8)
                refused = _report(error, number)
            if out.started:
                raise
            out.drop()
            await self._refuse(refused, scope, out, more)
            await out.let_go()

    @staticmethod
    async def _refuse(refused: Refused, scope: Scope, out: Outlet, more: Mapping[str, str]) -> None:
        if refused.code == "banned" and _wants_page(scope):
            await send_body(scope, out.send, refused.status, _page(refused), _HTML, *refused.fields)
        else:
            await refused.answer(scope, out.send, more)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        host = self.access.places.host(scope)
        if host is None:
            raise Refused(421, "host", "This tool is not asked under this name.")
        if scope["method"] not in METHODS:
            raise Refused(405, "method", "There is no such method here.", _ALLOW)
        path = route_path(scope) or "/"
        file = self._files.get(path)
        if file is None and self._prefix and path != self._prefix and not path.startswith(f"{self._prefix}/"):
            raise Refused(*_NOT_FOUND)
        if self.access.places.foreign(scope, host, page=file is not None):
            raise Refused(*_ELSEWHERE)
        if file is not None:
            await self._hand_out(file, scope, send)
        elif self._desk is not None and path == f"{self._prefix}/session":
            await self._at_the_desk(self._desk, scope, receive, send)
        else:
            receive = await self._let_in(scope, receive)
            await self._inner(scope, receive, send)

    async def _hand_out(self, file: File, scope: Scope, send: Send) -> None:
        if scope["method"] not in LOOKING:
            raise Refused(405, "method", "This is a file.", (b"allow", b"GET, HEAD"))
        if await self.access.session_of(scope) is None:
            await self.access.keep_banned_out(scope)
        await send_body(scope, send, 200, file.body, file.media_type)

    async def _let_in(self, scope: Scope, receive: Receive) -> Receive:
        """Return the channel of a request that may pass, with the visitor in its scope."""
        found = await self._known(scope)
        if scope["method"] not in LOOKING:
            if found.visitor.role != "full" and not (scope["method"] == "POST" and route_path(scope) in self._reading):
                raise Refused(*_READER)
            self._check_page(scope, found)
            _, receive = await read_json(scope, receive)
        scope[PASS], scope[VISITOR] = found, found.visitor
        return receive

    async def _at_the_desk(self, desk: SessionDesk, scope: Scope, receive: Receive, send: Send) -> None:
        method = scope["method"]
        if method == "POST":
            await desk.log_in(scope, receive, send)
        elif method in LOOKING:
            await desk.tell(scope, await self._known(scope), send)
        elif method == "DELETE":
            found = await self._known(scope)
            self._check_page(scope, found)
            await desk.log_out(scope, found, send)
        else:
            raise Refused(405, "method", "A session is opened, read and ended.", (b"allow", b"DELETE, GET, HEAD, POST"))

    async def _known(self, scope: Scope) -> Pass:
        found = await self.access.recognise(scope)
        if found is None:
            await self.access.keep_banned_out(scope)
            raise Refused(*_STRANGER)
        return found

    @staticmethod
    def _check_page(scope: Scope, found: Pass) -> None:
        """Check that a change comes from a page of ours, where a browser may have been made to send it."""
        if found.bearer or not _by_a_browser(scope):
            return
        if len(field_values(scope, b"origin")) != 1:
            raise Refused(*_NO_ORIGIN)
        given = field_values(scope, b"x-csrf-token")
        if found.session is None or len(given) != 1 or not found.session.accepts(given[0].decode("latin-1")):
            raise Refused(*_UNPROVEN)


def _report(error: Exception, number: str) -> Refused:
    """Log a failure behind the door under a number, and return the answer, which says no more than the number."""
    if isinstance(error, StoreError):
        logger.error("request %s to an operators' tool failed, because the store does not answer: %r", number, error)
        return Refused(503, "store", "The store does not answer.", (b"retry-after", b"1"))
    logger.error("request %s to an operators' tool failed", number, exc_info=error)
    return Refused(500, "failed", "The request failed; the log says why, under the request_id.")


def _by_a_browser(scope: Scope) -> bool:
    """Tell whether a change may come from a browser, which says the origin of every page that sends one.

    A script that `auth` knows by a field or a certificate of its own sends none of these fields.
    """
    return any(name in _OF_BROWSERS for name, _ in scope["headers"])


def _wants_page(scope: Scope) -> bool:
    return any(b"text/html" in value for value in field_values(scope, b"accept"))


def _page(refused: Refused) -> bytes:
    """Return a refusal as a page for a person."""
    text = escape(refused.detail)
    page = f"<!doctype html><html lang=en><meta charset=utf-8><title>Banned</title><h1>Banned</h1><p>{text}</p></html>"
    return page.encode()
