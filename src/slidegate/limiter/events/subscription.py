"""One observer of a limiter, and the kinds of events that it hears."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set
from inspect import isawaitable, iscoroutine, iscoroutinefunction
from time import monotonic
from typing import Final

from ...core.errors import ConfigurationError, closest
from ...core.logs import logger
from ...core.store import Event, Observer
from .kinds import KINDS

LOG_EVERY_S: Final = 10.0
"""An observer that fails with every refusal of a flood writes no more than one traceback in this time."""


class Subscription:
    """One observer of a limiter, until `remove` is called.

    Args:
        observer: Called with each event.
        kinds: The kinds that it hears; None for all.
        inline: Whether it is called in the thread where an event happens.
        leave: Called by `remove`.
        rest: Called when no event has come for a while, and with True when the limiter is closed.

    Raises:
        ConfigurationError: `observer` cannot be called or is a coroutine function, or a kind is unknown.
    """

    __slots__ = ("_leave", "_left_out", "_rest", "_say_again_s", "inline", "kinds", "observer", "over")

    def __init__(
        self,
        observer: Observer,
        kinds: Iterable[str] | None,
        inline: bool,
        leave: Callable[[Subscription], None],
        rest: Callable[[bool], None] | None = None,
    ) -> None:
        self.observer: Final = _checked(observer)
        self.kinds: Final = _known(kinds)
        self.inline: Final = bool(inline or getattr(observer, "inline", False))
        self.over = False
        self._leave = leave
        self._rest = rest
        self._left_out = 0
        self._say_again_s = 0.0

    def __repr__(self) -> str:
        return f"<Subscription {self.observer!r}>"

    def remove(self) -> None:
        """Call the observer no more, also with events that are on their way. A second call does nothing."""
        self.over = True
        self._leave(self)

    def wants(self, kind: str) -> bool:
        """Return whether the observer hears events of a kind."""
        return self.kinds is None or kind in self.kinds

    def hear(self, event: Event) -> None:
        """Call the observer, and outlive its exceptions."""
        if self.over:
            return
        try:
            answer: object = self.observer(event)  # type: ignore[func-returns-value]
            if answer is not None and isawaitable(answer):
                if iscoroutine(answer):
                    answer.close()
                raise TypeError(f"it returned {type(answer).__name__!r}, which nobody awaits; observers are not async")
        except Exception as error:
            self.failed(error)

    def rest(self, last: bool) -> None:
        """Let the observer do the work that it has put off; `last` says that it may not be called again."""
        if self._rest is not None and not self.over:
            try:
                self._rest(last)
            except Exception as error:
                self.failed(error)

    def failed(self, error: BaseException) -> None:
        """Log an exception of the observer, now and then."""
        now_s = monotonic()
        if now_s < self._say_again_s:
            self._left_out += 1
            return
        more = f", {self._left_out} times more since the last report" if self._left_out else ""
        self._say_again_s, self._left_out = now_s + LOG_EVERY_S, 0
        logger.error("observer %r failed%s", self.observer, more, exc_info=error)


def _checked(observer: object) -> Observer:
    if not callable(observer):
        raise ConfigurationError(f"observers: expected functions that take an Event, not {observer!r}")
    if iscoroutinefunction(observer) or iscoroutinefunction(getattr(observer, "__call__", None)):  # noqa: B004
        raise ConfigurationError(
            f"observers: expected a plain function, not the coroutine function {observer!r}; to go on in an event "
            "loop, write lambda event: asyncio.run_coroutine_threadsafe(work(event), loop)"
        )
    return observer


def _known(kinds: Iterable[str] | None) -> Set[str] | None:
    if kinds is None:
        return None
    if isinstance(kinds, str) or not isinstance(kinds, Iterable):
        raise ConfigurationError(f'kinds: expected a list of kinds such as ["refused", "banned"], not {kinds!r}')
    named = frozenset(kinds)
    for kind in named:
        if kind not in KINDS:
            raise ConfigurationError(
                f'kinds: expected kinds of events such as "refused", not {kind!r}{closest(str(kind), KINDS)}'
            )
    return named
