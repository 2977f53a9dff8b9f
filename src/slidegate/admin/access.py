"""The options of a door, in one place."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterable, Sequence
from inspect import isawaitable
from typing import Final, NamedTuple, TypeVar

from starlette.requests import Request
from starlette.types import Scope

from ..core.arguments import check_takes
from ..core.decision import Decision, Reason
from ..core.errors import ConfigurationError, quoted
from ..core.store import Clock
from ..limiter import Limiter
from ..stores.system_clock import system_us
from ..web.client_ip import ClientAddress, client_ip
from .attempts import Attempts
from .cookies import session_cookies
from .origins import Places, field_values
from .secure_fields import Refused
from .sessions import Session, Sessions
from .tokens import MAKE_ONE, Token, Tokens
from .visitors import AuthFunction, Visitor, read_visitor

_T = TypeVar("_T")

PASS: Final = "slidegate.pass"
"""The key of a `Pass` in the ASGI scope of a request that the door has let in."""
_WRONG: Final = 401, "login", "The token is not one of those that open this tool.", (b"www-authenticate", b"Bearer")


class Pass(NamedTuple):
    """How a visitor came in.

    Attributes:
        visitor: The visitor.
        session: The session of the browser, if there is one.
        bearer: Whether the request carries its token itself, as no page elsewhere can make a browser do.
        shown: Whether a token was shown, and no session or something that `auth` recognises by itself.
    """

    visitor: Visitor
    session: Session | None = None
    bearer: bool = False
    shown: bool = False


class Access:
    """Says who sends a request to an operators' tool.

    Args:
        limiter: Its store holds the counts of wrong tokens and the revoked sessions; its bans keep strangers out.
        token: The token whose owner may look and change, 16 to 512 characters; or several tokens.
        read_token: The token whose owner may look; or several.
        auth: Instead of tokens, a function, sync or async, of the request (which has no body here) that returns None
            for a stranger, ``"read"``, ``"full"``, or ``Visitor("full", "ann")``.
        hosts: The names under which the tool may be asked, with a port or for any port: ``["ops.example.org"]``. By
            default any name; then the Origin of a browser must equal the Host.
        client: How the address of a client is found, behind proxies too; by default it is the peer.
        session: How long a session of a browser lasts, 1 minute to 30 days.
        what: The name of the tool, for error messages.
        clock: Returns Unix time in microseconds.

    Attributes:
        limiter: The limiter.
        places: The names under which the tool may be asked.
        sessions: The sessions of browsers.
        session_key: Signs the sessions where `auth` says who is there; with tokens each of them signs its own.

    Raises:
        ConfigurationError: There are neither tokens nor `auth`, or both; a value cannot work; or there is `auth`, and
            the limiter has a store for several workers and no `secret`.
    """

    def __init__(
        self,
        limiter: Limiter,
        *,
        token: str | Iterable[str] | None = None,
        read_token: str | Iterable[str] | None = None,
        auth: AuthFunction | None = None,
        hosts: Iterable[str] = (),
        client: ClientAddress | None = None,
        session: str | float = "12h",
        what: str = "Dashboard",
        clock: Clock = system_us,
    ) -> None:
        if not isinstance(limiter, Limiter):
            raise ConfigurationError(
                f"{what}: expected a Limiter, for example {what}(limiter, ...), not {quoted(limiter)}"
            )
        if client is not None and not isinstance(client, ClientAddress):
            raise ConfigurationError(f"{what}: client: expected client_ip(...), not {quoted(client)}")
        tokens = Tokens(what, token, read_token)
        if auth is None and not tokens.all:
            raise ConfigurationError(
                f"{what}: it does not start without a token, so that no stranger gets in; write {what}(limiter, "
                f'token=os.environ["SLIDEGATE_TOKEN"]) with the output of {MAKE_ONE}, or auth=function'
            )
        if auth is not None and (tokens.all or not callable(auth)):
            raise ConfigurationError(
                f'{what}: auth: expected a function of the request that returns None, "read" or "full", and no tokens '
                f"beside it, not {quoted(auth)}"
            )
        if auth is not None:
            check_takes(f"{what}: auth", auth, "request")
        self.limiter = limiter
        self.places = Places(what, hosts)
        self.sessions = Sessions(limiter, session, clock)
        self._tokens = tokens
        self._auth = auth
        self._client = client if client is not None else client_ip()
        self._attempts = Attempts(limiter, self._client)
        self.session_key = _session_key(limiter, what) if auth is not None else b""

    @property
    def opens_by_token(self) -> bool:
        """Whether a browser logs in with a token; else `auth` recognises it."""
        return self._auth is None

    async def recognise(self, scope: Scope) -> Pass | None:
        """Return who sends a request; None for a stranger.

        Raises:
            Refused: It shows a wrong token, or too many were wrong.
        """
        shown = field_values(scope, b"authorization")
        if len(shown) > 1:
            raise Refused(*_WRONG)
        if not shown:
            return await self._unasked(scope)
        await self.keep_banned_out(scope)
        kind, _, text = shown[0].decode("latin-1").partition(" ")
        bearer = kind.lower() == "bearer"
        if self._auth is not None:
            auth = self._auth
            found = await self._shown(scope, shown[0].decode("latin-1"), lambda: _ask(auth, scope))
            session = None if bearer else await self.session_of(scope)
            return Pass(found, session, bearer, shown=True)
        if not bearer:
            raise Refused(*_WRONG)
        token = await self.log_in(scope, text.strip(), anew=False)
        return Pass(token.visitor, None, bearer=True, shown=True)

    async def log_in(self, scope: Scope, text: str, *, anew: bool = True) -> Token:
        """Return the token that a client shows.

        Raises:
            Refused: It is wrong, or too many were wrong.
        """

        async def find() -> Token | None:
            return self._tokens.find(text)

        return await self._shown(scope, text, find, anew=anew)

    async def session_of(self, scope: Scope) -> Session | None:
        """Return the session of a request, whether or not it may do more than look."""
        found = await self._session(scope)
        return None if found is None else found[0]

    async def keep_banned_out(self, scope: Scope) -> None:
        """Refuse a client that is banned.

        Raises:
            Refused: It is.
        """
        key, address = self._client.locate(scope)
        decision = await self.limiter.peek_all((), (key if address is None else address,))
        if decision.reason is Reason.BANNED:
            later = decision.retry_after
            fields = [] if later is None else [(b"retry-after", b"%d" % later)]
            raise Refused(403, "banned", "This address is banned. A session that was opened before goes on.", *fields)

    async def still_valid(self, scope: Scope) -> bool:
        """Tell whether the visitor of an open stream may still look: the session goes on, or `auth` still says so."""
        found: Pass = scope[PASS]
        if self._auth is not None:
            return await _ask(self._auth, scope) is not None
        return found.session is None or await self.sessions.state(found.session) is not Reason.LIMITED

    async def _unasked(self, scope: Scope) -> Pass | None:
        """Return a visitor who has shown no token with this request."""
        found = await self._session(scope)
        session = None if found is None else found[0]
        if self._auth is not None:
            visitor = await _ask(self._auth, scope)
            return None if visitor is None else Pass(visitor, session)
        if found is None:
            return None
        session, sure = found
        token = next(token for token in self._tokens.all if token.key is session.key)
        # Where the store cannot say whether the session was revoked, it is good for looking alone.
        return Pass(token.visitor if sure else Visitor("read", token.visitor.name), session)

    async def _session(self, scope: Scope) -> tuple[Session, bool] | None:
        """Return the session of a request, and whether it is known not to be revoked."""
        cookies = session_cookies(scope)
        if not cookies:
            return None
        keys: Sequence[bytes] = [token.key for token in self._tokens.all] or [self.session_key]
        for cookie in cookies:
            session = self.sessions.read(cookie, keys)
            if session is not None:
                state = await self.sessions.state(session)
                if state is not Reason.LIMITED:
                    return session, state is Reason.OK
        return None

    async def _shown(
        self, scope: Scope, text: str, find: Callable[[], Awaitable[_T | None]], *, anew: bool = False
    ) -> _T:
        found = await self._attempts.show(scope, text, find, anew=anew)
        if isinstance(found, Decision):
            if found.reason is Reason.BANNED:
                await self.keep_banned_out(scope)
            raise Refused(
                429,
                "attempts",
                "Too many wrong tokens; Retry-After says when to try again.",
                (b"retry-after", b"%d" % (found.retry_after or 1)),
            )
        if found is None:
            raise Refused(*_WRONG)
        return found


def _session_key(limiter: Limiter, what: str) -> bytes:
    if limiter.engine.has_secret:
        return limiter.digest("slidegate-sessions", b"auth").encode()
    if limiter.engine.per_process:
        return os.urandom(32)
    raise ConfigurationError(
        f"{what}: auth: workers that share a store sign sessions with the secret of their limiter, and this one has "
        'none; write Limiter.from_url("redis://...", secret=os.environ["SLIDEGATE_SECRET"]), for example'
    )


async def _ask(auth: AuthFunction, scope: Scope) -> Visitor | None:
    """Ask the user's function who sends a request."""
    answer = auth(Request(scope))
    return read_visitor(await answer if isawaitable(answer) else answer)
