"""A middleware that reads its configuration from a file, and reads it again when the file changes.

The active middleware is complete and never modified. A changed file creates another middleware, and a single assignment
makes it the active one for later requests; those that wait end under the one that they came to. A file with an error
changes nothing. `file_watcher` determines when a file is looked at and read.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypedDict

from starlette.types import ASGIApp, Receive, Scope, Send

from ..core.errors import ConfigurationError, quoted
from ..core.logs import logger
from ..core.store import Event
from ..limiter import Limiter
from ..limiter.observers import AnyObserver, listed_observers
from .broken import FailsAtStartup, end_start, whole
from .checks import Finding
from .config import ConfigReader
from .file_watcher import FileWatcher
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


class ReloadingMiddleware(FailsAtStartup):
    """A `RateLimitMiddleware` that follows its configuration file; created by `RateLimitMiddleware.from_file`.

    Args:
        app: The application to guard.
        path: The file.
        observers: Receive the events of the limiter that the file describes.
        clock: Returns the time in seconds, for the interval between two looks at the file.
        store: The address of a store that replaces the file's.
        options: Options of `RateLimitMiddleware`, which override those of the file.

    Attributes:
        app: The active middleware, a `RateLimitMiddleware`.
        file: The file.
    """

    def __init__(
        self,
        app: ASGIApp,
        path: str | PathLike[str],
        *,
        observers: Iterable[AnyObserver] = (),
        clock: Callable[[], float] = time.monotonic,
        store: str = "",
        **options: Any,
    ) -> None:
        if not isinstance(path, (str, PathLike)):
            raise ConfigurationError(
                f'from_file: expected the path of a file, for example "slidegate.toml", not {quoted(path)}'
            )
        self.file = Path(path)
        self._below = app
        self._clock = clock
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
        reader = ConfigReader(self.file, self._code, clock)
        first = reader.options()
        self._limiter: Limiter = first.get("limiter") or reader.limiter(store, listed)
        self._of_limiter = reader.of_limiter
        self.app = self._made(reader, first)
        self._watcher = FileWatcher(reader.versions, self._read_again, clock)
        self._limiter.engine.register(self.app)

    @property
    def limiter(self) -> Limiter:
        """The limiter that counts."""
        return self._limiter

    @property
    def findings(self) -> list[Finding]:
        """The findings about the active middleware."""
        return self.app.findings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass one request to the active middleware."""
        if self.error is not None:
            await end_start(self.error, scope, receive, send)
        if scope["type"] != "lifespan":
            self._watcher.look_when_due()
        await self.app(scope, receive, send)

    def _made(self, reader: ConfigReader, options: Mapping[str, Any]) -> RateLimitMiddleware:
        """Create the middleware that the file describes."""
        try:
            return whole(_FromFile(self._below, self, {**options, "limiter": self._limiter}))
        except ConfigurationError as error:
            raise reader.located(error) from error.__cause__

    def _read_again(self) -> Callable[[], None]:
        reader = ConfigReader(self.file, self._code, self._clock)
        try:
            options = reader.options()
            for name, written in reader.of_limiter.items():
                if written != self._of_limiter[name]:
                    text = "it cannot change while the application runs; restart the application"
                    raise reader.located(ConfigurationError(text, name))
            made = self._made(reader, options)
        except Exception as error:
            if not isinstance(error, ConfigurationError):
                logger.exception("reading %s failed", self.file)
            message = f"the active rules are kept: {error or repr(error)}"
            return lambda: self._keep(reader, message)
        return lambda: self._activate(reader, made)

    def _keep(self, reader: ConfigReader, message: str) -> None:
        self._watcher.versions = reader.versions
        self._report(logging.ERROR, "config_rejected", message)

    def _activate(self, reader: ConfigReader, made: RateLimitMiddleware) -> None:
        self._watcher.versions = reader.versions
        engine, before = self._limiter.engine, self.app
        engine.callers.remove(before)
        engine.register(made)
        self.app = made
        self._report(logging.INFO, "config_reloaded", f"{self.file}: active rules: {len(made.rules)}")

    def _report(self, level: int, kind: str, message: str) -> None:
        logger.log(level, "%s: %s", kind, message)
        self._limiter.engine.emit(Event(kind, message, {"path": str(self.file)}))


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
