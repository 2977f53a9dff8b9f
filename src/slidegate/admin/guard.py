"""Access control of operators' tools.

The checks, in this order: the Host is one of `hosts`; no list or ban refuses the client; the user is authenticated;
and a change (every method except GET and HEAD) comes from a page of the same origin or from no page.

Cross-site request forgery: a page of another origin can make a browser send a request here, with the stored password.
Browsers report that in Sec-Fetch-Site; without it, as over plain http, the Origin must match the Host. A bearer token
cannot be sent that way. DNS rebinding: an attacker's host name can resolve to our address, which makes our responses
same-origin with the attacker's page. The option `hosts` prevents that.
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
    """The sender of a request.

    Attributes:
        user: The user.
        key: The key of the client.
        address: The address of the client; None if it has none.
    """

    user: User
    key: str
    address: Address | None


class AdminGuard:
    """The base class of operators' tools: an ASGI application that checks access before it calls `handle`.

    Args:
        limiter: The limiter to manage.
        access: The access options.

    Attributes:
        limiter: The limiter.

    Raises:
        ConfigurationError: Neither tokens nor `auth` are given, or both, or a value is invalid.
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
        """Answer a request that passed all checks.

        Args:
            request: The request.
            by: The sender.
            body: The decoded JSON body; None without one.
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
            _exclude_from_stats(scope.get(SCOPE_KEY))
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
            raise AdminError(421, "host", "This tool is not served under this host name; add it to the option hosts.")
        key, address = await self._admit(request.scope)
        user = await self._authenticator.identify(request, key)
        body = None
        if request.method not in ("GET", "HEAD"):
            if not _may_change(request, host):
                detail = "A change needs a bearer token, Sec-Fetch-Site: same-origin, or an Origin equal to the Host."
                raise AdminError(403, "origin", detail)
            body = await read_json(request)
        return await self.handle(request, Sender(user, key, address), body)

    async def _admit(self, scope: Scope) -> tuple[str, Address | None]:
        """Return the key and the address of a client, found as by the limiter's middleware.

        Raises:
            AdminError: The client is on a blocklist or banned, and on no allowlist.
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
    """Return whether a request comes from a page of the same origin, or from no page."""
    if request.headers.get("authorization", "").lower().startswith("bearer "):
        return True
    sites, origins = request.headers.getlist("sec-fetch-site"), request.headers.getlist("origin")
    if sites:
        return sites == ["same-origin"]
    # Behind a proxy that terminates TLS the scheme is http but the Origin https; the reverse never happens.
    own = [f"https://{host}", *([f"http://{host}"] if request.scope.get("scheme") != "https" else [])]
    return bool(host) and len(origins) == 1 and origins[0].lower() in own


def _read_hosts(tool: str, hosts: object) -> frozenset[str]:
    """Return the accepted host names in lower case, with a port or for any port."""
    example = 'for example hosts=["ops.example.org", "127.0.0.1:8000"]'
    names = check_list(f"{tool}: hosts", hosts, f"a list, {example}")
    for name in names:
        if not isinstance(name, str) or not _HOST.fullmatch(name.lower()):
            raise ConfigurationError(f"{tool}: hosts: expected names without a scheme, {example}, not {quoted(name)}")
    if len(names) > MAX_HOSTS:
        raise ConfigurationError(f"{tool}: hosts: expected at most {MAX_HOSTS}, not {len(names)}")
    return frozenset(name.lower() for name in names)


def _exclude_from_stats(exchange: Exchange | None) -> None:
    """Exclude a request of an open page, which polls every two seconds, from the stats of the application.

    A request that a rule counted stays, so that the total matches the stats of the rules.
    """
    if exchange is not None and not any(decision.checks for decision in exchange.decisions):
        exchange.outcomes = ()


def _failure(error: Exception) -> AdminError:
    """Log an exception under a random number, and return an error response that reveals only that number."""
    number = secrets.token_hex(8)
    if isinstance(error, StoreError):
        logger.error("request %s to an operators' tool failed because the store does not answer: %r", number, error)
        return AdminError(503, "store", "The store does not answer.", {"retry-after": "1"}, request_id=number)
    logger.error("request %s to an operators' tool failed", number, exc_info=error)
    detail = "The request failed; the log contains the cause under the request_id."
    return AdminError(500, "failed", detail, request_id=number)
