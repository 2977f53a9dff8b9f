"""Authentication of operators, by token or by a function of the application.

A token is sent as ``Authorization: Bearer TOKEN``, or as the password of HTTP Basic, for which browsers prompt.
Wrong tokens are counted per client address, over all workers: the first five a minute are logged, further ones are
answered with 429. A valid token is accepted even then.
"""

from __future__ import annotations

import hmac
from base64 import b64decode
from collections.abc import Awaitable, Callable, Iterable, Iterator
from hashlib import sha256
from inspect import isawaitable
from typing import Final, Literal, NamedTuple, TypeAlias, TypedDict

from starlette.requests import Request

from ..core.arguments import check_takes
from ..core.decision import LimitSet, Reason
from ..core.errors import ConfigurationError, closest, quoted
from ..core.limits import parse_limits
from ..core.logs import escaped, logger
from ..limiter import Limiter
from ..web.client_ip import ClientAddress
from .messages import AdminError

Role: TypeAlias = Literal["read", "full"]
"""``"read"`` allows reading; ``"full"`` also allows changes."""

MIN_TOKEN: Final = 16
MAX_TOKEN: Final = 512
MAX_TOKENS: Final = 16
MAKE_ONE: Final = 'python3 -c "import secrets; print(secrets.token_urlsafe(32))"'
_MAX_NAME: Final = 64
_WRONG_TOKENS: Final = LimitSet("slidegate-wrong-tokens", parse_limits("5/minute"))


class User(NamedTuple):
    """A user of an operators' tool.

    Attributes:
        role: ``"read"`` or ``"full"``.
        name: Recorded as the author of changes; at most 64 printable characters.
    """

    role: Role
    name: str = "admin"


AuthAnswer: TypeAlias = User | Role | None
AuthFunction: TypeAlias = Callable[[Request], AuthAnswer | Awaitable[AuthAnswer]]
"""Returns the user who sends a request, or None to reject it. The request has no body."""


class Access(TypedDict, total=False):
    """The access options of an operators' tool; see `AdminRoutes`."""

    token: str | Iterable[str] | None
    read_token: str | Iterable[str] | None
    auth: AuthFunction | None
    hosts: Iterable[str]
    client: ClientAddress | None


class Authenticator:
    """Authenticates the sender of a request.

    Args:
        limiter: Its store counts wrong tokens.
        tool: The name of the tool, for error messages.
        access: The access options.

    Raises:
        ConfigurationError: Neither tokens nor `auth` are given, or both, or a value is invalid.
    """

    def __init__(self, limiter: Limiter, tool: str, access: Access) -> None:
        _check_options(tool, access)
        self._limiter = limiter
        self._auth = access.get("auth")
        self._users = _read_tokens(tool, access)
        if self._auth is None and not self._users:
            raise ConfigurationError(
                f'{tool}: a token or auth= is required; write {tool}(limiter, token=os.environ["SLIDEGATE_TOKEN"]), '
                f"with a token from {MAKE_ONE}, or auth=function"
            )
        if self._auth is not None and self._users:
            raise ConfigurationError(f"{tool}: expected tokens or auth=, not both")

    async def identify(self, request: Request, client_key: str) -> User:
        """Return the user who sends a request.

        Args:
            request: The request.
            client_key: The key of the client, by which wrong tokens are counted.

        Raises:
            AdminError: The request carries no valid token, or `auth` rejects it.
        """
        user = self._owner(request) if self._auth is None else await _ask(self._auth, request)
        if user is not None:
            return user
        # A browser shows a password dialog for Basic; `auth` may use another scheme, so it must not.
        challenge = 'Basic realm="slidegate", charset="UTF-8"' if self._auth is None else "Bearer"
        if "authorization" not in request.headers:
            raise AdminError(401, "login", "A token is required.", {"www-authenticate": challenge})
        await self._count_wrong(client_key)
        raise AdminError(401, "login", "The token is wrong.", {"www-authenticate": challenge})

    def _owner(self, request: Request) -> User | None:
        """Return the owner of a request's token. Digests are compared, so that timing reveals nothing of a token."""
        fields = request.headers.getlist("authorization")
        shown = sha256(_token_of(fields[0]).encode(errors="surrogatepass")).digest() if len(fields) == 1 else b""
        owners = [user for digest, user in self._users.items() if hmac.compare_digest(digest, shown)]
        return owners[0] if owners else None

    async def _count_wrong(self, client_key: str) -> None:
        """Count a wrong token.

        Raises:
            AdminError: The client has sent too many.
        """
        counted = await self._limiter.hit_all([(_WRONG_TOKENS, client_key, 1)])
        if counted.reason is Reason.LIMITED:
            detail = "Too many wrong tokens came from this address. A valid token is still accepted."
            raise AdminError(429, "attempts", detail, {"retry-after": str(counted.retry_after or 1)})
        logger.warning("%s sent a wrong token to an operators' tool", client_key)


def _token_of(field: str) -> str:
    """Return the token in the header field `Authorization`; an empty string if there is none."""
    scheme, _, value = field.partition(" ")
    if scheme.lower() == "bearer":
        return value.strip()
    if scheme.lower() != "basic":
        return ""
    try:
        return b64decode(value, validate=True).decode().partition(":")[2]
    except ValueError:
        return ""


def _check_options(tool: str, access: Access) -> None:
    unknown = next((name for name in access if name not in Access.__annotations__), None)
    if unknown is not None:
        hint = closest(unknown, Access.__annotations__)
        raise TypeError(f"{tool}() got an unexpected keyword argument {unknown!r}{hint}")
    auth, client = access.get("auth"), access.get("client")
    if client is not None and not isinstance(client, ClientAddress):
        raise ConfigurationError(f"{tool}: client: expected client_ip(...), not {quoted(client)}")
    if auth is not None:
        if not callable(auth):
            raise ConfigurationError(f"{tool}: auth: expected a function of the request, not {quoted(auth)}")
        check_takes(f"{tool}: auth", auth, "request")


async def _ask(auth: AuthFunction, request: Request) -> User | None:
    """Call the function of the application.

    Raises:
        ConfigurationError: It returned something other than None, a role or a `User`.
    """
    answer = auth(Request(request.scope))
    answer = await answer if isawaitable(answer) else answer
    if answer is None:
        return None
    user = answer if isinstance(answer, User) else User(answer)
    if user.role not in ("read", "full") or not isinstance(user.name, str):
        raise ConfigurationError(f'auth: expected None, "read", "full" or User("full", "ann"), not {quoted(answer)}')
    return User(user.role, escaped(user.name, _MAX_NAME) or "admin")


def _read_tokens(tool: str, access: Access) -> dict[bytes, User]:
    """Return digest -> user for each token. Users are named by option and position: a name reveals no token."""
    users: dict[bytes, User] = {}
    roles: list[tuple[Literal["token", "read_token"], Role]] = [("token", "full"), ("read_token", "read")]
    for option, role in roles:
        for number, text in enumerate(_texts(tool, option, access.get(option)), start=1):
            digest = sha256(text.encode()).digest()
            if digest in users:
                raise ConfigurationError(
                    f"{tool}: {option}: a token is given twice; create one for each user, for example by {MAKE_ONE}"
                )
            users[digest] = User(role, f"{option} {number}")
    if len(users) > MAX_TOKENS:
        raise ConfigurationError(f"{tool}: expected at most {MAX_TOKENS} tokens, not {len(users)}")
    return users


def _texts(tool: str, option: str, given: object) -> Iterator[str]:
    """Yield the tokens of an option. Error messages never quote the value: an invalid token may still be a secret."""
    listed = [given] if isinstance(given, str) else () if given is None else given
    if not isinstance(listed, Iterable) or isinstance(listed, (bytes, bytearray)):
        raise ConfigurationError(f"{tool}: {option}: expected text, for example from {MAKE_ONE}")
    for text in listed:
        if not isinstance(text, str) or not text.isascii() or not text.isprintable() or " " in text:
            raise ConfigurationError(
                f"{tool}: {option}: expected printable ASCII without spaces, for example from {MAKE_ONE}"
            )
        if not MIN_TOKEN <= len(text) <= MAX_TOKEN:
            raise ConfigurationError(
                f"{tool}: {option}: expected {MIN_TOKEN} to {MAX_TOKEN} characters, for example from {MAKE_ONE}, "
                f"not {len(text)}"
            )
        yield text
