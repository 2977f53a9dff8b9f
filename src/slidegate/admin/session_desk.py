"""Where browsers log in, ask who they are, and log out."""

from __future__ import annotations

from starlette.types import Receive, Scope, Send

from .access import Access, Pass
from .bodies import MOST_OF_A_LOGIN, read_json
from .cookies import set_cookie
from .secure_fields import Refused, send_body, send_json
from .sessions import Session
from .tokens import LONGEST
from .visitors import Visitor

_US: int = 1_000_000


class SessionDesk:
    """Opens and ends the sessions of browsers.

    Args:
        access: Says who sends a request.
    """

    def __init__(self, access: Access) -> None:
        self._access = access

    async def log_in(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Open a session for ``{"token": "..."}``; the session before it is over.

        Raises:
            Refused: The token is wrong, too many were, the body is no login, or `auth` says who may come in.
            StoreError: The session before cannot be revoked, because the store does not answer.
        """
        access = self._access
        await access.keep_banned_out(scope)
        said, _ = await read_json(scope, receive, MOST_OF_A_LOGIN)
        if not access.opens_by_token:
            raise Refused(404, "unknown", "There is no login here: the application says who may come in.")
        text = said.get("token") if isinstance(said, dict) and len(said) == 1 else None
        if not isinstance(text, str) or len(text) > LONGEST:
            raise Refused(422, "form", 'A login is {"token": "..."}.')
        token = await access.log_in(scope, text)
        before = await access.session_of(scope)
        if before is not None:
            await access.sessions.revoke(before)
        session, cookie = access.sessions.open(token.key)
        await self._say(scope, send, token.visitor, session, set_cookie(scope, cookie, self._lasts_s))

    async def tell(self, scope: Scope, found: Pass, send: Send) -> None:
        """Say who is logged in, and what changes have to prove.

        Where `auth` recognises visitors by itself, the browser gets a session for that proof, which opens nothing.
        """
        session, fields = found.session, []
        if session is None and not found.bearer:
            session, cookie = self._access.sessions.open(self._access.session_key)
            fields.append(set_cookie(scope, cookie, self._lasts_s))
        await self._say(scope, send, found.visitor, session, *fields)

    async def log_out(self, scope: Scope, found: Pass, send: Send) -> None:
        """End a session, in every worker.

        Raises:
            StoreError: The store does not answer; the session goes on.
        """
        if found.session is not None:
            await self._access.sessions.revoke(found.session)
        await send_body(scope, send, 204, b"", "", set_cookie(scope, "", 0))

    @property
    def _lasts_s(self) -> int:
        return self._access.sessions.length_us // _US

    @staticmethod
    async def _say(
        scope: Scope, send: Send, visitor: Visitor, session: Session | None, *fields: tuple[bytes, bytes]
    ) -> None:
        said: dict[str, object] = {"role": visitor.role, "name": visitor.name, "csrf": None, "ends_at": None}
        if session is not None:
            said.update(csrf=session.csrf, ends_at=session.ends_us / _US)
        await send_json(scope, send, 200, said, *fields)
