"""Sessions of browsers: a signed cookie, so that every worker knows a session without asking another one.

A session is signed with a key that is derived from the token it was opened with. So workers with one token agree, and
another token ends all sessions. The cookie holds an identifier and the time of the start, and neither a token nor a
role: the role is that of the token whose key fits.

A session that was logged out is *revoked*: its identifier is charged under a limit of one unit in 31 days, longer than
any session lasts. So it lies in the limiter's store, whichever that is, and every worker finds it there.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Sequence
from typing import Final, NamedTuple

from ..core.decision import Bucket, Check, Decision, Reason
from ..core.errors import ConfigurationError
from ..core.limits import Limit, parse_duration_us
from ..core.store import Clock
from ..limiter import Limiter
from ..limiter.aio import within

try:
    from itsdangerous import BadData, URLSafeSerializer
except ModuleNotFoundError as error:
    raise ImportError(f'sessions need the package {error.name}: pip install "slidegate[dashboard]"') from error

LONGEST_US: Final = 30 * 86_400_000_000
SHORTEST_US: Final = 60_000_000
MOST_OF_A_COOKIE: Final = 512
"""Characters of a cookie that is looked at; ours have about 100."""
EARLY_US: Final = 60_000_000
"""How far the clock of the worker that opened a session may be ahead of that of the worker that reads it."""

REVOKED: Final = Bucket("slidegate-revoked", (Limit(1, "31d"),))
"""Remembers the sessions that were revoked."""

_SALT: Final = b"slidegate: session"
_CSRF: Final = b"slidegate: csrf"


class Session(NamedTuple):
    """One session.

    Attributes:
        identity: Its random identifier, 16 bytes as 22 characters.
        key: The key that it is signed with.
        started_us: When it was opened, in Unix time.
        ends_us: When it ends, in Unix time.
    """

    identity: str
    key: bytes
    started_us: int
    ends_us: int

    @property
    def csrf(self) -> str:
        """The text that a page sends with each change, and that a page elsewhere cannot know."""
        return hmac.digest(self.key, _CSRF + self.identity.encode(), "sha256").hex()

    def accepts(self, csrf: str) -> bool:
        """Tell, in constant time, whether a text is `csrf`."""
        return hmac.compare_digest(self.csrf.encode(), csrf.encode(errors="surrogatepass"))


class Sessions:
    """Opens, reads and revokes sessions.

    Args:
        limiter: Its store remembers the revoked ones.
        length: How long a session lasts, 1 minute to 30 days.
        clock: Returns Unix time in microseconds.

    Raises:
        ConfigurationError: The length cannot be used.
    """

    def __init__(self, limiter: Limiter, length: str | float, clock: Clock) -> None:
        self.length_us = check_length(length)
        self._limiter = limiter
        self._clock = clock

    def open(self, key: bytes) -> tuple[Session, str]:
        """Open a session, and return the value of its cookie with it."""
        started_us = self._clock()
        session = Session(secrets.token_urlsafe(16), key, started_us, started_us + self.length_us)
        return session, _signer(key).dumps([session.identity, started_us])

    def read(self, cookie: str, keys: Sequence[bytes]) -> Session | None:
        """Return the session of a cookie, whatever has been revoked; None if it is not ours, or over."""
        if len(cookie) > MOST_OF_A_COOKIE or not cookie.isascii():
            return None
        for key in keys:
            try:
                identity, started_us = _signer(key).loads(cookie)
            except (BadData, ValueError, TypeError):
                continue
            session = Session(identity, key, started_us, started_us + self.length_us)
            return session if self._lasts(session) else None
        return None

    def _lasts(self, session: Session) -> bool:
        return session.started_us - EARLY_US <= self._clock() < session.ends_us

    async def revoke(self, session: Session) -> None:
        """Make sure that nobody uses a session any more, here or in another worker.

        Raises:
            StoreError: The store does not answer.
        """
        await within(self._limiter.store.charge(_checks(session)))

    async def state(self, session: Session) -> Reason:
        """Return OK for a session that lasts, LIMITED for one that is over or revoked, UNAVAILABLE if nobody knows."""
        if not self._lasts(session):
            return Reason.LIMITED
        checks = _checks(session)
        store, failover = self._limiter.store, self._limiter.engine.failover
        if failover is None:
            answer = store.peek(checks)
            decision = answer if isinstance(answer, Decision) else await answer
        else:
            # Not by `Limiter.peek`: where the store is away, that answers by what this process has counted.
            known = await failover.ask(lambda: store.peek(checks), None, checks)
            if known is None:
                return Reason.UNAVAILABLE
            decision = known
        return Reason.OK if decision.allowed else Reason.LIMITED


def check_length(length: str | float) -> int:
    """Return the length of a session in microseconds.

    Raises:
        ConfigurationError: It is no span of time from 1 minute to 30 days.
    """
    length_us = parse_duration_us(length, "session")
    if not SHORTEST_US <= length_us <= LONGEST_US:
        raise ConfigurationError(f'session: expected 1 minute to 30 days, for example "12h", not {length!r}')
    return length_us


def _checks(session: Session) -> Sequence[Check]:
    return [(REVOKED, f"session:{session.identity}", 1)]


def _signer(key: bytes) -> URLSafeSerializer:
    return URLSafeSerializer(key, salt=_SALT, signer_kwargs={"digest_method": "sha256", "key_derivation": "hmac"})
