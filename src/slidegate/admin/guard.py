"""The guard between strangers and an operators' tool.

It asks, in this order: under which name the tool is asked (`hosts`); whether a list or a ban keeps the client out; who
sends the request; and of a change, which is every method but GET and HEAD, whether a page of this place sends it.

A page elsewhere can make a browser send a request here, with the password that the browser remembers (cross-site
request forgery): browsers say so in Sec-Fetch-Site, and where they do not, over plain http, the Origin must be the
Host. No page elsewhere can make one send a bearer token. And a page can have its own name lead to an address of ours
(DNS rebinding); then the browser takes us for that page. Against this the operator lists the names of the tool.
"""

from __future__ import annotations

import re
import secrets
from typing import Any, Final, NamedTuple

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Router
from starlette.types import Receive, Scope, Send

from ..core.addresses import Address, address_key
from ..core.arguments import check_list
from ..core.bans.ban import BanSubject
from ..core.decision import Reason
from ..core.errors import ConfigurationError, StoreError, quoted
from ..core.logs import logger
from ..limiter import Limiter
from ..limiter.operators import operator_of
from ..web.client_ip import client_ip
from ..web.exchange import SCOPE_KEY, Exchange
from ..web.middleware import RateLimitMiddleware
from ..web.responses import refuse_websocket
from .auth import Access, Authenticator, User
from .messages import SECURITY_HEADERS, AdminError, read_json

MAX_HOSTS: Final = 64
_HOST: Final = re.compile(r"(?P<name>\[[0-9a-f:.]{2,45}\]|[a-z0-9_.-]{1,255})(?::[0-9]{1,5})?")


class Sender(NamedTuple):
    """Who sends a request, and from where.

    Attributes:
        user: The user.
        key: The key of the client.
        address: Its address, if it has one.
    """

    user: User
    key: str
    address: Address | None


class AdminGuard:
    """An ASGI application that guards an operators' tool; the tool is a subclass.

    Args:
        limiter: The limiter that it is about.
        access: Who may use it.

    Attributes:
        limiter: The limiter.

    Raises:
        ConfigurationError: There are neither tokens nor `auth`, or both, or a value cannot work.
    """

    def __init__(self, limiter: Limiter, access: Access) -> None:
        tool = type(self).__name__
        if not isinstance(limiter, Limiter):
            raise ConfigurationError(
                f"{tool}: expected a Limiter, for example {tool}(limiter, ...), not {quoted(limiter)}"
            )
        self.limiter = limiter
        self._authenticator = Authenticator(limiter, tool, access)
        self._hosts = _read_hosts(tool, access.get("hosts", ()))
        self._client = access.get("client")

    async def handle(self, request: Request, by: Sender, body: Any) -> Response:
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
                response = error.response()
            except Exception as error:
                response = _failure(error).response()
            response.headers.update(SECURITY_HEADERS)
            if request.method == "HEAD":
                response.body = b""
            await response(scope, receive, send)

    async def _respond(self, request: Request) -> Response:
        host = request.headers.get("host", "").lower()
        if self._hosts and not {host, re.sub(r":[0-9]*$", "", host)} & self._hosts:
            raise AdminError(421, "host", "This tool is not asked under this name; its option hosts lists the names.")
        key, address = await self._admit(request.scope)
        user = await self._authenticator.identify(request, key)
        body = None
        if request.method not in ("GET", "HEAD"):
            if not _may_change(request, host):
                detail = "A change needs a bearer token, or Sec-Fetch-Site: same-origin, or the Origin of its own page."
                raise AdminError(403, "origin", detail)
            body = await read_json(request)
        return await self.handle(request, Sender(user, key, address), body)

    async def _admit(self, scope: Scope) -> tuple[str, Address | None]:
        """Return the key and the address of a client, found as the middleware on the limiter does.

        Raises:
            AdminError: It is on a blocklist or banned, and on no allowlist.
        """
        callers = self.limiter.engine.callers.listed()
        middlewares = [caller for caller in callers if isinstance(caller, RateLimitMiddleware)]
        client = self._client or next((middleware.client for middleware in middlewares), None) or client_ip()
        key, address = client.locate(scope)
        if any(_covers(middleware, "allowlist", address) for middleware in middlewares):
            return key, address
        if any(_covers(middleware, "blocklist", address) for middleware in middlewares):
            raise AdminError(403, "blocked", "This address is on the blocklist.")
        # Where the prefixes of `client` are others, the ban of the address itself is found by another key.
        subjects: tuple[BanSubject, ...] = (key,)
        if address is not None:
            own = address_key(*address)
            operator = operator_of(own, self.limiter.engine.networks)
            subjects = (key, address, own) if operator is None else (key, address, own, operator)
        decision = await self.limiter.peek_all((), subjects)
        if decision.reason is Reason.BANNED:
            later = {} if decision.retry_after is None else {"retry-after": str(decision.retry_after)}
            raise AdminError(403, "banned", "This address is banned.", later)
        return key, address


def _covers(middleware: RateLimitMiddleware, name: str, address: Address | None) -> bool:
    networks = middleware.lists[name]
    return networks is not None and address is not None and networks.covers(*address)


def _may_change(request: Request, host: str) -> bool:
    """Return whether a request comes from a page of this place, or from no page."""
    if request.headers.get("authorization", "").lower().startswith("bearer "):
        return True
    sites, origins = request.headers.getlist("sec-fetch-site"), request.headers.getlist("origin")
    if sites:
        return sites == ["same-origin"]
    # Behind a proxy that ends TLS a server sees http where the browser says https, but never the other way round.
    own = [f"https://{host}", *([f"http://{host}"] if request.scope.get("scheme") != "https" else [])]
    return bool(host) and len(origins) == 1 and origins[0].lower() in own


def _read_hosts(tool: str, hosts: object) -> frozenset[str]:
    """Return the names under which a tool may be asked, with a port or for any port."""
    example = 'for example hosts=["ops.example.org", "127.0.0.1:8000"]'
    names = check_list(f"{tool}: hosts", hosts, f"a list, {example}")
    for name in names:
        if not isinstance(name, str) or not _HOST.fullmatch(name.lower()):
            raise ConfigurationError(f"{tool}: hosts: expected names without a scheme, {example}, not {quoted(name)}")
    if len(names) > MAX_HOSTS:
        raise ConfigurationError(f"{tool}: hosts: expected at most {MAX_HOSTS}, not {len(names)}")
    return frozenset(name.lower() for name in names)


def _leave_out_of_stats(exchange: Exchange | None) -> None:
    """Have the stats that are shown be those of the application: an open page asks every two seconds.

    What a rule counts is in the stats of that rule, so it stays in those of all requests.
    """
    if exchange is not None and not any(decision.checks for decision in exchange.decisions):
        exchange.outcomes = None


def _failure(error: Exception) -> AdminError:
    """Log a failure behind the guard under a number, and return the answer, which says no more than the number."""
    number = secrets.token_hex(8)
    if isinstance(error, StoreError):
        logger.error("request %s to an operators' tool failed, because the store does not answer: %r", number, error)
        return AdminError(503, "store", "The store does not answer.", {"retry-after": "1"}, request_id=number)
    logger.error("request %s to an operators' tool failed", number, exc_info=error)
    detail = "The request failed; the log says why, under the request_id."
    return AdminError(500, "failed", detail, request_id=number)
