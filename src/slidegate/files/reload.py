"""A middleware that reads its configuration from a file, and reads it again when the file changes.

The active middleware is complete. A changed file creates another middleware, and a single assignment makes it the
active one for later requests; those that wait, and open websockets, end under the one that they came to. A file with an
error changes nothing. `_watcher` determines when a file is checked and read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from os import PathLike
from pathlib import Path
from typing import Any, Final, Unpack

from starlette.types import ASGIApp, Receive, Scope, Send

from .._watcher import FollowedFile
from ..core.errors import ConfigurationError, quoted
from ..core.options import checked_value
from ..web.middleware import FileOptions, RateLimitMiddleware
from ..web.policy import Finding, Policy
from ..web.start import FailsAtStartup, fail_startup, stack_of
from .config import ConfigReader

_MOST_TEXT: Final = 600
"""How much of what came and went an event says."""


class ReloadingMiddleware(FailsAtStartup, FollowedFile):
    """A `RateLimitMiddleware` that reads its options from a TOML file, and again when the file changes.

    It is what ``RateLimitMiddleware.from_file`` stands for. Use it as
    ``app.add_middleware(RateLimitMiddleware.from_file, path="slidegate.toml")``.

    Args:
        path: The file. Requests trigger a check for changes at most once a second.
        options: `on_refused`, as for `RateLimitMiddleware`; and `limiter`, with which the file must not set ``store``,
            ``deadline``, ``on_error`` or ``networks``. Its observers receive ``config_reloaded`` and
            ``config_rejected``, too. For tools `store`: the address of a store that replaces the file's.

    Attributes:
        app: The active middleware, a `RateLimitMiddleware`.

    Raises:
        ConfigurationError: The file is invalid; the message names the path of the key.
    """

    app: RateLimitMiddleware
    kind = "config"
    reloaded = "{path}: active rules: {count}; {changes}"
    rejected = "the active rules are kept: {error}"

    def __init__(
        self,
        app: ASGIApp,
        path: str | PathLike[str] = "",
        **options: Unpack[FileOptions],
    ) -> None:
        misplaced = options.keys() - FileOptions.__annotations__.keys()
        if misplaced:
            raise ConfigurationError(f"from_file: write {min(misplaced)} into the file, not beside it")
        if not path or not isinstance(path, (str, PathLike)):
            raise ConfigurationError(
                "from_file: expected the path of a file, for example "
                f'app.add_middleware(RateLimitMiddleware.from_file, path="slidegate.toml"), not {quoted(path)}'
            )
        self._below = app
        self._stack = stack_of(app)
        super().__init__(str(path), "")
        self.file = Path(path)
        limiter = checked_value("limiter", options.get("limiter"))
        self._code: dict[str, Any] = {"on_refused": checked_value("on_refused", options.get("on_refused"))}
        if limiter is not None:
            self._code["limiter"] = limiter
        reader = ConfigReader(self.file, self._code)
        read_options = reader.options()
        if limiter is None:
            limiter = reader.limiter(options.get("store", ""))
        self.limiter = limiter
        self._reader = reader
        self.app = self._build(reader, read_options)
        self.limiter.engine.register(self.app)
        self.observe(self.limiter.engine.emit)

    @property
    def findings(self) -> list[Finding]:
        """The findings about the active middleware."""
        return self.app.findings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass one request to the active middleware."""
        if self.error is not None:
            await fail_startup(self.error, scope, receive, send)
        if scope["type"] != "lifespan":
            self.check_if_due()
        await self.app(scope, receive, send)

    def _build(self, reader: ConfigReader, options: Mapping[str, Any]) -> RateLimitMiddleware:
        """Create the middleware that the file describes."""
        all_options = {**options, **self._code, "limiter": self.limiter}
        enabled = all_options.pop("enabled", True)
        middleware = object.__new__(RateLimitMiddleware)
        middleware.file = self.file
        try:
            middleware.app = self._below
            middleware.begin_with(Policy(self._below, all_options, self._stack), enabled)
        except ConfigurationError as error:
            raise reader.located(error) from error.__cause__
        return middleware

    def load(self) -> tuple[int, Callable[[], None]]:
        reader = ConfigReader(self.file, self._code)
        try:
            options = reader.options()
        finally:
            self.needs = reader.unread
        for name, value in reader.of_limiter.items():
            if value != self._reader.of_limiter[name]:
                text = "it cannot change while the application runs; restart the application"
                raise reader.located(ConfigurationError(text, name))
        middleware = self._build(reader, options)
        before, after = self._reader.texts(), reader.texts()
        changes = [f"{'+' if text in after else '-'}{text}" for text in sorted(before ^ after)]
        saved = datetime.fromtimestamp(self.file.stat().st_mtime, UTC)
        listed = ", ".join([f"changes: {len(changes)}", *changes])
        self.changes = f"saved {saved:%Y-%m-%dT%H:%M:%SZ}, {listed}"[:_MOST_TEXT]

        def apply() -> None:
            if self.app.routed_app is not None:  # here, in the thread of the file: with many routes it takes long
                middleware.check_routes(self.app.routed_app)
            replaced, self.app, self._reader = self.app, middleware, reader
            self.limiter.engine.callers.remove(replaced)
            self.limiter.engine.register(middleware)
            replaced.restart()
            self.limiter.engine.queues.wake()

        return len(middleware.rules), apply
