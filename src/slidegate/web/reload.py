"""A middleware that reads its rules from a file and reloads them when the file changes.

The active middleware is complete and never modified. A changed file creates another middleware, and a single assignment
makes it the active one for later requests. An invalid file changes nothing.

`file_watcher` determines when a file is checked and read.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypedDict

from starlette.types import ASGIApp, Receive, Scope, Send

from ..core.errors import ConfigurationError, quoted
from ..core.logs import logger
from ..core.store import Event
from ..limiter import FailurePolicy, Limiter
from ..limiter.observers import AnyObserver, listed_observers
from .broken import FailsAtStartup, end_start, whole
from .checks import Finding
from .config import ConfigLoader
from .file_watcher import FileWatcher, Versions
from .lists import files_of
from .middleware import RateLimitMiddleware
from .networks import NetworkFile, key_by

# For these options, None in code is equivalent to omitting them.
_NONE_IS_NOTHING: Final = frozenset({"client", "limiter", "limits", "default_limits", "rules"})
_LASTING: Final = ("store", "deadline", "on_error", "networks")
"""The options of a limiter, which cannot be reloaded."""


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
    ignore_checks: Iterable[str]
    name: str | None
    store: str


class ReloadingMiddleware(FailsAtStartup):
    """A `RateLimitMiddleware` that reloads its configuration file; created by `RateLimitMiddleware.from_file`.

    Args:
        app: The application to guard.
        path: The file.
        observers: Receive the events of the limiter that the file describes.
        clock: Returns the time in seconds, for the interval between two checks of the file.
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
        self._below = app
        if not isinstance(path, (str, PathLike)):
            raise ConfigurationError(
                f'from_file: expected the path of a file, for example "slidegate.toml", not {quoted(path)}'
            )
        self.file = Path(path)
        code = {
            # An iterator can be consumed only once, but each version of the file needs the value again.
            name: tuple(value) if isinstance(value, Iterator) else value
            for name, value in options.items()
            if value is not None or name not in _NONE_IS_NOTHING
        }
        self._observers = listed_observers(observers)
        if self._observers and "limiter" in code:
            raise ConfigurationError(
                "observers: they are for the limiter that the file describes; pass them to the limiter given in code: "
                "limiter=Limiter(store, observers=[function])"
            )
        self._from_file: Limiter | None = None
        self._limiter_made_of: tuple[object, ...] = ()
        self._network_files: Mapping[str, NetworkFile] = {}
        self._ids: dict[str, str] = {}
        self._loader = partial(ConfigLoader, self.file, code, self._limiter_at, clock, store)
        self._watcher = FileWatcher((), self._read_again, clock, together=True)
        loader = self._loader()
        self.app = self._made_of(loader)
        self._network_files = loader.network_files
        self._watcher.versions = loader.versions
        self.limiter.engine.callers.add(self.app)
        self.limiter.engine.overrides.register(self.app.limits_by_name())

    @property
    def has_started(self) -> bool:
        """Whether a first middleware is active."""
        return "app" in vars(self)

    @property
    def limiter(self) -> Limiter:
        """The limiter that counts."""
        return self.app.limiter

    @property
    def findings(self) -> list[Finding]:
        """The findings about the active middleware."""
        return self.app.findings

    def unique_id(self, identity: str, limiter: Limiter) -> str:
        """Return a unique identity for counts, the same one for every middleware that the file creates."""
        if identity not in self._ids:
            self._ids[identity] = limiter.engine.unique_id(identity, self)
        return self._ids[identity]

    def _limiter_at(self, address: str, policy: FailurePolicy, networks: Sequence[NetworkFile]) -> Limiter:
        """Return the limiter for a store's address; it is created once and kept while the application runs."""
        made_of = address, *policy, networks
        if self._from_file is None:
            deadline, on_error = policy
            self._from_file = Limiter.from_url(
                address,
                observers=self._observers,
                deadline=deadline,
                on_error=on_error,
                networks=[key_by(file) for file in networks],
            )
            self._limiter_made_of = made_of
        for option, before, now in zip(_LASTING, self._limiter_made_of, made_of, strict=True):
            if now != before:
                raise ConfigurationError("it cannot change while the application runs; restart the application", option)
        return self._from_file

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass one request to the active middleware."""
        if self.error is not None:
            await end_start(self.error, scope, receive, send)
        if scope["type"] != "lifespan":
            self._watcher.look_when_due()
        await self.app(scope, receive, send)

    def _made_of(self, loader: ConfigLoader) -> RateLimitMiddleware:
        """Create the middleware that the file describes."""
        options = loader.options()
        try:
            return whole(_FromFile(self._below, self, options))
        except ConfigurationError as error:
            raise loader.blamed(error) from None

    def _read_again(self, changed: Versions) -> Callable[[], None]:
        followed = [files for given in self.app.lists.values() if (files := files_of(given)) is not None]
        filled = {state.path for files in followed for state in files.states if state.entries}
        loader = self._loader(filled, self._network_files)
        made: RateLimitMiddleware | None = None
        message = ""
        try:
            made = self._made_of(loader)
        except ConfigurationError as error:
            message = f"the active rules are kept: {error}"
        except Exception as error:
            logger.exception("reading %s failed", self.file)
            message = f"the active rules are kept: {error!r}"

        def activate() -> None:
            self._watcher.versions = loader.versions
            if made is None:
                self._report(logging.ERROR, "config_rejected", message)
            else:
                self._network_files = loader.network_files
                self._activate(made)

        return activate

    def _activate(self, made: RateLimitMiddleware) -> None:
        engine, before = self.limiter.engine, self.app
        engine.callers.replace(before, made)
        engine.overrides.retire(before.limits_by_name())
        engine.overrides.register(made.limits_by_name())
        self.app = made
        self._report(logging.INFO, "config_reloaded", f"{self.file}: active rules: {len(made.rules)}")
        windows = _windows(made)
        for what, earlier in _windows(before).items():
            if what in windows and earlier - windows[what]:
                self._report(logging.INFO, "windows_restarted", f"{what} restarts counting: its windows have changed")

    def _report(self, level: int, kind: str, message: str) -> None:
        logger.log(level, "%s: %s", kind, message)
        self.limiter.engine.emit(Event(kind, message, {"path": str(self.file)}))


class _FromFile(RateLimitMiddleware):
    """A middleware whose options were read from a file. It reuses the identities of its predecessor.

    Args:
        app: The application to guard.
        shared: Watches the file, and stores the identities that its successive middlewares share.
        options: Options of `RateLimitMiddleware`.
    """

    def __init__(self, app: ASGIApp, shared: ReloadingMiddleware, options: Mapping[str, Any]) -> None:
        self._shared = shared
        self.file = shared.file
        super().__init__(app, **options)

    def _unique_id(self, identity: str) -> str:
        return self._shared.unique_id(self._prefix + identity, self.limiter)

    def _register(self) -> None:
        """Do nothing: the `ReloadingMiddleware` registers the middleware that it activates."""


def _windows(middleware: RateLimitMiddleware) -> dict[str, set[object]]:
    """Return the windows in which each rule of a middleware counts."""
    limits = {f"rule {rule.label!r}": rule.limits for rule in middleware.rules}
    if middleware.default_limits:
        limits["default_limits"] = tuple(middleware.default_limits)
    return {what: {limit.same_window for limit in those} for what, those in limits.items()}
