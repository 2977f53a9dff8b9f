"""Sessions of browsers: a signed cookie, so that every worker knows a session without asking another one.

A session is signed with a key that is derived from the token it was opened with. So workers with one token agree, and
another token ends all sessions. The cookie holds an identifier and the time of the start, and neither a token nor a
role: the role is that of the token whose key fits.

A session that was logged out is *revoked*: its identifier is charged under a limit of one unit in 31 days, longer than
any session lasts. So it lies in the limiter's store, whichever that is, and every worker finds it there.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from itsdangerous import BadData, URLSafeTimedSerializer
from starlette.requests import Request
from starlette.responses import Response

from ..core.decision import Decision, LimitSet, Reason
from ..core.limits import Limit, parse_span_us
from ..limiter import Limiter
from .auth import MAX_TOKEN, Authenticator, Identity, Token, User
from .messages import AdminError, json_response

COOKIE: Final = "slidegate_session"
_MAX_COOKIES: Final = 4
"""How many cookies of the name are looked at: another site of the same domain may have set one beside ours."""
_MAX_COOKIE: Final = 512
_EARLY_S: Final = 60
"""How far the clock of the worker that opened a session may be ahead of that of the worker that reads it."""
_SALT: Final = b"slidegate: session"
_REVOKED: Final = LimitSet("slidegate-revoked", (Limit(1, "31d"),))
_PATH_CHARACTERS: Final = frozenset(map(chr, range(0x21, 0x7F))) - set('";,\\%')


class Session(NamedTuple):
    """One session.

    Attributes:
        id: Its random identifier, 22 characters.
        token: The token that it was opened with.
        ends_at: When it ends, in seconds of Unix time.
    """

    id: str
    token: Token
    ends_at: float


class SessionRoutes:
    """Opens, reads and ends the sessions of browsers.

    Args:
        limiter: Its store remembers the revoked ones.
        authenticator: Says who sends a request. Where that is a function of the application's, there is no login.
        length: How long a session lasts, 1 minute to 30 days.

    Raises:
        ConfigurationError: The length cannot be used.
    """

    def __init__(self, limiter: Limiter, authenticator: Authenticator, length: str | float) -> None:
        self._length_s = parse_span_us(length, "session", 60_000_000, 30 * 86_400_000_000, "12h") // 1_000_000
        self._limiter = limiter
        self._authenticator = authenticator

    async def log_in(self, request: Request, body: Any) -> Response:
        """Open a session for ``{"token": "..."}``; the session before it is over.

        Raises:
            AdminError: The token is wrong, too many were, the body is no login, or `auth` says who may come in.
            StoreError: The session before cannot be revoked, because the store does not answer.
        """
        if not self._authenticator.tokens:
            raise AdminError(404, "unknown", "There is no login here: the application says who may come in.")
        text = body.get("token") if isinstance(body, dict) and len(body) == 1 else None
        if not isinstance(text, str) or len(text) > MAX_TOKEN:
            raise AdminError(422, "form", 'A login is {"token": "..."}.')
        token = await self._authenticator.find_token(request, text)
        before = self._find(request)
        if before is not None:
            await self._revoke(before)
        response = self.describe(token.user, int(time.time()) + self._length_s)
        self._set_cookie(request, response, _signer(token).dumps(secrets.token_urlsafe(16)), self._length_s)
        return response

    async def log_out(self, request: Request) -> Response:
        """End a session, in every worker.

        Raises:
            StoreError: The store does not answer; the session goes on.
        """
        session = self._find(request)
        if session is not None:
            await self._revoke(session)
        response = Response(status_code=204)
        self._set_cookie(request, response, "", 0)
        return response

    @staticmethod
    def describe(user: User, ends_at: float | None) -> Response:
        """Return the answer that says who is logged in, and until when."""
        return json_response(json.dumps({"role": user.role, "name": user.name, "ends_at": ends_at}))

    async def find(self, request: Request) -> tuple[Session, Identity] | None:
        """Return the session that a request comes in, and who sends it."""
        session = self._find(request)
        state = Reason.LIMITED if session is None else await self._state(session)
        if session is None or state is Reason.LIMITED:
            return None
        user = session.token.user
        # Where the store cannot say whether the session was revoked, it is good for looking alone.
        user = user if state is Reason.OK else User("read", user.name)
        return session, self._authenticator.identity(request.scope, user)

    def _find(self, request: Request) -> Session | None:
        """Return the session of a cookie, whatever has been revoked."""
        for cookie in _cookies(request):
            for token in self._authenticator.tokens:
                try:
                    id, started = _signer(token).loads(cookie, return_timestamp=True)
                except BadData:
                    continue
                started_at = started.timestamp()
                if started_at - _EARLY_S <= time.time() < started_at + self._length_s:
                    return Session(str(id), token, started_at + self._length_s)
        return None

    async def _revoke(self, session: Session) -> None:
        checks = [(_REVOKED, f"session:{session.id}", 1)]
        await self._limiter.engine.command(lambda: self._limiter.store.charge(checks))

    async def _state(self, session: Session) -> Reason:
        """Return OK for a session that goes on, LIMITED for one that was revoked, UNAVAILABLE if nobody knows."""
        checks = [(_REVOKED, f"session:{session.id}", 1)]
        store, failover = self._limiter.store, self._limiter.engine.failover
        if failover is None:
            answer = store.peek(checks)
            decision = answer if isinstance(answer, Decision) else await answer
        else:
            # Not by `Limiter.peek`: where the store is away, that answers by what this process has counted.
            answered = await failover.ask(lambda: store.peek(checks), None, checks)
            if answered is None:
                return Reason.UNAVAILABLE
            decision = answered
        return Reason.OK if decision.allowed else Reason.LIMITED

    @staticmethod
    def _set_cookie(request: Request, response: Response, value: str, max_age_s: int) -> None:
        """Set the cookie of a session; an empty value and 0 seconds take it away."""
        path = _path(request)
        origins = request.headers.getlist("origin")
        secure = request.scope.get("scheme") == "https" or any(origin.startswith("https://") for origin in origins)
        name = _secure_name(path) if secure else COOKIE
        response.set_cookie(name, value, max_age_s, path=path, secure=secure, httponly=True, samesite="strict")


def _cookies(request: Request) -> Iterator[str]:
    """Yield the values of the cookies that may be those of a session.

    Where the server knows that it is asked by https, a name without a prefix does not count, because a site of the same
    domain without https may have set it.
    """
    names = {_secure_name(_path(request))}
    if request.scope.get("scheme") != "https":
        names.add(COOKIE)
    pairs = [pair.strip().partition("=") for field in request.headers.getlist("cookie") for pair in field.split(";")]
    values = [value for name, _, value in pairs if name in names]
    return (value for value in values[:_MAX_COOKIES] if len(value) <= _MAX_COOKIE and value.isascii())


def _path(request: Request) -> str:
    """Return the path of the cookie: the place where the tool is mounted."""
    root: str = request.scope.get("root_path", "") or "/"
    # Another path would end the attribute; such a mount gets the widest one.
    return root if root.startswith("/") and _PATH_CHARACTERS.issuperset(root) else "/"


def _secure_name(path: str) -> str:
    """Return the name of the cookie; a browser takes its prefix as a promise about the flags (RFC 6265bis, 4.1.3)."""
    return f"__Host-{COOKIE}" if path == "/" else f"__Secure-{COOKIE}"


def _signer(token: Token) -> URLSafeTimedSerializer:
    kwargs = {"digest_method": "sha256", "key_derivation": "hmac"}
    return URLSafeTimedSerializer(token.key, salt=_SALT, signer_kwargs=kwargs)
