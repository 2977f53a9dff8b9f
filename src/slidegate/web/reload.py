"""A middleware that reads its configuration from a file, and reads it again when the file changes.

The active middleware is complete and never modified. A changed file creates another middleware, and a single assignment
makes it the active one for later requests; those that wait end under the one that they came to. A file with an error
changes nothing. `file_watcher` determines when a file is looked at and read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypedDict

from starlette.types import ASGIApp, Receive, Scope, Send

from ..core.errors import ConfigurationError, quoted
from ..limiter import Limiter
from ..limiter.observers import AnyObserver, listed_observers
from .broken import FailsAtStartup, end_start
from .checks import Finding
from .config import ConfigReader
from .file_watcher import FollowedFile, Versions
from .middleware import RateLimitMiddleware

# For these options, None in code is equivalent to omitting them.
_NONE_IS_NOTHING: Final = frozenset({"client", "limiter", "limits", "default_limits", "rules"})

if TYPE_CHECKING:
    from ..core.bans.policy import BanPolicy
    from ..core.networks import Networks
    from .client_ip import ClientAddress
    from .headers import HeaderStyles
    from .keys import Key, KeyFunction
    from .responses import Refused
    from .rules import Limits, LimitsFunction, Rule
    from .websockets import MessageLimits


class FileOptions(TypedDict, total=False):
    """The options of `RateLimitMiddleware`, and `store`, which overrides the file's address, for type checkers.

    With ``**options: Any`` instead, which could include a second ``app``, type checkers reject ``add_middleware``.
    """

    limits: Limits | LimitsFunction | None
    rules: Sequence[Rule] | None
    default_limits: Limits | LimitsFunction | None
    key: Key | KeyFunction | None
    limiter: Limiter | None
    client: ClientAddress | None
    blocklist: Networks | None
    allowlist: Networks | None
    bans: BanPolicy | Iterable[BanPolicy] | None
    on_refused: Refused | None
    headers: HeaderStyles | None
    messages: MessageLimits | None
    enabled: bool
    name: str | None
    store: str


class ReloadingMiddleware(FailsAtStartup, FollowedFile):
    """A `RateLimitMiddleware` that follows its configuration file; created by `RateLimitMiddleware.from_file`.

    Args:
        app: The application to guard.
        path: The file.
        observers: Receive the events of the limiter that the file describes.
        store: The address of a store that replaces the file's.
        options: Options of `RateLimitMiddleware`, which override those of the file.

    Attributes:
        app: The active middleware, a `RateLimitMiddleware`.
        file: The file.
        limiter: The limiter that counts.
    """

    kind = "config"
    reloaded = "{path}: active rules: {count}"
    rejected = "the active rules are kept: {error}"

    def __init__(
        self,
        app: ASGIApp,
        path: str | PathLike[str],
        *,
        observers: Iterable[AnyObserver] = (),
        store: str = "",
        **options: Any,
    ) -> None:
        if not isinstance(path, (str, PathLike)):
            raise ConfigurationError(
                f'from_file: expected the path of a file, for example "slidegate.toml", not {quoted(path)}'
            )
        super().__init__(str(path), "")
        self.file = Path(path)
        self._below = app
        self._code = {
            # An iterator can be consumed only once, but each version of the file needs the value again.
            name: tuple(value) if isinstance(value, Iterator) else value
            for name, value in options.items()
            if value is not None or name not in _NONE_IS_NOTHING
        }
        listed = listed_observers(observers)
        if listed and "limiter" in self._code:
            raise ConfigurationError(
                "observers: they are for the limiter that the file describes; pass them to the limiter given in code: "
                "limiter=Limiter(store, observers=[function])"
            )
        reader = ConfigReader(self.file, self._code, self.versions)
        first = reader.options()
        self.limiter: Limiter = first.get("limiter") or reader.limiter(store, listed)
        self._of_limiter = reader.of_limiter
        self.app = self._made(reader, first)
        self.limiter.engine.register(self.app)
        self.observe(self.limiter.engine.emit)

    @property
    def findings(self) -> list[Finding]:
        """The findings about the active middleware."""
        return self.app.findings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass one request to the active middleware."""
        if self.error is not None:
            await end_start(self.error, scope, receive, send)
        if scope["type"] != "lifespan":
            self.look_when_due()
        await self.app(scope, receive, send)

    def _made(self, reader: ConfigReader, options: Mapping[str, Any]) -> RateLimitMiddleware:
        """Create the middleware that the file describes."""
        try:
            made = _FromFile(self._below, self, {**options, "limiter": self.limiter})
            if made.error is not None:  # kept, because an application's stack is being built
                raise made.error
            return made
        except ConfigurationError as error:
            raise reader.located(error) from error.__cause__

    def load(self, versions: Versions) -> tuple[int, Callable[[], None]]:
        """See `FollowedFile.load`."""
        reader = ConfigReader(self.file, self._code, versions)
        options = reader.options()
        for name, written in reader.of_limiter.items():
            if written != self._of_limiter[name]:
                text = "it cannot change while the application runs; restart the application"
                raise reader.located(ConfigurationError(text, name))
        made = self._made(reader, options)

        def apply() -> None:
            engine = self.limiter.engine
            engine.callers.remove(self.app)
            engine.register(made)
            self.app = made

        return len(made.rules), apply


class _FromFile(RateLimitMiddleware):
    """A middleware whose options were read from a file. It counts by the identities of its predecessor.

    Args:
        app: The application to guard.
        owner: Follows the file; owns the identities that its successive middlewares share.
        options: Options of `RateLimitMiddleware`.
    """

    def __init__(self, app: ASGIApp, owner: ReloadingMiddleware, options: Mapping[str, Any]) -> None:
        self._owner, self.file = owner, owner.file
        super().__init__(app, **options)
