"""Who sends a request to an operators' tool: whoever shows a token, or is known to a function of the application.

A client may show five wrong tokens in a minute, and all clients together a hundred. The counts lie in the limiter's
store, so they hold over all workers. A unit is charged *before* a token is compared and given back if it is right: any
number of guesses at the same time are no way past the bound, and a guess beyond it learns nothing.

A script that sends its token with each request would hold such a unit each time. So a worker remembers that a token was
right from an address, until a wrong token beyond the bound of this address makes it forget. A flood of wrong tokens
from other addresses therefore locks out nobody who has shown a right one.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, Iterable, Sequence
from hashlib import blake2b, sha256
from inspect import isawaitable
from threading import get_ident
from typing import Final, Literal, NamedTuple, TypeAlias, TypedDict, TypeVar

import anyio
from starlette.requests import Request
from starlette.types import Scope

from ..core.addresses import Address, address_key
from ..core.arguments import check_takes
from ..core.decision import Decision, LimitSet, Reason
from ..core.errors import ConfigurationError, closest, quoted
from ..core.limits import parse_limits
from ..core.logs import escaped, logger
from ..core.memo import remember
from ..limiter import Limiter
from ..stores.memory.store import MemoryStore
from ..web.client_ip import ClientAddress, client_ip
from .messages import AdminError

Role: TypeAlias = Literal["read", "full"]
"""``"read"`` may look; ``"full"`` may also change."""

MIN_TOKEN: Final = 16
MAX_TOKEN: Final = 512
MAX_TOKENS: Final = 16
MAKE_ONE: Final = 'python3 -c "import secrets; print(secrets.token_urlsafe(32))"'
_MAX_NAME: Final = 64
_KEY: Final = b"slidegate: key of sessions"
_NAME: Final = b"slidegate: name of a token"
_PER_CLIENT: Final = LimitSet("slidegate-wrong-tokens", parse_limits("5/minute"))
_ALL_CLIENTS: Final = LimitSet("slidegate-all-wrong-tokens", parse_limits("100/minute"))
_MAX_PROVEN: Final = 1_024
_LOCAL_KEYS: Final = 10_000

T = TypeVar("T")


class User(NamedTuple):
    """Somebody who may use an operators' tool.

    Attributes:
        role: ``"read"`` or ``"full"``.
        name: The name under which changes are recorded, at most 64 printable characters.
    """

    role: Role
    name: str = ""


AuthAnswer: TypeAlias = User | Role | None
AuthFunction: TypeAlias = Callable[[Request], AuthAnswer | Awaitable[AuthAnswer]]
"""Says who sends a request, which has no body here: None for a stranger."""


class Access(TypedDict, total=False):
    """Who may use an operators' tool, and under which names it is asked; `AdminRoutes` describes the options."""

    token: str | Iterable[str] | None
    read_token: str | Iterable[str] | None
    auth: AuthFunction | None
    hosts: Iterable[str]
    client: ClientAddress | None


class Identity(NamedTuple):
    """Who sends a request, and from where.

    Attributes:
        user: The user.
        key: The key of the client.
        address: Its address, if it has one.
        bearer: Whether the request carries its token itself, as no page elsewhere can make a browser do.
    """

    user: User
    key: str
    address: Address | None
    bearer: bool = False

    @property
    def name(self) -> str:
        """The name under which changes are recorded."""
        return self.user.name or "admin"


class Token:
    """One token, which is compared in constant time and never shown.

    Args:
        text: The token.
        role: The role of its owner.

    Attributes:
        user: Its owner. The name is eight digits of a digest, by which an operator recognises the token.
        key: The key of the sessions that are opened with the token, 32 bytes; another token has another key.
    """

    def __init__(self, text: str, role: Role) -> None:
        secret = text.encode("ascii")
        self._digest = sha256(secret).digest()
        self.key = hmac.digest(secret, _KEY, "sha256")
        self.user = User(role, f"token#{hmac.digest(secret, _NAME, 'sha256').hex()[:8]}")

    def __repr__(self) -> str:
        return f"<Token {self.user.name} {self.user.role}>"

    def matches(self, digest: bytes) -> bool:
        """Tell whether a text with this digest is the token."""
        return hmac.compare_digest(self._digest, digest)


class Authenticator:
    """Says who sends a request.

    Args:
        limiter: Its store holds the counts of wrong tokens; its bans keep strangers out.
        tool: The name of the tool, for error messages.
        access: Who may use it.

    Attributes:
        tokens: The tokens; none where `auth` says who may come in.

    Raises:
        ConfigurationError: There are neither tokens nor `auth`, or both, or a value cannot work.
    """

    def __init__(self, limiter: Limiter, tool: str, access: Access) -> None:
        unknown = next((name for name in access if name not in Access.__annotations__), None)
        if unknown is not None:
            hint = closest(unknown, Access.__annotations__)
            raise TypeError(f"{tool}() got an unexpected keyword argument {unknown!r}{hint}")
        auth, client = access.get("auth"), access.get("client")
        if not isinstance(limiter, Limiter):
            raise ConfigurationError(
                f"{tool}: expected a Limiter, for example {tool}(limiter, ...), not {quoted(limiter)}"
            )
        if client is not None and not isinstance(client, ClientAddress):
            raise ConfigurationError(f"{tool}: client: expected client_ip(...), not {quoted(client)}")
        self.tokens = _read_tokens(tool, access.get("token"), access.get("read_token"))
        if auth is None and not self.tokens:
            raise ConfigurationError(
                f"{tool}: it does not start without a token, so that no stranger gets in; write {tool}(limiter, "
                f'token=os.environ["SLIDEGATE_TOKEN"]) with the output of {MAKE_ONE}, or auth=function'
            )
        if auth is not None and (self.tokens or not callable(auth)):
            raise ConfigurationError(
                f'{tool}: auth: expected a function of the request that returns None, "read" or "full", and no tokens '
                f"beside it, not {quoted(auth)}"
            )
        if auth is not None:
            check_takes(f"{tool}: auth", auth, "request")
        self._limiter = limiter
        self._auth = auth
        self._client = client if client is not None else client_ip()
        self._attempts = TokenAttempts(limiter)

    async def authenticate(self, request: Request) -> Identity | None:
        """Return who sends a request, going by what it carries itself; None for a stranger.

        Raises:
            AdminError: It shows a wrong token, or too many were wrong, or its client is banned.
        """
        fields = request.headers.getlist("authorization")
        if len(fields) > 1:
            raise _wrong_token()
        if not fields:
            user = None if self._auth is None else await _ask(self._auth, request)
            return None if user is None else self.identity(request.scope, user)
        await self.keep_banned_out(request)
        kind, _, text = fields[0].partition(" ")
        bearer = kind.lower() == "bearer"
        if self._auth is not None:
            auth = self._auth
            user = await self._try(request, fields[0], lambda: _ask(auth, request))
            return self.identity(request.scope, user, bearer=bearer)
        if not bearer:
            raise _wrong_token()
        token = await self.find_token(request, text.strip())
        return self.identity(request.scope, token.user, bearer=True)

    async def find_token(self, request: Request, text: str) -> Token:
        """Return the token that a client shows.

        Args:
            request: Its request.
            text: What it shows.

        Raises:
            AdminError: It is wrong, or too many were wrong.
        """
        # Of a digest an attacker cannot choose the first bytes; and digests have one length, whatever the token's.
        digest = sha256(text.encode(errors="surrogatepass")).digest()

        async def find() -> Token | None:
            matching = [token for token in self.tokens if token.matches(digest)]
            return matching[0] if matching else None

        return await self._try(request, text, find)

    async def keep_banned_out(self, request: Request) -> None:
        """Refuse a client that is banned.

        Raises:
            AdminError: It is.
        """
        key, address = self._client.locate(request.scope)
        # Where the prefixes of `client` are others, the ban of the address itself is found by another key.
        subjects = (key,) if address is None else (key, address, address_key(*address))
        decision = await self._limiter.peek_all((), subjects)
        if decision.reason is Reason.BANNED:
            later = decision.retry_after
            detail = "This address is banned. A session that was opened before goes on."
            raise AdminError(403, "banned", detail, {} if later is None else {"retry-after": str(later)})

    def identity(self, scope: Scope, user: User, *, bearer: bool = False) -> Identity:
        """Return a user with the place that a request comes from."""
        return Identity(user, *self._client.locate(scope), bearer)

    async def _try(self, request: Request, text: str, find: Callable[[], Awaitable[T | None]]) -> T:
        key, _ = self._client.locate(request.scope)
        owner = await self._attempts.show(key, text, find)
        if isinstance(owner, Decision):
            if owner.reason is Reason.BANNED:
                await self.keep_banned_out(request)
            detail = "Too many wrong tokens; Retry-After says when to try again."
            raise AdminError(429, "attempts", detail, {"retry-after": str(owner.retry_after or 1)})
        if owner is None:
            raise _wrong_token()
        return owner


class TokenAttempts:
    """Limits wrong tokens, for each client and for all.

    Args:
        limiter: Its store holds the counts.
    """

    def __init__(self, limiter: Limiter) -> None:
        self._limiter = limiter
        self._proven: dict[str, set[bytes]] = {}
        self._underway: dict[tuple[int, str, bytes], anyio.Event] = {}
        self._local: Limiter | None = None

    async def show(self, key: str, text: str, find: Callable[[], Awaitable[T | None]]) -> T | Decision | None:
        """Find the owner of a token that a client shows.

        Args:
            key: The client.
            text: The token.
            find: Returns its owner, None for a wrong token.

        Returns:
            The owner; None for a wrong token; a refusal if too many were wrong, and then the token was not looked at.
        """
        digest = blake2b(text.encode(errors="surrogatepass"), digest_size=16).digest()
        # Of ten connections that a script opens at once the first one shows the token, and nine find it proven.
        attempt = get_ident(), key, digest
        while (before := self._underway.get(attempt)) is not None:
            await before.wait()
        if digest in self._proven.get(key, ()):
            owner = await find()
            if owner is None:
                self._proven.get(key, set()).discard(digest)
            return owner
        done = self._underway[attempt] = anyio.Event()
        try:
            return await self._compare(key, digest, find)
        finally:
            del self._underway[attempt]
            done.set()

    async def _compare(self, key: str, digest: bytes, find: Callable[[], Awaitable[T | None]]) -> T | Decision | None:
        """Find the owner of a token of which nothing is known."""
        limiter, charged = await self._charge(key)
        if not charged.allowed:
            if any(state.rule == _PER_CLIENT.rule for state in charged.violated):
                self._proven.pop(key, None)
            return charged
        try:
            owner = await find()
        except Exception:
            await limiter.refund(charged)  # nobody has learnt anything
            raise
        if owner is None:
            logger.warning("a wrong token for an operators' tool was sent from %s", key)
        else:
            proven = remember(self._proven, key, self._proven.get(key, set()), _MAX_PROVEN)
            if len(proven) < MAX_TOKENS:
                proven.add(digest)
            await limiter.refund(charged)
        return owner

    async def _charge(self, key: str) -> tuple[Limiter, Decision]:
        """Charge a wrong attempt of a client, before anybody knows whether it is wrong; return who counts it, too.

        While the store does not answer and `on_error` decides without counting, the counts of this process hold.
        """
        checks = [(_PER_CLIENT, key, 1), (_ALL_CLIENTS, "everyone", 1)]
        decision = await self._limiter.hit_all(checks)
        if decision.reason is Reason.UNAVAILABLE:
            if self._local is None:
                self._local = Limiter(MemoryStore(max_keys=_LOCAL_KEYS))
            return self._local, await self._local.hit_all(checks)
        return self._limiter, decision


async def _ask(auth: AuthFunction, request: Request) -> User | None:
    """Ask the application's function who sends a request.

    Raises:
        ConfigurationError: It returned something else than None, a role or a `User`.
    """
    answer = auth(Request(request.scope))
    answer = await answer if isawaitable(answer) else answer
    if answer is None:
        return None
    role, name = answer if isinstance(answer, User) else (answer, "")
    if role not in ("read", "full") or not isinstance(name, str):
        raise ConfigurationError(f'auth: expected None, "read", "full" or User("full", "ann"), not {quoted(answer)}')
    return User(role, escaped(name, _MAX_NAME))


def _wrong_token() -> AdminError:
    detail = "The token is not one of those that open this tool."
    return AdminError(401, "login", detail, {"www-authenticate": "Bearer"})


def _read_tokens(tool: str, token: object, read_token: object) -> tuple[Token, ...]:
    full, read = _read(tool, "token", token), _read(tool, "read_token", read_token)
    if len({*full, *read}) < len(full) + len(read):
        raise ConfigurationError(f"{tool}: a token is given twice; make one for each, {MAKE_ONE}")
    if len(full) + len(read) > MAX_TOKENS:
        raise ConfigurationError(f"{tool}: expected at most {MAX_TOKENS} tokens, not {len(full) + len(read)}")
    return (*(Token(text, "full") for text in full), *(Token(text, "read") for text in read))


def _read(tool: str, option: str, given: object) -> Sequence[str]:
    if given is None:
        return ()
    if not isinstance(given, (str, Iterable)) or isinstance(given, (bytes, bytearray)):
        raise ConfigurationError(f"{tool}: {option}: expected text, for example from {MAKE_ONE}")
    texts = [given] if isinstance(given, str) else list(given)
    for text in texts:
        # A text that cannot be a token may be a secret all the same, so no message repeats it.
        if not isinstance(text, str) or not text.isascii() or not text.isprintable() or " " in text:
            raise ConfigurationError(
                f"{tool}: {option}: expected printable ASCII without spaces, for example from {MAKE_ONE}"
            )
        if not MIN_TOKEN <= len(text) <= MAX_TOKEN:
            raise ConfigurationError(
                f"{tool}: {option}: expected {MIN_TOKEN} to {MAX_TOKEN} characters, for example from {MAKE_ONE}, "
                f"not {len(text)}"
            )
    return texts
